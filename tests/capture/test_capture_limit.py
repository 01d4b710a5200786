"""Limits against a server of the test with a known best, in time of its own."""

from __future__ import annotations

import random

import pytest

from eagle3_data.capture.limit import MOST, Adaptive, Fixed

SPEED = 100.0
"""Tokens a second of one request, as long as no more than the slots are in flight."""


def play(limit: Adaptive | Fixed, slots: int, rows: int, refuse: int | None = None) -> list[int]:
    """Requests of some 200 tokens at a server that shares `slots` among all in flight. The limit
    after every row. `refuse`: answers 429 when so many are in flight.
    """
    chance = random.Random(7)
    now, seen = 0.0, []
    flying: list[list[float]] = []
    while len(seen) < rows:
        while len(flying) < limit.value:
            if refuse is not None and len(flying) >= refuse:
                limit.overload(now, now, busy=True)
                break
            size = max(10.0, chance.gauss(200, 60))
            flying.append([size, size])
        now += 0.05
        step = SPEED * min(1.0, slots / len(flying)) * 0.05
        for one in list(flying):
            one[0] -= step
            if one[0] <= 0:
                flying.remove(one)
                limit.done(int(one[1]), now)
                seen.append(limit.value)
    return seen


@pytest.mark.parametrize("slots", [16, 64, 200])
def test_it_rises_to_what_the_server_can_take_and_no_further(slots: int) -> None:
    seen = play(Adaptive(), slots, 60 * slots)
    settled = sorted(seen[len(seen) // 2 :])
    middle = settled[len(settled) // 2]
    assert slots / 2 <= middle <= slots * 2.5


def test_it_falls_when_the_server_says_so() -> None:
    seen = play(Adaptive(), 500, 2000, refuse=40)
    assert max(seen[200:]) <= 60
    assert min(seen[200:]) >= 20


def test_a_burst_of_refusals_is_one_fall() -> None:
    limit = Adaptive(value=100)
    for _ in range(100):
        limit.overload(5.0, 6.0, busy=True)
    assert limit.value == 70
    limit.overload(7.0, 8.0, busy=True)
    assert limit.value == 49


def test_one_server_error_is_no_overload() -> None:
    limit = Adaptive(value=64)
    for _ in range(6):
        limit.overload(1.0, 2.0, busy=False)
    assert limit.value == 64
    limit.overload(1.0, 2.0, busy=False)
    assert limit.value < 64


def test_bounds() -> None:
    limit = Adaptive(value=1)
    limit.overload(1.0, 2.0, busy=True)
    assert limit.value == 1
    limit = Adaptive(value=MOST, best=MOST // 2, best_rate=1.0, left_out=0)
    for n in range(1, MOST + 2):
        limit.done(1000, n / 100)
    assert limit.value == MOST


def test_a_chosen_number_stays() -> None:
    assert set(play(Fixed(12), 4, 50, refuse=6)) == {12}
