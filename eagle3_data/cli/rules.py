"""`rule CODE` and `rules`: the documentation of the rules, out of the registry.

What enters: a code or readable name. What leaves: the rule's docstring as text, Markdown or JSON.
It promises that docs/rules.md is `rules --format markdown`, word for word.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from eagle3_data.cli import console
from eagle3_data.cli.options import Json

if TYPE_CHECKING:
    from eagle3_data.audit.rules.registry import Rule

FAMILIES = {
    "RAW": "bytes and JSON",
    "REC": "record shape",
    "CAP": "reasoning capture",
    "WRP": "special-token wrapping",
    "GEN": "generation quality",
    "CHT": "roles, tools, templates",
    "TOK": "token stream, mask, grade",
    "SET": "the corpus as a whole",
    "CNV": "from record to sample, told by convert",
    "SHD": "shards, told by verify",
    "VOC": "draft vocabulary, told by vocab check and lint",
    "HID": "hidden states, told by extract",
    "CKP": "checkpoint of a drafter, told by lint",
}


class RulesFormat(StrEnum):
    """How the list of rules is printed."""

    TEXT = "text"
    MARKDOWN = "markdown"
    JSON = "json"


def rule(
    code: Annotated[
        str, typer.Argument(help="Code, name or prefix: CAP001, reasoning-missing, CAP.")
    ],
    json: Json = False,
) -> None:
    """Explain a rule: what fires it, why it matters, what to do.

    Example: eagle3-data rule CAP001
    """
    found = _called(code)
    if json:
        described = [_described(one) for one in found]
        console.data(described[0] if len(described) == 1 else described)
    else:
        console.result("\n\n".join(_page(one) for one in found))


def rules(
    format: Annotated[RulesFormat, typer.Option(help="How to print the list.")] = RulesFormat.TEXT,
    json: Json = False,
) -> None:
    """List every rule with its code, severity and summary.

    Example: eagle3-data rules --format markdown > rules.md
    """
    known = every_rule()
    if json or format is RulesFormat.JSON:
        console.data([_described(one) for one in known])
    elif format is RulesFormat.MARKDOWN:
        console.result(markdown(known))
    else:
        width = max(len(one.name) for one in known)
        lines = [f"{r.code}  {r.severity.value:6}  {r.name:{width}}  {r.summary}" for r in known]
        console.result("\n".join(lines))


def every_rule() -> tuple[Rule, ...]:
    """The rules of `check`, then those of the commands behind it, each family by code."""
    from eagle3_data.audit.rules import all_rules
    from eagle3_data.draft.findings import DRAFT_RULES
    from eagle3_data.shards.admission import CONVERT_RULES
    from eagle3_data.shards.rules import SHARD_RULES

    return (
        *all_rules(),
        *CONVERT_RULES.values(),
        *SHARD_RULES.values(),
        *DRAFT_RULES.values(),
    )


def _called(word: str) -> list[Rule]:
    """Rules by code, prefix or name. Raises RuleError."""
    from eagle3_data.audit.rules import named

    later = [
        one
        for one in every_rule()
        if one.family in ("CNV", "SHD", "VOC", "HID", "CKP")
        and (one.code.startswith(word.upper()) or one.name == word.lower())
    ]
    if later and word.strip():
        return later
    codes = named([word])
    return [one for one in every_rule() if one.code in codes]


def markdown(known: Sequence[Rule]) -> str:
    """The page docs/rules.md."""
    parts = [
        "# Rules\n",
        "Made by `eagle3-data rules --format markdown`; a test compares. Do not edit by hand.\n",
        "An *error* quarantines its line and makes the exit code 1; a *warning* is only told.\n",
    ]
    family = ""
    for one in known:
        if one.family != family:
            family = one.family
            parts.append(f"## {family}: {FAMILIES.get(family, 'other')}\n")
        parts.append(f"### {one.code} {one.name}\n")
        parts.append(f"*{_facts(one)}*\n")
        parts.append(one.docs.strip() + "\n")
    return "\n".join(parts)


def _facts(one: Rule) -> str:
    facts = [
        one.severity.value,
        _reach(one),
    ]
    if one.at:
        facts.append(f"at {one.at}")
    if one.needs_tokens and one.family != "CNV":  # convert never runs without
        facts.append("needs --tokenizer")
    return ", ".join(facts)


def _reach(one: Rule) -> str:
    if one.family == "SHD":
        return "files and samples"
    if one.family == "HID":
        return "states"
    if one.family in ("VOC", "CKP"):
        return "one drafter"
    return f"over the whole {one.scope.value}" if one.scope != "record" else "one record"


def _page(one: Rule) -> str:
    return f"{one.code} {one.name} ({_facts(one)})\n\n{one.docs.strip()}"


def _described(one: Rule) -> dict[str, Any]:
    return {
        "code": one.code,
        "name": one.name,
        "family": one.family,
        "severity": one.severity.value,
        "scope": one.scope.value,
        "at": one.at,
        "needs_tokenizer": one.needs_tokens,
        "summary": one.summary,
        "docs": one.docs.strip(),
    }
