"""A foreign file told once: when no record of a file has a place for an answer, that is one fact,
not one a line.

What enters: light records and findings. What leaves: findings with one in place of many. It
promises that verdicts and counts are taken before the findings are joined.
"""

from __future__ import annotations

import polars as pl

from eagle3_data.audit.columns import DETAIL_CHARS, FINDINGS_SCHEMA
from eagle3_data.records.table import Note, Status

NO_ANSWER_RULE = "no-answer"
"""Name of the rule behind `Note.NO_ANSWER`; told once for a file that is foreign from end to end.
"""


def foreign_files(records: pl.DataFrame, findings: pl.DataFrame) -> pl.DataFrame:
    """Files of at least two records in which no record has a place for an answer: file_no, records,
    keys.
    """
    noted = (pl.col("notes") & pl.lit(int(Note.NO_ANSWER), dtype=pl.UInt64)) != 0
    files = (
        records.lazy()
        .filter(pl.col("status") == Status.RECORD.value)
        .group_by("file_no")
        .agg(noted.all().alias("foreign"), pl.len().alias("records"), pl.col("note_detail").first())
        .filter(pl.col("foreign") & (pl.col("records") > 1))
        .collect()
    )
    told = findings.filter(pl.col("name") == NO_ANSWER_RULE)
    return files.join(told.select("file_no").unique(), on="file_no", how="semi")


def without_noise(findings: pl.DataFrame, foreign: pl.DataFrame) -> pl.DataFrame:
    """In a foreign file every other complaint about an answer follows from there being none."""
    follows = (
        pl.col("file_no").is_in(foreign["file_no"].to_list())
        & pl.col("line").is_not_null()
        & (pl.col("code").str.head(3) != "RAW")
        & (pl.col("name") != NO_ANSWER_RULE)
    )
    return findings.filter(~follows) if foreign.height else findings


def told_once(findings: pl.DataFrame, foreign: pl.DataFrame) -> pl.DataFrame:
    """One finding for a foreign file in place of one a record."""
    if not foreign.height:
        return findings
    per_line = (pl.col("name") == NO_ANSWER_RULE) & pl.col("file_no").is_in(
        foreign["file_no"].to_list()
    )
    once = (
        findings.filter(per_line)
        .group_by("file_no")
        .agg(
            pl.col("code", "name", "severity", "detail").first(),
            pl.when(pl.col("tokens").is_not_null().any()).then(pl.col("tokens").sum()),
        )
        .join(foreign, on="file_no")
        .select(
            (
                pl.format(
                    "all {} records of this file have no place for an answer; {}",
                    "records",
                    pl.coalesce("note_detail", "detail", pl.lit("no keys")),
                ).str.head(DETAIL_CHARS)
                if n == "detail"
                else pl.lit("")
                if n == "at"
                else pl.col(n)
                if n in ("file_no", "code", "name", "severity", "tokens")
                else pl.lit(None)
            )
            .cast(t)
            .alias(n)
            for n, t in FINDINGS_SCHEMA.items()
        )
    )
    return pl.concat([findings.filter(~per_line), once])
