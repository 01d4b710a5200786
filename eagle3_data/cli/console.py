"""The two streams of the command: results on stdout, everything else on stderr.

What enters: finished text and byte counts. What leaves: lines, colours and a progress bar where a
person looks on. It promises that a pipe or file gets plain text (and NO_COLOR a terminal too),
that control characters out of the data never reach a terminal raw, and that a reader who closes
the pipe early is no fault, nor a stderr that takes no more.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TextIO

# Everything that a terminal may act on: C0 except tab and newline, DEL, C1. Model text can hold
# any of it.
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def visible(text: str) -> str:
    """`text` with control characters written out as escapes."""
    return _CONTROL.sub(lambda match: f"\\x{ord(match.group()):02x}", text)


def colourful(stream: TextIO) -> bool:
    """True when `stream` is a terminal that may be coloured (any value of NO_COLOR forbids it)."""
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


class Ansi:
    """Colours for the text report (`Paint` of audit.formats.text). What it gets is inert text."""

    def good(self, text: str) -> str:
        return f"\x1b[32m{text}\x1b[0m"

    def bad(self, text: str) -> str:
        return f"\x1b[1;31m{text}\x1b[0m"

    def dim(self, text: str) -> str:
        return f"\x1b[2m{text}\x1b[0m"

    def strong(self, text: str) -> str:
        return f"\x1b[1m{text}\x1b[0m"


def result(text: str) -> None:
    """Print a finished result to stdout."""
    _write(sys.stdout, text if text.endswith("\n") else text + "\n")


def result_bytes(made: bytes) -> None:
    """Print a result that may be no text (Parquet) to stdout."""
    sys.stdout.flush()
    try:
        sys.stdout.buffer.write(made)
        sys.stdout.buffer.flush()
    except BrokenPipeError:
        _nowhere(sys.stdout)


def data(value: object) -> None:
    """Print `value` to stdout as indented JSON."""
    import orjson

    result(orjson.dumps(value, option=orjson.OPT_INDENT_2).decode())


def note(text: str) -> None:
    """Print a remark to stderr. One that can not be written (a full disk) changes no exit code."""
    try:
        _write(sys.stderr, visible(text) + "\n")
    except OSError:
        mute()


def mute() -> None:
    """Let nothing that is still said on stderr fail."""
    _nowhere(sys.stderr)


def _write(stream: TextIO, text: str) -> None:
    try:
        stream.write(text)
        stream.flush()
    except BrokenPipeError:
        _nowhere(stream)


def _nowhere(stream: TextIO) -> None:
    """Point a stream whose reader is gone at nothing, or the interpreter complains at its end."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def closed() -> bool:
    """True when the caller closed standard output (`>&-`): no result can be said."""
    return sys.stdout is None


def tolerant() -> None:
    """Let both streams write out what their encoding can not hold, instead of raising, and a
    stderr that the caller closed lead nowhere: the next file opened must not take its place.
    """
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115, PTH123 -- lives as long as the process
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(errors="backslashreplace")


def moving() -> bool:
    """True when stderr is a terminal that can be written over: where a display may move."""
    return sys.stderr.isatty() and os.environ.get("TERM") != "dumb"


@contextmanager
def refreshing(text: Callable[[], str]) -> Iterator[None]:
    """Keep what `text` gives at the foot of the terminal, on stderr, four times a second; notes
    appear above it, and at the end it is taken away.
    """
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    console = Console(stderr=True, no_color=not colourful(sys.stderr))
    with Live(
        get_renderable=lambda: Text(visible(text())),
        console=console,
        refresh_per_second=4,
        transient=True,
        redirect_stdout=False,
    ):
        yield


@contextmanager
def progress(wanted: bool) -> Iterator[Callable[[int, int], None] | None]:
    """A bar over the bytes read, on stderr and only on a terminal; else None."""
    if not (wanted and moving()):
        yield None
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        Progress,
        TimeRemainingColumn,
        TransferSpeedColumn,
    )

    columns = (BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    console = Console(stderr=True, no_color=not colourful(sys.stderr))
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("", total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)
