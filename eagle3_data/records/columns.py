"""Columns: the rows of a batch become one Polars frame with exactly RECORD_SCHEMA.

What enters: `Row`s in line order. What leaves: a frame, one row a `Row`. It promises one
construction a column (no per-cell work in Polars), and that ids which are no list of non-negative
31-bit integers are noted and left null.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import polars as pl

from eagle3_data.records.row import Row
from eagle3_data.records.table import RECORD_SCHEMA, Note, empty

_ID_COLUMNS = ("prompt_ids", "completion_ids")


@dataclass(slots=True)
class Columns:
    """Rows on their way into a frame. A finished row is kept as a tuple of its cells: it takes 400
    bytes where its dict takes 1,584.
    """

    cells: list[tuple[Any, ...]] = field(default_factory=list)
    notes: list[int] = field(default_factory=list)
    details: list[str | None] = field(default_factory=list)

    def add(self, row: Row) -> None:
        """Take a finished row."""
        self.cells.append((*row.cells.values(),))
        self.notes.append(row.notes)
        self.details.append("; ".join(row.details) if row.details else None)

    def add_cells(self, cells: tuple[Any, ...], note: int, detail: str | None) -> None:
        """Take a finished row that never was a `Row`."""
        self.cells.append(cells)
        self.notes.append(note)
        self.details.append(detail)

    def frame(self, file_no: int) -> pl.DataFrame:
        """The record table of the rows."""
        height = len(self.cells)
        if not height:
            return empty()
        columns = dict(zip(RECORD_SCHEMA, zip(*self.cells, strict=True), strict=True))
        made = {name: self._ids(name, columns[name]) for name in _ID_COLUMNS}
        for name, dtype in RECORD_SCHEMA.items():
            values = columns[name]
            if name in made:
                continue
            if name == "file_no":
                made[name] = pl.Series(name, [file_no], dtype=dtype).new_from_index(0, height)
            elif name == "notes":
                made[name] = pl.Series(name, self.notes, dtype=dtype)
            elif name == "note_detail":
                made[name] = pl.Series(name, self.details, dtype=dtype)
            elif values.count(None) == height:
                made[name] = _nulls(name, height)
            else:
                made[name] = pl.Series(name, values, dtype=dtype)
        return pl.DataFrame([made[name] for name in RECORD_SCHEMA])

    def _ids(self, name: str, values: tuple[Any, ...]) -> pl.Series:
        """A list column of token ids: one construction; a look at each id only when it fails."""
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
            holes = flat.len() - flat.null_count() != known
            if not holes and (not isinstance(least, int) or least >= 0):
                return column
        good: list[Any] = []
        for i, ids in enumerate(values):
            if ids is None or all(type(t) is int and 0 <= t < 1 << 31 for t in ids):
                good.append(ids)
                continue
            told = f"{name} holds something else than token ids"
            before = self.details[i]
            self.notes[i] |= int(Note.IDS_INVALID)
            self.details[i] = f"{before}; {told}" if before else told
            good.append(None)
        return pl.Series(name, good, dtype=dtype)


def _nulls(name: str, height: int) -> pl.Series:
    return pl.Series(name, [], dtype=RECORD_SCHEMA[name]).clear(height)
