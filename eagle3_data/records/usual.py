"""The usual record: a chat-completion body with one answer beside its request, read in one go.

What enters: a parsed record. What leaves: `Usual`, the cells that the general road of `shapes`
gives for it, or None when anything about the record is out of the ordinary. It promises to refuse
rather than to decide: a key it does not know, a type it does not expect, an odd end, and the record
goes the general way. A test holds both ways against each other on every shape and on mutations of
them.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from eagle3_data.records.answers import EMPTY, MISSING, NULL, TEXT
from eagle3_data.records.bodies import server_of
from eagle3_data.records.requests import ROLES
from eagle3_data.records.row import LARGEST, Json, dump
from eagle3_data.records.table import Status

_LINE = frozenset(
    {"id", "request", "response", "latency_s"}
    # what `generate` writes beside them
    | {"identity", "sample", "server", "server_version", "base_url", "attempt", "finished_at"}
)
_REQUEST = frozenset(
    {"model", "messages", "max_tokens", "temperature", "top_p", "top_k", "min_p", "seed", "n"}
    | {"stop", "stream", "frequency_penalty", "presence_penalty", "repetition_penalty"}
    | {"return_token_ids", "skip_special_tokens", "logprobs", "user"}
)
_BODY = frozenset(
    {"id", "object", "created", "model", "choices", "usage", "system_fingerprint", "service_tier"}
    | {"prompt_token_ids"}
)
_IDLE = frozenset(
    {"prompt_logprobs", "prompt_text", "kv_transfer_params", "ec_transfer_params", "metrics"}
)
"""Keys that vLLM writes into every body; usual while they are null."""
_CHOICE = frozenset(
    {"index", "message", "logprobs", "finish_reason", "stop_reason", "token_ids"}
    | {"routed_experts"}
)
_MESSAGE = frozenset(
    {"role", "content", "refusal", "annotations", "audio", "function_call", "tool_calls"}
    | {"reasoning", "reasoning_content"}
)
_TURN = {"role", "content"}
_ENDS = frozenset({"stop", "length"})
_LONG = 256
_TEXT_OF = {key: f"{key}={TEXT}" for key in ("reasoning", "reasoning_content")}
_EMPTY_OF = {key: f"{key}={EMPTY}" for key in ("reasoning", "reasoning_content")}
_RECORD = Status.RECORD.value


class Usual(NamedTuple):
    """`cells`: one a column of RECORD_SCHEMA, in its order; `keys`: how many the objects of the
    record hold; `long`: its long texts in the order of the line.
    """

    cells: tuple[Any, ...]
    keys: int
    long: list[str]


def read_usual(value: Any, number: int, offset: int, size: int) -> Usual | None:
    """The cells of a usual record (line `number`, at `offset`, `size` bytes), or None."""
    if value.__class__ is not dict or not value.keys() <= _LINE:
        return None
    request, body = value.get("request"), value.get("response")
    if request.__class__ is not dict or body.__class__ is not dict:
        return None
    choices, usage = body.get("choices"), body.get("usage")
    if choices.__class__ is not list or len(choices) != 1 or usage.__class__ is not dict:
        return None
    choice = choices[0]
    message = choice.get("message") if choice.__class__ is dict else None
    if (
        message.__class__ is not dict
        or not request.keys() <= _REQUEST
        or not choice.keys() <= _CHOICE
        or not message.keys() <= _MESSAGE
        or not _plain_body(body)
    ):
        return None

    name, latency = value.get("id"), value.get("latency_s")
    told_server, told_version = value.get("server"), value.get("server_version")
    made_by, asked_of, created = body.get("model"), request.get("model"), body.get("created")
    prompt_ids, ids = body.get("prompt_token_ids"), choice.get("token_ids")
    end, stop, index = choice.get("finish_reason"), choice.get("stop_reason"), choice.get("index")
    limit = request.get("max_tokens")
    fed, made = usage.get("prompt_tokens"), usage.get("completion_tokens")
    if (
        name.__class__ is not str
        or (told_server is not None and told_server.__class__ is not str)
        or (told_version is not None and told_version.__class__ is not str)
        or value.get("identity", "").__class__ is not str
        or value.get("base_url", "").__class__ is not str
        or (latency is not None and latency.__class__ is not float)
        or made_by.__class__ is not str
        or asked_of.__class__ is not str
        or not (created.__class__ is fed.__class__ is made.__class__ is index.__class__ is int)
        or not (0 <= created < LARGEST and 0 <= fed < LARGEST and 0 <= made < LARGEST)
        or not 0 <= index < 1 << 31
        or (limit is not None and (limit.__class__ is not int or not 0 <= limit < LARGEST))
        or (prompt_ids is not None and prompt_ids.__class__ is not list)
        or (ids is not None and ids.__class__ is not list)
        or choice.get("logprobs") is not None
        or choice.get("routed_experts") is not None
        or end.__class__ is not str
        or end not in _ENDS
        or (stop is not None and stop.__class__ is not str and stop.__class__ is not int)
        or message.get("tool_calls")
        or message.get("function_call") is not None
    ):
        return None

    long: list[str] = []
    keys = len(value) + len(request) + len(body) + len(choice) + len(message) + len(usage)
    asked = _asked(request.get("messages"), long)
    content = message.get("content", 0)
    thought = [key for key in _TEXT_OF if key in message]
    if asked is None or len(thought) > 1 or (content is not None and content.__class__ is not str):
        return None
    reasoning = key_read = keys_read = None
    state = MISSING
    if thought:
        key_read = thought[0]
        reasoning = message[key_read]
        if reasoning.__class__ is not str:
            return None
        if reasoning:
            state, keys_read = TEXT, _TEXT_OF[key_read]
        else:
            state, keys_read, key_read = EMPTY, _EMPTY_OF[key_read], None
    thinking = None
    for told in ("completion_tokens_details", "prompt_tokens_details"):
        details = usage.get(told)
        if details.__class__ is dict:
            keys += len(details)
            if told == "completion_tokens_details":
                thinking = details.get("reasoning_tokens")
        elif details is not None:
            return None
    if thinking is not None and (thinking.__class__ is not int or not 0 <= thinking < LARGEST):
        return None
    if "reasoning_tokens" in usage or "output_tokens_details" in usage:
        return None
    for text in message.values():
        if text.__class__ is str and len(text) > _LONG:
            long.append(text)
    settings = {key: item for key, item in request.items() if key not in _NO_SETTING}
    server, version = server_of(body, choice)
    server, version = server or told_server, version or told_version
    messages_json, system, user, roles, history = asked
    cells = (
        None, number, offset, size, index, None, _RECORD, "chat-completion", None, None, None,
        name, made_by, asked_of, server, version, created, latency,
        messages_json, None, None, None, dump(settings) if settings else None, system, user, roles,
        history, None, limit,
        reasoning, state, key_read, keys_read,
        content, NULL if content is None else TEXT if content else EMPTY, None, 0, end,
        None if stop is None else str(stop), fed, made, thinking, prompt_ids, ids, None,
    )  # fmt: skip
    return Usual(cells, keys + 2 * len(roles), long)


_NO_SETTING = frozenset({"model", "messages"})


def _plain_body(body: Json) -> bool:
    """Whether a body holds nothing beside the usual, null keys aside."""
    rest = body.keys() - _BODY
    return not rest or (rest <= _IDLE and all(body[key] is None for key in rest))


_Asked = tuple[str, str | None, str | None, str, bool]


def _asked(messages: Any, long: list[str]) -> _Asked | None:
    """(messages_json, system_text, user_text, roles, history_reasoning) of messages that are all
    text; long texts go to `long`.
    """
    if messages.__class__ is not list or not messages:
        return None
    roles = ""
    user = system = None
    thought = False
    for message in messages:
        if message.__class__ is not dict or message.keys() != _TURN:
            return None
        role, content = message["role"], message["content"]
        if content.__class__ is not str or role.__class__ is not str or role not in ROLES:
            return None
        mark = ROLES[role]
        roles += mark
        if mark == "u":
            user = content
        elif mark == "a":
            thought = thought or "</think>" in content
        elif system is None and mark in "sd":
            system = content
        if len(content) > _LONG:
            long.append(content)
    return dump(messages), system, user, roles, thought
