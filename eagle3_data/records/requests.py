"""Requests: what was asked. Messages before the answer, tools, template switches and settings.

What enters: a request body (or a flat row that holds the same keys). What leaves: cells of a
`Row`. It promises that messages stay JSON text with every field as received; only a dialogue in
from/value form gets the role/content names that every template reads, and tools that came as JSON
text are decoded once.
"""

from __future__ import annotations

from typing import Any

from eagle3_data.records.parts import read_text
from eagle3_data.records.row import Json, Row, decoded, dump, kind, mapping
from eagle3_data.records.table import Note

ROLES = {
    "system": "s",
    "developer": "d",
    "user": "u",
    "human": "u",
    "assistant": "a",
    "gpt": "a",
    "model": "a",
    "function_call": "a",
    "tool": "t",
    "function": "t",
    "observation": "t",
    "ipython": "t",
}
"""Role as written → letter. The names of the from/value form are in use under `role` as well."""
_PLAIN_ROLES = {"s": "system", "d": "developer", "u": "user", "a": "assistant", "t": "tool"}
_TRAIN_FLAGS = frozenset({"loss", "trainable", "train", "weight", "loss_weight", "loss_mask"})
_THOUGHTS = ("reasoning", "reasoning_content", "thinking", "reasoning_details")
PROMPT_KEYS = ("prompt", "question", "query", "instruction", "problem", "input")
_NOT_SETTINGS = frozenset(
    {"model", "messages", "tools", "functions", "chat_template_kwargs", "input", "instructions"}
    | {"prompt", "prompt_token_ids", "input_ids"}
)
# fmt: off
_ROW_SETTINGS = frozenset((
    "add_generation_prompt", "enable_thinking", "frequency_penalty", "include_reasoning",
    "logprobs", "max_completion_tokens", "max_new_tokens", "max_output_tokens", "max_tokens",
    "min_p", "n", "parallel_tool_calls", "presence_penalty", "reasoning_effort",
    "repetition_penalty", "response_format", "return_token_ids", "seed", "separate_reasoning",
    "skip_special_tokens", "stop", "stop_token_ids", "temperature", "tool_choice", "top_k",
    "top_p",
))
# fmt: on


def letter(message: Any) -> str:
    """The role letter of a message: s d u a t, or ? when the role is not known."""
    role = mapping(message).get("role")
    return ROLES.get(role, "?") if role.__class__ is str else "?"


def plain(messages: list[Any]) -> list[Any]:
    """Messages in role/content form; from/value messages are renamed, their other fields kept."""
    first = messages[0] if messages else None
    if first.__class__ is dict and "role" in first:
        return messages
    made: list[Any] = []
    for message in messages:
        if message.__class__ is not dict or "from" not in message or "role" in message:
            made.append(message)
            continue
        role = message["from"]
        known = ROLES.get(role) if role.__class__ is str else None
        new = {"role": _PLAIN_ROLES[known] if known else role, "content": message.get("value")}
        made.append(new | {k: v for k, v in message.items() if k not in ("from", "value")})
    return made


def read_messages(row: Row, messages: Any, name: str = "messages") -> None:
    """The messages before an answer."""
    if messages.__class__ is not list:
        if messages is not None:
            row.wrong(name, messages)
        return
    cells = row.cells
    roles = ""
    user = system = None
    thought = False
    for message in messages:
        if message.__class__ is not dict:
            row.note(Note.WRONG_TYPE, f"a message is {kind(message)}")
            roles += "?"
            continue
        role = message.get("role")
        mark = ROLES.get(role, "?") if role.__class__ is str else "?"
        roles += mark
        content = message.get("content")
        if content.__class__ is not str and content is not None:
            content = _parts(row, content)
        if mark == "u":
            user = content
        elif mark == "a":
            thought = thought or _has_thought(message, content)
            if "tool_calls" in message:
                _decode_calls(row, message)
        elif mark == "?":
            row.note(Note.UNKNOWN_ROLE, "a message has a role that is not known")
        elif system is None and mark in "sd":
            system = content
        if not _TRAIN_FLAGS.isdisjoint(message):
            flags = ", ".join(sorted(_TRAIN_FLAGS & message.keys()))
            row.note(Note.TRAIN_FLAG, f"a message has {flags}")
    cells["messages_json"] = dump(messages)
    cells["roles"] = roles
    cells["history_reasoning"] = thought
    if user is not None:
        cells["user_text"] = user
    if system is not None:
        cells["system_text"] = system


def _parts(row: Row, content: Any) -> str | None:
    read = read_text(content)
    row.notes |= read.note
    if read.note & Note.WRONG_TYPE:
        row.note(Note.WRONG_TYPE, f"the content of a message is {kind(content)}")
    return read.text


def _has_thought(message: Json, content: str | None) -> bool:
    return any(message.get(key) for key in _THOUGHTS) or "</think>" in (content or "")


def _decode_calls(row: Row, message: Json) -> None:
    """Tool calls of history that came as JSON text are decoded once, so that a template can read
    them.
    """
    calls = message["tool_calls"]
    try:
        if calls.__class__ is str and calls:
            message["tool_calls"] = calls = decoded(calls)
            row.note(Note.TOOLS_DOUBLE_ENCODED, "tool_calls of an earlier turn is JSON text")
        if calls.__class__ is list and any(c.__class__ is str for c in calls):
            message["tool_calls"] = [decoded(c) for c in calls]
            row.note(Note.TOOLS_DOUBLE_ENCODED, "a tool call of an earlier turn is JSON text")
    except ValueError:
        row.note(Note.BAD_TOOL_JSON, "tool_calls of an earlier turn is not valid JSON")


