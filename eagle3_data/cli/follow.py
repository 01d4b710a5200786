"""`check --follow`: the check of a file that another process still writes.

What enters: one path, the choices of `check`, stop rules. What leaves: the report of all that was
read, when Ctrl-C or a stop rule ends the watching; on the way a display on a terminal, and
elsewhere a line a batch. It promises the report that `check` gives for the same bytes, without a
last line that is not complete yet.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from threading import Event
from typing import TYPE_CHECKING, Any

from eagle3_data.cli import console
from eagle3_data.cli.choices import interruptible
from eagle3_data.cli.faults import Exit, UsageFault
from eagle3_data.cli.live_display import Display

if TYPE_CHECKING:
    from eagle3_data.audit.judge import Judged
    from eagle3_data.audit.report import Report
    from eagle3_data.audit.rules import Choice as Rules
    from eagle3_data.audit.thresholds import Thresholds
    from eagle3_data.capture.growing import Growing
    from eagle3_data.capture.watch import Watch
    from eagle3_data.records.lines import LineBatch

PAUSE = 1.0
"""Seconds between two looks at the file: a batch costs some 20 ms whatever is in it."""
PARTS = 64
"""Judged batches that are kept apart: a slow capture has one for every few rows."""


@dataclass(slots=True, eq=False)
class Following:
    """A file, what judges its lines, and what was found so far."""

    growing: Growing
    watch: Watch
    rules: Rules
    shown: Display
    by_line: bool
    """Print a line a batch."""
    quiet: bool
    """Print nothing on the way; the report tells it."""
    started: float = field(default_factory=time.perf_counter)
    lines: int = 0
    notes: list[str] = field(default_factory=list)
    _parts: list[Judged] = field(default_factory=list)
    _merged: list[Judged] = field(default_factory=list)

    def look(self, cancel: Event) -> str | None:
        """Judge what was completed since the last look; why to stop, None to go on."""
        for batch in self.growing.poll():
            self._take(batch)
            if self.watch.thinking_came and self.growing.file_no == 0:
                self._begin_again()
                break
            stopped = self.watch.tripped()
            if stopped or cancel.is_set():
                return stopped
        self._tell()
        return None

    def report(self) -> Report:
        """The report of all that was read."""
        from eagle3_data.audit.judge import merge
        from eagle3_data.pipeline import Parsing, Reading, Run

        chosen, stations = self.watch.settled()
        sources = self.growing.sources()
        if self.growing.waiting:
            self.notes.append(
                f"{self.growing.waiting:,} bytes at the end were left out: they hold no complete"
                " line yet, or were not reached"
            )
        if self.watch.thinking_came:
            self.notes.append(
                "the first thought came after the file was replaced: rows before it were judged as"
                " rows of a model that does not think; check the files that were kept"
            )
        run = Run(
            sources, self.rules, self.watch.thresholds, chosen, self.watch.tokenizer, stations,
            Reading(sources, lines=self.lines), Parsing(self.watch.turns), (), iter(()),
            self.started,
        )  # fmt: skip
        return run.report(run.finish(merge([*self._merged, *self._parts])), notes=self.notes)

    def _take(self, batch: LineBatch) -> None:
        count = len(batch.lines) + sum(fault.number is not None for fault in batch.faults)
        self.lines += count
        self._parts.append(self.watch.judge(batch))
        if len(self._parts) == PARTS:
            from eagle3_data.audit.judge import merge

            self._merged.append(merge(self._parts))
            self._parts.clear()
        self.shown.stored, self.shown.tokens = self.watch.tally.rows, self.watch.tally.tokens
        self._tell()
        if self.by_line:
            console.note(f"+{count:,} lines: {self.shown.line()}")

    def _tell(self) -> None:
        """Tell what happened to the file, and keep it for the report."""
        for text in self.growing.told:
            self._note(text)
        self.notes += self.growing.told
        self.growing.told.clear()

    def _note(self, text: str) -> None:
        if not self.quiet:
            console.note(text)

    def _begin_again(self) -> None:
        self._note(
            "the first thought came, so this model thinks: the rows before it are judged again"
        )
        self.growing.rewind()
        self.watch.restart()
        self._parts.clear()
        self._merged.clear()
        self.lines = 0


def refuse_unfit(files: Sequence[str], *, quarantine: bool, workers: bool) -> None:
    """Raise UsageFault for what can not be done with a file that still grows."""
    if len(files) != 1 or files[0] == "-":
        raise UsageFault("--follow watches one file that grows: name one file, no stream")
    if quarantine:
        raise UsageFault("--quarantine splits a file that is whole: leave it out with --follow")
    if workers:
        raise UsageFault("--follow judges on one thread: leave out --workers")


def follow(
    path: str,
    asked: Mapping[str, Any],
    thresholds: Thresholds | None,
    *,
    stop_on: Sequence[str] = (),
    exit_zero: bool = False,
    quiet: bool = False,
) -> tuple[Report, Exit]:
    """Watch `path` until Ctrl-C, a stop rule, or a fault of the file: the report, and the least
    exit code because of how it ended. `asked`: the choices of `check`.
    """
    from eagle3_data import plan
    from eagle3_data.capture.growing import Growing
    from eagle3_data.records.sources import InputError

    watch, rules = _watch(asked, thresholds, stop_on)
    growing = Growing(path)
    moving = console.moving() and not quiet
    shown = Display(tally=lambda: watch.tally)
    by_line = not (moving or quiet)
    following = Following(
        growing, watch, rules, shown, by_line=by_line, quiet=quiet,
        notes=plan.unread_holdout(watch.holdout, rules),
    )  # fmt: skip
    tripped = Exit.CLEAN if exit_zero else Exit.FINDINGS
    least = Exit.CLEAN
    with ExitStack() as stack:
        stack.callback(growing.close)
        cancel = stack.enter_context(interruptible())
        if moving:
            stack.enter_context(console.refreshing(shown.text))
        while not cancel.is_set():
            try:
                why, ended = following.look(cancel), tripped
            except (InputError, OSError) as fault:
                why, ended = str(fault), Exit.FAULT
            if why:
                least = ended
                console.note(f"stopped: {why}")
                following.notes.append(f"the watching was stopped: {why}")
                break
            cancel.wait(PAUSE)
        return following.report(), least


def _watch(
    asked: Mapping[str, Any], thresholds: Thresholds | None, stop_on: Sequence[str]
) -> tuple[Watch, Rules]:
    from eagle3_data import plan
    from eagle3_data.audit.rules import choose_rules
    from eagle3_data.audit.thresholds import Thresholds
    from eagle3_data.capture.stop import StopOn, refuse_idle
    from eagle3_data.capture.watch import Watch
    from eagle3_data.records.shapes import Turns

    limits = thresholds or Thresholds()
    rules = choose_rules(
        asked["select"], asked["ignore"], error=asked["error"], warn=asked["warn"],
        with_tokens=asked["tokenizer"] is not None,
    )  # fmt: skip
    stops = [StopOn.parse(text) for text in stop_on]
    refuse_idle(stops, rules)
    watch = Watch(
        asked["profile"],
        plan.tokenizer(asked["tokenizer"]),
        limits,
        rules,
        Turns(asked["turns"]),
        asked["chat_template"],
        plan.holdout(asked["holdout"], limits),
        asked["repair"],
        stop_on=stops,
    )
    return watch, rules
