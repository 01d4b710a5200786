"""Repair: the markers leave, nothing else does, and two readings are no repair."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from reading import notes, row_of

from eagle3_data.records.repair import repair_record, repaired_line
from eagle3_data.records.table import Note

MARKERS = [("<think>", "</think>")]


def body(**message: Any) -> dict[str, Any]:
    return {"response": {"choices": [{"message": message}]}}


@pytest.mark.parametrize(
    ("content", "name", "thought", "answer"),
    [
        ("<think>\nt\n</think>\n\na", "split-think-block", "\nt\n", "\n\na"),
        ("t</think>a", "split-closing-marker", "t", "a"),
        (" <think>t</think>a", "split-think-block", "t", "a"),
    ],
)
def test_an_inline_thought_gets_its_own_field(
    content: str, name: str, thought: str, answer: str
) -> None:
    record = body(content=content, reasoning=None)
    assert repair_record(record, MARKERS) == [name]
    assert record == body(content=answer, reasoning=thought)


@pytest.mark.parametrize(
    "message",
    [
        {"content": "no marker"},
        {"content": "<think>t</think>a", "reasoning": "there already"},
        {"content": "<think>a<think>b</think></think>c"},
        {"content": "<think>cut in the thought"},
        {"content": "The marker `</think>` closes it."},
        {"content": "First this. <think>t</think>a"},
        {"content": "a</think>b<think>c"},
        {"content": None},
        {"content": [{"type": "text", "text": "<think>t</think>a"}]},
    ],
)
def test_a_case_with_two_readings_is_left_alone(message: dict[str, Any]) -> None:
    record = body(**message)
    assert repair_record(record, MARKERS) == []
    assert record == body(**message)
    assert repaired_line(orjson.dumps(record), MARKERS) is None


@pytest.mark.parametrize(
    ("content", "thought"),
    [
        ("<think>\nt\n</think>a", "t\n"),
        ("<think>\n\nt</think>a", "\nt"),
        ("<think>t</think>a", "t"),
        ("t</think>a", "t"),
    ],
)
def test_the_longer_opening_leaves_whole(content: str, thought: str) -> None:
    record = body(content=content)
    repair_record(record, [("<think>\n", "</think>"), *MARKERS])
    assert record == body(content="a", reasoning=thought)


@pytest.mark.parametrize("content", ["<think>\nt<think>u</think>a", "t</think>a<think>"])
def test_two_openings_of_different_length_are_two(content: str) -> None:
    record = body(content=content)
    assert repair_record(record, [("<think>\n", "</think>"), *MARKERS]) == []


@pytest.mark.parametrize("key", ["reasoning", "reasoning_content", "thinking"])
def test_the_field_that_is_there_and_empty_is_filled(key: str) -> None:
    record = body(content="<think>t</think>a") | {}
    record["response"]["choices"][0]["message"][key] = ""
    repair_record(record, MARKERS)
    assert record["response"]["choices"][0]["message"] == {"content": "a", key: "t"}


def test_dialogues_and_flat_rows() -> None:
    turns = [
        {"from": "human", "value": "q"},
        {"from": "gpt", "value": "<think>1</think>a"},
        {"from": "human", "value": "q"},
        {"from": "gpt", "value": "<think>2</think>b"},
    ]
    record = {"conversations": [dict(t) for t in turns]}
    assert repair_record(record, MARKERS) == ["split-think-block"]
    assert record["conversations"][1] == turns[1]
    assert record["conversations"][3] == {"from": "gpt", "value": "b", "reasoning": "2"}
    repair_record(record, MARKERS, every=True)
    assert record["conversations"][1] == {"from": "gpt", "value": "a", "reasoning": "1"}
    flat = {"prompt": "q", "response": "<think>t</think>a"}
    assert repair_record(flat, MARKERS) == ["split-think-block"]
    assert flat == {"prompt": "q", "response": "a", "reasoning": "t"}


def test_the_table_tells_the_repair(tmp_path: Path) -> None:
    record = {"id": "a", "prompt": "q", "response": "<think>t</think>a"}
    row = row_of(tmp_path, record, repair=MARKERS)
    assert notes(row) == Note.REPAIRED
    assert (row["repair"], row["reasoning"], row["content"]) == ("split-think-block", "t", "a")
    row = row_of(tmp_path, record)
    assert (notes(row), row["content"]) == (Note(0), "<think>t</think>a")


def test_a_repaired_line_keeps_every_other_value() -> None:
    line = '{"id":123456789012345678901234567890,"x":1.50,"prompt":"é","response":"t</think>a"}'
    assert (
        repaired_line(line.encode(), MARKERS)
        == (
            '{"id":123456789012345678901234567890,"x":1.5,"prompt":"é","response":"a","reasoning":"t"}'
        ).encode()
    )
    assert repaired_line(b'{"prompt":"q","response":"x","response":"t</think>a"}', MARKERS) is None
    assert repaired_line(b"not json", MARKERS) is None
    assert repaired_line(b'{"prompt":"q","response":"\\ud800</think>a"}', MARKERS) is None


@given(st.text(max_size=40), st.text(max_size=40))
def test_joining_again_gives_the_text_back(thought: str, answer: str) -> None:
    content = f"<think>{thought}</think>{answer}"
    record = body(content=content)
    if repair_record(record, MARKERS):
        message = record["response"]["choices"][0]["message"]
        assert f"<think>{message['reasoning']}</think>{message['content']}" == content
