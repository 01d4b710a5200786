"""How each server is asked for the ids of the tokens it fed and sampled.

What enters: the kind of a server. What leaves: fields for the body of a chat request, and the place
where the ids then stand. It promises nothing of the server at hand: `probe` proves what arrives.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from eagle3_data.capture.server import Kind


@dataclass(frozen=True, slots=True)
class Way:
    """`body`: the fields that ask. `kind`: who understands them. `streams`: whether they may stand
    in a streamed request. `since`: the oldest version that was seen to have them.
    """

    body: Mapping[str, Any] = field(hash=False)
    kind: Kind
    streams: bool
    since: str


WAYS = (
    Way({"return_token_ids": True}, Kind.VLLM, True, "0.11"),
    # 0.5.23 refuses both of these in a streamed request, and takes the next two
    Way({"return_token_ids": True, "return_prompt_token_ids": True}, Kind.SGLANG, False, "0.5.19"),
    Way(
        {"return_input_ids_in_sglext": True, "return_output_ids_in_sglext": True},
        Kind.SGLANG,
        True,
        "0.5.23",
    ),
    # in `__verbose`, whose other fields are left out; a stream holds none of them
    Way(
        {"verbose": True, "return_tokens": True, "response_fields": ["tokens", "prompt"]},
        Kind.LLAMACPP,
        False,
        "b11434",
    ),
)
"""transformers serve has no way: it gives ids at no place, and a field that it does not know costs
the request (HTTP 422)."""


def ask_for_ids(kind: Kind, *, stream: bool = False) -> dict[str, Any]:
    """Fields of a chat request that make ids arrive, {} where the kind has none."""
    for way in WAYS:
        if way.kind is kind and (way.streams or not stream):
            return dict(way.body)
    return {}


def ways(kind: Kind) -> tuple[Way, ...]:
    """What is worth a try, best first: all of them at a server of unknown kind."""
    return tuple(way for way in WAYS if kind in (way.kind, Kind.UNKNOWN))
