"""`convert` and what follows on records that are whole, and unlike the usual ones."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from converting import TOKENIZER
from typer.testing import CliRunner

from eagle3_data import convert, verify
from eagle3_data.cli.app import app

Json = dict[str, Any]
PROMPT = [1, 4093, 198, 97, 2, 198, 1, 520, 9531, 198, 49152, 198]
"""<|im_start|>user, "q", the end of the turn, <|im_start|>assistant, <think>."""


def answer(reasoning: str, content: str, ids: list[int] | None, **more: Any) -> Json:
    message = {"role": "assistant", "content": content, "reasoning": reasoning}
    choice = {"index": 0, "message": message, "finish_reason": "stop", "stop_reason": None}
    return choice | ({} if ids is None else {"token_ids": ids}) | more


def record(*choices: Json, asked: Json | None = None) -> Json:
    sampled = [choice.get("token_ids") for choice in choices]
    body: Json = {
        "object": "chat.completion",
        "model": "smollm2-think",
        "choices": list(choices),
        "system_fingerprint": "vllm-0.32.0-f693fabf",
    }
    if None not in sampled:
        count = sum(len(ids or ()) for ids in sampled)
        body["prompt_token_ids"] = PROMPT
        body["usage"] = {
            "prompt_tokens": 12,
            "completion_tokens": count,
            "total_tokens": 12 + count,
        }
    request = {"model": "smollm2-think", "messages": [{"role": "user", "content": "q"}]}
    return {"id": "r", "request": request | (asked or {}), "response": body}


def converted(tmp_path: Path, *rows: Json, **options: Any) -> pl.DataFrame:
    """The samples of a capture of these rows, in order, after a deep `verify`."""
    path = tmp_path / "raw.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    out = tmp_path / "shards"
    convert([path], out, profile="smollm2-think", tokenizer=TOKENIZER, **options)
    assert verify(out, deep=True, tokenizer=TOKENIZER).sound
    return pl.read_parquet(out / "*.parquet").sort("line", "choice", "turn")


SAMPLED = [57, 1510, 588, 30, 198, 49153, 198, 198, 16713, 31483, 48124]  # … "half ans" STOP


def test_a_stop_string_is_cut_from_the_text_and_stays_in_the_ids(tmp_path: Path) -> None:
    found = converted(
        tmp_path,
        record(
            answer("I think so.", "half ans", SAMPLED, stop_reason="STOP"), asked={"stop": ["STOP"]}
        ),
    )
    assert found["grade"].to_list() == ["A"]
    assert found["input_ids"].to_list() == [PROMPT + SAMPLED]


def test_ids_that_a_trainer_wrote_are_not_those_of_a_server(tmp_path: Path) -> None:
    ids = [1, 4093, 198, 6004, 2, 198, 1, 520, 9531, 198, 49152, 1116, 49153, 1116, 10539, 30, 2]
    row = {
        "model": "smollm2-think",
        "input_ids": ids,
        "loss_mask": [0] * 14 + [1] * 3,
        "metadata": {"enable_thinking": False, "finish_reason": "stop"},
    }
    found = converted(tmp_path, row)
    assert found.select("grade", "grade_reason").rows() == [("D", "imported")]
    assert found["input_ids"].to_list() == [ids]


def test_choices_of_one_index_are_samples_of_two_names(tmp_path: Path) -> None:
    first = [5345, 2275, 30, 198, 49153, 198, 198, 10539, 30, 2]
    second = [12556, 582, 10095, 198, 49153, 198, 198, 10539, 30, 2]
    found = converted(
        tmp_path,
        record(answer("First thought.", "Yes.", first), answer("Second one!!", "Yes.", second)),
    )
    assert found["choice"].to_list() == [0, 1]
    assert found["sample_id"].n_unique() == 2


def test_a_late_system_message_leaves_a_conversation_one(tmp_path: Path) -> None:
    said = [
        {"role": "assistant", "content": f"A{n}.", "reasoning_content": f"T{n}"} for n in (1, 2)
    ]
    asked = [{"role": "user", "content": f"Q{n}?"} for n in (1, 2)]
    late = {"role": "system", "content": "Late."}
    row = {
        "model": "smollm2-think",
        "messages": [asked[0], said[0], late, asked[1], said[1]],
    }
    found = converted(tmp_path, row, turns="all", split="train=0.5,val=0.5")
    assert found["turn"].to_list() == [1, 4]
    assert found["conversation_id"].n_unique() == found["split"].n_unique() == 1


@pytest.mark.parametrize(
    "asked",
    [
        {"add_generation_prompt": False},
        {"continue_final_message": True},
        {"chat_template": "{{ messages }}"},
        {"truncate_prompt_tokens": 4},
        {"chat_template_kwargs": {"add_generation_prompt": False}},
    ],
)
def test_a_prompt_that_the_request_changed_is_not_rebuilt_as_usual(
    tmp_path: Path, asked: Json
) -> None:
    usual, changed = (
        record(answer("I think so.", "Yes.", None), asked=more)
        for more in ({"add_generation_prompt": True}, asked)
    )
    changed["request"]["messages"] = [{"role": "user", "content": "another"}]
    changed["id"] = "s"
    found = converted(tmp_path, usual, changed)
    assert found["record_id"].to_list() == ["r"]
    assert found["prompt_source"].to_list() == ["template"]


def test_a_split_that_there_is_not_is_refused_with_those_there_are(tmp_path: Path) -> None:
    converted(tmp_path, record(answer("I think so.", "half ans", SAMPLED, stop_reason="STOP")))
    call = ["export", str(tmp_path / "shards"), "--to", "specforge", "-o", str(tmp_path / "x")]
    result = CliRunner().invoke(app, [*call, "--split", "val"])
    assert result.exit_code == 2
    assert "no sample of the split 'val': its splits are train" in result.output
    assert not (tmp_path / "x").exists()


def test_a_file_whose_name_is_not_utf8_is_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "bad\udcff.jsonl"
    path.write_text(json.dumps(record(answer("I think so.", "Yes.", None))) + "\n")
    for call in (["check", "--quarantine", str(tmp_path / "q")], ["check"]):
        result = CliRunner().invoke(app, [*call, str(path)])
        assert result.exit_code == 2
        assert "bad\\udcff.jsonl': the name is not UTF-8" in result.output


def test_a_stop_id_of_the_request_is_not_in_the_text(tmp_path: Path) -> None:
    """vLLM returns it among the ids and leaves it out of the text."""
    ids = [*SAMPLED[:-1], 2193]  # … "half ans", and the stop id
    assert TOKENIZER.decode([[2193]])[0].strip()
    one = answer("I think so.", "half ans", ids, stop_reason=2193)
    found = converted(tmp_path, record(one, asked={"stop_token_ids": [2193]}))
    assert found.select("grade", "stop_reason").rows() == [("A", "2193")]
    assert found["input_ids"].to_list() == [PROMPT + ids]
