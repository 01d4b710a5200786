"""States without a disk: the same samples as from a folder, and faults before the first one."""

from __future__ import annotations

import json
from dataclasses import fields
from typing import Any

import pytest

pytest.importorskip("torch")

import numpy as np
import torch
from tiny import LAYERS, VOCAB, loaded, saved, spoken
from typer.testing import CliRunner

from eagle3_data.cli.app import app
from eagle3_data.draft.extract import Choice, extract
from eagle3_data.draft.forward import Forward
from eagle3_data.draft.mapping import choose
from eagle3_data.draft.mapping_files import files
from eagle3_data.draft.online import online
from eagle3_data.draft.states import open_states
from eagle3_data.draft.states_manifest import StatesError

CHOICE = Choice(layers=LAYERS, limit=6)


@pytest.fixture(scope="module")
def forward(tmp_path_factory: pytest.TempPathFactory) -> Forward:
    return loaded(saved(tmp_path_factory.mktemp("target")))


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory, forward) -> Any:
    return spoken(tmp_path_factory.mktemp("shards"), forward, 8)


def test_the_samples_are_those_of_a_folder(tmp_path, shards, forward) -> None:
    extract(shards, forward, tmp_path, CHOICE)
    stored, live = open_states(tmp_path), online(shards, forward, CHOICE)
    assert live.identity == stored.manifest.identity
    assert live.index.equals(stored.index)
    assert len(live) == 6
    for i in (3, 0, 5):
        one, other = stored.sample(i), live.sample(i)
        assert (one.sample_id, one.spans, one.meta) == (other.sample_id, other.spans, other.meta)
        assert torch.equal(one.input_ids, other.input_ids)
        assert torch.equal(one.loss_mask, other.loss_mask)
        assert one.aux.shape == other.aux.shape
        torch.testing.assert_close(one.aux, other.aux, rtol=2**-7, atol=1e-3)
        torch.testing.assert_close(one.final, other.final, rtol=2**-7, atol=1e-3)
        assert not other.aux.is_inference()  # training saves it for its backward pass
    val = live.where(split="val")
    assert [val.sample(i).meta["split"] for i in range(len(val))] == ["val"] * 2


def test_a_fault_is_told_before_the_first_sample(shards, forward) -> None:
    class Shifted(Forward):
        def states(self, batch: Any, output_of: Any) -> Any:
            return [wide[[0, *range(len(wide) - 1)]] for wide in super().states(batch, output_of)]

    shifted = Shifted(**{f.name: getattr(forward, f.name) for f in fields(Forward)})
    with pytest.raises(StatesError, match="HID004 at final"):
        online(shards, shifted, CHOICE)


def test_a_drafter_is_trained_without_a_disk(tmp_path) -> None:
    target = saved(tmp_path / "target")
    spoken(tmp_path / "shards", loaded(target), 8)
    counts = np.ones(VOCAB, dtype=np.int64)
    (tmp_path / "mapping").mkdir()
    for name, content in files(choose(counts, 60, np.array([2])), {}).items():
        (tmp_path / "mapping" / name).write_bytes(content)
    words = ["finetune", tmp_path / "shards", "-o", tmp_path / "drafter", "--online"]
    words += ["--mapping", tmp_path / "mapping", "--epochs", 1, "--device", "cpu"]
    words += ["--layers", ",".join(map(str, LAYERS))]
    named = ["--target", target]
    refused = CliRunner().invoke(app, [str(word) for word in words])
    assert (refused.exit_code, "name its folder with --target" in refused.stderr) == (2, True)
    result = CliRunner().invoke(app, [str(word) for word in [*words, *named]])
    assert result.exit_code == 0, result.output
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "drafter", "mapping", "shards", "target",
    ]  # fmt: skip
    config = json.loads((tmp_path / "drafter" / "config.json").read_text())
    assert config["eagle3_data"]["layers_output_of"] == list(LAYERS)
    resumed = CliRunner().invoke(app, [str(word) for word in [*words, *named, "--resume"]])
    assert (resumed.exit_code, resumed.stdout) == (0, f"{tmp_path / 'drafter'}: complete\n")
