"""Choices of a call: options and settings file put together, and a first Ctrl-C that is no end.

What enters: option values and `Settings`. What leaves: the keyword arguments of `check` and
`convert`. It promises that the command line beats the file, word by word.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from queue import Empty, SimpleQueue
from threading import Event
from typing import TYPE_CHECKING, Any

from eagle3_data.cli import console

if TYPE_CHECKING:
    from types import FrameType

    from eagle3_data.cli.config import Settings
    from eagle3_data.cli.options import TurnsWanted


def gathered(
    fixed: Settings,
    *,
    profile: str | None,
    tokenizer: str | None,
    chat_template: str | None,
    turns: TurnsWanted | None,
    select: Sequence[str] | None,
    ignore: Sequence[str] | None,
    error: Sequence[str] | None,
    warn: Sequence[str] | None,
    holdout: Sequence[str] | None,
    repair: bool,
) -> dict[str, Any]:
    """What decides a verdict, JSON values throughout; `thresholds` as the file has them."""
    return {
        "profile": profile or fixed.profile,
        "tokenizer": tokenizer or fixed.tokenizer,
        "chat_template": chat_template or fixed.chat_template,
        "select": codes(select) or fixed.select,
        **severities(fixed, codes(ignore), codes(error), codes(warn)),
        "holdout": tuple(holdout or fixed.holdout),
        "turns": turns.value if turns else fixed.turns or "last",
        "repair": repair,
        "thresholds": fixed.thresholds,
    }


def codes(texts: Sequence[str] | None) -> tuple[str, ...]:
    """Codes out of repeated comma lists, each once."""
    parts = (part.strip() for text in texts or () for part in text.split(","))
    return tuple(dict.fromkeys(part for part in parts if part))


def severities(
    fixed: Settings, ignore: tuple[str, ...], error: tuple[str, ...], warn: tuple[str, ...]
) -> dict[str, tuple[str, ...]]:
    """What to ignore, raise, lower. A code of the file gives way to an option that covers it."""
    from eagle3_data.audit.rules import covered, named

    levels: dict[str, str] = {}
    for word in sorted(fixed.severity, key=len):  # the longer word is the nearer one
        levels.update(dict.fromkeys(covered(word), fixed.severity[word]))
    for code in named((*ignore, *error, *warn)):
        levels.pop(code, None)

    def with_file(given: tuple[str, ...], wanted: str) -> tuple[str, ...]:
        return (*given, *(code for code, level in levels.items() if level == wanted))

    return {
        "ignore": with_file(ignore or fixed.ignore, "ignore"),
        "error": with_file(error, "error"),
        "warn": with_file(warn, "warn"),
    }


class Interrupt(Event):
    """An event that a signal handler may set, whatever the interrupted thread does.

    A plain Event holds a lock at the ends of `wait`. A handler runs on the thread that waits, so
    `set` there waited for that lock for ever, and no further Ctrl-C could end it. Putting into a
    SimpleQueue is reentrant by its documentation.
    """

    def __init__(self) -> None:
        super().__init__()
        self._came = False
        self._bell: SimpleQueue[None] = SimpleQueue()

    def is_set(self) -> bool:
        return self._came

    def set(self) -> None:
        self._came = True
        self._bell.put(None)

    def wait(self, timeout: float | None = None) -> bool:
        """True as soon as it is set, False after `timeout` seconds. For one thread."""
        if not self._came:
            with suppress(Empty):
                self._bell.get(timeout=timeout)
        return self._came


@contextmanager
def interruptible() -> Iterator[Event]:
    """An event that the first Ctrl-C sets; the second one stops at once."""
    cancel = Interrupt()

    def first(_signal: int, _frame: FrameType | None) -> None:
        signal.signal(signal.SIGINT, before)
        cancel.set()
        with suppress(RuntimeError):  # it came in the midst of another write to the same stream
            console.note("interrupted: reporting what was read so far (once more to stop at once)")

    before = signal.signal(signal.SIGINT, first)
    try:
        yield cancel
    finally:
        signal.signal(signal.SIGINT, before)
