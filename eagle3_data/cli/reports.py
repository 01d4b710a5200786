"""Reports of a run on their way out: standard output, files, exit code.

What enters: a `Report` and what was asked for. What leaves: text or bytes on stdout, files, a code.
It promises one behaviour for every command that judges data.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterator, Sequence
from enum import Enum
from typing import TYPE_CHECKING

from eagle3_data.cli import console
from eagle3_data.cli.faults import Exit, UsageFault

if TYPE_CHECKING:
    from eagle3_data.audit.report import Report
    from eagle3_data.cli.outputs import Output


def shape(formats: Collection[str], format: str | None, *, json: bool, statistics: bool) -> str:
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


def call(command: str, files: Sequence[str], **options: object) -> tuple[str, ...]:
    """The words of a call, for the hint of the report: files and options as the user gave them,
    without those that were left out. More than two files stand as FILES.
    """
    names = [f"./{name}" if name.startswith("-") and name != "-" else name for name in files]
    words = [word for name, value in options.items() for word in _words(name, value)]
    return (command, *(names if len(names) <= 2 else ["FILES"]), *words)


def _words(name: str, value: object) -> Iterator[str]:
    option = f"--{name.replace('_', '-')}"
    if value is True:
        yield option
    elif isinstance(value, list | tuple):
        for one in value:
            yield from _words(name, one)
    elif value is not None and value is not False:
        yield from (option, str(value.value if isinstance(value, Enum) else value))


def deliver(
    report: Report,
    shape: str,
    outputs: Sequence[Output],
    *,
    show: int,
    statistics: bool,
    overwrite: bool,
    quiet: bool,
) -> None:
    """Print the report in its shape, unless an output takes stdout, and write the outputs."""
    if not any(one.path is None for one in outputs):
        if shape == "text":
            console.result(_text(report, show, statistics))
        else:
            console.result_bytes(_made(report, shape, show))
    for one in outputs:
        _write(report, one, show, overwrite=overwrite, quiet=quiet)


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


def exit_code(report: Report, *, exit_zero: bool) -> int:
    """The exit code of a command that judged data."""
    if report.partial:
        return Exit.INTERRUPTED
    if exit_zero and report.exit_code == Exit.FINDINGS:
        return Exit.CLEAN
    return report.exit_code
