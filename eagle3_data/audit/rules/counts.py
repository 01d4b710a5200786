"""CAP rules that need no look at the text: the counts of `usage` prove what is missing.

What enters: counts, sizes and, with a tokenizer, the length of the rebuilt stream. What leaves:
rules of CAP. They promise to speak only where no honest text explains the number.
"""

from __future__ import annotations

import polars as pl

from eagle3_data.audit.rules.capture import in_content, sizes
from eagle3_data.audit.rules.registry import Columns, Severity, rule

ERROR, WARN = Severity.ERROR, Severity.WARN


@rule(
    "CAP002",
    "reasoning-lost-by-usage",
    severity=ERROR,
    at="/response/usage/completion_tokens",
    detail=lambda r: pl.format(
        "{} completion tokens counted, the stored {} bytes can hold at most {}",
        r.completion_tokens,
        r.stored_bytes,
        r.token_ceiling,
    ),
)
def reasoning_lost_by_usage(r: Columns) -> pl.Expr:
    """The server counted more tokens than the stored text can have.

    Why it matters: `completion_tokens` counts what was sampled. Text that was sampled and is not
    here was lost on the way: mostly the thought. No tokenizer is needed to see it.
    What to do: capture again with a reasoning parser, and store the whole message.

    Not flagged: digits, base64, CJK and other text with few bytes a token; the ceiling allows one
    token a byte for them.
    """
    return r.answered & ~r.ids_captured & (r.completion_tokens > r.token_ceiling)


@rule(
    "CAP003",
    "tokens-unaccounted",
    severity=ERROR,
    at="/response/usage/completion_tokens",
    needs_tokens=True,
    detail=lambda r: pl.format(
        "rebuilt {} tokens, the server counted {}: {} are missing",
        r.assembled_tokens,
        r.completion_tokens,
        -r.count_delta,
    ),
)
def tokens_unaccounted(r: Columns) -> pl.Expr:
    """The rebuilt stream has far fewer tokens than the server counted.

    Why it matters: a part of what the model sampled is not in the record.
    What to do: look at the fields that the client drops (reasoning, tool calls, text after a tool
    section).

    Not flagged: a few tokens more or less, which another tokenization or stripped whitespace
    explains; tool calls with captured ids, which hold what a rebuild can not spell.
    """
    missing = -r.count_delta
    held = r.ids_captured & (r.n_tool_calls > 0).fill_null(False)
    much = (missing > r.t.lost_tokens) & (missing > r.t.lost_share * r.completion_tokens)
    return r.answered & much & ~held


@rule(
    "CAP018",
    "reasoning-counted-but-missing",
    severity=ERROR,
    at="/response/reasoning",
    detail=lambda r: pl.format("{} reasoning tokens counted; {}", r.reasoning_tokens, sizes(r)),
)
def reasoning_counted_but_missing(r: Columns) -> pl.Expr:
    """`usage` counts reasoning tokens, but no thought is stored.

    Why it matters: the server itself says that a thought was sampled.
    What to do: store the whole message; look for a client or proxy that drops the reasoning field.

    Not flagged: `reasoning_tokens` 0 beside a long thought: vLLM 0.32 reports that for every
    record.
    """
    return (
        r.answered
        & (r.reasoning_tokens > 0)
        & ~r.has_reasoning
        & ~r.reasoning_blank
        & ~in_content(r)
    )


@rule(
    "CAP019",
    "impossible-counts",
    severity=WARN,
    at="/response/usage",
    detail=lambda r: pl.format(
        "{} completion tokens, {} of them reasoning, limit {}",
        r.completion_tokens,
        r.reasoning_tokens.cast(pl.String).fill_null("?"),
        r.max_tokens.cast(pl.String).fill_null("?"),
    ),
)
def impossible_counts(r: Columns) -> pl.Expr:
    """The counts of `usage` contradict each other or the text.

    Why it matters: they are placeholders or belong to another request, so they prove nothing.
    What to do: store `usage` as the server sent it.
    """
    more = (r.reasoning_tokens > r.completion_tokens) | (r.completion_tokens > r.max_tokens)
    none = (r.completion_tokens <= 0) & (r.has_reasoning | r.has_content)
    return r.answered & (more.fill_null(False) | none.fill_null(False))
