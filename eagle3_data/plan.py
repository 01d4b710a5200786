"""What a run needs before its first batch: sources, profile, tokenizer, held-out prompts.

What enters: the options of a call and the first records of the data. What leaves: the parts that
`pipeline` puts together. It promises that every choice made for the user can be told afterwards,
with its reason.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
    from eagle3_data.audit.thresholds import Thresholds
    from eagle3_data.profiles.choose import Choice
    from eagle3_data.profiles.profile import Profile
    from eagle3_data.records.lines import Source
    from eagle3_data.tokens.assemble import Assembler
    from eagle3_data.tokens.tokenizer import Tokenizer

SAMPLE_RECORDS = 64
"""Records whose texts choose the profile and prove the fast tokenizer: about 1 MB of a usual
capture.
"""


@dataclass(frozen=True, slots=True)
class Evidence:
    """What the first records show. `thinking`: some of them hold a thought or an opening or closing
    think marker.
    """

    models: Sequence[str | None]
    texts: Sequence[str]
    thinking: bool


def sources(paths: Sequence[str | Path | Source] | str | Path) -> list[Source]:
    """The inputs, each file once. Raises InputError."""
    from eagle3_data.records.sources import Source, expand

    if isinstance(paths, str | Path):
        paths = [paths]
    ready = [path for path in paths if isinstance(path, Source)]
    if len(ready) == len(paths) and ready:
        return ready
    return expand([path.path if isinstance(path, Source) else str(path) for path in paths])


def holdout(paths: Sequence[str | Path], limits: Thresholds) -> Holdout | None:
    """The evaluation prompts of `paths`, indexed. Raises InputError when a file holds none."""
    if not paths:
        return None
    from eagle3_data.audit.holdout import Holdout
    from eagle3_data.records.prompts import read_prompts

    return Holdout.from_prompts(
        [text for path in paths for text in read_prompts(str(path))], limits
    )


def evidence(head: Sequence[pl.DataFrame]) -> Evidence:
    """What the first records of a run show about the model."""
    from eagle3_data.audit.markers import THINK_PAIRS

    if not head:
        return Evidence((), (), False)
    frame = head[-1]
    models = pl.concat([frame["model"], frame["request_model"]]).drop_nulls().unique().to_list()
    few = frame.head(SAMPLE_RECORDS).select("reasoning", "content", "user_text", "system_text")
    texts = [text for column in few.iter_columns() for text in column.drop_nulls().to_list()]
    marked = (
        frame["content"].str.contains_any([text for pair in THINK_PAIRS for text in pair]).any()
    )
    thought = (frame["reasoning"].str.len_bytes() > 0).any()
    return Evidence(models, texts, bool(marked) or bool(thought))


def profile(option: str | Path | None, known: Evidence) -> Choice:
    """The profile of the run and why. Raises ProfileError."""
    from eagle3_data.profiles.choose import choose

    return choose(str(option) if option is not None else None, known.models, known.texts)


def tokenizer(given: str | Path | Tokenizer | None, known: Evidence, size: int) -> Tokenizer | None:
    """The tokenizer of the run: the reference, or its fast twin when the inputs (`size` bytes) are
    worth its loading.

    Raises TokenizerError.
    """
    if given is None or not isinstance(given, str | Path):
        return given
    from eagle3_data.tokens.tokenizer import faster, open_tokenizer, worth_faster

    reference = open_tokenizer(given)
    return faster(reference, known.texts) if worth_faster(size) else reference


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
    """The chat template that replaces the tokenizer's own. Raises InputError."""
    from eagle3_data.records.sources import InputError

    if chat_template is None:
        return None
    try:
        return Path(chat_template).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as fault:
        raise InputError(f"{chat_template}: the chat template can not be read ({fault})") from fault


def marker_pairs(chosen: Profile) -> list[tuple[str, str]]:
    """The think markers that --repair splits with: the profile's own, else the usual pair."""
    if chosen.think_open is None or chosen.think_close is None:
        return [("<think>", "</think>")]
    return [(chosen.think_open.text, chosen.think_close.text)]


def profile_facts(choice: Choice) -> ProfileFacts:
    """The profile as the report tells it."""
    from eagle3_data.audit.report import ProfileFacts
    from eagle3_data.profiles.load import fingerprint

    return ProfileFacts(choice.profile.name, choice.why, fingerprint(choice.profile))


def tokenizer_facts(encoder: Tokenizer | None) -> TokenizerFacts | None:
    """The tokenizer as the report tells it."""
    from eagle3_data.audit.report import TokenizerFacts

    if encoder is None:
        return None
    return TokenizerFacts(encoder.name, encoder.backend, encoder.note, encoder.fingerprint)


@cache
def versions() -> Mapping[str, str]:
    """Versions of this product and of the libraries that the result depends on."""
    return {
        "eagle3-data": __version__,
        **{name: version(name) for name in ("polars", "tokenizers", "orjson")},
    }
