"""CHT: the request side. Roles, variables, tools. Columns: record table, `answers.py`, sample
columns."""

from __future__ import annotations

import polars as pl

from eagle3_data.audit.rules.registry import Columns, Severity, rule
from eagle3_data.records.ends import CALLED, STOPPED


def _roles(r: Columns) -> pl.Expr:
    return pl.format("roles before the answer: {}", r.roles.str.head(60))


def _spoken(r: Columns) -> pl.Expr:
    """The roles without system and developer messages."""
    return r.roles.str.replace_all("[sd]", "")


@rule("CHT001", "assistant-first", severity=Severity.WARN, at="/messages", detail=_roles)
def assistant_first(r: Columns) -> pl.Expr:
    """The dialogue begins with an assistant message.

    Why it matters: many templates raise on it, others drop the message in silence; then the prompt
    ids are not the ones meant.
    What to do: cut the first message, or capture with prompt ids.
    """
    return _spoken(r).str.starts_with("a")


@rule("CHT002", "roles-do-not-alternate", severity=Severity.WARN, at="/messages", detail=_roles)
def roles_do_not_alternate(r: Columns) -> pl.Expr:
    """Two user or two assistant messages follow each other.

    Why it matters: templates raise, merge or keep them, and stacks differ in that.
    What to do: merge the messages in the source set, or capture with prompt ids.
    Not flagged: assistant and tool messages in turn, a tool result after another one.
    """
    return _spoken(r).str.contains("uu|aa")


@rule("CHT003", "tool-result-without-call", severity=Severity.ERROR, at="/messages", detail=_roles)
def tool_result_without_call(r: Columns) -> pl.Expr:
    """A tool message that no assistant message asked for.

    Why it matters: the model answered a dialogue that its template can not express.
    What to do: repair the order of the messages in the source set and capture again.
    Not flagged: a result after an assistant message that writes its call as text.
    """
    after = _spoken(r).str.contains("at", literal=True)
    searched = pl.when(after).then(r.messages_json)  # null elsewhere, which costs nothing
    return _spoken(r).str.contains("^t|ut") | ~searched.str.contains_any(list(_CALLS))


_CALLS = (
    '"tool_calls"', '"function_call"', "tool_use", "<tool_call", "<|tool_call", "tool▁call",
    "<function", "<invoke", "[TOOL", "python_tag", "Action", "arguments", "parameters", "```",
)  # fmt: skip
"""A dialogue that calls a tool, in a field or as text, holds one of these."""


@rule("CHT004", "no-user-message", severity=Severity.ERROR, at="/messages", detail=_roles)
def no_user_message(r: Columns) -> pl.Expr:
    """The request has messages, but none of a user.

    Why it matters: the answer answers nothing; templates that search for the last user query fail.
    What to do: drop the record, or find out where the prompt went.
    """
    asked = r.roles.str.contains("[u?]") | (r.prompt_text.str.len_bytes() > 0).fill_null(False)
    return (r.roles.str.len_bytes() > 0) & ~asked


@rule("CHT005", "late-system-message", severity=Severity.WARN, at="/messages", detail=_roles)
def late_system_message(r: Columns) -> pl.Expr:
    """A system message in the middle of the dialogue.

    Why it matters: templates hoist it, drop it or raise, so that prompt ids differ between stacks.
    What to do: move it to the front, or capture with prompt ids.
    """
    return r.roles.str.contains("[uat?][sd]")


@rule(
    "CHT006",
    "unresolved-variable",
    severity=Severity.WARN,
    at="/messages",
    detail=lambda r: pl.format("found {}", r.prompt_variable),
)
def unresolved_variable(r: Columns) -> pl.Expr:
    """A template variable was never filled in the prompt.

    Why it matters: the model answered a question about braces.
    What to do: fill the variable and capture again.
    Not flagged: variables in code, fenced or inline.
    """
    return r.prompt_variable.is_not_null() & ~r.prompt_only_variable.fill_null(False)


@rule(
    "CHT007",
    "prompt-is-a-variable",
    severity=Severity.ERROR,
    at="/messages",
    detail=lambda r: pl.format("the whole user text is {}", r.prompt_variable),
)
def prompt_is_a_variable(r: Columns) -> pl.Expr:
    """The user message is nothing but an unfilled variable.

    Why it matters: there is no question in the record.
    What to do: fill the variable and capture again.
    """
    return r.prompt_only_variable


@rule("CHT008", "empty-user-message", severity=Severity.ERROR, at="/messages")
def empty_user_message(r: Columns) -> pl.Expr:
    """The last user message has no text.

    Why it matters: the answer belongs to an empty question.
    What to do: drop the record, or find the lost prompt.
    Not flagged: messages with an image or audio part.
    """
    return r.user_text.str.strip_chars() == ""


