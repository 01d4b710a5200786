"""The display of a running capture: what is stored, how fast, what it shows, what went wrong.

What enters: one call a stored row, one a failed attempt, and the counts of the live check. What
leaves: on a terminal some lines at its foot, four times a second; elsewhere one plain line every
so many rows and one at the end, so that a log stays short. It promises that a call costs a
microsecond and only counts: all text is made by the display's own thread, or for a line.
"""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from eagle3_data.cli import console

if TYPE_CHECKING:
    from eagle3_data.capture.watch import Tally

WINDOW = 60.0
"""Seconds that a rate looks back: a server that warms up or slows down shows soon."""
LINES = 20
"""Lines that a run prints in all, about, where no terminal is."""
FEWEST_ROWS, MOST_ROWS = 100, 1000
"""Rows between two such lines, at least and at most."""
CODES = 6
"""Rules and error kinds that are named; the rest is a number."""


@dataclass(slots=True)
class Display:
    """Counts of a run, and their text. `total`: rows wanted, None = open end; `done`: rows that
    an earlier run had stored; `tally`: counts of the live check, None without one.
    """

    total: int | None = None
    done: int = 0
    tally: Callable[[], Tally] | None = None
    line_every: int | None = None
    """Print a line every so many rows; None = never."""
    clock: Callable[[], float] = time.monotonic
    stored: int = 0
    tokens: int = 0
    given_up: int = 0
    errors: Counter[str] = field(default_factory=Counter)
    """Kind -> failed attempts."""
    started: float = field(init=False)
    _ended: bool = False
    _past: deque[tuple[float, int, int]] = field(default_factory=deque, repr=False)

    def __post_init__(self) -> None:
        self.started = self.clock()

    def row(self, tokens: int | None = 0) -> None:
        """A row was stored. `tokens`: completion tokens by the server's count."""
        self.stored += 1
        if tokens:
            self.tokens += tokens
        if self.line_every is not None and self.stored % self.line_every == 0:
            console.note(self.line())

    def error(self, kind: str, *, final: bool = False) -> None:
        """An attempt failed. `final`: the row is given up for this run."""
        self.errors[kind] += 1
        if final:
            self.given_up += 1

    def line(self) -> str:
        """Everything in one line, for a log."""
        return " · ".join(part for parts in self._parts() for part in parts)

    def summary(self) -> str:
        """The line for the end: rates are those of the whole run."""
        self._past.clear()
        self._ended = True
        return f"{self.line()} · in {duration(self.clock() - self.started)}"

    def text(self) -> str:
        """The same in up to three lines, for a terminal."""
        return "\n".join("   ".join(parts) for parts in self._parts() if parts)

    def _parts(self) -> tuple[list[str], list[str], list[str]]:
        return self._speed(), self._shown(), self._wrong()

    def _speed(self) -> list[str]:
        seen = self.done + self.stored
        of = "" if self.total is None else f" of {self.total:,}"
        parts = [f"{seen:,}{of} rows"]
        if self.given_up:
            parts.append(f"{self.given_up:,} given up")
        rows, tokens = self._rates()
        if rows:
            parts.append(f"{rows:,.1f} rows/s")
        if tokens:
            parts.append(f"{tokens:,.0f} tokens/s")
        left = 0 if self.total is None else self.total - seen - self.given_up
        if left > 0 and rows and not self._ended:
            parts.append(f"{duration(left / rows)} left")
        return parts

    def _rates(self) -> tuple[float, float]:
        """Rows and tokens a second over the last WINDOW, from what earlier texts saw."""
        now = self.clock()
        past = self._past or deque([(self.started, 0, 0)])
        while len(past) > 1 and now - past[1][0] >= WINDOW:
            past.popleft()
        then, rows, tokens = past[0]
        if not past[-1][0] >= now - 1:  # a text a second is enough to look back on
            past.append((now, self.stored, self.tokens))
        self._past = past
        seconds = now - then
        if seconds <= 0:
            return 0.0, 0.0
        return (self.stored - rows) / seconds, (self.tokens - tokens) / seconds

    def _shown(self) -> list[str]:
        if self.tally is None:
            return []
        now = self.tally()
        if not now.records:
            return []
        parts = [
            f"reasoning {now.with_reasoning / now.records:.1%}",
            f"cut {now.cut / now.records:.1%}",
        ]
        if now.graded:
            parts.append(f"grade A {now.exact / now.graded:.1%}")
        if now.unjudged:
            parts.append(f"{now.unjudged:,} rows not looked at")
        return parts

    def _wrong(self) -> list[str]:
        fired = dict(self.tally().codes) if self.tally is not None else {}
        # a copy: another thread counts on while the display's thread sorts
        kinds = dict(Counter(dict(self.errors)).most_common())
        return [f"{name} {count:,}" for name, count in (*_first(fired), *_first(kinds))]


def _first(counts: dict[str, int]) -> list[tuple[str, int]]:
    """The CODES largest counts of a sorted mapping, the others summed."""
    items = list(counts.items())
    rest = sum(count for _, count in items[CODES:])
    return [*items[:CODES], *([("others", rest)] if rest else [])]


def duration(seconds: float) -> str:
    """Seconds as a person says them: 48 s, 12 min, 3 h 05 min."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60:02d} min"


@contextmanager
def display(
    total: int | None = None,
    *,
    done: int = 0,
    tally: Callable[[], Tally] | None = None,
    quiet: bool = False,
) -> Iterator[Display]:
    """A display that is shown as long as the block runs, with a last line where no terminal is;
    `quiet`: it counts and shows nothing.
    """
    shown = Display(total, done, tally)
    if quiet:
        yield shown
        return
    try:
        if console.moving():
            with console.refreshing(shown.text):
                yield shown
        else:
            wanted = MOST_ROWS if total is None else (total - done) // LINES
            shown.line_every = min(max(wanted, FEWEST_ROWS), MOST_ROWS)
            yield shown
    finally:
        if shown.stored or shown.errors:
            console.note(shown.summary())
