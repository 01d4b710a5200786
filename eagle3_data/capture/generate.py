"""Generating: every job is asked until its row is stored or it has failed for good.

What enters: jobs, a pool of servers, an open journal, a `Plan`. What leaves: rows in the order in
which they finish, an `Outcome`. It promises that a row is stored only whole and once, that only
what is worth it is asked again (with jittered, growing pauses; `Retry-After` is kept), that
failures in a row end the run with what is stored intact, and that an interruption lets what is in
flight finish within the grace time.
"""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from enum import StrEnum

import orjson
from tenacity import (
    AsyncRetrying,
    RetryCallState,
    retry_if_exception,
    stop_after_attempt,
    wait_random_exponential,
)

from eagle3_data.capture.jobs import Job
from eagle3_data.capture.journal import Journal
from eagle3_data.capture.pool import Lane, NoServer, Pool, Stopped
from eagle3_data.capture.request import Json
from eagle3_data.capture.send import Answer, Fault

FLUSH_SECONDS = 5.0
"""A power cut costs the rows of so many seconds; they are asked again."""
WAITING = 4
"""Rows that are asked for again may be so many times those that may be in flight."""
_WAIT = wait_random_exponential(multiplier=0.5, max=60)


class Ended(StrEnum):
    """How a run ended."""

    DONE = "done"
    STOPPED = "stopped"
    INTERRUPTED = "interrupted"


@dataclass(frozen=True, slots=True)
class Plan:
    """How rows are asked for. `attempts`: of one row; `most`: rows that fail in a row before the
    run stops; `grace`: seconds for what is in flight after an interruption; `cut`: tokens for one
    larger retry of an answer that was cut, None = none.
    """

    attempts: int = 5
    most: int = 16
    grace: float = 30.0
    cut: int | None = None
    stream: bool = False


@dataclass(slots=True)
class Watch:
    """Who is told of what while a run goes on: rows, failed attempts, rows given up."""

    stored: Callable[[bytes, int], None] = lambda line, tokens: None
    failed: Callable[[str], None] = lambda kind: None
    given_up: Callable[[], None] = lambda: None
    tripped: Callable[[], str | None] = lambda: None
    tell: Callable[[str], None] = lambda text: None


@dataclass(slots=True)
class Outcome:
    """What a run did. `reason`: why it stopped, None when it did not."""

    ended: Ended = Ended.DONE
    reason: str | None = None
    stored: int = 0
    failed: int = 0
    known: int = 0
    """Rows that an earlier run had stored."""
    repeated: int = 0
    cut: int = 0
    """Rows stored with finish_reason length."""
    tokens: int = 0
    seconds: float = 0.0
    whole: bool = False
    """Every row that was wanted was asked for to its end."""


@dataclass(slots=True)
class Asked:
    """What came of a job: the answer, where and how it was asked."""

    answer: Answer
    request: bytes
    lane: Lane


