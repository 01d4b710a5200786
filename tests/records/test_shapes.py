"""Shapes: every known form of a record gives the same columns, foreign ones are named."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson
import polars as pl
import pytest
from reading import ROOT, SHAPES, notes, row_of, rows_of, table_of

from eagle3_data.records.shapes import Turns
from eagle3_data.records.table import RECORD_SCHEMA, Note

ASK = [{"role": "user", "content": "2+2?"}]


def rows(name: str, turns: Turns = Turns.LAST) -> list[dict[str, Any]]:
    table = table_of(SHAPES / name, turns)
    assert dict(table.schema) == RECORD_SCHEMA
    return table.to_dicts()


def holds(row: dict[str, Any], **expected: Any) -> None:
    assert {name: row[name] for name in expected} == expected


def test_a_vllm_body_beside_its_request_fills_every_column() -> None:
    (row,) = rows("vllm.jsonl")
    length = len((SHAPES / "vllm.jsonl").read_bytes()) - 1
    assert row == {
        "file_no": 0, "line": 1, "offset": 0, "length": length, "choice": 0, "turn": None,
        "status": "record", "shape": "chat-completion", "notes": 0, "note_detail": None,
        "repair": None, "record_id": "a", "model": "m", "request_model": "m-alias",
        "server": "vllm", "server_version": "0.32.0", "created": 1795961134, "latency_s": 1.5,
        "messages_json": '[{"role":"system","content":"Be brief."},'
        '{"role":"user","content":"2+2?"}]',
        "prompt_text": None, "tools_json": None,
        "template_kwargs_json": '{"enable_thinking":true}',
        "settings_json": '{"max_tokens":64,"temperature":0.5}',
        "system_text": "Be brief.", "user_text": "2+2?", "roles": "su",
        "history_reasoning": False, "thinking_asked": True, "max_tokens": 64,
        "reasoning": "Two and two.", "reasoning_state": "text", "reasoning_key": "reasoning",
        "reasoning_keys": "reasoning=text", "content": "4", "content_state": "text",
        "tool_calls_json": None, "n_tool_calls": 0, "finish_reason": "stop",
        "stop_reason": "163586", "prompt_tokens": 3, "completion_tokens": 3,
        "reasoning_tokens": 1, "prompt_ids": [1, 2, 3], "completion_ids": [7, 8, 9],
        "error_text": None,
    }  # fmt: skip


def test_n_choices_are_n_records_and_none_gets_the_common_count() -> None:
    first, second = rows("two_choices.jsonl")
    holds(first, line=1, choice=0, content="4", reasoning="x", finish_reason="stop")
    holds(second, line=1, choice=1, content="four", reasoning=None, reasoning_state="null")
    holds(second, reasoning_keys="reasoning_content=null", finish_reason="length")
    for row in (first, second):
        holds(row, prompt_tokens=3, completion_tokens=None, messages_json=first["messages_json"])


def test_ids_of_a_verbose_llama_cpp_are_those_of_the_completion() -> None:
    asked, not_asked = rows("llamacpp_verbose.jsonl")
    holds(asked, server="llama.cpp", completion_ids=[5, 6, 7], prompt_ids=None, notes=0)
    holds(not_asked, completion_ids=None, notes=0)


def test_a_body_at_the_top_and_sglang_bodies() -> None:
    (row,) = rows("body_at_top.jsonl")
    holds(row, shape="chat-completion", record_id="chatcmpl-1", roles="u", model="m", content="4")
    (row,) = rows("sglang.jsonl")
    holds(row, record_id="1", server="sglang", stop_reason="151645", roles="u")
    holds(row, prompt_ids=[1, 2], completion_ids=[5, 6], reasoning_key="reasoning_content")
    (row,) = rows("sglang_generate.jsonl")
    holds(row, shape="flat", content="<think>x</think>4", finish_reason="stop", stop_reason="2")
    holds(row, completion_ids=[5, 6], prompt_tokens=4, completion_tokens=2, prompt_text="2+2?")
    (row,) = rows("logprob_ids.jsonl")
    holds(row, completion_ids=[5, 6], notes=0)


def test_flat_rows() -> None:
    first, second = rows("flat.jsonl")
    holds(first, shape="flat", record_id="a", roles="u", reasoning="x", content="4", max_tokens=9)
    holds(first, prompt_ids=[1], completion_ids=[2], server="vllm", server_version="0.11.0")
    holds(second, prompt_text="2+2?", user_text="2+2?", reasoning_key="thinking", content="4")
    holds(second, messages_json=None, roles=None, thinking_asked=None)


def test_the_last_or_every_turn_of_a_dialogue() -> None:
    (last,) = rows("dialogue.jsonl")
    holds(last, shape="dialogue", turn=4, roles="suau", content="a2", reasoning="t2")
    holds(last, history_reasoning=True, finish_reason="stop", user_text="q2", system_text="s")
    first, again = rows("dialogue.jsonl", Turns.ALL)
    holds(first, turn=2, roles="su", content="a1", reasoning="t1", user_text="q1")
    holds(first, history_reasoning=False, finish_reason=None)
    assert again == last


def test_from_value_dialogues_become_role_content() -> None:
    (row,) = rows("sharegpt.jsonl")
    holds(row, roles="su", turn=2, content="<think>t</think>a", reasoning_state="missing")
    assert orjson.loads(row["messages_json"]) == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "q"},
    ]


def test_specforge_rows() -> None:
    good, failed = rows("specforge.jsonl")
    holds(good, content="a", reasoning="t", turn=1, notes=0)
    assert notes(failed) == Note.ERROR_BODY | Note.LAST_NOT_ASSISTANT
    holds(failed, error_text="timeout", content=None, roles="u")


def test_id_rows_are_cut_by_their_mask() -> None:
    one, holes, none, short, odd = rows("speculators.jsonl")
    holds(one, shape="speculators", prompt_ids=[1, 2], completion_ids=[3, 4], notes=0)
    holds(one, finish_reason="stop", completion_tokens=2, note_detail=None)
    holds(one, settings_json='{"temperature":0.6}', content=None, content_state=None)
    holds(holes, shape="specforge-ids", prompt_ids=[1, 2, 3], completion_ids=[4, 5])
    assert holes["note_detail"] == (
        "loss_mask has 2 runs of ones, each is an answer of its own;"
        " 1 ids after the last run of ones are left out"
    )
    holds(none, prompt_ids=[1, 2], completion_ids=[])
    assert [notes(r) for r in (short, odd)] == [Note.IDS_INVALID] * 2
    assert short["note_detail"] == "2 input_ids, 1 values in loss_mask"
    every = rows("speculators.jsonl", Turns.ALL)
    runs = [(r["turn"], r["prompt_ids"], r["completion_ids"]) for r in every if r["line"] == 2]
    assert runs == [(0, [1], [2]), (1, [1, 2, 3], [4, 5])]


def test_responses_bodies() -> None:
    whole, hidden = rows("responses.jsonl")
    holds(whole, shape="responses", roles="su", content="4", reasoning="x", max_tokens=50)
    holds(whole, finish_reason="tool_calls", n_tool_calls=1, reasoning_tokens=3, notes=0)
    assert whole["tool_calls_json"] == '[{"id":"c1","name":"f","arguments":"{\\"a\\": 1}"}]'
    assert notes(hidden) == Note.REASONING_REDACTED
    holds(hidden, finish_reason="length", reasoning=None, reasoning_state="null")


def test_errors_in_place_of_an_answer_are_noted_with_their_text() -> None:
    found = rows("errors.jsonl")
    assert [r["record_id"] for r in found if not notes(r) & Note.ERROR_BODY] == ["e10"]
    assert notes(found[-1]) == Note.EMPTY_CHOICES
    texts = {r["record_id"]: r["error_text"] for r in found}
    assert texts["e1"] == "The model is overloaded"
    assert texts["e2"] == "bad key"
    assert texts["e3"] == "too long"
    assert texts["e5"] == "Internal Server Error"
    assert texts["e8"] == "HTTP status 500"
    assert texts["e9"] == "Connection reset"


def test_answers_that_talk_of_errors_are_left_alone() -> None:
    assert [notes(r) for r in rows("talks_of_errors.jsonl")] == [Note(0)] * 5


def test_foreign_records_list_their_keys() -> None:
    found = rows("foreign.jsonl")
    assert [notes(r) for r in found] == [Note.NO_ANSWER] * 5
    assert [r["note_detail"] for r in found] == [
        "keys: text",
        "keys: loss, step",
        "keys: content, id, title",
        "keys of response: foo",
        "keys: ",
    ]


def body(message: Any, **more: Any) -> dict[str, Any]:
    choice = {"message": message, "finish_reason": "stop"}
    return {"request": {"messages": ASK}, "response": {"choices": [choice], **more}}


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ({"content": "a"}, (None, "missing", None, None)),
        ({"content": "a", "reasoning": None}, (None, "null", None, "reasoning=null")),
        ({"content": "a", "reasoning": ""}, ("", "empty", None, "reasoning=empty")),
        (
            {"reasoning": None, "reasoning_content": "t"},
            ("t", "text", "reasoning_content", "reasoning=null,reasoning_content=text"),
        ),
        (
            {"reasoning": "", "reasoning_content": None},
            ("", "empty", None, "reasoning=empty,reasoning_content=null"),
        ),
        (
            {"reasoning_details": [{"type": "reasoning.text", "text": "a"}, {"text": "b"}]},
            ("ab", "text", "reasoning_details", "reasoning_details=text"),
        ),
        (
            {"content": [{"type": "thinking", "thinking": [{"type": "text", "text": "t"}]}]},
            ("t", "text", "content.thinking", "content.thinking=text"),
        ),
    ],
)
def test_missing_null_and_empty_thoughts_stay_three_things(
    tmp_path: Path, message: Any, expected: tuple[Any, ...]
) -> None:
    row = row_of(tmp_path, body(message))
    names = ("reasoning", "reasoning_state", "reasoning_key", "reasoning_keys")
    assert tuple(row[name] for name in names) == expected


def test_two_thoughts_that_differ_are_a_conflict_and_copies_are_not(tmp_path: Path) -> None:
    same, differ = rows_of(
        tmp_path,
        body({"reasoning": "t", "reasoning_content": "t", "reasoning_details": [{"text": " t"}]}),
        body({"reasoning": "t", "reasoning_content": "u"}),
    )
    assert notes(same) == Note(0)
    assert notes(differ) == Note.REASONING_CONFLICT
    holds(differ, reasoning="t", note_detail="reasoning and reasoning_content differ")


@pytest.mark.parametrize(
    ("message", "note", "content", "state"),
    [
        ({"content": None}, Note(0), None, "null"),
        ({}, Note(0), None, "missing"),
        ({"content": ""}, Note(0), "", "empty"),
        (
            {"content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
            Note.CONTENT_PARTS,
            "ab",
            "text",
        ),
        (
            {"content": [{"type": "text", "text": "a"}, {"type": "image_url", "image_url": {}}]},
            Note.CONTENT_PARTS | Note.CONTENT_NON_TEXT,
            "a",
            "text",
        ),
        ({"content": 7}, Note.WRONG_TYPE, None, "null"),
    ],
)
def test_content_states_and_parts(
    tmp_path: Path, message: Any, note: Note, content: str | None, state: str
) -> None:
    row = row_of(tmp_path, body(message))
    assert (notes(row), row["content"], row["content_state"]) == (note, content, state)


CALL = {"id": "c", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
FLAT_CALL = '[{"id":"c","name":"f","arguments":"{\\"a\\": 1}"}]'


@pytest.mark.parametrize(
    ("calls", "note", "text"),
    [
        ([CALL], Note(0), FLAT_CALL),
        ([orjson.dumps(CALL).decode()], Note.TOOLS_DOUBLE_ENCODED, FLAT_CALL),
        (orjson.dumps([CALL]).decode(), Note.TOOLS_DOUBLE_ENCODED, FLAT_CALL),
        (
            [{"name": "f", "arguments": {"a": 1}}],
            Note(0),
            '[{"id":null,"name":"f","arguments":"{\\"a\\":1}"}]',
        ),
        (
            [{"name": "f", "arguments": '{"a":'}],
            Note.BAD_TOOL_JSON,
            '[{"id":null,"name":"f","arguments":"{\\"a\\":"}]',
        ),
        ("[not json", Note.BAD_TOOL_JSON | Note.TOOLS_DOUBLE_ENCODED, None),
        ([], Note(0), None),
        (None, Note(0), None),
    ],
)
def test_tool_calls_keep_their_argument_text(
    tmp_path: Path, calls: Any, note: Note, text: str | None
) -> None:
    row = row_of(tmp_path, body({"content": None, "tool_calls": calls}))
    assert (notes(row), row["tool_calls_json"]) == (note, text)
    assert row["n_tool_calls"] == (1 if text else 0)


@pytest.mark.parametrize(
    ("request_keys", "asked"),
    [
        ({}, None),
        ({"chat_template_kwargs": {"thinking": False}}, False),
        ({"chat_template_kwargs": {"enable_thinking": True}}, True),
        ({"extra_body": {"chat_template_kwargs": {"enable_thinking": False}}}, False),
        ({"thinking": {"type": "disabled"}}, False),
        ({"thinking": {"type": "enabled"}}, True),
        ({"reasoning_effort": "none"}, False),
        ({"reasoning_effort": "high"}, True),
        ({"reasoning": {"effort": "none"}}, False),
        ({"extra_body": {"thinking": {"type": "disabled"}}}, False),
    ],
)
def test_what_the_request_asked_for(tmp_path: Path, request_keys: Any, asked: bool | None) -> None:
    record = body({"content": "a"})
    record["request"] |= request_keys
    row = row_of(tmp_path, record)
    assert (row["thinking_asked"], notes(row)) == (asked, Note(0))


@pytest.mark.parametrize(
    ("more", "server", "version"),
    [
        ({"system_fingerprint": "vllm-0.32.0-f693fabf"}, "vllm", "0.32.0"),
        ({"system_fingerprint": "b6123-0cf6725"}, "llama.cpp", "b6123"),
        ({"timings": {}}, "llama.cpp", None),
        ({"sglext": {}}, "sglang", None),
        ({"prompt_logprobs": None}, "vllm", None),
        ({"system_fingerprint": "fp_44709d6fcb"}, None, None),
        ({}, None, None),
    ],
)
def test_a_server_is_named_by_what_only_it_writes(
    tmp_path: Path, more: Any, server: str | None, version: str | None
) -> None:
    row = row_of(tmp_path, body({"content": "a"}, **more))
    assert (row["server"], row["server_version"]) == (server, version)


@pytest.mark.parametrize(
    ("ids", "note", "kept"),
    [
        ([1, 2], Note(0), [1, 2]),
        ([], Note(0), []),
        (None, Note(0), None),
        ([1, -2], Note.IDS_INVALID, None),
        ([1, None], Note.IDS_INVALID, None),
        ([1, 2.5], Note.IDS_INVALID, None),
        ([1, 2**31], Note.IDS_INVALID, None),
        (["1"], Note.IDS_INVALID, None),
        ([[1]], Note.IDS_INVALID, None),
        ("1 2", Note.IDS_INVALID, None),
    ],
)
def test_ids_that_are_no_ids_are_noted_and_left_out(
    tmp_path: Path, ids: Any, note: Note, kept: list[int] | None
) -> None:
    good = body({"content": "a"})
    good["response"]["choices"][0]["token_ids"] = [3, 4]
    bad = body({"content": "a"})
    bad["response"]["choices"][0]["token_ids"] = ids
    first, second = rows_of(tmp_path, good, bad)
    assert (first["completion_ids"], notes(first)) == ([3, 4], Note(0))
    assert (second["completion_ids"], notes(second)) == (kept, note)


def test_messages_are_noted_but_kept_as_received(tmp_path: Path) -> None:
    messages = [
        {"role": "user", "content": [{"type": "text", "text": "look"}], "weight": 0},
        {"role": "critic", "content": "hm"},
        {"role": "tool", "content": "r", "extra": {"b": 1, "a": 2}},
    ]
    row = row_of(tmp_path, body({"content": "a"}) | {"request": {"messages": messages}})
    assert notes(row) == Note.CONTENT_PARTS | Note.TRAIN_FLAG | Note.UNKNOWN_ROLE
    assert orjson.loads(row["messages_json"]) == messages
    holds(row, roles="u?t", user_text="look")


def test_the_real_captures_are_clean() -> None:
    table = table_of(ROOT / "fixtures" / "captures" / "clean_smollm2-think.jsonl")
    assert table["notes"].unique().to_list() == [0]
    assert table["server_version"].unique().to_list() == ["0.32.0"]
    counted = table.select(pl.col("completion_ids").list.len() == pl.col("completion_tokens"))
    assert counted.to_series().all()
