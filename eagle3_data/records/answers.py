"""Answers: the fields of one answer (thought, content, tool calls, how it ended, counts, ids).

What enters: the object that holds the answer (a message, or a flat row). What leaves: cells of a
`Row`. It promises the reader's rule for thoughts: `reasoning`, else `reasoning_content`, else
`thinking`, else the joined text of `reasoning_details`; missing, null and "" stay apart; an inline
think block is left as it is.
"""

from __future__ import annotations

from typing import Any

import orjson

from eagle3_data.records.parts import read_text
from eagle3_data.records.row import Json, Row, decoded, dump, kind, mapping
from eagle3_data.records.table import FieldState, Note

REASONING_KEYS = (
    "reasoning",
    "reasoning_content",
    "thinking",
    "reasoning_details",
    "thinking_blocks",
)
MISSING, NULL = FieldState.MISSING.value, FieldState.NULL.value
EMPTY, TEXT = FieldState.EMPTY.value, FieldState.TEXT.value
_SWITCHES = frozenset(
    {"effort", "enabled", "exclude", "generate_summary", "max_tokens", "summary", "type"}
    | {"budget_tokens", "context", "display"}
)
"""Keys of a request's own setting of that name: `reasoning: {"effort": "high"}` in a flat row."""
_ONLY_TEXT = {key: f"{key}={TEXT}" for key in REASONING_KEYS}


def read_message(row: Row, message: Json, content_key: str | None = "content") -> None:
    """Thought, content and tool calls of a message or a flat row."""
    thought = None
    value = message.get(content_key) if content_key is not None else None
    if value.__class__ is str:
        row.cells["content"] = value
        row.cells["content_state"] = TEXT if value else EMPTY
    else:
        thought = _content(row, message, content_key, value)
    read_reasoning(row, message, thought)
    calls = message.get("tool_calls")
    legacy = message.get("function_call")
    if calls is None and legacy.__class__ is dict:
        calls = [{"function": legacy}]
    read_tool_calls(row, calls)


def _content(row: Row, message: Json, key: str | None, value: Any) -> str | None:
    """Content that is no string; the thought among its parts, if any."""
    if key is None or key not in message:
        row.cells["content_state"] = MISSING
        return None
    read = read_text(value)
    row.notes |= read.note
    if read.note & Note.WRONG_TYPE:
        row.note(Note.WRONG_TYPE, f"{key} is {kind(value)}")
    if read.text is None:
        row.cells["content_state"] = NULL
    else:
        row.cells["content"] = read.text
        row.cells["content_state"] = TEXT if read.text else EMPTY
    return read.thought


def read_reasoning(row: Row, place: Json, thought: str | None = None) -> None:
    """The thought of an answer. `thought`: one that stood among the parts of its content."""
    cells = row.cells
    present = [key for key in REASONING_KEYS if key in place]
    if len(present) == 1 and thought is None and place[present[0]].__class__ is str:
        key, value = present[0], place[present[0]]
        cells["reasoning"] = value
        if value:
            cells["reasoning_state"], cells["reasoning_key"] = TEXT, key
            cells["reasoning_keys"] = _ONLY_TEXT[key]
        else:
            cells["reasoning_state"], cells["reasoning_keys"] = EMPTY, f"{key}={EMPTY}"
        return
    texts: list[tuple[str, str]] = []
    seen: list[tuple[str, str]] = []
    for key in present:
        value = place[key]
        if value.__class__ is str:
            text: str | None = value
        elif value is None:
            text = None
        elif value.__class__ is dict:
            if not value.keys() <= _SWITCHES:
                row.wrong(key, value)  # a thought in a shape of its own: it must not vanish
            continue
        elif key == "thinking":
            continue  # `thinking: true`
        elif value.__class__ is list:
            text = _details(row, value)
        else:
            row.wrong(key, value)
            continue
        seen.append((key, NULL if text is None else TEXT if text else EMPTY))
        if text:
            texts.append((key, text))
    if thought is not None:
        seen.append(("content.thinking", TEXT if thought else EMPTY))
        if thought:
            texts.append(("content.thinking", thought))
    if not seen:
        cells["reasoning_state"] = MISSING
        return
    cells["reasoning_keys"] = ",".join([f"{key}={state}" for key, state in seen])
    if not texts:
        states = [state for _, state in seen]
        cells["reasoning_state"] = EMPTY if EMPTY in states else NULL
        if EMPTY in states:
            cells["reasoning"] = ""
        return
    cells["reasoning_state"] = TEXT
    cells["reasoning_key"], cells["reasoning"] = texts[0]
    for key, text in texts[1:]:
        # routers trim the copy that they put into reasoning_details
        if text != texts[0][1] and text.strip() != texts[0][1].strip():
            row.note(Note.REASONING_CONFLICT, f"{texts[0][0]} and {key} differ")


