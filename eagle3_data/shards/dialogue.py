"""A sample as a dialogue: what was asked, and the answer as the last assistant message.

What enters: the text columns of one row of schema v1. What leaves: messages in the spelling of one
format with the count of what it has no place for, or the reason why that format would tell
something else than the sample. It promises that a cut answer is never dressed up as a finished one,
that texts are handed on as they are, and that nothing of a message goes uncounted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass
from enum import StrEnum
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
        told["tool_calls"] = _calls(calls, spelling)
    for key in ("tool_call_id", "name"):
        if named.get(key) is not None:
            told[key] = named[key]
    if any(_holds(named[key]) for key in named.keys() - _READ):
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
        elif any(_holds(value) for key, value in part.items() if key != "type"):
            lost.add(Loss.HIDDEN)
    return "\n".join(texts), "".join(thoughts) or None  # how vLLM joins the parts of a message


def _thought(named: dict[str, Any], among_parts: str | None, lost: set[Loss]) -> str | None:
    """The thought of a message, under whichever of its names, as the records are read."""
    present = [key for key in REASONING_KEYS if _holds(named.get(key))]
    if not present:
        return among_parts
    row = Row()
    read_reasoning(row, named, among_parts)
    read = {state.partition("=")[0] for state in (row.cells["reasoning_keys"] or "").split(",")}
    if row.notes & Note.REASONING_REDACTED or not read.issuperset(present):
        lost.add(Loss.HIDDEN)
    if row.notes & Note.REASONING_CONFLICT:
        lost.add(Loss.SECOND_THOUGHT)
    thought: str | None = row.cells["reasoning"]
    return thought


def _give_ids(messages: list[dict[str, Any]]) -> None:
    """Answers of tools without an id get that of the call they answer: they come in its order."""
    waiting: list[Any] = []
    for message in messages:
        if "tool_calls" in message:
            waiting = [call["id"] for call in message["tool_calls"]]
        elif message["role"] == "tool" and waiting:
            answered = message.setdefault("tool_call_id", waiting[0])
            waiting = [key for key in waiting if key != answered]


def _calls(value: Any, spelling: Spelling) -> list[dict[str, Any]]:
    """Calls as OpenAI spells them. `arguments` stays the text that the model wrote."""
    value = _list(value) if isinstance(value, str) else value
    if not isinstance(value, list):
        raise Untellable(Gap.DAMAGED)
    told = []
    for number, call in enumerate(value):
        inner = call.get("function", call) if isinstance(call, dict) else None
        if not isinstance(inner, dict) or not isinstance(inner.get("name"), str):
            raise Untellable(Gap.DAMAGED)
        arguments = inner.get("arguments", inner.get("input"))
        if not isinstance(arguments, str):
            arguments = "{}" if arguments is None else orjson.dumps(arguments).decode()
        name = {"name": inner["name"], "arguments": arguments}
        key = call.get("id") or (f"call_{number}" if spelling.call_ids else None)
        told.append({**({"id": key} if key else {}), "type": "function", "function": name})
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
