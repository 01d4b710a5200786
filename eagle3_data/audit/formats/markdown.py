"""The report as Markdown, for `$GITHUB_STEP_SUMMARY` and issue threads: tables, nothing that links
or runs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from eagle3_data.audit.formats.text import count_of, headline, listed, reach, share
from eagle3_data.audit.inert import inert_markdown, inert_prose
from eagle3_data.audit.report import GRADE_TITLES

if TYPE_CHECKING:
    from eagle3_data.audit.report import Report

HEADINGS = {0: "clean", 1: "faults in the data", 2: "internal fault"}


def report_markdown(report: Report) -> str:
    """Headings, ledger, diagnoses, grades, rules."""
    blocks = ["\n".join(block) for block in _blocks(report)]
    return "\n\n".join(blocks) + "\n"


def _blocks(report: Report) -> Iterator[list[str]]:
    partial = " (interrupted: only a part was read)" if report.partial else ""
    yield [f"## eagle3-data: {HEADINGS[report.exit_code]}{partial}"]
    ledger = report.ledger
    yield [
        f"{count_of(ledger.lines, 'line')} in = **{ledger.kept:,}** kept +"
        f" **{ledger.quarantined:,}** quarantined + **{ledger.unreadable:,}** unreadable"
    ]
    yield _table(
        ["input", "bytes", "lines", "records", "unreadable"],
        [
            [_code(f.path), f"{f.bytes:,}", f"{f.lines:,}", f"{f.records:,}", f"{f.unreadable:,}"]
            for f in report.inputs
        ],
    )
    for diagnosis in report.diagnoses:
        yield [f"### {_prose(headline(report, diagnosis))}"]
        yield [reach(report, diagnosis)]
        yield [f"- {_prose(fact)}" for fact in diagnosis.evidence] or ["- no further evidence"]
        yield [f"**Next:** {_prose(diagnosis.next_step)}"]
    for fault in report.faults:
        yield [f"- {fault.code} {fault.name} could not be run: {_code(fault.error)}"]
    if report.grades.height:
        yield _table(
            ["grade", "meaning", "records", "share", "supervised tokens"],
            [
                [
                    row["grade"],
                    GRADE_TITLES.get(row["grade"], ""),
                    f"{row['count']:,}",
                    share(row["share"]),
                    _number(row["tokens"]),
                ]
                for row in report.grades.iter_rows(named=True)
            ],
        )
    made = report.written
    if made is not None:
        yield [
            f"{_code(made.directory)}: **{made.samples:,}** samples, {made.tokens:,} tokens,"
            f" {made.supervised_tokens:,} supervised; by grade: {listed(made.grades)};"
            f" by split: {_prose(listed(made.splits))}"
        ]
    if report.notes:
        yield [f"- {_prose(note)}" for note in report.notes]
    if report.rules.height:
        yield _table(
            ["code", "rule", "level", "records", "share", "tokens at stake", "first place"],
            [
                [
                    row["code"],
                    row["name"],
                    row["severity"],
                    f"{row['count']:,}",
                    share(row["share"]),
                    _number(row["tokens"]),
                    _code(report.place(row["file_no"], row["line"])),
                ]
                for row in report.rules.iter_rows(named=True)
            ],
        )


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    return [
        "| " + " | ".join(head) + " |",
        "|" + " --- |" * len(head),
        *("| " + " | ".join(row) + " |" for row in rows),
    ]


def _code(text: str) -> str:
    return inert_markdown(text, 200)


def _prose(text: str) -> str:
    return inert_prose(text, 2000)


def _number(value: int | None) -> str:
    return "" if value is None else f"{value:,}"
