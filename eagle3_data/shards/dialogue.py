"""A sample as a dialogue: what was asked, and the answer as the last assistant message.

What enters: the text columns of one row of schema v1. What leaves: messages in the spelling of one
format, or the reason why that format would tell something else than the sample. It promises that a
cut answer is never dressed up as a finished one, and that texts are handed on as they are.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import orjson

from eagle3_data.records.ends import FINISHED

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


class Untellable(Exception):
    """A sample that a format can not tell; `gap` says why."""

    def __init__(self, gap: Gap) -> None:
        super().__init__(gap.value)
        self.gap = gap


@dataclass(frozen=True, slots=True)
class Spelling:
    """How a format writes messages. `thoughts`: it has a place for them, `reasoning_content`.
    `weights`: earlier assistant messages carry `weight` 0, which keeps them out of the loss.
    `call_ids`: each tool call must have an id.
    """

    thoughts: bool = True
    weights: bool = False
    call_ids: bool = False


def dialogue(
    row: dict[str, Any], spelling: Spelling, end_of_turn: Collection[int]
) -> list[dict[str, Any]]:
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
    told = [_told(message, spelling) for message in (*_asked(row), answer)]
    if spelling.weights:
        for message in told[:-1]:
            if message["role"] == "assistant":
                message["weight"] = 0
    return told


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


def _told(message: Any, spelling: Spelling) -> dict[str, Any]:
    if not isinstance(message, dict) or not isinstance(message.get("role"), str):
        raise Untellable(Gap.DAMAGED)
    told = {"role": message["role"], "content": _text(message.get("content"))}
    thought = message.get("reasoning_content")
    thought = message.get("reasoning") if thought is None else thought
    if spelling.thoughts and thought:
        told["reasoning_content"] = thought
    if message.get("tool_calls"):
        told["tool_calls"] = _calls(message["tool_calls"], spelling)
    for key in ("tool_call_id", "name"):
        if message.get(key) is not None:
            told[key] = message[key]
    return told


def _text(content: Any) -> str:
    if content is None:
        return ""  # servers hand a template "" for null
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise Untellable(Gap.DAMAGED)
    texts: list[str] = []
    for part in content:
        text = part.get("text") if isinstance(part, dict) else part
        if not isinstance(text, str):
            raise Untellable(Gap.NOT_TEXT)
        texts.append(text)
    return "\n".join(texts)  # how vLLM joins the parts of a message


def _calls(value: Any, spelling: Spelling) -> list[dict[str, Any]]:
    """Calls as OpenAI spells them. `arguments` stays the text that the model wrote."""
    told = []
    for number, call in enumerate(_list(value) if isinstance(value, str) else value):
        inner = call.get("function", call) if isinstance(call, dict) else None
        if not isinstance(inner, dict) or not isinstance(inner.get("name"), str):
            raise Untellable(Gap.DAMAGED)
        arguments = inner.get("arguments")
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
