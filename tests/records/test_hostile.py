"""Hostile records: any JSON under the keys that the shapes read gives rows, never a traceback."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from reading import table_of

from eagle3_data.records.shapes import Turns
from eagle3_data.records.table import RECORD_SCHEMA

# fmt: off
KEYS = st.sampled_from((
    "id", "request", "response", "messages", "conversations", "choices",
    "message", "content", "reasoning", "usage", "error", "reasoning_content",
    "thinking", "reasoning_details", "tool_calls", "function_call", "tools", "output",
    "type", "role", "from", "value", "prompt", "input",
    "input_ids", "loss_mask", "token_ids", "prompt_token_ids", "logprobs", "sglext",
    "finish_reason", "stop_reason", "status", "metadata", "text", "answer",
    "created", "model", "meta_info", "body", "chat_template_kwargs", "extra_body",
    "max_tokens", "system", "summary", "arguments", "function", "name",
))
# fmt: on
LEAVES = (
    st.none()
    | st.booleans()
    | st.integers(-(2**64), 2**64)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.sampled_from(["", "user", "assistant", "gpt", "text", "message", "{", "error", "stop"])
)
JUNK = st.recursive(
    LEAVES, lambda x: st.lists(x, max_size=4) | st.dictionaries(KEYS, x, max_size=6), max_leaves=40
)


@settings(max_examples=60)
@given(st.lists(st.dictionaries(KEYS, JUNK, max_size=8), min_size=1, max_size=4), st.booleans())
def test_no_json_raises_and_every_line_has_a_row(
    tmp_path_factory: pytest.TempPathFactory, records: list[Any], every: bool
) -> None:
    path = tmp_path_factory.mktemp("junk") / "x.jsonl"
    path.write_text("".join(json.dumps(r) + "\n" for r in records))
    turns = Turns.ALL if every else Turns.LAST
    table = table_of(path, turns, repair=[("<think>", "</think>")])
    assert dict(table.schema) == RECORD_SCHEMA
    assert set(table["line"].drop_nulls()) == set(range(1, len(records) + 1))
