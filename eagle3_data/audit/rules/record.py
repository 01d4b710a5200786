"""REC rules: the shape of a record, from foreign lines to single fields of a wrong type.

What enters: the notes of the shape station and the fields of the record table. What leaves: rules
of the family REC.
They promise to tell a record that holds no answer from one whose answer is bad.
"""

from __future__ import annotations

import polars as pl

from eagle3_data.audit.rules.raw import noted
from eagle3_data.audit.rules.registry import Columns, Severity, rule
from eagle3_data.records.table import Note

ERROR, WARN = Severity.ERROR, Severity.WARN


def error_told(r: Columns) -> pl.Expr:
    """Evidence: the error text."""
    return pl.coalesce(r.error_text, r.note_detail)


@rule("REC001", "no-answer", severity=ERROR, detail=noted)
def no_answer(r: Columns) -> pl.Expr:
    """The record has no known place for an answer.

    Why it matters: it is a foreign record (prompts, scores, a log line), or a shape that is not
    read yet.
    What to do: give the file of the capture; the detail lists the keys that were found.
    """
    return r.noted(Note.NO_ANSWER)


@rule("REC002", "error-body", severity=ERROR, at="/response", detail=error_told)
def error_body(r: Columns) -> pl.Expr:
    """An error stands in place of the answer.

    Why it matters: the request failed; an error text trained as an answer teaches the drafter what
    the model never says.
    What to do: capture the record again; let the client raise on HTTP errors.
    """
    return r.noted(Note.ERROR_BODY)


@rule("REC003", "empty-choices", severity=ERROR, at="/response/choices")
def empty_choices(r: Columns) -> pl.Expr:
    """The response body holds no choice.

    Why it matters: there is no answer; often a content filter or a proxy dropped it.
    What to do: capture the record again.
    """
    return r.noted(Note.EMPTY_CHOICES)


@rule("REC004", "wrong-type", severity=ERROR, detail=noted)
def wrong_type(r: Columns) -> pl.Expr:
    """A known field has a type it can not have.

    Why it matters: what stands there is not what the server sent, so the stream can not be rebuilt
    from it.
    What to do: the detail names the field; store the body of the response as it came.
    """
    return r.noted(Note.WRONG_TYPE)


@rule("REC005", "content-parts", severity=WARN, at="/response/content")
def content_parts(r: Columns) -> pl.Expr:
    """A content is a list of text parts.

    Why it matters: the parts were joined; chat templates differ in how they join them, so the
    prompt may not be the served one.
    What to do: store texts as one string; capture ids (`return_token_ids`) to be sure.
    """
    return r.noted(Note.CONTENT_PARTS)


@rule("REC006", "non-text-content", severity=ERROR, at="/request/messages")
def non_text_content(r: Columns) -> pl.Expr:
    """A content has parts that are no text, such as an image.

    Why it matters: the ids of an image can not be rebuilt from the record, and captured ids are no
    help: they only hold its place, so that hidden states made from them are not the served ones.
    What to do: leave these records out.
    """
    return r.noted(Note.CONTENT_NON_TEXT)


@rule("REC007", "tools-double-encoded", severity=WARN, at="/request/tools", detail=noted)
def tools_double_encoded(r: Columns) -> pl.Expr:
    """`tools` or `tool_calls` came as JSON text inside JSON.

    Why it matters: it was decoded once; a template that gets the text renders it as one quoted
    string.
    What to do: mend the exporter that calls `json.dumps` on a field.
    """
    return r.noted(Note.TOOLS_DOUBLE_ENCODED)


@rule("REC008", "bad-tool-json", severity=ERROR, at="/response/tool_calls", detail=noted)
def bad_tool_json(r: Columns) -> pl.Expr:
    """`tools`, `tool_calls` or the arguments of a call are not valid JSON.

    Why it matters: the call can not be written as the model sampled it, and a client could not have
    run it.
    What to do: look at the finish reason (a cut call has no end); otherwise capture again.
    """
    return r.noted(Note.BAD_TOOL_JSON)


