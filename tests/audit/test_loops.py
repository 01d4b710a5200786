"""Loops: what must fire, what must stay, and that the close look agrees with the cheap one."""

from __future__ import annotations

import json
from pathlib import Path

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from eagle3_data.audit.answers import ANSWER_COLUMNS
from eagle3_data.audit.language import LANGUAGE_COLUMNS
from eagle3_data.audit.loops import (
    LOOP_COLUMNS,
    _few_sentences,
    _middle_run,
    _run_before_end,
    loop_of,
    loops,
    text_signals,
)
from eagle3_data.audit.thresholds import Thresholds

CAPTURES = Path(__file__).parents[2] / "fixtures" / "captures"
T = Thresholds()

OPENING = (
    "The question asks where she lives. I start with what the text says about the winter, then "
    "with the letters that arrive too late, and at last with the map on the wall of the kitchen. "
)
NUMBERS = ("one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")

LOOPS = {
    "sentence": OPENING + "She lives in a place called the North Pole. " * 9,
    "sentence, cut inside": (OPENING + "She lives in a place called the North Pole. " * 9)[:-17],
    "counter": OPENING + " ".join(f"Step {i}: I will check the sum again." for i in range(97, 125)),
    "decimals": OPENING
    + "\n".join(f"Each of the {i} friends gets {i}.{i} apples." for i in range(20)),
    "chinese": OPENING + "我需要再检查一下这个答案。" * 20,
    "japanese": OPENING + "もう一度確認します。" * 20,
    "russian": OPENING + "Подождите, проверю ещё раз. " * 12,
    "emoji": OPENING + "😀" * 150,
    "digits": OPENING + "0" * 500,
    "marks": OPENING + "!" * 450,
    "blanks": OPENING + "\n" * 500,
    "no spaces": OPENING + "_PERFORMANCE" * 20,
    "paragraph": OPENING + ("Wait. " + OPENING.replace("winter", "snow")) * 6,
    "few sentences": OPENING
    + "\n".join(("Je suis", "Pour les autres", "Je vous suis")[i * i % 3] for i in range(60)),
}

TABLE = "| Name | Age | City |\n| --- | --- | --- |\n" + "".join(
    f"| {name} | {20 + i} | {city} |\n"
    for i, (name, city) in enumerate(zip(NUMBERS, reversed(NUMBERS), strict=True))
)
LEGAL = {
    "prose": OPENING,
    "table": TABLE,
    "empty table": "Here is the form:\n\n| Name | Date |\n| --- | --- |\n"
    + "|      |      |\n" * 15,
    "list": "\n".join(f"- Item {n} of the list is here" for n in NUMBERS),
    "multiplication table": "\n".join(
        f"{i} x {k} = {i * k}" for i in range(1, 11) for k in NUMBERS
    ),
    "multiplication in words": "\n".join(f"7 times {i} is {7 * i}." for i in range(1, 41)),
    "poem": "\n\n".join(
        f"When the {n} bell rings over the town,\nwe sing, we sing,\nand the rain comes down."
        for n in NUMBERS[:6]
    ),
    "code": "```python\n"
    + "".join(f"    if x == {i}:\n        return None\n    }}\n" for i in range(12))
    + "```\nThat is the whole function, with one branch for each of the twelve values.",
    "log": "The log says:\n\n"
    + "\n".join(f"2026-01-0{i} 12:0{i}:00 INFO connection accepted from host {i}" for i in range(9))
    + "\n\nNothing in it is an error.",
    "same lines": OPENING + "The output is:\n" + "test passed\n" * 8 + "All eight tests passed.",
    "rule": OPENING + "\n" + "-" * 120 + "\n" + OPENING,
    "json": json.dumps([{"id": i, "name": n, "ok": True} for i, n in enumerate(NUMBERS)], indent=1),
    "zeros in a matrix": "The matrix is\n" + "0 0 0 0 0 0 0 0\n" * 8 + "and so it has rank zero.",
    "laughter": "Ha" * 20 + "! That is a good one.",
}


def frame(
    texts: list[str], *, finish: str, asked: str = "Where does she live?", field: str = "content"
) -> pl.DataFrame:
    other = "reasoning" if field == "content" else "content"
    return pl.DataFrame(
        {
            field: texts,
            other: [None] * len(texts),
            "finish_reason": [finish] * len(texts),
            "user_text": [asked] * len(texts),
            "system_text": [None] * len(texts),
            "tools_json": [None] * len(texts),
        },
        schema_overrides=dict.fromkeys(
            ("reasoning", "content", "finish_reason", "user_text", "system_text", "tools_json"),
            pl.String,
        ),
    )


