"""WRP rules: the special tokens around thought and answer. Absent, twice, nested, orphaned, as
text, or miscounted.

What enters: marker signals of the text and, with a tokenizer, of the ids. What leaves: rules of
WRP.
They promise that a marker inside code or quotes is text, and that where ids were captured the ids
decide.
"""

from __future__ import annotations

import polars as pl

from eagle3_data.audit.rules.capture import implicit_open
from eagle3_data.audit.rules.registry import Columns, Severity, rule
from eagle3_data.tokens.samples import Grade

ERROR, WARN = Severity.ERROR, Severity.WARN


def orders(r: Columns) -> pl.Expr:
    """Evidence: the markers in the order of the text."""
    return pl.format(
        "markers in order (o opens, c closes): reasoning {}, content {}",
        r.reasoning_order.replace("", "none"),
        r.content_order.replace("", "none"),
    )


def on_ids(r: Columns) -> pl.Expr:
    """Evidence: the markers as ids."""
    return pl.format("opening ids {}, closing ids {}", r.n_open_ids, r.n_close_ids)


def proven_text(r: Columns) -> pl.Expr:
    """The captured ids spell a think marker as text and hold each one at most once as an id."""
    once = (r.n_open_ids <= 1) & (r.n_close_ids <= 1)
    return (r.ids_captured & r.marker_as_text & once).fill_null(False)


def proven_plain(r: Columns) -> pl.Expr:
    """The captured ids hold no control id but think markers and their end, and are what their text
    encodes to: a control string in it was written letter by letter.
    """
    return (r.ids_captured & r.roundtrip & (r.n_control_ids == 0)).fill_null(False)


def unmarked(r: Columns) -> pl.Expr:
    """Captured ids without the marker that the thought needs: the closing one between thought and
    answer, the opening one where the family samples it.
    """
    split = r.has_reasoning & r.has_content & (r.n_close_ids == 0) & (r.wrapper_tokens > 1)
    joined = r.thinking_on & ~r.has_reasoning & r.content_order.str.contains("c", literal=True)
    opening = r.expects_open & r.has_reasoning & (r.n_open_ids == 0)
    return r.ids_captured & (
        split.fill_null(False)
        | (joined & (r.n_close_ids == 0) & ~r.asked_about_markers).fill_null(False)
        | (opening & ~r.prompt_ends_open.fill_null(True)).fill_null(False)
    )


@rule("WRP001", "marker-doubled", severity=ERROR, at="/response", detail=lambda r: r.doubled_marker)
def marker_doubled(r: Columns) -> pl.Expr:
    """The same think marker stands twice in a row.

    Why it matters: a template or a client added one that the model did not sample.
    What to do: store the text as the server sent it; capture again.

    Not flagged: markers inside code or quotes, or that captured ids prove to be text.
    """
    meant = r.doubled_marker.is_not_null() & ~r.asked_about_markers
    return r.answered & meant & ~proven_text(r)


@rule("WRP002", "markers-nested", severity=ERROR, at="/response", detail=orders)
def markers_nested(r: Columns) -> pl.Expr:
    """A thought is opened inside a thought.

    Why it matters: where thought ends and answer begins is undefined, for parsers and for the loss
    mask.
    What to do: leave these records out.

    Not flagged: markers inside code or quotes, where the user asked about them, or that captured
    ids prove to be text.
    """
    inside = r.reasoning_order.str.contains("o", literal=True) & r.reasoning_leads.is_null()
    twice = r.reasoning_order.str.contains("oo") | r.content_order.str.contains("oo")
    return r.answered & (inside | twice) & ~r.asked_about_markers & ~proven_text(r)


@rule("WRP003", "closed-again-in-answer", severity=ERROR, at="/response/content", detail=orders)
def closed_again_in_answer(r: Columns) -> pl.Expr:
    """The answer holds another closing marker although the thought was already closed.

    Why it matters: the model wandered back into thinking; the split between thought and answer is
    arbitrary.
    What to do: leave these records out.

    Not flagged: markers inside code or quotes, where the user asked about them, or that captured
    ids prove to be text.
    """
    return (
        r.answered
        & r.has_reasoning
        & r.content_order.str.contains("^c|cc")
        & ~r.asked_about_markers
        & ~proven_text(r)
    )


