"""`acceptance` against an engine that is played: agreement, and each planted fault by its name."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("openai")

import torch
from speculating import DEPTH, LAYERS, Engine, World, planted, world
from typer.testing import CliRunner

from eagle3_data.cli.app import app
from eagle3_data.draft.checkpoint import IDS
from eagle3_data.draft.emulate import emulations, reference
from eagle3_data.draft.live_run import Said
from eagle3_data.draft.paired import walk_all

torch.set_num_threads(1)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> World:
    return world(tmp_path_factory.mktemp("world"))


@pytest.fixture
def prompts(tmp_path: Path, made: World) -> Path:
    path = tmp_path / "prompts.txt"
    path.write_text("".join(f"say text {i}\n" for i in range(len(made.texts))))
    return path


@pytest.fixture
def serve(made: World) -> Iterator[Any]:
    engines: list[Engine] = []

    def start(folder: Path, *kind: str, **faults: Any) -> Engine:
        engines.append(Engine(made, folder, *kind, **faults))
        return engines[-1]

    yield start
    for engine in engines:
        engine.close()


def ran(made: World, draft: Path, engine: Engine, prompts: Path, *more: str) -> Any:
    call = [
        "acceptance", str(draft), "--target", str(made.folder / "target"), "--base-url", engine.url,
        "--prompts", str(prompts), "--compute", "fp32", "--device", "cpu", "--quiet", *more,
    ]  # fmt: skip
    return CliRunner().invoke(app, call)


def told(result: Any) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(result.stdout)
    return found


def ids(by: int) -> dict[str, Any]:
    wrong = [k + 1 + by for k in LAYERS]
    return {IDS: wrong, "eagle_config": {IDS: wrong}}


def no_d2t(tensors: Any) -> Any:
    return {name: value for name, value in tensors.items() if name not in ("d2t", "t2d")}


def as_ids(tensors: Any) -> Any:
    d2t = tensors["d2t"]
    return tensors | {"d2t": d2t + torch.arange(len(d2t))}


ROPE = {"rope_theta": 10000.0, "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}}
PLANTED = [
    (ids(-1), None, "layer ids one too low"),
    (ids(1), None, "layer ids one too high"),
    ({}, no_d2t, "d2t missing"),
    (ROPE, None, "rope theta 10000 in place of 30"),
    ({"norm_before_residual": True}, None, "norm_before_residual flipped"),
    ({"norm_output": True}, None, "norm_output flipped"),
]


def test_the_sound_drafter_and_engine_agree(made: World, serve: Any, prompts: Path) -> None:
    engine = serve(made.drafter)
    found = told(ran(made, made.drafter, engine, prompts, "--json"))
    assert found["verdict"] == "engine and checkpoint are right"
    assert found["cause"] is None
    assert found["live"]["steps"] == found["walk"]["steps"] == 164
    assert found["live"]["p"] == pytest.approx(found["walk"]["p"], abs=1e-6)
    assert found["all_positions_too_high"]["p"][0] > found["walk"]["p"][0]
    assert found["engine"]["sampled_tokens"] == 480
    assert sum(found["causes_of_rejection"].values()) == pytest.approx(1, abs=1e-4)
    assert found["warnings"] == ["only 164 steps: send more prompts or more tokens"]
    first = engine.asked[0]
    assert (first["temperature"], first["max_tokens"], first["return_token_ids"]) == (0, 256, True)


@pytest.mark.parametrize(("config", "tensors", "cause"), PLANTED, ids=[p[2] for p in PLANTED])
def test_a_fault_in_what_is_served_is_named(
    config, tensors, cause, made: World, serve: Any, prompts: Path, tmp_path: Path
) -> None:
    engine = serve(planted(made, tmp_path / "served", config, tensors))
    result = ran(made, made.drafter, engine, prompts, "--json")
    found = told(result)
    assert result.exit_code == 1
    assert found["verdict"] == "engine or checkpoint, not data"
    assert found["cause"] == cause
    assert found["emulations"][0]["name"] == "as written"
    assert found["emulations"][1]["name"] == cause
    assert found["emulations"][1]["distance"] < 1e-6


@pytest.mark.parametrize(
    ("config", "tensors", "cause", "fact"),
    [
        (ids(-1), None, "layer ids one too low", "reads outputs of 0, 1, 3"),
        (ids(1), None, "layer ids one too high", "reads outputs of 2, 3, 5"),
        ({}, no_d2t, "the mapping of the checkpoint", ""),
        (ROPE, None, "rope theta 10000 in config.json, trained with 30", "30 is the target's"),
        (
            {"norm_before_residual": True},
            None,
            "norm_before_residual is true in config.json, trained with false",
            "",
        ),
    ],
)
def test_a_faulty_checkpoint_that_is_named_itself_is_found_out(
    config, tensors, cause, fact, made: World, serve: Any, prompts: Path, tmp_path: Path
) -> None:
    """The walk reads the same faulty config as the engine, and agrees with it."""
    draft = planted(made, tmp_path / "served", config, tensors)
    found = told(ran(made, draft, serve(draft), prompts, "--json"))
    assert found["verdict"] == "engine or checkpoint, not data"
    assert found["cause"] == cause
    assert any(fact in one for one in found["facts"]) or not fact


def test_d2t_without_offsets_but_with_a_t2d_is_named(
    made: World, serve: Any, prompts: Path, tmp_path: Path
) -> None:
    def only_t2d(tensors: Any) -> Any:
        return {name: value for name, value in tensors.items() if name != "d2t"}

    draft = planted(made, tmp_path / "served", {}, only_t2d)
    found = told(ran(made, draft, serve(draft), prompts, "--json"))
    assert found["cause"] == "d2t missing"
    assert any("no d2t" in fact for fact in found["facts"])


def test_the_dead_engine_and_what_lint_says(
    made: World, serve: Any, prompts: Path, tmp_path: Path
) -> None:
    draft = planted(made, tmp_path / "served", {}, as_ids)
    engine = serve(draft, dies=True)
    result = ran(made, draft, engine, prompts)
    assert result.exit_code == 1
    assert "verdict: dead engine: VOC" in result.stdout
    assert "healthy, and the first request failed: HTTP 500" in result.stdout
    assert "are target ids" in result.stdout
    assert len(engine.asked) == 1


def test_an_engine_that_dies_later_with_a_sound_checkpoint(
    made: World, serve: Any, prompts: Path
) -> None:
    result = ran(made, made.drafter, serve(made.drafter, dies_at=5), prompts, "--concurrency", "1")
    assert result.exit_code == 1
    assert "a request failed after 4 answers: HTTP 500" in result.stdout
    assert "lint finds no error" in result.stdout


def test_speculation_that_is_off(made: World, serve: Any, prompts: Path) -> None:
    result = ran(made, made.drafter, serve(made.drafter, off=True), prompts, "--limit", "2")
    assert result.exit_code == 1
    assert "verdict: speculation is off" in result.stdout


def test_counters_that_were_read_at_one_end_only(made: World, serve: Any, prompts: Path) -> None:
    engine = serve(made.drafter, first_metrics_fails=True)
    result = ran(made, made.drafter, engine, prompts, "--limit", "2")
    assert result.exit_code == 2
    assert "could be read after the run and not at its other end" in " ".join(result.stderr.split())


def test_another_number_of_drafts_is_refused(made: World, serve: Any, prompts: Path) -> None:
    engine = serve(made.drafter)
    result = ran(made, made.drafter, engine, prompts, "--limit", "2", "--drafts", "2")
    assert result.exit_code == 2
    assert "--drafts 2: the engine drafts 3 tokens a step" in " ".join(result.stderr.split())


def test_others_at_the_engine_and_a_busy_one(made: World, serve: Any, prompts: Path) -> None:
    engine = serve(made.drafter, busy=True, others=20)
    found = told(ran(made, made.drafter, engine, prompts, "--json", "--max-tokens", "20"))
    assert found["verdict"] == "engine and checkpoint are right"
    assert any("others used it" in one for one in found["warnings"])
    assert len(engine.asked) == len(made.texts) + 1


def test_an_engine_that_returns_no_ids_is_a_usage_error(
    made: World, serve: Any, prompts: Path
) -> None:
    result = ran(made, made.drafter, serve(made.drafter, no_ids=True), prompts)
    assert result.exit_code == 2
    assert "returned no ids" in result.stderr


@pytest.mark.parametrize("kind", ["sglang", "llamacpp"])
def test_other_engines(kind: str, made: World, serve: Any, prompts: Path) -> None:
    engine = serve(made.drafter, kind)
    found = told(ran(made, made.drafter, engine, prompts, "--json"))
    assert found["live"]["steps"] == 164
    assert found["live"]["p"] == pytest.approx(found["walk"]["p"], abs=1e-6)
    if kind == "sglang":  # its class adds one to the ids
        assert found["config"]["outputs that SGLang reads"] == [k + 1 for k in LAYERS]
        assert found["live"]["source"] == "meta_info of the answers"


def test_llamacpp_without_metrics_tells_a_length_alone(
    made: World, serve: Any, prompts: Path
) -> None:
    engine = serve(made.drafter, "llamacpp", no_metrics=True)
    found = told(ran(made, made.drafter, engine, prompts, "--json", "--engine", "llamacpp"))
    assert found["live"]["p"] is None
    # the last step of an answer may be cut: a step more or less
    assert found["live"]["acceptance_length"] == pytest.approx(2.9, abs=0.15)
    assert any("tells no P_k" in one for one in found["warnings"])


def test_the_table(made: World, serve: Any, prompts: Path, tmp_path: Path) -> None:
    out = tmp_path / "report.json"
    result = ran(made, made.drafter, serve(made.drafter), prompts, "--out", str(out))
    assert result.exit_code == 0
    lines = result.stdout.splitlines()
    assert lines[0].startswith("vllm 0.32.0 at http://127.0.0.1")
    numbers = {line[:52].strip(): line[52:].split() for line in lines if "." in line[52:]}
    assert numbers["engine: counters of /metrics"] == numbers["walk on the same ids, as written"]
    assert "layer ids one too low" in numbers
    assert lines[-3] == "verdict: engine and checkpoint are right"
    assert json.loads(out.read_text())["sound"] is True
    again = ran(made, made.drafter, serve(made.drafter), prompts, "--out", str(out))
    assert again.exit_code == 2


def test_layers_at_the_ends_of_the_target(made: World) -> None:
    """One below the first layer is the embedding; above the last there is none, but a norm."""
    of = reference(made.drafter, made.target, "vLLM")
    edge = replace(of, layers=[0, 2, DEPTH - 1])
    emulated = emulations(edge, made.target)
    names = [one.name for one in emulated]
    assert "layer ids one too low" in names
    assert "layer ids one too high" not in names
    assert "the last norm applied to the final layer's state" in names
    said = [Said(*text) for text in made.texts[:3]]
    walks = walk_all(emulated, said, made.forward, made.target, drafts=2, bf16=False)
    lengths = {one.emulation.name: one.counts.length for one in walks}
    assert len({round(v, 4) for v in lengths.values()}) > 2
    assert all(1 <= v <= 3 for v in lengths.values())


@pytest.mark.parametrize(
    "call",
    [
        [],
        ["DRAFT", "--target", "T"],
        ["--offline", "eval.json"],
        ["DRAFT", "--offline", "eval.json", "--metrics", "m"],
        ["DRAFT", "--target", "T", "--base-url", "u", "--prompts", "p", "--metrics", "m"],
    ],
)
def test_calls_that_can_not_work(call: list[str]) -> None:
    assert CliRunner().invoke(app, ["acceptance", *call]).exit_code == 2