@pytest.mark.parametrize("name", LOOPS)
@pytest.mark.parametrize("field", ["reasoning", "content"])
def test_a_loop_to_the_limit_is_found(name: str, field: str) -> None:
    found = loops(frame([LOOPS[name]], finish="length", field=field), T)
    assert found["loop_field"].to_list() == [field]
    assert found["loop_to_end"].to_list() == [True]


@pytest.mark.parametrize("name", LEGAL)
@pytest.mark.parametrize("finish", ["stop", "tool_calls"])
def test_legal_repetition_stays(name: str, finish: str) -> None:
    assert loops(frame([LEGAL[name]], finish=finish), T)["loop_field"].to_list() == [None]


@pytest.mark.parametrize(
    "name", ["prose", "table", "list", "code", "log", "rule", "json", "poem", "same lines"]
)
def test_legal_repetition_stays_where_it_was_cut(name: str) -> None:
    assert loops(frame([LEGAL[name]], finish="length"), T)["loop_field"].to_list() == [None]


def test_the_evidence_is_counted() -> None:
    text = "It is cold. " + "She lives there. " * 30
    found = loops(frame([text], finish="length"), T).row(0, named=True)
    assert found["loop_repeats"] == 30
    assert found["loop_bytes"] == len(text.rstrip()) - len("It is cold")  # its stop is alike
    assert found["loop_unit"] == "She lives there."
    assert 0.97 < found["loop_share"] <= 1


def test_a_loop_that_the_model_left_again_needs_more_of_the_text() -> None:
    few = (
        OPENING * 1 + "I will check this again. " * 6 + "So the answer is Oslo, " + OPENING.lower()
    )
    many = OPENING + "I will check this again. " * 60 + "So the answer is Oslo."
    found = loops(frame([few, many], finish="stop"), T)
    assert found["loop_field"].to_list() == [None, "content"]
    assert found["loop_to_end"].to_list() == [None, False]


def test_what_the_prompt_spells_out_was_asked_for() -> None:
    text = "I will not talk in class.\n" * 50
    plain = loops(frame([text], finish="stop"), T)
    asked = loops(
        frame([text], finish="stop", asked="Write 'I will not talk in class.' 50 times."), T
    )
    assert plain["loop_field"].to_list() == ["content"]
    assert asked["loop_field"].to_list() == [None]


def test_a_loop_in_the_thought_before_a_sound_answer() -> None:
    rows = frame(["The answer is Oslo."], finish="stop").with_columns(
        reasoning=pl.lit(OPENING + "Wait, let me check that again. " * 60)
    )
    found = loops(rows, T).row(0, named=True)
    assert (found["loop_field"], found["loop_repeats"]) == ("reasoning", 60)


def test_real_captures() -> None:
    """Read by eye: each of them is text that nobody would keep."""
    expected = {
        "vllm": ["q00037", "q00074", "q00101", "q00114", "q00176", "q00226", "q00246", "q00270"],
        "llamacpp": ["q00744", "q00831", "q00833", "q00863", "q00888"],
    }
    for engine, ids in expected.items():
        lines = (CAPTURES / f"{engine}_smollm2-think.jsonl").read_text("utf-8").splitlines()
        bodies = [json.loads(line) for line in lines]
        choices = [body["response"]["choices"][0] for body in bodies]
        rows = pl.DataFrame(
            {
                "id": [body["id"] for body in bodies],
                "content": [c["message"]["content"] for c in choices],
                "reasoning": [
                    c["message"].get("reasoning") or c["message"].get("reasoning_content")
                    for c in choices
                ],
                "finish_reason": [c["finish_reason"] for c in choices],
                "user_text": [body["request"]["messages"][-1]["content"] for body in bodies],
            }
        )
        found = rows.hstack(loops(rows, T))
        stored = [one for one in ids if one in rows["id"]]
        assert stored
        assert found.filter(pl.col("loop_field").is_not_null())["id"].to_list() == stored


@given(st.binary(max_size=40), st.binary(min_size=1, max_size=9), st.integers(1, 9), st.data())
def test_runs_are_counted_byte_by_byte(
    before: bytes, unit: bytes, times: int, data: st.DataObject
) -> None:
    body = before + unit * times
    period = data.draw(st.integers(1, max(1, len(body) - 1)))
    run = period
    while run < len(body) and body[-run - 1] == body[-run - 1 + period]:
        run += 1
    assert _run_before_end(body, period) == run


def test_of_equally_common_sentences_the_first_is_told() -> None:
    """By a set it would be another one in each process."""
    text = b"Intro. " + b"First one here. Second one here. " * 40
    loop = _few_sentences(text[:-1], Thresholds())
    assert loop is not None and loop.unit == b"First one here."


