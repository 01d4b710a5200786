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
    calls = [{"id": "call_1", **CALL}, {"id": "c9", **CALL}, {"id": "call_2", **CALL}]
    assert before == [
        {"role": "assistant", "content": "", "tool_calls": first, "weight": 0},
        {"role": "tool", "content": "1", "name": "sum", "tool_call_id": "call_0"},
        {"role": "assistant", "content": "", "tool_calls": calls, "weight": 0},
        {"role": "tool", "content": "nine", "tool_call_id": "c9"},
        {"role": "tool", "content": "first", "tool_call_id": "call_1"},
        {"role": "tool", "content": "last", "tool_call_id": "call_2"},
    ]
    assert made.lost == {}


def calls_and_answers(tmp_path: Path, calls: list[Any], *answers: Any) -> Any:
    """The ids of the calls, and those that the answers name, in the export for OpenAI."""
    given = [{"function": SUM} if key is None else {"id": key, "function": SUM} for key in calls]
    keyed = [{} if key is None else {"tool_call_id": key} for key in answers]
    asked, *found = told(
        tmp_path,
        "openai",
        {"role": "assistant", "tool_calls": given},
        *({"role": "tool", "content": "1", **key} for key in keyed),
    )[0]
    return [call["id"] for call in asked["tool_calls"]], [one["tool_call_id"] for one in found]


@pytest.mark.parametrize(
    ("calls", "answers", "joined"),
    [
        ([None], ["abc"], (["abc"], ["abc"])),
        ([None, None], ["x", "y"], (["x", "y"], ["x", "y"])),
        ([None, "call_0"], [None, None], (["call_1", "call_0"], ["call_1", "call_0"])),
        ([None, "call_0"], ["call_0", None], (["call_1", "call_0"], ["call_0", "call_1"])),
        (["c9", None], [None, "c9"], (["c9", "call_0"], ["call_0", "c9"])),
        ([None, None], [None, "call_0"], (["call_0", "call_1"], ["call_1", "call_0"])),
        ([""], [""], (["call_0"], ["call_0"])),
        (["c1"], [""], (["c1"], ["c1"])),
        ([7], [7], (["7"], ["7"])),
        (["c1"], ["c1", "c1"], (["c1"], ["c1", "c1"])),
        (["c1", None], ["c1", "c1"], (["c1", "call_0"], ["c1", "c1"])),
        ([None, None], ["x", "x"], (["x", "call_0"], ["x", "x"])),
        (["c1", "c1"], [None, None], (["c1", "c1"], ["c1", "c1"])),
        ([None], [], (["call_0"], [])),
    ],
)
def test_openai_gets_ids_that_join_each_answer_to_one_call(
    tmp_path, calls, answers, joined
) -> None:
    assert calls_and_answers(tmp_path, calls, *answers) == joined


def test_openai_joins_a_late_answer_and_calls_of_several_messages(tmp_path) -> None:
    one = {"role": "assistant", "content": "", "tool_calls": [{"function": SUM}]}
    other = one | {"tool_calls": [{"id": "b", "function": SUM}]}
    answer = {"role": "tool", "content": "1"}
    late = answer | {"tool_call_id": "b"}
    named = one | {"tool_calls": [{"id": "c", "function": SUM}]}
    before, _ = told(tmp_path, "openai", one, other, answer, answer, named, late, answer, one, late)
    calls = [call["id"] for m in before for call in m.get("tool_calls", ())]
    assert calls == ["call_0", "b", "c", "b"]  # an id may come again in another turn
    answers = [m["tool_call_id"] for m in before if m["role"] == "tool"]
    assert answers == ["call_0", "b", "b", "c", "b"]


