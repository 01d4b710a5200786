"""Flat arrays to Polars list columns, and the figures that are read off a whole batch of id
sequences at once.

What enters: one array a row (None for a null row). What leaves: columns, or one number a row.
It promises that no Python object is made per token.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from eagle3_data.tokens.samples import SPAN_KIND, SpanKind

Ids = NDArray[np.int32]

LARGEST_VOCABULARY = 1 << 22
"""Captured ids are input: one absurd id must not cost gigabytes."""


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


def list_column(
    name: str, values: NDArray[Any], lengths: NDArray[np.int64], present: NDArray[np.bool_]
) -> pl.Series:
    """A list column out of flat `values` and the length of each row; rows that are not `present`
    are null.
    """
    import pyarrow as pa

    offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])
    array = pa.LargeListArray.from_arrays(
        pa.array(offsets), pa.array(values), mask=pa.array(~present)
    )
    return pl.Series(name, array)


def span_column(
    name: str,
    spans: Sequence[tuple[int, int, int]],
    lengths: NDArray[np.int64],
    present: NDArray[np.bool_],
) -> pl.Series:
    """The list column of span structs out of all (kind code, start, end) of a batch, row after
    row.
    """
    import pyarrow as pa

    table = np.array(spans, dtype=np.int32).reshape(-1, 3)
    kinds = pa.DictionaryArray.from_arrays(
        pa.array(table[:, 0].astype(np.uint8)),
        pa.array([k.value for k in SpanKind], pa.large_string()),
    )
    structs = pa.StructArray.from_arrays(
        [kinds, pa.array(table[:, 1]), pa.array(table[:, 2])], names=["kind", "start", "end"]
    )
    offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])
    array = pa.LargeListArray.from_arrays(pa.array(offsets), structs, mask=pa.array(~present))
    kind = pl.Struct({"kind": SPAN_KIND, "start": pl.Int32, "end": pl.Int32})
    return pl.Series(name, array).cast(pl.List(kind))


def distinct(flat: Ids, offsets: NDArray[np.int64]) -> NDArray[np.int64]:
    """Distinct ids of each sequence, int64 [n], without sorting: the last place of an id counts
    it once.
    """
    out = np.zeros(len(offsets) - 1, dtype=np.int64)
    if not len(flat):
        return out
    if int(flat.max()) > LARGEST_VOCABULARY:
        return np.array([len(set(flat[a:b].tolist())) for a, b in pairwise(offsets.tolist())])
    last = np.zeros(int(flat.max()) + 1, dtype=np.int32)
    places = np.arange(int(np.diff(offsets).max()), dtype=np.int32)
    for row, (start, end) in enumerate(pairwise(offsets.tolist())):
        ids, here = flat[start:end], places[: end - start]
        last[ids] = here
        out[row] = np.count_nonzero(last[ids] == here)
    return out