def test_a_run_in_the_middle_is_measured_both_ways() -> None:
    words = b"one two three four five six seven eight nine ten "
    body = b"Once. " * 9 + words * 40 + b"Done, and now something else: " + bytes(range(65, 91))
    loop = _middle_run(body)
    assert loop is not None
    assert (loop.size, loop.repeats, len(loop.unit), loop.to_end) == (40 * 49 + 1, 40, 49, False)
    assert loop.unit == b" " + words[:-1]


@given(st.lists(st.one_of(st.none(), st.text(max_size=300)), max_size=6), st.booleans())
def test_any_text_gives_one_row_of_signals(texts: list[str | None], cut: bool) -> None:
    rows = frame(texts, finish="length" if cut else "stop")  # type: ignore[arg-type]
    out = text_signals(rows, T)
    assert out.height == rows.height
    assert out.schema == rows.schema | LOOP_COLUMNS | LANGUAGE_COLUMNS | ANSWER_COLUMNS


@given(
    st.text(st.characters(codec="utf-8", categories=["L"]), min_size=12, max_size=40),
    st.integers(min_value=12, max_value=40),
)
def test_twelve_times_the_same_words_is_always_a_loop(unit: str, times: int) -> None:
    text = OPENING + f"{unit} and {unit}. " * times
    assert loop_of(text.encode(), T, cut=True) is not None


@pytest.mark.parametrize(
    ("asked", "thought", "answer", "scripts"),
    [
        ("Where does she live?", "She lives at sea.", "At sea.", (None, None, None)),
        ("她住在哪里？请回答。", "她住在海边的小房子里。", "在海边。", ("han", "han", "han")),
        ("Where does she live?", "她住在海边的小房子里。", "At sea.", ("latin", "han", "latin")),
        ("どこに住んでいますか", "海の近くに住んでいます。", "Где?", ("kana", "kana", "cyrillic")),
        ("어디에 살아요?", "שלום לכולם", "สวัสดีครับ", ("hangul", "hebrew", "thai")),
        ("Που μένει;", "नमस्ते दुनिया", "مرحبا", ("greek", "devanagari", "arabic")),
        ("Où est-elle, l'été ?", "Elle est à côté.", "À côté.", ("latin", "latin", "latin")),
    ],
)  # fmt: skip
def test_scripts(
    asked: str, thought: str, answer: str, scripts: tuple[str | None, str | None, str | None]
) -> None:
    rows = frame([answer], finish="stop", asked=asked).with_columns(reasoning=pl.lit(thought))
    out = text_signals(rows, T).row(0, named=True)
    found = (out["prompt_script"], out["reasoning_script"], out["content_script"])
    assert found == scripts


@pytest.mark.parametrize(
    ("asked", "variable"),
    [
        ("Answer this: {{question}}", "{{question}}"),
        ("Answer this: {{ user.question }} now", "{{ user.question }}"),
        ("Summarise {input} in one line", "{input}"),
        ("Summarise the text of %s.", "%s"),
        ("<INSERT QUESTION HERE>", "<INSERT QUESTION HERE>"),
        ("[insert topic]", "[insert topic]"),
        ("What does ```jinja\n{{ name }}\n``` print?", None),
        ("What does `{{ name }}` print?", None),
        ("Why does f'{value}' raise?", None),
        ("A set is written {1, 2, 3}. What is {x | x > 1}?", None),
        ("Growth is 5%, say 5 %so to speak", None),
    ],
)
def test_unfilled_variables(asked: str, variable: str | None) -> None:
    out = text_signals(frame(["Fine."], finish="stop", asked=asked), T)
    assert out["prompt_variable"].to_list() == [variable]


def test_first_sentence_refusals_and_placeholders() -> None:
    texts = [
        "I'm sorry, but I can't help with that.",
        "I’m sorry, but I can’t help with that.",
        "Sure. I can't help with everything, though.",
        "N/A",
        "Not applicable here, since n/a is a word.",
        "<nooutput>",
    ]
    out = text_signals(frame(texts, finish="stop"), T)
    assert out["refusal"].is_not_null().to_list() == [True, True, False, False, False, False]
    assert out["placeholder_answer"].fill_null(False).to_list() == [False] * 3 + [True, False, True]
    offered = text_signals(frame(["N/A"], finish="stop", asked="Say N/A if there is none."), T)
    assert offered["placeholder_answer"].to_list() == [False]


def test_one_character_and_open_ends() -> None:
    texts = ["!" * 40, "A", "- - -", "and then he said, that the", "```py\nx = 1", "```\nx\n```"]
    out = text_signals(frame(texts, finish="stop"), T)
    assert out["one_char"].to_list() == ["!", "A", None, None, None, None]
    assert out["one_char_length"].to_list() == [40, 1, None, None, None, None]
    assert out["half_end"].to_list() == [None, None, None, "the", None, None]
    assert out["open_fence"].to_list() == [None, None, None, None, True, False]