@rule("WRP004", "closed-inside-thought", severity=ERROR, at="/response/reasoning", detail=orders)
def closed_inside_thought(r: Columns) -> pl.Expr:
    """A closing marker stands in the middle of the reasoning.

    Why it matters: the first closing marker ends the thought, so a part of the answer is stored as
    thought.
    What to do: check the reasoning parser of the server; capture again.

    Not flagged: a marker at the very end (CAP016), inside code or quotes, or where the user asked
    about it, or one that captured ids prove to be text.
    """
    ends = r.reasoning_trails.is_not_null().cast(pl.Int64)
    closes = r.reasoning_order.str.count_matches("c", literal=True).cast(pl.Int64)
    return r.answered & (closes > ends) & ~r.asked_about_markers & ~proven_text(r)


@rule("WRP005", "marker-in-answer", severity=WARN, at="/response/content", detail=orders)
def marker_in_answer(r: Columns) -> pl.Expr:
    """The answer writes think markers in the middle of its text.

    Why it matters: as text it is harmless; as control ids it is a second thought. Only captured ids
    can tell.
    What to do: look at some; capture ids.

    Not flagged: markers inside code or quotes, where the user asked about them, or that captured
    ids prove to be text.
    """
    middle = r.content_leads.is_null() & ~r.content_order.str.contains("^c|cc|oo")
    meant = (r.content_order != "") & ~r.asked_about_markers
    return r.answered & middle & meant & ~proven_text(r)


@rule(
    "WRP006",
    "marker-as-text",
    severity=ERROR,
    at="/response/token_ids",
    needs_tokens=True,
    detail=on_ids,
)
def marker_as_text(r: Columns) -> pl.Expr:
    """A think marker stands in the captured ids as several ordinary tokens.

    Why it matters: a span search by id does not find it, and a drafter that learns the one id
    learns the wrong one.
    What to do: check that the tokenizer is the served model's; some vocabularies have no such
    token.

    Not flagged: a marker that is talked about, beside the real ones or in an answer without a
    thought.
    """
    return r.answered & r.marker_as_text & unmarked(r)


@rule(
    "WRP007",
    "markers-repeated-in-ids",
    severity=ERROR,
    at="/response/token_ids",
    needs_tokens=True,
    detail=on_ids,
)
def markers_repeated_in_ids(r: Columns) -> pl.Expr:
    """The sampled ids hold more than one opening or closing marker.

    Why it matters: the thought has no single border.
    What to do: leave these records out.
    """
    return r.answered & ((r.n_open_ids > 1) | (r.n_close_ids > 1))


@rule(
    "WRP008",
    "closing-id-missing",
    severity=ERROR,
    at="/response/token_ids",
    needs_tokens=True,
    detail=on_ids,
)
def closing_id_missing(r: Columns) -> pl.Expr:
    """Thought and answer are both there, but no closing marker was sampled.

    Why it matters: the server split the text by something else than the marker, or the ids belong
    to another answer.
    What to do: check the reasoning parser and the profile against the model.

    Not flagged: tool calls right after a thought, which end it without a marker in some families.
    """
    sampled = r.ids_captured & (r.n_close_ids == 0) & ~r.marker_as_text.fill_null(False)
    return r.answered & r.has_reasoning & r.has_content & sampled & (r.wrapper_tokens > 1)


@rule(
    "WRP009",
    "opening-id-missing",
    severity=ERROR,
    at="/response/token_ids",
    needs_tokens=True,
    detail=on_ids,
)
def opening_id_missing(r: Columns) -> pl.Expr:
    """The family samples its opening marker, but neither ids nor prompt hold it.

    Why it matters: the thought begins without its control token, which happens in no serving of
    this model.
    What to do: check `--profile` and the chat template: another version may open the thought in the
    prompt.
    """
    absent = r.ids_captured & (r.n_open_ids == 0) & ~r.prompt_ends_open.fill_null(True)
    return (
        r.answered & r.expects_open & r.has_reasoning & absent & ~r.marker_as_text.fill_null(False)
    )


