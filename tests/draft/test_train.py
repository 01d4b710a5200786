"""Training: the same weights however it is packed, stopped or spread; and what it refuses."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

import torch
from safetensors.torch import load_file
from tiny_target import made_states, mapping_folder, target_folder

from eagle3_data.draft import resume, train
from eagle3_data.draft.checkpoint import CheckpointError
from eagle3_data.draft.finetune import METRICS, RUN, TRAINING, Start, begin, finetune
from eagle3_data.draft.mapping import VocabError
from eagle3_data.draft.states import States
from eagle3_data.draft.target import Target, TargetError, open_target, target_of
from eagle3_data.draft.train import Plan, Settings, Teacher, Trainer
from eagle3_data.writing import OutputError

torch.set_num_threads(1)

SETTINGS = Settings(epochs=2, batch_tokens=60, warmup=3, bf16=False, lr=3e-3)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run")
    target_folder(folder / "target")
    mapping_folder(folder / "mapping")
    made_states(folder)
    return folder


@pytest.fixture(scope="module")
def states(place: Path) -> States:
    from eagle3_data.draft.states import open_states

    return open_states(place / "states")


@pytest.fixture(scope="module")
def target(place: Path) -> Target:
    return open_target(place / "target")


def run(place: Path, out: Path, states: States, **changed: Any) -> list[dict[str, Any]]:
    """Train as the command does; the rows of metrics."""
    rows: list[dict[str, Any]] = []
    options: dict[str, Any] = {
        "target": open_target(place / "target"),
        "start": Start(mapping=place / "mapping"),
        "settings": SETTINGS,
        "dtype": "fp32",
        "told": lambda row, _total: rows.append(row),
    }
    finetune(states, out, **(options | changed))
    return rows


def weights(out: Path) -> dict[str, torch.Tensor]:
    return load_file(out / "model.safetensors")


def same(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def test_training_lowers_the_loss_and_leaves_a_drafter(place, states, tmp_path) -> None:
    """Random states say nothing about the next token, but they can be learned by heart."""
    rows = run(place, tmp_path / "d", states, settings=replace(SETTINGS, epochs=12))
    assert rows[-1]["loss"][0] < 0.6 * rows[0]["loss"][0]
    assert rows[-1]["accuracy"][0] > rows[0]["accuracy"][0]
    assert sorted(path.name for path in (tmp_path / "d").iterdir()) == [
        "config.json",
        "model.safetensors",
        "training",
    ]
    assert sorted(p.name for p in (tmp_path / "d" / TRAINING).iterdir()) == [METRICS, RUN]
    written = (tmp_path / "d" / TRAINING / METRICS).read_text().splitlines()
    assert [json.loads(line) for line in written] == rows


@pytest.mark.parametrize("bf16", [False, True])
def test_a_run_killed_after_any_step_and_resumed_has_the_same_weights(
    place, states, tmp_path, bf16
) -> None:
    settings = replace(SETTINGS, accumulate=2, bf16=bf16)
    rows = run(place, tmp_path / "whole", states, settings=settings)
    for killed in range(len(rows)):
        out = tmp_path / f"killed{killed}"

        def kill(row: dict[str, Any], _total: int, killed: int = killed) -> None:
            if row["step"] == killed + 1:
                raise KeyboardInterrupt  # as abrupt as Python can be told: nothing is saved here

        with pytest.raises(KeyboardInterrupt):
            run(place, out, states, settings=settings, told=kill, save_every=2)
        again = run(place, out, states, settings=settings, go_on=True)
        assert again[0]["step"] == killed // 2 * 2 + 1
        assert same(weights(out), weights(tmp_path / "whole"))
        lines = (out / TRAINING / METRICS).read_text().splitlines()
        assert [json.loads(line)["loss"] for line in lines] == [row["loss"] for row in rows]


def test_a_run_that_is_stopped_saves_where_it_is(place, states, tmp_path) -> None:
    run(place, tmp_path / "whole", states)
    out, rows = tmp_path / "stopped", []
    stop = lambda: len(rows) == 3  # noqa: E731
    told = lambda row, _total: rows.append(row)  # noqa: E731
    run(place, out, states, stop=stop, told=told)
    found = resume.latest(out / TRAINING)
    assert found is not None and found.name == "step-00000003"
    assert not (out / "model.safetensors").exists()
    assert run(place, out, states, go_on=True)[0]["step"] == 4
    assert same(weights(out), weights(tmp_path / "whole"))
    before = (out / "model.safetensors").stat().st_mtime_ns
    assert run(place, out, states, go_on=True) == []  # complete: nothing is done again
    assert (out / "model.safetensors").stat().st_mtime_ns == before


def test_a_kill_while_a_state_is_written_leaves_the_one_before(
    place, states, tmp_path, monkeypatch
) -> None:
    run(place, tmp_path / "whole", states)
    out = tmp_path / "out"
    rename = Path.rename

    def killed(self: Path, to: Path) -> Path:
        if to.name == "step-00000004":
            raise KeyboardInterrupt
        return rename(self, to)

    monkeypatch.setattr(Path, "rename", killed)
    with pytest.raises(KeyboardInterrupt):
        run(place, out, states, save_every=2)
    monkeypatch.undo()
    assert run(place, out, states, go_on=True)[0]["step"] == 3
    assert same(weights(out), weights(tmp_path / "whole"))


def test_a_process_that_is_shot_goes_on_to_the_same_weights(place, states, tmp_path) -> None:
    run(place, tmp_path / "whole", states)
    code = (
        "import os, signal, sys; sys.path.insert(0, sys.argv[1])\n"
        "import test_train as t; from pathlib import Path\n"
        "from eagle3_data.draft.states import open_states\n"
        "place = Path(sys.argv[2])\n"
        "def shoot(row, total):\n"
        "    if row['step'] == 4: os.kill(os.getpid(), signal.SIGKILL)\n"
        "t.run(place, Path(sys.argv[3]), open_states(place / 'states'), told=shoot, save_every=3)\n"
    )
    words = [Path(__file__).parent, place, tmp_path / "out"]
    assert subprocess.run([sys.executable, "-c", code, *words]).returncode == -9
    assert run(place, tmp_path / "out", states, go_on=True)[0]["step"] == 4
    assert same(weights(tmp_path / "out"), weights(tmp_path / "whole"))


def test_accumulating_packs_is_one_larger_pack(place, states, target) -> None:
    """The same samples in one optimizer step: the same gradient, in one pack or in many."""
    grads = []
    for settings in (
        replace(SETTINGS, batch_tokens=10_000),
        replace(SETTINGS, batch_tokens=50, accumulate=1000),
        replace(SETTINGS, batch_tokens=1, accumulate=1000),  # a sample a pack: nothing is packed
    ):
        made = begin(Start(mapping=place / "mapping"), states, target, 0)
        teacher = Teacher(target, made.mapping, "post", torch.device("cpu"), False)
        trainer = Trainer(made.drafter, teacher, states, settings, torch.device("cpu"))
        assert len(trainer.steps) == settings.epochs
        row = next(trainer.run(lambda: False))
        grads.append({n: p.grad for n, p in made.drafter.named_parameters()})
        assert row["tokens"] == int(states.index["seq_len"].sum())
    for other in grads[1:]:
        torch.testing.assert_close(other, grads[0], rtol=1e-4, atol=1e-6)


def test_two_processes_do_the_steps_of_one(place, states, tmp_path) -> None:
    """torchrun: each process takes its packs of a step, the gradients are summed."""
    settings = replace(SETTINGS, epochs=1, accumulate=4)
    run(place, tmp_path / "one", states, settings=settings)
    code = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "import test_train as t; from pathlib import Path\n"
        "from eagle3_data.draft.states import open_states\n"
        "place = Path(sys.argv[2])\n"
        "s = t.replace(t.SETTINGS, epochs=1, accumulate=2)\n"
        "t.run(place, Path(sys.argv[3]), open_states(place / 'states'), settings=s)\n"
    )
    env = os.environ | {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
    env["MASTER_PORT"] = str(free_port())
    both = [
        subprocess.Popen(
            [sys.executable, "-c", code, Path(__file__).parent, place, tmp_path / "two"],
            env=env | {"RANK": str(rank)},
        )
        for rank in range(2)
    ]
    assert [process.wait(timeout=120) for process in both] == [0, 0]
    torch.testing.assert_close(
        weights(tmp_path / "two"), weights(tmp_path / "one"), rtol=1e-4, atol=1e-5
    )


def free_port() -> int:
    import socket

    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def test_the_rate_rises_and_falls_in_lines() -> None:
    s = Settings(lr=1.0, warmup=4)
    assert [s.rate(step, 12) for step in range(12)] == [
        0.25, 0.5, 0.75, 1.0, 1.0, 0.875, 0.75, 0.625, 0.5, 0.375, 0.25, 0.125,
    ]  # fmt: skip


def test_the_steps_of_an_epoch_hold_each_sample_once() -> None:
    plan = Plan([10] * 7, Settings(epochs=2, batch_tokens=20, accumulate=3))
    steps = plan.steps()
    assert [(epoch, len(packs)) for epoch, packs in steps] == [(0, 3), (0, 1), (1, 3), (1, 1)]
    for wanted in range(2):
        seen = [i for epoch, packs in steps if epoch == wanted for one in packs for i in one]
        assert sorted(seen) == list(range(7))


def test_a_pre_norm_final_state_is_normed(place, states, target) -> None:
    final = states.sample(0).final
    wide = final.float()
    wanted = wide / (wide.square().mean(-1, keepdim=True) + 1e-5).sqrt() * target.norm
    torch.testing.assert_close(target.normed(final, "pre"), wanted.to(final.dtype))
    assert target.normed(final, "post") is final


def test_a_mapping_of_another_size_or_tokenizer_is_refused(place, states, target, tmp_path) -> None:
    folder = mapping_folder(tmp_path / "m", tokenizer_hash="other")
    with pytest.raises(CheckpointError, match="ids of another tokenizer"):
        begin(Start(mapping=folder), states, target, 0)
    other = open_target(target_folder(tmp_path / "t", vocab_size=120))
    with pytest.raises(VocabError, match="not sound"):
        begin(Start(mapping=place / "mapping"), states, other, 0)
    with pytest.raises(CheckpointError, match="--mapping"):
        begin(Start(), states, target, 0)


def test_another_target_than_that_of_the_states_is_refused(states, tmp_path) -> None:
    other = target_folder(tmp_path / "t", vocab_size=120)
    with pytest.raises(TargetError, match=r"head of \[120, 16\]"):
        target_of(states.identity, other)
    same_sizes = target_folder(tmp_path / "u", seed=8)
    with pytest.raises(TargetError, match="other weights"):
        target_of(states.identity, same_sizes)
    with pytest.raises(TargetError, match="pass --target"):
        target_of(states.identity, None)  # "tiny" is no folder here


def test_a_warm_start_keeps_its_mapping_and_refuses_another(
    place, states, target, tmp_path
) -> None:
    run(place, tmp_path / "base", states)
    base = tmp_path / "base"
    made = begin(Start(init=base), states, target, 0)
    assert made.mapping.targets.tolist() == weights_targets(base)
    assert begin(Start(init=base, mapping=place / "mapping"), states, target, 0)
    other = mapping_folder(tmp_path / "other", seed=5)
    with pytest.raises(CheckpointError, match="not the mapping of"):
        begin(Start(init=base, mapping=other), states, target, 0)
    with pytest.raises(CheckpointError, match="own norm flags"):
        begin(Start(init=base, flags={"fc_norm": True}), states, target, 0)
    rows = run(place, tmp_path / "more", states, start=Start(init=base))
    first = json.loads((base / TRAINING / METRICS).read_text().splitlines()[0])
    assert rows[0]["loss"][0] < first["loss"][0]


def weights_targets(folder: Path) -> list[int]:
    d2t = weights(folder)["d2t"]
    return (d2t + torch.arange(len(d2t))).tolist()


def test_a_drafter_of_other_layers_or_tokenizer_is_refused(place, states, target, tmp_path) -> None:
    run(place, tmp_path / "base", states)
    config = tmp_path / "base" / "config.json"
    body = json.loads(config.read_text())
    for change, message in (
        ({"layers_output_of": [2, 4]}, r"trained on outputs of layers \[2, 4\]"),
        ({"tokenizer_hash": "other"}, "another tokenizer"),
    ):
        config.write_text(json.dumps(body | {"eagle3_data": body["eagle3_data"] | change}))
        with pytest.raises(CheckpointError, match=message):
            begin(Start(init=tmp_path / "base"), states, target, 0)


def test_a_folder_that_is_not_of_this_run_is_left_alone(place, states, tmp_path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / "notes.txt").write_text("mine")
    for options in ({}, {"overwrite": True}, {"go_on": True}):
        with pytest.raises(OutputError, match="not empty"):
            run(place, out, states, **options)
    assert [path.name for path in out.iterdir()] == ["notes.txt"]
    theirs = tmp_path / "theirs"
    run(place, theirs, states)
    shutil.rmtree(theirs / "training")  # as a drafter that was downloaded
    held = (theirs / "model.safetensors").read_bytes()
    with pytest.raises(OutputError, match="not empty: pass another folder"):
        run(place, theirs, states, go_on=True)
    assert (theirs / "model.safetensors").read_bytes() == held
    done = tmp_path / "done"
    run(place, done, states)
    with pytest.raises(OutputError, match="not empty: pass --resume"):
        run(place, done, states)
    with pytest.raises(OutputError, match="another finished run"):
        run(place, done, states, go_on=True, settings=replace(SETTINGS, seed=1))
    before = weights(done)
    run(place, done, states, overwrite=True, settings=replace(SETTINGS, seed=1))
    assert not same(weights(done), before)


def test_a_state_of_other_settings_or_damaged_is_refused(place, states, tmp_path) -> None:
    out = tmp_path / "out"
    told: list[Any] = []
    run(place, out, states, stop=lambda: len(told) == 2, told=lambda row, _: told.append(row))
    with pytest.raises(resume.ResumeError, match="seed: 0 → 4"):
        run(place, out, states, go_on=True, settings=replace(SETTINGS, seed=4))
    state = resume.latest(out / TRAINING)
    assert state is not None
    (state / resume.WEIGHTS).write_bytes(b"no")
    with pytest.raises(resume.ResumeError, match="damaged"):
        run(place, out, states, go_on=True)


def test_a_gradient_that_is_not_finite_stops_the_run(place, states, target) -> None:
    made = begin(Start(mapping=place / "mapping"), states, target, 0)
    with torch.no_grad():
        made.drafter.fc.weight[0, 0] = float("inf")
    teacher = Teacher(target, made.mapping, "post", torch.device("cpu"), False)
    trainer = Trainer(made.drafter, teacher, states, SETTINGS, torch.device("cpu"))
    with pytest.raises(train.TrainError, match="not finite"):
        next(trainer.run(lambda: False))


def test_no_pickle_is_written_or_read(place, states, tmp_path) -> None:
    out, told = tmp_path / "out", []
    run(place, out, states, stop=lambda: len(told) == 2, told=lambda row, _: told.append(row))
    found = {path.suffix for path in out.rglob("*") if path.is_file()}
    assert found == {".safetensors", ".json", ".jsonl"}
