"""Limits: how many requests a server has in flight, fixed or found by trying.

What enters: finished answers with their tokens, and overloads. What leaves: a number. It promises
to rise only while more in flight gave more tokens a second, and to fall at once when the server
says that it is too much.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

START, MOST = 8, 1024
FEWEST = 16
"""Answers that a rate is measured over, at least: lengths of answers scatter."""
GROWTH = {True: 1.2, False: 1.05}
"""Doubling, and a quarter more, must bring so many times the tokens a second, else the server was
full before. Rates over such windows scatter by a tenth.
"""
FALL = 0.7
HOLD = 8
"""Windows without a trial after one that brought nothing."""


class Limit(Protocol):
    """The number of requests that may be in flight at a server."""

    @property
    def value(self) -> int: ...

    def done(self, tokens: int, now: float) -> None:
        """An answer of `tokens` arrived while there was more to ask."""

    def overload(self, started: float, now: float, *, busy: bool) -> None:
        """An attempt that was begun at `started` failed with 5xx or a time-out, or (`busy`) 429."""


@dataclass(slots=True)
class Fixed:
    """A number that the user chose."""

    value: int

    def done(self, tokens: int, now: float) -> None: ...

    def overload(self, started: float, now: float, *, busy: bool) -> None: ...


@dataclass(slots=True)
class Adaptive:
    """Doubles while that pays, then holds the best and tries a quarter more now and then.

    A change takes effect when what was in flight before has gone: as many answers as the new limit
    are left out before a rate is measured.
    """

    value: int = START
    best: int = START
    best_rate: float = 0.0
    doubling: bool = True
    held: int = 0
    left_out: int = START
    since: float = 0.0
    rows: int = 0
    work: int = 0
    bad: int = 0
    fell: float = float("-inf")

    def done(self, tokens: int, now: float) -> None:
        if self.left_out > 0:
            self.left_out -= 1
            if self.left_out == 0:
                self._measure(now)
            return
        self.rows += 1
        self.work += tokens or 1
        if self.rows >= max(self.value, FEWEST) and now > self.since:
            self._judge(self.work / (now - self.since))
            self._measure(now)

    def overload(self, started: float, now: float, *, busy: bool) -> None:
        if started <= self.fell:  # begun before the last fall: the same overload
            return
        self.bad += 1
        if not busy and self.bad * 10 < max(self.value, 20):  # one 500 is no overload
            return
        self.fell = now
        self.bad = 0
        self.doubling = False
        self.best_rate = 0.0
        self._set(max(1, int(self.value * FALL)))
        self.best = self.value

    def _judge(self, rate: float) -> None:
        self.bad = 0
        if rate > self.best_rate * (GROWTH[self.doubling] if self.value != self.best else 1.0):
            if self.value == self.best and self.best_rate and not self.doubling:
                self.best_rate = rate  # the same limit on easier prompts
                self._wait()
                return
            self.best, self.best_rate = self.value, rate
            self._set(self.value * 2 if self.doubling else self.value + max(1, self.value // 4))
        elif self.value == self.best:
            self.best_rate = 0.8 * self.best_rate + 0.2 * rate  # prompts change along a file
            self._wait()
        else:
            self.doubling = False
            self.held = HOLD
            self._set(self.best)

    def _wait(self) -> None:
        self.held -= 1
        if self.held <= 0:
            self._set(self.value + max(1, self.value // 4))
            self.held = HOLD

    def _set(self, value: int) -> None:
        self.value = min(value, MOST)
        self.left_out = self.value

    def _measure(self, now: float) -> None:
        self.since, self.rows, self.work = now, 0, 0
