"""Stop rules: how much of a fault a running capture may show before it is worth no more.

What enters: a text such as `CAP001>1%`. What leaves: a `StopOn` that says whether counts pass it.
It promises that a rule which can not work (no such code, a limit that is never or always passed) is
refused before the capture, with the near names, and that fewer than `FEWEST` rows never stop a run.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from eagle3_data.audit.rules import Choice as Rules

FEWEST = 100
"""Rows before a stop rule is judged: one bad row of the first ten says nothing about 1 %."""

_FORM = re.compile(r"\s*([^<>=%]+?)\s*(>=|>)\s*([0-9]+(?:\.[0-9]+)?)\s*(%?)\s*")


class StopFault(ValueError):
    """A stop rule that can not work; the message says why and how to write it."""


@dataclass(frozen=True, slots=True)
class StopOn:
    """One stop rule. `codes`: the record rules that its word names; a row that any of them fired
    on counts once.
    """

    text: str
    word: str
    codes: frozenset[str]
    limit: Fraction
    share: bool
    """`limit` is a share of the rows, not a number of rows."""
    reached: bool
    """`>=`: the limit itself stops."""

    @classmethod
    def parse(cls, text: str) -> StopOn:
        """`WORD>LIMIT`, WORD as in --select, LIMIT a share with % or a number of rows. Raises
        StopFault, and RuleError with the near names when WORD names no rule.
        """
        from eagle3_data.audit.rules import Scope, all_rules, named

        form = _FORM.fullmatch(text)
        if form is None:
            raise StopFault(
                f"--stop-on {text}: write it as CODE>SHARE% or CODE>COUNT, e.g. 'CAP001>1%' (in"
                " quotes: the shell reads > itself)"
            )
        word, sign, number, percent = form.groups()
        scopes = {rule.code: rule.scope for rule in all_rules()}
        named_codes = named([word])
        codes = frozenset(code for code in named_codes if scopes[code] is Scope.RECORD)
        if not codes:
            raise StopFault(
                f"--stop-on {text}: {', '.join(named_codes)} needs the whole file, not a part of"
                " it: name rules about single records, and run check afterwards"
            )
        limit, reached = Fraction(number), sign == ">="
        if percent:
            limit /= 100
        elif limit.denominator != 1:
            raise StopFault(f"--stop-on {text}: a number of rows is whole; for a share add %")
        if percent and (limit > 1 or (limit == 1 and not reached)):
            raise StopFault(f"--stop-on {text}: no share is above 100 %, so it would never stop")
        if reached and limit == 0:
            raise StopFault(
                f"--stop-on {text}: it would stop every run: write >0 or a larger limit"
            )
        return cls(text.strip(), word, codes, limit, bool(percent), reached)

    def passed(self, hits: int, rows: int) -> bool:
        """Whether `hits` of `rows` rows pass the limit."""
        if rows < FEWEST:
            return False
        bound = self.limit * rows if self.share else self.limit
        return hits >= bound if self.reached else hits > bound

    def told(self, hits: int, rows: int) -> str:
        """What to say when it stopped a run."""
        return (
            f"{self.word} fired on {hits} of {rows} rows ({hits / rows:.1%}): --stop-on {self.text}"
        )


def refuse_idle(stop_on: Sequence[StopOn], rules: Rules) -> None:
    """Raise StopFault for a stop rule of which no rule runs."""
    running = {rule.code for rule in rules.run}
    for stop in stop_on:
        if not stop.codes & running:
            why = {left.code: left.reason for left in rules.left}
            reasons = ", ".join(f"{c}: {why[c]}" for c in sorted(stop.codes))
            raise StopFault(f"--stop-on {stop.text}: no rule that it names runs ({reasons})")
