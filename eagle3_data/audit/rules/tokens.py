"""TOK: the token stream, its mask and its grade. Columns: sample columns; a tokenizer is needed for
most."""

from __future__ import annotations

import polars as pl

from eagle3_data.audit.rules.chat import hidden_system_prompt
from eagle3_data.audit.rules.registry import Columns, Severity, rule
from eagle3_data.records.ends import FINISHED
from eagle3_data.tokens.samples import NO_REQUEST, Grade, PromptSource


def _counts(r: Columns) -> pl.Expr:
    return pl.format(
        "rebuilt {} tokens, the server counts {} ({})",
        r.assembled_tokens.cast(pl.String).fill_null("no"),
        r.completion_tokens.cast(pl.String).fill_null("none"),
        r.grade_reason.fill_null("no reason given"),
    )


_CONTRADICTED, _AMBIGUOUS, _CAPTURED = "count-differs", "ambiguous", "captured-contradicts-count"
_PROMPT_IDS = "prompt-ids-contradict-count"


@rule(
    "TOK001",
    "count-contradicted",
    severity=Severity.ERROR,
    at="/response/usage/completion_tokens",
    needs_tokens=True,
    detail=_counts,
)
def count_contradicted(r: Columns) -> pl.Expr:
    """The stream rebuilt from the text has another length than the server counted (grade E).

    Why it matters: these are provably not the tokens that the model sampled.
    What to do: capture with token ids; if every row is off by the same number, profile or template
    is wrong.
    """
    return (r.grade == Grade.E.value) & (r.grade_reason == _CONTRADICTED)


@rule(
    "TOK002",
    "stream-ambiguous",
    severity=Severity.ERROR,
    at="/response",
    needs_tokens=True,
    detail=_counts,
)
def stream_ambiguous(r: Columns) -> pl.Expr:
    """Two different token streams fit the stored text and the count (grade E).

    Why it matters: one of them was sampled, and nothing in the record says which.
    What to do: capture with token ids.
    """
    return (r.grade == Grade.E.value) & (r.grade_reason == _AMBIGUOUS)


@rule(
    "TOK003",
    "ids-contradict-count",
    severity=Severity.ERROR,
    at="/response/usage/completion_tokens",
    needs_tokens=True,
    detail=lambda r: pl.format(
        "{} captured ids, usage counts {}", r.completion_ids.list.len(), r.completion_tokens
    ),
)
def ids_contradict_count(r: Columns) -> pl.Expr:
    """The captured ids are not as many as usage counts.

    Why it matters: ids were lost or added between server and file.
    What to do: capture again; join the ids of all chunks of a stream.
    """
    return (r.grade == Grade.E.value) & (r.grade_reason == _CAPTURED)


@rule(
    "TOK004",
    "ids-decode-to-other-text",
    severity=Severity.ERROR,
    at="/response/token_ids",
    needs_tokens=True,
)
def ids_decode_to_other_text(r: Columns) -> pl.Expr:
    """The captured ids decode to another text than the one beside them.

    Why it matters: ids and text are of different answers, or the tokenizer is not the target's.
    What to do: check the tokenizer first, then whether rows were joined by position.
    Not flagged: whitespace at the edges of a field, which servers strip.
    """
    return ~r.text_matches_ids


@rule(
    "TOK005",
    "tokenization-not-canonical",
    severity=Severity.WARN,
    at="/response/token_ids",
    needs_tokens=True,
)
def tokenization_not_canonical(r: Columns) -> pl.Expr:
    """The model sampled a tokenization that encoding the text does not give back.

    Why it matters: legal and exact, but proof that text is not ids (24 of 300 rows of a real
    capture).
    What to do: nothing; keep the captured ids. Many such rows mean that the tokenizer is another
    version.
    """
    return ~r.roundtrip


@rule(
    "TOK006",
    "prompt-ids-differ",
    severity=Severity.WARN,
    at="/response/prompt_token_ids",
    needs_tokens=True,
    detail=lambda r: pl.format(
        "{} ids captured, the request renders to {}",
        r.prompt_ids.list.len(),
        r.prompt_tokens_rendered,
    ),
)
def prompt_ids_differ(r: Columns) -> pl.Expr:
    """The captured prompt ids are not what the template gives for this request.

    Why it matters: the captured ids are the truth and are used, but the template at hand is not the
    server's.
    What to do: pass the template that the server ran with, so that other rows can be rebuilt.
    """
    return ~r.prompt_ids_match


