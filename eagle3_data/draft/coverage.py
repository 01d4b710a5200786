"""What a draft vocabulary covers: a hard cap on acceptance, overall, by grade, phase and file.

What enters: counts and a mapping. What leaves: a table of groups, and a sweep over sizes. It
promises exact token counts: covered and left out add up to what was counted, in every row.
"""

from __future__ import annotations

from collections.abc import Mapping as Dict
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from eagle3_data.draft.counting import Counts
from eagle3_data.draft.mapping import Mapping, choose

SIZES = (8_000, 16_000, 32_000, 64_000)
"""Sizes of the sweep, below the full vocabulary."""


@dataclass(frozen=True, slots=True)
class Group:
    """One row: of which tokens, how many are counted, how many the drafter can propose."""

    kind: str
    name: str
    tokens: int
    covered: int

    @property
    def share(self) -> float:
        """Covered share; 1.0 when nothing is counted."""
        return self.covered / self.tokens if self.tokens else 1.0

    def to_dict(self) -> dict[str, Any]:
        """JSON form."""
        return {**asdict(self), "coverage": self.share}


@dataclass(frozen=True, slots=True)
class Step:
    """One size of the sweep: covered share overall and by phase."""

    size: int
    coverage: float
    by_phase: dict[str, float]

    def to_dict(self) -> dict[str, Any]:
        """JSON form."""
        return asdict(self)


def coverage(counts: Counts, mapping: Mapping) -> list[Group]:
    """All, then one row a grade, a phase, a source file."""
    groups = [("all", "all", counts.total), *counts.groups()]
    return [
        Group(kind, name, int(vector.sum()), int(vector[mapping.t2d[: len(vector)]].sum()))
        for kind, name, vector in groups
    ]


def sweep(counts: Counts, always: NDArray[np.int64], size: int) -> list[Step]:
    """Coverage at `SIZES`, at `size`, and in full. Sizes that control tokens fill up are left out.

    Each size is chosen as `vocab` chooses it, control tokens first.
    """
    total, phases = counts.total, counts.by_phase
    sizes = {wanted for wanted in (*SIZES, size) if len(always) <= wanted < counts.vocab_size}
    steps = []
    for wanted in (*sorted(sizes), counts.vocab_size):
        chosen = choose(total, wanted, always)
        steps.append(Step(wanted, chosen.coverage(total), _shares(chosen, phases)))
    return steps


def _shares(mapping: Mapping, vectors: Dict[str, NDArray[np.int64]]) -> dict[str, float]:
    return {name: mapping.coverage(vector) for name, vector in vectors.items()}
