"""States straight from the target into training, without a disk.

What enters: shards and a target. What leaves: `Online`, which gives the samples that `States` would
give, each forwarded when it is asked for. It promises that nothing is written, that the first
samples pass the self-check before any is handed out, and the same states as `extract` but for the
rounding of another batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Self

import numpy as np
import polars as pl
import torch

from eagle3_data.draft.extract import Choice, identified, states
from eagle3_data.draft.forward import Source, tensor
from eagle3_data.draft.selfcheck import Checked, SelfCheck
from eagle3_data.draft.states import ROW, StateSample, picked
from eagle3_data.draft.states_manifest import Identity, StatesError
from eagle3_data.draft.states_plan import plan

if TYPE_CHECKING:
    from eagle3_data.draft.findings import Finding
    from eagle3_data.shards.reader import Sample, Shards

FIRST = 16
"""Samples that are checked before training begins."""


@dataclass(frozen=True, slots=True, eq=False)
class Online:
    """`directory`: of the shards. `index`: one row a sample, as of `States`. `identity`: what a
    manifest would say. `findings`: warnings of the self-check. The ids of all samples are in
    memory (5 bytes a token), their states are not.
    """

    directory: Path
    identity: Identity
    index: pl.DataFrame
    checked: Checked
    findings: tuple[Finding, ...]
    _source: Source = field(repr=False)
    _choice: Choice = field(repr=False)
    _samples: Sequence[Sample] = field(repr=False)

    def __len__(self) -> int:
        return self.index.height

    @property
    def fingerprint(self) -> str:
        """Digest of what decides the states; where the target lies does not."""
        target = self.identity.target
        named = target.model_copy(update={"id": Path(target.id).name})
        return self.identity.model_copy(update={"target": named}).digest

    def where(
        self,
        *,
        split: str | None = None,
        min_grade: str | None = None,
        max_length: int | None = None,
        min_length: int | None = None,
        condition: pl.Expr | None = None,
    ) -> Self:
        """As `States.where`."""
        wanted = picked(split, min_grade, max_length, min_length, condition)
        kept = self.index.with_row_index("_at").filter(wanted)
        samples = [self._samples[i] for i in kept["_at"].to_list()]
        return replace(self, index=kept.drop("_at"), _samples=samples)

    def sample(self, i: int) -> StateSample:
        """The i-th sample, forwarded now."""
        one = self._samples[i]
        (made,) = states(self._source, [one], self._choice, self.identity.layers.output_of)
        meta = self.index.row(i, named=True)
        spans = meta["spans"]
        return StateSample(
            sample_id=made.sample_id,
            input_ids=torch.from_numpy(made.input_ids.astype(np.int64)),
            loss_mask=torch.from_numpy(made.loss_mask.astype(np.bool_)),
            aux=tensor(made.aux).flatten(1),
            final=tensor(made.final),
            spans=spans,
            meta={name: value for name, value in meta.items() if name not in ROW},
        )


def online(shards: Shards, source: Source, choice: Choice | None = None) -> Online:
    """Open `shards` for training without a disk. Raises StatesError as `extract` does, and when the
    self-check of the first samples finds an error.
    """
    chosen = choice or Choice()
    shards = shards.where(split=chosen.split, min_grade=chosen.min_grade)
    identity = identified(shards, source, chosen)
    index = plan(
        shards, token_bytes=identity.token_bytes, file_bytes=chosen.file_bytes, limit=chosen.limit
    ).index
    samples = list(islice(iter(shards), index.height))
    first = samples[:FIRST]
    check = SelfCheck(source, identity.layers.output_of)
    made = states(source, first, chosen, identity.layers.output_of)
    seen = check.file(made, [one.input_ids for one in first], 0, shards.directory)
    check.whole(seen, shards.directory)
    if not check.sound:
        told = "; ".join(f"{one.code} at {one.at}: {one.detail}" for one in check.findings)
        raise StatesError(f"{shards.directory}: the self-check of the first samples found {told}")
    found = tuple(check.findings)
    return Online(shards.directory, identity, index, seen, found, source, chosen, samples)
