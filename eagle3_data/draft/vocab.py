"""`vocab`: from shards to the draft vocabulary of a drafter, its files and its coverage.

What enters: opened shards and a size, or a drafter whose mapping is kept. What leaves: a `Built`,
and on request a folder with the mapping as safetensors and as `.npy` pair, the coverage, a picture
and a note. It promises the same bytes for the same shards, that control tokens are in, and that
nothing is written as a pickle.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import orjson

from eagle3_data.draft.chart import svg
from eagle3_data.draft.control import Control, control_tokens
from eagle3_data.draft.counting import Counts, count
from eagle3_data.draft.coverage import Group, Step, coverage, sweep
from eagle3_data.draft.mapping import Mapping, VocabError, choose
from eagle3_data.draft.mapping_files import D2T, SAFETENSORS, T2D, files, inherited
from eagle3_data.writing import Draft, OutputError, refuse_unwritable

if TYPE_CHECKING:
    from eagle3_data.shards.reader import Shards
    from eagle3_data.tokens.tokenizer import Tokenizer

REPORT, PICTURE, NOTE = "coverage.json", "coverage.svg", "NOTE.md"

NOTE_TEXT = """\
# Draft vocabulary

`d2t[i] = target id - i` (int64 offsets), `t2d` (bool over the target's vocabulary), sorted by
target id. `coverage.json` says what it was made from and what it covers.

- speculators 0.9: `--d2t-path d2t.npy --t2d-path t2d.npy`.
- A drafter's checkpoint (vLLM, SGLang, llama.cpp): the tensors `d2t` and `t2d` of
  `vocab_mapping.safetensors`, beside an `lm_head.weight` of as many rows as `d2t` has entries, and
  `draft_vocab_size` in its config.json.
- SpecForge takes `vocab_mapping.pt`, which is a torch file: a pickle, which this product does not
  write. Where torch is installed, this makes it (read back with `weights_only=True`):

      python -c "import torch; from safetensors.torch import load_file as l; \\
      torch.save(l('vocab_mapping.safetensors'), 'vocab_mapping.pt')"

Train on with a drafter only with the mapping that it was trained with: `vocab --inherit DRAFT`.
"""


@dataclass(frozen=True, slots=True, eq=False)
class Built:
    """A draft vocabulary and what it was made from. `inherited`: the drafter it was taken from."""

    mapping: Mapping
    counts: Counts
    control: Control
    coverage: list[Group]
    sweep: list[Step]
    about: dict[str, str]
    notes: tuple[str, ...]
    inherited: str | None = None

    @property
    def unseen(self) -> int:
        """Entries that are supervised nowhere in the shards."""
        return int((self.counts.total[self.mapping.targets] == 0).sum())

    @property
    def control_missing(self) -> list[str]:
        """Control tokens without a draft id: possible in an inherited mapping only."""
        inside = self.mapping.t2d
        return [name for name, token in self.control.ids.items() if not inside[token]]

    def to_dict(self) -> dict[str, Any]:
        """JSON form: `coverage.json`."""
        return {
            "size": self.mapping.size,
            "vocab_size": self.mapping.vocab_size,
            "fingerprint": self.mapping.fingerprint,
            "inherited": self.inherited is not None,
            "samples": self.counts.samples,
            "supervised_tokens": self.counts.tokens,
            "distinct_tokens": self.counts.distinct,
            "entries_never_seen": self.unseen,
            "control_tokens": self.control.ids,
            "control_tokens_missing": self.control_missing,
            "control_tokens_unknown": list(self.control.unknown),
            "about": self.about,
            "coverage": [group.to_dict() for group in self.coverage],
            "sweep": [step.to_dict() for step in self.sweep],
            "notes": list(self.notes),
        }


def build(
    shards: Shards,
    size: int | None = None,
    *,
    inherit: str | Path | None = None,
    vocab_size: int | None = None,
    profile: str | None = None,
    tokenizer: Tokenizer | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Built:
    """The draft vocabulary of `shards`: `size` tokens chosen, or the mapping of `inherit` kept.

    `vocab_size`: rows of the target's head; else the profile's, else the tokenizer's. Raises
    VocabError, TensorError, ShardError.
    """
    control = control_tokens(shards.facts, profile=profile, tokenizer=tokenizer)
    rows, notes = _rows(shards, vocab_size, profile)
    notes = [*control.notes, *notes]
    known = None if inherit is None else inherited(inherit, rows)
    if known is not None and size not in (None, known.size):
        raise VocabError(
            f"{inherit} has a draft vocabulary of {known.size:,}, not of {size:,}: a mapping that"
            " is kept has its size; leave out --size, or build a new drafter without --inherit"
        )
    counts = count(shards, rows, progress=progress)
    if not counts.tokens:
        raise VocabError(
            f"{shards.directory} has no supervised token to count: check the filters and the shards"
        )
    always = np.array(sorted(set(control.ids.values())), dtype=np.int64)
    mapping = known or choose(counts.total, size or min(32_000, rows), always)
    built = Built(
        mapping=mapping,
        counts=counts,
        control=control,
        coverage=coverage(counts, mapping),
        sweep=sweep(counts, always, mapping.size),
        about=_about(shards),
        notes=(),
        inherited=None if inherit is None else str(inherit),
    )
    if built.unseen:
        notes.append(
            f"{built.unseen:,} of {mapping.size:,} entries are supervised nowhere in these shards:"
            + (
                " the drafter was made from other data"
                if known is not None
                else f" there are only {counts.distinct:,} distinct tokens, the lowest ids fill up"
            )
        )
    if built.control_missing:
        notes.append(
            f"the drafter can not propose {', '.join(built.control_missing)} (VOC009); its mapping"
            " is kept all the same"
        )
    return replace(built, notes=tuple(notes))


def refuse(directory: str | Path, *, overwrite: bool) -> None:
    """Raise OutputError when `write` could not write there; asked before the work."""
    folder = Path(directory)
    if folder.exists() and not folder.is_dir():
        raise OutputError(f"{folder} is a file: name a folder for the mapping")
    if folder.is_dir():
        for name in (SAFETENSORS, D2T, T2D, REPORT, PICTURE, NOTE):
            refuse_unwritable(folder / name, overwrite=overwrite)


def write(built: Built, directory: str | Path, *, overwrite: bool = False) -> list[Path]:
    """Write the folder, each file whole or not at all. Raises OutputError, OSError."""
    folder = Path(directory)
    content = files(built.mapping, built.about | {"fingerprint": built.mapping.fingerprint})
    content[REPORT] = orjson.dumps(built.to_dict(), option=orjson.OPT_INDENT_2) + b"\n"
    content[PICTURE] = svg(built.sweep, built.mapping.size).encode()
    content[NOTE] = NOTE_TEXT.encode()
    refuse(folder, overwrite=overwrite)
    folder.mkdir(parents=True, exist_ok=True)
    drafts: list[Draft] = []
    try:
        for name, data in content.items():
            drafts.append(Draft(folder / name, overwrite))
            drafts[-1].write(data)
        for draft in drafts:
            draft.close()
        for draft in drafts:
            draft.land()
    finally:
        for draft in drafts:
            draft.drop()
    return [folder / name for name in content]


def _rows(shards: Shards, vocab_size: int | None, profile: str | None) -> tuple[int, list[str]]:
    """Rows of the target's head, and what is to be said when they are a guess."""
    from eagle3_data.profiles.load import load

    least = shards.facts.vocab_size
    if vocab_size is not None:
        if vocab_size < least:
            raise VocabError(
                f"a vocabulary of {vocab_size:,} is smaller than the tokenizer's ({least:,} ids):"
                " give the vocab_size of the target's config.json"
            )
        return vocab_size, []
    stated = load(profile or shards.facts.profile).vocab_size
    if stated is not None and stated >= least:
        return stated, []
    return least, [
        f"t2d has {least:,} entries, one for each id of the tokenizer; the target's head can have"
        " more rows: pass --target or --vocab-size (vocab_size of its config.json)"
    ]


def _about(shards: Shards) -> dict[str, str]:
    """What the counts are of, as text for metadata."""
    facts = shards.facts
    return {
        "shards_checksum": shards.manifest.checksum,
        "profile": facts.profile,
        "profile_hash": facts.profile_hash,
        "tokenizer": facts.tokenizer,
        "tokenizer_hash": facts.tokenizer_hash,
        "template_hash": facts.template_hash,
        "filters": "; ".join(f"{c.column} {c.how} {c.value}" for c in shards.conditions),
    }
