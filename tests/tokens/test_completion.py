"""Building completions from text, and the inverse: splitting ids into the parts of a turn."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from benchmarks.corpus import deepseek_tokenizer
from eagle3_data.profiles.load import load
from eagle3_data.profiles.profile import Marker, Profile
from eagle3_data.tokens.candidates import (
    Answer,
    Fix,
    Stop,
    candidates,
    further,
    stopped,
    uncounted,
)
from eagle3_data.tokens.completion import Parts, Turn, build_completion, split_completion
from eagle3_data.tokens.grammar import Place, Slot, Space, grammar, read
from eagle3_data.tokens.markers import MarkerMismatch, resolve
from eagle3_data.tokens.servers import counts_stop_token, holds, stripped_places
from eagle3_data.tokens.tokenizer import open_tokenizer

ROOT = Path(__file__).parents[2]
SMOL = open_tokenizer(ROOT / "fixtures" / "tokenizers" / "smollm2-think")
DEEPSEEK = open_tokenizer(deepseek_tokenizer())
SMOL_PROFILE = load("smollm2-think")
OPENS = SMOL_PROFILE.model_copy(
    update={
        "open_in_prompt": False,
        "completion": SMOL_PROFILE.completion.model_copy(
            update={"thinking_on": "<think>\n{reasoning}\n</think>\n\n{content}{tools}<|im_end|>"}
        ),
    }
)
"""The fixture model as a family that samples its opening marker (Qwen3 hybrid's layout)."""
V31 = load("deepseek-v3.1")
THINK, CLOSE, END = 49152, 49153, 2

TURNS = {
    "smollm2": Turn(SMOL_PROFILE, SMOL),
    "opens": Turn(OPENS, SMOL),
    "deepseek": Turn(V31, DEEPSEEK),
}
# Markers are spelled on purpose. SmolLM2 has no token for some bytes (control characters, the rare
# planes): such text is lost by encoding alone, so no split can bring it back.
TEXT = st.text(
    st.characters(codec="utf-8", max_codepoint=0x2FFF, exclude_categories=["Cc", "Cs"]), max_size=40
) | st.lists(
    st.sampled_from(
        ["</think>", "<think>", "\n", " ", "word", "…", "<|im_end|>", "日本", "e\u0301"]
    )
).map("".join)


def survives(family: str, *texts: str) -> bool:
    """Whether encoding alone keeps these texts."""
    tokenizer = DEEPSEEK if family == "deepseek" else SMOL
    encoded = tokenizer.encode(texts)
    return tokenizer.decode([encoded[i].tolist() for i in range(len(texts))]) == list(texts)


@pytest.mark.parametrize("family", TURNS)
@settings(max_examples=60)
@given(reasoning=TEXT, content=st.none() | TEXT, ended=st.booleans())
def test_split_undoes_build_and_build_undoes_split(
    family: str, reasoning: str, content: str | None, ended: bool
) -> None:
    turn = TURNS[family]
    assume(survives(family, reasoning, content or ""))
    parts = Parts(reasoning, content, None, ended)
    ids = turn.build(parts, thinking=True)
    assert turn.split(ids, thinking=True) == parts
    assert turn.build(turn.split(ids, thinking=True), thinking=True).tolist() == ids.tolist()


@pytest.mark.parametrize("family", TURNS)
@settings(max_examples=30)
@given(content=TEXT, ended=st.booleans())
def test_split_undoes_build_without_thinking(family: str, content: str, ended: bool) -> None:
    turn = TURNS[family]
    assume(survives(family, content))
    parts = Parts(None, content, None, ended)
    assert turn.split(turn.build(parts, thinking=False), thinking=False) == parts


@settings(max_examples=40)
@given(reasoning=TEXT, content=TEXT, name=st.from_regex(r"[a-z_]{1,9}", fullmatch=True))
def test_tool_sections_come_back_as_text(reasoning: str, content: str, name: str) -> None:
    section = (
        f"<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>{name}<｜tool▁sep｜>{{}}"
        "<｜tool▁call▁end｜><｜tool▁calls▁end｜>"
    )
    parts = Parts(reasoning, content, section, True)
    turn = TURNS["deepseek"]
    assert turn.split(turn.build(parts, thinking=True), thinking=True) == parts


def test_written_out_ids() -> None:
    one, two = SMOL.encode(["Yes.", "\nNo"])[0].tolist(), SMOL.encode(["\nNo"])[0].tolist()
    built = build_completion(Parts("Yes.", "\nNo"), SMOL_PROFILE, SMOL, thinking_on=True)
    assert built.tolist() == [*one, CLOSE, *two, END]
    assert built.dtype == np.int32
    opened = build_completion(Parts("Yes.", "\nNo"), OPENS, SMOL, thinking_on=True)
    assert opened.tolist() == [THINK, *one, CLOSE, *two, END]
    assert split_completion(opened, OPENS, SMOL, True) == Parts("Yes.", "\nNo")


def test_a_quoted_marker_stays_text() -> None:
    ids = TURNS["smollm2"].build(Parts("a </think> b", "c"), thinking=True).tolist()
    assert ids.count(CLOSE) == 1


def test_open_and_closed_thoughts_differ() -> None:
    turn = TURNS["smollm2"]
    assert turn.build(Parts("", None), thinking=True).tolist() == [END]
    assert turn.build(Parts("", ""), thinking=True).tolist() == [CLOSE, END]
    assert turn.build(Parts("", "", None, False), thinking=True).tolist() == [CLOSE]


def test_parts_that_no_grammar_writes_are_refused() -> None:
    with pytest.raises(ValueError, match="the prompt opens the thought"):
        TURNS["smollm2"].build(Parts(None, "x"), thinking=True)
    with pytest.raises(ValueError, match="without thinking holds no reasoning"):
        TURNS["smollm2"].build(Parts("x", "y"), thinking=False)
    assert TURNS["opens"].split(
        TURNS["opens"].build(Parts(None, "x"), thinking=True), thinking=True
    ) == Parts(None, "x")


def test_a_template_is_read_once_into_parts() -> None:
    markers = resolve(OPENS, SMOL)
    assert read(OPENS.completion.thinking_on or "", markers) == (
        THINK,
        Space(Place.REASONING_LEFT, "\n"),
        Slot.REASONING,
        Space(Place.REASONING_RIGHT, "\n"),
        CLOSE,
        Space(Place.CONTENT_LEFT, "\n\n"),
        Slot.CONTENT,
        Slot.TOOLS,
    )
    # GLM writes a newline before its opening marker: no text can hold it, so it is no edge.
    assert read("\n<think>{reasoning}</think>{content}", markers)[:2] == ("\n", THINK)


def test_a_stated_id_must_be_the_tokenizers() -> None:
    wrong = SMOL_PROFILE.model_copy(update={"think_close": Marker(text="</think>", id=7)})
    with pytest.raises(MarkerMismatch, match=r"states that '</think>' is id 7, .* has it as 49153"):
        resolve(wrong, SMOL)
    missing = SMOL_PROFILE.model_copy(update={"think_close": Marker(text="</thought>", id=7)})
    with pytest.raises(MarkerMismatch, match="does not have it as one token"):
        resolve(missing, SMOL)


def test_an_unknown_end_of_turn_is_the_tokenizers_own() -> None:
    plain = SMOL_PROFILE.model_copy(update={"end_of_turn": (), "stop": ()})
    assert resolve(plain, SMOL).ends == (END,)


def answer(reasoning: str = "", content: str = "", **more: object) -> Answer:
    defaults: dict[str, object] = {
        "calls": None, "thinking": True, "stop": Stop.ENDED, "end": END, "named": True,
    }  # fmt: skip
    return Answer(reasoning, content, **{**defaults, **more})  # type: ignore[arg-type]


def streams(profile: Profile, asked: Answer) -> list[tuple[int | str, ...]]:
    return [c.stream for c in candidates(asked, grammar(profile, resolve(profile, SMOL)))]


def test_candidates_of_a_whole_answer_are_the_text_as_given() -> None:
    assert streams(SMOL_PROFILE, answer("R", "\nC")) == [("R", CLOSE, "\nC", END)]
    assert streams(SMOL_PROFILE, answer("R", "C", stop=Stop.CUT, end=None)) == [("R", CLOSE, "C")]


def test_a_thought_alone_may_be_closed_or_not() -> None:
    assert streams(SMOL_PROFILE, answer("R")) == [
        ("R", END),
        ("R", CLOSE, END),
        ("R", CLOSE),
    ]
    assert streams(SMOL_PROFILE, answer("R", stop=Stop.CUT, end=None)) == [("R",), ("R", CLOSE)]


def test_a_spelled_marker_is_text_or_an_id() -> None:
    assert streams(SMOL_PROFILE, answer("R", "a</think>b", spelled=True)) == [
        ("R", CLOSE, "a</think>b", END),
        ("R", CLOSE, "a", CLOSE, "b", END),
    ]


def test_repairs_stand_where_the_server_strips_and_nowhere_else() -> None:
    g = grammar(SMOL_PROFILE, resolve(SMOL_PROFILE, SMOL))
    strip = answer("R", "C", stripped=frozenset({Place.CONTENT_LEFT}))
    assert [(c.stream, c.fix) for c in candidates(strip, g)] == [
        (("R", CLOSE, "C", END), Fix.RAW),
        (("R", CLOSE, "\n\nC", END), Fix.REPAIR),
    ]
    assert [c.stream for c in further(strip, g)] == [("R", CLOSE, "\nC", END)]
    assert further(answer("R", "C"), g) == []
    kept = answer("R", "\nC", stripped=frozenset({Place.CONTENT_LEFT}))
    assert [c.fix for c in candidates(kept, g)] == [Fix.RAW]
    unnamed = answer("R", "C", named=False)
    assert [(c.stream, c.fix) for c in further(unnamed, g)] == [
        (("R\n", CLOSE, "\n\nC", END), Fix.TEMPLATE)
    ]


def test_without_a_count_the_text_of_an_unnamed_server_gets_its_whitespace_back() -> None:
    g = grammar(SMOL_PROFILE, resolve(SMOL_PROFILE, SMOL))
    bare, partly = answer("R", "C", named=False), answer("R", "\nC", named=False)
    assert getattr(uncounted(bare, g), "stream", None) == ("R\n", CLOSE, "\n\nC", END)
    assert getattr(uncounted(partly, g), "stream", None) == ("R", CLOSE, "\nC", END)
    assert getattr(uncounted(answer("R", "C"), g), "stream", None) == ("R", CLOSE, "C", END)


def test_tool_calls_are_written_by_their_grammar() -> None:
    markers = resolve(V31, DEEPSEEK)
    call = {"id": "x", "name": "f", "arguments": '{"a": "<｜tool▁sep｜>"}'}
    asked = answer("R", "", calls=[call], end=markers.ends[0])
    texts = {token: text for text, token in markers.ids.items()}
    made = [
        [texts.get(p, p) if isinstance(p, int) else p for p in c.stream]
        for c in candidates(asked, grammar(V31, markers))
    ]
    section = [
        "<｜tool▁calls▁begin｜>", "<｜tool▁call▁begin｜>", "f", "<｜tool▁sep｜>",
        '{"a": "<｜tool▁sep｜>"}', "<｜tool▁call▁end｜>", "<｜tool▁calls▁end｜>",
    ]  # fmt: skip
    end = "<｜end▁of▁sentence｜>"
    assert made == [["R", "</think>", *section, end], ["R", *section, end]]


@pytest.mark.parametrize(
    ("finish", "reason", "expected"),
    [
        ("stop", None, (Stop.ENDED, END, "")),
        ("tool_calls", None, (Stop.ENDED, END, "")),
        ("stop", "0", (Stop.ENDED, 0, "")),
        ("stop", "<|endoftext|>", (Stop.ENDED, 0, "")),
        ("stop", "Observation:", (Stop.CUT, None, "Observation:")),
        ("length", None, (Stop.CUT, None, "")),
        ("max_output_tokens", None, (Stop.CUT, None, "")),
        ("SAFETY", None, (Stop.CUT, None, "")),
        ("end_turn", None, (Stop.ENDED, END, "")),
        ("tool_use", None, (Stop.ENDED, END, "")),
        ("stop_sequence", None, (Stop.CUT, None, "")),
        ("stop_sequence", "Observation:", (Stop.CUT, None, "Observation:")),
        ("abort", None, (Stop.CUT, None, "")),
        (None, None, (Stop.UNKNOWN, END, "")),
    ],
)
def test_how_a_turn_stopped(
    finish: str | None, reason: str | None, expected: tuple[Stop, int | None, str]
) -> None:
    assert stopped(finish, reason, resolve(SMOL_PROFILE, SMOL)) == expected


@pytest.mark.parametrize(
    ("specifiers", "version", "expected"),
    [
        ("", None, True),
        (">=0.25", "0.32.0-f693fabf", True),
        (">=0.25.1,<0.33", "0.33.0", False),
        (">=0.25.1,<0.33", "0.25.1", True),
        ("<=0.5.12", "0.5.12.post1", True),
        ("<=0.5.12", "0.5.5", True),
        ("==0.5", "0.5.0", True),
        (">=1", None, False),
        (">=1", "unknown", False),
        ("~=1.0", "1.0", False),
    ],
)
def test_version_clauses(specifiers: str, version: str | None, expected: bool) -> None:
    assert holds(specifiers, version) is expected


def test_what_servers_strip_and_count() -> None:
    kimi = load("kimi-k2.5")
    assert stripped_places(kimi, "vllm", "0.32.0", tools=False) == {Place.REASONING_RIGHT}
    assert stripped_places(kimi, "vllm", "0.20.0", tools=False) == frozenset()
    assert len(stripped_places(kimi, "sglang", "0.5.5", tools=False)) == 4
    assert stripped_places(V31, "sglang", "0.5.19", tools=True) == {
        Place.CONTENT_LEFT,
        Place.CONTENT_RIGHT,
    }
    assert counts_stop_token(kimi, "vllm") is True
    assert counts_stop_token(kimi, "openrouter") is None
    assert counts_stop_token(kimi, None) is None
