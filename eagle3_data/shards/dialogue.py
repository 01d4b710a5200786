"""A sample as a dialogue: what was asked, and the answer as the last assistant message.

What enters: the text columns of one row of schema v1. What leaves: messages in the spelling of one
format with the count of what it has no place for, or the reason why that format would tell
something else than the sample. It promises that a cut answer is never dressed up as a finished one,
that texts are handed on as they are, and that a message of which anything (a part, a call, an item
of a thought) is not told is counted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from enum import StrEnum
from itertools import count
from typing import Any

import orjson

from eagle3_data.records.answers import REASONING_KEYS, read_reasoning
from eagle3_data.records.ends import FINISHED
from eagle3_data.records.parts import read_text
from eagle3_data.records.requests import plain
from eagle3_data.records.row import Row
from eagle3_data.records.table import Note

COLUMNS = (
    "sample_id", "messages", "prompt_text", "reasoning", "content", "tool_calls", "tools",
    "template_kwargs", "finish_reason", "truncated", "input_ids",
)  # fmt: skip
"""What `dialogue` reads of a row, and the formats beside it."""


class Gap(StrEnum):
    """Why a sample is left out of a format of texts."""

    NO_END = "the model did not end the answer (cut), and a trainer's template would end it"
    NO_TEXT = "there are ids only, no text"
    NO_REQUEST = "the record holds no request"
    NOT_TEXT = "a message holds parts that are no text (image, audio)"
    DAMAGED = "messages, tools or tool calls are not the JSON that they should be"
    THOUGHT_ONLY = "the answer is a thought alone, and the format has no place for thoughts"
    NO_CALL = "an answer of a tool belongs to no call, and the format joins them by an id"


class Loss(StrEnum):
    """What a message holds and a format has no place for, though the sample is told."""

    THOUGHT = "a thought, which the format has no place for"
    SECOND_THOUGHT = "a second thought that differs from the first, which was taken"
    HIDDEN = "a thought that is no text (encrypted, a summary, or in a form of its own)"
    REFUSAL = "a refusal beside the content, which the format has no place for"
    FIELD = "a field that the format has no name for"


class Untellable(Exception):
    """A sample that a format can not tell; `gap` says why."""

    def __init__(self, gap: Gap) -> None:
        super().__init__(gap.value)
        self.gap = gap


@dataclass(frozen=True, slots=True)
class Spelling:
    """How a format writes messages. `thoughts`: it has a place for them, `reasoning_content`.
    `refusals`: it has one for them, `refusal`. `weights`: earlier assistant messages carry
    `weight` 0, which keeps them out of the loss. `call_ids`: each tool call must have an id.
    """

    thoughts: bool = True
    refusals: bool = False
    weights: bool = False
    call_ids: bool = False


@dataclass(frozen=True, slots=True)
class Dialogue:
    """The messages of a sample. `lost`: what they do not hold → messages that had it."""

    messages: list[dict[str, Any]]
    lost: Counter[Loss]


def dialogue(row: dict[str, Any], spelling: Spelling, end_of_turn: Collection[int]) -> Dialogue:
    """The messages of `row`, the answer last. Raises Untellable.

    `end_of_turn`: the ids that end a turn; whether the model ended its answer is read from them.
    """
    answer: dict[str, Any] = {"role": "assistant", "content": row["content"] or ""}
    if row["reasoning"]:
        answer["reasoning_content"] = row["reasoning"]
    if row["tool_calls"] is not None:
        answer["tool_calls"] = row["tool_calls"]
    if len(answer) == 2 and row["content"] is None:
        raise Untellable(Gap.NO_TEXT)
    if not ended(row, end_of_turn):
        raise Untellable(Gap.NO_END)
    if not spelling.thoughts and not answer["content"] and "tool_calls" not in answer:
        raise Untellable(Gap.THOUGHT_ONLY)
    lost: Counter[Loss] = Counter()
    told: list[dict[str, Any]] = []
    for asked in (*_asked(row), answer):
        message, losses = _told(asked, spelling)
        told.append(message)
        lost.update(losses)
    if spelling.call_ids:
        _give_ids(told)
    if spelling.weights:
        for message in told[:-1]:
            if message["role"] == "assistant":
                message["weight"] = 0
    return Dialogue(told, lost)


def ended(row: dict[str, Any], end_of_turn: Collection[int]) -> bool:
    """Whether the model ended its answer itself: its last id says so, or the server when the tail
    was cut off later or no such id is known.
    """
    if row["truncated"] or not end_of_turn:
        return row["finish_reason"] in FINISHED
    return bool(row["input_ids"]) and row["input_ids"][-1] in end_of_turn


def tools(row: dict[str, Any]) -> list[Any] | None:
    """The tools that were offered, None without. Raises Untellable."""
    return _list(row["tools"]) if row["tools"] is not None else None


def kwargs(row: dict[str, Any]) -> dict[str, Any] | None:
    """The variables that the request gave to the chat template, None without. Raises Untellable."""
    value = _loaded(row["template_kwargs"]) if row["template_kwargs"] is not None else None
    if value is not None and not isinstance(value, dict):
        raise Untellable(Gap.DAMAGED)
    return value


def _asked(row: dict[str, Any]) -> list[Any]:
    if row["messages"] is not None:
        return _list(row["messages"])
    if row["prompt_text"] is None:
        raise Untellable(Gap.NO_REQUEST)
    return [{"role": "user", "content": row["prompt_text"]}]  # as prompts are rendered


_READ = frozenset(
    {"role", "content", "refusal", "tool_calls", "function_call", "tool_call_id", "name"}
).union(REASONING_KEYS)


def _told(message: Any, spelling: Spelling) -> tuple[dict[str, Any], set[Loss]]:
    """A message in a format's spelling, and what that does not hold."""
    named, lost = _named(message), set[Loss]()
    content, among_parts = _content(named.get("content"), lost)
    told = {"role": named["role"], "content": content}
    thought = _thought(named, among_parts, lost)
    if thought and spelling.thoughts:
        told["reasoning_content"] = thought
    elif thought:
        lost.add(Loss.THOUGHT)
    refusal = named.get("refusal")
    if isinstance(refusal, str) and spelling.refusals and told["role"] == "assistant" and refusal:
        told["refusal"] = refusal
    elif _holds(refusal):
        lost.add(Loss.REFUSAL)
    calls, legacy = named.get("tool_calls"), named.get("function_call")
    if not calls and legacy and isinstance(legacy, dict):  # as calls were named before
        calls = [{"function": legacy}]
    elif _holds(legacy):
        lost.add(Loss.FIELD)
    if calls:
        told["tool_calls"] = _calls(calls, spelling, lost)
    answered = _id(named.get("tool_call_id"), lost)
    if answered is not None:
        told["tool_call_id"] = answered
    if named.get("name") is not None:
        told["name"] = named["name"]
    unread = _holding(named) - _READ
    if spelling.weights and told["role"] == "assistant" and named.get("weight") in (0, 1):
        unread -= {"weight"}  # a name of the format; `dialogue` writes its own
    if unread:
        lost.add(Loss.FIELD)
    return told, lost