@rule(
    "WRP010",
    "control-string-at-end",
    severity=WARN,
    at="/response/content",
    detail=lambda r: r.control_at_end,
)
def control_string_at_end(r: Columns) -> pl.Expr:
    """A text ends in a control string such as an end-of-turn marker.

    Why it matters: special tokens were not left out in decoding; as text it is encoded into
    ordinary tokens.
    What to do: set `skip_special_tokens` in the capture, and capture again.

    Not flagged: strings inside code or quotes, where the user asked about them, or that captured
    ids prove to be text.
    """
    written = proven_plain(r) & (r.count_delta == 0).fill_null(False)
    return r.answered & r.control_at_end.is_not_null() & ~r.asked_about_markers & ~written


@rule(
    "WRP011",
    "control-string-inside",
    severity=ERROR,
    at="/response/content",
    detail=lambda r: r.control_inside,
)
def control_string_inside(r: Columns) -> pl.Expr:
    """A control string stands in the middle of a text.

    Why it matters: the model went on after the end of its turn and wrote the next one, or special
    tokens leaked.
    What to do: check the stop tokens of the server; capture again.

    Not flagged: strings inside code or quotes, where the user asked about them, or that captured
    ids prove to be text.
    """
    meant = r.control_inside.is_not_null() & ~r.asked_about_markers
    return r.answered & meant & ~proven_plain(r)


@rule(
    "WRP012",
    "wrapper-count",
    severity=WARN,
    at="/response/usage/completion_tokens",
    needs_tokens=True,
    detail=lambda r: pl.format(
        "rebuilt {} tokens, the server counted {}", r.assembled_tokens, r.completion_tokens
    ),
)
def wrapper_count(r: Columns) -> pl.Expr:
    """The rebuilt stream and the server's count differ by as little as the wrapping tokens.

    Why it matters: the same difference in every record means that markers or the stop token are
    assumed wrongly: dropped in decoding, held by the prompt, or not counted.
    What to do: compare with `profile check`; single records differ by 1 or 2 because text is not
    ids.

    Not flagged: streams of grade E, which TOK001 keeps out.
    """
    off = r.count_delta.abs()
    little = (off > 0) & (off <= r.wrapper_tokens)
    return r.answered & ~r.ids_captured & little & (r.grade != Grade.E.value)


@rule("WRP013", "prompt-opens-thought", severity=WARN, at="/request/messages", needs_tokens=True)
def prompt_opens_thought(r: Columns) -> pl.Expr:
    """The prompt ends in the opening marker where no thought should follow.

    Why it matters: the record says that thinking is off, or the profile that the model opens the
    thought itself; what was rendered says otherwise, and one of them is wrong.
    What to do: check the template settings of the request, and `--profile`.
    """
    return r.answered & r.prompt_ends_open & (~r.thinking_on | r.expects_open.fill_null(False))


@rule("WRP014", "opening-in-prompt-and-text", severity=ERROR, at="/response/content", detail=orders)
def opening_in_prompt_and_text(r: Columns) -> pl.Expr:
    """The prompt opens the thought, yet the stored text begins with the opening marker too.

    Why it matters: it was added by the server or a client and not sampled; kept, it would be
    supervised.
    What to do: `--repair` takes it off where the record is split; or turn off the option that puts
    it back.

    Not flagged: families that sample the marker themselves.
    """
    leads = r.content_leads.is_not_null() | r.reasoning_leads.is_not_null()
    return r.answered & r.thinking_on & r.open_in_prompt & leads & ~implicit_open(r)


@rule(
    "WRP015",
    "turn-ended-inside-ids",
    severity=ERROR,
    at="/response/token_ids",
    needs_tokens=True,
    detail=lambda r: pl.format(
        "{} end-of-turn ids before the last of {} sampled ids",
        r.n_early_stop_ids,
        r.supervised_tokens,
    ),
)
def turn_ended_inside_ids(r: Columns) -> pl.Expr:
    """The captured ids go on after an end of turn.

    Why it matters: what follows is no answer: mostly an invented next turn. Decoded without special
    tokens it reads like text, so only the ids show it.
    What to do: serve without `ignore_eos`, and with the end of turn of the model among the stop ids
    (`generation_config.json`); capture again.
    """
    return r.answered & r.ids_captured & (r.n_early_stop_ids > 0)
