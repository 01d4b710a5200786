"""Every rule fires where it must and is silent where it must be, over fixtures/rules and the public
road.

A rule is tested by two files: each line of `<CODE>.fire.jsonl` must fire it, no line of
`<CODE>.pass.jsonl` may, and no other error-level rule may fire on a passing line unless
`settings.toml` excuses it, so that the fixtures stay records that a capture could hold. Rules over
whole files or the corpus are tested by file: each `<CODE>.fire*` as a whole fires, no
`<CODE>.pass*`.
"""

from __future__ import annotations

import tomllib
from functools import cache
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import eagle3_data
from eagle3_data.audit.rules import RuleError, all_rules, choose_rules, named
from eagle3_data.audit.rules.registry import REGISTRY, Rule, Scope, Severity, add

ROOT = Path(__file__).parents[2]
FIXTURES = ROOT / "fixtures" / "rules"
TOKENIZERS = ROOT / "fixtures" / "tokenizers"
SETTINGS: dict[str, dict[str, Any]] = tomllib.loads((FIXTURES / "settings.toml").read_text())
KNOWN_SETTINGS = {
    "by", "profile", "tokenizer", "holdout", "turns", "repair", "thresholds", "excuse",
}  # fmt: skip
RULES = all_rules()
CODES = [rule.code for rule in RULES]


def files(code: str, kind: str) -> list[Path]:
    return sorted(FIXTURES.glob(f"{code}.{kind}*.jsonl*"))


@cache
def checked(code: str, path: Path) -> pl.DataFrame:
    """Findings over one fixture, with every rule on and the rule under test named."""
    rule = REGISTRY[code]
    settings = SETTINGS.get(code, {})
    tokenizer = settings.get("tokenizer", "smollm2-think" if rule.needs_tokens else "")
    profile = settings.get("profile", "smollm2-think")
    report = eagle3_data.check(
        [path],
        profile=FIXTURES / profile if profile.endswith(".toml") else profile,
        tokenizer=TOKENIZERS / tokenizer if tokenizer else None,
        select=["ALL", code],
        holdout=[FIXTURES / name for name in settings.get("holdout", [])],
        turns=settings.get("turns", "last"),
        repair=settings.get("repair", False),
        thresholds=eagle3_data.Thresholds(**settings.get("thresholds", {})),
        workers=1,
    )
    assert report.faults == (), report.faults
    return report.findings


def by_file(code: str) -> bool:
    default = "file" if REGISTRY[code].scope is Scope.CORPUS else "line"
    return bool(SETTINGS.get(code, {}).get("by", default) == "file")


def lines(path: Path) -> set[int]:
    """Numbers of the lines that are not blank."""
    if path.suffix != ".jsonl":
        import gzip

        data = gzip.decompress(path.read_bytes())
    else:
        data = path.read_bytes()
    return {n for n, line in enumerate(data.split(b"\n"), 1) if line.strip()}


@pytest.mark.parametrize("code", CODES)
def test_fires(code: str) -> None:
    paths = files(code, "fire")
    assert paths, f"fixtures/rules/{code}.fire.jsonl is missing"
    for path in paths:
        findings = checked(code, path).filter(pl.col("code") == code)
        if by_file(code):
            assert findings.height, f"{path.name} does not fire {code}"
        else:
            assert len(lines(path)) >= 2, f"{path.name} needs two lines"
            assert set(findings["line"]) == lines(path), f"{path.name}: every line must fire"


@pytest.mark.parametrize("code", CODES)
def test_passes(code: str) -> None:
    paths = files(code, "pass")
    assert paths, f"fixtures/rules/{code}.pass.jsonl is missing"
    excused = set(SETTINGS.get(code, {}).get("excuse", []))
    for path in paths:
        assert by_file(code) or len(lines(path)) >= 2, f"{path.name} needs two lines"
        findings = checked(code, path)
        wrong = findings.filter(
            (pl.col("code") == code)
            | ((pl.col("severity") == "error") & ~pl.col("code").is_in(list(excused)))
        )
        told = wrong.select("code", "line", "detail").rows()
        assert not told, f"{path.name}: {told}"


@pytest.mark.parametrize("rule", RULES, ids=CODES)
def test_documented(rule: Rule) -> None:
    assert len(rule.summary) <= 100 and rule.summary.endswith("."), rule.summary
    for part in ("Why it matters: ", "What to do: "):
        assert rule.docs.count(part) == 1, f"{rule.code} lacks {part!r}"
    assert rule.name == rule.name.lower() and " " not in rule.name
    assert rule.at == "" or rule.at.startswith("/")


@pytest.mark.parametrize("rule", RULES, ids=CODES)
def test_details_hold_evidence(rule: Rule) -> None:
    if rule.detail is None:
        pytest.skip("no evidence beyond the place")
    found = pl.concat(
        checked(rule.code, path).filter(pl.col("code") == rule.code)
        for path in files(rule.code, "fire")
    )
    assert found["detail"].is_not_null().any(), f"{rule.code} never says why"