@rule(
    "CHT009",
    "hidden-system-prompt",
    severity=Severity.WARN,
    at="/messages",
    needs_tokens=True,
    detail=lambda r: pl.format(
        "the server counts {} prompt tokens, the request renders to {}",
        r.prompt_tokens,
        r.prompt_tokens_rendered,
    ),
)
def hidden_system_prompt(r: Columns) -> pl.Expr:
    """The server's prompt is longer than the request, and the request has no system message.

    Why it matters: a default system message or a date was added on the way; the drafter must be
    trained behind the same prompt.
    What to do: write the system message into the request, or capture with prompt ids.
    Not flagged: records with captured prompt ids (they are the truth; TOK006 compares them). TOK007
    keeps silent here.
    """
    more = r.prompt_tokens - r.prompt_tokens_rendered
    return (
        (more >= r.t.hidden_prompt_tokens)
        & ~r.roles.str.contains("[sd]").fill_null(False)
        & r.prompt_ids.is_null()
    )


@rule("CHT010", "prompt-spells-marker", severity=Severity.WARN, at="/messages", needs_tokens=True)
def prompt_spells_marker(r: Columns) -> pl.Expr:
    """The text of a message spells a control marker of the family.

    Why it matters: servers parse it as the control token, and the dialogue then has a turn that
    nobody wrote.
    What to do: captured prompt ids show what the model really saw; without them drop the record.
    """
    return r.prompt_quotes_marker


@rule(
    "CHT011",
    "raw-tool-call",
    severity=Severity.ERROR,
    at="/response/tool_calls",
    detail=lambda r: pl.format("{} stands in the text, tool_calls is empty", r.raw_tool_call),
)
def raw_tool_call(r: Columns) -> pl.Expr:
    """Tools were declared, and a tool call stands in the text instead of `tool_calls`.

    Why it matters: the server had no tool parser, or the parser did not see the reasoning field;
    content is not what it says.
    What to do: start the server with the tool parser of the model and capture again.
    Not flagged: tool-call tags in a dialogue without tools.
    """
    return r.raw_tool_call.is_not_null() & (r.n_tool_calls.fill_null(0) == 0) & ~r.ids_captured


@rule(
    "CHT012",
    "tool-call-ids-rewritten",
    severity=Severity.WARN,
    at="/response/tool_calls",
    detail=lambda r: pl.format(
        "ids: {}", r.tool_calls_json.str.extract_all(_REWRITTEN).list.head(3).list.join(", ")
    ),
)
def tool_call_ids_rewritten(r: Columns) -> pl.Expr:
    """The family writes its own tool-call ids, but the stored ones were made by the server.

    Why it matters: the id is part of the sampled tokens; a stream rebuilt with another id is not
    the model's.
    What to do: capture with token ids.
    """
    return (
        r.profile_tool_ids
        & r.tool_calls_json.str.contains(_REWRITTEN).fill_null(False)
        & ~r.ids_captured
    )


_REWRITTEN = r"call_[0-9a-f]{16,}|call_[A-Za-z0-9]{24}|chatcmpl-tool-[0-9a-f]+"


@rule(
    "CHT013",
    "tool-calls-with-stop",
    severity=Severity.WARN,
    at="/response/finish_reason",
    detail=lambda r: pl.format("{} tool calls, finish_reason {}", r.n_tool_calls, r.finish_reason),
)
def tool_calls_with_stop(r: Columns) -> pl.Expr:
    """The answer has tool calls, but finish_reason is stop.

    Why it matters: forced tools are written under a grammar without the family's markers; their
    stream can not be rebuilt.
    What to do: capture with token ids, or let the model choose (`tool_choice: auto`).
    """
    return (r.n_tool_calls > 0) & r.finish_reason.is_in(STOPPED)


@rule("CHT014", "tool-calls-lost", severity=Severity.ERROR, at="/response/tool_calls")
def tool_calls_lost(r: Columns) -> pl.Expr:
    """finish_reason is tool_calls, but the record holds none.

    Why it matters: the calls were sampled and are not stored, so that the stream ends in a hole.
    What to do: store `message.tool_calls` and capture again.
    """
    called = r.finish_reason.is_in(CALLED)
    return called & (r.n_tool_calls.fill_null(0) == 0) & r.raw_tool_call.is_null()


@rule("CHT015", "answer-continues-answer", severity=Severity.WARN, at="/messages", detail=_roles)
def answer_continues_answer(r: Columns) -> pl.Expr:
    """The last message before the answer is an assistant message.

    Why it matters: the server either continued that message or opened a new turn; text alone does
    not say which.
    What to do: capture with prompt ids.
    """
    return r.roles.str.ends_with("a")
