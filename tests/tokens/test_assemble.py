"""Assembly over the real captures: grades against captured ids, masks, spans."""

from __future__ import annotations

import itertools

import polars as pl
import pytest
from assembling import (
    ASSEMBLER,
    CAPTURED,
    CLOSE,
    EXACT,
    PROFILE,
    REBUILT,
    SMOL,
    TEXT_ONLY,
    capture,
)

from eagle3_data.profiles.load import load
from eagle3_data.tokens.assemble import Assembler
from eagle3_data.tokens.samples import SAMPLE_COLUMNS


def test_the_columns_are_the_contract() -> None:
    assert dict(EXACT.schema) == SAMPLE_COLUMNS
    assert EXACT.height == CAPTURED.height == 120


def test_captured_ids_are_exact() -> None:
    assert EXACT["grade"].unique().to_list() == ["A"]
    assert EXACT["grade_reason"].unique().to_list() == ["captured"]
    assert EXACT["prompt_ids_match"].all() and EXACT["text_matches_ids"].all()
    assert (EXACT["prompt_source"] == "captured").all()
    given = CAPTURED.select(pl.concat_list("prompt_ids", "completion_ids")).to_series()
    assert EXACT["input_ids"].to_list() == given.to_list()
    assert EXACT["prompt_ends_open"].all() and not EXACT["starts_open"].any()
    assert (EXACT["ends_eot"] == (CAPTURED["finish_reason"] == "stop")).all()


def test_no_grade_is_better_than_its_proof() -> None:
    """The figures of the whole capture, on its first 120 rows: 110 survive decode → encode."""
    equal = REBUILT["input_ids"] == EXACT["input_ids"]
    same_length = REBUILT["seq_len"] == EXACT["seq_len"]
    good = REBUILT["grade"].is_in(["A", "B", "C"])
    assert same_length.filter(good).all()
    # `R <end>` and `R </think>` are one length: thoughts that stopped without an answer.
    nothing_said = CAPTURED["content"].fill_null("") == ""
    ambiguous = (EXACT["n_close_ids"] == 0) & nothing_said & (CAPTURED["finish_reason"] == "stop")
    assert ambiguous.sum() == 46
    assert (REBUILT["grade"].filter(ambiguous & EXACT["roundtrip"]) == "E").all()
    # The limit of a count: two thoughts were sampled one token longer than they encode, so that a
    # closing marker which was never sampled fills the gap.
    assert REBUILT["grade"].filter(ambiguous & ~EXACT["roundtrip"]).to_list().count("B") == 2
    ambiguous = REBUILT["grade_reason"] == "ambiguous"
    assert equal.sum() == EXACT["roundtrip"].sum()
    survive = EXACT["roundtrip"].to_list().count(True)
    proven = (equal & good).to_list().count(True)
    assert proven >= survive - ambiguous.to_list().count(True)
    assert (REBUILT["grade"] == "A").sum() == 0
    assert (REBUILT["prompt_source"] == "template").all()


UNNAMED = {"server": pl.lit(None, pl.String), "server_version": pl.lit(None, pl.String)}
ENDLESS = {"finish_reason": pl.lit(None, pl.String)}
STOP_LESS = {
    "completion_tokens": pl.col("completion_tokens")
    - (pl.col("finish_reason") == "stop").cast(pl.Int64)
}


@pytest.mark.parametrize("changes", [{}, STOP_LESS, ENDLESS, STOP_LESS | ENDLESS])
@pytest.mark.parametrize("profile", ["smollm2-think", "generic"])
def test_a_server_without_a_name_proves_no_reading_of_its_count(
    profile: str, changes: dict[str, pl.Expr]
) -> None:
    made = Assembler(load(profile), SMOL).assemble(TEXT_ONLY.with_columns(**UNNAMED, **changes))
    good = made["grade"].is_in(["B", "C"])
    assert (made["seq_len"] == EXACT["seq_len"]).filter(good).all()
    cut = CAPTURED["finish_reason"] == "length"
    if "finish_reason" in changes:
        assert good.sum() == 0 or profile == "generic"
    else:  # only a turn that was cut holds no stop token: there both readings are one
        assert good.any() and cut.filter(good).all()


def test_mask_and_spans_tile_the_sequence() -> None:
    for sample in (*EXACT.iter_rows(named=True), *REBUILT.iter_rows(named=True)):
        spans, mask = sample["spans"], sample["loss_mask"]
        assert [s["start"] for s in spans] == [0, *(s["end"] for s in spans[:-1])]
        assert spans[-1]["end"] == sample["seq_len"] == len(sample["input_ids"]) == len(mask)
        assert mask == [0] * sample["prompt_len"] + [1] * sample["supervised_tokens"]
        assert spans[0] == {"kind": "prompt", "start": 0, "end": sample["prompt_len"]}
        for kind in ("reasoning", "content"):
            total = sum(s["end"] - s["start"] for s in spans if s["kind"] == kind)
            assert total == sample[f"{kind}_span_tokens"]
        markers = {49152, 49153, 49154, 49155, 0, 1, 2}
        for s in spans[1:]:
            held = sample["input_ids"][s["start"] : s["end"]]
            assert all((token in markers) == (s["kind"] == "marker") for token in held)


def test_figures_of_the_sequence() -> None:
    for sample in EXACT.iter_rows(named=True):
        said = sample["input_ids"][sample["prompt_len"] :]
        assert sample["n_close_ids"] == said.count(CLOSE)
        assert sample["id_changes"] == sum(a != b for a, b in itertools.pairwise(said))
        assert sample["max_id"] == max(sample["input_ids"])


def test_llama_cpp_counts_the_stop_token_and_strips_the_answers_left_edge() -> None:
    frame = capture("llamacpp_smollm2-think.jsonl")
    made = ASSEMBLER.assemble(frame).with_columns(frame["content", "finish_reason"])
    whole = made.filter(pl.col("content") != "")
    thoughts = made.filter(pl.col("content") == "", pl.col("finish_reason") == "stop")
    # A thought that stopped without an answer: two streams fit its count.
    assert (thoughts["count_delta"] == 0).all()
    assert (thoughts["grade_reason"] == "ambiguous").all()
    # Nearly every answer lacks the one newline that vLLM shows after the closing marker.
    repaired = whole.filter(pl.col("grade") == "C")
    assert repaired.height >= whole.height * 0.8
    assert (repaired["count_delta"] == 0).all()


def test_a_stripping_server_simulated_on_captured_ids() -> None:
    """The oracle for grade C: the vLLM rows with their left edges cut, as llama.cpp returns
    them.
    """
    rows = TEXT_ONLY.with_columns(
        content=pl.col("content").str.strip_chars_start(),
        server=pl.lit("llama.cpp"),
        server_version=pl.lit("b1"),
    )
    made = ASSEMBLER.assemble(rows)
    repaired = made["grade"] == "C"
    equal = made["input_ids"] == EXACT["input_ids"]
    assert repaired.sum() >= 30
    assert equal.filter(repaired).to_list().count(True) >= 0.9 * repaired.to_list().count(True)
    assert (made["seq_len"] == EXACT["seq_len"]).filter(repaired).all()


def test_want_ids_false_leaves_only_the_lists_out() -> None:
    light = Assembler(PROFILE, SMOL, want_ids=False).assemble(CAPTURED)
    lists = ["input_ids", "loss_mask", "spans"]
    assert light.drop(lists).equals(EXACT.drop(lists))
    assert all(light[name].null_count() == light.height for name in lists)
    assert dict(light.schema) == SAMPLE_COLUMNS
