"""`rule CODE` and `rules`: the documentation of the rules, out of the registry.

What enters: a code or readable name. What leaves: the rule's docstring as text, Markdown or JSON.
It promises that docs/rules.md is `rules --format markdown`, word for word.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from eagle3_data.cli import console
from eagle3_data.cli.faults import UsageFault
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
}


class RulesFormat(StrEnum):
    """How the list of rules is printed."""

    TEXT = "text"
    MARKDOWN = "markdown"
    JSON = "json"


def rule(
    code: Annotated[
        str, typer.Argument(help="Code or readable name, e.g. CAP001 or reasoning-missing.")
    ],
    json: Json = False,
) -> None:
    """Explain one rule: what fires it, why it matters, what to do.

    Example: eagle3-data rule CAP001
    """
    found = _named(code)
    if json:
        console.data(_described(found))
    else:
        console.result(_page(found))


def rules(
    format: Annotated[RulesFormat, typer.Option(help="How to print the list.")] = RulesFormat.TEXT,
    json: Json = False,
) -> None:
    """List every rule with its code, severity and summary.

    Example: eagle3-data rules --format markdown > rules.md
    """
    known = _all()
    if json or format is RulesFormat.JSON:
        console.data([_described(one) for one in known])
    elif format is RulesFormat.MARKDOWN:
        console.result(markdown(known))
    else:
        width = max(len(one.name) for one in known)
        lines = [f"{r.code}  {r.severity.value:6}  {r.name:{width}}  {r.summary}" for r in known]
        console.result("\n".join(lines))


def markdown(known: list[Rule]) -> str:
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


def _all() -> list[Rule]:
    from eagle3_data.audit.rules import load

    return sorted(load().values(), key=lambda one: one.code)


def _named(text: str) -> Rule:
    from difflib import get_close_matches

    wanted = text.strip()
    known = _all()
    for one in known:
        if wanted.upper() == one.code or wanted.lower() == one.name:
            return one
    words = [word for one in known for word in (one.code, one.name)]
    near = get_close_matches(wanted.upper(), words, n=2) + get_close_matches(
        wanted.lower(), words, n=2
    )
    hint = f"did you mean {' or '.join(near)}?" if near else "eagle3-data rules lists them all"
    raise UsageFault(f"no rule is called {text!r}: {hint}")


def _facts(one: Rule) -> str:
    facts = [
        one.severity.value,
        f"over the whole {one.scope.value}" if one.scope != "record" else "one record",
    ]
    if one.at:
        facts.append(f"at {one.at}")
    if one.needs_tokens:
        facts.append("needs --tokenizer")
    return ", ".join(facts)


def _page(one: Rule) -> str:
    return f"{one.code} {one.name} ({_facts(one)})\n\n{one.docs.strip()}\n"


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
