"""`check`: audit captured responses and say which lines may train a drafter.

What enters: files and options. What leaves: the report on stdout, more reports in files, an exit
code; with `--quarantine` a folder with the lines split. It promises that what can not be written
is refused before the work, and that an interrupted run still reports what it saw, marked as
partial.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from threading import Event
from typing import TYPE_CHECKING, Any

import typer

from eagle3_data.cli import console, options
from eagle3_data.cli.faults import Exit, UsageFault

if TYPE_CHECKING:
    from types import FrameType

    from eagle3_data.audit.report import Report
    from eagle3_data.cli.config import Settings
    from eagle3_data.cli.outputs import Output


def check(
    files: options.Files,
    profile: options.Profile = None,
    tokenizer: options.Tokenizer = None,
    chat_template: options.ChatTemplate = None,
    turns: options.Turns = None,
    select: options.Select = None,
    ignore: options.Ignore = None,
    error: options.Error = None,
    warn: options.Warn = None,
    holdout: options.Holdout = None,
    repair: options.Repair = False,
    quarantine: options.Quarantine = None,
    output: options.Output = None,
    overwrite: options.Overwrite = False,
    format: options.Format = None,
    json: options.Json = False,
    show: options.Show = None,
    statistics: options.Statistics = False,
    exit_zero: options.ExitZero = False,
    config: options.Config = None,
    workers: options.Workers = None,
    quiet: options.Quiet = False,
    verbose: options.Verbose = False,
) -> None:
    """Audit captured responses. Exit 0: clean, 1: errors found, 2: the call or the program failed.

    \b
    Examples:
      eagle3-data check raw_responses.jsonl
      eagle3-data check data/ --tokenizer ./Kimi-K2-Thinking --output html=report.html
      zstdcat day1.zst | eagle3-data check - --ignore GEN
      eagle3-data check raw_responses.jsonl --quarantine split/
    """
    from eagle3_data import pipeline, plan
    from eagle3_data.audit.formats import FORMATS
    from eagle3_data.cli.config import Settings, located, read
    from eagle3_data.cli.outputs import parse
    from eagle3_data.records.sources import expand

    shape = _shape(FORMATS, format, json=json, statistics=statistics)
    file = located(config)
    fixed = read(file) if file else Settings()
    sources = expand(files)
    outputs = parse(output or [], FORMATS, overwrite=overwrite, inputs=[s.real for s in sources])
    if quarantine is not None:
        from eagle3_data.quarantine import refuse_occupied

        refuse_occupied(quarantine, sources, overwrite=overwrite)
    asked: dict[str, Any] = {
        "profile": profile or fixed.profile,
        "tokenizer": tokenizer or fixed.tokenizer,
        "chat_template": chat_template or fixed.chat_template,
        "select": _codes(select) or fixed.select,
        **_severities(fixed, _codes(ignore), _codes(error), _codes(warn)),
        "holdout": tuple(holdout or fixed.holdout),
        "turns": turns.value if turns else fixed.turns or "last",
        "repair": repair,
        "thresholds": fixed.thresholds,
    }
    if verbose:
        console.note(f"settings: {file or 'none, defaults in force'}")
    with _interruptible() as cancel, console.progress(not quiet) as progress:
        report = pipeline.check(
            sources,
            **{**asked, "thresholds": fixed.limits()},
            workers=workers or fixed.workers,
            progress=progress,
            cancel=cancel,
        )
    shown = show if show is not None else fixed.show or 0
    if not any(one.path is None for one in outputs):
        if shape == "text":
            console.result(_text(report, shown, statistics))
        else:
            console.result_bytes(_made(report, shape, shown))
    for one in outputs:
        _write(report, one, shown, overwrite=overwrite, quiet=quiet)
    if quarantine is not None and not report.partial:
        from eagle3_data.profiles.load import load
        from eagle3_data.quarantine import write_quarantine

        write_quarantine(
            report,
            sources,
            quarantine,
            overwrite=overwrite,
            repair=plan.marker_pairs(load(asked["profile"] or report.profile.name)),
            every_turn=asked["turns"] == "all",
            options=asked,
        )
        if not quiet:
            bad = report.ledger.quarantined + report.ledger.unreadable
            console.note(f"{quarantine}: {report.ledger.kept} lines clean, {bad} in quarantine")
    elif quarantine is not None:
        console.note(f"{quarantine}: nothing written, because the check was interrupted")
    raise typer.Exit(_exit_code(report, exit_zero=exit_zero))


def _shape(formats: Collection[str], format: str | None, *, json: bool, statistics: bool) -> str:
    """The format of the report on stdout; UsageFault when options contradict each other."""
    if json and format not in (None, "json"):
        raise UsageFault(f"--json and --format {format} ask for two formats: leave one out")
    shape = "json" if json else format or "text"
    if shape not in formats:
        raise UsageFault(f"--format {shape}: choose one of {', '.join(formats)}")
    if statistics and shape != "text":
        raise UsageFault(f"--statistics is a form of the text report: leave out the format {shape}")
    if shape == "parquet" and sys.stdout.isatty():
        raise UsageFault("--format parquet is not text: write it with --output parquet=FILE")
    return shape


def _codes(texts: Sequence[str] | None) -> tuple[str, ...]:
    """Codes out of repeated comma lists, each once."""
    parts = (part.strip() for text in texts or () for part in text.split(","))
    return tuple(dict.fromkeys(part for part in parts if part))


def _severities(
    fixed: Settings, ignore: tuple[str, ...], error: tuple[str, ...], warn: tuple[str, ...]
) -> dict[str, tuple[str, ...]]:
    """What to ignore, raise, lower. A code of the file gives way to an option that covers it."""
    from eagle3_data.audit.rules import named

    levels: dict[str, str] = {}
    for word in sorted(fixed.severity, key=len):  # the longer word is the nearer one
        levels.update(dict.fromkeys(named([word]), fixed.severity[word]))
    for code in named((*ignore, *error, *warn)):
        levels.pop(code, None)

    def with_file(given: tuple[str, ...], wanted: str) -> tuple[str, ...]:
        return (*given, *(code for code, level in levels.items() if level == wanted))

    return {
        "ignore": with_file(ignore or fixed.ignore, "ignore"),
        "error": with_file(error, "error"),
        "warn": with_file(warn, "warn"),
    }


@contextmanager
def _interruptible() -> Iterator[Event]:
    """An event that the first Ctrl-C sets; the second one stops at once."""
    cancel = Event()

    def first(_signal: int, _frame: FrameType | None) -> None:
        cancel.set()
        signal.signal(signal.SIGINT, before)
        console.note("interrupted: reporting what was read so far (once more to stop at once)")

    before = signal.signal(signal.SIGINT, first)
    try:
        yield cancel
    finally:
        signal.signal(signal.SIGINT, before)


def _text(report: Report, show: int, statistics: bool) -> str:
    from eagle3_data.audit.formats.text import PLAIN, report_text

    colour = console.Ansi() if console.colourful(sys.stdout) else PLAIN
    return report_text(report, show=show, statistics=statistics, colour=colour)


def _made(report: Report, name: str, show: int) -> bytes:
    from eagle3_data.audit.formats import render
    from eagle3_data.audit.formats.text import report_text

    return report_text(report, show=show).encode() if name == "text" else render(report, name)


def _write(report: Report, output: Output, show: int, *, overwrite: bool, quiet: bool) -> None:
    from eagle3_data.writing import drafting

    made = _made(report, output.format, show)
    if output.path is None:
        console.result_bytes(made)
        return
    with drafting(output.path, overwrite=overwrite) as draft:
        draft.write(made)
    if not quiet:
        console.note(f"wrote {output.path}")


def _exit_code(report: Report, *, exit_zero: bool) -> int:
    if report.partial:
        return Exit.INTERRUPTED
    if exit_zero and report.exit_code == Exit.FINDINGS:
        return Exit.CLEAN
    return report.exit_code
