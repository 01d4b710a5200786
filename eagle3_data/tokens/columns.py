"""Flat arrays to Polars list columns, and the figures that are read off a whole batch of id
sequences at once.

What enters: one array a row (None for a null row). What leaves: columns, or one number a row.
It promises that no Python object is made per token.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from eagle3_data.tokens.ragged import Ragged
from eagle3_data.tokens.samples import SPAN_KIND, SpanKind

Ids = NDArray[np.int32]


def rows_of(column: pl.Series) -> list[Ids | None]:
    """A list column of ids as one array a row; null and empty lists give None."""
    lengths = column.list.len().fill_null(0).to_numpy()
    if not lengths.any():
        return [None] * len(column)
    flat = column.filter(column.list.len() > 0).explode().to_numpy().astype(np.int32, copy=False)
    ends = np.cumsum(lengths).tolist()
    return [
        flat[end - n : end] if n else None for end, n in zip(ends, lengths.tolist(), strict=True)
    ]


def list_column(name: str, values: NDArray[Any], offsets: NDArray[np.int64]) -> pl.Series:
    """A list column: row i is values[offsets[i]:offsets[i + 1]]."""
    import pyarrow as pa

    return pl.Series(name, pa.LargeListArray.from_arrays(pa.array(offsets), pa.array(values)))


def span_column(name: str, table: NDArray[np.int32], offsets: NDArray[np.int64]) -> pl.Series:
    """The list column of span structs. `table`: (kind code, start, end) of a batch, row on row."""
    import pyarrow as pa

    kinds = pa.DictionaryArray.from_arrays(
        pa.array(table[:, 0].astype(np.uint8)),
        pa.array([k.value for k in SpanKind], pa.large_string()),
    )
    structs = pa.StructArray.from_arrays(
        [kinds, pa.array(table[:, 1]), pa.array(table[:, 2])], names=["kind", "start", "end"]
    )
    array = pa.LargeListArray.from_arrays(pa.array(offsets), structs)
    kind = pl.Struct({"kind": SPAN_KIND, "start": pl.Int32, "end": pl.Int32})
    return pl.Series(name, array).cast(pl.List(kind))


def changes(ragged: Ragged) -> NDArray[np.int64]:
    """How often an id differs from the one before it, a sequence at a time, int64 [n]; 0 = one id
    over and over. Equal neighbours are rare, so they are what is counted: a fifth of the time of
    adding up all places, and distinct ids would cost a sort.
    """
    same = np.flatnonzero(ragged.ids[1:] == ragged.ids[:-1]) + 1
    row = np.searchsorted(ragged.offsets, same, side="right") - 1
    row = row[same != ragged.offsets[row]]  # the first of its sequence has none before it
    return np.maximum(ragged.lengths - 1, 0) - np.bincount(row, minlength=len(ragged))
