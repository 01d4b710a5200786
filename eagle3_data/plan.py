"""What a run needs before its first batch: sources, profile, tokenizer, held-out prompts.

What enters: the options of a call and the first records of the data. What leaves: the parts that
`pipeline` puts together. It promises that every choice made for the user can be told afterwards,
with its reason.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

import polars as pl

from eagle3_data import __version__

if TYPE_CHECKING:
    from eagle3_data.audit.holdout import Holdout
    from eagle3_data.audit.report import ProfileFacts, TokenizerFacts
    from eagle3_data.audit.rules import Choice as Rules
    from eagle3_data.audit.thresholds import Thresholds
    from eagle3_data.profiles.choose import Choice
    from eagle3_data.profiles.profile import Profile
    from eagle3_data.records.lines import Source
    from eagle3_data.records.shapes import Turns
    from eagle3_data.tokens.assemble import Assembler
    from eagle3_data.tokens.tokenizer import Tokenizer

HEAD_RECORDS = 1024
"""Records at the head of the data that choose the profile."""
HEAD_BYTES = 64 << 20
"""The head is no longer than this, whatever its records weigh."""
SAMPLE_RECORDS = 64
"""Records of the head whose texts prove the fast tokenizer: about 1 MB of a usual capture."""


HOLDOUT = "SET014"
"""The rule that looks for held-out prompts."""

REQUEST = (
    "messages_json", "prompt_text", "system_text", "tools_json", "template_kwargs_json",
    "settings_json", "created",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Evidence:
    """What the head of the data shows. `models`: the model of each record; `texts`: the texts of
    some records, record by record; `thinking`: a record holds a thought or a think marker;
    `requests`: what some of them asked.
    """

    models: Sequence[str | None]
    texts: Sequence[str]
    thinking: bool
    requests: pl.DataFrame


def sources(paths: Sequence[str | Path | Source] | str | Path) -> list[Source]:
    """The inputs, each file once. Raises InputError."""
    from eagle3_data.records.sources import Source, expand

    if isinstance(paths, str | Path):
        paths = [paths]
    ready = [path for path in paths if isinstance(path, Source)]
    if len(ready) == len(paths) and ready:
        return ready
    names = [path.path if isinstance(path, Source) else str(path) for path in paths]
    refuse_shards(names)
    found = expand(names)
    refuse_shards([source.path for source in found if source.path not in names])  # of a glob
    return found


def refuse_shards(files: Sequence[str]) -> None:
    """Raise InputError for shards, and for other Parquet: read as text they are nothing but
    faults.
    """
    from eagle3_data.records.sources import InputError

    for name in files:
        path = Path(name)
        try:
            whole = path.is_dir() and _holds_shards(path)
            part = path.is_file() and _is_parquet(path)
        except OSError:
            continue  # whoever reads it says why it can not be read
        if whole or (part and _holds_shards(path.parent)):
            folder = path if whole else path.parent
            raise InputError(
                f"{name}: these are shards, not captured responses:"
                f" use `eagle3-data verify {shlex.quote(str(folder))}`"
            )
        if part:
            raise InputError(f"{name}: this is Parquet: a capture is JSON lines")


def _holds_shards(folder: Path) -> bool:
    """Parts, a journal or a manifest of shards, and no capture beside them."""
    from eagle3_data.records.sources import ENDINGS
    from eagle3_data.shards.journal import SHARDS
    from eagle3_data.shards.manifest import JOURNAL, MANIFEST, load_manifest
    from eagle3_data.shards.schema import ShardError

    names = {entry.name for entry in folder.iterdir() if entry.is_file()}
    if any(name.endswith(ENDINGS) for name in names - {JOURNAL, MANIFEST}):
        return False
    if JOURNAL in names or any(map(SHARDS.is_file, names)):
        return True
    try:
        return MANIFEST in names and bool(load_manifest(folder))
    except ShardError:
        return False


def _is_parquet(path: Path) -> bool:
    with path.open("rb") as stream:
        return stream.read(4) == b"PAR1"


def holdout(paths: Sequence[str | Path], limits: Thresholds) -> Holdout | None:
    """The evaluation prompts of `paths`, indexed. Raises InputError when a file holds none."""
    if not paths:
        return None
    from eagle3_data.audit.holdout import Holdout
    from eagle3_data.records.prompts import read_prompts

    return Holdout.from_prompts(
        [text for path in paths for text in read_prompts(str(path))], limits
    )


def unread_holdout(given: Holdout | None, rules: Rules) -> list[str]:
    """One note when the rule that looks for the held-out prompts does not run."""
    return [
        f"held-out prompts were given and nothing looked for them: {rule.code} {rule.name} did not"
        f" run ({rule.reason})"
        for rule in rules.left
        if given is not None and rule.code == HOLDOUT
    ]


def head(frames: Iterator[pl.DataFrame]) -> Iterator[pl.DataFrame]:
    """Frames until HEAD_RECORDS records or HEAD_BYTES of lines were seen."""
    from eagle3_data.records.table import Status

    records = size = 0
    for frame in frames:
        yield frame
        records += int((frame["status"] == Status.RECORD.value).sum())
        size += int(frame["length"].sum())
        if records >= HEAD_RECORDS or size >= HEAD_BYTES:
            return


def evidence(frames: Sequence[pl.DataFrame]) -> Evidence:
    """What the head shows. It looks at the same records whatever the borders of the batches."""
    from eagle3_data.records.table import Status, empty

    columns = ["status", "model", "request_model", "reasoning", "content", "user_text", *REQUEST]
    if not frames:
        return Evidence((), (), False, empty())
    records = (
        pl.concat([frame.select(columns) for frame in frames])
        .filter(pl.col("status") == Status.RECORD.value)
        .head(HEAD_RECORDS)
    )
    few = records.head(SAMPLE_RECORDS).select("reasoning", "content", "user_text")
    texts = [text for row in few.iter_rows() for text in row if text]
    models = records.select(pl.coalesce("model", "request_model")).to_series().to_list()
    return Evidence(models, texts, _thinks(records), records.head(SAMPLE_RECORDS).select(REQUEST))


def _thinks(records: pl.DataFrame) -> bool:
    from eagle3_data.audit.markers import THINK_PAIRS

    markers = [text for pair in THINK_PAIRS for text in pair]
    marked = records["content"].str.contains_any(markers).any()
    return bool(marked) or bool((records["reasoning"].str.len_bytes() > 0).any())


def thinking_shown(
    known: Evidence, chosen: Profile, inputs: Sequence[Source], turns: Turns
) -> bool:
    """Whether the data shows a thought anywhere. Only asked for a profile that does not know
    whether its model thinks: the answer must not depend on which file or batch comes first, so all
    inputs are looked through, up to the first thought.
    """
    from eagle3_data.profiles.profile import Thinking
    from eagle3_data.records.lines import LineBatch, read_batches
    from eagle3_data.records.shapes import table_from

    if known.thinking or chosen.thinking is not Thinking.SHOWN:
        return known.thinking
    sign = _sign_of_thinking()
    for number, source in enumerate(inputs):
        for batch in read_batches(source, number):
            hits = [i for i, line in enumerate(batch.lines) if sign(line)]
            if not hits:
                continue
            few = LineBatch(
                number,
                [batch.lines[i] for i in hits],
                [batch.numbers[i] for i in hits],
                [batch.offsets[i] for i in hits],
            )
            if _thinks(table_from(few, turns=turns)):
                return True
    return False


def _sign_of_thinking() -> Callable[[bytes], object]:
    """A search over the bytes of a line that no line with a thought escapes."""
    from eagle3_data.audit.markers import THINK_PAIRS

    texts = {text for pair in THINK_PAIRS for text in pair}
    escaped = {text.replace("<", "\\u003c").replace(">", "\\u003e") for text in texts}
    spelled = [re.escape(text.encode()) for text in texts | escaped]
    spelled += [re.escape(json.dumps(text)[1:-1].encode()) for text in texts]
    field = rb'"[^"]{0,40}(?:reasoning|think|thought)[^"]{0,40}"\s*:\s*(?:"[^"]|[\[{])'
    kind = rb'"type"\s*:\s*"(?:reasoning|thinking)'
    return re.compile(b"|".join([*sorted(set(spelled)), field, kind])).search


def profile(option: str | Path | None, known: Evidence) -> Choice:
    """The profile of the run and why. Raises ProfileError."""
    from eagle3_data.profiles.choose import choose

    return choose(str(option) if option is not None else None, known.models, known.texts)


def tokenizer(given: str | Path | Tokenizer | None) -> Tokenizer | None:
    """The tokenizer of the run, opened if it is not. Raises TokenizerError."""
    if given is None or not isinstance(given, str | Path):
        return given
    from eagle3_data.tokens.tokenizer import open_tokenizer

    return open_tokenizer(given)


def quicker(
    encoder: Tokenizer | None,
    known: Evidence,
    size: int,
    chosen: Profile,
    chat_template: str | Path | None,
) -> Tokenizer | None:
    """`encoder`, or its fast twin when the inputs (`size` bytes) are worth its loading. It is
    proven on answers and on rendered prompts of the data. Raises InputError, TemplateFault.
    """
    from eagle3_data.tokens.tokenizer import faster, worth_faster

    if encoder is None or not worth_faster(size):
        return encoder
    from eagle3_data.tokens.assemble import Assembler

    template = template_text(chat_template)
    prompts = Assembler(chosen, encoder, chat_template=template).prompts.texts(known.requests)
    return faster(encoder, known.texts, prompts)


def fitting(choice: Choice, encoder: Tokenizer | None, option: str | Path | None) -> Choice:
    """`choice`, or `generic` where a profile that nobody asked for is not this tokenizer's: a model
    name is a guess (`deepseek-r1` may be any of its distilled sizes).

    Raises MarkerMismatch when `option` asked for the profile.
    """
    from eagle3_data.profiles.choose import GENERIC, Choice
    from eagle3_data.profiles.load import load
    from eagle3_data.tokens.markers import MarkerMismatch, resolve

    if encoder is None:
        return choice
    try:
        resolve(choice.profile, encoder)
    except MarkerMismatch as mismatch:
        if option is not None:
            raise
        why = f"{choice.why}, but {mismatch}"
        note = f"the profile {choice.profile.name} was chosen and does not fit the tokenizer"
        told = f"{note}: {GENERIC} is used ({mismatch})"
        return Choice(load(GENERIC), why, told, misfit=choice.profile.name)
    return choice


def assembler(
    chosen: Profile,
    encoder: Tokenizer | None,
    chat_template: str | Path | None,
    *,
    want_ids: bool = False,
) -> Assembler | None:
    """The assembler of the run, None without a tokenizer. Raises MarkerMismatch, InputError."""
    if encoder is None:
        return None
    from eagle3_data.tokens.assemble import Assembler

    template = template_text(chat_template)
    return Assembler(chosen, encoder, chat_template=template, want_ids=want_ids)


def template_text(chat_template: str | Path | None) -> str | None:
    """The chat template that replaces the tokenizer's own. Raises InputError, also when it does
    not compile: no prompt of the run could be built.
    """
    from eagle3_data.records.sources import InputError
    from eagle3_data.tokens.render import TemplateFault, compile_template

    if chat_template is None:
        return None
    try:
        text = Path(chat_template).read_text(encoding="utf-8")
        compile_template(text)
    except (OSError, UnicodeDecodeError) as fault:
        raise InputError(f"{chat_template}: the chat template can not be read ({fault})") from fault
    except TemplateFault as fault:
        raise InputError(
            f"{chat_template}: the chat template does not compile ({fault}): give the server's own"
        ) from fault
    return text


def marker_pairs(chosen: Profile) -> list[tuple[str, str]]:
    """The think markers that --repair splits with: the profile's own, else the usual pair. Where
    the prompt opens the thought, who puts the marker back puts back all that the prompt holds from
    there on, a line end behind it too.
    """
    if chosen.think_open is None or chosen.think_close is None:
        return [("<think>", "</think>")]
    opening, closing = chosen.think_open.text, chosen.think_close.text
    prompt = chosen.prompt.thinking_on or ""
    if not chosen.open_in_prompt or opening not in prompt:
        return [(opening, closing)]
    return [(prompt[prompt.rfind(opening) :], closing), (opening, closing)]


def profile_facts(choice: Choice) -> ProfileFacts:
    """The profile as the report tells it."""
    from eagle3_data.audit.report import ProfileFacts
    from eagle3_data.profiles.load import fingerprint

    return ProfileFacts(choice.profile.name, choice.why, fingerprint(choice.profile))


def tokenizer_facts(
    encoder: Tokenizer | None, road: Assembler | None = None
) -> TokenizerFacts | None:
    """The tokenizer as the report tells it, with the chat template that `road` renders."""
    from eagle3_data.audit.report import TokenizerFacts

    if encoder is None:
        return None
    template = None if road is None else road.template_sha256
    return TokenizerFacts(
        encoder.name, encoder.backend, encoder.note, encoder.fingerprint, template
    )


def engines(encoder: Tokenizer | None, road: Assembler | None) -> tuple[str, ...]:
    """Packages that made the token ids of a run, beside those of every run."""
    if encoder is None:
        return ()
    rendered = road is not None and road.template_sha256 is not None
    used = [encoder.backend] if encoder.backend != "tokenizers" else []
    return (*used, "jinja2") if rendered else tuple(used)


@cache
def versions(*engines: str) -> Mapping[str, str]:
    """Versions of this product and of the libraries that the result depends on."""
    return {
        "eagle3-data": __version__,
        **{name: version(name) for name in ("polars", "tokenizers", "orjson", *engines)},
    }
