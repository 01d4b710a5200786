"""What an export did: its counts, and the note that lies beside its files.

What enters: the counts of a run. What leaves: `Exported`, as JSON, and as Markdown for people. It
promises that samples in = written + left out in each file, and that no text of the data is in the
note.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from eagle3_data.shards.targets import FORMATS, HEADING, Target

if TYPE_CHECKING:
    from eagle3_data.shards.reader import Shards


SHOWN = 5
"""Splits told by name: rows of elsewhere may bring any number of them."""
_PLAIN = re.compile(r"[\w.-]{1,80}")


@dataclass(frozen=True, slots=True)
class Exported:
    """What an export wrote. `samples_held` and `splits_held` (split → samples, by name) are of the
    folder of shards, whatever narrowed it; `samples`, `tokens`, `supervised_tokens`, `grades` were
    read; `…_written` and `splits` (split → samples, most first) are of those that a file holds.
    `written`: file → rows; `left_out`: file → reason → samples. `samples` = `written` + `left_out`,
    in each file. `lost`: file → what its format has no place for → messages of written samples
    that had it.
    """

    target: Target
    directory: Path
    samples_held: int
    splits_held: Mapping[str, int]
    samples: int
    tokens: int
    supervised_tokens: int
    grades: Mapping[str, int]
    samples_written: int
    tokens_written: int
    supervised_tokens_written: int
    splits: Mapping[str, int]
    written: Mapping[str, int]
    left_out: Mapping[str, Mapping[str, int]]
    lost: Mapping[str, Mapping[str, int]]

    @property
    def narrowed_away(self) -> int:
        """Samples of the shards that the filters kept out."""
        return self.samples_held - self.samples

    @property
    def mixed(self) -> str | None:
        """That a file holds samples of several splits, and what to do; None where none does."""
        if len(self.splits) < 2:
            return None
        return f"{_named(self.splits)} samples are in one file: export each with --split"

    @property
    def not_held(self) -> tuple[str, ...]:
        """What the files can not hold."""
        return (*FORMATS[self.target].lost, *([f"splits: {self.mixed}"] if self.mixed else []))

    def to_dict(self) -> dict[str, Any]:
        """As JSON."""
        return {
            "target": self.target.value,
            "directory": str(self.directory),
            "samples_held": self.samples_held,
            "splits_held": dict(self.splits_held),
            "narrowed_away": self.narrowed_away,
            "samples": self.samples,
            "tokens": self.tokens,
            "supervised_tokens": self.supervised_tokens,
            "grades": dict(self.grades),
            "samples_written": self.samples_written,
            "tokens_written": self.tokens_written,
            "supervised_tokens_written": self.supervised_tokens_written,
            "splits": dict(self.splits),
            "written": dict(self.written),
            "left_out": {name: dict(reasons) for name, reasons in self.left_out.items()},
            "lost": {name: dict(losses) for name, losses in self.lost.items()},
            "mask": FORMATS[self.target].mask,
            "not_held": list(self.not_held),
        }


def _named(splits: Mapping[str, int]) -> str:
    """`39 train and 9 val`, of two or more."""
    told = [
        f"{count:,} {name if _PLAIN.fullmatch(name) else f'{name!r:.80}'}"
        for name, count in splits.items()
    ]
    if len(told) > SHOWN + 1:
        rest = sum(list(splits.values())[SHOWN:])
        told = [*told[:SHOWN], f"{rest:,} ({len(told) - SHOWN:,} more splits)"]
    return f"{', '.join(told[:-1])} and {told[-1]}"


def _use(exported: Exported) -> str:
    """How the trainer reads the files; and, where it reads folders of shards too, what it would
    read there that is not here.
    """
    use = FORMATS[exported.target].use
    if exported.target is not Target.SPECULATORS:
        return use
    from eagle3_data.audit.formats.text import count_of

    folder = "`--data hf:/absolute/path/of/the/shards`"
    if len(exported.splits_held) > 1:
        one = "train" if "train" in exported.splits_held else "NAME"
        return (
            f"{use}\n\n**Do not name the folder of shards in its place**: {folder} reads all of it"
            f" and trains on all of its splits ({_named(exported.splits_held)} samples), also on"
            " what is held back. Export the split to train on:"
            f" `export DIR --to speculators --split {one} -o OUT`."
        )
    if exported.narrowed_away:
        more = count_of(exported.narrowed_away, "sample")
        return (
            f"{use} It reads the shards themselves too ({folder}), but all of them: also the {more}"
            " that the filters took away here."
        )
    return f"{use} It reads the shards themselves too: {folder}."


def note(exported: Exported, shards: Shards) -> str:
    """The note beside an export, Markdown. Paths and texts of the data are not in it."""
    from eagle3_data.audit.formats.text import count_of

    form, facts = FORMATS[exported.target], shards.facts
    held = count_of(exported.samples_held, "sample")
    grades = ", ".join(f"{grade} {count:,}" for grade, count in exported.grades.items())
    lines = [
        f"{HEADING}: {form.title}",
        "",
        f"- written {exported.samples_written:,} of {held}, tokens"
        f" {exported.tokens_written:,}, supervised {exported.supervised_tokens_written:,}",
        f"- read {exported.samples:,} of {held} (grade {grades or 'none'}), tokens"
        f" {exported.tokens:,}, supervised {exported.supervised_tokens:,}",
        f"- profile `{facts.profile}` {facts.profile_hash[:12]}, tokenizer `{facts.tokenizer}`"
        f" {facts.tokenizer_hash[:12]}, template {facts.template_hash[:12] or 'none'}",
        f"- made from shards {shards.manifest.identity.digest[:12]} by {facts.product_version}",
        *([f"- narrowed away {exported.narrowed_away:,} of {held}"] if shards.conditions else []),
        *(f"- filter: {c.column} {c.how} {c.value}" for c in shards.conditions),
        *(f"- `{name}`: {count_of(count, 'sample')}" for name, count in exported.written.items()),
        "",
        "## Mask",
        "",
        form.mask,
        "",
        "## Left out",
        "",
        *(
            f"- `{name}`: {count_of(count, 'sample')}: {reason}"
            for name, reasons in exported.left_out.items()
            for reason, count in reasons.items()
        ),
        *([] if exported.left_out else ["Nothing."]),
        "",
        "## What this format can not hold",
        "",
        *(f"- {text}" for text in exported.not_held),
        *(
            f"- `{name}`: {count_of(count, 'message')}: {loss}"
            for name, losses in exported.lost.items()
            for loss, count in losses.items()
        ),
        "",
        "## Use",
        "",
        _use(exported),
        "",
    ]
    return "\n".join(lines)
