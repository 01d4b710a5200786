"""The two frames that a run keeps: findings, and light records without their text.

What enters: nothing. What leaves: their schemas. They promise one set of columns to judge, corpus
rules, report and command.
"""

from __future__ import annotations

import polars as pl

from eagle3_data.records.table import RECORD_SCHEMA
from eagle3_data.tokens.samples import SAMPLE_COLUMNS

DETAIL_CHARS = 600
"""A detail quotes model text: longer ones are cut, a finding never carries a whole answer."""

FINDINGS_SCHEMA: dict[str, pl.DataType] = {
    "code": pl.String(),
    "name": pl.String(),
    "severity": pl.String(),
    "file_no": pl.Int32(),
    "line": pl.Int64(),  # null = the whole file
    "offset": pl.Int64(),
    "choice": pl.Int32(),
    "turn": pl.Int32(),
    "record_id": pl.String(),
    "at": pl.String(),  # JSON pointer
    "detail": pl.String(),
    "tokens": pl.Int64(),  # supervised tokens of the record; usage where nothing was assembled
}

_LIGHT_NAMES = [
    "file_no",
    "line",
    "offset",
    "length",
    "choice",
    "turn",
    "status",
    "shape",
    "record_id",
    "model",
    "request_model",
    "server",
    "server_version",
    "finish_reason",
    "stop_reason",
    "thinking_on",
    "grade",
    "grade_reason",
    "prompt_source",
    "prompt_reason",
    "count_delta",
    "assembled_tokens",
    "prompt_tokens",
    "completion_tokens",
    "prompt_len",
    "supervised_tokens",
    "content_span_tokens",
    "reasoning_state",
    "reasoning_key",
    "reasoning_keys",
    "reasoning_chars",
    "content_chars",
    "stored_bytes",
    "n_tool_calls",
    "max_tokens",
    "latency_s",
    "created",
    "notes",
    "note_detail",
    "repair",
]

_SIGNALS: dict[str, pl.DataType] = {
    "thinking_on": pl.Boolean(),
    "reasoning_chars": pl.Int64(),
    "content_chars": pl.Int64(),
    "stored_bytes": pl.Int64(),  # UTF-8 of reasoning, content and tool calls
}

LIGHT_SCHEMA: dict[str, pl.DataType] = {
    name: (RECORD_SCHEMA | SAMPLE_COLUMNS | _SIGNALS)[name] for name in _LIGHT_NAMES
}
"""What is kept of a record for the whole run: no long text, about 300 bytes a record."""
