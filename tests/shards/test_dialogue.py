"""Dialogues in exports: earlier turns in every spelling are carried over, or counted as lost."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson
import pytest
from making import row, table, write

from eagle3_data.shards.dialogue import Gap, Loss
from eagle3_data.shards.export import export
from eagle3_data.shards.exported import Exported
from eagle3_data.shards.targets import NOTE

ASKED = {"role": "user", "content": "Go on."}
KEYS = {"messages": "messages", "openai": "messages", "specforge": "conversations"}
"""Target → key of its messages; the name of its file is the same with .jsonl."""


def told(tmp_path: Path, target: str, *history: Any) -> tuple[list[dict[str, Any]], Exported]:
    """The messages before the answer, as they are exported, and what the export says."""
    one = row(0, messages=orjson.dumps([*history, ASKED]).decode())
    write(tmp_path / "shards", table([one]))
    made = export(tmp_path / "shards", target, tmp_path / target)
    (line,) = (tmp_path / target / f"{KEYS[target]}.jsonl").read_bytes().splitlines()
    *before, asked, answer = orjson.loads(line)[KEYS[target]]
    assert (asked, answer) == (ASKED, {"role": "assistant", "content": "text 0"})
    return before, made


SUM = {"name": "sum", "arguments": '{"a": 1}'}
CALL = {"type": "function", "function": SUM}
LEGACY = [
    {"role": "assistant", "content": None, "function_call": SUM},
    {"role": "function", "name": "sum", "content": "1"},
]


@pytest.mark.parametrize("target", ["messages", "specforge"])
def test_a_function_call_of_an_earlier_turn_is_a_tool_call(tmp_path, target) -> None:
    before, made = told(tmp_path, target, *LEGACY)
    assert before == [
        {"role": "assistant", "content": "", "tool_calls": [CALL]},
        {"role": "tool", "content": "1", "name": "sum"},
    ]
    assert made.lost == {}


def test_openai_joins_calls_without_an_id_to_their_answers(tmp_path) -> None:
    several = [{"function": SUM}, {"id": "c9", "function": SUM}, {"function": SUM}]
    before, made = told(
        tmp_path,
        "openai",
        *LEGACY,
        {"role": "assistant", "tool_calls": several},
        {"role": "tool", "content": "nine", "tool_call_id": "c9"},
        {"role": "tool", "content": "first"},
        {"role": "tool", "content": "last"},
    )
    first = [{"id": "call_0", **CALL}]
    calls = [{"id": "call_0", **CALL}, {"id": "c9", **CALL}, {"id": "call_2", **CALL}]
    assert before == [
        {"role": "assistant", "content": "", "tool_calls": first, "weight": 0},
        {"role": "tool", "content": "1", "name": "sum", "tool_call_id": "call_0"},
        {"role": "assistant", "content": "", "tool_calls": calls, "weight": 0},
        {"role": "tool", "content": "nine", "tool_call_id": "c9"},
        {"role": "tool", "content": "first", "tool_call_id": "call_0"},
        {"role": "tool", "content": "last", "tool_call_id": "call_2"},
    ]
    assert made.lost == {}


THOUGHTS = [
    {"content": "5", "reasoning": "add"},
    {"content": "5", "reasoning_content": "add"},
    {"content": "5", "thinking": "add"},
    {"content": "5", "reasoning_details": [{"text": "a"}, {"text": "dd"}]},
    {"content": "5", "thinking_blocks": [{"thinking": "add", "signature": "x"}]},
    {"content": [{"type": "thinking", "thinking": "add"}, {"type": "text", "text": "5"}]},
    {"content": "5", "reasoning": "add", "reasoning_content": "add", "thinking": None},
]


@pytest.mark.parametrize("turn", THOUGHTS)
def test_a_thought_of_an_earlier_turn_is_kept_under_whichever_name(tmp_path, turn) -> None:
    for target in ("messages", "specforge"):
        before, made = told(tmp_path, target, {"role": "assistant", **turn})
        assert before == [{"role": "assistant", "content": "5", "reasoning_content": "add"}]
        assert made.lost == {}


@pytest.mark.parametrize("turn", THOUGHTS)
def test_openai_counts_the_thoughts_that_it_can_not_hold(tmp_path, turn) -> None:
    before, made = told(tmp_path, "openai", {"role": "assistant", **turn})
    assert before == [{"role": "assistant", "content": "5", "weight": 0}]
    assert made.lost == {"messages.jsonl": {Loss.THOUGHT.value: 1}}
    line = "- `messages.jsonl`: 1 messages: a thought, which the format has no place for\n"
    assert line in (tmp_path / "openai" / NOTE).read_text()


def test_a_refusal_is_carried_over_where_there_is_a_place(tmp_path) -> None:
    turn = {"role": "assistant", "content": None, "refusal": "I will not."}
    before, made = told(tmp_path, "openai", turn)
    assert before == [
        {"role": "assistant", "content": "", "refusal": "I will not.", "weight": 0}
    ]  # fmt: skip
    assert made.lost == {}
    for target in ("messages", "specforge"):
        before, made = told(tmp_path, target, turn)
        assert before == [{"role": "assistant", "content": ""}]
        name = f"{KEYS[target]}.jsonl"
        assert made.lost == {name: {Loss.REFUSAL.value: 1}}
        assert made.to_dict()["lost"] == {
            name: {"a refusal beside the content, which the format has no place for": 1}
        }


def test_a_refusal_among_the_parts_is_what_was_said(tmp_path) -> None:
    parts = [{"type": "text", "text": "No."}, {"type": "refusal", "refusal": "I will not."}]
    before, made = told(tmp_path, "messages", {"role": "assistant", "content": parts})
    assert before == [{"role": "assistant", "content": "No.\nI will not."}]
    assert made.lost == {}


def test_turns_of_the_from_value_form_are_told_beside_others(tmp_path) -> None:
    history = [
        {"role": "system", "content": "Be brief."},
        {"from": "human", "value": "2+3?"},
        {"from": "gpt", "value": "5", "reasoning": "add"},
        {"role": "human", "content": "3+3?"},
        {"role": "gpt", "content": "6"},
    ]
    before, made = told(tmp_path, "messages", *history)
    assert before == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "2+3?"},
        {"role": "assistant", "content": "5", "reasoning_content": "add"},
        {"role": "user", "content": "3+3?"},
        {"role": "assistant", "content": "6"},
    ]
    assert made.lost == {}
    before, _ = told(tmp_path, "openai", *history)  # or a trainer would learn them
    assert [message.get("weight") for message in before] == [None, None, 0, None, 0]


@pytest.mark.parametrize(
    ("turn", "loss"),
    [
        ({"reasoning": "add", "thinking": "guess"}, Loss.SECOND_THOUGHT),
        ({"reasoning": "add", "reasoning_details": [{"data": "x"}]}, Loss.HIDDEN),
        ({"reasoning": "add", "reasoning_content": {"steps": ["x"]}}, Loss.HIDDEN),
        ({"reasoning": "add", "thinking": ["x"]}, Loss.HIDDEN),
        (
            {"reasoning": "add", "content": ["5", {"type": "reasoning", "summary": "x"}]},
            Loss.HIDDEN,
        ),
        ({"reasoning": "add", "audio": {"id": "a1"}}, Loss.FIELD),
        ({"reasoning": "add", "tool_calls": [CALL], "function_call": SUM}, Loss.FIELD),
        ({"reasoning": "add", "function_call": "sum"}, Loss.FIELD),
    ],
)
def test_what_no_format_holds_is_counted_a_message(tmp_path, turn, loss) -> None:
    turn = {"role": "assistant", "content": "5", **turn}
    before, made = told(tmp_path, "messages", turn, ASKED, turn)
    kept = {"role": "assistant", "content": "5", "reasoning_content": "add"}
    kept |= {"tool_calls": [CALL]} if "tool_calls" in turn else {}
    assert before == [kept, ASKED, kept]
    assert made.lost == {"messages.jsonl": {loss.value: 2}}


def test_empty_fields_of_a_server_are_no_loss(tmp_path) -> None:
    empty = {"refusal": None, "annotations": [], "audio": None, "function_call": None}
    empty |= {"tool_calls": [], "reasoning": None, "reasoning_content": ""}
    before, made = told(tmp_path, "messages", {"role": "assistant", "content": "5", **empty})
    assert before == [{"role": "assistant", "content": "5"}]
    assert made.lost == {}


def test_only_samples_that_were_written_are_counted(tmp_path) -> None:
    refused = {"role": "assistant", "content": None, "refusal": "no"}
    rows = [
        row(0, messages=orjson.dumps([refused, ASKED]).decode()),
        row(1, messages=orjson.dumps([refused, ASKED]).decode(), input_ids=[10] * 7),
        row(2, messages=orjson.dumps([{"role": "assistant", "tool_calls": 5}]).decode()),
    ]
    write(tmp_path / "shards", table(rows))
    made = export(tmp_path / "shards", "messages", tmp_path / "out")
    assert made.left_out == {"messages.jsonl": {Gap.NO_END.value: 1, Gap.DAMAGED.value: 1}}
    assert made.lost == {"messages.jsonl": {Loss.REFUSAL.value: 1}}
