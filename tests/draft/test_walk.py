"""The walk: numbers written out by hand, and the chances of sampling against every course."""

from __future__ import annotations

import random
from itertools import product

import numpy as np
import polars as pl
import pytest

from eagle3_data.draft.walk import CAUSES, Cause, averaged, causes, frame_of, runs, walk, walked


def accept(rows: dict[int, tuple[float, ...]], count: int, drafts: int) -> np.ndarray:
    """[drafts, count] of zeros, `rows` filled in."""
    out = np.zeros((drafts, count))
    for row, values in rows.items():
        out[:, row] = values
    return out


def test_a_walk_written_out() -> None:
    """Ten tokens, three of them prompt. Row 2 drafts tokens 4 and 5, both right: 6 is the target's
    own, the next step starts at row 5. It drafts 7 right and 8 wrong; the next starts at row 7,
    drafts 9 right, and no token 10 is known.
    """
    told = accept({2: (1, 1), 3: (1, 1), 4: (1, 1), 5: (1, 0), 6: (1, 1), 7: (1, 1)}, 8, 2)
    rows, visits, prefix = walk(told, 3, 10)
    assert rows.tolist() == [2, 3, 4, 5, 6, 7]
    assert visits.tolist() == [1, 0, 0, 1, 0, 1]
    assert prefix[1].tolist() == [1, 1, 1, 1, 1, 1]
    assert prefix[2].tolist() == [1, 1, 1, 0, 1, 0]  # token 10 is not there
    frame = framed(told, 3, 10)
    found = walked(frame, 2)
    assert (found.steps, found.p) == (3.0, [1.0, pytest.approx(1 / 3)])
    assert found.length == pytest.approx(2 + 1 / 3)
    assert averaged(frame, 2).p == [1.0, pytest.approx(4 / 5)]  # of five rows that have token k
    assert causes(frame) == {Cause.NEAR: 0.5, Cause.END: 0.5}


def framed(told: np.ndarray, start: int, end: int, conversation: str = "a") -> pl.DataFrame:
    count = told.shape[1] + 2
    mask = (np.arange(count) >= start) & (np.arange(count) < end)
    spans = [
        {"kind": "prompt", "start": 0, "end": start},
        {"kind": "content", "start": start, "end": count},
    ]
    why = np.full(told.shape, CAUSES.index(Cause.NEAR), dtype=np.int8)
    return frame_of(told, why, mask, spans, {"conversation_id": conversation, "file": None})


def test_the_chances_of_sampling_are_those_of_every_course() -> None:
    """Each draft is accepted or not on its own: add up all courses through a short text."""
    rng = random.Random(5)
    drafts, start, end = 2, 2, 8
    told = np.array([[rng.random() for _ in range(end - 2)] for _ in range(drafts)])
    rows, visits, prefix = walk(told, start, end)
    # a course: for each row how many drafts of a step there would be accepted
    wanted_visits, wanted = np.zeros(len(rows)), np.zeros((drafts, len(rows)))
    for course in product(range(drafts + 1), repeat=len(rows)):
        chance, place = 1.0, 0
        for j, accepted in enumerate(course):
            there = prefix[:, j]
            chance *= there[accepted] - (there[accepted + 1] if accepted < drafts else 0.0)
        while place < len(rows):
            wanted_visits[place] += chance
            wanted[: course[place], place] += chance
            place += course[place] + 1
    np.testing.assert_allclose(visits, wanted_visits)
    np.testing.assert_allclose(prefix[1:] * visits, wanted)
    found = walked(framed(told, start, end), drafts)
    assert found.steps == pytest.approx(wanted_visits.sum())
    assert found.p == pytest.approx((wanted.sum(axis=1) / wanted_visits.sum()).tolist())


def test_every_generation_of_a_sample_has_its_own_prefill() -> None:
    mask = np.array([0, 0, 1, 1, 1, 0, 1, 1, 1, 1], dtype=bool)
    assert runs(mask) == [(2, 5), (6, 10)]
    told = np.zeros((2, 8))
    frame = frame_of(told, np.zeros((2, 8), np.int8), mask, [], {"conversation_id": "a"})
    # rows 1, 2 draft tokens 3, 4; rows 5, 6, 7 draft tokens 7, 8, 9
    assert frame["position"].to_list() == [1, 2, 1, 2, 3]
    assert frame["after_prefill"].to_list() == [True, False, True, False, False]
    assert walked(frame, 2).steps == 5
    assert walked(frame, 2).p == [0.0, 0.0]


def test_answers_too_short_to_draft_for_have_no_step() -> None:
    for mask in ([0, 0, 1], [1, 1], [0, 0, 0]):
        told = np.zeros((3, max(len(mask) - 2, 0)))
        found = frame_of(told, told.astype(np.int8), np.array(mask, dtype=bool), [], {})
        assert found.height == 0


def test_intervals_hold_the_value_and_need_two_conversations() -> None:
    rng = np.random.default_rng(0)
    frames = [
        framed((rng.random((3, 30)) < rate).astype(float), 4, 32, f"c{i}")
        for i, rate in enumerate(rng.uniform(0.3, 0.9, 40))
    ]
    rows = pl.concat(frames)
    found = walked(rows, 3, seed=0)
    assert found.length_interval is not None and found.p_interval is not None
    low, high = found.length_interval
    assert low < found.length < high and high - low < 1
    assert all(a < p < b for p, (a, b) in zip(found.p, found.p_interval, strict=True))
    assert walked(rows, 3, seed=0) == found
    assert walked(frames[0], 3, seed=0).p_interval is None


def test_positions_fall_into_ranges() -> None:
    rows = framed(np.zeros((1, 600)), 1, 602)
    ends = rows.group_by("bucket", maintain_order=True).agg(pl.col("position").max())
    assert ends.rows() == [("1-31", 31), ("32-127", 127), ("128-511", 511), ("512-2047", 600)]
