"""Admission: which judged records become samples, and why the others do not.

What enters: light records that the audit would keep. What leaves: findings of the CNV rules, which
join those of the audit. It promises that every kept line becomes samples or has a reason on the
ledger, and that a cut tail is a finding with the supervised tokens lost.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

import polars as pl

from eagle3_data.audit.columns import FINDINGS_SCHEMA
from eagle3_data.audit.rules.registry import Columns, Rule, Scope, Severity
from eagle3_data.shards.schema import ShardError
from eagle3_data.tokens.samples import Grade

CONVERT_RULES: Final[dict[str, Rule]] = {}


def _never(_: Columns) -> pl.Expr:
    return pl.lit(False)


def _cnv(number: int, name: str, docs: str, severity: Severity = Severity.ERROR) -> str:
    code = f"CNV{number:03d}"
    CONVERT_RULES[code] = Rule(code, name, severity, "", _never, docs, Scope.RECORD, True)
    return code


NO_IDS = _cnv(
    1,
    "no-token-ids",
    """\
The record passed the audit, but no token ids could be put together for it.

Why it matters: a sample is its ids. This happens when the rule that tells the reason is ignored.
What to do: run `check` with all rules; its findings on this line say what is missing.""",
)

BELOW_MINIMUM = _cnv(
    2,
    "grade-below-minimum",
    """\
The grade is below --min-grade, or it is E: the ids are contradicted.

Why it matters: ids that are not the model's own teach another stream. E never becomes a sample.
What to do: capture with return_token_ids for grade A, or lower --min-grade (D at the least).""",
)

TOO_LONG = _cnv(
    3,
    "too-long",
    """\
The sample has more tokens than --max-length, and is not cut: --on-too-long is quarantine, or the
prompt alone fills the length.

Why it matters: a trainer would cut it without a word, or run out of memory.
What to do: raise --max-length, or cut the tails with --on-too-long drop-tail.""",
)

TAIL_DROPPED = _cnv(
    4,
    "tail-dropped",
    """\
The sample was cut to --max-length; its tokens here are the supervised ones that were lost.

Why it matters: the drafter never sees how such an answer ends, nor, when the cut is inside the
thought, the answer itself. The sample carries `truncated`.
What to do: nothing when the share is small, else raise --max-length.""",
    Severity.WARN,
)

REPEATED = _cnv(
    5,
    "line-repeated",
    """\
A line before this one has the same bytes.

