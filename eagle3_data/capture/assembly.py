"""Assembly: a stream of deltas becomes the body that the server would have sent in one piece.

What enters: the bytes of a server-sent event stream, in pieces of any size. What leaves: an object
of the form chat.completion. It promises that every field of every delta is kept, texts and ids put
together in order, and that a stream which stopped early, doubled a delta or changed the name of
the thought's field half-way is refused: it is an attempt, not an answer.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from eagle3_data.capture.wire import loads

Json = dict[str, Any]

_THOUGHTS = ("reasoning", "reasoning_content")
_WHOLE = ("id", "name", "type", "role")
"""Strings of a delta that come in one piece; some servers repeat them with each delta."""
_ODD = (b"NaN", b"Infinity", b"\\ud", b"\\uD")
"""What may stand in an event that orjson would not write again as it was."""


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
    odd: bool = False
    """An event held what only `json` reads: NaN, a lone surrogate."""

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
        if self.top.get("error") or self.top.get("object") == "error":
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
            value = loads(event)
        except (ValueError, RecursionError) as error:
            told = " ".join(str(error).split())[:120]
            raise BrokenStream(f"an event of the stream is not JSON ({told})") from None
        value = _object(value, "an event of the stream")
        self.odd = self.odd or any(mark in event for mark in _ODD)
        repeated = event == self.last
        self.last = event
        for key, held in value.items():
            if key != "choices" and (held is not None or key not in self.top):
                self.top[key] = held
        for choice in _list(value.get("choices") or [], "choices"):
            self._add(_object(choice, "a choice"), repeated)

    def _add(self, choice: Json, repeated: bool) -> None:
        index = choice.get("index") or 0
        if not isinstance(index, int):
            raise BrokenStream("the index of a choice is no number")
        delta = _object(choice.get("delta") or {}, "a delta")
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
                _add_fields(_inner(held, key), value)
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


def _object(value: Any, what: str) -> Json:
    if not isinstance(value, dict):
        raise BrokenStream(f"{what} is no JSON object")
    return value


def _list(value: Any, what: str) -> list[Any]:
    if not isinstance(value, list):
        raise BrokenStream(f"{what} is no list")
    return value


def _changed(key: str) -> BrokenStream:
    return BrokenStream(f"{key} changed its form half-way through the stream")


def _inner(held: Json, key: str) -> Json:
    """The object at `key`, a new one where nothing is yet."""
    before = held.get(key)
    if before is None:
        before = held[key] = {}
    if not isinstance(before, dict):
        raise _changed(key)
    return before


def _extend(held: Json, key: str, value: list[Any]) -> None:
    known = held.get(key)
    if known is None:
        held[key] = [*value]
    elif isinstance(known, list) and not isinstance(known, _Text):
        known.extend(value)
    else:
        raise _changed(key)


def _add_fields(held: Json, delta: Json) -> None:
    """Put the fields of a delta to those that came before it. Raises BrokenStream for a field whose
    form changes: what came first would be lost.
    """
    for key, value in delta.items():
        before = held.get(key)
        if value is None:
            held.setdefault(key, None)
        elif key == "content" and isinstance(value, str | list):
            held[key] = _content(before, value)
        elif key == "tool_calls":
            calls = _list(held.get(key) or [], key)
            held[key] = calls
            for call in _list(value, key):
                _add_call(calls, _object(call, "a tool call"))
        elif isinstance(value, str):
            if before is None:
                before = held[key] = _Text()
            if not isinstance(before, _Text):
                raise _changed(key)
            if not (key in _WHOLE and before and (not value or "".join(before) == value)):
                before.append(value)
        elif isinstance(value, list):
            _extend(held, key, value)
        elif isinstance(value, dict):
            _add_fields(_inner(held, key), value)
        elif before is None or isinstance(before, bool | int | float):
            held[key] = value
        else:
            raise _changed(key)


def _content(before: Any, value: str | list[Any]) -> Any:
    """Content with one more piece: a text, or a list of parts as soon as one of them is a list.
    Mistral sends thoughts as parts, and the answer as text.
    """
    if before is None:
        before = _Text()
    if isinstance(before, _Text) and isinstance(value, str):
        before.append(value)
        return before
    if isinstance(before, _Text):
        text = "".join(before)
        before = [{"type": "text", "text": text}] if text else []
    if not isinstance(before, list):
        raise _changed("content")
    parts = value if isinstance(value, list) else [{"type": "text", "text": value}]
    for part in parts:
        if part != {"type": "text", "text": ""}:
            _add_part(before, part)
    return before


def _add_part(parts: list[Any], part: Any) -> None:
    """A part goes to the one before it when both are pieces of one text or of one thought."""
    last = parts[-1] if parts else None
    if isinstance(part, dict) and isinstance(last, dict) and part.get("type") == last.get("type"):
        inner = part.get("type")
        old, new = last.get(inner), part.get(inner)
        if inner == "text" and isinstance(old, str) and isinstance(new, str):
            last[inner] = old + new
            return
        if inner == "thinking" and isinstance(old, list) and isinstance(new, list):
            for one in new:
                _add_part(old, one)
            return
    parts.append(part)


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
