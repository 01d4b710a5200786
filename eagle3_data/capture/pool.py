"""The pool: servers that share one queue, each with its limit and its state of health.

What enters: servers and the outcomes of attempts. What leaves: the server that takes the next
request. It promises that a server which fails is tried by one request at a time, ever later, until
it answers or has failed too often and is dropped with a loud line; and that the last one dropped
ends the run.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from eagle3_data.capture.limit import Limit
from eagle3_data.capture.send import OVERLOAD, Answer, Fault, Sender, Trouble

if TYPE_CHECKING:
    from eagle3_data.capture.server import Server

AILING = 3
"""Failures in a row after which only trials are sent."""
FIRST_PAUSE, LONGEST_PAUSE = 0.25, 30.0


class Stopped(Exception):
    """Nothing more is sent: the run ends."""


class NoServer(ValueError):
    """No server is left; the message says how the last one failed."""


@dataclass(slots=True, eq=False)
class Lane:
    """One server in the pool. `ids`: the body's keys that make it add token ids."""

    server: Server
    sender: Sender
    limit: Limit
    ids: dict[str, Any] = field(default_factory=dict)
    in_flight: int = 0
    stored: int = 0
    faults: int = 0
    failures: int = 0
    """In a row. Attempts that were in flight together count once: one restart of a server is one
    failure, however many requests it cuts off.
    """
    counted: float = float("-inf")
    resume_at: float = 0.0
    trying: bool = False
    dropped: str | None = None

    @property
    def ailing(self) -> bool:
        return self.failures >= AILING

    def room(self, now: float) -> bool:
        """Whether the server takes a request now."""
        if self.dropped is not None:
            return False
        if self.ailing:
            return not self.trying and now >= self.resume_at
        return self.in_flight < self.limit.value


@dataclass(slots=True)
class Pool:
    """Hands out servers. `most`: failures in a row that drop one; `tell`: for loud lines."""

    lanes: Sequence[Lane]
    most: int
    tell: Callable[[str], None]
    stopped: bool = False
    exhausted: bool = False
    """Nothing new is to be asked: rates say no more what a server can do."""
    _waiting: list[asyncio.Future[None]] = field(default_factory=list)

    @property
    def width(self) -> int:
        """Requests that may be in flight in all."""
        return sum(lane.limit.value for lane in self.lanes if lane.dropped is None)

    def stop(self) -> None:
        """Hand out nothing more."""
        self.stopped = True
        self._wake()

    async def take(self, *, urgent: bool, avoid: Lane | None = None) -> Lane:
        """The next server with room; one other than `avoid` when there is a healthy one. Raises
        Stopped, NoServer.
        """
        while True:
            if self.stopped:
                raise Stopped
            lane = self._free(avoid)
            if lane is not None:
                lane.in_flight += 1
                lane.trying = lane.ailing
                return lane
            await self._changed(urgent)

    def give_back(self, lane: Lane) -> None:
        """The request at `lane` ended without an outcome (cancelled)."""
        lane.in_flight -= 1
        lane.trying = False
        self._wake()

    def answered(self, lane: Lane, answer: Answer) -> None:
        """The request at `lane` brought a whole answer."""
        if lane.ailing:
            self.tell(f"{lane.server.base_url} answers again")
        lane.failures = 0
        if not self.exhausted:
            lane.limit.done(answer.tokens, time.monotonic())
        self.give_back(lane)

    def failed(self, lane: Lane, fault: Fault, started: float) -> None:
        """The attempt at `lane`, begun at `started`, failed."""
        now = time.monotonic()
        lane.faults += 1
        if fault.kind in OVERLOAD:
            lane.limit.overload(started, now, busy=fault.kind is Trouble.BUSY)
        # 429 is an answer of a healthy server; what is refused is the fault of the request
        if fault.again and fault.kind is not Trouble.BUSY and started > lane.counted:
            lane.counted = now
            lane.failures += 1
            if lane.failures >= self.most:
                self._drop(lane, fault)
            elif lane.ailing:
                self._pause(lane, fault, now)
        self.give_back(lane)

    def _pause(self, lane: Lane, fault: Fault, now: float) -> None:
        wait = min(LONGEST_PAUSE, FIRST_PAUSE * 2 ** (lane.failures - AILING))
        lane.resume_at = now + wait
        asyncio.get_running_loop().call_later(wait, self._wake)
        if lane.failures == AILING:
            self.tell(
                f"{lane.server.base_url} fails ({fault.kind}: {fault}): one request at a time until"
                f" it answers, {self.most - lane.failures} more trials at most"
            )

    def _drop(self, lane: Lane, fault: Fault) -> None:
        if lane.dropped is None:
            lane.dropped = f"{lane.failures} failures in a row, the last: {fault.kind}: {fault}"
            self.tell(f"{lane.server.base_url} is dropped: {lane.dropped}")

    def _free(self, avoid: Lane | None) -> Lane | None:
        now = time.monotonic()
        alive = [lane for lane in self.lanes if lane.dropped is None]
        if not alive:
            last = "; ".join(f"{x.server.base_url}: {x.dropped}" for x in self.lanes)
            raise NoServer(last)
        if avoid is not None and any(x is not avoid and not x.ailing for x in alive):
            alive = [lane for lane in alive if lane is not avoid]
        found = [lane for lane in alive if lane.room(now)]
        return min(found, key=lambda x: x.in_flight / x.limit.value) if found else None

    async def _changed(self, urgent: bool) -> None:
        """Until something was given back. Rows on their second attempt are asked first."""
        waiter = asyncio.get_running_loop().create_future()
        self._waiting.insert(0 if urgent else len(self._waiting), waiter)
        try:
            await waiter
        finally:
            if waiter in self._waiting:
                self._waiting.remove(waiter)

    def _wake(self) -> None:
        waiting, self._waiting = self._waiting, []
        for waiter in waiting:
            if not waiter.done():
                waiter.set_result(None)
