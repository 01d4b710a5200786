"""Known faults in real rows are named, and clean rows are left alone. The full figures are in
docs/mutations.md, made by benchmarks/mutations.py.
"""

from __future__ import annotations

from benchmarks.mutations import run


def test_every_planted_fault_is_named_and_clean_rows_stay_clean() -> None:
    tally = run(rounds=2, seed=20)
    assert tally.untouched > 200
    assert tally.broken() == []
