"""The report for programs: JSON, JSON lines, Parquet. Text keeps its value; only its spelling is
made harmless.
"""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any

import orjson
import polars as pl

from eagle3_data.audit.inert import inert_json

if TYPE_CHECKING:
    from eagle3_data.audit.report import Report


def report_json(report: Report) -> bytes:
    """One JSON object, see `Report.to_dict`; examples capped, counts exact."""
    return _spell(_whole(report.to_dict()), orjson.OPT_INDENT_2) + b"\n"


def findings_jsonl(report: Report) -> bytes:
    """One line a finding, all of them; `file` in place of `file_no`."""
    return b"".join(_spell(row) + b"\n" for row in _rows(report))


def findings_parquet(report: Report) -> bytes:
    """All findings (FINDINGS_SCHEMA) with the path as `file`, zstd-compressed. Not text: values are
    as received.
    """
    paths = [_legible(facts.path) for facts in report.inputs]
    names = dict(enumerate(paths))
    buffer = io.BytesIO()
    report.findings.with_columns(
        file=pl.col("file_no").replace_strict(names, default=None, return_dtype=pl.String)
    ).write_parquet(buffer, compression="zstd")
    return buffer.getvalue()


def _rows(report: Report) -> Any:
    paths = [_legible(facts.path) for facts in report.inputs]
    for row in report.findings.iter_rows(named=True):
        number = row.pop("file_no")
        yield {"file": paths[number] if number is not None else None, **row}


def _spell(value: Any, option: int = 0) -> bytes:
    return inert_json(orjson.dumps(value, option=option).decode()).encode()


def _whole(value: Any) -> Any:
    """The same value with every string legal UTF-8: a file name may hold bytes that are none."""
    if isinstance(value, str):
        return _legible(value)
    if isinstance(value, dict):
        return {key: _whole(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_whole(item) for item in value]
    return value


def _legible(text: str) -> str:
    return text.encode("utf-8", "backslashreplace").decode()
