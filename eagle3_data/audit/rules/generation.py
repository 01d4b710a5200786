"""GEN: what the model wrote and how it ended. Columns: record table, `loops.py`, `language.py`,
`answers.py`."""

from __future__ import annotations

import polars as pl

from eagle3_data.audit.rules.registry import Columns, Severity, rule
from eagle3_data.records.ends import CUT_BY_LENGTH, FINISHED, MODERATED, STOP_STRING, STOPPED

BODIES = ("chat-completion", "text-completion", "responses")
"""Shapes that hold a server's own body; only there a finish_reason is owed."""


@rule(
    "GEN001",
    "repetition-loop",
    severity=Severity.ERROR,
    at="/response",
    detail=lambda r: pl.format(
        "{}: {} × {} = {} bytes, {} % of the field{}",
        r.loop_field,
        r.loop_unit,
        r.loop_repeats,
        r.loop_bytes,
        (r.loop_share * 100).round(0).cast(pl.Int64),
        pl.when(r.loop_to_end).then(pl.lit(", to its very end")).otherwise(pl.lit("")),
    ),
)
def repetition_loop(r: Columns) -> pl.Expr:
    """The thought or the answer repeats itself until it is worthless.

    Why it matters: a drafter learns loops faster than anything else, and then proposes them.
    What to do: drop the record; if there are many, capture again with the sampling settings of the
    model card.
    Not flagged: tables, lists, logs, refrains, repeated code lines, and a unit that the prompt
    itself spells out.
    """
    return r.loop_field.is_not_null()


@rule(
    "GEN002",
    "one-character-answer",
    severity=Severity.ERROR,
    at="/response/content",
    detail=lambda r: pl.format("{} times {}", r.one_char_length, r.one_char),
)
def one_character_answer(r: Columns) -> pl.Expr:
    """The whole text is one character, again and again.

    Why it matters: `!!!!` is what token id 0 decodes to in many vocabularies: the server computed
    NaN logits.
    What to do: check dtype, quantisation and kernels of the server before another row is captured.
    Not flagged: answers shorter than the limit (one letter, "...").
    """
    return r.one_char_length >= r.t.one_char_chars


@rule(
    "GEN003",
    "ended-abnormally",
    severity=Severity.ERROR,
    at="/response/finish_reason",
    detail=lambda r: pl.format(
        "finish_reason {}, stop_reason {}", r.finish_reason, r.stop_reason.fill_null("none")
    ),
)
def ended_abnormally(r: Columns) -> pl.Expr:
    """The finish_reason is none that a finished or a length-cut answer has.

    Why it matters: abort, error and repetition leave half an answer behind HTTP 200.
    What to do: capture the record again; look into the server log at that time.
    """
    known = [*FINISHED, *STOP_STRING, *CUT_BY_LENGTH, *MODERATED]
    detected = r.stop_reason == "repetition_detected"
    return ~r.finish_reason.is_in(known) | detected.fill_null(False)


@rule("GEN004", "finish-reason-missing", severity=Severity.ERROR, at="/response/finish_reason")
def finish_reason_missing(r: Columns) -> pl.Expr:
    """A server's answer without a finish_reason.

    Why it matters: nothing says whether the text is whole; a stream that broke off looks like this.
    What to do: capture the record again, and store the last chunk of a stream.
    Not flagged: dialogues and flat rows, which have no such field.
    """
    return r.finish_reason.is_null() & r.shape.is_in(BODIES) & r.answered


@rule(
    "GEN005",
    "cut-by-length",
    severity=Severity.WARN,
    at="/response/finish_reason",
    detail=lambda r: pl.format(
        "{} tokens, limit {}",
        r.completion_tokens.cast(pl.String).fill_null("unknown"),
        r.max_tokens.cast(pl.String).fill_null("not said"),
    ),
)
def cut_by_length(r: Columns) -> pl.Expr:
    """The answer was cut at the token limit.

    Why it matters: what is there is exact and may be trained on, but it has no end of turn and no
    conclusion.
    What to do: nothing for a few; raise max_tokens when SET009 says that many are cut.
    """
    return r.finish_reason.is_in(CUT_BY_LENGTH)


@rule(
    "GEN006",
    "half-answer",
    severity=Severity.WARN,
    at="/response/content",
    detail=lambda r: pl.coalesce(
        pl.format("ends in {}", r.half_end), pl.lit("a code fence is never closed")
    ),
)
def half_answer(r: Columns) -> pl.Expr:
    """The answer breaks off, though finish_reason says that the model stopped.

    Why it matters: some clients invent `stop` after a dropped connection, and the end of turn is
    then taught mid-sentence.
    What to do: look at a few; compare `usage` with the text, and capture again without the proxy in
    between.
    Not flagged: an answer without a full stop at its end.
    """
    halved = r.half_end.is_not_null() | r.open_fence
    return r.finish_reason.is_in(STOPPED) & halved & (r.n_tool_calls.fill_null(0) == 0)