@rule(
    "TOK007",
    "prompt-count-differs",
    severity=Severity.WARN,
    at="/response/usage/prompt_tokens",
    needs_tokens=True,
    detail=lambda r: pl.format(
        "the server counts {} prompt tokens, the request renders to {}",
        r.prompt_tokens,
        r.prompt_tokens_rendered,
    ),
)
def prompt_count_differs(r: Columns) -> pl.Expr:
    """The rendered prompt has another length than the server counted.

    Why it matters: the drafter would be trained behind a prompt that the model never saw.
    What to do: pass the server's chat template and the request's chat_template_kwargs, or capture
    prompt ids.
    Not flagged: captured prompt ids, prompts laid out without a template, a hidden system prompt
    (CHT009).
    """
    return (
        (r.prompt_source == PromptSource.TEMPLATE.value)
        & r.prompt_ids.is_null()
        & (r.prompt_tokens != r.prompt_tokens_rendered)
        & ~hidden_system_prompt(r).fill_null(False)
    )


@rule("TOK008", "double-bos", severity=Severity.ERROR, at="/messages", needs_tokens=True)
def double_bos(r: Columns) -> pl.Expr:
    """The prompt begins with two BOS ids.

    Why it matters: template and tokenizer both added one; the served model sees one.
    What to do: encode a rendered template without adding special tokens.
    """
    return r.double_bos


@rule(
    "TOK009",
    "id-outside-vocabulary",
    severity=Severity.ERROR,
    at="/response/token_ids",
    needs_tokens=True,
    detail=lambda r: pl.format("id {}, the profile has {} ids", r.max_id, r.profile_vocab_size),
)
def id_outside_vocabulary(r: Columns) -> pl.Expr:
    """An id is larger than the vocabulary of the model.

    Why it matters: training would read beyond the embedding table.
    What to do: check that ids and profile belong to the same model.
    """
    return r.max_id >= r.profile_vocab_size


@rule("TOK010", "nothing-supervised", severity=Severity.ERROR)
def nothing_supervised(r: Columns) -> pl.Expr:
    """No token of the sample is supervised.

    Why it matters: training runs on it and learns nothing, in silence.
    What to do: find out where the answer went; templates without generation marks give such masks.
    """
    empty = (r.completion_ids.list.len() == 0) & r.content.is_null() & r.reasoning.is_null()
    return (r.supervised_tokens == 0).fill_null(False) | empty.fill_null(False)


@rule(
    "TOK011",
    "no-end-of-turn",
    severity=Severity.ERROR,
    at="/response/token_ids",
    needs_tokens=True,
    detail=lambda r: pl.format("finish_reason {}, last id is no end of turn", r.finish_reason),
)
def no_end_of_turn(r: Columns) -> pl.Expr:
    """The model stopped, but the captured ids do not end in an end-of-turn id.

    Why it matters: a drafter trained without it never proposes the end; or the answer is cut and
    finish_reason is wrong.
    What to do: check the end_of_turn of the profile; store the ids with the stop token.
    Not flagged: a stop string of the request (GEN013), or a stop id of it that is the last one.
    """
    text = r.stop_reason.str.contains(r"[^\d\[\]-]")
    asked = r.stop_reason == r.completion_ids.list.last().cast(pl.String)
    wanted = (text | asked).fill_null(False)
    return r.finish_reason.is_in(FINISHED) & r.ids_captured & ~r.ends_eot & ~wanted


@rule(
    "TOK012",
    "prompt-not-opened",
    severity=Severity.ERROR,
    at="/messages",
    needs_tokens=True,
    detail=lambda r: pl.format(
        "prompt of {} ids ({}) does not end in the opening marker", r.prompt_len, r.prompt_source
    ),
)
def prompt_not_opened(r: Columns) -> pl.Expr:
    """Thinking is on, but the prompt does not end in the family's opening think marker.

    Why it matters: the thought then stands behind a prompt that the model never saw, one token off
    everywhere.
    What to do: check profile, template and chat_template_kwargs.
    """
    return r.open_in_prompt & r.thinking_on & ~r.prompt_ends_open & ~r.starts_open