def _named(message: Any) -> dict[str, Any]:
    """`message` in role/content form with the role names that every format knows."""
    if not isinstance(message, dict):
        raise Untellable(Gap.DAMAGED)
    (named,) = plain([message])
    # the role names of the from/value form are in use under `role` as well
    role = plain([{"from": named.get("role")}])[0]["role"]
    if not isinstance(role, str):
        raise Untellable(Gap.DAMAGED)
    return {**named, "role": role}


def _holds(value: Any) -> bool:
    """Whether a field says something; servers send null and empty lists for what is not there."""
    return value is not None and value not in ("", [], {})


def _holding(value: dict[str, Any]) -> set[str]:
    return {key for key in value if _holds(value[key])}


def _content(content: Any, lost: set[Loss]) -> tuple[str, str | None]:
    """The text of a message, and the thought among its parts, None without."""
    if content is None:
        return "", None  # servers hand a template "" for null
    if isinstance(content, str):
        return content, None
    if not isinstance(content, list):
        raise Untellable(Gap.DAMAGED)
    texts: list[str] = []
    thoughts: list[str] = []
    for part in content:
        read = read_text([part])
        if read.note & ~Note.CONTENT_PARTS:
            raise Untellable(Gap.NOT_TEXT)
        if read.thought is None:
            texts.append(read.text or "")
        elif read.thought:
            thoughts.append(read.thought)
        elif _holding(part) - {"type"}:
            lost.add(Loss.HIDDEN)
            continue
        if _unread(part):
            lost.add(Loss.FIELD)
    return "\n".join(texts), "".join(thoughts) or None  # how vLLM joins the parts of a message


def _unread(part: Any) -> bool:
    """Whether a part holds more than its text, as `read_text` finds that."""
    if not isinstance(part, dict):
        return False
    key = "thinking" if "thinking" in part else "refusal" if part.get("text") is None else "text"
    inner = part.get(key)
    within = isinstance(inner, list) and any(_unread(item) for item in inner)
    return within or bool(_holding(part) - {"type", key})


def _thought(named: dict[str, Any], among_parts: str | None, lost: set[Loss]) -> str | None:
    """The thought of a message, under whichever of its names, as the records are read."""
    present = [key for key in REASONING_KEYS if _holds(named.get(key))]
    if not present:
        return among_parts
    row = Row()
    read_reasoning(row, named, among_parts)
    read = {state.partition("=")[0] for state in (row.cells["reasoning_keys"] or "").split(",")}
    for key in present:
        lost.update(_beside_thought(key, named[key], read=key in read))
    if row.notes & Note.REASONING_CONFLICT:
        lost.add(Loss.SECOND_THOUGHT)
    thought: str | None = row.cells["reasoning"]
    return thought


