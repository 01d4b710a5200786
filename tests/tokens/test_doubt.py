"""Rows whose text and count mislead: none of them may be graded better than it is proven."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from eagle3_data import check
from eagle3_data.tokens.servers import was_read
from eagle3_data.tokens.tokenizer import open_tokenizer

ROOT = Path(__file__).parent.parent.parent
FOLDER = ROOT / "fixtures" / "tokenizers" / "smollm2-think"
TOKENIZER = open_tokenizer(FOLDER)
THOUGHT = "First I add the numbers."
ANSWER = "\n\nThe sum is 12 and it agrees."


def n(text: str) -> int:
    return int(TOKENIZER.encode([text]).lengths[0])


def grade(
    tmp_path: Path,
    reasoning: str | None,
    content: str | None,
    finish: str,
    count: int,
    *,
    top: dict[str, Any],
    stop_reason: str | None = None,
    **request: Any,
) -> str:
    messages = [{"role": "user", "content": "How much is 5 and 7?"}]
    row = {
        "id": "a",
        "request": {"model": "smollm2-think", "messages": messages, **request},
        "response": {
            "model": "smollm2-think",
            "choices": [
                {
                    "message": {"role": "assistant", "reasoning": reasoning, "content": content},
                    "finish_reason": finish,
                    "stop_reason": stop_reason,
                }
            ],
            "usage": {"completion_tokens": count},
            **top,
        },
    }
    path = tmp_path / "raw.jsonl"
    path.write_text(json.dumps(row) + "\n")
    (found,) = check(path, tokenizer=FOLDER, workers=1).records["grade"].to_list()
    return str(found)


VLLM = {"system_fingerprint": "vllm-0.32.0-f693fabf"}
LLAMA = {"system_fingerprint": "b5000-abcdef1"}


def test_a_plain_row_is_consistent(tmp_path: Path) -> None:
    count = n(THOUGHT) + 1 + n(ANSWER) + 1
    assert grade(tmp_path, THOUGHT, ANSWER, "stop", count, top=VLLM) == "B"


def test_a_cut_thought_of_an_unnamed_server_is_ambiguous(tmp_path: Path) -> None:
    """`R </think>` is as long as R and a line end that the server took away."""
    assert grade(tmp_path, THOUGHT, None, "length", n(THOUGHT) + 1, top={}) == "E"
    assert grade(tmp_path, THOUGHT, None, "length", n(THOUGHT) + 1, top=VLLM) == "B"


@pytest.mark.parametrize("kept", [True, False])
def test_a_stop_string_proves_nothing_about_its_last_token(tmp_path: Path, kept: bool) -> None:
    said = ANSWER + "\nEND" if kept else ANSWER
    count = n(THOUGHT) + 1 + n(ANSWER + "\nEND")
    options = {"stop": ["\nEND"], "include_stop_str_in_output": kept}
    found = grade(tmp_path, THOUGHT, said, "stop", count, top=VLLM, stop_reason="\nEND", **options)
    assert found == "D"


def test_a_stop_string_inside_a_token(tmp_path: Path) -> None:
    said = "\n\nThe result is 12 and this n"
    count = n(THOUGHT) + 1 + n(said + "umber")
    found = grade(tmp_path, THOUGHT, said, "stop", count, top=VLLM, stop_reason="um", stop=["um"])
    assert found in ("D", "E")


@pytest.mark.parametrize("top", [LLAMA, VLLM, {}], ids=["llama.cpp", "vllm", "unnamed"])
def test_thought_and_answer_joined_are_not_repaired(tmp_path: Path, top: dict[str, str]) -> None:
    count = n(THOUGHT) + 1 + n(ANSWER.strip()) + 1
    joined = THOUGHT + ANSWER.strip()
    assert grade(tmp_path, None, joined, "stop", count, top=top) in ("D", "E")


@pytest.mark.parametrize(
    ("server", "version", "known"),
    [
        ("vllm", "0.32.0", True),
        ("vllm", "0.33.1", True),
        ("vllm", "0.34.0", False),
        ("vllm", None, False),
        ("sglang", "0.5.23", True),
        ("sglang", "0.6", False),
        ("llama.cpp", None, True),
        ("transformers", None, False),
        ("openai-compatible", "1.0", False),
        (None, None, False),
    ],
)
def test_only_parsers_that_were_read_are_known_to_leave_edges_alone(
    server: str | None, version: str | None, known: bool
) -> None:
    assert was_read(server, version) is known
