"""`rule` and `rules`: the registry as text, Markdown and JSON."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from eagle3_data.cli.app import app
from eagle3_data.cli.rules import every_rule

RULES = every_rule()
DOCS = Path(__file__).parent.parent.parent / "docs"


def run(*args: str, code: int = 0) -> str:
    result = CliRunner().invoke(app, list(args))
    assert result.exit_code == code, result.output
    return result.output


@pytest.mark.parametrize("by", ["code", "name"])
def test_a_rule_is_found_by_code_and_by_name(by: str) -> None:
    for rule in RULES[:3]:
        page = run("rule", getattr(rule, by))
        assert page.startswith(f"{rule.code} {rule.name} ({rule.severity.value}, ")
        assert rule.docs.strip() in page


def test_case_does_not_matter() -> None:
    assert run("rule", RULES[0].code.lower()) == run("rule", RULES[0].code)


def test_a_prefix_gives_the_family() -> None:
    page = run("rule", "RAW")
    assert all(rule.summary in page for rule in RULES if rule.family == "RAW")


def test_a_near_miss_is_suggested() -> None:
    assert f"did you mean {RULES[0].name}" in run("rule", RULES[0].name + "x", code=2)


def test_json_holds_what_the_page_holds() -> None:
    rule = RULES[0]
    assert json.loads(run("rule", rule.code, "--json")) == {
        "code": rule.code,
        "name": rule.name,
        "family": rule.code[:3],
        "severity": rule.severity.value,
        "scope": rule.scope.value,
        "at": rule.at,
        "needs_tokenizer": rule.needs_tokens,
        "summary": rule.docs.strip().splitlines()[0],
        "docs": rule.docs.strip(),
    }


def test_the_list_is_complete_in_every_format() -> None:
    text = run("rules").splitlines()
    assert [line.split()[0] for line in text] == [rule.code for rule in RULES]
    listed = json.loads(run("rules", "--format", "json"))
    assert [one["code"] for one in listed] == [rule.code for rule in RULES]
    assert json.loads(run("rules", "--json")) == listed


def test_the_page_in_docs_is_the_registry() -> None:
    made = run("rules", "--format", "markdown")
    assert made == (DOCS / "rules.md").read_text(encoding="utf-8"), "renew it: python scripts/renew"
