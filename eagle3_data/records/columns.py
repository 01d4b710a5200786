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


_TEXTS = ("messages_json", "reasoning", "content")
"""Columns of long text."""
_CHUNK = 64
"""Rows after which texts become Polars strings: they and their parsed objects are still in the
cache then (at 12 KB a record 34 us with reading and parsing, 38 when it waits for 1,300 rows).
"""
_PLACE = {name: i for i, name in enumerate(RECORD_SCHEMA)}


@dataclass(slots=True)
class Columns:
    """Rows on their way into a frame. A finished row is a tuple of its cells (400 bytes where its
    dict takes 1,584) and is taken apart with the next few.
    """

    rows: list[tuple[Any, ...]] = field(default_factory=list)
    notes: list[int] = field(default_factory=list)
    details: list[str | None] = field(default_factory=list)
    columns: list[list[Any]] = field(default_factory=lambda: [[] for _ in RECORD_SCHEMA])

    def add(self, row: Row) -> None:
        """Take a finished row."""
        self.add_cells(
            (*row.cells.values(),), row.notes, "; ".join(row.details) if row.details else None
        )

    def add_cells(self, cells: tuple[Any, ...], note: int, detail: str | None) -> None:
        """Take the cells of a finished row, in the order of RECORD_SCHEMA."""
        self.rows.append(cells)
        self.notes.append(note)
        self.details.append(detail)
        if len(self.rows) == _CHUNK:
            self._take_apart()

    def _take_apart(self) -> None:
        """Move the cells of the waiting rows to their columns; of texts, a Series."""
        if not self.rows:
            return
        values = list(zip(*self.rows, strict=True))
        for name in _TEXTS:
            place = _PLACE[name]
            texts = pl.Series(name, values[place], dtype=pl.String)
            self.columns[place].append(texts)
            values[place] = ()
        for column, some in zip(self.columns, values, strict=True):
            column.extend(some)
        self.rows.clear()

    def frame(self, file_no: int) -> pl.DataFrame:
        """The record table of the rows."""
        self._take_apart()
        height = len(self.notes)
        if not height:
            return empty()
        made: dict[str, pl.Series] = {}
        for (name, dtype), values in zip(RECORD_SCHEMA.items(), self.columns, strict=True):
            if name in _TEXTS:
                made[name] = pl.concat(values, rechunk=True)
            elif name in _ID_COLUMNS:
                made[name] = self._ids(name, values)
            elif name == "file_no":
                made[name] = pl.Series(name, [file_no], dtype=dtype).new_from_index(0, height)
            elif name in ("notes", "note_detail"):
                continue
            elif values.count(None) == height:
                made[name] = _nulls(name, height)
            else:
                made[name] = pl.Series(name, values, dtype=dtype)
        # last: invalid ids add to both
        made["notes"] = pl.Series("notes", self.notes, dtype=RECORD_SCHEMA["notes"])
        made["note_detail"] = pl.Series("note_detail", self.details, dtype=pl.String)
        return pl.DataFrame([made[name] for name in RECORD_SCHEMA])

    def _ids(self, name: str, values: list[Any]) -> pl.Series:
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