def _beside_thought(key: str, value: Any, *, read: bool) -> Iterator[Loss]:
    """What the field of a thought holds beside the text that is taken from it."""
    if not read:
        alone = Row()
        read_reasoning(alone, {key: value})
        setting = isinstance(value, bool) or (isinstance(value, dict) and not alone.notes)
        yield Loss.FIELD if setting else Loss.HIDDEN  # `thinking: true` is no thought
    for item in value if read and isinstance(value, list) else ():
        if isinstance(item, str):
            continue
        if not isinstance(item, dict):
            yield Loss.HIDDEN
            continue
        name = "text" if "text" in item else "thinking"
        told = isinstance(item.get(name), str) and item[name]
        if _holding(item) - ({"type", name} if told else {"type"}):
            yield Loss.FIELD if told else Loss.HIDDEN


def _give_ids(messages: list[dict[str, Any]]) -> None:
    """Each call gets an id, each answer of a tool that of its call. Raises Untellable."""
    known: set[str] = set()
    taken = {call["id"] for message in messages for call in message.get("tool_calls", ())}
    taken |= {message.get("tool_call_id") for message in messages}
    free = (key for number in count() if (key := f"call_{number}") not in taken)
    for calls, answers in _rounds(messages):
        _join(calls, answers, free, known)
        known |= {call["id"] for call in calls}


def _rounds(messages: list[dict[str, Any]]) -> list[tuple[list[Any], list[dict[str, Any]]]]:
    """Calls that were made together, and the answers that came before the next ones."""
    rounds: list[tuple[list[Any], list[dict[str, Any]]]] = []
    calling = False
    for message in messages:
        if message["role"] == "tool":
            if not rounds:
                raise Untellable(Gap.NO_CALL)
            rounds[-1][1].append(message)
        if "tool_calls" in message:
            if not calling:
                rounds.append(([], []))
            rounds[-1][0].extend(message["tool_calls"])
        calling = "tool_calls" in message
    return rounds


def _join(
    calls: list[Any], answers: list[dict[str, Any]], free: Iterator[str], known: set[str]
) -> None:
    """Join the calls of a round and their answers. `known`: the ids of earlier calls."""
    waiting, own = list(calls), {call["id"] for call in calls}
    for key in [answer["tool_call_id"] for answer in answers if "tool_call_id" in answer]:
        # a call that was stored without its id has the one that its answer names
        fit = next((i for i, call in enumerate(waiting) if call["id"] == key), None)
        if fit is None and key not in own:
            fit = next((i for i, call in enumerate(waiting) if call["id"] is None), None)
        if fit is not None:
            waiting.pop(fit)["id"] = key
            own.add(key)
        elif key not in own | known:
            raise Untellable(Gap.NO_CALL)
    for call in waiting:
        call["id"] = next(free) if call["id"] is None else call["id"]
    for answer in answers:  # those without an id come in the order of the calls
        if "tool_call_id" not in answer:
            if not waiting:
                raise Untellable(Gap.NO_CALL)
            answer["tool_call_id"] = waiting.pop(0)["id"]


def _id(value: Any, lost: set[Loss]) -> str | None:
    """The id of a call, None without; "" is none."""
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    if isinstance(value, str):
        return value or None
    if _holds(value):
        lost.add(Loss.FIELD)
    return None


_CALL_TYPES = (None, "function", "function_call", "tool_use")


def _calls(value: Any, spelling: Spelling, lost: set[Loss]) -> list[dict[str, Any]]:
    """Calls as OpenAI spells them. `arguments` stays the text that the model wrote."""
    value = _list(value) if isinstance(value, str) else value
    if not isinstance(value, list):
        raise Untellable(Gap.DAMAGED)
    told = []
    for call in value:
        if isinstance(call, dict) and "function" not in call:  # name and arguments in the call
            said = {key: call[key] for key in call if key not in ("id", "type")}
            call = {"id": call.get("id"), "type": call.get("type"), "function": said}
        inner = call["function"] if isinstance(call, dict) else None
        if not isinstance(inner, dict) or not isinstance(inner.get("name"), str):
            raise Untellable(Gap.DAMAGED)
        place = "input" if inner.get("arguments") is None else "arguments"
        arguments = inner.get(place)
        if _holding(call) - {"id", "type", "function"} or _holding(inner) - {"name", place}:
            lost.add(Loss.FIELD)
        if call.get("type") not in _CALL_TYPES:
            lost.add(Loss.FIELD)
        if not isinstance(arguments, str):
            arguments = "{}" if arguments is None else orjson.dumps(arguments).decode()
        name = {"name": inner["name"], "arguments": arguments}
        key = _id(call.get("id"), lost)
        given = {"id": key} if key is not None or spelling.call_ids else {}
        told.append({**given, "type": "function", "function": name})
    return told


def _list(text: Any) -> list[Any]:
    value = _loaded(text)
    if not isinstance(value, list):
        raise Untellable(Gap.DAMAGED)
    return value


def _loaded(text: Any) -> Any:
    try:
        return orjson.loads(text)
    except (orjson.JSONDecodeError, TypeError):
        raise Untellable(Gap.DAMAGED) from None
