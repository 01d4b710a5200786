"""`finetune` and `evaluate` from the command line: a drafter out of states, and its numbers."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

pytest.importorskip("torch")

import torch

sys.path.insert(0, str(Path(__file__).parent.parent / "draft"))
from tiny_target import made_states, mapping_folder, target_folder

from eagle3_data.cli.app import app

torch.set_num_threads(1)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("draft")
    target_folder(folder / "target")
    mapping_folder(folder / "mapping")
    made_states(folder, 20)
    return folder


def command(*words: object) -> Result:
    return CliRunner().invoke(app, [str(word) for word in words])


def trained(place: Path, out: Path, *more: object) -> Result:
    return command(
        "finetune", place / "states", "-o", out, "--mapping", place / "mapping",
        "--target", place / "target", "--epochs", "2", "--batch-tokens", "100",
        "--device", "cpu", *more,
    )  # fmt: skip


def test_a_drafter_is_trained_and_evaluated(place, tmp_path) -> None:
    result = trained(place, tmp_path / "drafter", "--fc-norm")
    assert result.exit_code == 0, result.output
    assert result.stdout.startswith(f"{tmp_path / 'drafter'}: loss ")
    assert "tokens/s" in result.stderr
    config = json.loads((tmp_path / "drafter" / "config.json").read_text())
    assert config["fc_norm"] is True
    assert config["eagle3_data"]["training"]["epochs"] == 2
    shown = command(
        "evaluate", tmp_path / "drafter", place / "states", "--target", place / "target"
    )
    assert shown.exit_code == 0, shown.output
    for line in ("walk, as an engine counts", "all positions: too high", "by position"):
        assert line in shown.stdout
    told = command(
        "evaluate", tmp_path / "drafter", place / "states", "--target", place / "target",
        "--by", "finish_reason", "--by", "template_kwargs", "--shards", place / "shards",
        "--drafts", "2", "--temperature", "1", "--split", "all", "--json",
    )  # fmt: skip
    found = json.loads(told.stdout)
    assert (found["samples"], found["drafts"], found["temperature"]) == (20, 2, 1.0)
    assert found["splits"]["finish_reason"].keys() == {"stop"}
    assert len(found["walk"]["p"]) == 2
    length = 1 + sum(found["walk"]["p"])
    assert found["walk"]["acceptance_length"] == pytest.approx(length, abs=1e-5)


def test_going_on_and_starting_from_a_drafter(place, tmp_path) -> None:
    first = trained(place, tmp_path / "a", "--quiet", "--json")
    assert (first.exit_code, first.stderr) == (0, "")
    assert json.loads(first.stdout)["last"]["step"] > 1
    again = trained(place, tmp_path / "a", "--resume")
    assert (again.exit_code, again.stdout) == (0, f"{tmp_path / 'a'}: complete\n")
    more = command(
        "finetune", place / "states", "-o", tmp_path / "b", "--init", tmp_path / "a",
        "--target", place / "target", "--epochs", "1", "--device", "cpu", "--layer-ids", "output",
    )  # fmt: skip
    assert more.exit_code == 0, more.output
    config = json.loads((tmp_path / "b" / "config.json").read_text())
    assert config["eagle_aux_hidden_state_layer_ids"] == [1, 3]
    assert config["eagle3_data"]["training"]["lr"] == 1e-4


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--split", "test"], "its splits are train, val: name one of them, or --split all"),
        (["--init", "nowhere"], "nowhere"),
        (["--target", "nowhere"], "pass --target"),
        (["--min-grade", "Z"], "there is no grade 'Z'"),
    ],
    ids=["split", "init", "target", "grade"],
)
def test_a_call_that_can_not_work_says_what_to_do(place, tmp_path, words, message) -> None:
    result = trained(place, tmp_path / "out", *words)
    assert result.exit_code == 2
    assert message in result.stderr
    assert not (tmp_path / "out").exists()
