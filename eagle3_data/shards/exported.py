"""What an export did: its counts, and the note that lies beside its files.

What enters: the counts of a run. What leaves: `Exported`, as JSON, and as Markdown for people. It
promises that samples in = written + left out in each file, and that no text of the data is in the
note.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from eagle3_data.shards.targets import FORMATS, Target

if TYPE_CHECKING:
    from eagle3_data.shards.reader import Shards


@dataclass(frozen=True, slots=True)
class Exported:
    """What an export wrote. `samples`, `tokens`, `supervised_tokens` were read; `written`: file →
    rows; `left_out`: file → reason → samples. `samples` = `written` + `left_out`, in each file.
    `lost`: file → what its format has no place for → messages of written samples that had it.
    """

    target: Target
    directory: Path
    samples: int
    tokens: int
    supervised_tokens: int
    grades: Mapping[str, int]
    written: Mapping[str, int]
    left_out: Mapping[str, Mapping[str, int]]
    lost: Mapping[str, Mapping[str, int]]

    def to_dict(self) -> dict[str, Any]:
        """As JSON."""
        return {
            "target": self.target.value,
            "directory": str(self.directory),
            "samples": self.samples,
            "tokens": self.tokens,
            "supervised_tokens": self.supervised_tokens,
            "grades": dict(self.grades),
            "written": dict(self.written),
            "left_out": {name: dict(reasons) for name, reasons in self.left_out.items()},
            "lost": {name: dict(losses) for name, losses in self.lost.items()},
            "mask": FORMATS[self.target].mask,
            "not_held": list(FORMATS[self.target].lost),
        }


def note(exported: Exported, shards: Shards) -> str:
    """The note beside an export, Markdown. Paths and texts of the data are not in it."""
    form, facts = FORMATS[exported.target], shards.facts
    grades = ", ".join(f"{grade} {count:,}" for grade, count in exported.grades.items())
    lines = [
        f"# Export of eagle3-data: {form.title}",
        "",
        f"- samples {exported.samples:,} (grade {grades or 'none'}), tokens {exported.tokens:,},"
        f" supervised {exported.supervised_tokens:,}",
        f"- profile `{facts.profile}` {facts.profile_hash[:12]}, tokenizer `{facts.tokenizer}`"
        f" {facts.tokenizer_hash[:12]}, template {facts.template_hash[:12] or 'none'}",
        f"- made from shards {shards.manifest.identity.digest[:12]} by {facts.product_version}",
        *(f"- filter: {c.column} {c.how} {c.value}" for c in shards.conditions),
        *(f"- `{name}`: {count:,} samples" for name, count in exported.written.items()),
        "",
        "## Mask",
        "",
        form.mask,
        "",
        "## Left out",
        "",
        *(
            f"- `{name}`: {count:,} samples: {reason}"
            for name, reasons in exported.left_out.items()
            for reason, count in reasons.items()
        ),
        *([] if exported.left_out else ["Nothing."]),
        "",
        "## What this format can not hold",
        "",
        *(f"- {text}" for text in form.lost),
        *(
            f"- `{name}`: {count:,} messages: {loss}"
            for name, losses in exported.lost.items()
            for loss, count in losses.items()
        ),
        "",
        "## Use",
        "",
        form.use,
        "",
    ]
    return "\n".join(lines)
