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

from eagle3_data.draft.acceptance import Judgement, Verdict
from pipeline.faults import FAULTS, planted, without_markers
from pipeline.prompts import prompts
from pipeline.room import Failed, Room
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


def outcome(verdict: Verdict, cause: str, live: list[float], walk: list[float]) -> dict[str, Any]:
    """What `acceptance --json` says; every fault stands in its table, whatever the verdict is."""
    ranked = tuple((fault.cause, 2.0, 0.1) for fault in FAULTS.values())
    numbers = {
        name: {"acceptance_length": 1 + sum(p), "p": p, "steps": 500}
        for name, p in (("live", live), ("walk", walk))
    }
    judged = Judgement(verdict, "why", cause, ranked=ranked, about=numbers)
    return {"exit_code": int(not judged.sound), "said": json.loads(json.dumps(judged.to_dict()))}


RIGHT = [0.5, 0.3, 0.2]
GOOD = outcome(Verdict.AGREE, "", RIGHT, [0.51, 0.3, 0.2])
NEAR = {"distance": 0.03, "allowed": 0.1}


def missing(
    tmp_path: Path, fault: dict[str, Any], name: str = "residual", **more: Any
) -> list[str]:
    room = Room(tmp_path)
    room.results |= {"acceptance": GOOD, "backends": NEAR, f"fault-{name}": fault, **more}
    return [text for _, text in missed(room, [name])]


@pytest.mark.parametrize("name", list(FAULTS))
def test_only_the_verdict_names_a_fault(tmp_path, name) -> None:
    fault = FAULTS[name]
    assert missing(tmp_path, outcome(fault.verdict, fault.cause, RIGHT, RIGHT), name) == []
    told = missing(tmp_path, outcome(Verdict.DIFFER, "", RIGHT, RIGHT), name)
    assert told == [f"{fault.told}: engine or checkpoint, not data, no cause"]
    agreed = missing(tmp_path, outcome(Verdict.AGREE, fault.cause, RIGHT, RIGHT), name)
    assert len(agreed) == 1
    off = missing(tmp_path, outcome(Verdict.OFF, fault.cause, RIGHT, RIGHT), name)
    assert len(off) == 1


def test_what_the_sound_drafter_missed_is_said(tmp_path) -> None:
    named = outcome(Verdict.DIFFER, FAULTS["residual"].cause, RIGHT, RIGHT)
    low = outcome(Verdict.DIFFER, "", [0.5, 0.25, 0.05], RIGHT)
    far = {"distance": 0.2, "allowed": 0.1}
    assert missing(tmp_path, named, acceptance=low, backends=far) == [
        "acceptance says of the sound drafter: engine or checkpoint, not data",
        "live and walk differ by 0.200, allowed are 0.03",
        "P_2 differs: live 0.250, walk 0.300",
        "P_3 differs: live 0.050, walk 0.200",
        "the engine accepts 1.800, wanted are 1.9",
        "the states of the two backends lie 0.2 apart",
    ]
    dead = {"exit_code": 1, "said": Judgement(Verdict.DEAD, "died").to_dict()}
    assert missing(tmp_path, named, acceptance=dead) == [
        "acceptance says of the sound drafter: dead engine"
    ]


def test_faults_of_the_data_must_be_found(tmp_path) -> None:
    named = outcome(Verdict.DIFFER, FAULTS["residual"].cause, RIGHT, RIGHT)

    def report(*codes: str) -> dict[str, Any]:
        return {"said": {"rules": [{"code": code, "severity": "error"} for code in codes]}}

    found = {"findings": [{"code": "HID004", "detail": "…"}], "written": False}
    markers = {**GOOD, "check": report("GEN001", "TOK001")}
    more = {"check": report("GEN001"), "fault-markers": markers, "fault-shifted": found}
    assert missing(tmp_path, named, **more) == []
    unseen = {"findings": [], "written": True}
    same = {**GOOD, "check": report("GEN001")}
    assert missing(tmp_path, named, **more | {"fault-markers": same, "fault-shifted": unseen}) == [
        "final states one row off: extract did not stop",
        "markers left out: check says [], then engine and checkpoint are right",
    ]


def test_a_folder_of_other_settings_is_refused(tmp_path) -> None:
    room = Room(tmp_path, {"rows": 100})
    room.step("convert", lambda: {"said": 1}, "shards")
    again = Room(tmp_path, {"rows": 100})
    assert again.step("convert", lambda: {"said": 2}, "shards")["said"] == 1
    again.forget("convert")
    assert Room(tmp_path, {"rows": 100}).results == {}
    with pytest.raises(Failed, match=r"holds a run with \{'rows': 100\}"):
        Room(tmp_path, {"rows": 900})


def test_the_seconds_of_a_stopped_attempt_count(tmp_path) -> None:
    room = Room(tmp_path)

    def stopped() -> dict[str, Any]:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        room.step("generate", stopped, "answers")
    assert Room(tmp_path).results == {}
    spent = tmp_path / "results" / "generate.seconds"
    spent.write_text("100.0")
    assert room.step("generate", dict, "answers")["seconds"] >= 100.0
    assert not spent.exists()
