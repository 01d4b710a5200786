"""Requests: the body that asks a prompt, and the identity that its row is known by.

What enters: a prompt, `Settings`, the number of a sample. What leaves: a JSON object for
/chat/completions, and 32 hex digits. It promises that the identity depends on what is asked alone,
never on the server, the road (streamed or not) or the ids that a server can add.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import orjson

from eagle3_data.capture.prompts import Prompt

Json = dict[str, Any]

_OURS = {
    "messages": "the prompts are the messages",
    "model": "use --model",
    "n": "use --samples, each sample is a row of its own",
    "stream": "use --stream",
    "stream_options": "use --stream",
}
_SECRET = ("authorization", "api_key", "api-key", "apikey", "extra_headers", "headers", "password")


class RequestFault(ValueError):
    """Settings that no request can be made of; the message names the next step."""


@dataclass(frozen=True, slots=True)
class Settings:
    """What is asked beside the prompt, the same for all rows.

    `options`: sampling settings by their names in the body. `thinking`: the body's keys that
    switch thinking. `extra`: the user's own keys, which win over both.
    """

    model: str
    options: Json = field(default_factory=dict)
    thinking: Json = field(default_factory=dict)
    extra: Json = field(default_factory=dict)

    def common(self) -> Json:
        """The keys of every body."""
        return merged(merged({"model": self.model, **self.options}, self.thinking), self.extra)


def body(prompt: Prompt, common: Json, sample: int) -> Json:
    """The request of one sample. With a seed, sample k is drawn with seed + k: the same seed twice
    would be the same answer twice.
    """
    made: Json = {"model": common["model"], "messages": prompt.messages}
    if prompt.tools:
        made["tools"] = prompt.tools
    made.update(common)
    if sample and isinstance(made.get("seed"), int):
        made["seed"] += sample
    return made


def identity(asked: Json, sample: int) -> bytes:
    """16 bytes: the digest of a body as `body` makes it, and of the sample's number."""
    try:
        text = orjson.dumps([asked, sample], option=orjson.OPT_SORT_KEYS)
    except TypeError:  # integers beyond 64 bits, lone surrogates
        text = json.dumps([asked, sample], sort_keys=True, separators=(",", ":")).encode()
    return hashlib.sha256(text).digest()[:16]


def merged(first: Json, second: Json) -> Json:
    """`first` with the keys of `second`; objects under the same key are put together."""
    made = dict(first)
    for key, value in second.items():
        held = made.get(key)
        both = isinstance(held, dict) and isinstance(value, dict)
        made[key] = {**held, **value} if both else value  # type: ignore[dict-item]
    return made


def parse_extra(text: str) -> Json:
    """The object of --extra-body. Raises RequestFault for what is no body of ours; a value is
    never repeated in the message, it may be a secret.
    """
    try:
        value = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise RequestFault(
            f"--extra-body is not JSON ({error.msg}, column {error.colno}): pass one object, for"
            """ example '{"chat_template_kwargs": {"thinking": true}}'"""
        ) from None
    if not isinstance(value, dict):
        raise RequestFault("--extra-body is no JSON object: pass {...}")
    for key, why in _OURS.items():
        if key in value:
            raise RequestFault(f"--extra-body must not set {key!r}: {why}")
    for key in (*value, *_texts(value)):
        if any(word in key.lower() for word in _SECRET):
            raise RequestFault(
                f"--extra-body must not hold {key!r}: it is stored with every row."
                " Keys are read from the environment, see --api-key-env"
            )
    return value


def _texts(value: Any) -> Iterator[str]:
    """Keys of texts in all objects of a JSON value: a schema may describe a field `password`."""
    for key, one in value.items() if isinstance(value, dict) else enumerate(value):
        if isinstance(one, dict | list):
            yield from _texts(one)
        elif isinstance(one, str) and isinstance(key, str):
            yield key
