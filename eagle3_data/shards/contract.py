"""The pandera contract of schema v1, for collected frames.

What enters: the columns of `schema.py`. What leaves: a pandera schema for Polars, and its export.
It promises built-in checks only, so that the export holds everything that is checked; what one
column can not say (mask equals spans, unique ids over all files) is in `invariants.py`. Importing
this costs 0.3 s: import it where it is used.
"""

from __future__ import annotations

from typing import Any

import orjson
import pandera.polars as pa
import polars as pl

from eagle3_data.shards.schema import COLUMNS, SPANS, Column

CASES = 3
"""Failing values kept a check: pandera copies each one, 3,000 failing rows of 8,000 ids took 46 MB.
"""

DTYPES: dict[str, pl.DataType] = {
    "string": pl.String(),
    "int32": pl.Int32(),
    "int64": pl.Int64(),
    "double": pl.Float64(),
    "bool": pl.Boolean(),
    "list<item: int32>": pl.List(pl.Int32),
    "list<item: uint8>": pl.List(pl.UInt8),
    "list<item: string>": pl.List(pl.String),
    SPANS: pl.List(pl.Struct({"kind": pl.String, "start": pl.Int32, "end": pl.Int32})),
}


def contract(cases: int | None = CASES) -> pa.DataFrameSchema:
    """The contract. Validate collected frames only: on a LazyFrame pandera checks names and types,
    never values.
    """
    return pa.DataFrameSchema(
        {c.name: _column(c, cases) for c in COLUMNS},
        strict=True,
        ordered=True,
        name="eagle3-data shard v1",
    )


def broken(
    frame: pl.DataFrame, schema: pa.DataFrameSchema
) -> list[tuple[str, str, int | None, str]]:
    """(column, check, row or None, failing value) of everything in `frame` that breaks the
    contract, capped a check.
    """
    if isinstance(frame, pl.LazyFrame):
        raise TypeError("collect first: a lazy frame is not validated")
    try:
        schema.validate(frame, lazy=True)
    except pa.errors.SchemaErrors as error:
        found = error.failure_cases.select("column", "check", "index", "failure_case")
        return [
            (str(column), str(check), index, str(case)[:80])
            for column, check, index, case in found.iter_rows()
        ]
    return []


def exported() -> str:
    """The contract as JSON, published as `schemas/shard.pandera.json`."""
    told = orjson.loads(contract(cases=None).to_json())
    return orjson.dumps(told, option=orjson.OPT_INDENT_2).decode() + "\n"


def _column(column: Column, cases: int | None) -> pa.Column:
    checks = [_check(name, value, cases) for name, value in column.checks.items()]
    return pa.Column(DTYPES[column.type], checks, nullable=column.nullable, description=column.doc)


def _check(name: str, value: Any, cases: int | None) -> pa.Check:
    options = {} if cases is None else {"n_failure_cases": cases}
    make = getattr(pa.Check, name)
    check: pa.Check = (
        make(**value, **options) if isinstance(value, dict) else make(value, **options)
    )
    return check