def read_request(row: Row, request: Json) -> None:
    """A whole request body, its messages included."""
    messages = request.get("messages")
    if messages is not None:
        read_messages(row, plain(messages) if messages.__class__ is list else messages)
    else:
        read_prompt(row, request)
    model = request.get("model")
    if model is not None:
        row.text("request_model", model, "request.model")
    settings = request.copy()
    for key in _NOT_SETTINGS.intersection(request):
        del settings[key]
    if settings:
        row.cells["settings_json"] = dump(settings)
    read_switches(row, request)


def read_prompt(row: Row, place: Json) -> None:
    """A plain-text prompt under one of its usual names; a system text beside it makes messages of
    both.
    """
    for key in PROMPT_KEYS:
        value = place.get(key)
        if value.__class__ is list and value:
            if value[0].__class__ is dict:
                read_messages(row, plain(value), key)
            elif value[0].__class__ is int and key == "prompt":
                row.ids("prompt_ids", value)
            else:
                continue
            return
        if value.__class__ is str:
            given = place.get("input") if key == "instruction" else None
            if (
                given.__class__ is str and given.strip()
            ):  # Alpaca rows: the task and what it is about
                value = f"{value}\n\n{given}"
            system = place.get("system")
            if system.__class__ is str and system:
                asked = {"role": "user", "content": value}
                read_messages(row, [{"role": "system", "content": system}, asked])
            else:
                row.cells["prompt_text"] = row.cells["user_text"] = value
            return


def read_row_settings(row: Row, value: Json) -> None:
    """Settings that stand in a flat row itself, or in its `sampling_params`."""
    settings = {k: v for k, v in value.items() if k in _ROW_SETTINGS}
    for key in ("sampling_params", "generation_config", "params"):
        settings |= mapping(value.get(key))
    if settings:
        row.cells["settings_json"] = dump(settings)
    read_switches(row, settings | value)


def read_switches(row: Row, request: Json) -> None:
    """Tools, template switches, the thinking that was asked for, and the token limit."""
    limit = request.get("max_tokens")
    if limit is None:
        limit = next((request[k] for k in _LIMITS if request.get(k) is not None), None)
    if limit is not None:
        row.whole("max_tokens", limit, "max_tokens")
    if _SWITCHES.isdisjoint(request):
        return
    extra = mapping(request.get("extra_body"))
    tools = request.get("tools") or request.get("functions") or extra.get("tools")
    if tools:
        _tools(row, tools)
    kwargs = request.get("chat_template_kwargs")
    if kwargs is None:
        kwargs = extra.get("chat_template_kwargs")
    if kwargs.__class__ is dict:
        row.cells["template_kwargs_json"] = dump(kwargs)
    elif kwargs is not None:
        row.wrong("chat_template_kwargs", kwargs)
    for place in (mapping(kwargs), request, extra):
        asked = _thinking_asked(place) if place else None
        if asked is not None:
            row.cells["thinking_asked"] = asked
            break


_LIMITS = ("max_completion_tokens", "max_output_tokens", "max_new_tokens")
_ASKS = ("thinking", "enable_thinking", "reasoning", "thinking_mode", "reasoning_effort")
_SWITCHES = frozenset({"tools", "functions", "chat_template_kwargs", "extra_body", *_ASKS})


def _tools(row: Row, tools: Any) -> None:
    try:
        if tools.__class__ is str:
            tools = decoded(tools)
            row.note(Note.TOOLS_DOUBLE_ENCODED, "tools is JSON text")
        if tools.__class__ is list and any(t.__class__ is str for t in tools):
            tools = [decoded(t) for t in tools]
            row.note(Note.TOOLS_DOUBLE_ENCODED, "a tool is JSON text")
    except ValueError:
        row.note(Note.BAD_TOOL_JSON, "tools is not valid JSON")
        return
    if tools.__class__ is not list or not all(t.__class__ is dict for t in tools):
        row.note(Note.BAD_TOOL_JSON, "tools is no list of objects")
    elif tools:
        row.cells["tools_json"] = dump(tools)


_SWITCH_TEXTS = {"enabled": True, "on": True, "disabled": False, "off": False, "none": False}
_EFFORTS = frozenset({"minimal", "low", "medium", "high", "xhigh", "max"})


def _thinking_asked(place: Json) -> bool | None:
    """What a set of switches says about thinking; None when nothing.

    A text under `thinking` or `reasoning` is a thought, never a switch.
    """
    for key in _ASKS:
        value = place.get(key)
        if value is None or (value.__class__ is str and key in ("thinking", "reasoning")):
            continue
        if value.__class__ is dict:  # {"type": "enabled"}, {"effort": "none"}, {"enabled": false}
            value = value.get("type", value.get("enabled", value.get("effort")))
        if value.__class__ is bool:
            return bool(value)
        if value.__class__ is str:
            if value in _SWITCH_TEXTS:
                return _SWITCH_TEXTS[value]
            if value in _EFFORTS:
                return True
    return None
