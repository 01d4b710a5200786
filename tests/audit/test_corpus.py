"""Corpus keys and rules: the same whatever the borders of batches, silent on honest files."""

from __future__ import annotations

import json
import random
from itertools import pairwise
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eagle3_data.audit.columns import FINDINGS_SCHEMA, LIGHT_SCHEMA
from eagle3_data.audit.corpus import KEY_COLUMNS, corpus_findings, keys
from eagle3_data.audit.holdout import Holdout
from eagle3_data.audit.rules import all_rules
from eagle3_data.audit.rules.registry import Scope
from eagle3_data.audit.shift import shifts
from eagle3_data.audit.thresholds import Thresholds
from eagle3_data.records.row import dump
from eagle3_data.records.table import RECORD_SCHEMA
from eagle3_data.tokens.samples import SAMPLE_COLUMNS

CAPTURES = Path(__file__).parents[2] / "fixtures" / "captures"
SCHEMA = RECORD_SCHEMA | SAMPLE_COLUMNS | LIGHT_SCHEMA
T = Thresholds()
RULES = [rule for rule in all_rules() if rule.scope is Scope.CORPUS]


def records(rows: list[dict[str, Any]]) -> pl.DataFrame:
    plain = {
        "file_no": 0, "choice": 0, "status": "record", "notes": 0, "finish_reason": "stop",
        "thinking_on": True, "completion_tokens": 100,
    }  # fmt: skip
    full = []
    for line, given_row in enumerate(rows, 1):
        row: dict[str, Any] = {**plain, "line": line, "offset": line * 100, **given_row}
        row.setdefault("messages_json", json.dumps([{"role": "user", "content": row["user_text"]}]))
        row["reasoning_chars"] = len(row.get("reasoning") or "")
        row["content_chars"] = len(row.get("content") or "")
        full.append(row)
    return pl.DataFrame({n: [row.get(n) for row in full] for n in SCHEMA}, schema=SCHEMA)


def light(frame: pl.DataFrame, holdout: Holdout | None = None) -> pl.DataFrame:
    return keys(frame, T, holdout).select(*LIGHT_SCHEMA, *KEY_COLUMNS)


def fired(rows: list[dict[str, Any]], code: str) -> list[int | None]:
    found = corpus_findings(light(records(rows)), T, [r for r in RULES if r.code == code])
    return found["line"].to_list()


def captured(engine: str) -> list[dict[str, Any]]:
    rows = []
    for line in (CAPTURES / f"{engine}_smollm2-think.jsonl").read_text("utf-8").splitlines():
        body = json.loads(line)
        choice = body["response"]["choices"][0]
        message = choice["message"]
        rows.append(
            {
                "record_id": body["id"],
                "user_text": body["request"]["messages"][-1]["content"],
                "reasoning": message.get("reasoning") or message.get("reasoning_content"),
                "content": message["content"],
                "finish_reason": choice["finish_reason"],
                "latency_s": body.get("latency_s"),
                "model": body["response"]["model"],
            }
        )
    return rows


def test_keys_have_their_schema_and_keep_the_frame() -> None:
    frame = records([{"user_text": "Where?", "content": "In Oslo."}])
    out = keys(frame, T, None)
    assert out.schema == frame.schema | KEY_COLUMNS
    assert out.select(frame.columns).equals(frame)
    assert keys(frame.clear(), T, Holdout.from_prompts(["Where?"])).schema == out.schema


def wrong(lines: list[int]) -> pl.DataFrame:
    return pl.DataFrame(
        {"severity": ["error" for _ in lines], "file_no": [0 for _ in lines], "line": lines},
        schema={"severity": pl.String, "file_no": pl.Int32, "line": pl.Int64},
    )


@pytest.mark.parametrize(
    ("bad", "named"),
    [
        ([], [2, 3]),
        ([1], [3]),  # line 2 is the one to keep, line 1 is out by its own error
        ([1, 2], []),
        ([2], [2, 3]),
        ([1, 2, 3], [2, 3]),
    ],
)
@pytest.mark.parametrize("code", ["SET001", "SET002"])
def test_of_equal_records_one_without_an_error_is_kept(
    code: str, bad: list[int], named: list[int]
) -> None:
    row = {"user_text": "Where?", "content": "In Oslo, which is the capital of Norway."}
    rows = [row | ({"record_id": f"r{n}"} if code == "SET002" else {}) for n in range(3)]
    found = corpus_findings(light(records(rows)), T, RULES, wrong(bad))
    assert found.filter(pl.col("code") == code)["line"].to_list() == named


