"""What the double says: a deterministic function of the request, as one body or as stream events.

A chat request (messages, seed) enters, bytes leave: the JSON of a body as vLLM writes it, or the
events of its stream. Both tell the same: the same thought, text, ids and usage. The words hold what
breaks careless clients (line separators of Unicode, quotes, `[DONE]`). Answers come from a pool of
texts or from a real capture, whose prompts are then known by their messages.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import orjson

POOL = 64  # different texts; the key of the request, written into each, makes them all distinct
KEY, ID, MODEL, FIELD = "@key@", "@id@", "@model@", "@field@"
END_OF_THOUGHT, STOP = 2, 3  # ids; words have ids from 10 on
WORDS = (
    *("so", "the", "sum", "is", "seven", "then", "we", "add", "four", "more", "which", "leaves"),
    *("naïve", "漢字", "🙂", "one\u2028line", "next\u0085line", '"quoted"', "back\\slash", "a\nb"),
    *("data: [DONE]", "\t", "\u00a0", "e\u0301", "{}", "null", "%s"),
)

Piece = tuple[str, str, tuple[int, ...]]
"""(field of the message, text, sampled ids)."""


def key(request: dict[str, Any]) -> str:
    """Names a prompt and its seed: other settings, as a larger `max_tokens`, ask the same again."""
    asked = [request.get("messages"), request.get("tools"), request.get("seed")]
    return hashlib.sha256(orjson.dumps(asked)).hexdigest()[:12]


def captured(path: Path) -> dict[str, dict[str, Any]]:
    """The bodies of a real capture by the key of their request without its seed."""
    rows = [orjson.loads(line) for line in path.read_bytes().splitlines()]
    return {key({**row["request"], "seed": None}): row["response"] for row in rows}


@cache
def pieces(number: int, words: int) -> tuple[Piece, ...]:
    rng = random.Random(number)
    thought = [(FIELD, f"{rng.choice(WORDS)} ") for _ in range(rng.randint(words // 2, words))]
    text = [("content", f"{rng.choice(WORDS)} ") for _ in range(rng.randint(words // 4, words))]
    said = [(field, word, (rng.randrange(10, 50_000),)) for field, word in thought]
    said.append((FIELD, "", (END_OF_THOUGHT,)))
    said.append(("content", f"{KEY} ", (rng.randrange(10, 50_000),)))
    said.extend((field, word, (rng.randrange(10, 50_000),)) for field, word in text)
    said.append(("content", "", (STOP,)))
    return tuple(said)


def around(prompt: tuple[int, ...], completion: int) -> dict[str, Any]:
    """All of a body but its choices."""
    return {
        "id": ID,
        "object": "chat.completion",
        "created": 1795961134,
        "model": MODEL,
        "system_fingerprint": "double",
        "usage": {
            "prompt_tokens": len(prompt),
            "completion_tokens": completion,
            "total_tokens": len(prompt) + completion,
        },
        "prompt_token_ids": list(prompt),
    }


@cache
def made(number: int, words: int, most: int | None) -> tuple[dict[str, Any], tuple[Piece, ...]]:
    """A body of the pool, cut after `most` tokens, and what it is made of."""
    whole = pieces(number, words)
    said = whole if most is None else whole[:most]
    message: dict[str, Any] = {"role": "assistant", "content": None}
    for field, text, _ in said:
        if text:
            message[field] = (message.get(field) or "") + text
    ids = [token for _, _, tokens in said for token in tokens]
    finish = "stop" if len(said) == len(whole) else "length"
    choice = {"index": 0, "message": message, "finish_reason": finish, "token_ids": ids}
    rng = random.Random(-number)
    prompt = tuple(rng.randrange(10, 50_000) for _ in range(20))
    return around(prompt, len(ids)) | {"choices": [choice]}, said


def cut_up(body: dict[str, Any]) -> tuple[Piece, ...]:
    """A captured body in pieces: its ids dealt out over the words of its text."""
    (choice,) = body["choices"]
    message = choice["message"]
    texts = [
        (name, word)
        for field, name in (("reasoning", FIELD), ("content", "content"))
        for word in (message.get(field) or "").split(" ")
        if message.get(field)
    ]
    last = {name: index for index, (name, _) in enumerate(texts)}
    ids = list(choice["token_ids"])
    each = max(len(ids) // max(len(texts), 1), 1)
    said = []
    for index, (name, word) in enumerate(texts):
        dealt = ids[:each] if index < len(texts) - 1 else ids
        ids = ids[len(dealt) :]
        said.append((name, word + ("" if index == last[name] else " "), tuple(dealt)))
    return tuple(said)


def renamed(body: dict[str, Any]) -> dict[str, Any]:
    """A captured body with the places that a template fills."""
    (choice,) = body["choices"]
    message = dict(choice["message"])
    if "reasoning" in message:
        message[FIELD] = message.pop("reasoning")
    return body | {"id": ID, "model": MODEL, "choices": [choice | {"message": message}]}


def without_ids(body: dict[str, Any]) -> dict[str, Any]:
    choices = [
        {name: value for name, value in choice.items() if name != "token_ids"}
        for choice in body["choices"]
    ]
    kept = {name: value for name, value in body.items() if name != "prompt_token_ids"}
    return kept | {"choices": choices}


def events(body: dict[str, Any], said: tuple[Piece, ...], usage: bool) -> Iterator[dict[str, Any]]:
    """The stream of a body: three pieces a delta, as a server that speculates sends them."""
    with_ids = "prompt_token_ids" in body
    (choice,) = body["choices"]
    apart = ("choices", "usage", "prompt_token_ids")
    head = {name: value for name, value in body.items() if name not in apart}
    head["object"] = "chat.completion.chunk"

    def event(delta: dict[str, Any], finish: str | None, ids: list[int] | None) -> dict[str, Any]:
        part = {"index": 0, "delta": delta, "finish_reason": finish}
        return head | {"choices": [part | ({"token_ids": ids} if ids is not None else {})]}

    first = event({"role": "assistant", "content": ""}, None, None)
    yield first | ({"prompt_token_ids": body["prompt_token_ids"]} if with_ids else {})
    for start in range(0, len(said), 3):
        group = said[start : start + 3]
        delta: dict[str, Any] = {}
        for field, text, _ in group:
            if text:
                delta[field] = delta.get(field, "") + text
        ids = [token for _, _, tokens in group for token in tokens]
        finish = choice["finish_reason"] if start + 3 >= len(said) else None
        yield event(delta, finish, ids if with_ids else None)
    if usage:
        yield head | {"choices": [], "usage": body["usage"]}


class Answers:
    """Bytes of answers; what depends only on the text and the shape is made once."""

    def __init__(self, words: int, capture: Path | None) -> None:
        self.words = words
        self.capture = captured(capture) if capture else {}
        self.known: dict[tuple[object, ...], tuple[bytes, ...]] = {}

    def template(self, request: dict[str, Any], name: str) -> tuple[bytes, ...]:
        body = self.capture.get(key({**request, "seed": None})) if self.capture else None
        number = int(name, 16) % POOL
        most = request.get("max_completion_tokens") or request.get("max_tokens")
        ids, stream = bool(request.get("return_token_ids")), bool(request.get("stream"))
        usage = bool((request.get("stream_options") or {}).get("include_usage"))
        shape = (body["id"] if body else (number, most), ids, stream, usage)
        if shape not in self.known:
            if body:
                whole, said = renamed(body), cut_up(body)
            else:
                whole, said = made(number, self.words, most)
            if not ids:
                whole = without_ids(whole)
            parts = events(whole, said, usage) if stream else (whole,)
            self.known[shape] = (orjson.dumps(whole), *(orjson.dumps(part) for part in parts))
        return self.known[shape]

    def said(
        self, request: dict[str, Any], name: str, attempt: int, model: str, field: str
    ) -> tuple[bytes, list[bytes]]:
        """The body, and its parts as they go over the wire: itself, or the events of a stream."""
        places = ((KEY, name), (ID, f"chatcmpl-{name}-{attempt}"), (MODEL, model), (FIELD, field))

        def filled(part: bytes) -> bytes:
            for place, value in places:
                part = part.replace(place.encode(), value.encode())
            return part

        body, *parts = map(filled, self.template(request, name))
        return body, parts
