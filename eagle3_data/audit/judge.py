"""Rules become findings, findings become verdicts, verdicts become a ledger that adds up.

What enters: frames with every column of the road. What leaves: one row a finding, one light row a
record with its codes and verdict, and the ledger. It promises exact counts, text only where a rule
fired, that one broken rule is named instead of ending the run, and that lines in = kept +
quarantined + unreadable, or `LedgerError`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

import polars as pl

from eagle3_data.audit.columns import DETAIL_CHARS, FINDINGS_SCHEMA, LIGHT_SCHEMA
from eagle3_data.audit.foreign import foreign_files, told_once, without_noise
from eagle3_data.audit.inert import inert
from eagle3_data.audit.rules.registry import Columns, Rule, Severity
from eagle3_data.records.table import Status

if TYPE_CHECKING:
    from eagle3_data.audit.thresholds import Thresholds

BEFORE_THE_ANSWER = ("RAW", "REC")
"""Families that judge lines and files too. All others see only rows that are records."""

BROKEN = (Exception, pl.exceptions.PanicException)
"""What a rule may raise: it is third-party code, and one that is broken must not end the run. A
panic of Polars is no `Exception`."""

_RECORD = ("file_no", "line", "choice", "turn")
_LINE = ("file_no", "line")
_PLACE = ("file_no", "line", "offset", "choice", "turn", "record_id")


class LedgerError(AssertionError):
    """Lines in differ from lines out: a fault of the program, never of the data."""


@dataclass(frozen=True, slots=True)
class RuleFault:
    """A rule that could not be evaluated: an internal fault, exit code 2."""

    code: str
    name: str
    error: str


@dataclass(frozen=True, slots=True, eq=False)
class Judged:
    """Judged batches: `findings` (FINDINGS_SCHEMA), `light` (LIGHT_SCHEMA + key_ columns)."""

    findings: pl.DataFrame
    light: pl.DataFrame
    faults: tuple[RuleFault, ...] = ()


@dataclass(frozen=True, slots=True)
class Ledger:
    """Lines of all inputs by verdict, blank lines left out."""

    lines: int
    kept: int
    quarantined: int
    unreadable: int

    def check(self) -> Ledger:
        """Itself, or LedgerError when the lines do not add up."""
        if self.lines != self.kept + self.quarantined + self.unreadable:
            raise LedgerError(
                f"{self.lines} lines in, but {self.kept} kept + {self.quarantined} quarantined"
                f" + {self.unreadable} unreadable"
            )
        return self


@dataclass(frozen=True, slots=True, eq=False)
class Outcome:
    """All findings, the light records with `codes` and `verdict`, and the checked ledger.

    `counts`: code → rows that it fired on, also where a file was told once.
    """

    findings: pl.DataFrame
    records: pl.DataFrame
    ledger: Ledger
    counts: Mapping[str, int]
    faults: tuple[RuleFault, ...] = ()


def no_findings() -> pl.DataFrame:
    """A findings frame with no rows."""
    return pl.DataFrame(schema=FINDINGS_SCHEMA)


def judge(frame: pl.DataFrame, rules: Sequence[Rule], thresholds: Thresholds) -> Judged:
    """Every record rule over one batch in one pass. A condition that gives null did not fire."""
    columns = Columns(thresholds)
    fired, faults = _fire(frame, rules, thresholds)
    counts = fired.sum().row(0) if fired.width else ()
    hit = {code for code, count in zip(fired.columns, counts, strict=True) if count}
    parts = [no_findings()]
    for rule in rules:
        if rule.code in hit:
            found, fault = _findings(frame, fired[rule.code], rule, columns)
            parts.append(found)
            faults += fault
    return Judged(pl.concat(parts), light(frame), tuple(faults))


def light(frame: pl.DataFrame) -> pl.DataFrame:
    """The light columns of a frame, missing ones as nulls, and every corpus key."""
    have = set(frame.columns)
    return frame.select(
        *(
            pl.col(name).cast(dtype) if name in have else pl.lit(None, dtype=dtype).alias(name)
            for name, dtype in LIGHT_SCHEMA.items()
        ),
        *(name for name in frame.columns if name.startswith("key_")),
    )


def merge(parts: Iterable[Judged]) -> Judged:
    """Judged batches, in the order of the inputs, as one. A fault of every batch is told once."""
    findings, lights = [no_findings()], [pl.DataFrame(schema=LIGHT_SCHEMA)]
    faults: dict[RuleFault, None] = {}
    for part in parts:
        findings.append(part.findings)
        lights.append(part.light)
        faults.update(dict.fromkeys(part.faults))
    return Judged(
        pl.concat(findings, rechunk=True),
        pl.concat(lights, how="diagonal_relaxed", rechunk=True),
        tuple(faults),
    )


def finish(
    judged: Judged,
    corpus: pl.DataFrame | None = None,
    *,
    lines: int | None = None,
) -> Outcome:
    """Verdicts and ledger of a whole run.

    `corpus`: findings of the corpus rules. `lines`: lines that the readers handed over, counted
    apart; without it the rows of `judged.light` are counted. Raises LedgerError when the ledger
    does not balance.
    """
    findings = judged.findings
    if corpus is not None and corpus.height:
        given = set(corpus.columns)
        findings = pl.concat(
            [
                findings,
                corpus.select(
                    (pl.col(n) if n in given else pl.lit(None)).cast(t).alias(n)
                    for n, t in FINDINGS_SCHEMA.items()
                ),
            ]
        )
    foreign = foreign_files(judged.light, findings)
    findings = without_noise(findings, foreign)
    records = _with_verdicts(judged.light, findings)
    counts = dict(findings["code"].value_counts().iter_rows())
    findings = told_once(findings, foreign)
    order = ["file_no", "line", "choice", "turn", "code"]
    return Outcome(
        findings.sort(order, nulls_last=[False, False, True, True, True], maintain_order=True),
        records,
        _ledger(records, lines),
        counts,
        judged.faults,
    )


def _fire(
    frame: pl.DataFrame, rules: Sequence[Rule], thresholds: Thresholds
) -> tuple[pl.DataFrame, list[RuleFault]]:
    """A Boolean column a rule, named by its code. The culprit is searched only when any fails."""
    conditions, unbuilt = _conditions(tuple(rules), thresholds)
    faults = list(unbuilt)
    try:
        return _select(frame, conditions), faults
    except BROKEN:  # some condition is at fault; the whole select does not say which
        sound: dict[str, pl.Expr] = {}
        for rule in rules:
            if rule.code in conditions:
                try:
                    _select(frame, {rule.code: conditions[rule.code]})
                    sound[rule.code] = conditions[rule.code]
                except BROKEN as error:
                    faults.append(_fault(rule, error))
        return _select(frame, sound), faults


@lru_cache(maxsize=4)
def _conditions(
    rules: tuple[Rule, ...], thresholds: Thresholds
) -> tuple[dict[str, pl.Expr], tuple[RuleFault, ...]]:
    """Code → condition, and the rules whose condition can not be built. Kept, because building a
    hundred expressions costs 5 ms, as much as evaluating them on a batch.
    """
    columns = Columns(thresholds)
    conditions: dict[str, pl.Expr] = {}
    faults: list[RuleFault] = []
    for rule in rules:
        try:
            condition = rule.condition(columns).fill_null(False)
            if rule.family not in BEFORE_THE_ANSWER:
                condition = condition & (pl.col("status") == Status.RECORD.value)
            conditions[rule.code] = condition
        except BROKEN as error:
            faults.append(_fault(rule, error))
    return conditions, tuple(faults)


def _select(frame: pl.DataFrame, conditions: Mapping[str, pl.Expr]) -> pl.DataFrame:
    """Boolean columns of the frame's height. Raises what Polars raises, TypeError for others.

    Lazy, because rules share many parts: evaluating those once halves the CPU time.
    """
    fired = frame.lazy().select("file_no", **conditions).collect().drop("file_no")
    for name, dtype in fired.schema.items():
        if dtype != pl.Boolean:
            raise TypeError(f"the condition of {name} gives {dtype}, not Boolean")
    return fired


def _fault(rule: Rule, error: BaseException) -> RuleFault:
    text = f"{type(error).__name__}: {error}".strip().splitlines()[0]
    return RuleFault(rule.code, rule.name, inert(text, 300))


def _findings(
    frame: pl.DataFrame, fired: pl.Series, rule: Rule, columns: Columns
) -> tuple[pl.DataFrame, list[RuleFault]]:
    """The findings of one rule in one batch."""
    none = pl.lit(None, dtype=pl.String)
    faults: list[RuleFault] = []
    if rule.detail is not None:
        try:
            detail = rule.detail(columns).cast(pl.String).str.head(DETAIL_CHARS)
            return _rows(frame, fired, rule, detail), faults
        except BROKEN as error:
            faults.append(_fault(rule, error))
    return _rows(frame, fired, rule, none), faults


def _rows(frame: pl.DataFrame, fired: pl.Series, rule: Rule, detail: pl.Expr) -> pl.DataFrame:
    tokens = [pl.col(n) for n in ("supervised_tokens", "completion_tokens") if n in frame.columns]
    return (
        frame.lazy()  # lazy: only the columns named below are gathered, not 12 KB of text a row
        .filter(fired)
        .select(
            pl.lit(rule.code).alias("code"),
            pl.lit(rule.name).alias("name"),
            pl.lit(rule.severity.value).alias("severity"),
            *_PLACE,
            pl.lit(rule.at).alias("at"),
            detail.alias("detail"),
            (pl.coalesce(tokens) if tokens else pl.lit(None)).cast(pl.Int64).alias("tokens"),
        )
        .collect()
    )


def _with_verdicts(records: pl.DataFrame, findings: pl.DataFrame) -> pl.DataFrame:
    """The records with `codes` (sorted, each once) and `verdict` (of the whole line)."""
    codes = (
        findings.group_by(_RECORD)
        .agg(pl.col("code").unique().sort().alias("codes"))
        .with_columns(pl.col("codes").cast(pl.List(pl.String)))
    )
    wrong = (
        findings.filter((pl.col("severity") == Severity.ERROR.value) & pl.col("line").is_not_null())
        .select(_LINE)
        .unique()
        .with_columns(wrong=pl.lit(True))
    )
    status = pl.col("status").cast(pl.String)
    unreadable = (status == Status.UNREADABLE.value).any().over(_LINE)
    judged = (
        records.select(*_RECORD, "status")  # a join copies every column it is given
        .join(codes, on=_RECORD, how="left", nulls_equal=True, maintain_order="left")
        .join(wrong, on=_LINE, how="left", maintain_order="left")
        .select(
            pl.col("codes").fill_null(pl.lit([], dtype=pl.List(pl.String))),
            verdict=pl.when(status == Status.FILE.value)
            .then(pl.lit("file"))
            .when(unreadable)
            .then(pl.lit("unreadable"))
            .when(pl.col("wrong"))
            .then(pl.lit("quarantine"))
            .otherwise(pl.lit("keep")),
        )
    )
    return records.hstack(judged)


def _ledger(records: pl.DataFrame, lines: int | None) -> Ledger:
    """Distinct (line, verdict) pairs against the lines read: a line with two verdicts, or with
    none, unbalances it.
    """
    judged = records.filter(pl.col("verdict") != "file")
    by_verdict = dict(
        judged.select(*_LINE, "verdict").unique()["verdict"].value_counts().iter_rows()
    )
    return Ledger(
        judged.select(_LINE).n_unique() if lines is None else lines,
        by_verdict.get("keep", 0),
        by_verdict.get("quarantine", 0),
        by_verdict.get("unreadable", 0),
    ).check()
