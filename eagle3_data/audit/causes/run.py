"""Causes in how the capture was run: budget, time-outs, restarts, mixed models, one bad shift."""

from __future__ import annotations

import polars as pl

from eagle3_data.audit.causes.case import ENOUGH, EXACT, NEARLY_ALL, Case, Found, several
from eagle3_data.audit.causes.coupling import (
    CUT,
    ENDED_IN_THOUGHT,
    MIXED_MODELS,
    TIMEOUT,
    WRITTEN_AGAIN,
)
from eagle3_data.audit.inert import inert
from eagle3_data.records.ends import CUT_BY_LENGTH, FINISHED

CUT_SHARE = 0.01
BLOCK = 5
"""Repeated records in a row that make a restart likelier than chance."""
SPIKE_SHARE = 0.03
SHORT_SECONDS = 5.0
"""A longest answer below this is no client time-out (the usual limits are 60 to 600 s)."""


def token_budget(case: Case) -> Found | None:
    """Answers cut inside the thought because `max_tokens` ended."""
    rows = case.records.filter(
        pl.col("finish_reason").is_in(CUT_BY_LENGTH)
        & (pl.col("reasoning_chars").fill_null(0) > 0)
        & (pl.col("content_chars").fill_null(0) == 0)
    )
    if not case.many(rows) or rows.height < CUT_SHARE * case.total:
        return None
    limits = rows["max_tokens"].drop_nulls()
    cut = case.everything.filter(pl.col("finish_reason").is_in(CUT_BY_LENGTH)).height
    evidence = [
        f"{cut:,} of {case.total:,} records ended by length, {rows.height:,} inside the thought",
        f"max_tokens of these: {several(limits) or 'not stored'}",
    ]
    most = limits.max()
    limit = f"above {most:,}, twice as much to begin with" if isinstance(most, int) else "raised"
    return case.found(
        "token-budget",
        "the token limit ends inside the thought: these records have no answer",
        evidence,
        f"Capture them again with `max_tokens` {limit}.",
        rows,
        families=("CAP", "GEN"),
        rules=CUT,
    )


def ended_in_thought(case: Case) -> Found | None:
    """The model sampled its end of turn inside the thought. Captured ids prove it; from text alone
    an answer that a parser left in the reasoning field looks the same, and nothing is told.
    """
    rows = case.records.filter(
        case.fired(ENDED_IN_THOUGHT) & EXACT & (pl.col("content_span_tokens") == 0)
    )
    if not case.many(rows):
        return None
    return case.found(
        "turn-ended-in-thought",
        "the model ended its turn inside the thought: these records have no answer",
        [
            f"{rows.height:,} of {case.total:,} records stopped by themselves with a thought and no"
            " answer",
            "their captured ids hold none either: nothing was lost on the way",
        ],
        "Look at the template and the sampling settings, if this is not how the model is. The ids"
        " are its own: `--ignore CAP009` keeps them.",
        rows,
        rules=ENDED_IN_THOUGHT,
    )


def written_again(case: Case) -> Found | None:
    """A resumed run wrote records that were there already: duplicates in one stretch."""
    rows = case.everything.filter(case.fired(WRITTEN_AGAIN))
    if rows.height < BLOCK:
        return None
    first, last = rows["row"][0], rows["row"][-1]
    if rows.height < NEARLY_ALL * (last - first + 1):
        return None
    return case.found(
        "run-written-again",
        "a resumed run wrote records again that the file already held",
        [f"{rows.height:,} records repeat earlier ones", *case.where(rows)],
        "Drop the repeats: `eagle3-data check FILES --quarantine DIR` keeps the first of each"
        " in DIR/clean.jsonl. Resume by the ids that are there, not by the number of lines.",
        rows,
        rules=WRITTEN_AGAIN,
    )


def mixed_models(case: Case) -> Found | None:
    """More than one model answered: a drafter learns one target."""
    short = pl.col("model").str.to_lowercase().str.split("/").list.last()
    named = case.everything.with_columns(target=short).filter(pl.col("target").is_not_null())
    counts = named["target"].value_counts().sort(["count", "target"], descending=[True, False])
    if counts.height < 2:
        return None
    main = counts["target"][0]
    rows = named.filter(pl.col("target") != main).drop("target")
    return case.found(
        "mixed-models",
        f"{counts.height} models answered in one file; a drafter learns one target",
        [f"models: {several(named['target'], 5)}", *case.where(rows)],
        f"Keep the records of the model you serve (most are of {inert(str(main), 60)}) and check"
        " each model apart.",
        rows,
        rules=MIXED_MODELS,
    )


def client_timeout(case: Case) -> Found | None:
    """Many records end after the same, longest time and did not stop by themselves."""
    timed = case.everything.filter(pl.col("latency_s") > 0)
    longest = timed["latency_s"].max()
    if not isinstance(longest, float) or longest < SHORT_SECONDS:
        return None
    rows = timed.filter(pl.col("latency_s") >= 0.99 * longest)
    below = timed.filter(
        pl.col("latency_s").is_between(0.9 * longest, 0.99 * longest, closed="left")
    )
    unfinished = rows.filter(~pl.col("finish_reason").is_in(FINISHED).fill_null(False))
    if (
        rows.height < max(ENOUGH, SPIKE_SHARE * timed.height)
        or 2 * below.height > rows.height
        or 2 * unfinished.height < rows.height
    ):
        return None
    return case.found(
        "client-timeout",
        f"many records end after the same {longest:,.0f} s: a client or proxy cut the connection",
        [
            f"{rows.height:,} of {timed.height:,} records took {0.99 * longest:,.1f} to"
            f" {longest:,.1f} s, only {below.height:,} a little less",
            f"their finish reasons: {several(rows['finish_reason']) or 'none'}",
        ],
        "Raise the client's time-out (and the proxy's), and capture these records again.",
        rows,
        rules=TIMEOUT,
    )


def bad_shift(case: Case) -> Found | None:
    """Records with errors that no other cause explains, all in one stretch or from one server
    version.
    """
    errors = case.records.filter(pl.col("verdict") == "quarantine")
    if errors.height < ENOUGH or 2 * errors.height > case.total:
        return None
    where = [text for text in case.where(errors) if "not one stretch" not in text]
    if not where:
        return None
    codes = errors["codes"].explode().drop_nulls()
    return case.found(
        "one-bad-shift",
        "the bad records come from one part of the run",
        [*where, f"rules that fired there: {several(codes, 5)}"],
        "Look for what was different then (server version, settings, a restart) and capture that"
        " part again.",
        errors,
        claims=False,
    )
