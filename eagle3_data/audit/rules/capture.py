"""CAP rules: what the capture did to the thought. Lost, misplaced, stored twice, cut, or proven
missing by the counts.

What enters: signals of `signals.py` and, with a tokenizer, the count of the rebuilt stream. What
leaves: rules of CAP.
They promise one cause a rule: a thought that sits in `content` is never told as a missing one.
"""

from __future__ import annotations

import polars as pl

from eagle3_data.audit.rules.registry import Columns, Severity, rule
from eagle3_data.records.ends import CUT_BY_LENGTH, FINISHED, STOP_STRING
from eagle3_data.records.table import Note
from eagle3_data.tokens.samples import Grade

ERROR, WARN = Severity.ERROR, Severity.WARN
PLAIN_KEYS = ("reasoning", "reasoning_content")


def sizes(r: Columns) -> pl.Expr:
    """Evidence: how much text each field holds and what the server counted."""
    counted = r.completion_tokens.cast(pl.String).fill_null("no")
    return pl.format(
        "reasoning {} characters, content {} characters, {} completion tokens counted",
        r.reasoning_chars,
        r.content_chars,
        counted,
    )


def in_content(r: Columns) -> pl.Expr:
    """True where markers show that the thought sits in `content`."""
    return (
        r.content_leads.is_not_null() | r.strange_marker.is_not_null() | implicit_open(r)
    ).fill_null(False)


def implicit_open(r: Columns) -> pl.Expr:
    """A closing marker in content with no opening one before it, and no thought of its own."""
    return ~r.has_reasoning & r.content_order.str.starts_with("c") & ~r.asked_about_markers


def cut_thought(r: Columns) -> pl.Expr:
    """Only a thought, ended by the token limit."""
    return r.answered & r.has_reasoning & ~r.has_answer & r.finish_reason.is_in(CUT_BY_LENGTH)


def proven(r: Columns) -> pl.Expr:
    """The tokens of the cut thought are the sampled ones: ids captured, or the count agrees."""
    exact = r.grade.cast(pl.String).is_in([Grade.A.value, Grade.B.value]).fill_null(False)
    return exact | (r.ids_captured & ~r.noted(Note.IDS_INVALID))


def told_not_to(r: Columns) -> pl.Expr:
    """The prompt says `/no_think` (Qwen3, Nemotron): the model obeys and samples an empty block."""
    said = (text.str.contains("/no_think", literal=True) for text in (r.user_text, r.system_text))
    return pl.any_horizontal(one.fill_null(False) for one in said)


@rule(
    "CAP001",
    "reasoning-missing",
    severity=ERROR,
    at="/response/reasoning",
    detail=lambda r: pl.format("fields: {}; {}", r.reasoning_keys.fill_null("none"), sizes(r)),
)
def reasoning_missing(r: Columns) -> pl.Expr:
    """The model thinks, but the record holds no reasoning.

    Why it matters: the model sampled a thought before this answer. A drafter trained without it
    sees contexts that never occur in serving, and loses exactly where most tokens are: inside the
    thought.
    What to do: look at which key the server uses (`reasoning` since vLLM 0.16, `reasoning_content`
    before), at `--reasoning-parser`, and at clients that drop unknown fields; then capture again.

    Not flagged: a thought inside `content` (CAP004, CAP005), models and requests with thinking off,
    a prompt that says `/no_think`.
    """
    missing = r.thinking_on & ~r.has_reasoning & ~r.reasoning_blank
    return missing & ~in_content(r) & ~told_not_to(r)


@rule("CAP004", "thought-in-content", severity=ERROR, at="/response/content", detail=sizes)
def thought_in_content(r: Columns) -> pl.Expr:
    """Thought and answer both sit in `content`, markers included.

    Why it matters: the server ran without a reasoning parser; templates and exporters take the
    whole text as answer.
    What to do: `--repair` splits it where that has one reading; or start the server with its
    reasoning parser.

    Not flagged: an answer that quotes the markers.
    """
    return r.answered & r.content_leads.is_not_null() & (r.content_closes > 0) & ~r.empty_block


@rule("CAP005", "closing-marker-only", severity=ERROR, at="/response/content", detail=sizes)
def closing_marker_only(r: Columns) -> pl.Expr:
    """`content` holds a closing marker but no opening one.

    Why it matters: the prompt opened the thought, so everything before the marker is thought,
    stored as answer.
    What to do: `--repair` splits it; a parser that waits for the opening marker never fires for
    this model.

    Not flagged: a marker inside code or quotes, or where the user asked about it.
    """
    return r.answered & implicit_open(r)


@rule("CAP006", "thought-never-closed", severity=ERROR, at="/response/content", detail=sizes)
def thought_never_closed(r: Columns) -> pl.Expr:
    """`content` opens a thought and never closes it.

    Why it matters: the token limit ended it inside the thought; there is no answer, and no telling
    where it would start.
    What to do: raise `max_tokens` and capture again.
    """
    return r.answered & r.content_leads.is_not_null() & (r.content_closes == 0)


