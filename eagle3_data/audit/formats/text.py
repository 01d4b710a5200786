"""The report as plain text for a person: one screen, the verdict first, the next command last.

What enters: a report, and how to paint a word. What leaves: lines of at most about 100 columns. It
promises that text out of a capture never starts a line and never reaches `Paint` as markup.
"""

from __future__ import annotations

import shlex
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import polars as pl

from eagle3_data.audit.inert import inert
from eagle3_data.audit.report import GRADE_TITLES
from eagle3_data.audit.rules.registry import Severity

if TYPE_CHECKING:
    from eagle3_data.audit.diagnose import Diagnosis
    from eagle3_data.audit.report import Report

WIDTH = 96
INPUTS_SHOWN = 5
RULES_SHOWN = 14
QUARANTINE = "--quarantine"


class Paint(Protocol):
    """How a piece of finished, inert text gets its colour. It must not read the text as markup."""

    def good(self, text: str) -> str: ...
    def bad(self, text: str) -> str: ...
    def dim(self, text: str) -> str: ...
    def strong(self, text: str) -> str: ...


class Plain:
    """No colour."""

    def good(self, text: str) -> str:
        return text

    def bad(self, text: str) -> str:
        return text

    def dim(self, text: str) -> str:
        return text

    def strong(self, text: str) -> str:
        return text


PLAIN = Plain()

MENDED = frozenset(f"SHD{number:03d}" for number in (3, 5, 6, 7, 8))
"""Files that the same conversion writes again."""
IN_THE_WAY = frozenset(f"SHD{number:03d}" for number in (1, 2, 4, 24))
"""What makes the same conversion refuse the folder: the rule page says what to do first."""


def report_text(
    report: Report, *, show: int = 0, statistics: bool = False, colour: Paint = PLAIN
) -> str:
    """The report. `show`: examples a rule. `statistics`: only the rule table, complete, ordered by
    count.
    """
    if statistics:
        return "\n".join(_statistics(report, colour)) + "\n"
    blocks = [
        [*_verdict(report, colour), *_inputs(report, colour)],
        *([_faults(report, colour)] if report.faults else []),
        *(_diagnosis(report, n, d, colour) for n, d in enumerate(report.diagnoses, 1)),
        list(_grades(report, colour)),
        list(_shards(report, colour)),
        list(_notes(report, colour)),
        list(_rules(report, colour)),
        list(_examples(report, show, colour)),
        list(_next(report, colour)),
    ]
    return "\n\n".join("\n".join(block) for block in blocks if block) + "\n"


def share(part: float | None) -> str:
    """A fraction of one as per cent, never rounded to nothing or to all; "file" for None."""
    if part is None:
        return "file"
    if 0 < part < 0.001:
        return "<0.1 %"
    if 0.999 < part < 1:
        return ">99.9 %"
    return f"{part:.1%}".replace("%", " %").replace(".0 %", " %")


def size(count: int) -> str:
    """Bytes in decimal units."""
    value, unit = float(count), "B"
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if value < 1000 or unit == "TB":
            break
        value /= 1000
    return f"{count} B" if unit == "B" else f"{value:.1f} {unit}"


def amount(row: dict[str, Any]) -> str:
    """Count and share of a row of the rule table: `4 records (36.4 %)`, `1 file`."""
    if row["share"] is None:
        return count_of(row["count"], "file")
    return f"{count_of(row['count'], 'record')} ({share(row['share'])})"


