"""Rules: a code, a name, a severity, a docstring and one Polars condition over the columns of the
road.

What enters: the signal columns (record table + sample table + signals). What leaves: a Boolean
column per rule. It promises that one place holds everything about a rule: `eagle3-data rule CODE`
prints the docstring below it.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING

import polars as pl

from eagle3_data.records.table import Note

if TYPE_CHECKING:
    from eagle3_data.audit.thresholds import Thresholds


class Severity(StrEnum):
    """ERROR quarantines the line and makes the exit code 1; WARN is told and kept; IGNORE is not
    run.
    """

    ERROR = "error"
    WARN = "warn"
    IGNORE = "ignore"


class Scope(StrEnum):
    """RECORD rules are conditions over one row; CORPUS rules need the whole run (duplicates,
    shifts, mixtures).
    """

    RECORD = "record"
    CORPUS = "corpus"


@dataclass(frozen=True, slots=True)
class Columns:
    """What a condition may name: every column as an attribute, thresholds as `r.t`, notes as
    `r.noted(Note.X)`.
    """

    t: Thresholds

    def __getattr__(self, name: str) -> pl.Expr:
        return pl.col(name)

    def noted(self, note: Note) -> pl.Expr:
        """True where a station of the road noted `note` on the row."""
        return (pl.col("notes") & pl.lit(int(note), dtype=pl.UInt64)) != 0


Condition = Callable[[Columns], pl.Expr]

CorpusSearch = Callable[[pl.DataFrame, "Thresholds"], pl.DataFrame]
"""(light records with their index `row`, thresholds) → findings with `row` (null = a whole file),
`file_no`, `detail`.
"""


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule. `detail` gives the evidence of a finding as text, evaluated only on rows where the
    rule fired.
    """

    code: str
    name: str
    severity: Severity
    at: str
    """JSON pointer into the record, or "" for the whole line."""
    condition: Condition
    docs: str
    scope: Scope = Scope.RECORD
    needs_tokens: bool = False
    """Can only run with a tokenizer."""
    detail: Condition | None = None
    search: CorpusSearch | None = None
    """Set for corpus rules, whose `condition` is never true."""

    def __reduce__(self) -> tuple[Callable[[str, Severity], Rule], tuple[str, Severity]]:
        """Travels to another process by its code and severity: expressions are built there."""
        return _known, (self.code, self.severity)

    @property
    def family(self) -> str:
        return self.code[:3]

    @property
    def summary(self) -> str:
        """First line of the documentation."""
        return self.docs.strip().splitlines()[0]


REGISTRY: dict[str, Rule] = {}


def _known(code: str, severity: Severity) -> Rule:
    """The registered rule `code` under `severity`."""
    from eagle3_data.audit.rules import all_rules

    for known in all_rules():
        if known.code == code:
            return replace(known, severity=severity)
    raise ValueError(f"there is no rule {code}")


def rule(
    code: str,
    name: str,
    *,
    severity: Severity,
    at: str = "",
    needs_tokens: bool = False,
    detail: Condition | None = None,
) -> Callable[[Condition], Condition]:
    """Register a record rule. The decorated function returns the condition; its docstring is the
    documentation.
    """

    def register(condition: Condition) -> Condition:
        add(
            Rule(
                code,
                name,
                severity,
                at,
                condition,
                inspect.getdoc(condition) or "",
                Scope.RECORD,
                needs_tokens,
                detail,
            )
        )
        return condition

    return register


def corpus_rule(
    code: str, name: str, *, severity: Severity, at: str = "", needs_tokens: bool = False
) -> Callable[[CorpusSearch], CorpusSearch]:
    """Register a corpus rule. The decorated function searches the light records of a whole run."""

    def register(search: CorpusSearch) -> CorpusSearch:
        docs = inspect.getdoc(search) or ""
        add(Rule(code, name, severity, at, _never, docs, Scope.CORPUS, needs_tokens, None, search))
        return search

    return register


def _never(_: Columns) -> pl.Expr:
    return pl.lit(False)


def add(new: Rule) -> None:
    """Put a rule into the registry. Raises ValueError on a malformed or taken code, a taken name,
    or no documentation.
    """
    if not re.fullmatch(r"[A-Z]{3}\d{3}", new.code):
        raise ValueError(f"rule code {new.code!r} is not three letters and three digits")
    if new.code in REGISTRY or any(r.name == new.name for r in REGISTRY.values()):
        raise ValueError(f"rule {new.code} {new.name!r} is already taken")
    if not new.docs:
        raise ValueError(f"rule {new.code} has no documentation")
    REGISTRY[new.code] = new