@rule("CAP007", "cut-thought-as-content", severity=ERROR, at="/response/content", detail=sizes)
def cut_thought_as_content(r: Columns) -> pl.Expr:
    """A text cut by the token limit fills `content`, where other records have a thought.

    Why it matters: parsers that see no closing marker hand the unfinished thought over as the
    answer.
    What to do: raise `max_tokens` and capture again.
    """
    cut = r.finish_reason.is_in(CUT_BY_LENGTH)
    return (
        r.thinking_on & r.thinking_shown & cut & r.has_content & ~r.has_reasoning & ~in_content(r)
    )


@rule(
    "CAP008",
    "text-in-both-fields",
    severity=ERROR,
    at="/response/content",
    detail=lambda r: pl.format("{}; {}", r.copied, sizes(r)),
)
def text_in_both_fields(r: Columns) -> pl.Expr:
    """Reasoning and content hold the same text, or one begins with all of the other.

    Why it matters: the model sampled it once; trained twice, every token after it stands in a
    context that never was.
    What to do: look for a server that copies an unfinished thought into both fields, and capture
    again.

    Not flagged: short answers ("42") that equal their thought.
    """
    return r.answered & r.copied.is_not_null()


@rule("CAP009", "ended-in-thought", severity=ERROR, at="/response/content", detail=sizes)
def ended_in_thought(r: Columns) -> pl.Expr:
    """The model stopped by itself, but there is only a thought and no answer.

    Why it matters: it ended its turn without closing the thought, or the answer sits in the
    reasoning field; text and count can not tell which, so the closing marker is a guess.
    What to do: capture again; with captured ids you may decide to keep them (`--ignore CAP009`).

    Not flagged: tool calls without text; a thought cut by the token limit (CAP010, CAP011).
    """
    stopped = r.finish_reason.is_in([*FINISHED, *STOP_STRING]) | r.finish_reason.is_null()
    return r.answered & r.has_reasoning & ~r.has_answer & stopped


@rule("CAP010", "cut-in-thought", severity=WARN, at="/response/finish_reason", detail=sizes)
def cut_in_thought(r: Columns) -> pl.Expr:
    """The token limit ended the answer inside the thought; the tokens that are there are proven.

    Why it matters: the drafter learns exact tokens, but never the way out of the thought from such
    records.
    What to do: raise `max_tokens` when there are many.
    """
    return cut_thought(r) & proven(r)


@rule(
    "CAP011", "cut-in-thought-unproven", severity=ERROR, at="/response/finish_reason", detail=sizes
)
def cut_in_thought_unproven(r: Columns) -> pl.Expr:
    """The token limit ended the answer inside the thought, and nothing proves its tokens.

    Why it matters: whether a closing marker was sampled, and how the last word was tokenized, is a
    guess.
    What to do: capture token ids, or give `--tokenizer` so that the count can prove it; raise
    `max_tokens`.
    """
    return cut_thought(r) & ~proven(r)


@rule("CAP012", "empty-thought", severity=ERROR, at="/response/reasoning", detail=sizes)
def empty_thought(r: Columns) -> pl.Expr:
    """The thought is there but holds only whitespace.

    Why it matters: a drafter for a thinking model learns to skip the thought.
    What to do: leave these records out, or look for a template that inserts an empty block.

    Not flagged: models and requests with thinking off, a prompt that says `/no_think`.
    """
    empty = (r.reasoning_blank & ~in_content(r)) | r.empty_block
    return r.thinking_on & empty & ~told_not_to(r)


@rule(
    "CAP013",
    "reasoning-fields-disagree",
    severity=ERROR,
    at="/response/reasoning",
    detail=lambda r: pl.coalesce(r.note_detail, r.reasoning_keys),
)
def reasoning_fields_disagree(r: Columns) -> pl.Expr:
    """Two reasoning fields hold different text.

    Why it matters: only one of them can be what was sampled.
    What to do: find out which layer rewrote the other, and store only the server's field.

    Not flagged: the same text under two names.
    """
    return r.noted(Note.REASONING_CONFLICT)


@rule(
    "CAP014",
    "reasoning-under-other-key",
    severity=WARN,
    at="/response/reasoning",
    detail=lambda r: r.reasoning_keys,
)
def reasoning_under_other_key(r: Columns) -> pl.Expr:
    """The thought was read from a vendor's own field.

    Why it matters: trainers and templates read `reasoning` or `reasoning_content` and would train
    on an empty thought.
    What to do: rename the field where the records are written; routers may also have trimmed the
    text.
    """
    return r.has_reasoning & ~r.reasoning_key.is_in(PLAIN_KEYS)


@rule(
    "CAP015",
    "marker-of-another-family",
    severity=WARN,
    at="/response/content",
    detail=lambda r: r.strange_marker,
)
def marker_of_another_family(r: Columns) -> pl.Expr:
    """A text begins with the think marker of another model family.

    Why it matters: the profile does not fit the model, or the model imitates another one; the
    markers are not control ids.
    What to do: check `--profile`; `eagle3-data profiles` lists the families.

    Not flagged: markers that are quoted or talked about later in the text; a thought that is
    nowhere else (CAP025).
    """
    return r.answered & r.strange_marker.is_not_null() & ~(r.thinking_on & ~r.has_reasoning)


