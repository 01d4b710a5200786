"""Choosing a draft vocabulary, and its two forms: exact, deterministic, inverse of each other."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from eagle3_data.draft.mapping import Mapping, VocabError, choose, from_offsets


def ids(*values: int) -> np.ndarray:
    return np.array(values, dtype=np.int64)


def test_the_most_frequent_are_taken_and_the_lower_id_among_equals() -> None:
    counts = ids(5, 9, 0, 5, 5, 7, 0, 5)
    assert choose(counts, 4, ids()).targets.tolist() == [0, 1, 3, 5]
    assert choose(counts, 3, ids()).targets.tolist() == [0, 1, 5]


def test_control_tokens_are_in_whatever_their_counts() -> None:
    counts = ids(5, 9, 0, 5, 5, 7, 0, 5)
    assert choose(counts, 4, ids(6, 2, 6)).targets.tolist() == [1, 2, 5, 6]


def test_tokens_never_seen_fill_up_from_the_lowest_id() -> None:
    assert choose(ids(0, 0, 0, 3, 0), 3, ids()).targets.tolist() == [0, 1, 3]


def test_offsets_and_mask_are_those_of_the_checkpoints() -> None:
    mapping = choose(ids(0, 4, 0, 4, 4), 3, ids())
    assert mapping.d2t.tolist() == [1, 2, 2]
    assert mapping.d2t.dtype == np.int64
    assert mapping.t2d.tolist() == [False, True, False, True, True]
    assert mapping.t2d.dtype == np.bool_


def test_the_full_vocabulary_is_the_identity() -> None:
    mapping = choose(ids(0, 4, 0), 3, ids())
    assert mapping.d2t.tolist() == [0, 0, 0]
    assert mapping.t2d.all()


@pytest.mark.parametrize(
    ("size", "always", "message"),
    [
        (0, [], "choose a size from 1 to 4"),
        (5, [], "choose a size from 1 to 4"),
        (1, [0, 1], "2 control tokens do not fit"),
        (2, [7], "control token 7 is outside a vocabulary of 4"),
    ],
)
def test_what_can_not_be_made_is_refused(size: int, always: list[int], message: str) -> None:
    with pytest.raises(VocabError, match=message):
        choose(ids(1, 2, 3, 4), size, ids(*always))


@pytest.mark.parametrize("targets", [[0, 0], [-1], [4]])
def test_a_mapping_holds_different_ids_of_the_vocabulary(targets: list[int]) -> None:
    with pytest.raises(VocabError, match="different ones below 4"):
        Mapping(ids(*targets), 4)


@given(
    st.lists(st.integers(0, 3), min_size=1, max_size=30).flatmap(
        lambda counts: st.tuples(
            st.just(counts),
            st.integers(1, len(counts)),
            st.lists(st.integers(0, len(counts) - 1), max_size=3),
        )
    )
)
def test_any_choice_is_sorted_complete_and_comes_back(case) -> None:
    counts, size, always = case
    if len(set(always)) > size:
        return
    mapping = choose(ids(*counts), size, ids(*always))
    targets = mapping.targets.tolist()
    assert targets == sorted(set(targets))
    assert len(targets) == size
    assert set(always) <= set(targets)
    left_out = [(counts[t], -t) for t in range(len(counts)) if t not in targets]
    chosen = [(counts[t], -t) for t in targets if t not in always]
    assert not left_out or not chosen or max(left_out) < min(chosen)
    again = from_offsets(mapping.d2t, len(counts))
    assert again.targets.tolist() == targets
    assert again.fingerprint == mapping.fingerprint
    covered = sum(counts[t] for t in targets)
    assert mapping.coverage(ids(*counts)) == (covered / sum(counts) if sum(counts) else 1.0)
