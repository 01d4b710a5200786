"""`convert --repair` where the prompt opens the thought: the marker stands in the sequence once,
and the count says whether it was sampled.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from converting import TOKENIZER

from eagle3_data import convert, open_shards

PROMPT = [1, 4093, 198, 97, 2, 198, 1, 520, 9531, 198, 49152, 198]
"""<|im_start|>user, "q", the end of the turn, <|im_start|>assistant, <think>, a line end."""
SAMPLED = [57, 1510, 588, 30, 198, 49153, 198, 198, 4590, 314, 540, 30, 2]
"""I think so., </think>, Here is more., the end of the turn."""


def line(count: int | None, opening: str = "<think>") -> dict[str, Any]:
    text = f"{opening}I think so.\n</think>\n\nHere is more."
    message = {"role": "assistant", "content": text}
    choice = {"index": 0, "message": message, "finish_reason": "stop", "stop_reason": None}
    usage = {"prompt_tokens": 12, "completion_tokens": count, "total_tokens": 12 + (count or 0)}
    return {
        "request": {"model": "smollm2-think", "messages": [{"role": "user", "content": "q"}]},
        "response": {
            "object": "chat.completion",
            "model": "smollm2-think",
            "choices": [choice],
            "system_fingerprint": "vllm-0.32.0-f693fabf",
        }
        | ({} if count is None else {"usage": usage}),
    }


def repaired(tmp_path: Path, *asked: Any) -> tuple[list[tuple[Any, ...]], Any]:
    path = tmp_path / "raw.jsonl"
    path.write_text(json.dumps(line(*asked)) + "\n")
    options: dict[str, Any] = {"profile": "smollm2-think", "tokenizer": TOKENIZER, "repair": True}
    _, manifest = convert([path], tmp_path / "s", **options)
    if manifest is None:
        return [], None
    columns = ("grade", "reasoning", "content", "repair", "input_ids", "supervised_tokens")
    rows = open_shards(tmp_path / "s").lazy().select(columns).collect().rows()
    return rows, manifest.ledger


@pytest.mark.parametrize("opening", ["<think>", "<think>\n"])
@pytest.mark.parametrize(("count", "grade"), [(None, "D"), (13, "B")])
def test_a_marker_that_the_prompt_holds_is_taken_off_and_not_supervised(
    tmp_path: Path, count: int | None, grade: str, opening: str
) -> None:
    """Alone, or as the prompt writes it: with the line end."""
    rows, ledger = repaired(tmp_path, count, opening)
    thought, answer = "I think so.\n", "\n\nHere is more."
    assert rows == [(grade, thought, answer, "split-think-block", PROMPT + SAMPLED, 13)]
    assert (ledger["kept"], ledger["repaired_lines"]) == (1, 1)


def test_a_marker_that_the_count_says_was_sampled_is_refused(tmp_path: Path) -> None:
    rows, ledger = repaired(tmp_path, 14)
    assert rows == []
    assert ledger["quarantined"] == 1
    assert ledger["reasons"] == {"TOK001": 1}
