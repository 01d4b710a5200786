"""All rules: `all_rules()` imports the families, `choose_rules()` says which run and how severely.

What enters: codes, prefixes, names or ALL. What leaves: rules in the order of their codes.
It promises that a word that names no rule is an error with the nearest names, never silently
nothing, and that every rule is either run or told as left out.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from importlib import import_module
from typing import TYPE_CHECKING

from eagle3_data.audit.rules.registry import REGISTRY, Rule, Scope, Severity

if TYPE_CHECKING:
    from eagle3_data.audit.report import RuleNotRun

__all__ = [
    "Choice", "Rule", "RuleError", "Scope", "Severity",
    "all_rules", "choose_rules", "covered", "named",
]  # fmt: skip

FAMILIES = (
    "raw", "record", "capture", "counts", "wrapping", "generation", "chat", "tokens", "corpus",
)  # fmt: skip
"""The modules of this package that hold rules. A new family is a new name here."""


class RuleError(ValueError):
    """A word that names no rule; the message says what is near."""


@dataclass(frozen=True, slots=True)
class Choice:
    """The rules of a run, each under its severity in it, and why the others are `left`."""

    run: tuple[Rule, ...]
    left: tuple[RuleNotRun, ...]


def all_rules() -> tuple[Rule, ...]:
    """Every rule in the order of the codes, also those that are off unless selected."""
    for family in FAMILIES:
        import_module(f"{__name__}.{family}")
    return tuple(REGISTRY[code] for code in sorted(REGISTRY))


def named(words: Iterable[str]) -> tuple[str, ...]:
    """Codes of the rules that `words` name: a code, a prefix (CAP, WRP00), a name, or ALL.

    One word may hold several, with commas. Raises RuleError.
    """
    known = all_rules()
    codes: set[str] = set()
    for word in _split(words):
        found = [
            rule.code
            for rule in known
            if word.upper() == "ALL"
            or rule.code.startswith(word.upper())
            or rule.name == word.lower()
        ]
        if not found:
            raise RuleError(f"no rule is called {word!r}: {_near(word, known)}")
        codes.update(found)
    return tuple(sorted(codes))


def covered(word: str) -> tuple[str, ...]:
    """Codes whose severity `word` sets: those it names, without rules that are off by default
    unless it is their own code or name. Raises RuleError.
    """
    off = _off([word])
    return tuple(code for code in named([word]) if code not in off)


def choose_rules(
    select: Iterable[str] = (),
    ignore: Iterable[str] = (),
    *,
    error: Iterable[str] = (),
    warn: Iterable[str] = (),
    with_tokens: bool = True,
) -> Choice:
    """Which rules run: those of `select` (all when empty) without those of `ignore`.

    `error`, `warn`: rules that run under that severity; a word that names one rule beats a family,
    and where both name it alike, `error` wins. A rule that is off by default runs only when a word
    of any of them names it itself, not by ALL or a prefix: as WARN unless `error` names it. Without
    `with_tokens` rules that need a tokenizer are left out. Raises RuleError.
    """
    from eagle3_data.audit.report import RuleNotRun

    chosen = _split(select)
    wanted, dropped = set(named(chosen or ["ALL"])), set(named(ignore))
    lowered, raised = _split(warn), _split(error)
    off = _off((*chosen, *lowered, *raised))
    severities = {
        rule.code: Severity.WARN
        for rule in all_rules()
        if rule.severity is Severity.IGNORE and rule.code not in off
    }
    given = [(named([word]), Severity.WARN) for word in lowered]
    given += [(named([word]), Severity.ERROR) for word in raised]
    for codes, severity in sorted(given, key=lambda pair: -len(pair[0])):
        severities.update(dict.fromkeys((code for code in codes if code not in off), severity))
    run: list[Rule] = []
    left: list[RuleNotRun] = []
    for rule in all_rules():
        severity = severities.get(rule.code, rule.severity)
        reason = (
            "not selected"
            if rule.code not in wanted
            else "ignored"
            if rule.code in dropped
            else "off unless selected"
            if severity is Severity.IGNORE
            else "needs a tokenizer"
            if rule.needs_tokens and not with_tokens
            else None
        )
        if reason is None:
            run.append(rule if severity is rule.severity else replace(rule, severity=severity))
        else:
            left.append(RuleNotRun(rule.code, rule.name, reason))
    return Choice(tuple(run), tuple(left))


def _split(words: Iterable[str]) -> list[str]:
    return [part.strip() for text in words for part in text.split(",") if part.strip()]


def _off(words: Sequence[str]) -> frozenset[str]:
    """Rules that stay off: off by default, and no word names them itself."""
    names = {word.lower() for word in words}
    return frozenset(
        rule.code
        for rule in all_rules()
        if rule.severity is Severity.IGNORE and not {rule.code.lower(), rule.name} & names
    )


def _near(word: str, known: Sequence[Rule]) -> str:
    names = [text for rule in known for text in (rule.code, rule.name)]
    near = get_close_matches(word.upper(), names, n=2) + get_close_matches(word.lower(), names, n=2)
    return f"did you mean {' or '.join(near)}?" if near else "`eagle3-data rules` lists them all"
