"""Known faults as functions on a clean captured row: what the mutation test plants and expects to
be named and kept out.

Each fault says where it comes from (the row of the failure catalogue), how it changes the row,
which rules must name it, and what must become of its line.
"""

from __future__ import annotations

# in this order: FAULTS is the order in which the modules register theirs
from benchmarks.faults import capture, generation, records, ids, corpus  # isort: skip
from benchmarks.faults.fault import FAULTS, Base, Expected, Fault, Row, line, without_ids

__all__ = [
    "FAULTS", "Base", "Expected", "Fault", "Row", "capture", "corpus", "generation", "ids", "line",
    "records", "without_ids",
]  # fmt: skip
