"""Power cuts and full disks: nothing is lost unseen, and no half result is taken for whole."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from making import ROOT, contents, large, many, write

from eagle3_data.shards.manifest import JOURNAL, MANIFEST
from eagle3_data.shards.reader import open_shards
from eagle3_data.shards.schema import ShardError
from eagle3_data.shards.verify import verify

HERE = Path(__file__).parent


def run(script: str, *arguments: object) -> str:
    """What a script of this folder prints; it must end with 0."""
    done = subprocess.run(
        [sys.executable, str(HERE / script), *map(str, arguments)],
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.slow
def test_a_run_killed_anywhere_goes_on_to_the_same_bytes(tmp_path) -> None:
    said = run("killing.py", tmp_path, 50, 3)
    assert said.startswith("50 runs")


def test_a_run_killed_a_few_times(tmp_path) -> None:
    assert run("killing.py", tmp_path, 4, 1).startswith("4 runs")


def after_full(directory: Path, said: str) -> None:
    """A full disk is said, what was finished is kept, nothing else is left."""
    assert "make room and run the same command again" in said
    names = sorted(contents(directory))
    assert MANIFEST not in names
    assert JOURNAL in names
    assert "part-00000.parquet" in names
    assert not [name for name in names if name.endswith(".part")]
    with pytest.raises(ShardError, match="did not finish"):
        open_shards(directory)
    assert verify(directory).codes == ["SHD001"]


def test_a_file_that_may_not_grow(tmp_path) -> None:
    said = run("filling.py", tmp_path / "full", 60_000)
    assert "File too large" in said
    after_full(tmp_path / "full", said)
    node = (tmp_path / "full" / "part-00000.parquet").stat().st_ino
    write(tmp_path / "full", large())
    assert (tmp_path / "full" / "part-00000.parquet").stat().st_ino == node
    write(tmp_path / "whole", large())
    assert contents(tmp_path / "full") == contents(tmp_path / "whole")


@pytest.fixture
def tiny_disk(tmp_path):
    """A file system of 100 KB."""
    where = tmp_path / "disk"
    where.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=100k", "none", str(where)]
    if os.geteuid() or subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("mounting a tmpfs is not allowed here; the file size limit stands in for it")
    yield where
    subprocess.run(["umount", "-l", str(where)], check=True)


def test_a_full_disk(tmp_path, tiny_disk) -> None:
    directory = tiny_disk / "shards"
    with pytest.raises(ShardError) as error:
        write(directory, large())
    assert "No space left on device" in str(error.value)
    after_full(directory, str(error.value))
    subprocess.run(["mount", "-o", "remount,size=9m", str(tiny_disk)], check=True)
    write(directory, large())
    write(tmp_path / "whole", large())
    assert contents(directory) == contents(tmp_path / "whole")


def test_a_disk_that_is_full_when_the_manifest_is_written(tmp_path, tiny_disk) -> None:
    directory = tiny_disk / "shards"
    rows = many(20)
    with pytest.raises(ShardError, match=r"manifest\.json can not be written \(No space left"):
        write(directory, rows, ledger={"lines": 20, "note": "x" * 200_000})
    assert MANIFEST not in contents(directory)
    assert verify(directory).codes == ["SHD001"]
    write(directory, rows)
    assert verify(directory).codes == []