@pytest.mark.parametrize(
    "history",
    [
        [{"role": "tool", "content": "1"}],
        [{"role": "tool", "content": "1", "tool_call_id": "c1"}],
        [
            {"role": "assistant", "tool_calls": [{"id": "c1", "function": SUM}]},
            {"role": "tool", "content": "1", "tool_call_id": "c2"},
        ],
        [
            {"role": "assistant", "tool_calls": [{"id": "c1", "function": SUM}]},
            {"role": "tool", "content": "1"},
            {"role": "tool", "content": "2", "tool_call_id": {}},
        ],
        [
            {"from": "function_call", "value": '{"name": "sum", "arguments": {"a": 1}}'},
            {"from": "observation", "value": "1"},
        ],
    ],
)
def test_openai_gets_no_answer_of_a_tool_without_its_call(tmp_path, history) -> None:
    write(tmp_path / "shards", table([row(0, messages=orjson.dumps([*history, ASKED]).decode())]))
    made = export(tmp_path / "shards", "openai", tmp_path / "openai")
    assert made.left_out == {"messages.jsonl": {Gap.NO_CALL.value: 1}}
    assert made.lost == {}
    made = export(tmp_path / "shards", "messages", tmp_path / "messages")
    assert (made.left_out, made.written) == ({}, {"messages.jsonl": 1})


THOUGHTS = [
    {"content": "5", "reasoning": "add"},
    {"content": "5", "reasoning_content": "add"},
    {"content": "5", "thinking": "add"},
    {"content": "5", "reasoning_details": [{"text": "a"}, {"text": "dd"}]},
    {"content": "5", "thinking_blocks": [{"type": "thinking", "thinking": "add"}]},
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
    line = "- `messages.jsonl`: 1 message: a thought, which the format has no place for\n"
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
        ({"reasoning_details": [{"text": "add"}, {"data": "x"}]}, Loss.HIDDEN),
        ({"reasoning_details": [{"text": "add"}, {"text": "", "data": "x"}]}, Loss.HIDDEN),
        ({"reasoning_details": [{"text": "add"}, {"text": {"a": 1}}]}, Loss.HIDDEN),
        ({"reasoning_details": [{"text": "add"}, 7]}, Loss.HIDDEN),
        ({"reasoning": "add", "reasoning_details": [{"steps": 3}]}, Loss.HIDDEN),
        ({"reasoning_details": [{"text": "add", "signature": "x"}]}, Loss.FIELD),
        ({"thinking_blocks": [{"thinking": "add", "signature": "x"}]}, Loss.FIELD),
        ({"content": [{"type": "thinking", "thinking": "add", "signature": "x"}, "5"]}, Loss.FIELD),
        (
            {"content": [{"type": "thinking", "thinking": [{"text": "add", "at": 1}]}, "5"]},
            Loss.FIELD,
        ),
        (
            {"reasoning": "add", "content": [{"text": "5", "cache_control": {"type": "x"}}]},
            Loss.FIELD,
        ),
        ({"reasoning": "add", "content": [{"text": "5", "refusal": "no"}]}, Loss.FIELD),
        ({"reasoning": "add", "tool_calls": [CALL | {"index": 0}]}, Loss.FIELD),
        ({"reasoning": "add", "tool_calls": [CALL | {"type": "custom"}]}, Loss.FIELD),
        ({"reasoning": "add", "tool_calls": [SUM | {"strict": True}]}, Loss.FIELD),
        (
            {"reasoning": "add", "tool_calls": [{"function": SUM | {"strict": True}}]},
            Loss.FIELD,
        ),
        ({"reasoning": "add", "thinking": True}, Loss.FIELD),
        ({"reasoning_content": "add", "reasoning": {"effort": "high"}}, Loss.FIELD),
        ({"reasoning": "add", "weight": 1}, Loss.FIELD),
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


def test_a_weight_is_a_name_of_openai_for_answers(tmp_path) -> None:
    before, made = told(
        tmp_path,
        "openai",
        {"role": "assistant", "content": "5", "weight": 1},
        {"role": "assistant", "content": "6", "weight": 0},
    )
    assert [message["weight"] for message in before] == [0, 0]  # the answer alone is supervised
    assert made.lost == {}
    other = [{"role": "user", "content": "5", "weight": 1}]
    other += [{"role": "assistant", "content": "5", "weight": weight} for weight in (0.5, [1])]
    assert told(tmp_path / "other", "openai", *other)[1].lost == {
        "messages.jsonl": {Loss.FIELD.value: 3}
    }


def test_a_call_in_another_spelling_is_no_loss(tmp_path) -> None:
    given = [{"type": "tool_use", "name": "sum", "input": {"a": 1}}, SUM | {"id": None}]
    _, made = told(tmp_path, "messages", {"role": "assistant", "tool_calls": given})
    assert made.lost == {}


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
