"""`extract` as a command: files, words, exit codes; kills and full disks."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

from stating import contents
from tiny import LAYERS, loaded, saved, spoken
from typer.testing import CliRunner

from eagle3_data.cli.app import app
from eagle3_data.draft import needs
from eagle3_data.draft.states import open_states
from eagle3_data.draft.states_manifest import JOURNAL

HERE = Path(__file__).parent


@pytest.fixture(scope="module")
def room(tmp_path_factory: pytest.TempPathFactory) -> Path:
    room = tmp_path_factory.mktemp("room")
    spoken(room / "shards", loaded(saved(room / "target")))
    return room


def call(room: Path, out: Path, *more: str) -> tuple[int, str, str]:
    layers = ["--layers", ",".join(map(str, LAYERS))]
    run = ["extract", str(room / "shards"), "--target", str(room / "target"), "-o", str(out)]
    result = CliRunner().invoke(app, [*run, *layers, *more])
    assert not isinstance(result.exception, AssertionError)
    return result.exit_code, result.stdout, result.stderr


def test_it_says_what_it_wrote(room, tmp_path) -> None:
    code, said, noted = call(room, tmp_path / "states")
    assert code == 0, noted
    assert "is complete: 12 samples" in said
    assert "outputs of layers 0, 2, 4 (vLLM and speculators call them 1, 3, 5)" in said
    assert "behind the last norm" in said
    assert "self-check: the head finds" in said
    assert "12 samples, " in noted and " free" in noted
    assert "holds no tokenizer" in noted
    assert len(open_states(tmp_path / "states")) == 12
    code, said, noted = call(room, tmp_path / "states", "--quiet")
    assert (code, noted) == (0, "")
    assert "was complete, read and checked again" in said


def test_json_holds_the_manifest(room, tmp_path) -> None:
    code, said, _ = call(room, tmp_path / "states", "--json", "--limit", "3", "--compress", "none")
    found = json.loads(said)
    assert code == 0 and found["complete"] and found["sound"] and found["findings"] == []
    assert found["manifest"]["packing"] == "none"
    assert found["manifest"]["samples"] == 3
    assert found["manifest"]["identity"]["chosen"]["limit"] == 3


def test_choices(room, tmp_path) -> None:
    more = ["--split", "val", "--min-grade", "A", "--dtype", "bf16", "--device", "cpu"]
    code, _, noted = call(
        room, tmp_path / "states", *more, "--batch-tokens", "64", "--compress", "zstd"
    )
    assert code == 0, noted
    manifest = open_states(tmp_path / "states").manifest
    assert (manifest.target.dtype, manifest.packing) == ("bfloat16", "zstd")
    assert manifest.samples == 3
    code, _, noted = call(room, tmp_path / "states")
    assert code == 2 and "the states of another run" in noted
    code, _, _ = call(room, tmp_path / "states", "--overwrite")
    assert code == 0


@pytest.mark.parametrize(
    ("more", "word"),
    [
        (["--layers", "1,x"], "write numbers with commas"),
        (["--layers", "9"], "outputs of layers 0 to 5"),
        (["--split", "none"], "holds no sample"),
        (["--min-grade", "Q"], "no grade 'Q'"),
        (["--device", "nothing"], "a device that is there"),
    ],
)
def test_what_can_not_work_is_refused(room, tmp_path, more, word) -> None:
    code, said, noted = call(room, tmp_path / "states", *more)
    assert (code, said) == (2, "")
    assert word in noted


def test_a_disk_that_is_too_small_is_refused_before_the_target_is_loaded(
    room, tmp_path, monkeypatch
) -> None:
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=1000))
    code, _, noted = call(room, tmp_path / "states")
    assert code == 2 and "are needed for the states" in noted and "1,000" not in noted
    assert "loading" not in noted
    assert not (tmp_path / "states").exists()


def test_another_tokenizer_is_refused_before_the_target_is_loaded(room, tmp_path) -> None:
    shutil.copytree(room / "target", tmp_path / "target")
    (tmp_path / "target" / "tokenizer.json").write_text("{}")
    run = ["extract", str(room / "shards"), "--target", str(tmp_path / "target")]
    run += ["--layers", "0", "-o", str(tmp_path / "states")]
    result = CliRunner().invoke(app, run)
    assert result.exit_code == 2
    assert "has another one" in result.stderr and "loading" not in result.stderr
    assert CliRunner().invoke(app, [*run, "--any-tokenizer"]).exit_code == 0


def test_without_torch_it_says_how_to_install_it(room, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(needs, "find_spec", lambda n: None if n == "torch" else find_spec(n))
    code, _, noted = call(room, tmp_path / "states")
    assert code == 2
    assert "extract needs torch" in noted and "pip install '.[torch]'" in noted


@pytest.fixture(scope="module")
def lives(room) -> dict[str, list[dict[str, Any]]]:
    run = subprocess.run(
        [sys.executable, HERE / "killing_extract.py", room / "shards", room / "target", room],
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": str(HERE.parent.parent)},
    )
    assert run.returncode == 0, run.stderr
    found: dict[str, list[dict[str, Any]]] = json.loads(run.stdout)
    return found


def finished(life: dict[str, Any]) -> list[str]:
    return [name for name in life["files"] if name.startswith("states-")]


def test_a_killed_run_goes_on_with_the_same_bytes(room, lives) -> None:
    first, second, last = lives["killed"]
    names = finished(lives["whole"][0])
    assert first["killed"] and second["killed"] and not last["killed"]
    assert 0 < len(finished(first)) <= len(finished(second)) < len(names)
    assert finished(second) == names[: len(finished(second))]
    for name in finished(first):  # what was whole was not done again
        assert first["files"][name] == last["files"][name]
    assert contents(room / "killed") == contents(room / "whole")


def test_a_disk_that_fills_keeps_what_is_whole(room, lives) -> None:
    early, last = lives["full"]
    names = finished(lives["whole"][0])
    assert "can not be written (File too large)" in early["error"]
    assert "finished files are kept" in early["error"]
    assert "run the same command again" in early["error"]
    assert 0 < len(finished(early)) < len(names)
    assert sorted(early["files"]) == [*finished(early), JOURNAL]
    assert early["files"].items() >= {n: last["files"][n] for n in finished(early)}.items()
    assert contents(room / "full") == contents(room / "whole")
