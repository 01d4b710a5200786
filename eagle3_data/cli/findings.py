"""Findings on a drafter on their way out: text, JSON, files in the formats of the audit, exit code.

What enters: an `Inspection` and what was asked for. What leaves: lines on stdout, files, a code.
It promises one form for `vocab check` and `lint`.
"""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import typer

from eagle3_data.cli import console
from eagle3_data.cli.faults import Exit

if TYPE_CHECKING:
    from eagle3_data.audit.formats.text import Paint
    from eagle3_data.draft.findings import Inspection

WIDTH = 96


def conclude(
    found: Inspection,
    output: Sequence[str] | None,
    *,
    json: bool,
    overwrite: bool,
    exit_zero: bool,
    quiet: bool,
) -> None:
    """Print the inspection, write the outputs, end the command with its exit code."""
    from eagle3_data.audit.formats import FORMATS, render
    from eagle3_data.audit.formats.text import PLAIN
    from eagle3_data.cli.outputs import parse
    from eagle3_data.plan import versions
    from eagle3_data.writing import drafting

    outputs = parse(output or [], FORMATS, overwrite=overwrite, inputs=[])
    if json:
        console.data(found.to_dict())
    elif not any(one.path is None for one in outputs):
        colour: Paint = console.Ansi() if console.colourful(sys.stdout) else PLAIN
        console.result("\n".join(told(found, colour)))
    for one in outputs:
        if one.format == "text":
            made = ("\n".join(told(found, PLAIN)) + "\n").encode()
        elif one.format == "json":
            import orjson

            made = orjson.dumps(found.to_dict(), option=orjson.OPT_INDENT_2) + b"\n"
        else:
            made = render(found.report(versions=versions()), one.format)
        if one.path is None:
            console.result_bytes(made)
            continue
        with drafting(one.path, overwrite=overwrite) as draft:
            draft.write(made)
        if not quiet:
            console.note(f"wrote {one.path}")
    raise typer.Exit(Exit.CLEAN if found.sound or exit_zero else Exit.FINDINGS)


def told(found: Inspection, colour: Paint) -> Iterator[str]:
    """The inspection for a person: verdict, facts, engines, findings, next step."""
    from eagle3_data.audit.formats.text import count_of
    from eagle3_data.audit.inert import inert

    errors = sum(finding.error for finding in found.findings)
    warnings = len(found.findings) - errors
    subject = inert(str(found.subject))
    if errors:
        yield (
            colour.bad("FAULTS")
            + f"  {subject}: {count_of(errors, 'error')}, {count_of(warnings, 'warning')}"
        )
    else:
        told = count_of(warnings, "warning") if warnings else "nothing found"
        yield colour.good("SOUND") + f"  {subject}: {told}"
    for name, value in found.facts.items():
        shown = f"{value:,}" if isinstance(value, int) else "not known" if value is None else value
        yield from _wrap(inert(f"{name}: {shown}", 400), "  ", "    ")
    for name, value in found.layers.items():
        yield from _wrap(inert(f"{name}: {value}", 400), "  ", "    ")
    if found.engines:
        yield ""
        yield colour.strong(f"{'engine':<12}{'loads':<9}{'right':<9}why, and what to change")
        for line in found.engines:
            paint = colour.bad if "no" in (line.loads, line.right) else colour.good
            text = line.why + (f" → {line.change}" if line.change else "")
            first, *rest = _wrap(inert(text, 1200), " " * 30, " " * 30)
            yield paint(f"{line.engine:<12}{line.loads:<9}{line.right:<9}") + first[30:]
            yield from rest
    for finding in found.findings:
        head = f"{finding.code} {finding.rule.name}"
        yield ""
        yield (colour.bad(head) if finding.error else head) + f" ({finding.rule.severity.value})"
        at = finding.at or finding.rule.at
        where = inert(finding.place.name, 60) + (f", {inert(at, 80)}" if at else "")
        yield from _wrap(f"{where}: {inert(finding.detail, 600)}", "  ", "  ")
        if finding.mend:
            yield from _wrap(f"--fix {inert(finding.mend, 300)}", "  ", "    ")
    if found.notes:
        yield ""
    for note in found.notes:
        yield from _wrap(f"Note: {inert(note, 600)}", "", "      ")
    if found.findings:
        worst = min(found.findings, key=lambda f: (not f.error, f.code))
        yield ""
        yield (
            colour.strong("Next: ")
            + f"eagle3-data rule {worst.code}    what it means and what to do"
        )


def _wrap(text: str, first: str, rest: str) -> list[str]:
    return textwrap.wrap(
        text, WIDTH, initial_indent=first, subsequent_indent=rest, break_on_hyphens=False
    ) or [first.rstrip()]