@rule(
    "GEN007",
    "other-language",
    severity=Severity.WARN,
    at="/response",
    detail=lambda r: pl.format(
        "prompt {}, thought {}, answer {}",
        r.prompt_script,
        r.reasoning_script.fill_null("none"),
        r.content_script.fill_null("none"),
    ),
)
def other_language(r: Columns) -> pl.Expr:
    """The thought or the answer is in another script than the prompt.

    Why it matters: a language switch is a known slip of reasoning models; whether to keep it is a
    decision of yours.
    What to do: count them, and drop them when the served traffic should not have them.
    Not flagged: prompts that name a language or ask for a translation, code, texts of a few words.
    """
    prompt = r.prompt_script.is_not_null() & ~r.language_asked
    thought = (r.reasoning_script != r.prompt_script) & (r.reasoning_chars >= r.t.script_chars)
    code = r.open_fence.is_not_null()
    answer = (r.content_script != r.prompt_script) & (r.content_chars >= r.t.script_chars) & ~code
    return prompt & (thought | answer)


@rule(
    "GEN008",
    "refusal",
    severity=Severity.WARN,
    at="/response/content",
    detail=lambda r: pl.format("first sentence: {}", r.refusal),
)
def refusal(r: Columns) -> pl.Expr:
    """The first sentence of the answer refuses.

    Why it matters: many refusals skew the drafter towards one template sentence; a few are what the
    model says.
    What to do: decide by their share.
    Not flagged: refusal words later in the answer or anywhere in the thought.
    """
    return r.refusal.is_not_null()


@rule(
    "GEN009",
    "placeholder-answer",
    severity=Severity.ERROR,
    at="/response/content",
    detail=lambda r: pl.format("the answer is {}", r.content.str.strip_chars()),
)
def placeholder_answer(r: Columns) -> pl.Expr:
    """The answer is a placeholder of the source set, not an answer.

    Why it matters: `N/A` or `<nooutput>` was never sampled by the target.
    What to do: drop the record, or capture its prompt.
    Not flagged: the same words where the prompt offers them, or after a thought.
    """
    return r.placeholder_answer & ~r.has_reasoning & (r.n_tool_calls.fill_null(0) == 0)


@rule("GEN010", "nothing-sampled", severity=Severity.ERROR, at="/response/usage")
def nothing_sampled(r: Columns) -> pl.Expr:
    """The server sampled no token.

    Why it matters: a prompt that is too long is refused like this: the row is empty, without an
    error.
    What to do: drop the record; check the prompt length against the context length of the server.
    """
    return r.completion_tokens == 0


@rule(
    "GEN011",
    "stopped-at-the-limit",
    severity=Severity.WARN,
    at="/response/finish_reason",
    detail=lambda r: pl.format("{} of {} tokens", r.completion_tokens, r.max_tokens),
)
def stopped_at_the_limit(r: Columns) -> pl.Expr:
    """finish_reason says stop, but the answer has exactly as many tokens as were allowed.

    Why it matters: gateways rewrite `length` to `stop`, and the cut rows then hide.
    What to do: capture with ids, which show the end of turn; otherwise read the last words of some.
    Not flagged: captured ids that end in an end-of-turn id.
    """
    ended = r.ids_captured & r.ends_eot.fill_null(False)
    return r.finish_reason.is_in(FINISHED) & (r.completion_tokens >= r.max_tokens) & ~ended


@rule(
    "GEN012",
    "moderated",
    severity=Severity.ERROR,
    at="/response/finish_reason",
    detail=lambda r: pl.format("finish_reason {}", r.finish_reason),
)
def moderated(r: Columns) -> pl.Expr:
    """A filter of the provider ended the answer.

    Why it matters: the text is cut or replaced by something the target never sampled.
    What to do: drop the record; capture from a server without the filter.
    """
    return r.finish_reason.is_in(MODERATED)


@rule(
    "GEN013",
    "ended-by-stop-string",
    severity=Severity.WARN,
    at="/response/stop_reason",
    detail=lambda r: pl.format("stop string {}", r.stop_reason.fill_null("not stored")),
)
def ended_by_stop_string(r: Columns) -> pl.Expr:
    """A stop string of the request ended the answer, not the model.

    Why it matters: no end of turn was sampled, and the text is cut inside what the model wanted to
    say.
    What to do: capture without `stop`.
    Not flagged: a stop token id.
    """
    text = r.stop_reason.is_not_null() & ~r.stop_reason.str.contains(r"^\[?-?\d+\]?$")
    stopped = r.finish_reason.is_in(STOPPED) & text & (r.stop_reason != "repetition_detected")
    return stopped.fill_null(False) | r.finish_reason.is_in(STOP_STRING)


@rule("GEN014", "nothing-said", severity=Severity.ERROR, at="/response")
def nothing_said(r: Columns) -> pl.Expr:
    """The record holds no thought, no answer and no tool call.

    Why it matters: whatever the model sampled is not in the file. A client that reads the wrong
    field, or a cut inside the thought beside such a client, leaves these.
    What to do: look at the keys that the server uses (`eagle3-data probe` tells them), capture
    again.
    Not flagged: rows with captured ids, which are the text.
    """
    return r.answered & ~r.has_answer & ~r.has_reasoning & ~r.ids_captured