Why it matters: the same sample twice is trained twice, and has the same id. The audit tells it as
SET001; this is what is left when that rule is ignored or only warns.
What to do: remove the copy.""",
)


class OnTooLong(StrEnum):
    """What becomes of a sample longer than --max-length."""

    QUARANTINE = "quarantine"
    DROP_TAIL = "drop-tail"


@dataclass(frozen=True, slots=True)
class Admission:
    """What a sample must be. `max_length`: tokens, None for any."""

    min_grade: Grade = Grade.D
    max_length: int | None = None
    on_too_long: OnTooLong = OnTooLong.QUARANTINE

    def __post_init__(self) -> None:
        if self.min_grade is Grade.E:
            raise ShardError("grade E is contradicted and never converted: use one of A, B, C, D")
        if self.max_length is not None and self.max_length < 2:
            raise ShardError("a sample has a prompt and an answer: --max-length is at least 2")

    @property
    def cuts(self) -> bool:
        """Whether tails of long samples are cut."""
        return self.max_length is not None and self.on_too_long is OnTooLong.DROP_TAIL

    def marks(self) -> list[pl.Expr]:
        """Columns over sample columns: `refused`, the code that keeps a record out, or null; and
        `tokens_lost`, supervised tokens that a cut takes.
        """
        grades = [grade.value for grade in Grade if grade <= self.min_grade]
        prompt = pl.col("prompt_len").fill_null(0)
        bare = pl.col("grade").is_null() | (pl.col("supervised_tokens").fill_null(0) == 0)
        below = ~pl.col("grade").cast(pl.String).is_in(grades)
        refused = pl.when(bare).then(pl.lit(NO_IDS)).when(below).then(pl.lit(BELOW_MINIMUM))
        if self.max_length is None:
            return [
                refused.otherwise(None).alias("refused"),
                pl.lit(0, dtype=pl.Int64).alias("tokens_lost"),
            ]
        long = pl.col("seq_len") > self.max_length
        hopeless = long & (prompt >= self.max_length) if self.cuts else long
        lost = pl.when(self.cuts & long & ~hopeless & ~bare).then(
            pl.col("seq_len") - self.max_length
        )
        return [
            refused.when(hopeless).then(pl.lit(TOO_LONG)).otherwise(None).alias("refused"),
            lost.otherwise(0).alias("tokens_lost"),
        ]


def refusals(records: pl.DataFrame, admission: Admission) -> pl.DataFrame:
    """Findings on records of verdict keep. `records`: light records with `refused`, `tokens_lost`,
    `seq_len`, `inside_thought` and `line_hash`, in the order of the inputs.
    """
    kept = records.filter(pl.col("verdict") == "keep")
    line = ("file_no", "line")
    first = kept.select(*line, "line_hash").unique("line_hash", keep="first", maintain_order=True)
    repeated = kept.join(first, on=line, how="anti", maintain_order="left")
    refused = kept.filter(pl.col("refused").is_not_null())
    out = pl.concat([repeated.select(line), refused.select(line)])
    cut = kept.filter(pl.col("tokens_lost") > 0)
    cut = cut.join(out, on=line, how="anti", maintain_order="left")
    limit = pl.lit(f" tokens, the limit is {admission.max_length}")
    length = pl.col("seq_len").cast(pl.String)
    details = {
        NO_IDS: pl.coalesce(pl.col("grade_reason"), pl.lit("nothing was assembled")),
        BELOW_MINIMUM: pl.format(
            "grade {} ({}), the least is {}",
            pl.col("grade").cast(pl.String),
            pl.col("grade_reason").fill_null("no reason"),
            pl.lit(admission.min_grade.value),
        ),
        TOO_LONG: length + limit,
    }
    parts = [
        _findings(refused.filter(pl.col("refused") == code), code, detail)
        for code, detail in details.items()
    ]
    where = pl.when("inside_thought").then(pl.lit("thought")).otherwise(pl.lit("answer"))
    told = pl.concat_str(
        length,
        limit,
        pl.lit(": "),
        pl.col("tokens_lost").cast(pl.String),
        pl.lit(" supervised tokens lost, cut inside the "),
        where,
    )
    parts.append(_findings(cut, TAIL_DROPPED, told, tokens=pl.col("tokens_lost")))
    parts.append(_findings(repeated, REPEATED, pl.lit("the same bytes stand on an earlier line")))
    return pl.concat(parts)


def _findings(
    rows: pl.DataFrame, code: str, detail: pl.Expr, tokens: pl.Expr | None = None
) -> pl.DataFrame:
    rule = CONVERT_RULES[code]
    made = {
        "code": pl.lit(rule.code),
        "name": pl.lit(rule.name),
        "severity": pl.lit(rule.severity.value),
        "at": pl.lit(rule.at),
        "detail": detail,
        "tokens": pl.col("supervised_tokens") if tokens is None else tokens,
    }
    return rows.select(
        made.get(name, pl.col(name)).cast(dtype).alias(name)
        for name, dtype in FINDINGS_SCHEMA.items()
    )


def cut_note(records: pl.DataFrame, admission: Admission) -> Sequence[str]:
    """One sentence for the report when tails were cut, with exact counts."""
    cut = records.filter((pl.col("verdict") == "keep") & (pl.col("tokens_lost") > 0))
    if not cut.height:
        return ()
    inside = int(cut["inside_thought"].sum())
    return (
        f"{cut.height:,} samples were cut to {admission.max_length:,} tokens, {inside:,} of them"
        f" inside the thought: {cut['tokens_lost'].sum():,} supervised tokens are lost.",
    )
