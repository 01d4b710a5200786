"""The plan of an extraction: which sample lies where, known before the first forward.

What enters: opened shards, and the size of a token's states. What leaves: one row a sample with its
file and its place in it, and the size of everything. It promises that the plan depends on the
shards only, so that a run that goes on cuts where the former one did.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from eagle3_data.draft.states_manifest import StatesError

if TYPE_CHECKING:
    from eagle3_data.shards.reader import Shards

TEXTS = ("messages", "prompt_text", "reasoning", "content", "tool_calls", "tools", "settings")
LEFT_OUT = (*TEXTS, "template_kwargs", "input_ids", "loss_mask", "offset", "line_hash")
"""Columns of a shard that the index does not repeat: a join by `sample_id` finds them."""


@dataclass(frozen=True, slots=True)
class Plan:
    """`index`: the light columns of the shards, and `shard` (number of the file), `row` (in it),
    `start` and `end` (rows of its tensors).
    """

    index: pl.DataFrame

    @property
    def tokens(self) -> int:
        """Tokens in all."""
        return int(self.index["seq_len"].sum())

    @property
    def supervised_tokens(self) -> int:
        """Supervised tokens in all."""
        return int(self.index["supervised_tokens"].sum())

    @property
    def files(self) -> int:
        """Files in all."""
        return int(self.index["shard"][-1]) + 1 if self.index.height else 0

    def cuts(self) -> Iterator[pl.DataFrame]:
        """The rows of each file, in order."""
        ends = np.flatnonzero(np.diff(self.index["shard"].to_numpy(), append=-1)) + 1
        for start, end in zip([0, *ends[:-1].tolist()], ends.tolist(), strict=True):
            yield self.index.slice(start, end - start)


def plan(shards: Shards, *, token_bytes: int, file_bytes: int, limit: int | None = None) -> Plan:
    """Lay the samples of `shards` (narrow them with `where`), at most `limit`, into files of about
    `file_bytes` raw bytes; a longer sample has a file of its own. Raises StatesError without any.
    """
    from eagle3_data.shards.schema import COLUMNS

    names = [column.name for column in COLUMNS if column.name not in LEFT_OUT]
    index = shards.frame(names, limit)
    if not index.height:
        raise StatesError(
            f"{shards.directory} holds no sample of this choice: see `verify`, or choose another"
            " --split"
        )
    number, room, file_no = -1, 0, []
    for length in index["seq_len"].to_list():
        size = length * token_bytes
        if number < 0 or size > room:
            number, room = number + 1, file_bytes
        room -= size
        file_no.append(number)
    ends = pl.col("seq_len").cast(pl.Int64).cum_sum().over("shard")
    return Plan(
        index.with_columns(shard=pl.Series(file_no, dtype=pl.Int32)).with_columns(
            row=pl.int_range(pl.len(), dtype=pl.Int32).over("shard"),
            start=ends - pl.col("seq_len"),
            end=ends,
        )
    )
