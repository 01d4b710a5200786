"""`profiles`, `profile show` and `profile check`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from eagle3_data.cli.app import app
from eagle3_data.profiles.load import available, load

ROOT = Path(__file__).parent.parent.parent
TOKENIZER = str(ROOT / "fixtures" / "tokenizers" / "smollm2-think")
OWN = ROOT / "schemas" / "profiles" / "smollm2-think.toml"


def run(*args: str, code: int = 0) -> str:
    result = CliRunner().invoke(app, list(args))
    assert result.exit_code == code, result.output
    return result.output


def test_every_shipped_profile_is_listed() -> None:
    names = [profile.name for profile in available()]
    assert [line.split()[0] for line in run("profiles").splitlines()[1:]] == names
    assert [one["name"] for one in json.loads(run("profiles", "--json"))] == names


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("kimi-k2.5", "in the prompt"),
        ("kimi-k2-thinking", "sampled"),
        ("chatml", "none"),
        ("generic", "not known"),
    ],
)
def test_the_list_says_where_the_opening_marker_comes_from(name: str, words: str) -> None:
    (line,) = [line for line in run("profiles").splitlines() if line.split()[0] == name]
    assert f"  {words}  " in line


def test_a_profile_is_shown_by_name_and_by_file() -> None:
    shown = run("profile", "show", "smollm2-think")
    assert shown == run("profile", "show", str(OWN))
    assert '{"text":"<think>","id":49152' in shown
    whole = json.loads(run("profile", "show", "smollm2-think", "--json"))
    assert whole == load("smollm2-think").model_dump(mode="json")


def test_an_unknown_profile_is_2_with_a_suggestion() -> None:
    assert "did you mean kimi-k2" in run("profile", "show", "kimi-k2", code=2)


def test_the_markers_of_a_tokenizer_are_proven() -> None:
    told = run("profile", "check", "smollm2-think", "--tokenizer", TOKENIZER)
    assert "<think>" in told
    assert told.endswith("markers looked up, none differs\n")


def test_a_marker_that_differs_is_1(tmp_path: Path) -> None:
    wrong = tmp_path / "wrong.toml"
    wrong.write_text(OWN.read_text(encoding="utf-8").replace("49152", "49151"), encoding="utf-8")
    told = run("profile", "check", str(wrong), "--tokenizer", TOKENIZER, code=1)
    assert "the profile states id 49151, the tokenizer has 49152" in told
    assert told.endswith("1 differ\n")
    proofs = json.loads(
        run("profile", "check", str(wrong), "--tokenizer", TOKENIZER, "--json", code=1)
    )
    assert [proof["marker"] for proof in proofs if proof["failed"]] == ["<think>"]


def test_a_missing_tokenizer_is_2(tmp_path: Path) -> None:
    told = run("profile", "check", "chatml", "--tokenizer", str(tmp_path / "gone"), code=2)
    assert told.startswith("error: ")
