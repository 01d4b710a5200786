"""Causes in the token stream: control tokens that are missing or too many, or another tokenizer or
profile.
"""

from __future__ import annotations

import polars as pl

from eagle3_data.audit.causes.case import ENOUGH, NEARLY_ALL, Case, Found, several
from eagle3_data.audit.causes.coupling import PROMPT_DIFFERS, PROMPT_NOT_BUILT
from eagle3_data.tokens.samples import Grade

SMALL = 8
"""A constant difference of more tokens is no matter of markers."""
MOSTLY_WRONG = 0.8
VARIED = 0.5


def no_prompt(case: Case) -> Found | None:
    """Nearly no prompt could be built: the template at hand is not for these requests, or there is
    none.
    """
    rows = case.everything.filter(case.fired(PROMPT_NOT_BUILT))
    if not case.many(rows) or rows.height < NEARLY_ALL * case.total:
        return None
    return case.found(
        "prompt-not-built",
        "the prompts could not be built: the chat template fails, or there is none",
        [f"{rows.height:,} of {case.total:,} records; reasons: {several(rows['prompt_reason'])}"],
        "Give the template that the server ran with: --chat-template FILE, or capture prompt ids"
        " (`return_token_ids: true`).",
        rows,
        rules=PROMPT_NOT_BUILT,
        claims=False,  # what is wrong with the answers is still to be told
    )


def constant_offset(case: Case) -> Found | None:
    """One and the same difference between our count and the server's in nearly all records."""
    compared = case.records.filter(
        pl.col("count_delta").is_not_null()
        & (pl.col("grade").cast(pl.String).is_null() | (pl.col("grade") != Grade.A.value))
    )
    if compared.height < ENOUGH:
        return None
    delta = compared["count_delta"].mode().sort()[0]
    rows = compared.filter(pl.col("count_delta") == delta)
    if delta == 0 or abs(delta) > SMALL or rows.height < NEARLY_ALL * compared.height:
        return None
    less = "less" if delta < 0 else "more"
    evidence = [
        f"rebuilt minus counted: {delta:+d} in {rows.height:,} of {compared.height:,} records",
        f"finish reasons: {several(rows['finish_reason']) or 'none stored'}",
    ]
    name = case.profile.name
    if delta == -2:
        return case.found(
            "wrappers-dropped",
            "two control tokens a record are missing: thought and answer were joined bare",
            evidence,
            f"Check that profile {name} writes the markers that the model samples"
            f" (`eagle3-data profile check {name} --tokenizer DIR`), and that the capture did not"
            " strip them.",
            rows,
            families=("WRP", "TOK"),
        )
    if delta == 1:
        return case.found(
            "stop-token-not-counted",
            "the server does not count the stop token: each record is one longer than its count",
            evidence,
            f"If the server is known to leave it out, set `counts_stop_token` in profile {name};"
            " else ask one record again with `return_token_ids: true` and look at the last id.",
            rows,
            families=("TOK",),
        )
    return case.found(
        "constant-offset",
        f"every record has {abs(delta)} {less} tokens than the server counted: the profile is off",
        evidence,
        f"Compare with another profile (`eagle3-data profiles`), or ask one record again with"
        f" `return_token_ids: true` and compare its ids with what profile {name} builds.",
        rows,
        families=("WRP", "TOK"),
    )


def wrong_tokenizer(case: Case) -> Found | None:
    """Nearly all records contradict their count, each by another amount, or no prompt is as it was
    sent.
    """
    compared = case.records.filter(pl.col("count_delta").is_not_null())
    wrong = compared.filter(pl.col("grade").cast(pl.String) == Grade.E.value)
    prompts = case.records.filter(case.fired(PROMPT_DIFFERS))
    commonest = wrong["count_delta"].value_counts(sort=True)["count"].head(1).sum()
    varied = (
        wrong.height >= max(ENOUGH, MOSTLY_WRONG * compared.height)
        and commonest < VARIED * wrong.height
    )
    title = "the counts differ nearly everywhere, by no fixed amount: tokenizer or profile is wrong"
    evidence = [
        f"{wrong.height:,} of {compared.height:,} compared records contradict their count",
        f"differences (rebuilt minus counted): {several(compared['count_delta'])}, …",
    ]
    if varied:
        rows = wrong
    elif prompts.height >= max(ENOUGH, NEARLY_ALL * case.records.height):
        rows = prompts
        title = "nearly no prompt is as it was sent: tokenizer, template or profile is wrong"
        evidence = [
            f"{prompts.height:,} of {case.records.height:,} rendered prompts differ from what the"
            " server was fed"
        ]
    else:
        return None
    counted = rows.filter(  # captured prompt ids have the counted length whatever the tokenizer is
        pl.col("prompt_len").is_not_null()
        & pl.col("prompt_tokens").is_not_null()
        & pl.col("prompt_source").cast(pl.String).ne_missing("captured")
    )
    if counted.height:
        equal = counted.filter(pl.col("prompt_len") == pl.col("prompt_tokens")).height
        fits = equal >= NEARLY_ALL * counted.height
        evidence.append(
            f"the prompt has the counted length in {equal:,} of {counted.height:,} records"
            + (": tokenizer and template fit, so look at the profile" if fits else "")
        )
    name = case.profile.name
    return case.found(
        "wrong-profile-or-tokenizer",
        title,
        evidence,
        f"Check --tokenizer (models in the file: {several(rows['model']) or 'not named'}) and"
        f" --profile (in force: {name}); `eagle3-data profile check {name} --tokenizer DIR` proves"
        " the markers.",
        rows,
        families=("TOK", "WRP"),
    )