def _details(row: Row, items: list[Any]) -> str | None:
    """Joined text of `reasoning_details` or `thinking_blocks`; None when nothing of it is the
    sampled text.
    """
    texts: list[str] = []
    hidden = False
    for item in items:
        if item.__class__ is not dict:
            if item.__class__ is str:
                texts.append(item)
            continue
        text = item.get("text", item.get("thinking"))
        if text.__class__ is str:
            texts.append(text)
        elif item.keys() & {"summary", "data", "encrypted_content", "signature"}:
            hidden = True
    if hidden and not texts:
        row.note(Note.REASONING_REDACTED, "only a summary or encrypted reasoning")
        return None
    return "".join(texts)


def read_tool_calls(row: Row, value: Any) -> None:
    """`tool_calls` as [{id, name, arguments}]; arguments stay the text received."""
    row.cells["n_tool_calls"] = 0
    if not value:
        return
    calls = []
    try:
        if value.__class__ is str:
            row.note(Note.TOOLS_DOUBLE_ENCODED, "tool_calls is JSON text")
            value = decoded(value)
        for item in value if value.__class__ is list else [value]:
            if item.__class__ is str:
                row.note(Note.TOOLS_DOUBLE_ENCODED, "a tool call is JSON text")
                item = decoded(item)
            calls.append(_call(row, item))
    except ValueError:
        row.note(Note.BAD_TOOL_JSON, "tool_calls is not valid JSON")
        return
    if calls:
        row.cells["tool_calls_json"] = dump(calls)
        row.cells["n_tool_calls"] = len(calls)


def _call(row: Row, item: Any) -> Json:
    if item.__class__ is not dict:
        row.note(Note.BAD_TOOL_JSON, f"a tool call is {kind(item)}")
        return {"id": None, "name": None, "arguments": None}
    function = item.get("function", item)
    if function.__class__ is not dict:
        function = item
    name, arguments = function.get("name"), function.get("arguments", function.get("input"))
    if name.__class__ is not str:
        row.note(Note.BAD_TOOL_JSON, "a tool call has no name")
    if arguments.__class__ is str:
        try:
            good = orjson.loads(arguments).__class__ is dict
        except orjson.JSONDecodeError:
            good = False
        if not good:
            row.note(Note.BAD_TOOL_JSON, "the arguments of a tool call are no JSON object")
    elif arguments.__class__ is dict:
        arguments = dump(arguments)
    else:
        row.note(Note.BAD_TOOL_JSON, f"the arguments of a tool call are {kind(arguments)}")
        arguments = None
    return {"id": item.get("id", item.get("call_id")), "name": name, "arguments": arguments}


def read_end(row: Row, place: Json) -> None:
    """`finish_reason` and what the model stopped at."""
    reason = place.get("finish_reason")
    stop = place.get("stop_reason")
    if stop is None:
        stop = place.get("matched_stop")
    if reason.__class__ is dict:  # SGLang's native form: {"type": "stop", "matched": 2}
        stop = reason.get("matched") if stop is None else stop
        reason = reason.get("type")
    row.text("finish_reason", reason, "finish_reason")
    if stop.__class__ is int or stop.__class__ is str:
        row.cells["stop_reason"] = str(stop)
    elif stop is not None:
        row.wrong("stop_reason", stop)


def read_usage(row: Row, usage: Any, *, answers: int = 1) -> None:
    """Token counts. With several answers the body counts them together, so that no answer gets a
    count.
    """
    if usage.__class__ is not dict:
        if usage is not None:
            row.wrong("usage", usage)
        return
    fed, made = usage.get("prompt_tokens"), usage.get("completion_tokens")
    if fed is None:
        fed = usage.get("input_tokens")
    if fed is not None:
        row.whole("prompt_tokens", fed, "usage.prompt_tokens")
    if answers > 1:
        return
    if made is None:
        made = usage.get("output_tokens")
    if made is not None:
        row.whole("completion_tokens", made, "usage.completion_tokens")
    details = usage.get("completion_tokens_details") or usage.get("output_tokens_details")
    thought = mapping(details).get("reasoning_tokens", usage.get("reasoning_tokens"))
    if thought is not None:
        row.whole("reasoning_tokens", thought, "usage.reasoning_tokens")


def token_ids_of_logprobs(logprobs: Any) -> list[int] | None:
    """Ids that vLLM writes as "token_id:N" with return_tokens_as_token_ids; None when they are not
    there.
    """
    content = mapping(logprobs).get("content")
    if content.__class__ is not list or not content:
        return None
    ids: list[int] = []
    for item in content:
        token = mapping(item).get("token")
        if token.__class__ is not str or not token.startswith("token_id:"):
            return None
        digits = token[9:]
        if not digits.isascii() or not digits.isdigit() or len(digits) > 9:
            return None
        ids.append(int(digits))
    return ids