@dataclass(slots=True)
class Run:
    """One run over its jobs."""

    pool: Pool
    journal: Journal
    plan: Plan
    watch: Watch
    outcome: Outcome = field(default_factory=Outcome)
    taken: set[bytes] = field(default_factory=set)
    """Identities in flight, and those that failed in this run."""
    tasks: set[asyncio.Task[None]] = field(default_factory=set)
    failures: int = 0
    """Rows that failed in a row."""
    broken: BaseException | None = None
    ending: asyncio.Event = field(default_factory=asyncio.Event)
    moved: asyncio.Event = field(default_factory=asyncio.Event)

    async def go(self, wanted: Iterator[Job]) -> Outcome:
        """Ask every job. Raises what broke the journal, after all that could be was stored."""
        started = time.monotonic()
        loop = asyncio.get_running_loop()
        handled = _on_signals(loop, self._interrupt)
        flushing = asyncio.create_task(self._flush())
        try:
            await self._feed(wanted)
            self.pool.exhausted = True
            while self.tasks:
                await asyncio.wait(self.tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in self.tasks:
                task.cancel()
            await asyncio.gather(*self.tasks, return_exceptions=True)
            flushing.cancel()
            await asyncio.gather(flushing, return_exceptions=True)
            for number in handled:
                loop.remove_signal_handler(number)
        self.outcome.seconds = time.monotonic() - started
        self.outcome.whole = not self.ending.is_set()
        if self.broken is not None:
            raise self.broken
        return self.outcome

    def stop(self, ended: Ended, reason: str) -> None:
        """Take on nothing more; what is in flight has the grace time. The first reason counts."""
        if not self.ending.is_set():
            self.outcome.ended, self.outcome.reason = ended, reason
            self.ending.set()
            self.moved.set()
            self.pool.stop()
            asyncio.get_running_loop().call_later(self.plan.grace, self._cancel)

    def _interrupt(self) -> None:
        """First signal: finish what is in flight within the grace time. Second: stop at once."""
        if self.outcome.ended is Ended.INTERRUPTED:
            self._cancel()
            return
        count = sum(lane.in_flight for lane in self.pool.lanes)
        self.stop(Ended.INTERRUPTED, "interrupted")
        self.outcome.ended = Ended.INTERRUPTED  # also when the run was stopping already
        self.watch.tell(
            f"interrupted: {count} requests in flight get {self.plan.grace:g} s to finish"
            " (once more to stop at once)"
        )

    def _cancel(self) -> None:
        for task in self.tasks:
            task.cancel()

    async def _feed(self, wanted: Iterator[Job]) -> None:
        """Start a task for each job as soon as a server has room."""
        for job in wanted:
            if self.ending.is_set():
                return
            if job.identity in self.journal.stored:
                self.outcome.known += 1
                continue
            if job.identity in self.taken:
                self.outcome.repeated += 1
                continue
            while len(self.tasks) >= WAITING * self.pool.width and not self.ending.is_set():
                self.moved.clear()
                await self.moved.wait()
            try:
                lane = await self.pool.take(urgent=False)
            except Stopped:
                return
            except NoServer as error:
                self.stop(Ended.STOPPED, f"no server is left: {error}")
                return
            self.taken.add(job.identity)
            task = asyncio.create_task(self._row(job, lane))
            self.tasks.add(task)
            task.add_done_callback(self._finished)

    def _finished(self, task: asyncio.Task[None]) -> None:
        self.tasks.discard(task)
        self.moved.set()
        if not task.cancelled() and (error := task.exception()) is not None:
            self.broken = self.broken or error
            self.stop(Ended.STOPPED, str(error))

    async def _row(self, job: Job, lane: Lane) -> None:
        """One job to its end. Nothing is stored when the run ends first."""
        history: list[Json] = []
        try:
            asked = await self._ask(job, job.asked, history, lane)
            if self.plan.cut is not None and asked.answer.finish == "length":
                asked = await self._longer(job, asked, history)
        except Fault as fault:
            self._fail(job, history, fault)
        except Stopped:
            self.taken.discard(job.identity)
        except NoServer as error:
            self.taken.discard(job.identity)
            self.stop(Ended.STOPPED, f"no server is left: {error}")
        else:
            self._store(job, asked, history)

    async def _ask(
        self, job: Job, body: Json, history: list[Json], lane: Lane | None = None
    ) -> Asked:
        """Attempts until one brings an answer. Raises the last Fault, Stopped, NoServer."""
        taken = lane

        async def once() -> Asked:
            nonlocal taken, lane
            taken = taken or await self.pool.take(urgent=True, avoid=lane)
            lane, taken = taken, None
            return await self._once(body, history, lane)

        retrying = AsyncRetrying(
            stop=stop_after_attempt(self.plan.attempts),
            wait=_pause,
            retry=retry_if_exception(lambda error: isinstance(error, Fault) and error.again),
            sleep=self._sleep,
            reraise=True,
        )
        return await retrying(once)

    async def _once(self, body: Json, history: list[Json], lane: Lane) -> Asked:
        """One attempt at one server, and what the pool learns from it."""
        sent = {**body, **{k: v for k, v in lane.ids.items() if k not in body}}
        if self.plan.stream:
            sent["stream"] = True
            sent["stream_options"] = {"include_usage": True}
        started, at = time.monotonic(), time.time()
        try:
            content = orjson.dumps(sent)
            answer = await lane.sender.ask(content, body["model"])
        except Fault as fault:
            history.append(
                {
                    "kind": fault.kind.value,
                    "status": fault.status,
                    "message": str(fault),
                    "base_url": lane.server.base_url,
                    "at": round(at, 3),
                    "seconds": round(time.monotonic() - started, 3),
                }
            )
            self.pool.failed(lane, fault, started)
            self.watch.failed(fault.kind.value)
            raise
        except BaseException:
            self.pool.give_back(lane)
            raise
        self.pool.answered(lane, answer)
        return Asked(answer, content, lane)

    async def _longer(self, job: Job, first: Asked, history: list[Json]) -> Asked:
        """One retry of a cut answer with more tokens; of the two the longer one."""
        key = "max_completion_tokens" if "max_completion_tokens" in job.asked else "max_tokens"
        body = {**job.asked, key: self.plan.cut}
        before = {"kind": "cut", key: job.asked.get(key), "tokens": first.answer.tokens}
        before["base_url"] = first.lane.server.base_url
        history.append(before)
        try:
            second = await self._ask(job, body, history)
        except (Fault, Stopped, NoServer) as error:
            before["kept"] = f"this one, the retry failed: {type(error).__name__}"
            return first
        longer = _length(second.answer) >= _length(first.answer)
        if not longer:
            history.append({"kind": "shorter", key: self.plan.cut, "tokens": second.answer.tokens})
        return second if longer else first

    def _store(self, job: Job, asked: Asked, history: list[Json]) -> None:
        answer, server = asked.answer, asked.lane.server
        row: Json = {
            "id": job.id,
            "identity": job.identity.hex(),
            "sample": job.sample,
            "request": orjson.Fragment(asked.request),
            "response": orjson.Fragment(answer.raw),
            "server": server.kind.value,
            "server_version": server.version,
            "base_url": server.base_url,
            "latency_s": round(answer.latency, 4),
            "attempt": len(history) + 1,
            "finished_at": round(time.time(), 3),
        }
        if history:
            row["attempts"] = history
        line = self.journal.add(job.identity, row)
        self.taken.discard(job.identity)
        self.failures = 0
        asked.lane.stored += 1
        self.outcome.stored += 1
        self.outcome.tokens += answer.tokens
        self.outcome.cut += answer.finish == "length"
        self.watch.stored(line, answer.tokens)
        if (tripped := self.watch.tripped()) is not None:
            self.stop(Ended.STOPPED, tripped)

    def _fail(self, job: Job, history: list[Json], fault: Fault) -> None:
        row = {
            "id": job.id,
            "identity": job.identity.hex(),
            "sample": job.sample,
            "prompt": job.place,
            "request": job.asked,
            "error": f"{fault.kind.value}: {fault}",
            "attempts": history,
            "finished_at": round(time.time(), 3),
        }
        self.journal.fail(job.identity, row)
        self.outcome.failed += 1
        self.watch.given_up()
        self.failures += 1
        if self.failures >= self.plan.most:
            self.stop(
                Ended.STOPPED,
                f"{self.failures} rows failed in a row, the last ({job.place}) with"
                f" {fault.kind.value}: {fault}",
            )

    async def _sleep(self, seconds: float) -> None:
        """A pause that ends with the run."""
        try:
            await asyncio.wait_for(self.ending.wait(), seconds)
        except TimeoutError:
            return
        raise Stopped

    async def _flush(self) -> None:
        while True:
            await asyncio.sleep(FLUSH_SECONDS)
            try:
                await asyncio.to_thread(self.journal.flush)
            except Exception as error:  # nobody waits for this task: the run must hear of it
                self.broken = self.broken or error
                self.stop(Ended.STOPPED, str(error))
                return


def _pause(state: RetryCallState) -> float:
    """Jittered and growing; never less than the server asked for."""
    error = state.outcome.exception() if state.outcome is not None else None
    asked = error.retry_after if isinstance(error, Fault) else None
    return max(_WAIT(state), asked or 0.0)


def _length(answer: Answer) -> tuple[int, int]:
    return answer.tokens, len(answer.raw)


def _on_signals(loop: asyncio.AbstractEventLoop, call: Callable[[], None]) -> list[int]:
    """Hear SIGINT and SIGTERM; none where the loop can not (not the main thread)."""
    heard = []
    for number in (signal.SIGINT, signal.SIGTERM):
        try:
            loop.add_signal_handler(number, call)
        except (NotImplementedError, RuntimeError, ValueError):
            continue
        heard.append(int(number))
    return heard
