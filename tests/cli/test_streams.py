"""Streams that a caller closed, or that take no more: a clear word where one can be said, and 2."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
CLEAN = ROOT / "fixtures" / "captures" / "clean_smollm2-think.jsonl"

needs_full = pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full")


def shell(line: str, folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["sh", "-c", f'"$PYTHON" -m eagle3_data {line}'],
        cwd=folder,
        env={**os.environ, "PYTHON": sys.executable, "FILE": str(CLEAN), "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=120,
    )


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ('check "$FILE" >&-', "error: standard output is closed: send it to a file"),
        ("check - <&-", "error: -: standard input is closed: name a file, or pipe the data in"),
        ("--help >&-", "error: standard output is closed"),
        pytest.param('check "$FILE" >/dev/full', "error: No space left", marks=needs_full),
    ],
)
def test_a_stream_that_is_missing_is_named(tmp_path: Path, line: str, said: str) -> None:
    got = shell(line, tmp_path)
    assert got.returncode == 2
    assert got.stderr.startswith(said) and got.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("line", "code"),
    [
        ("check /nope 2>&-", 2),
        ('check "$FILE" 2>&-', 0),
        pytest.param("check /nope 2>/dev/full", 2, marks=needs_full),
        pytest.param("check --nope 2>/dev/full", 2, marks=needs_full),
        pytest.param('check "$FILE" --verbose 2>/dev/full', 0, marks=needs_full),
    ],
)
def test_a_remark_that_can_not_be_written_changes_no_exit_code(
    tmp_path: Path, line: str, code: int
) -> None:
    got = shell(line, tmp_path)
    assert got.returncode == code
    assert got.stdout.startswith("CLEAN") is (code == 0)


def test_a_closed_stderr_never_lands_in_a_file(tmp_path: Path) -> None:
    got = shell('check "$FILE" -o json=out.json 2>&-', tmp_path)
    assert got.returncode == 0
    assert (tmp_path / "out.json").read_text().startswith("{")
    assert "wrote" not in (tmp_path / "out.json").read_text()[-200:]
