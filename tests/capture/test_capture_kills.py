"""A capture that is killed at any line of its code, and the same command again."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import orjson
import pytest
from double import Fault
from playing import ROOT, environment, held, serving, write_prompts

# what takes seconds by itself is played in test_capture_faults
QUICK = [f for f in Fault if f not in (Fault.HANG, Fault.STALL, Fault.BUSY_WAIT, Fault.SOUND)]


def killed(directory: Path, road: str, rows: int, lives: int, seed: int) -> tuple[int, int]:
    """Kills that hit and lines that were torn, in `lives` lives over a server with all faults."""
    prompts = write_prompts(directory / "prompts.jsonl", rows // 2)
    out = directory / "raw_responses.jsonl"
    plan = ("--faults", ",".join(QUICK), "--share", 0.3, "--slow", 0.05, "--seed", seed)
    with serving(directory, *plan) as double:
        call = [
            *(sys.executable, ROOT / "tests" / "capture" / "killing_generate.py"),
            *(directory, double.url, prompts, lives, seed, road),
            *("--concurrency", 6, "--attempts", 2, "--max-failures", 500),
            *("--samples", 2, "--seed", 7),
        ]
        done = subprocess.run(
            list(map(str, call)),
            capture_output=True,
            text=True,
            env=environment(PYTHONPATH=str(ROOT)),
            timeout=1200,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        all_lives, kills, torn, code = orjson.loads(done.stdout)
        assert all_lives == lives and code == 0, done.stderr
        held(out, rows, double)
        asked = {entry["key"] for entry in double.log()}
        assert len(asked) == 2 * rows  # those of the trial beside ours
    beside = {path.name for path in directory.glob("raw_responses*")}
    beside = {name for name in beside if not name.endswith(".torn")}
    assert beside == {out.name, "raw_responses.manifest.json"}
    manifest = orjson.loads((directory / "raw_responses.manifest.json").read_bytes())
    assert manifest["complete"] and manifest["rows"]["stored"] == rows
    return kills, torn


def test_a_capture_killed_half_a_dozen_times(tmp_path: Path) -> None:
    kills, _ = killed(tmp_path, "--no-stream", 40, 6, 1)
    assert kills >= 4


@pytest.mark.slow
@pytest.mark.parametrize(("road", "seed"), [("--no-stream", 2), ("--stream", 3)])
def test_a_capture_killed_twenty_times_holds_each_answer_once(
    tmp_path: Path, road: str, seed: int
) -> None:
    kills, torn = killed(tmp_path, road, 200, 25, seed)
    assert kills >= 20 and torn >= 3
