"""One cause told once: when many findings have one reason, the report says the reason on top.

What enters: the judged light records, the findings, the profile. What leaves: diagnoses with their
numbers and a next step, those of errors first, then the widest. It promises that a record is
explained by one cause only, and that a cause which can not be told from the numbers stays untold.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import polars as pl

from eagle3_data.audit.causes import capture, run, stream
from eagle3_data.audit.causes.case import Case, Diagnosis, Found
from eagle3_data.audit.rules.registry import Severity
from eagle3_data.profiles.profile import Profile
from eagle3_data.records.table import Status

__all__ = ["CAUSES", "Diagnosis", "diagnose"]

CAUSES: Final[tuple[Callable[[Case], Found | None], ...]] = (
    # the order matters: a lost thought makes counts differ, so it comes before the token causes
    capture.lost_thought,
    capture.no_parser,
    capture.foreign_markers,
    capture.closing_marker_only,
    capture.markers_skipped,
    capture.answer_in_thought,
    stream.no_prompt,
    stream.constant_offset,
    stream.wrong_tokenizer,
    run.token_budget,
    run.ended_in_thought,
    capture.key_renamed,
    run.written_again,
    run.mixed_models,
    run.client_timeout,
    run.bad_shift,
)


def diagnose(
    records: pl.DataFrame, findings: pl.DataFrame, profile: Profile, *, paths: Sequence[str] = ()
) -> list[Diagnosis]:
    """Causes found: those that explain errors first, then the one with most records. `records`:
    with `codes` and `verdict`, as `finish` gives them.
    """
    everything = records.filter(
        pl.col("status").cast(pl.String) == Status.RECORD.value
    ).with_row_index("row")
    if not everything.height:
        return []
    everything = everything.with_columns(pl.col("row").cast(pl.Int64))
    names = dict(findings.select("name", "code").unique().iter_rows())
    left = everything
    told: list[Diagnosis] = []
    for cause in CAUSES:
        found = cause(Case(left, everything, profile, names, paths))
        if found is not None:
            told.append(found.diagnosis)
            left = left.filter(~pl.col("row").is_in(found.explained.implode()))
    errors = set(findings.filter(severity=Severity.ERROR.value)["code"].to_list())
    return sorted(told, key=lambda one: (errors.isdisjoint(one.codes), -one.records))
