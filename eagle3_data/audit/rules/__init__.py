"""All rules: `all_rules()` imports the families, `select()` picks some and sets their severity.

What enters: codes, prefixes, names or ALL. What leaves: rules in the order of their codes.
It promises that a word that names no rule is an error with the nearest names, never silently
nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from difflib import get_close_matches
from importlib import import_module

from eagle3_data.audit.rules.registry import REGISTRY, Rule, Severity

FAMILIES = (
    "raw", "record", "capture", "counts", "wrapping", "generation", "chat", "tokens", "corpus",
)  # fmt: skip
"""The modules of this package that hold rules. A new family is a new name here."""


class UnknownRule(ValueError):
    """A word that names no rule; the message says what is near."""


def load() -> dict[str, Rule]:
    """The registry, code → rule, with every family imported."""
    for family in FAMILIES:
        import_module(f"{__name__}.{family}")
    return dict(sorted(REGISTRY.items()))


def all_rules() -> tuple[Rule, ...]:
    """Every rule in the order of the codes, also those that are off unless selected."""
    return tuple(load().values())


def named(words: Iterable[str]) -> tuple[str, ...]:
    """Codes of the rules that `words` name: a code, a prefix of one (CAP, WRP00), a readable name,
    or ALL.

    One word may hold several, with commas. Raises UnknownRule.
    """
    known = load()
    codes: dict[str, None] = {}
    for word in (part.strip() for text in words for part in text.split(",")):
        if not word:
            continue
        if word.upper() == "ALL":
            found = list(known)
        else:
            found = [
                c for c, r in known.items() if c.startswith(word.upper()) or r.name == word.lower()
            ]
        if not found:
            raise UnknownRule(f"no rule is called {word!r}: {_near(word, known)}")
        codes.update(dict.fromkeys(found))
    return tuple(sorted(codes))


def select(
    chosen: Iterable[str] = ("ALL",),
    *,
    ignore: Iterable[str] = (),
    severities: Mapping[str, Severity] | None = None,
    with_tokens: bool = True,
) -> tuple[Rule, ...]:
    """Rules to run, each with the severity that it runs under.

    `severities`: word as in `named` → severity; a later entry beats an earlier one. A rule that is
    IGNORE by default runs as WARN when `chosen` names it by code or name, not by ALL or a family.
    `with_tokens` False leaves out the rules that need a tokenizer. Raises UnknownRule.
    """
    known = load()
    words = [part.strip() for text in chosen for part in text.split(",")]
    dropped = set(named(ignore))
    exact = {
        c for c, r in known.items() if c in map(str.upper, words) or r.name in map(str.lower, words)
    }
    given: dict[str, Severity] = {}
    for word, severity in (severities or {}).items():
        given.update(dict.fromkeys(named([word]), severity))
    rules = []
    for code in named(words):
        rule = known[code]
        severity = given.get(code, rule.severity)
        if severity is Severity.IGNORE and code in exact and code not in given:
            severity = Severity.WARN
        if (
            code in dropped
            or severity is Severity.IGNORE
            or (rule.needs_tokens and not with_tokens)
        ):
            continue
        rules.append(rule if severity is rule.severity else replace(rule, severity=severity))
    return tuple(rules)


def _near(word: str, known: Mapping[str, Rule]) -> str:
    names: Sequence[str] = [text for rule in known.values() for text in (rule.code, rule.name)]
    near = get_close_matches(word.upper(), names, n=2) + get_close_matches(word.lower(), names, n=2)
    return f"did you mean {' or '.join(near)}?" if near else "`eagle3-data rules` lists them all"
