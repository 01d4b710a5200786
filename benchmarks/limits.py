"""Limits that a benchmark holds itself to: the table of its ratios, and whether one is broken."""

from __future__ import annotations

from collections.abc import Sequence

Row = tuple[str, float, str, float]
"""(what, measured value, "<=" or ">=", limit)."""


def held(rows: Sequence[Row]) -> bool:
    """Print the rows, each with its verdict; True when no limit is broken."""
    kept = True
    for name, value, sign, limit in rows:
        good = value <= limit if sign == "<=" else value >= limit
        kept = kept and good
        print(f"  {name:<42}{value:8.2f}  {sign} {limit:<5}{'ok' if good else 'BROKEN'}")
    return kept
