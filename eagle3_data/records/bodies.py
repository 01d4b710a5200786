"""Bodies: responses as servers send them (chat completions, completions, Responses, native ones).

What enters: a body and the row of its request. What leaves: one `Row` for each choice. It promises
that n choices give n rows with the same request, that a count which covers several choices is
given to none of them, and that a server is named only when the body itself shows which one wrote
it.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any

from eagle3_data.records.answers import (
    MISSING,
    NULL,
    TEXT,
    read_end,
    read_message,
    read_tool_calls,
    read_usage,
    token_ids_of_logprobs,
)
from eagle3_data.records.errors import error_of_body, note_error
from eagle3_data.records.parts import read_text
from eagle3_data.records.row import Json, Row, mapping
from eagle3_data.records.table import Note

ID_KEYS = (
    "token_ids",
    "response_token_ids",
    "output_ids",
    "completion_ids",
    "completion_token_ids",
    "response_ids",
)
PROMPT_ID_KEYS = ("prompt_token_ids", "prompt_ids")
_ANY_IDS = frozenset({*ID_KEYS, *PROMPT_ID_KEYS, "sglext", "__verbose"})

_SGLANG = frozenset({"sglext", "meta_info"})


@lru_cache(maxsize=256)
def _fingerprint(text: str) -> tuple[str | None, str | None]:
    """(server, version) from a system_fingerprint such as `vllm-0.32.0-f693fabf` or
    `b6123-0cf6725`.
    """
    if found := re.match(r"(vllm|sglang)-v?([0-9][0-9a-z.+]*)", text):
        return found[1], found[2]
    if found := re.match(r"(b[0-9]+)-", text):
        return "llama.cpp", found[1]
    return None, None


def server_of(body: Json, choice: Json) -> tuple[str | None, str | None]:
    """(server, version) by what only that server writes; versions come from the fingerprint
    alone.
    """
    mark = body.get("system_fingerprint")
    if mark.__class__ is str:
        server, version = _fingerprint(mark)
        if server is not None:
            return server, version
    if "timings" in body:
        return "llama.cpp", None
    if (
        "matched_stop" in choice
        or not _SGLANG.isdisjoint(body)
        or "weight_version" in mapping(body.get("metadata"))
    ):
        return "sglang", None
    if "prompt_logprobs" in body or "kv_transfer_params" in body:
        return "vllm", None
    return None, None


def read_server(row: Row, body: Json, choice: Json) -> None:
    """Name the server of a row, if the body shows one."""
    server, version = server_of(body, choice)
    if server is not None:
        row.cells["server"] = server
        if version is not None:
            row.cells["server_version"] = version


def _read_time(row: Row, value: Any) -> None:
    """Unix seconds; some routers write a fraction."""
    if value is not None:
        row.whole("created", int(value) if value.__class__ is float else value, "created")


def read_body(row: Row, body: Json) -> list[Row]:
    """The rows of a body with `choices`."""
    _read_time(row, body.get("created"))
    model = body.get("model")
    if model is not None:
        row.text("model", model, "model")
    choices = body["choices"]
    if choices.__class__ is not list or not choices:
        if choices.__class__ is not list and choices is not None:
            row.wrong("choices", choices)
        row.note(Note.EMPTY_CHOICES)
        if error := error_of_body({**body, "choices": None} if body.get("error") else body):
            note_error(row, error)
        return [row]
    read_server(row, body, mapping(choices[0]))
    count = len(choices)
    read_usage(row, body.get("usage"), answers=count)
    if body.get("error"):
        note_error(row, error_of_body({"error": body["error"]}) or "")
    rows = [row.copy() for _ in choices[1:]]
    rows.insert(0, row)
    for place, choice in enumerate(choices):
        if choice.__class__ is dict:
            _read_choice(rows[place], body, choice, place)
        else:
            rows[place].wrong("a choice", choice)
            rows[place].cells["choice"] = place
    if len({each.cells["choice"] for each in rows}) < count:
        # routers that merge answers number each of them 0: two samples would have one name
        for place, each in enumerate(rows):
            each.cells["choice"] = place
    return rows


def _read_choice(row: Row, body: Json, choice: Json, place: int) -> None:
    cells = row.cells
    index = choice.get("index")
    cells["choice"] = index if index.__class__ is int and 0 <= index < 1 << 31 else place
    message = choice.get("message")
    if message.__class__ is dict:
        read_message(row, message)
    elif "text" in choice:  # /v1/completions: the raw text, markers included where they were kept
        cells["shape"] = "text-completion"
        read_message(row, choice, "text")
    else:
        row.wrong("choices[].message", message)
        cells["content_state"] = cells["reasoning_state"] = NULL if "message" in choice else MISSING
    read_end(row, choice)
    if choice.get("error"):
        note_error(row, error_of_body({"error": choice["error"]}) or "")
    read_ids(row, choice, body, place)


def read_ids(row: Row, choice: Json, body: Json, place: int = 0) -> None:
    """Captured ids, wherever a server puts them: beside the choice, beside the body, in SGLang's
    extension, or in what llama.cpp tells when asked to be verbose (the completion's only).
    """
    if _ANY_IDS.isdisjoint(choice) and _ANY_IDS.isdisjoint(body) and not choice.get("logprobs"):
        return
    extension = mapping(choice.get("sglext")) or mapping(body.get("sglext"))
    found = _first(choice, PROMPT_ID_KEYS)
    if found is None:
        found = _first(body, PROMPT_ID_KEYS)
    if found is None and extension:
        found = _one_of(extension.get("input_ids"), place)
    if found is not None:
        row.ids("prompt_ids", found)
    found = _first(choice, ID_KEYS)
    if found is None and extension:
        found = _one_of(extension.get("output_ids"), place)
    if found is None and "__verbose" in body and body.get("choices") == [choice]:
        # [] without return_tokens; of several choices only one is told
        found = mapping(body["__verbose"]).get("tokens") or None
    if found is None and choice.get("logprobs") is not None:
        found = token_ids_of_logprobs(choice["logprobs"])
    if found is not None:
        row.ids("completion_ids", found)


def _first(place: Json, keys: tuple[str, ...]) -> Any:
    for key in keys:
        if key in place and place[key] is not None:
            return place[key]
    return None


def _one_of(ids: Any, place: int) -> Any:
    """One list out of a list of lists (one a choice); a flat list is taken as it is."""
    if ids.__class__ is list and ids and ids[0].__class__ is list:
        return ids[place] if place < len(ids) else ids[0] if len(ids) == 1 else None
    return ids


_ENDS = {"max_output_tokens": "length", "content_filter": "content_filter"}


def read_responses(row: Row, body: Json) -> list[Row]:
    """The row of an OpenAI Responses body: `output` items reasoning, message, function_call."""
    cells = row.cells
    cells["shape"] = "responses"
    cells["choice"] = 0
    _read_time(row, body.get("created_at"))
    if body.get("model") is not None:
        row.text("model", body["model"], "model")
    read_server(row, body, {})
    read_usage(row, body.get("usage"))
    texts: list[str] = []
    thoughts: list[str] = []
    calls: list[Json] = []
    seen: list[str] = []
    for item in body["output"]:
        sort = mapping(item).get("type")
        if sort == "message":
            read = read_text(item.get("content"))
            texts.append(read.text or "")
            row.notes |= read.note & ~int(Note.CONTENT_PARTS)  # parts are the only form here
        elif sort == "reasoning":
            read = read_text(item.get("content"))
            if thought := read.thought or read.text:
                thoughts.append(thought)
            elif item.get("summary") or item.get("encrypted_content"):
                seen.append("summary" if item.get("summary") else "encrypted_content")
        elif sort in ("function_call", "custom_tool_call"):
            calls.append(item)
    cells["content_state"] = MISSING if not texts else TEXT if any(texts) else "empty"
    if texts:
        cells["content"] = "".join(texts)
    cells["reasoning_state"] = TEXT if thoughts else MISSING
    if thoughts:
        cells["reasoning"], cells["reasoning_key"] = "".join(thoughts), "output.reasoning"
        cells["reasoning_keys"] = "output.reasoning=text"
    elif seen:
        cells["reasoning_state"] = NULL
        cells["reasoning_keys"] = f"output.reasoning.{seen[0]}=text"
        row.note(Note.REASONING_REDACTED, f"only {seen[0]} of the reasoning is here")
    read_tool_calls(row, calls)
    status = body.get("status")
    if status == "completed":
        cells["finish_reason"] = "tool_calls" if calls else "stop"
    elif status == "incomplete":
        why = mapping(body.get("incomplete_details")).get("reason")
        cells["finish_reason"] = _ENDS.get(why, why) if why.__class__ is str else "incomplete"
    elif status.__class__ is str:
        cells["finish_reason"] = status
    if body.get("error"):
        note_error(row, error_of_body({"error": body["error"]}) or "")
    return [row]


def responses_messages(request: Json) -> list[Any]:
    """A Responses request (`instructions`, `input`) as chat messages; items with a role are kept
    as received.
    """
    messages: list[Any] = []
    instructions = request.get("instructions")
    if instructions.__class__ is str and instructions:
        messages.append({"role": "system", "content": instructions})
    items = request.get("input")
    if items.__class__ is str:
        messages.append({"role": "user", "content": items})
    for item in items if items.__class__ is list else []:
        sort = mapping(item).get("type")
        if sort == "function_call":
            function = {"name": item.get("name"), "arguments": item.get("arguments")}
            call = {"id": item.get("call_id"), "type": "function", "function": function}
            messages.append({"role": "assistant", "content": None, "tool_calls": [call]})
        elif sort == "function_call_output":
            told = {"tool_call_id": item.get("call_id"), "content": item.get("output")}
            messages.append({"role": "tool", **told})
        elif sort != "reasoning":
            messages.append(item)
    return messages
