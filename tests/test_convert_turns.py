"""Dialogues in `convert`: every turn a sample of its own, every conversation in one split."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import polars as pl
import pytest
from converting import TOKENIZER, TOLD, converted, write
from hypothesis import given
from hypothesis import strategies as st

from eagle3_data import verify
from eagle3_data.shards.schema import ShardError
from eagle3_data.shards.splits import Splits


def dialogue(number: int, turns: int, system: str | None = "Be brief.") -> dict[str, Any]:
    messages = [] if system is None else [{"role": "system", "content": system}]
    for turn in range(turns):
        messages.append({"role": "user", "content": f"Question {turn} of talk {number}?"})
        thought = f"Thinking about {number} and {turn}."
        answer = {"role": "assistant", "content": f"The answer to {turn} is {number + turn}."}
        messages.append(answer | {"reasoning_content": thought})
    return {"id": f"d{number}", "model": "smollm2-think", "messages": messages}


def test_every_turn_is_a_sample_with_its_own_prompt(tmp_path: Path) -> None:
    path = write(tmp_path / "talks.jsonl", [dialogue(n, 3) for n in range(4)])
    last, _ = converted(path, tmp_path / "last", warn=TOLD)
    assert last["turn"].to_list() == [6] * 4
    every, manifest = converted(path, tmp_path / "all", warn=TOLD, turns="all")
    assert every["turn"].to_list() == [2, 4, 6] * 4
    assert every["sample_id"].n_unique() == 12
    assert manifest.ledger["lines"] == manifest.ledger["kept"] == 4
    for got in every.iter_rows(named=True):
        talk, turn = int(got["record_id"][1:]), got["turn"] // 2 - 1
        (prompt,) = TOKENIZER.decode([got["input_ids"][: got["prompt_len"]]])
        (answer,) = TOKENIZER.decode([got["input_ids"][got["prompt_len"] :]])
        asked = f"Question {turn} of talk {talk}?<|im_end|>\n<|im_start|>assistant\n<think>\n"
        assert prompt.endswith(asked)
        # the template of this model keeps the thoughts of the turns before
        assert [f"Thinking about {talk} and {t}." in prompt for t in range(3)] == [
            t < turn for t in range(3)
        ]
        assert answer.startswith(f"Thinking about {talk} and {turn}.")
        assert answer.endswith(f"The answer to {turn} is {talk + turn}.<|im_end|>")
    assert every.filter(turn=6)["input_ids"].to_list() == last["input_ids"].to_list()


def test_a_split_is_by_conversation_and_stays(tmp_path: Path) -> None:
    """Turns, retries and longer captures of a talk stay together; more data moves nothing."""
    first = [dialogue(n, 1 + n % 3) for n in range(60)]
    more = [dialogue(n, 1) for n in range(60, 120)]
    longer = [dialogue(n, 4) | {"id": f"again{n}"} for n in range(0, 60, 5)]
    shares = "train=0.7,val=0.3"
    options: dict[str, Any] = {"warn": TOLD, "split": shares, "turns": "all"}
    a, _ = converted(write(tmp_path / "a.jsonl", first), tmp_path / "a", **options)
    path = write(tmp_path / "b.jsonl", [*more, *longer, *reversed(first)])
    b, _ = converted(path, tmp_path / "b", **options)
    for frame in (a, b):
        per_talk = frame.group_by("conversation_id").agg(pl.col("split").n_unique())
        assert per_talk["split"].to_list() == [1] * per_talk.height
    known = dict(a.select("conversation_id", "split").iter_rows())
    now = dict(b.select("conversation_id", "split").iter_rows())
    assert len(known) == 60 and len(now) == 120
    assert {key: now[key] for key in known} == known
    assert verify(tmp_path / "b").sound
    val = sum(split == "val" for split in now.values())
    assert 20 <= val <= 55  # 36 expected, 5 is one standard deviation


@given(
    shares=st.lists(st.integers(1, 1000), min_size=1, max_size=5),
    place=st.floats(0, 1, exclude_max=True),
)
def test_a_conversation_falls_where_its_share_is(shares: list[int], place: float) -> None:
    total = sum(shares)
    splits = Splits(tuple(f"s{i}" for i in range(len(shares))), tuple(s / total for s in shares))
    name = splits.of(f"{int(place * 2**64):016x}" + "0" * 16)
    below = sum(s / total for s in shares[: splits.names.index(name)])
    assert below - 1e-9 <= place <= below + splits.shares[splits.names.index(name)] + 1e-9


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("train", "has no share"),
        ("train=0.5", "sum to 0.5"),
        ("train=0.5,train=0.5", "named twice"),
        ("train=x", "has no share"),
        ("train=0.5,val=-0.5", "has no share"),
        ("train=nan", "has no share"),
        ("train=98,val=2", "'train=98': shares are parts of one, for example train=0.98,val=0.02"),
        ("train=1,val=inf", "'val=inf': shares are parts of one, for example"),
        ("../up=1", "is no name"),
    ],
)
def test_shares_that_make_no_sense_are_refused(text: str, wrong: str) -> None:
    with pytest.raises(ShardError, match=wrong):
        Splits.parse(text)