@pytest.mark.parametrize(
    "code", [r.code for r in RULES if "`--repair`" in r.docs and r.code != "REC016"]
)
def test_a_repair_that_a_rule_promises_is_made(code: str) -> None:
    """On a line of its own fire fixture at least: the rest may have two readings."""
    (path,) = files(code, "fire")
    before, after = (
        eagle3_data.check([path], profile="smollm2-think", repair=repair, workers=1).findings
        for repair in (False, True)
    )
    fired, left = (set(found.filter(pl.col("code") == code)["line"]) for found in (before, after))
    assert left < fired


def test_fixtures_belong_to_rules() -> None:
    stray = [p.name for p in FIXTURES.glob("*.jsonl*") if p.name.split(".")[0] not in CODES]
    assert stray == []
    assert set(SETTINGS) <= set(CODES)
    for code, settings in SETTINGS.items():
        assert set(settings) <= KNOWN_SETTINGS, code


def test_families() -> None:
    families = {
        family: sum(r.family == family for r in RULES) for family in {r.family for r in RULES}
    }
    assert set(families) == {"RAW", "REC", "CAP", "WRP", "GEN", "CHT", "TOK", "SET"}
    assert len(RULES) >= 55


def test_a_code_or_name_is_taken_once() -> None:
    rule = RULES[0]
    for code, name in (
        (rule.code, "another-name"),
        ("ZZZ001", rule.name),
        ("ZZ01", "another-name"),
    ):
        with pytest.raises(ValueError):
            add(Rule(code, name, Severity.WARN, "", lambda r: pl.lit(True), "Docs."))
    assert "ZZZ001" not in REGISTRY


def test_select_names_rules() -> None:
    assert named(["reasoning-missing"]) == ("CAP001",)
    assert named(["cap001, CAP00"]) == tuple(f"CAP00{i}" for i in range(1, 10))
    assert set(named(["ALL"])) == set(CODES)
    assert {rule.family for rule in choose_rules(["WRP", "CAP001"]).run} == {"WRP", "CAP"}
    with pytest.raises(RuleError, match="reasoning-missing"):
        named(["reasonin-missing"])
    with pytest.raises(RuleError, match="CAP001"):
        choose_rules(ignore=["CAP001X"])


def test_choice_sets_severities_and_tells_what_is_left() -> None:
    choice = choose_rules(
        ["CAP", "RAW021"], ["CAP009"], warn=["CAP"], error=["CAP001,CAP010"], with_tokens=False
    )
    run = {rule.code: rule.severity for rule in choice.run}
    left = {rule.code: rule.reason for rule in choice.left}
    assert run["CAP001"] is Severity.ERROR and run["CAP004"] is Severity.WARN
    assert run["CAP010"] is Severity.ERROR and run["RAW021"] is Severity.WARN
    assert left["CAP009"] == "ignored" and left["CAP003"] == "needs a tokenizer"
    assert left["WRP001"] == "not selected" and run.keys().isdisjoint(left)
    assert sorted([*run, *left]) == CODES
    assert choose_rules().left[0].reason == "off unless selected"


@pytest.mark.parametrize(
    ("words", "runs_as"),
    [
        ({}, None),
        ({"select": ["RAW"]}, None),
        ({"warn": ["RAW"]}, None),
        ({"error": ["ALL"]}, None),
        ({"select": ["RAW021"]}, Severity.WARN),
        ({"warn": ["RAW021"]}, Severity.WARN),
        ({"error": ["RAW021"]}, Severity.ERROR),
        ({"select": ["RAW021"], "error": ["RAW"]}, Severity.ERROR),
        ({"ignore": ["RAW021"], "error": ["RAW021"]}, None),
    ],
)
def test_a_rule_that_is_off_runs_only_when_named_itself(
    words: dict[str, list[str]], runs_as: Severity | None
) -> None:
    run = {rule.code: rule.severity for rule in choose_rules(**words).run}
    assert run.get("RAW021") is runs_as


@pytest.mark.parametrize("tokenizer", [None, TOKENIZERS / "smollm2-think"])
def test_clean_records_have_no_error(tokenizer: Path | None) -> None:
    report = eagle3_data.check(
        [ROOT / "fixtures" / "captures" / "clean_smollm2-think.jsonl"],
        profile="smollm2-think",
        tokenizer=tokenizer,
        workers=1,
    )
    wrong = report.findings.filter(pl.col("severity") == "error")
    assert wrong.select("code", "line").rows() == []


@pytest.mark.parametrize(
    ("capture", "expected"),
    [
        ("vllm", {"CAP009": 46, "CAP010": 32, "WRP003": 23}),
        ("llamacpp", {"CAP009": 23, "CAP011": 13, "WRP003": 12}),
    ],
)
def test_real_captures(capture: str, expected: dict[str, int]) -> None:
    """The counts agree with the description of the captures: 118 ended in the thought, 75 were cut
    in it."""
    report = eagle3_data.check(
        [ROOT / "fixtures" / "captures" / f"{capture}_smollm2-think.jsonl"],
        profile="smollm2-think",
        select=["RAW", "REC", "CAP", "WRP"],
        workers=1,
    )
    assert dict(report.findings["code"].value_counts().iter_rows()) == expected
