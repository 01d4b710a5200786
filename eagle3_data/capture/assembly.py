"""Assembly: a stream of deltas becomes the body that the server would have sent in one piece.

What enters: the bytes of a server-sent event stream, in pieces of any size. What leaves: an object
of the form chat.completion. It promises that every field of every delta is kept, texts and ids put
together in order, and that a stream which stopped early, doubled a delta or changed the name of
the thought's field half-way is refused: it is an attempt, not an answer.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import orjson

Json = dict[str, Any]

_THOUGHTS = ("reasoning", "reasoning_content")
_WHOLE = ("id", "name", "type", "role")
"""Strings of a delta that come in one piece; some servers repeat them with each delta."""


class BrokenStream(ValueError):
    """A stream that is no answer; the message says what was seen."""


class _Text(list[str]):
    """Pieces of a text, joined at the end: adding to a string is quadratic in a long thought."""


@dataclass(slots=True)
class Assembly:
    """The state of one stream: `feed` bytes, then `body`. `marked`: the server ends its streams
    with [DONE]; transformers serve does not, there the usage that comes last stands for it.
    """

    marked: bool = True
    done: bool = False
    top: Json = field(default_factory=dict)
    choices: dict[int, Json] = field(default_factory=dict)
    messages: dict[int, Json] = field(default_factory=dict)
    rest: bytes = b""
    data: list[bytes] = field(default_factory=list)
    texts: int = 0
    """Deltas with text in them."""
    again: int = 0
    """Deltas that equal the one before to the byte."""
    last: bytes = b""

    def feed(self, piece: bytes) -> None:
        """Take the next bytes. Raises BrokenStream for an event that is no JSON object."""
        *lines, self.rest = (self.rest + piece).split(b"\n")
        for line in lines:
            line = line.rstrip(b"\r")
            if line.startswith(b"data:"):
                self.data.append(line[5:].strip())
            elif not line and self.data:
                event = b"\n".join(self.data)
                self.data = []
                self._take(event)

    def body(self) -> Json:
        """The whole body. Raises BrokenStream when the stream is not whole."""
        if self.data and not self.rest.strip():  # the blank line after the last event is missing
            self._take(b"\n".join(self.data))
        if "error" in self.top or self.top.get("object") == "error":
            return self.top
        if self.marked and not self.done:
            raise BrokenStream("the stream ended without [DONE]")
        if not self.marked and not self.top.get("usage"):
            raise BrokenStream("the stream ended without its usage")
        if not self.choices:
            raise BrokenStream("the stream held no choice")
        body = {**self.top, "object": "chat.completion"}
        body["choices"] = [self._choice(index) for index in sorted(self.choices)]
        self._refuse_doubled(body)
        return body

    def _take(self, event: bytes) -> None:
        if self.done:
            return
        if event == b"[DONE]":
            self.done = True
            return
        try:
            value = orjson.loads(event)
        except orjson.JSONDecodeError as error:
            raise BrokenStream(f"an event of the stream is not JSON ({error.msg})") from None
        if not isinstance(value, dict):
            raise BrokenStream("an event of the stream is no JSON object")
        repeated = event == self.last
        self.last = event
        for key, held in value.items():
            if key != "choices" and (held is not None or key not in self.top):
                self.top[key] = held
        for choice in value.get("choices") or ():
            self._add(choice, repeated)

    def _add(self, choice: Json, repeated: bool) -> None:
        index = choice.get("index") or 0
        delta = choice.get("delta") or {}
        held = self.choices.setdefault(index, {"index": index})
        _add_fields(self.messages.setdefault(index, {}), delta)
        if delta.get("content") or any(delta.get(key) for key in _THOUGHTS):
            self.texts += 1
            self.again += repeated
        for key, value in choice.items():
            if key in ("index", "delta"):
                continue
            if isinstance(value, list) and not key.startswith("prompt"):
                _extend(held, key, value)
            elif key == "logprobs" and isinstance(value, dict):
                _add_fields(held.setdefault(key, None) or _fresh(held, key), value)
            elif value is not None or key not in held:
                held[key] = value

    def _choice(self, index: int) -> Json:
        held, message = self.choices[index], _joined(self.messages[index])
        if not held.get("finish_reason"):
            raise BrokenStream("the stream ended without a finish_reason")
        first, second = (message.get(key) for key in _THOUGHTS)
        if first and second and first != second:  # vLLM 0.11 to 0.15 sends both, equal
            raise BrokenStream(
                "the thought's field changed its name half-way: reasoning and reasoning_content"
                " hold different text"
            )
        message.setdefault("role", "assistant")
        # a stream opens with an empty text whatever follows; unstreamed, vLLM says null where only
        # a thought or calls came, transformers serve an empty text
        if not message.get("content"):
            beside = first or second or message.get("tool_calls") or "content" not in message
            message["content"] = None if beside and self.marked else ""
        for call in message.get("tool_calls") or ():
            call.pop("index", None)
        made: Json = {"index": index, "message": message}
        return made | {k: _joined(v) for k, v in held.items() if k != "index"}

    def _refuse_doubled(self, body: Json) -> None:
        """Raise when more arrived than was sampled: `usage` counts the sampled tokens."""
        usage = body.get("usage")
        counted = usage.get("completion_tokens") if isinstance(usage, dict) else None
        if not isinstance(counted, int) or len(body["choices"]) != 1:
            return
        ids = body["choices"][0].get("token_ids")
        if isinstance(ids, list) and len(ids) > counted:
            raise BrokenStream(f"{len(ids)} ids arrived for {counted} tokens: a delta came twice")
        # a text delta holds one token at least. Gateways that cut text smaller do not repeat it
        if self.texts > counted and self.again >= self.texts - counted:
            raise BrokenStream(
                f"{self.texts} deltas arrived for {counted} tokens, {self.again} of them twice"
            )


def _fresh(held: Json, key: str) -> Json:
    made: Json = {}
    held[key] = made
    return made


def _extend(held: Json, key: str, value: list[Any]) -> None:
    known = held.get(key)
    if known:
        known.extend(value)
    else:
        held[key] = value


def _add_fields(held: Json, delta: Json) -> None:
    """Put the fields of a delta to those that came before it."""
    for key, value in delta.items():
        if value is None:
            held.setdefault(key, None)
        elif isinstance(value, str):
            before = held.get(key)
            if key in _WHOLE and before is not None and (not value or "".join(before) == value):
                continue
            if not isinstance(before, _Text):
                before = held[key] = _Text()
            before.append(value)
        elif key == "tool_calls" and isinstance(value, list):
            calls = held.get(key) or []
            held[key] = calls
            for call in value:
                _add_call(calls, call)
        elif isinstance(value, list):
            _extend(held, key, value)
        elif isinstance(value, dict):
            _add_fields(held.get(key) or _fresh(held, key), value)
        else:
            held[key] = value


def _add_call(calls: list[Json], call: Json) -> None:
    """A piece of a tool call goes to the call with its index."""
    at = call.get("index")
    for known in calls:
        if at is not None and known.get("index") == at:
            _add_fields(known, call)
            return
    made: Json = {}
    calls.append(made)
    _add_fields(made, call)


def _joined(value: Any) -> Any:
    if isinstance(value, _Text):
        return "".join(value)
    if isinstance(value, dict):
        return {k: _joined(v) for k, v in value.items()}
    if isinstance(value, list):
        return [_joined(v) for v in value]
    return value
