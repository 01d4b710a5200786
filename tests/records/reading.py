"""What the tests of this room share: bytes or a fixture through lines and shapes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson
import polars as pl

from eagle3_data.records.lines import expand, read_batches
from eagle3_data.records.shapes import Turns, table_from
from eagle3_data.records.table import Note

ROOT = Path(__file__).parent.parent.parent
LINES = ROOT / "fixtures" / "lines"
SHAPES = ROOT / "fixtures" / "shapes"


def table_of(path: Path, turns: Turns = Turns.LAST, repair: Any = None) -> pl.DataFrame:
    """The record table of one file."""
    batches = read_batches(expand([str(path)])[0], 0)
    return pl.concat([table_from(batch, turns=turns, repair=repair) for batch in batches])


def rows_of(tmp_path: Path, *records: Any, **options: Any) -> list[dict[str, Any]]:
    """The rows of a file with these records; bytes are written as they are."""
    path = tmp_path / "records.jsonl"
    lines = [r if isinstance(r, bytes) else orjson.dumps(r) for r in records]
    path.write_bytes(b"".join(line + b"\n" for line in lines))
    return table_of(path, **options).to_dicts()


def row_of(tmp_path: Path, record: Any, **options: Any) -> dict[str, Any]:
    """The one row of one record."""
    (row,) = rows_of(tmp_path, record, **options)
    return row


def notes(row: dict[str, Any]) -> Note:
    return Note(row["notes"])
