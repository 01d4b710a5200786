"""What a server tells of itself beside its answers: parser, speculation.

What enters: a client and a `Server`. What leaves: `Told`. It promises that an endpoint which is not
there costs nothing but the fact.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from eagle3_data.capture.server import Kind, Server, ServerFault, read_bytes, read_json

if TYPE_CHECKING:
    from openai import AsyncOpenAI

_COUNTER = re.compile(
    r"^(vllm:spec_decode_num_drafts_total|vllm:spec_decode_num_accepted_tokens_total"
    r"|sglang:spec_accept_length|sglang:spec_accept_rate)(?:\{[^}]*\})? +([0-9.eE+-]+)",
    re.MULTILINE,
)


@dataclass(frozen=True, slots=True)
class Told:
    """`parser`: the reasoning parser that the server says it runs, "" for none, None where it says
    nothing. `metrics`: whether /metrics was to be had. `counters`: those of speculation.
    `algorithm`: of speculation, "" for none, None where nothing is said.
    """

    parser: str | None = None
    metrics: bool = False
    counters: tuple[tuple[str, float], ...] = ()
    algorithm: str | None = None


async def told(client: AsyncOpenAI, server: Server) -> Told:
    """Ask the endpoints of the server's kind. What /props of llama.cpp names is the format of an
    empty request (`none` beside a working parser, b11434), so that it is not read.
    """
    status, body = await _bytes(client, f"{server.root}/metrics")
    metrics = status == 200
    counters = tuple(
        (name, float(value))
        for name, value in _COUNTER.findall(body.decode("utf-8", "replace") if metrics else "")
    )
    parser = algorithm = None
    if server.kind is Kind.SGLANG:
        facts = await _object(client, f"{server.root}/server_info")
        facts = facts or await _object(client, f"{server.root}/get_server_info")
        parser = _named(facts, "reasoning_parser")
        algorithm = _named(facts, "speculative_algorithm")
    elif server.kind is Kind.VLLM:  # there in development mode only
        facts = await _object(client, f"{server.root}/server_info?config_format=json")
        inner = _inner(facts, "vllm_config", "structured_outputs_config")
        parser = _named(inner, "reasoning_parser")
    return Told(parser, metrics, counters, algorithm)


def _named(facts: dict[str, Any], key: str) -> str | None:
    """Text; "" when the key is there and says none."""
    if key not in facts:
        return None
    value = facts[key]
    return value if isinstance(value, str) else ""


def _inner(facts: dict[str, Any], *keys: str) -> dict[str, Any]:
    for key in keys:
        found = facts.get(key)
        facts = found if isinstance(found, dict) else {}
    return facts


async def _bytes(client: AsyncOpenAI, url: str) -> tuple[int, bytes]:
    try:
        return await read_bytes(client, url)
    except ServerFault:
        return 0, b""


async def _object(client: AsyncOpenAI, url: str) -> dict[str, Any]:
    try:
        status, body = await read_json(client, url)
    except ServerFault:
        return {}
    return body if status == 200 and isinstance(body, dict) else {}
