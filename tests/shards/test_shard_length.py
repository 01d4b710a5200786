"""Cutting tails: ids, mask and spans end together, and what was lost is said."""

from __future__ import annotations

import pyarrow as pa
from making import CAPTURE, write
from roads import facts, frames

from eagle3_data.shards.length import cut_tails
from eagle3_data.shards.rows import shard_rows
from eagle3_data.shards.verify import verify

FRAME = next(frames(CAPTURE))


def test_long_samples_are_cut_and_say_so() -> None:
    cut = cut_tails(FRAME, 100)
    for before, after in zip(FRAME.rows(named=True), cut.rows(named=True), strict=True):
        long = before["seq_len"] > 100 > before["prompt_len"]
        assert after["truncated"] == long
        if not long:
            assert {name: after[name] for name in before} == before
            assert after["tokens_lost"] == 0
            continue
        assert after["input_ids"] == before["input_ids"][:100]
        assert after["loss_mask"] == before["loss_mask"][:100]
        assert after["seq_len"] == 100
        assert after["spans"][-1]["end"] == 100
        assert after["supervised_tokens"] == sum(after["loss_mask"])
        assert after["tokens_lost"] == before["seq_len"] - 100
    assert 0 < cut["truncated"].sum() < FRAME.height


def test_short_samples_are_left_as_they_are() -> None:
    cut = cut_tails(FRAME, 10_000)
    assert cut.drop("truncated", "tokens_lost").equals(FRAME)
    assert not cut["truncated"].any()


def test_a_prompt_that_fills_the_length_is_not_cut() -> None:
    cut = cut_tails(FRAME, 20)
    assert cut["truncated"].to_list() == [n < 20 for n in FRAME["prompt_len"]]


def test_cut_samples_pass_verification_with_their_text(tmp_path) -> None:
    from roads import REFERENCE

    cut = cut_tails(FRAME, 150)
    rows: pa.Table = shard_rows(cut, files=["capture.jsonl"], profile="smollm2-think")
    write(tmp_path, rows, facts=facts())
    assert cut["truncated"].sum() > 20
    assert verify(tmp_path, deep=True, tokenizer=REFERENCE).codes == []