def test_findings_have_the_schema_of_findings() -> None:
    row = {"user_text": "Where?", "content": "In Oslo, which is the capital of Norway."}
    found = corpus_findings(light(records([row, row])), T, RULES)
    assert found.schema == FINDINGS_SCHEMA
    assert found["code"].to_list() == ["SET001"]
    assert found.row(0, named=True) | {"at": ""} == {
        "code": "SET001", "name": "duplicate-record", "severity": "error", "file_no": 0, "line": 2,
        "offset": 200, "choice": 0, "turn": None, "record_id": None, "at": "",
        "detail": "same as line 1", "tokens": 100,
    }  # fmt: skip
    assert corpus_findings(light(records([])), T, RULES).schema == FINDINGS_SCHEMA


@settings(max_examples=15)
@given(st.lists(st.integers(min_value=0, max_value=120), max_size=6))
def test_borders_of_batches_do_not_matter(borders: list[int]) -> None:
    rows = captured("vllm")
    rows += rows[:5]  # some duplicates
    whole = records(rows)
    cuts = sorted({0, whole.height, *borders})
    holdout = Holdout.from_prompts([rows[3]["user_text"]])
    parts = [light(whole.slice(a, b - a), holdout) for a, b in pairwise(cuts)]
    assert pl.concat(parts).equals(light(whole, holdout))
    assert corpus_findings(pl.concat(parts), T, RULES).equals(
        corpus_findings(light(whole, holdout), T, RULES)
    )


@pytest.mark.parametrize("engine", ["vllm", "llamacpp"])
def test_real_captures_are_only_too_short(engine: str) -> None:
    found = corpus_findings(light(records(captured(engine))), T, RULES)
    assert set(found["code"]) == {"SET009"}
    assert found["line"].to_list() == [None]


@pytest.mark.parametrize("by", [1, -1])
@pytest.mark.parametrize("start", [0, 37, 64])
def test_a_shift_is_found_where_it_begins(by: int, start: int) -> None:
    rows = captured("vllm")
    moved = [dict(row) for row in rows]
    for i in range(max(start, 1), len(rows) - 1):
        for field in ("reasoning", "content"):
            moved[i][field] = rows[i + by][field]
    found = shifts(light(records(moved)), T)
    assert [shift.by for shift in found] == [-by]
    assert abs(found[0].first - (start + 1)) <= 3
    assert found[0].last == len(rows)
    assert found[0].fitting > 10 * max(1, found[0].own)


def test_a_shift_after_many_lines_is_found_in_sampled_blocks() -> None:
    rng = random.Random(1)
    words = ["".join(rng.choices("bcdfgklmnprst", k=2) + rng.choices("aeiou", k=1)) + f"{i:x}za"
             for i in range(6000)]  # fmt: skip
    prompts = [" ".join(rng.sample(words, 8)) for _ in range(3000)]
    rows = [
        {"user_text": p, "content": f"On {a}: " + " ".join(rng.sample(words, 30))}
        for p, a in zip(prompts, prompts[:1600] + prompts[1601:] + prompts[:1], strict=True)
    ]
    found = shifts(light(records(rows)), T)
    assert [shift.by for shift in found] == [-1]
    assert 1600 <= found[0].first <= 1600 + 256


def test_short_or_unrelated_answers_are_no_shift() -> None:
    rows = captured("vllm")
    short = [row | {"reasoning": None, "content": "Yes."} for row in rows]
    mixed = [dict(row) for row in rows]
    texts = [row["reasoning"] for row in rows]
    random.Random(5).shuffle(texts)
    for row, text in zip(mixed, texts, strict=True):
        row |= {"reasoning": text, "content": None}
    assert shifts(light(records(short)), T) == []
    assert shifts(light(records(mixed)), T) == []


QUESTION = "A farmer has 17 sheep and all but 9 of them run away, how many sheep are left?"


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (QUESTION, 0),
        (QUESTION.upper(), 0),
        (QUESTION.replace(" ", "\n  "), 0),
        ("A farmer has 17 sheep -- and all but 9 of them run away; how many sheep are left", 0),
        (f"Answer with one number.\n\n### Question\n{QUESTION}\n### Answer", 0),
        (QUESTION.replace("farmer has", "ｆａｒｍｅｒ ｈａｓ"), 0),
        ("A farmer has 17 sheep and all but 9 of his cows run away.", None),
        ("What is 2 + 2?", 1),
        ("what is 2+2", 1),
        ("Please tell me: what is 2 + 2?", None),
        ("Name the three longest rivers of northern Europe.", 2),
        ("First: name the three longest rivers of northern Europe! Then stop.", 2),
        ("挪威的首都是哪里？它有多少人口？", 3),
        ("请回答：挪威的首都是哪里？它有多少人口？谢谢。", 3),
        ("", None),
        (None, None),
    ],
)  # fmt: skip
def test_held_out_prompts(text: str | None, found: int | None) -> None:
    held = Holdout.from_prompts(
        [
            QUESTION,
            "What is 2 + 2?",
            "Name the three longest rivers of northern Europe.",
            "挪威的首都是哪里？它有多少人口？",
            "",
        ]
    )
    around = ["How do I get to the farm?", text, "There are 17 of them and all run away."]
    assert held.found(pl.Series(around, dtype=pl.String)).to_list() == [None, found, None]


