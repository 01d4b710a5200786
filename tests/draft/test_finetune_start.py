"""What `finetune` starts from and ends with: embeddings, layer ids, exports, several nodes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("torch")

import torch
from safetensors.torch import load_file, save_file
from test_train import SETTINGS, free_port, place, run, states, weights
from tiny_target import CONFIG

from eagle3_data.cli.evaluate import warned
from eagle3_data.draft.checkpoint import IDS, load
from eagle3_data.draft.finetune import METRICS, RUN, TRAINING, Start
from eagle3_data.draft.target import open_target
from eagle3_data.writing import OutputError

__all__ = ["place", "states"]
EMBEDDING = "embed_tokens.weight"
SHORT = replace(SETTINGS, epochs=1)


def config(folder: Path) -> dict[str, Any]:
    made: dict[str, Any] = json.loads((folder / "config.json").read_text())
    return made


def change(folder: Path, **tensors: torch.Tensor) -> None:
    """Tensors of a drafter replaced; names have _ for `.`."""
    held = load_file(folder / "model.safetensors")
    held[EMBEDDING] = tensors["embedding"]
    save_file(held, folder / "model.safetensors", metadata={"format": "pt"})


def test_an_embedding_that_is_not_the_target_s_is_exported_and_told(
    place, states, tmp_path
) -> None:
    run(place, tmp_path / "base", states, settings=SHORT)
    assert EMBEDDING not in weights(tmp_path / "base")
    theirs = torch.randn(CONFIG["vocab_size"], CONFIG["hidden_size"])
    change(tmp_path / "base", embedding=theirs)
    said: list[str] = []
    start = Start(init=tmp_path / "base")
    run(place, tmp_path / "own", states, start=start, settings=SHORT, note=said.append)
    assert torch.equal(weights(tmp_path / "own")[EMBEDDING], theirs)
    assert [text for text in said if "embedding of its own" in text]


def test_the_target_s_embedding_in_a_drafter_is_the_target_s(place, states, tmp_path) -> None:
    run(place, tmp_path / "base", states, settings=SHORT, with_embedding=True)
    target = open_target(place / "target")
    # as a drafter in bf16 of a target in float32 has it
    change(tmp_path / "base", embedding=target.embedding.bfloat16())
    made = load(tmp_path / "base", target)
    assert made.drafter.embedding.data_ptr() == target.embedding.data_ptr()
    said: list[str] = []
    start = Start(init=tmp_path / "base")
    run(place, tmp_path / "same", states, start=start, settings=SHORT, note=said.append)
    assert EMBEDDING not in weights(tmp_path / "same")
    assert not [text for text in said if "embedding" in text]


def test_a_complete_run_is_exported_anew_when_asked(place, states, tmp_path) -> None:
    out = tmp_path / "d"
    run(place, out, states, settings=SHORT)
    before, ids = weights(out), config(out)[IDS]
    anew = {"settings": SHORT, "go_on": True, "ids_of_outputs": True, "with_embedding": True}
    assert run(place, out, states, **anew) == []
    assert (
        config(out)[IDS] == [k - 1 for k in ids] == config(out)["eagle3_data"]["layers_output_of"]
    )
    after = weights(out)
    assert after.keys() - before.keys() == {EMBEDDING}
    assert all(torch.equal(after[name], before[name]) for name in before)
    stamp = (out / "model.safetensors").stat().st_mtime_ns
    assert run(place, out, states, **anew) == []
    assert (out / "model.safetensors").stat().st_mtime_ns == stamp
    with pytest.raises(OutputError, match="written with --dtype fp32"):
        run(place, out, states, **anew | {"dtype": "bf16"})
    run(place, out, states, settings=SHORT, go_on=True)
    assert (config(out)[IDS], weights(out).keys()) == (ids, before.keys())


def test_layer_ids_that_may_mean_either_are_told(place, states, tmp_path) -> None:
    base = tmp_path / "base"
    run(place, base, states, settings=SHORT)
    body = config(base)
    layers = body.pop("eagle3_data")["layers_output_of"]
    for ids, other in ((layers, [k - 1 for k in layers]), ([k + 1 for k in layers],) * 2):
        (base / "config.json").write_text(json.dumps(body | {IDS: ids, "eagle_config": {}}))
        said: list[str] = []
        run(
            place, tmp_path / f"d{ids[0]}", states,
            start=Start(init=base), settings=SHORT, note=said.append,
        )  # fmt: skip
        (doubt,) = [text for text in said if "layer ids" in text]
        assert f"the states are outputs of {layers}: " in doubt
        assert f"on states of {other} before you train" in doubt


def test_steps_and_a_long_warm_up_are_told(place, states, tmp_path) -> None:
    said: list[str] = []
    quick = replace(SHORT, warmup=1)
    rows = run(place, tmp_path / "a", states, note=said.append, settings=quick)
    tokens = sum(row["tokens"] for row in rows) // len(rows)
    assert said == [f"{len(rows)} optimizer steps of {tokens} tokens (1 pack of at most 60)"]
    long = replace(SHORT, accumulate=3, warmup=len(rows))
    run(place, tmp_path / "b", states, note=said.append, settings=long)
    assert f"--warmup {len(rows)} is a large part of" in said[-1]


def test_the_splits_that_were_trained_on_are_known_to_evaluate(place, states, tmp_path) -> None:
    run(place, tmp_path / "all", states, settings=SHORT)
    assert config(tmp_path / "all")["eagle3_data"]["samples"]["splits"] == ["train", "val"]
    run(place, tmp_path / "train", states.where(split="train"), settings=SHORT)
    trained = config(tmp_path / "train")["eagle3_data"]["samples"]["splits"]
    assert trained == ["train"]
    sound: Any = SimpleNamespace(walk=SimpleNamespace(length_interval=(1.0, 2.0), p=[0.5]))
    assert list(warned(sound, {"val"}, trained)) == []
    (leak,) = warned(sound, {"val"}, ["train", "val"])
    assert leak.startswith("the drafter was trained on samples of the split val:")
    assert list(warned(sound, {"val"}, None)) == []
    (guess,) = warned(sound, {"train", "val"}, None)
    assert guess.startswith("the drafter was probably trained on samples of the split train:")


def test_nodes_that_share_no_folder_are_refused(place, states, tmp_path) -> None:
    """Rank 0 finds a saved state in its folder, rank 1 none in its own."""
    code = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "import test_train as t; from pathlib import Path\n"
        "from eagle3_data.draft.states import open_states\n"
        "place, stop = Path(sys.argv[2]), int(sys.argv[4])\n"
        "rows = []\n"
        "t.run(place, Path(sys.argv[3]), open_states(place / 'states'), go_on=True,\n"
        "      settings=t.replace(t.SETTINGS, accumulate=2), stop=lambda: len(rows) == stop,\n"
        "      told=lambda row, total: rows.append(row))\n"
    )

    def both(outs: list[Path], stop: int) -> list[tuple[int, str]]:
        env = os.environ | {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1"}
        env["MASTER_PORT"] = str(free_port())
        running = [
            subprocess.Popen(
                [sys.executable, "-c", code, Path(__file__).parent, place, out, str(stop)],
                env=env | {"RANK": str(rank)},
                stderr=subprocess.PIPE,
                text=True,
            )
            for rank, out in enumerate(outs)
        ]
        said = [process.communicate(timeout=120)[1] for process in running]
        return [(process.returncode, text) for process, text in zip(running, said, strict=True)]

    one = tmp_path / "one"
    assert [code for code, _ in both([one, one], 2)] == [0, 0]
    for code_, text in both([one, tmp_path / "other"], -1):
        assert code_ == 1
        assert (
            "the processes differ in the steps that were saved, the weights to start from" in text
        )
    assert not (one / "config.json").exists()
    assert [code for code, _ in both([one, one], -1)] == [0, 0]
    assert (one / TRAINING / RUN).is_file()
    assert len((one / TRAINING / METRICS).read_text().splitlines()) > 2
