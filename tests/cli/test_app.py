"""The command as a process: help, version, exit codes of wrong calls."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import eagle3_data

COMMANDS = ["check", "rule", "rules", "profiles", "profile check", "profile show"]


def run(*args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "eagle3_data", *args],
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
    )


def test_version() -> None:
    got = run("--version")
    assert (got.returncode, got.stdout) == (0, f"eagle3-data {eagle3_data.__version__}\n")


def test_help_lists_the_commands() -> None:
    got = run("--help")
    assert got.returncode == 0
    for command in COMMANDS:
        assert f"  {command.split()[0]} " in got.stdout


@pytest.mark.parametrize("command", COMMANDS)
def test_the_help_of_every_command_has_an_example(command: str) -> None:
    got = run(*command.split(), "--help")
    assert got.returncode == 0
    assert "Example" in got.stdout
    assert f"eagle3-data {command}" in got.stdout


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["chek"], "No such command 'chek'"),
        (["check"], "Missing argument"),
        (["check", "gone.jsonl"], "gone.jsonl: no such file"),
        (["check", "--turns", "first", "x"], "--turns"),
        (["check", "x", "--workers", "0"], "--workers"),
        (["rule", "XYZ999"], "no rule is called 'XYZ999'"),
    ],
)
def test_a_wrong_call_is_2_on_stderr_without_a_traceback(args: list[str], words: str) -> None:
    got = run(*args)
    assert got.returncode == 2
    assert got.stdout == ""
    assert words in got.stderr
    assert "Traceback" not in got.stderr


def test_verbose_shows_the_traceback() -> None:
    got = run("check", "gone.jsonl", "--verbose")
    assert got.returncode == 2
    assert "Traceback" in got.stderr
    assert got.stderr.endswith(
        "error: gone.jsonl: no such file; check the path and the working directory\n"
    )


@pytest.mark.parametrize("option", ["--quarantine", "--tokenizer", "--profile"])
def test_an_empty_argument_is_refused(tmp_path: Path, option: str) -> None:
    capture = Path(__file__).parent.parent.parent / "fixtures/captures/clean_smollm2-think.jsonl"
    run = subprocess.run(
        [sys.executable, "-m", "eagle3_data", "check", str(capture), option, ""],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert (run.returncode, run.stdout) == (2, "")
    assert "an argument is empty" in run.stderr
    assert list(tmp_path.iterdir()) == []
