"""Processes: the batches of a large input, shared out to several processes.

What enters: batches of lines and the `Work` that is done with one. What leaves: judged batches in
the order of the input. It promises the result of one thread, that a process which dies costs time
and never a line (the caller judges its batch again and tells it), and that no process outlives the
run by more than one batch, even when the run is killed.

Python's interpreter lock lets threads share only what Polars and the tokenizer do; parsing and the
assembly of samples are not that. `multiprocessing` is not used because it imports the caller's main
module once more, which runs a script that has no `__name__` guard again.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from queue import PriorityQueue
from tempfile import TemporaryFile
from threading import Lock, Thread
from traceback import format_exception
from types import TracebackType
from typing import IO, TYPE_CHECKING, Any, Protocol, Self

from eagle3_data.pipeline import in_order

if TYPE_CHECKING:
    from eagle3_data.audit.judge import Judged
    from eagle3_data.pipeline import Parsing, Road
    from eagle3_data.records.lines import LineBatch

FEEDS_ALONE = 4
"""Processes from which the calling one only reads lines: handing a batch over costs it a tenth of
what the batch costs the process that judges it.
"""

READY = b"eagle3-data\n"
"""The first line of a process that is ours."""
LAST_WORDS = 400
"""Characters of what a lost process said that are told."""

_START = "import sys; sys.path[:] = sys.argv[1:]; from eagle3_data.processes import serve; serve()"
"""The search path is the caller's: what `-m` would put before it is the folder of the user's data,
where a file may be called polars.py.
"""
_ONE_THREAD = dict.fromkeys(("POLARS_MAX_THREADS", "RAYON_NUM_THREADS", "OMP_NUM_THREADS"), "1")


class Lost(Exception):
    """A process that is gone; the text says how it ended."""


class Lane(Protocol):
    """Whoever can judge a batch."""

    def run(self, batch: LineBatch) -> Judged:
        """From lines to findings. Raises what the road raises, and Lost."""


@dataclass(frozen=True, slots=True)
class Work:
    """All that happens to a batch, from its lines to its findings. Pure."""

    parsing: Parsing
    road: Road

    def run(self, batch: LineBatch) -> Judged:
        """The batch as records, over the road."""
        return self.road.run(self.parsing.table(batch))


class Process:
    """Another Python, started and not waited for. Raises Lost when there is none to start."""

    def __init__(self) -> None:
        name = Path(sys.executable or "").name
        if getattr(sys, "frozen", False) or "py" not in name.lower():
            raise Lost(f"{name or 'nothing'} is no Python that can be started")
        self._said = TemporaryFile()  # noqa: SIM115 - open as long as the process
        try:
            self._child = subprocess.Popen(
                [sys.executable, "-c", _START, *sys.path],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._said,
                env={**os.environ, **_ONE_THREAD},
                start_new_session=True,  # Ctrl-C is for the caller: it ends its processes itself
            )
        except OSError as error:
            self._said.close()
            raise Lost(f"it can not be started ({error.strerror or error})") from error

    def ready(self, work: bytes) -> None:
        """Give it its `Work`, pickled, and wait until it can begin. Raises what that raises there,
        and Lost.
        """
        self._tell(work)
        for line in _there(self._child.stdout):
            if line == READY:  # what comes before is what the interpreter's start printed
                break
        self._answer()

    def run(self, batch: LineBatch) -> Judged:
        """Send the batch over and wait. Raises what the road raised there, and Lost."""
        self._tell(pickle.dumps(batch, pickle.HIGHEST_PROTOCOL))
        judged: Judged = self._answer()
        return judged

    def close(self) -> None:
        """End it. Between two batches it has nothing to lose."""
        self._child.kill()
        self._child.wait()

    def forget(self) -> None:
        """Close what belonged to it, when nobody waits for it any more."""
        for pipe in (self._child.stdin, self._child.stdout):
            with suppress(OSError):  # what was still to be written
                _there(pipe).close()
        self._said.close()

    def _tell(self, message: bytes) -> None:
        try:
            pipe = _there(self._child.stdin)
            pipe.write(message)
            pipe.flush()
        except OSError as error:
            raise Lost(self._end()) from error

    def _answer(self) -> Any:
        try:
            raised, answer = pickle.load(_there(self._child.stdout))  # our own child wrote it
        except (OSError, EOFError, pickle.UnpicklingError) as error:
            raise Lost(self._end()) from error
        if raised:
            raise answer
        return answer

    def _end(self) -> str:
        """How it ended, with the last line that it said."""
        from eagle3_data.audit.inert import inert

        self._child.kill()
        code = self._child.wait()
        end = f"it ended with signal {-code}" if code < 0 else f"it ended with code {code}"
        self._said.seek(max(0, self._said.seek(0, os.SEEK_END) - LAST_WORDS))
        last = self._said.read().decode(errors="replace").strip().splitlines()[-1:]
        return f"{end}: {inert(last[0], LAST_WORDS)}" if last else end


@dataclass(slots=True)
class Crew:
    """The calling process and up to `size` - 1 others, at work on one run. `told`: what the user
    must know is added here. Use it as a context.
    """

    work: Work
    size: int
    told: list[str]
    _free: PriorityQueue[tuple[int, int, Lane]] = field(default_factory=PriorityQueue)
    _others: list[Process] = field(default_factory=list)
    _starting: list[Thread] = field(default_factory=list)
    _closed: bool = False
    _turn: Lock = field(default_factory=Lock)

    def __enter__(self) -> Self:
        self._free.put((1, 0, self.work))  # last choice: it takes the lock from whoever feeds
        try:
            packed = pickle.dumps(self.work, pickle.HIGHEST_PROTOCOL)
        except Exception as error:  # a tokenizer of the user's may raise anything
            self.told.append(
                f"one process did all the work: it can not be sent to others ({error})"
            )
            return self
        for number in range(1, self.size):
            starter = Thread(target=self._start, args=(packed, number), daemon=True)
            self._starting.append(starter)
            starter.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._close()
        for starter in self._starting:
            starter.join()
        for process in self._others:
            process.forget()

    def judged(self, batches: Iterable[LineBatch]) -> Iterator[Judged]:
        """Every batch judged, in order."""
        threads = self.size - 1 if self.size > FEEDS_ALONE else self.size
        with ThreadPoolExecutor(threads, thread_name_prefix="eagle3-data") as pool:
            try:
                yield from in_order(pool, self._judge, batches, threads)
            except BaseException:
                self._close()  # before the pool waits for threads that wait for a process
                pool.shutdown(wait=False, cancel_futures=True)
                raise

    def _close(self) -> None:
        """End every process, also those that are starting."""
        with self._turn:
            self._closed = True
        for process in self._others:
            process.close()

    def _judge(self, batch: LineBatch) -> Judged:
        """On whatever lane is free. One that is lost is not used again, and its batch not sent to
        another: it may be what ended it.
        """
        lane = self._free.get()
        if self._closed:  # whoever else waits for a lane must not judge a batch for nobody
            self._free.put(lane)
            raise Lost("the run has ended")
        try:
            judged = lane[2].run(batch)
        except Lost as lost:
            if self._closed:
                raise
            self._tell(f"a process was lost, its lines were judged again: {lost}")
            return self.work.run(batch)
        except BaseException:
            self._free.put(lane)
            raise
        self._free.put(lane)
        return judged

    def _start(self, packed: bytes, number: int) -> None:
        try:
            with self._turn:
                if self._closed:
                    return
                process = Process()
                self._others.append(process)
            process.ready(packed)
            self._free.put((0, number, process))
        except Exception as error:
            if not self._closed:
                self._tell(f"a process could not be used, others did its work: {error}")

    def _tell(self, text: str) -> None:
        with self._turn:
            if text not in self.told:
                self.told.append(text)


def serve() -> None:
    """The life of another process: work first, then batches from standard input, each answered on
    standard output with (raised, judged batch or exception).
    """
    tasks, answers = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # whatever a library prints must not stand between the answers
    answers.write(b"\n" + READY)
    try:
        work: Work = pickle.load(tasks)
    except Exception as error:
        return _send(answers, True, error)
    _send(answers, False, None)
    while True:
        try:
            batch: LineBatch = pickle.load(tasks)
        except EOFError:
            return None
        try:
            judged = work.run(batch)
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:  # a panic in Rust is no Exception
            _send(answers, True, error)
        else:
            _send(answers, False, judged)


def _send(answers: IO[bytes], raised: bool, answer: object) -> None:
    if isinstance(answer, BaseException):  # a pickle has no traceback; --verbose shows this one
        answer.add_note("".join(format_exception(answer)))
    try:
        message = pickle.dumps((raised, answer), pickle.HIGHEST_PROTOCOL)
        if raised:
            pickle.loads(message)  # an exception with arguments of its own may not come back
    except Exception:
        message = pickle.dumps((True, RuntimeError(f"{type(answer).__name__}: {answer}")))
    answers.write(message)
    answers.flush()


def _there(pipe: IO[bytes] | None) -> IO[bytes]:
    assert pipe is not None  # all were opened
    return pipe
