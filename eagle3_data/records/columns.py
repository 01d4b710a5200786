"""Columns: the rows of a batch become one Polars frame with exactly RECORD_SCHEMA.

What enters: `Row`s in line order and the place of each. What leaves: a frame, one row a `Row`. It
promises one construction a column (no per-cell work in Polars), and that ids which are no list of
non-negative 31-bit integers are noted and left null.
"""

from __future__ import annotations

from typing import Any

import polars as pl

from eagle3_data.records.row import Row
from eagle3_data.records.table import RECORD_SCHEMA, Note, empty

_ID_COLUMNS = ("prompt_ids", "completion_ids")


def frame_of(rows: list[Row], file_no: int) -> pl.DataFrame:
    """The record table of `rows`."""
    if not rows:
        return empty()
    height = len(rows)
    # by rows and not by columns: the cells of one row lie together in memory (7 us -> 1 us a
    # record)
    columns = dict(
        zip(RECORD_SCHEMA, zip(*[row.cells.values() for row in rows], strict=True), strict=True)
    )
    ids = {name: _id_column(name, columns[name], rows) for name in _ID_COLUMNS}
    columns["notes"] = tuple([row.notes for row in rows])
    columns["note_detail"] = tuple(["; ".join(row.details) or None for row in rows])
    made: list[pl.Series] = []
    for name, dtype in RECORD_SCHEMA.items():
        values = columns[name]
        if name in ids:
            made.append(ids[name])
        elif name == "file_no":
            made.append(pl.Series(name, [file_no], dtype=dtype).new_from_index(0, height))
        elif values.count(None) == height:
            made.append(_nulls(name, height))
        else:
            made.append(pl.Series(name, values, dtype=dtype))
    return pl.DataFrame(made)


def _nulls(name: str, height: int) -> pl.Series:
    return pl.Series(name, [], dtype=RECORD_SCHEMA[name]).clear(height)


def _id_column(name: str, values: tuple[Any, ...], rows: list[Row]) -> pl.Series:
    """A list column of token ids. One construction; the slow look at each id only when it fails."""
    if values.count(None) == len(values):
        return _nulls(name, len(values))
    dtype = RECORD_SCHEMA[name]
    try:
        column = pl.Series(name, values, dtype=dtype)
    except (TypeError, OverflowError, pl.exceptions.PolarsError):
        pass
    else:
        least = column.list.min().min()
        known = sum([len(ids) for ids in values if ids])
        flat = column.drop_nulls().explode(empty_as_null=False)
        if flat.len() - flat.null_count() == known and (not isinstance(least, int) or least >= 0):
            return column
    good: list[Any] = []
    for ids, row in zip(values, rows, strict=True):
        bad = ids is not None and not all(type(t) is int and 0 <= t < 1 << 31 for t in ids)
        if bad:
            row.note(Note.IDS_INVALID, f"{name} holds something else than token ids")
        good.append(None if bad else ids)
    return pl.Series(name, good, dtype=dtype)
