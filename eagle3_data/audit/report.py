"""The report: what `eagle3_data.check(...)` returns, and the one thing every output format is made
from.

What enters: the outcome of judging, the facts of the run, the diagnoses. What leaves: a frozen
`Report` with exact tables. It promises that no number in it is estimated without saying so, and a
JSON form that only grows within one `schema_version`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

import polars as pl

from eagle3_data.audit.inert import inert
from eagle3_data.audit.judge import Ledger, Outcome, RuleFault
from eagle3_data.audit.rules.registry import Rule, Severity
from eagle3_data.records.table import Status
from eagle3_data.tokens.samples import Grade

if TYPE_CHECKING:
    from eagle3_data.audit.diagnose import Diagnosis

SCHEMA_VERSION = 1

B_ROWS, B_ODD, B_ODD_SAME_LENGTH = 300, 24, 12
"""Measured on a real vLLM capture with ids: of 300 rows 24 were sampled in a tokenization that the
text does not encode to, and in 12 of those the lengths agree all the same, so that they would have
been graded B without the ids.
"""

GRADE_TITLES: Mapping[str, str] = {
    Grade.A.value: "exact, ids captured",
    Grade.B.value: "count agrees",
    Grade.C.value: "agrees after a known strip",
    Grade.D.value: "unproven",
    Grade.E.value: "contradicted or ambiguous",
}

RULE_TABLE: dict[str, pl.DataType] = {
    "code": pl.String(),
    "name": pl.String(),
    "severity": pl.String(),
    "count": pl.Int64(),  # records, or whole files
    "share": pl.Float64(),  # of all records and unreadable lines; null = the rule is about files
    "tokens": pl.Int64(),  # supervised tokens of those records; null when no record says
    "file_no": pl.Int32(),
    "line": pl.Int64(),
}
GRADE_TABLE: dict[str, pl.DataType] = {
    "grade": pl.String(),
    "count": pl.Int64(),
    "share": pl.Float64(),
    "tokens": pl.Int64(),
}


@dataclass(frozen=True, slots=True)
class InputFacts:
    """One input. `path` as the user gave it, `bytes` on disk, `lines` without blank ones."""

    path: str
    bytes: int
    lines: int
    records: int
    unreadable: int


@dataclass(frozen=True, slots=True)
class ProfileFacts:
    """The profile in force and why it was chosen."""

    name: str
    why: str
    fingerprint: str


@dataclass(frozen=True, slots=True)
class TokenizerFacts:
    """The tokenizer in force. `note` is "" or says loudly why it is not the one asked for;
    `template_sha256`: over the chat template that rendered the prompts, None without one.
    """

    name: str
    backend: str
    note: str
    fingerprint: str
    template_sha256: str | None = None


@dataclass(frozen=True, slots=True)
class RuleNotRun:
    """A rule left out, and why: "needs a tokenizer", "ignored", …"""

    code: str
    name: str
    reason: str


@dataclass(frozen=True, slots=True)
class Written:
    """The shards that a conversion wrote: what will be trained on, while the rest of a report is
    about what was read. `grades`, `splits`: name → samples.
    """

    directory: str
    files: int
    samples: int
    tokens: int
    supervised_tokens: int
    grades: Mapping[str, int]
    splits: Mapping[str, int]


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Report:
    """Everything one run found. `findings`: FINDINGS_SCHEMA; `records`: the light records, with
    codes and verdict.

    `grades`: GRADE_TABLE, `rules`: RULE_TABLE, both complete, in the order in which they are shown.
    `call`: the words after `eagle3-data` that made the report, those that decide what is found; the
    next command repeats them. () when no command did. `written`: only of a conversion that is
    complete.
    """

    inputs: tuple[InputFacts, ...]
    ledger: Ledger
    profile: ProfileFacts
    tokenizer: TokenizerFacts | None
    rules_run: tuple[Rule, ...]
    rules_not_run: tuple[RuleNotRun, ...]
    faults: tuple[RuleFault, ...]
    findings: pl.DataFrame
    records: pl.DataFrame
    diagnoses: tuple[Diagnosis, ...]
    grades: pl.DataFrame
    rules: pl.DataFrame
    notes: tuple[str, ...] = ()
    partial: bool = False
    seconds: float = 0.0
    versions: Mapping[str, str] = field(default_factory=dict)
    call: tuple[str, ...] = ()
    written: Written | None = None

    @property
    def exit_code(self) -> int:
        """0 no error-level finding, 1 some, 2 a fault of the program. An interrupted run is the
        caller's to tell (130).
        """
        if self.faults:
            return 2
        return 1 if self.errors else 0

    @property
    def errors(self) -> int:
        """Records (and whole files) with an error-level finding, summed over rules."""
        return int(self.rules.filter(severity=Severity.ERROR.value)["count"].sum())

    @property
    def clean(self) -> bool:
        """True when nothing of error level was found and nothing broke."""
        return self.exit_code == 0

    def level(self, diagnosis: Diagnosis) -> Severity:
        """ERROR when it explains a rule of level error, which quarantines; else WARN."""
        errors = self.rules.filter(severity=Severity.ERROR.value)["code"].to_list()
        return Severity.WARN if set(errors).isdisjoint(diagnosis.codes) else Severity.ERROR

    def place(self, file_no: int | None, line: int | None) -> str:
        """`file:line` as the user gave the file, made inert; only the file for a whole-file
        finding.
        """
        if file_no is None or not 0 <= file_no < len(self.inputs):
            return "all inputs"
        path = inert(self.inputs[file_no].path)
        return path if line is None else f"{path}:{line}"

    def to_dict(self, *, examples: int | None = 100) -> dict[str, Any]:
        """The stable JSON form. At most `examples` findings a rule, None for all; every count stays
        exact.
        """
        shown = (
            self.findings
            if examples is None
            else self.findings.filter(pl.int_range(pl.len()).over("code") < examples)
        )
        return {
            "schema_version": SCHEMA_VERSION,
            "tool": "eagle3-data",
            "versions": dict(self.versions),
            "exit_code": self.exit_code,
            "partial": self.partial,
            "seconds": round(self.seconds, 3),
            "ledger": asdict(self.ledger),
            "inputs": [asdict(facts) for facts in self.inputs],
            "records": self.record_count,
            "profile": asdict(self.profile),
            "tokenizer": asdict(self.tokenizer) if self.tokenizer else None,
            "notes": list(self.notes),
            "diagnoses": [asdict(diagnosis) for diagnosis in self.diagnoses],
            "grades": self.grades.to_dicts(),
            **({"shards": asdict(self.written)} if self.written else {}),
            "rules": [
                {"file": self._path(row.pop("file_no")), **row} for row in self.rules.to_dicts()
            ],
            "rules_run": [
                {"code": r.code, "name": r.name, "severity": r.severity.value, "summary": r.summary}
                for r in self.rules_run
            ],
            "rules_not_run": [asdict(r) for r in self.rules_not_run],
            "faults": [asdict(f) for f in self.faults],
            "findings_total": self.findings.height,
            "findings_shown": shown.height,
            "findings": [
                {"file": self._path(row.pop("file_no")), **row}
                for row in shown.iter_rows(named=True)
            ],
        }

    @property
    def record_count(self) -> int:
        """Records of all inputs (a line with n choices counts n)."""
        return sum(facts.records for facts in self.inputs)

    def _path(self, file_no: int | None) -> str | None:
        if file_no is None or not 0 <= file_no < len(self.inputs):
            return None
        return self.inputs[file_no].path

    def __str__(self) -> str:
        from eagle3_data.audit.formats.text import report_text

        return report_text(self)

    def __repr__(self) -> str:
        return f"<Report: {self.ledger.lines} lines, exit {self.exit_code}>\n{self}"

    def _repr_html_(self) -> str:
        from eagle3_data.audit.formats.html import report_block

        return report_block(self)


def write_up(
    outcome: Outcome,
    *,
    paths: Sequence[str],
    sizes: Sequence[int],
    profile: ProfileFacts,
    tokenizer: TokenizerFacts | None,
    rules_run: Sequence[Rule],
    rules_not_run: Sequence[RuleNotRun] = (),
    diagnoses: Sequence[Diagnosis] = (),
    notes: Sequence[str] = (),
    partial: bool = False,
    seconds: float = 0.0,
    versions: Mapping[str, str] | None = None,
) -> Report:
    """The report of a finished run. `paths` and `sizes` (bytes on disk) are the inputs in the order
    of `file_no`.
    """
    grades = grade_table(outcome.records)
    inputs = _inputs(outcome.records, paths, sizes)
    loud = [*notes]
    if tokenizer is not None and tokenizer.note:
        loud.insert(0, tokenizer.note)
    loud += _grade_notes(grades)
    return Report(
        inputs=inputs,
        ledger=outcome.ledger,
        profile=profile,
        tokenizer=tokenizer,
        rules_run=tuple(rules_run),
        rules_not_run=tuple(rules_not_run),
        faults=outcome.faults,
        findings=outcome.findings,
        records=outcome.records,
        diagnoses=tuple(diagnoses),
        grades=grades,
        rules=rule_table(outcome),
        notes=tuple(dict.fromkeys(loud)),
        partial=partial,
        seconds=seconds,
        versions=dict(versions or {}),
    )


def grade_table(records: pl.DataFrame) -> pl.DataFrame:
    """One row a grade that occurs, A first. `share` is of the records that have a grade."""
    graded = records.filter(pl.col("grade").is_not_null())
    return (
        graded.group_by(pl.col("grade").cast(pl.String))
        .agg(pl.len().alias("count"), pl.col("supervised_tokens").sum().alias("tokens"))
        .with_columns(share=pl.col("count") / max(graded.height, 1))
        .select(pl.col(name).cast(dtype) for name, dtype in GRADE_TABLE.items())
        .sort("grade")
    )


def rule_table(outcome: Outcome) -> pl.DataFrame:
    """One row a rule that fired: errors first, then by the tokens at stake, then by count.

    `share` is of all records and unreadable lines, null for a rule about whole files.
    """
    judged = outcome.records.filter(pl.col("verdict") != "file").height
    counts = pl.DataFrame(
        {"code": list(outcome.counts), "count": list(outcome.counts.values())},
        schema={"code": pl.String, "count": pl.Int64},
    )
    return (
        outcome.findings.group_by("code", maintain_order=True)
        .agg(
            pl.col("name", "severity").first(),
            pl.when(pl.col("tokens").is_not_null().any()).then(pl.col("tokens").sum()),
            pl.col("file_no", "line").first(),
            pl.len().alias("told"),
            pl.col("line").is_null().all().alias("of_files"),
        )
        .join(counts, on="code", how="left")
        .with_columns(
            # a foreign file is one finding, but its count is of records
            share=pl.when(~pl.col("of_files") | (pl.col("count") > pl.col("told"))).then(
                pl.col("count") / max(judged, 1)
            )
        )
        .select(pl.col(name).cast(dtype) for name, dtype in RULE_TABLE.items())
        .sort(
            pl.col("severity") != Severity.ERROR.value,
            pl.col("tokens").fill_null(0),
            "count",
            "code",
            descending=[False, True, True, False],
        )
    )


def _inputs(
    records: pl.DataFrame, paths: Sequence[str], sizes: Sequence[int]
) -> tuple[InputFacts, ...]:
    status = pl.col("status").cast(pl.String)
    rows = (
        records.group_by("file_no")
        .agg(
            pl.col("line").filter(status != Status.FILE.value).n_unique().alias("lines"),
            (status == Status.RECORD.value).sum().alias("records"),
            pl.col("line").filter(pl.col("verdict") == "unreadable").n_unique().alias("unreadable"),
        )
        .iter_rows()
    )
    found = {file_no: counts for file_no, *counts in rows}
    return tuple(
        InputFacts(path, size, *found.get(number, (0, 0, 0)))
        for number, (path, size) in enumerate(zip(paths, sizes, strict=True))
    )


def _grade_notes(grades: pl.DataFrame) -> list[str]:
    count = dict(grades.select("grade", "count").iter_rows()).get(Grade.B.value, 0)
    if not count:
        return []
    share = B_ODD_SAME_LENGTH / (B_ROWS - B_ODD + B_ODD_SAME_LENGTH)
    return [
        f"Grade B is strong evidence, not proof: in a real capture {B_ODD} of {B_ROWS} records were"
        " sampled in a tokenization that their text does not encode to, and"
        f" {B_ODD_SAME_LENGTH} of those keep their length. Expect about {share:.0%} of the"
        f" {count:,} B records ({round(count * share):,}) to hold other ids."
        " Only captured ids (return_token_ids) are exact."
    ]
