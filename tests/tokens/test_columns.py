"""Figures read off a whole batch of id sequences: against the plain loop."""

from itertools import pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from eagle3_data.tokens.columns import changes
from eagle3_data.tokens.ragged import Ragged


def ragged(rows: list[list[int]]) -> Ragged:
    ids = np.array([token for row in rows for token in row], dtype=np.int32)
    return Ragged(ids, np.cumsum([0, *map(len, rows)], dtype=np.int64))


def test_changes_of_written_out_sequences() -> None:
    rows = [[7], [], [7, 7, 7], [7, 8, 7], [7, 7, 8], []]
    assert changes(ragged(rows)).tolist() == [0, 0, 0, 2, 1, 0]
    assert changes(ragged([])).tolist() == []
    assert changes(ragged([[], []])).tolist() == [0, 0]


@given(st.lists(st.lists(st.integers(0, 2), max_size=6), max_size=8))
def test_changes_are_those_of_a_loop(rows: list[list[int]]) -> None:
    expected = [sum(a != b for a, b in pairwise(row)) for row in rows]
    assert changes(ragged(rows)).tolist() == expected
