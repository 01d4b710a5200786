"""The faults that pipeline/ plants, its prompts, and what it calls a miss."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer

from pipeline.faults import FAULTS, planted, without_markers
from pipeline.prompts import prompts
from pipeline.room import Room
from pipeline.run import missed

TOKENIZER = Path(__file__).parents[2] / "fixtures/tokenizers/smollm2-think/tokenizer.json"
CONFIG: dict[str, Any] = {
    "eagle_aux_hidden_state_layer_ids": [2, 15, 27],
    "eagle_config": {"eagle_aux_hidden_state_layer_ids": [2, 15, 27]},
    "rope_theta": 100_000.0,
    "rope_parameters": {"rope_theta": 100_000.0},
    "norm_before_residual": False,
}


@pytest.fixture
def drafter(tmp_path: Path) -> Path:
    folder = tmp_path / "drafter"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(CONFIG))
    tensors = {"d2t": torch.tensor([0, 4, 4]), "t2d": torch.tensor([True, False, True])}
    save_file(tensors, folder / "model.safetensors")
    return folder


@pytest.mark.parametrize(
    ("name", "config", "d2t"),
    [
        ("ids-too-low", {"eagle_aux_hidden_state_layer_ids": [1, 14, 26]}, [0, 4, 4]),
        ("ids-too-high", {"eagle_aux_hidden_state_layer_ids": [3, 16, 28]}, [0, 4, 4]),
        ("theta", {"rope_theta": 10_000.0}, [0, 4, 4]),
        ("residual", {"norm_before_residual": True}, [0, 4, 4]),
        ("no-d2t", {}, None),
        ("absolute", {}, [0, 5, 6]),
    ],
)
def test_each_fault_changes_one_thing(drafter, tmp_path, name, config, d2t) -> None:
    made = planted(FAULTS[name], drafter, tmp_path / "planted")
    found = json.loads((made / "config.json").read_text())
    assert {key: found[key] for key in config} == config
    assert {k for k in CONFIG if found[k] != CONFIG[k]} - {"eagle_config", "rope_parameters"} == {
        *config
    }
    tensors = load_file(made / "model.safetensors")
    assert tensors["t2d"].tolist() == [True, False, True]
    assert (tensors["d2t"].tolist() if "d2t" in tensors else None) == d2t


def test_ids_without_markers() -> None:
    message = {"content": "Hi there"}
    row = {
        "request": {"messages": [{"role": "user", "content": "Hello"}]},
        "response": {
            "prompt_token_ids": [1, 2],
            "choices": [{"message": message, "token_ids": [3]}],
        },
    }
    tokenizer = Tokenizer.from_file(str(TOKENIZER))
    line, masked = without_markers(json.dumps(row), tokenizer)
    found = json.loads(line)["response"]
    asked, said = found["prompt_token_ids"], found["choices"][0]["token_ids"]
    assert tokenizer.decode(asked) == "Hello\n"
    assert tokenizer.decode(said) == "Hi there"
    assert json.loads(masked) == {
        "input_ids": [*asked, *said],
        "loss_mask": [0] * len(asked) + [1] * len(said),
    }


def test_no_prompt_is_captured_and_held_out() -> None:
    captured, held_out = prompts(900, 100)
    texts = [row["messages"][0]["content"] for row in (*captured, *held_out)]  # type: ignore[index]
    assert (len(captured), len(held_out), len(set(texts))) == (900, 100, 1000)
    assert prompts(900, 100) == (captured, held_out)
    with pytest.raises(ValueError, match="1,060 prompts are wanted, there are 1,050"):
        prompts(1000, 60)


def outcome(length: float, p: list[float]) -> dict[str, Any]:
    return {"acceptance_length": length, "p": p}


def test_what_a_run_missed_is_said(tmp_path) -> None:
    room = Room(tmp_path)
    said = {"sound": True, "verdict": "engine and checkpoint are right"}
    live, walk = outcome(2.0, [0.5, 0.3, 0.2]), outcome(2.01, [0.51, 0.3, 0.2])
    good = {"exit_code": 0, "said": {**said, "live": live, "walk": walk}}
    fault = {"exit_code": 1, "said": {"cause": "norm_before_residual flipped"}}
    linted = {"lint": {"said": {"findings": []}}}
    room.results |= {
        "acceptance": good,
        "backends": {"distance": 0.03, "allowed": 0.1},
        "fault-residual": fault | linted,
    }
    assert missed(room, ["residual"]) == []
    room.results["fault-residual"] = {"exit_code": 1, "said": {"cause": "d2t missing"}, **linted}
    room.results["backends"] = {"distance": 0.2, "allowed": 0.1}
    good["said"]["live"] = outcome(1.8, [0.5, 0.25, 0.05])
    assert missed(room, ["residual"]) == [
        "live and walk differ by 0.210, allowed are 0.03",
        "P_2 differs: live 0.250, walk 0.300",
        "P_3 differs: live 0.050, walk 0.200",
        "the engine accepts 1.800, wanted are 1.9",
        "the states of the two backends lie 0.2 apart",
        "`norm_before_residual` flipped: not named",
    ]