@rule(
    "CAP025",
    "thought-in-foreign-markers",
    severity=ERROR,
    at="/response/content",
    detail=lambda r: r.strange_marker,
)
def thought_in_foreign_markers(r: Columns) -> pl.Expr:
    """The model thinks, `reasoning` is empty, and the answer begins with another family's marker.

    Why it matters: the thought was not split off; it stands in the answer, between strings that are
    no control ids of this profile.
    What to do: choose the profile of the model that was served, or start the server with the
    reasoning parser of that family and capture again.

    Not flagged: records that hold a thought of their own (CAP015 tells the marker).
    """
    return r.answered & r.thinking_on & ~r.has_reasoning & r.strange_marker.is_not_null()


@rule(
    "CAP016",
    "markers-around-reasoning",
    severity=ERROR,
    at="/response/reasoning",
    detail=lambda r: pl.format(
        "begins with {}, ends in {}",
        r.reasoning_leads.fill_null("text"),
        r.reasoning_trails.fill_null("text"),
    ),
)
def markers_around_reasoning(r: Columns) -> pl.Expr:
    """The reasoning field still holds the think markers around the thought.

    Why it matters: assembly adds them again, so that the stream would have them twice.
    What to do: take them off where the thought is stored; a capture should store it alone.

    Not flagged: markers that the thought quotes.
    """
    return r.answered & (r.reasoning_leads.is_not_null() | r.reasoning_trails.is_not_null())


@rule(
    "CAP017", "half-marker", severity=ERROR, at="/response/content", detail=lambda r: r.cut_marker
)
def half_marker(r: Columns) -> pl.Expr:
    """A field begins or ends with a piece of a control marker.

    Why it matters: a stop string or a streaming client cut inside a marker; characters of the
    stream are lost.
    What to do: do not stop on strings that share characters with markers; capture again.

    Not flagged: HTML such as `</th` that ends a text.
    """
    return r.answered & r.cut_marker.is_not_null() & ~r.ids_captured


@rule(
    "CAP020",
    "replaced-characters",
    severity=ERROR,
    at="/response/content",
    detail=lambda r: pl.format("{} times U+FFFD", r.replaced_inside),
)
def replaced_characters(r: Columns) -> pl.Expr:
    """A text holds the replacement character U+FFFD.

    Why it matters: bytes of a character were decoded one token at a time and lost; the text no
    longer gives the ids.
    What to do: update the server or client that decodes token by token; capture again.

    Not flagged: records with captured ids, and prompts that hold the character themselves.
    """
    return r.answered & (r.replaced_inside > 0) & ~r.asked_about_markers & ~r.ids_captured


@rule("CAP021", "replaced-character-at-end", severity=ERROR, at="/response/content")
def replaced_character_at_end(r: Columns) -> pl.Expr:
    """The text ends in U+FFFD.

    Why it matters: it was cut inside a character; the last token is not the one that the text
    gives.
    What to do: raise `max_tokens`, or capture ids.

    Not flagged: records with captured ids.
    """
    return r.answered & r.replaced_at_end & ~r.asked_about_markers & ~r.ids_captured


@rule("CAP022", "thought-while-off", severity=WARN, at="/response/reasoning", detail=sizes)
def thought_while_off(r: Columns) -> pl.Expr:
    """The record holds a thought although thinking is off.

    Why it matters: the request used a switch that this template does not read, or the profile is
    wrong; the prompt that is rendered for it then differs from the served one.
    What to do: check the name of the switch (`thinking`, `enable_thinking`) and `--profile`.
    """
    return ~r.thinking_on & r.has_reasoning & r.answered


@rule("CAP023", "reasoning-not-requested", severity=ERROR, at="/request")
def reasoning_not_requested(r: Columns) -> pl.Expr:
    """The request told the server to leave the thought out.

    Why it matters: the model thinks all the same; its tokens are only not returned.
    What to do: remove `include_reasoning: false` (or `exclude` of a router) and capture again.

    Not flagged: requests that turn thinking itself off.
    """
    hidden = r.settings_json.str.contains(
        r'"include_reasoning":\s*false|"reasoning":\s*\{[^{}]*"exclude":\s*true'
    )
    return r.thinking_on & hidden.fill_null(False)


@rule(
    "CAP024",
    "nul-characters",
    severity=ERROR,
    at="/response",
    detail=lambda r: pl.format("{} NUL characters in the text", r.nul_chars),
)
def nul_characters(r: Columns) -> pl.Expr:
    """The text holds NUL characters (U+0000).

    Why it matters: broken logits sample id 0 again and again, and a vocabulary decodes it as NUL;
    the model did not mean it, and every later step was conditioned on it.
    What to do: capture again; look for NaN in the server's log.
    """
    return r.answered & (r.nul_chars > 0)