@rule(
    "TOK013",
    "one-sided-ids",
    severity=Severity.WARN,
    at="/response",
    detail=lambda r: (
        pl.when(~_held(r.prompt_ids))
        .then(pl.lit("completion ids without prompt ids"))
        .otherwise(pl.lit("prompt ids without completion ids"))
    ),
)
def one_sided_ids(r: Columns) -> pl.Expr:
    """Only prompt ids or only completion ids were captured.

    Why it matters: the missing side must be rebuilt from text and is less sure.
    What to do: store both (`return_token_ids` on vLLM gives both).
    """
    return _held(r.prompt_ids) != _held(r.completion_ids)


def _held(ids: pl.Expr) -> pl.Expr:
    """There is an id in the list."""
    return (ids.list.len() > 0).fill_null(False)


@rule(
    "TOK014",
    "one-distinct-id",
    severity=Severity.ERROR,
    at="/response/token_ids",
    needs_tokens=True,
    detail=lambda r: pl.format("{} supervised tokens, one id", r.supervised_tokens),
)
def one_distinct_id(r: Columns) -> pl.Expr:
    """All sampled tokens are the same id.

    Why it matters: NaN logits give id 0 for ever, whatever it decodes to.
    What to do: check dtype, quantisation and kernels of the server.
    """
    enough = r.supervised_tokens >= r.t.one_char_chars
    return enough & ((r.id_changes == 0) | ((r.id_changes == 1) & r.ends_eot))


@rule("TOK015", "marker-opened-twice", severity=Severity.ERROR, at="/response", needs_tokens=True)
def marker_opened_twice(r: Columns) -> pl.Expr:
    """The prompt ends in the opening marker, and the completion begins with it again.

    Why it matters: two openings in a row never occur in served traffic; one of them was added by
    hand.
    What to do: check `open_in_prompt` of the profile; remove the marker that a script put into the
    text.
    """
    return r.prompt_ends_open & r.starts_open


@rule(
    "TOK016",
    "stream-not-buildable",
    severity=Severity.ERROR,
    at="/response",
    needs_tokens=True,
    detail=lambda r: pl.format("reason: {}", r.grade_reason.fill_null("not given")),
)
def stream_not_buildable(r: Columns) -> pl.Expr:
    """The record does not say enough to rebuild its tokens (grade E without a count).

    Why it matters: the family writes no such answer, the thought is redacted, or tools are unknown.
    What to do: check the profile; capture with token ids.
    """
    told = r.grade_reason.is_in([_CONTRADICTED, _AMBIGUOUS, _CAPTURED, _PROMPT_IDS]).fill_null(
        False
    )
    return (r.grade == Grade.E.value) & ~told


@rule(
    "TOK017",
    "prompt-not-built",
    severity=Severity.ERROR,
    at="/messages",
    needs_tokens=True,
    detail=lambda r: r.prompt_reason.fill_null("no reason given"),
)
def prompt_not_built(r: Columns) -> pl.Expr:
    """The prompt could not be built: the template fails on this request, or there is none.

    Why it matters: the answer would be trained on without the context that it answers.
    What to do: pass the server's own template with --chat-template, or capture prompt ids.
    Not flagged: a record without a request (REC015).
    """
    return (r.prompt_source == PromptSource.NONE.value) & (r.prompt_reason != NO_REQUEST)


@rule(
    "TOK018",
    "prompt-ids-contradict-count",
    severity=Severity.ERROR,
    at="/response/usage/prompt_tokens",
    detail=lambda r: pl.format(
        "{} captured prompt ids, usage counts {}", r.prompt_ids.list.len(), r.prompt_tokens
    ),
)
def prompt_ids_contradict_count(r: Columns) -> pl.Expr:
    """The captured prompt ids are not as many as usage counts.

    Why it matters: the model never saw this prompt, so no grade can stand on it (grade E).
    What to do: capture again; a stream names the prompt ids in its first chunk only.
    """
    return (r.prompt_ids.list.len() > 0) & (r.prompt_ids.list.len() != r.prompt_tokens)
