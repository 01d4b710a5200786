"""Markers in an answer, told by its captured ids: the same text is talk, or a control token."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson
import pytest

from eagle3_data import check
from eagle3_data.tokens.tokenizer import open_tokenizer

FOLDER = Path(__file__).parents[2] / "fixtures" / "tokenizers" / "smollm2-think"
SMOL = open_tokenizer(FOLDER)
START, END, CLOSE = 1, 2, 49153
WORD = "</think>"


def ids(*pieces: str | int) -> list[int]:
    """Texts by themselves, control ids as they are."""
    out: list[int] = []
    for piece in pieces:
        out += [piece] if isinstance(piece, int) else SMOL.encode([piece])[0].tolist()
    return out


def fired(
    folder: Path, content: str, sampled: list[int] | None, *, asked: str = "Which tags?"
) -> set[str]:
    """Codes on one answer, `R` its thought."""
    message = {"role": "assistant", "reasoning": "R", "content": content}
    choice: dict[str, Any] = {"index": 0, "message": message, "finish_reason": "stop"}
    usage = {"prompt_tokens": None, "completion_tokens": None}
    if sampled is not None:
        choice["token_ids"] = sampled
        usage["completion_tokens"] = len(sampled)
    row = {
        "request": {"model": "smollm2-think", "messages": [{"role": "user", "content": asked}]},
        "response": {
            "object": "chat.completion", "model": "smollm2-think", "usage": usage,
            "system_fingerprint": "vllm-0.32.0-x", "choices": [choice],
        },
    }  # fmt: skip
    path = folder / "raw_responses.jsonl"
    path.write_bytes(orjson.dumps(row) + b"\n")
    found = check([path], profile="smollm2-think", tokenizer=FOLDER, workers=1).findings
    assert set(found["severity"]) <= {"error", "warn"}
    return set(found["code"]) - {"TOK013", "CHT010"}


@pytest.mark.parametrize(
    ("content", "without_ids"),
    [
        ("The `<think>` tags hold it, `</think>` ends it.", set()),
        ("It writes <think> first, then </think>.", {"WRP005"}),
        ("</think> ends it, </think></think> is wrong.", {"WRP001", "WRP003"}),
        ("<think> a <think> b </think>", {"WRP002", "CAP004", "WRP014"}),
        ("A turn is <|im_start|>user, then the text.", {"WRP011"}),
        ("A turn ends in <|im_end|>", {"WRP010"}),
    ],
)
def test_ids_prove_that_a_marker_is_talked_about(
    tmp_path: Path, content: str, without_ids: set[str]
) -> None:
    assert fired(tmp_path, content, None) == without_ids
    told = fired(tmp_path, content, ids("R", CLOSE, content, END))
    assert told == without_ids & {"CAP004", "WRP014"}


def test_ids_prove_that_a_marker_was_sampled(tmp_path: Path) -> None:
    again = ids("R", CLOSE, "\nA.\n", CLOSE, "\nB.", END)
    assert fired(tmp_path, f"\nA.\n{WORD}\nB.", again) >= {"WRP003", "WRP007"}
    went_on = ids("R", CLOSE, "\nA.", START, "user\nB.", END)
    assert "WRP011" in fired(tmp_path, "\nA.<|im_start|>user\nB.", went_on)


@pytest.mark.parametrize("asked", ["Which tags?", f"What does {WORD} do?"])
def test_a_closing_marker_that_was_never_sampled_as_one_id(tmp_path: Path, asked: str) -> None:
    """The split of thought and answer stands on ordinary tokens, whatever the user asked."""
    assert fired(tmp_path, "\nA.", ids("R", f"{WORD}\nA.", END), asked=asked) == {"WRP006"}
    assert "WRP008" in fired(tmp_path, "\nA.", ids("R", "\nA.", END), asked=asked)


@pytest.mark.parametrize(
    "after",
    [
        ("\n", START, "user\nAnd now?", END, "\n", START, "assistant\nA.", END),
        (END,),
        ("\nmore",),
    ],
)
def test_ids_that_go_on_after_the_end_of_the_turn(
    tmp_path: Path, after: tuple[str | int, ...]
) -> None:
    text = "".join(piece for piece in after if isinstance(piece, str))
    went_on = ids("R", CLOSE, "\nA.", END, *after)
    assert "WRP015" in fired(tmp_path, f"\nA.{text}", went_on)
    in_the_thought = ids("R", END, "more", CLOSE, "\nA.", END)
    assert "WRP015" in fired(tmp_path, "\nA.", in_the_thought)


def test_an_end_of_turn_that_is_only_spelled_ends_nothing(tmp_path: Path) -> None:
    spelled = ids("R", CLOSE, "\nA turn ends in <|im_end|>, then.", END)
    assert "WRP015" not in fired(tmp_path, "\nA turn ends in <|im_end|>, then.", spelled)
    assert fired(tmp_path, "\nA.", ids("R", CLOSE, "\nA.", END)) == set()
    assert "WRP015" not in fired(tmp_path, "\nA.", None)
