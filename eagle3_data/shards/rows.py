"""Rows of a shard: judged frames of the road become Arrow tables of schema v1.

What enters: record table + sample columns + `verdict` and `codes`, and the raw bytes of the lines.
What leaves: one row a kept sample, in the order of the frame. It promises that a row depends on its
own record only, never on the batch it came in, and that a kept row which can not become a sample is
an error and never missing in silence.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from hashlib import blake2b, sha256
from typing import Any

import polars as pl
import pyarrow as pa

from eagle3_data.shards.schema import COLUMNS, ShardError, arrow_schema
from eagle3_data.tokens.samples import PromptSource

_RENAMED = {
    "messages": "messages_json",
    "tools": "tools_json",
    "tool_calls": "tool_calls_json",
    "template_kwargs": "template_kwargs_json",
    "settings": "settings_json",
}
"""Shard column → column of the road."""

_NO_TURN = -1


def line_hash(line: bytes) -> str:
    """The first 128 bits (hex) of SHA-256 over a line's bytes without its line end. Processors have
    instructions for it: 11 us for 12.6 KB, BLAKE2b takes 27.
    """
    return sha256(line).hexdigest()[:32]


def sample_id(line_digest: str, choice: int, turn: int | None) -> str:
    """BLAKE2b-128 (hex) of the line's digest, choice and turn (int32 LE; no turn is -1)."""
    place = struct.pack("<ii", choice, _NO_TURN if turn is None else turn)
    return blake2b(bytes.fromhex(line_digest) + place, digest_size=16).hexdigest()


def with_line_hashes(
    frame: pl.DataFrame, numbers: Sequence[int], lines: Sequence[bytes]
) -> pl.DataFrame:
    """`frame` with the column `line_hash`. `lines[i]` is the physical line `numbers[i]` of the
    frame's file, as in `LineBatch`. Rows of other lines get null.
    """
    digests = pl.DataFrame(
        {"line": numbers, "line_hash": [line_hash(line) for line in lines]},
        schema={"line": pl.Int64, "line_hash": pl.String},
    )
    return frame.join(digests, on="line", how="left", maintain_order="left")


def shard_rows(frame: pl.DataFrame, *, files: Sequence[str], profile: str) -> pa.Table:
    """The kept rows of `frame` as a table of schema v1 without file metadata.

    `frame`: RECORD_SCHEMA + SAMPLE_COLUMNS + `line_hash`; `verdict` (rows other than keep are left
    out) and `codes` when it was judged. `split` (default "train"), `conversation_id` (default the
    line's hash) and `truncated` (default False) are taken when there. `files`: the inputs by
    `file_no`. Raises ShardError on a kept row without ids.
    """
    if "verdict" in frame.columns:
        frame = frame.filter(pl.col("verdict") == "keep")
    bare = frame.filter(pl.any_horizontal(pl.col("input_ids", "grade", "line_hash").is_null()))
    if bare.height:
        file_no, line = bare.select("file_no", "line").row(0)
        raise ShardError(
            f"{files[file_no]}:{line}: the record has no token ids, so it can not become a sample:"
            " give --tokenizer, or leave it out"
        )
    have = set(frame.columns)
    made = {
        "sample_id": pl.Series(
            [sample_id(*row) for row in frame.select("line_hash", "choice", "turn").iter_rows()],
            dtype=pl.String,
        ),
        "file": pl.col("file_no").replace_strict(dict(enumerate(files)), return_dtype=pl.String),
        "profile": pl.lit(profile),
        "prompt_len": pl.col("prompt_len").fill_null(0),
        "prompt_source": pl.col("prompt_source").cast(pl.String).fill_null(PromptSource.NONE.value),
        "grade": pl.col("grade").cast(pl.String),
        "grade_reason": pl.col("grade_reason").fill_null(""),
        "spans": pl.col("spans").cast(
            pl.List(pl.Struct({"kind": pl.String, "start": pl.Int32, "end": pl.Int32}))
        ),
    }
    defaults: dict[str, pl.Expr] = {
        "split": pl.lit("train"),
        "conversation_id": pl.col("line_hash"),
        "truncated": pl.lit(False),
        "codes": pl.lit([], dtype=pl.List(pl.String)),
    }
    wanted: dict[str, Any] = {
        c.name: made.get(c.name)
        if c.name in made
        else pl.col(_RENAMED.get(c.name, c.name))
        if _RENAMED.get(c.name, c.name) in have
        else defaults[c.name]
        for c in COLUMNS
    }
    # anchored on a column of the frame: literals alone would give one row for an empty frame
    selected = frame.select(pl.col("file_no").alias("_"), **wanted).drop("_")
    return conform(selected.to_arrow(compat_level=pl.CompatLevel.oldest()))


def conform(table: pa.Table) -> pa.Table:
    """`table` with exactly the types and nullability of schema v1. Raises ShardError when a value
    does not fit.
    """
    schema = arrow_schema()
    arrays = []
    for field in schema:
        column = table.column(field.name)
        if not field.nullable and column.null_count:
            raise ShardError(
                f"column {field.name} holds {column.null_count} nulls, schema v1 allows none"
            )
        try:
            arrays.append(column.cast(field.type))
        except pa.ArrowInvalid as error:
            raise ShardError(f"column {field.name} does not fit schema v1: {error}") from None
    return pa.table(arrays, schema=schema)
