"""Workflow commands for GitHub Actions: one annotation a rule, with its count and its first place.

GitHub shows about ten annotations of a level a step, so one a record would hide all but the first
rule.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from eagle3_data.audit.formats.text import amount, count_of
from eagle3_data.audit.inert import inert
from eagle3_data.audit.rules.registry import Severity

if TYPE_CHECKING:
    from eagle3_data.audit.report import Report

LEVELS = {Severity.ERROR: "error", Severity.WARN: "warning"}


def report_github(report: Report) -> str:
    """`::error …` and `::warning …` lines, diagnoses first, then notes as `::notice …`; "" when
    there is nothing to say.
    """
    lines = [
        _command(
            LEVELS[report.level(diagnosis)],
            {"title": f"eagle3-data: {diagnosis.name}"},
            f"{diagnosis.title} ({count_of(diagnosis.records, 'record')})."
            f" Next: {diagnosis.next_step}",
        )
        for diagnosis in report.diagnoses
    ]
    lines += [
        _command("error", {"title": f"eagle3-data: {f.code} could not be run"}, f.error)
        for f in report.faults
    ]
    for row in report.rules.iter_rows(named=True):
        where = {"title": f"eagle3-data: {row['code']} {row['name']}"}
        if row["file_no"] is not None and 0 <= row["file_no"] < len(report.inputs):
            where["file"] = inert(report.inputs[row["file_no"]].path)
            if row["line"] is not None:
                where["line"] = str(row["line"])
        stake = f", {row['tokens']:,} tokens at stake" if row["tokens"] else ""
        lines.append(
            _command(
                LEVELS[Severity(row["severity"])],
                where,
                f"{amount(row)}{stake}; first at {report.place(row['file_no'], row['line'])}",
            )
        )
    lines += [_command("notice", {"title": "eagle3-data"}, note) for note in report.notes]
    return "".join(line + "\n" for line in lines)


def _command(level: str, properties: dict[str, str], message: str) -> str:
    # the escapes of the runner: % first, then line ends; in properties also : and ,
    given = ",".join(
        f"{key}={_data(value).replace(':', '%3A').replace(',', '%2C')}"
        for key, value in properties.items()
    )
    return f"::{level} {given}::{_data(message)}"


def _data(text: str) -> str:
    return inert(text, 1000).replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")