def count_of(count: int, noun: str) -> str:
    """`1 line`, `2,000 lines`."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def headline(report: Report, diagnosis: Diagnosis) -> str:
    """Name and title of a diagnosis; a warning is called one, because nobody has to act upon it."""
    level = " (warning)" if report.level(diagnosis) is Severity.WARN else ""
    return f"{diagnosis.name}{level}: {diagnosis.title}"


def reach(report: Report, diagnosis: Diagnosis) -> str:
    """How many records it explains, what becomes of them, and which rules follow from it."""
    said = f"{count_of(diagnosis.records, 'record')} ({share(diagnosis.share)})"
    if report.level(diagnosis) is Severity.WARN:
        said += ", kept unless they have an error too"
    return said + (f"; explains {', '.join(diagnosis.codes)}" if diagnosis.codes else "")


def _verdict(report: Report, colour: Paint) -> Iterator[str]:
    ledger = report.ledger
    if report.partial:
        yield colour.bad("INTERRUPTED") + "  this is what was read until then"
    lost = ledger.quarantined + ledger.unreadable
    if report.faults:
        yield colour.bad("INTERNAL FAULT") + (
            f"  {count_of(len(report.faults), 'rule')} could not be run: the audit is not complete"
        )
    elif report.exit_code == 1 and lost:
        yield (
            colour.bad("FAULTS")
            + f"  {lost:,} of {count_of(ledger.lines, 'line')} must not be trained on"
        )
    elif report.exit_code == 1:
        yield colour.bad("FAULTS") + "  in the inputs as a whole; no single line is to blame"
    elif report.rules.height:
        yield (
            colour.good("CLEAN")
            + f"  {count_of(report.rules.height, 'rule')} warned, no line is quarantined"
        )
    elif ledger.lines:
        yield colour.good("CLEAN") + "  nothing found"
    else:
        yield colour.bad("EMPTY") + "  the inputs hold no lines"
    yield (
        f"{count_of(ledger.lines, 'line')} in = {ledger.kept:,} kept"
        f" + {ledger.quarantined:,} quarantined + {ledger.unreadable:,} unreadable"
    )


def _inputs(report: Report, colour: Paint) -> Iterator[str]:
    for facts in report.inputs[:INPUTS_SHOWN]:
        yield colour.dim(
            f"  {inert(facts.path)}: {size(facts.bytes)}, {count_of(facts.lines, 'line')},"
            f" {count_of(facts.records, 'record')}"
        )
    if len(report.inputs) > INPUTS_SHOWN:
        yield colour.dim(f"  and {count_of(len(report.inputs) - INPUTS_SHOWN, 'more input')}")
    yield f"profile {inert(report.profile.name)} ({inert(report.profile.why, 160)})"
    if report.tokenizer is None:
        yield "no tokenizer: the token rules did not run and no record is graded"
    else:
        backend = f" ({inert(report.tokenizer.backend)})" if report.tokenizer.backend else ""
        yield f"tokenizer {inert(report.tokenizer.name)}{backend}"


def _faults(report: Report, colour: Paint) -> list[str]:
    lines = [colour.strong("Internal faults")]
    lines += [f"  {f.code} {f.name}: {inert(f.error, 200)}" for f in report.faults]
    return [*lines, "  This is a fault of eagle3-data or of your own rule: please report it."]


def _diagnosis(report: Report, number: int, diagnosis: Diagnosis, colour: Paint) -> list[str]:
    head = f"{number}. {headline(report, diagnosis)}"
    lines = [colour.strong(line) for line in _wrap(head, "", "   ")]
    lines.append(f"   {reach(report, diagnosis)}")
    for fact in diagnosis.evidence:
        lines += _wrap(fact, "   - ", "     ")
    return lines + _wrap(diagnosis.next_step, "   Next: ", "         ")


def _grades(report: Report, colour: Paint) -> Iterator[str]:
    if not report.grades.height:
        return
    yield colour.strong(f"{'Grade':<34}{'records':>12}{'share':>10}{'supervised tokens':>20}")
    for row in report.grades.iter_rows(named=True):
        title = f"{row['grade']}  {GRADE_TITLES.get(row['grade'], '')}"
        paint = colour.bad if row["grade"] == "E" else colour.good if row["grade"] == "A" else str
        tokens = _number(row["tokens"])
        yield paint(f"{title:<34}") + f"{row['count']:>12,}{share(row['share']):>10}{tokens:>20}"


def _shards(report: Report, colour: Paint) -> Iterator[str]:
    made = report.written
    if made is None:
        return
    yield colour.strong(f"Shards {inert(made.directory)}") + (
        f"  {count_of(made.samples, 'sample')} in {count_of(made.files, 'file')},"
        f" {made.tokens:,} tokens, {made.supervised_tokens:,} supervised"
    )
    if made.samples:
        yield f"  by grade: {listed(made.grades)}; by split: {listed(made.splits)}"


def listed(counts: Mapping[str, int]) -> str:
    """`18 train, 21 val`."""
    return ", ".join(f"{count:,} {inert(name)}" for name, count in counts.items())


def _notes(report: Report, colour: Paint) -> Iterator[str]:
    for note in report.notes:
        yield from _wrap(note, "Note: ", "      ")
    reasons: dict[str, list[str]] = {}
    for rule in report.rules_not_run:
        reasons.setdefault(rule.reason, []).append(rule.code)
    for reason, codes in reasons.items():
        shown = ", ".join(codes[:8]) + (f" and {len(codes) - 8} more" if len(codes) > 8 else "")
        text = f"{count_of(len(codes), 'rule')} not run, {inert(reason)}: {shown}"
        yield from (colour.dim(line) for line in _wrap(text, "", "  "))


def _rules(report: Report, colour: Paint, rows: int = RULES_SHOWN) -> Iterator[str]:
    if not report.rules.height:
        return
    width = max(len(name) for name in report.rules["name"].to_list())
    yield colour.strong(
        f"{'Code':<8}{'Rule':<{width + 2}}{'level':<7}"
        f"{'records':>9}{'share':>9}{'tokens':>12}  first place"
    )
    for row in report.rules.head(rows).iter_rows(named=True):
        yield _rule_row(report, row, width, colour)
    hidden = report.rules.height - rows
    if hidden > 0:
        yield colour.dim(f"and {count_of(hidden, 'more rule')}: --statistics lists all")


def _rule_row(report: Report, row: dict[str, Any], width: int, colour: Paint) -> str:
    paint = colour.bad if row["severity"] == "error" else str
    return (
        paint(f"{row['code']:<8}{row['name']:<{width + 2}}{row['severity']:<7}")
        + f"{row['count']:>9,}{share(row['share']):>9}{_number(row['tokens']):>12}"
        + f"  {report.place(row['file_no'], row['line'])}"
    )


def _statistics(report: Report, colour: Paint) -> Iterator[str]:
    ordered = report.rules.sort("count", "code", descending=[True, False])
    for row in ordered.iter_rows(named=True):
        paint = colour.bad if row["severity"] == "error" else str
        yield paint(f"{row['count']:>9,}  {row['code']}  {row['name']}") + f" ({row['severity']})"
    if not ordered.height:
        yield "nothing found"


def _examples(report: Report, show: int, colour: Paint) -> Iterator[str]:
    if show <= 0:
        return
    for row in report.rules.iter_rows(named=True):
        found = report.findings.filter(pl.col("code") == row["code"])
        shown = min(show, found.height)
        yield colour.strong(f"{row['code']} {row['name']}") + (
            f"  {row['count']:,} found, {count_of(shown, 'example')}"
        )
        for finding in found.head(show).iter_rows(named=True):
            yield "  " + "  ".join(_where(report, finding))
            if finding["detail"]:
                yield from _wrap(finding["detail"][:300], "    > ", "      ")


def _where(report: Report, finding: dict[str, Any]) -> Iterator[str]:
    yield report.place(finding["file_no"], finding["line"])
    if finding["choice"]:
        yield f"choice {finding['choice']}"
    if finding["turn"] is not None:
        yield f"message {finding['turn']}"
    if finding["at"]:
        yield inert(finding["at"], 80)
    if finding["record_id"] is not None:
        yield f"id {inert(finding['record_id'], 40)}"


def _next(report: Report, colour: Paint) -> Iterator[str]:
    for number, step in enumerate(_steps(report)):
        yield ("      " if number else colour.strong("Next: ")) + step


def _steps(report: Report) -> Iterator[str]:
    """The next commands: the page of the worst rule first."""
    if report.rules.height:
        yield f"eagle3-data rule {report.rules['code'][0]}    what it means and what to do"
    elif report.tokenizer is None and report.ledger.lines:
        yield f"{_again(report)} --tokenizer DIR    proves the token stream"
    yield from _steps_of_the_command(report)


def _steps_of_the_command(report: Report) -> Iterator[str]:
    """Which command it was is told by its rules."""
    families = {rule.family for rule in report.rules_run}
    if "SHD" in families:
        codes = set(report.rules["code"])
        if codes & MENDED and codes.isdisjoint(IN_THE_WAY):
            yield "the same call that wrote the shards    writes missing and damaged ones anew"
        elif report.clean and report.record_count:
            folder = shlex.quote(inert(str(Path(report.inputs[0].path).parent)))
            yield f"eagle3-data vocab {folder} -o mapping/ --size 32000    the draft vocabulary"
            yield f"eagle3-data export {folder} --to TARGET -o OUT    files for another trainer"
        return
    out = report.ledger.quarantined + report.ledger.unreadable
    if out and QUARANTINE not in report.call:
        again = _again(report)
        if "CNV" in families and not report.call:
            again = "the same eagle3-data convert call with"
        yield f"{again} {QUARANTINE} DIR    puts the bad lines apart"
    if report.written is not None and report.written.samples:
        folder = shlex.quote(inert(report.written.directory))
        yield f"eagle3-data verify {folder}    are the shards what this run wrote, and sound"


def _again(report: Report) -> str:
    """The command once more, as far as it decides what is found: with less it would find another
    split than the one above it.
    """
    call: Sequence[str] = report.call
    if not call:
        paths = [facts.path for facts in report.inputs]
        call = ("check", *(paths if len(paths) <= 2 else ["FILES"]))
    if QUARANTINE in call:  # comes last, and its folder is full now
        call = call[: call.index(QUARANTINE)]
    return " ".join(["eagle3-data", *(shlex.quote(inert(word)) for word in call)])


def _number(value: int | None) -> str:
    return "" if value is None else f"{value:,}"


def _wrap(text: str, first: str, rest: str) -> list[str]:
    return textwrap.wrap(
        inert(text),
        WIDTH,
        initial_indent=first,
        subsequent_indent=rest,
        break_on_hyphens=False,
        break_long_words=True,
    ) or [first.rstrip()]