NAMES = ("ants", "bees", "cats", "eels")


def test_the_frame_of_many_held_out_prompts_proves_nothing() -> None:
    frame = "Think step by step and give the last line of your answer in the form Answer: number. "
    held = Holdout.from_prompts(
        [f"{frame} How many legs do {name} have together?" for name in NAMES]
    )
    texts = [
        f"{frame} What is the capital of Norway?",
        f"{frame} How many legs do bees have together?",
    ]
    assert held.found(pl.Series(texts)).to_list() == [None, 1]


@given(st.lists(st.text(max_size=60), max_size=8), st.lists(st.text(max_size=60), max_size=8))
def test_a_held_out_text_is_always_found_as_itself(held: list[str], others: list[str]) -> None:
    texts = pl.Series(held + others, dtype=pl.String)
    index = Holdout.from_prompts(held)
    found = index.found(texts).to_list()
    for number, text in enumerate(held):
        if any(char.isalnum() for char in text):
            assert found[number] is not None and found[number] <= number
    assert Holdout.from_prompts([]).found(texts).to_list() == [None] * len(texts)


def test_holdout_findings_name_the_prompt() -> None:
    rows = [{"user_text": "Where is Oslo?", "content": "In Norway."},
            {"user_text": QUESTION.lower(), "content": "Nine."}]  # fmt: skip
    held = Holdout.from_prompts(["Who is there?", QUESTION])
    found = corpus_findings(light(records(rows), held), T, RULES)
    assert found.select("code", "line", "detail").rows() == [("SET014", 2, "held-out prompt 2")]


LONG = "Oslo is the capital of Norway and lies on the coast."


def test_choices_and_turns_of_one_line_are_no_duplicates() -> None:
    rows = [
        {"line": 1, "choice": c, "user_text": "Where?", "content": LONG, "record_id": "a"}
        for c in range(3)
    ]
    assert corpus_findings(light(records(rows)), T, RULES).height == 0


def test_several_samples_of_a_prompt_only_warn() -> None:
    rows = [{"user_text": "Where?", "content": f"{LONG} {i}", "record_id": "a"} for i in range(3)]
    found = corpus_findings(light(records(rows)), T, RULES)
    assert found.select("code", "severity", "line").rows() == [
        ("SET004", "warn", 2),
        ("SET004", "warn", 3),
    ]


def test_duplicates_across_files_name_the_other_input() -> None:
    row = {"user_text": "Where?", "content": LONG}
    frame = records([row, row | {"file_no": 1, "line": 1}])
    found = corpus_findings(light(frame), T, RULES)
    assert found.select("code", "file_no", "detail").rows() == [
        ("SET001", 1, "same as line 1 of input 1")
    ]


def test_ids_may_repeat_across_files_and_for_samples() -> None:
    a = {"user_text": "Where?", "content": LONG, "record_id": "7"}
    b = {"user_text": "When?", "content": "In 1624, after the fire.", "record_id": "7"}
    assert fired([a, b], "SET003") == [2]
    assert fired([a, a | {"content": "Norway."}], "SET003") == []
    assert fired([a, b | {"file_no": 1}], "SET003") == []