@rule("REC009", "last-not-assistant", severity=ERROR, at="/messages", detail=noted)
def last_not_assistant(r: Columns) -> pl.Expr:
    """The dialogue ends without an assistant turn.

    Why it matters: a failed request was stored anyway; there is no answer to learn from.
    What to do: capture the record again.
    """
    return r.noted(Note.LAST_NOT_ASSISTANT)


@rule("REC010", "unknown-role", severity=ERROR, at="/request/messages", detail=noted)
def unknown_role(r: Columns) -> pl.Expr:
    """A message has a role that no chat template knows.

    Why it matters: templates skip such a message or raise, so the prompt is not the one that was
    served.
    What to do: map the roles of the source set to system, user, assistant and tool.
    """
    return r.noted(Note.UNKNOWN_ROLE) & r.prompt_ids.is_null()


@rule("REC011", "train-flag", severity=WARN, at="/messages", detail=noted)
def train_flag(r: Columns) -> pl.Expr:
    """A message carries a flag of the source set such as `loss`, `trainable` or `weight`.

    Why it matters: the flag is not obeyed: every answer of the model is supervised.
    What to do: remove the turns that must not be learned, or the flags.
    """
    return r.noted(Note.TRAIN_FLAG)


@rule("REC012", "reasoning-redacted", severity=ERROR, at="/response/reasoning", detail=noted)
def reasoning_redacted(r: Columns) -> pl.Expr:
    """Only an encrypted or summarised thought is stored.

    Why it matters: the tokens that the model sampled are not in the record and can not be rebuilt.
    What to do: capture from a server that returns the thought itself.
    """
    return r.noted(Note.REASONING_REDACTED)


@rule("REC013", "ids-invalid", severity=ERROR, at="/response/token_ids", detail=noted)
def ids_invalid(r: Columns) -> pl.Expr:
    """The captured token ids are no list of token ids, or a mask differs from them in length.

    Why it matters: the only exact source of the stream is unusable.
    What to do: store `token_ids` and `prompt_token_ids` as the server sent them.
    """
    return r.noted(Note.IDS_INVALID)


@rule("REC014", "model-missing", severity=WARN, at="/response/model")
def model_missing(r: Columns) -> pl.Expr:
    """The record does not say which model answered.

    Why it matters: answers of another model lower the acceptance of a drafter, and nobody can tell.
    What to do: store the whole response body, or add a `model` field.
    """
    return r.answered & r.model.is_null()


@rule("REC015", "request-missing", severity=ERROR, at="/request")
def request_missing(r: Columns) -> pl.Expr:
    """The record holds an answer but not the prompt it answers.

    Why it matters: the context of every token is unknown, so there is no training sequence.
    What to do: store the request (messages, tools, template settings) beside the response, or
    `prompt_token_ids`.
    """
    return (
        r.answered
        & (r.messages_json.is_null() | (r.messages_json == "[]"))
        & r.prompt_text.is_null()
        & r.prompt_ids.is_null()
        & ~r.noted(Note.IDS_INVALID)
    )


@rule("REC016", "record-repaired", severity=WARN, detail=lambda r: r.repair)
def record_repaired(r: Columns) -> pl.Expr:
    """`--repair` changed the record.

    Why it matters: what is judged and written is not word for word what was captured.
    What to do: look at the repairs in the detail; mend the capture so that none is needed.
    """
    return r.noted(Note.REPAIRED)


@rule("REC017", "answers-disagree", severity=ERROR, at="/response", detail=noted)
def answers_disagree(r: Columns) -> pl.Expr:
    """The record holds two answers with different text.

    Why it matters: only one of them was sampled after this prompt; the reader took the first.
    What to do: keep one field for the answer; a set that is captured again must lose its old turns.

    Not flagged: a text that holds the other one, such as prompt and answer in `text`.
    """
    return r.noted(Note.ANSWER_CONFLICT)


@rule("REC018", "body-double-encoded", severity=WARN, at="/response", detail=noted)
def body_double_encoded(r: Columns) -> pl.Expr:
    """The response body came as JSON text inside JSON.

    Why it matters: it was decoded once; other readers take the whole body for the answer.
    What to do: mend the client that calls `json.dumps` on the body before it writes the record.
    """
    return r.noted(Note.BODY_DOUBLE_ENCODED)
