"""The draft vocabulary: which tokens of the target a pruned head can propose.

What enters: counts of tokens. What leaves: a `Mapping`, in the two forms that checkpoints hold:
`d2t[i] = target id - i` and `t2d`. It promises an order that needs no seed: most frequent first,
the lower id first among equals, control tokens before all, and target ids sorted, as training with
`logits[..., t2d]` demands.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

Ids = NDArray[np.int64]


class VocabError(ValueError):
    """A draft vocabulary that can not be made, read or used; the message names the next step."""


@dataclass(frozen=True, eq=False)
class Mapping:
    """`targets`: the target id of each draft id, int64 [draft vocabulary]; `vocab_size`: rows of
    the target's own head.
    """

    targets: Ids
    vocab_size: int

    def __post_init__(self) -> None:
        inside = self.targets.size == 0 or (
            int(self.targets.min()) >= 0 and int(self.targets.max()) < self.vocab_size
        )
        if not inside or len(np.unique(self.targets)) != len(self.targets):
            raise VocabError(
                f"target ids must be different ones below {self.vocab_size:,}: run `vocab check`"
            )

    @property
    def size(self) -> int:
        """Entries of the draft vocabulary."""
        return len(self.targets)

    @cached_property
    def d2t(self) -> Ids:
        """Offsets, int64 [draft vocabulary]: target id = draft id + d2t[draft id]."""
        return self.targets - np.arange(len(self.targets), dtype=np.int64)

    @cached_property
    def t2d(self) -> NDArray[np.bool_]:
        """Whether a target id has a draft id, bool [target vocabulary]."""
        inside = np.zeros(self.vocab_size, dtype=np.bool_)
        inside[self.targets] = True
        return inside

    @property
    def fingerprint(self) -> str:
        """sha256 (hex) over the target ids in the order of draft ids."""
        return hashlib.sha256(self.targets.astype("<i8").tobytes()).hexdigest()

    def coverage(self, counts: Ids) -> float:
        """Share of the counted tokens that the drafter can propose; 1.0 when nothing is counted."""
        total = int(counts.sum())
        return int(counts[self.targets[self.targets < len(counts)]].sum()) / total if total else 1.0


def from_offsets(d2t: Ids, vocab_size: int) -> Mapping:
    """The inverse of `Mapping.d2t`. Raises VocabError for ids out of range or given twice."""
    return Mapping(d2t.astype(np.int64) + np.arange(len(d2t), dtype=np.int64), vocab_size)


def choose(counts: Ids, size: int, always: Ids) -> Mapping:
    """The `size` most frequent ids, those of `always` first. Raises VocabError when they do not
    fit.
    """
    vocab_size = len(counts)
    always = np.unique(always)
    if not 0 < size <= vocab_size:
        raise VocabError(
            f"a draft vocabulary of {size:,} can not be made of {vocab_size:,} tokens:"
            f" choose a size from 1 to {vocab_size:,}"
        )
    if len(always) > size:
        raise VocabError(
            f"{len(always)} control tokens do not fit into a draft vocabulary of {size:,}:"
            " choose a larger size"
        )
    if len(always) and not 0 <= int(always[0]) <= int(always[-1]) < vocab_size:
        raise VocabError(
            f"the control token {int(always[-1])} is outside a vocabulary of {vocab_size:,}:"
            " is it of another model? Pass the target's --vocab-size"
        )
    forced = np.zeros(vocab_size, dtype=np.bool_)
    forced[always] = True
    order = np.argsort(-counts, kind="stable")  # stable: the lower id first among equals
    rest = order[~forced[order]][: size - len(always)]
    return Mapping(np.sort(np.concatenate([always, rest])).astype(np.int64), vocab_size)