USER = '{"role":"user","content":"Where, he said, \\"is it\\"?"}'
TURNED = '{"content":"Where, he said, \\"is it\\"?","role":"user"}'
CALL = '{"role":"assistant","content":null,"tool_calls":[{"id":"1","type":"function"}]}'
TURNED_CALL = '{"tool_calls":[{"type":"function","id":"1"}],"role":"assistant","content":null}'
PARTS = '{"role":"user","content":[{"type":"text","text":"q"}]}'
TURNED_PARTS = '{"content":[{"text":"q","type":"text"}],"role":"user"}'
CONTEXT = '{"role":"user","content":"q","context":"c"}'
TURNED_CONTEXT = '{"role":"user","context":"c","content":"q"}'
ROOM = '{"role":"user","content":"q","room":{"cot":"t","cost":1}}'
TURNED_ROOM = '{"room":{"cost":1,"cot":"t"},"role":"user","content":"q"}'
COST = '{"role":"user","cost":1,"content":"q"}'
TURNED_COST = '{"role":"user","content":"q","cost":1}'
BRACE = '{"role":"user","}]":1,",c":2}'
TURNED_BRACE = '{"role":"user",",c":2,"}]":1}'
STRING = '{"role":"user","content":["q"]}'
TURNED_STRING = '{"content":["q"],"role":"user"}'
ALONE = '{"role":"assistant"}'


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (USER, TURNED),
        (f"{USER},{CALL}", f"{TURNED},{TURNED_CALL}"),
        (PARTS, TURNED_PARTS),
        (CONTEXT, TURNED_CONTEXT),
        (ROOM, TURNED_ROOM),
        (COST, TURNED_COST),
        (BRACE, TURNED_BRACE),
        (STRING, TURNED_STRING),
        (f"{USER},{ALONE}", f"{TURNED},{ALONE}"),
    ],
)
def test_the_order_of_json_keys_makes_no_other_prompt(first: str, second: str) -> None:
    answer = {"content": "In Oslo, which is the capital of Norway.", "record_id": "r"}
    rows = [
        answer | {"user_text": "q", "messages_json": f"[{asked}]", "created": n}
        for n, asked in enumerate([first, second])
    ]
    assert fired(rows, "SET002") == [2]
    assert fired(rows, "SET003") == []
    tools = ('[{"type":"function","name":"f"}]', '[{"name":"f","type":"function"}]')
    rows = [row | {"tools_json": tool} for row, tool in zip(rows, tools, strict=True)]
    assert fired(rows, "SET002") == [2]


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (f"{USER},{CALL}", f"{CALL},{USER}"),  # the order of messages is another thing
        ('{"role":"user","content":"assistant"}', '{"role":"assistant","content":"user"}'),
        (PARTS, PARTS.replace('"q"', '"r"')),
        ('{"content":"a","role":"user","name":1}', '{"content":"a","role":"user","name":1.0}'),
        ("[" * 1100 + "]" * 1100, "[" * 1101 + "]" * 1101),  # too deep to be read
    ],
    ids=["messages", "values", "parts", "numbers", "deep"],
)
def test_other_json_stays_another_prompt(first: str, second: str) -> None:
    answer = {"content": "In Oslo, which is the capital of Norway.", "record_id": "r"}
    rows = [answer | {"user_text": "q", "messages_json": f"[{one}]"} for one in (first, second)]
    assert fired(rows, "SET002") == []
    assert fired(rows, "SET003") == [2]


MEMBERS = st.sampled_from(["role", "content", "ro", "roles", "cot", "contents", "}]", ",", "{"])
LEAVES = st.none() | st.booleans() | st.integers(-9, 9) | st.text('a",:{}[]\\\n', max_size=5)
VALUES = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(MEMBERS, inner, max_size=3),
    max_leaves=6,
)
TURN = (
    st.fixed_dictionaries({"role": LEAVES})
    | st.fixed_dictionaries({"role": LEAVES, "content": VALUES})
    | st.dictionaries(MEMBERS | st.text(max_size=3), VALUES, max_size=4)
)
MESSAGES = st.lists(TURN | VALUES, max_size=3)


def turned(value: Any, draw: Any) -> Any:
    """The same value with the keys of all objects in a drawn order."""
    if isinstance(value, dict):
        return {key: turned(value[key], draw) for key in draw(st.permutations(list(value)))}
    return [turned(item, draw) for item in value] if isinstance(value, list) else value


@given(MESSAGES, MESSAGES, st.data())
def test_the_same_messages_have_one_key_and_others_another(first: Any, other: Any, data) -> None:
    asked = [first, turned(first, data.draw), other]
    rows = [{"user_text": "q", "messages_json": dump(one)} for one in asked]
    found = light(records(rows))["key_prompt"].to_list()
    assert found[0] == found[1]
    same = json.dumps(first, sort_keys=True) == json.dumps(other, sort_keys=True)
    assert (found[0] == found[2]) is same


def test_a_cut_batch_is_no_timeout() -> None:
    times = [{"user_text": f"{i}?", "content": f"{i}", "latency_s": 9.0 + i} for i in range(40)]
    late = [{"user_text": f"x{i}", "content": f"y{i}", "latency_s": 600.0} for i in range(12)]
    assert fired(times + late, "SET008") == list(range(41, 53))
    assert fired(times + [row | {"finish_reason": "length"} for row in late], "SET008") == []
    assert fired(times + late[:5], "SET008") == []
