"""Live: the check beside a running capture.

What enters: every stored line, at the moment it is stored. What leaves: counts of what the rows
show, and a sentence when a stop rule is passed. It promises that `feed` only queues (the judging
has one thread of its own), that memory stays flat however far that thread falls behind, and that a
fault in here never ends a capture: it is told in `fault`.

Only rules about single records run here. Duplicates, shifted pairs, mixtures need the whole file:
that is `check` afterwards.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from threading import Event, Lock, Thread
from types import TracebackType
from typing import TYPE_CHECKING, Self

from eagle3_data.capture.stop import StopFault as StopFault
from eagle3_data.capture.stop import StopOn as StopOn
from eagle3_data.capture.stop import refuse_idle
from eagle3_data.capture.watch import Tally as Tally
from eagle3_data.capture.watch import Watch

if TYPE_CHECKING:
    from eagle3_data.audit.thresholds import Thresholds
    from eagle3_data.profiles.profile import Profile
    from eagle3_data.tokens.tokenizer import Tokenizer

BATCH_ROWS = 256
"""Rows that are judged without waiting longer: a batch costs some 20 ms whatever is in it."""
SECONDS = 1.0
"""The longest that a row waits for others."""
BACKLOG = 64 << 20
"""Bytes of lines that may wait. Rows beyond are stored all the same, but only counted here."""


class Live:
    """Judges lines on a thread of its own. `profile`: a name, a file, a profile, or None = chosen
    from the first rows. With a `tokenizer` rows get grades too.

    Raises RuleError, StopFault, TokenizerError, MarkerMismatch… before the first row.
    """

    def __init__(
        self,
        profile: str | Path | Profile | None = None,
        tokenizer: str | Path | Tokenizer | None = None,
        thresholds: Thresholds | None = None,
        *,
        chat_template: str | Path | None = None,
        stop_on: Sequence[StopOn] = (),
        batch_rows: int = BATCH_ROWS,
        seconds: float = SECONDS,
        backlog: int = BACKLOG,
    ) -> None:
        from eagle3_data import plan
        from eagle3_data.audit.rules import choose_rules
        from eagle3_data.audit.thresholds import Thresholds
        from eagle3_data.records.shapes import Turns

        rules = choose_rules(with_tokens=tokenizer is not None)
        refuse_idle(stop_on, rules)
        self.fault: str | None = None
        """Why the check gave up, None while it works."""
        self._watch = Watch(
            profile,
            plan.tokenizer(tokenizer),
            thresholds or Thresholds(),
            rules,
            Turns.LAST,
            chat_template,
            stop_on=stop_on,
        )
        self._batch_rows, self._seconds, self._backlog = batch_rows, seconds, backlog
        self._tripped: str | None = None
        self._waiting: deque[bytes] = deque()
        self._bytes = self._fed = self._dropped = 0
        self._lock, self._wake, self._closed = Lock(), Event(), Event()
        self._thread = Thread(target=self._work, name="eagle3-data-live", daemon=True)
        self._thread.start()

    def feed(self, line: bytes) -> None:
        """Queue a stored line (with or without its line end). From any thread; costs about a
        microsecond.
        """
        with self._lock:
            if self.fault is not None or self._bytes > self._backlog:
                self._dropped += 1
                return
            self._waiting.append(line)
            self._bytes += len(line)
            full = len(self._waiting) >= self._batch_rows
        if full:
            self._wake.set()

    @property
    def tally(self) -> Tally:
        """The counts as of the last batch."""
        return replace(self._watch.tally, unjudged=self._dropped)

    @property
    def profile(self) -> str | None:
        """The profile in force and why, None before the first record."""
        chosen = self._watch.chosen
        return None if chosen is None else f"{chosen.profile.name} ({chosen.why})"

    def tripped(self) -> str | None:
        """What to say about the stop rule that was passed first, None while none was."""
        return self._tripped

    def close(self) -> Tally:
        """Judge what waits, end the thread, return the last counts. Safe to call twice."""
        self._closed.set()
        self._wake.set()
        self._thread.join()
        return self.tally

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _work(self) -> None:
        while True:
            closing = self._closed.is_set()
            if not closing:
                self._wake.wait(self._seconds)
                self._wake.clear()
            while lines := self._taken():
                self._judge(lines)
                if not closing:
                    break
            if closing:
                return

    def _taken(self) -> list[bytes]:
        """The lines that wait, at most eight batches: a longer backlog goes in bites."""
        with self._lock:
            count = min(len(self._waiting), 8 * self._batch_rows)
            lines = [self._waiting.popleft() for _ in range(count)]
            self._bytes -= sum(map(len, lines))
            if self._waiting:
                self._wake.set()
        return lines

    def _judge(self, lines: list[bytes]) -> None:
        from eagle3_data.records.lines import LineBatch

        first = self._fed + 1
        self._fed += len(lines)
        bodies = [line.rstrip(b"\r\n") for line in lines]
        numbers = list(range(first, first + len(lines)))
        try:
            self._watch.judge(LineBatch(0, bodies, numbers, [0] * len(lines)))
        except Exception as error:  # whatever it is: the capture is worth more than its check
            with self._lock:
                self.fault = f"{type(error).__name__}: {error}"
                self._dropped += len(lines) + len(self._waiting)
                self._waiting.clear()
                self._bytes = 0
            return
        if self._tripped is None:
            self._tripped = self._watch.tripped()
