"""What a named server version does to an answer: the whitespace it strips, and whether it counts
the stop token.

What enters: a profile, a server name and version. What leaves: places and a yes, a no, or not
known.
It promises that an unknown server or an unreadable version is never credited with stripping.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from eagle3_data.tokens.grammar import Place

if TYPE_CHECKING:
    from eagle3_data.profiles.profile import Profile

COUNTS_STOP_TOKEN = {"vllm": True, "llama.cpp": True}
"""vLLM 0.33 sums the sampled ids, stop token included (read in its source; 300 of 300 captured rows
agree). llama.cpp:
measured on 200 rows, every answer that stopped counts one token more than its text and markers. A
profile may overrule.
"""

READ = {"vllm": "<=0.33.99", "sglang": "<=0.5.23", "llama.cpp": ""}
"""Server → the versions whose parsers were read, or measured, for what they strip. Any other one
(a router, `transformers serve`, a later version, one that does not tell its version) may strip
anywhere.
"""

_CLAUSE = re.compile(r"\s*(==|!=|>=|<=|>|<)\s*v?([0-9]+(?:\.[0-9]+)*)\s*")


def counts_stop_token(profile: Profile, server: str | None) -> bool | None:
    """Whether `usage.completion_tokens` of this server counts the stop token; None when that is
    not known.
    """
    if server is None:
        return None
    return profile.counts_stop_token.get(server, COUNTS_STOP_TOKEN.get(server))


def was_read(server: str | None, version: str | None) -> bool:
    """Whether it is known where this server version strips, also when it is nowhere."""
    return server in READ and holds(READ[server], version)


def stripped_places(
    profile: Profile, server: str | None, version: str | None, *, tools: bool
) -> frozenset[Place]:
    """The edges where `profile.strips` says this server version removes whitespace."""
    found: set[Place] = set()
    for strip in profile.strips:
        if strip.server != server or not holds(strip.versions, version):
            continue
        found |= _edges("reasoning", strip.reasoning) | _edges("content", strip.content)
        if tools:
            found |= _edges("content", strip.content_with_tools)
    return frozenset(found)


def _edges(slot: str, sides: str) -> set[Place]:
    wanted = {"none": (), "both": ("left", "right")}.get(sides, (sides,))
    return {Place(f"{slot}-{side}") for side in wanted}


def holds(specifiers: str, version: str | None) -> bool:
    """Whether `version` meets every clause (`>=0.25.1,<0.33`). Only the leading release number is
    compared.

    No clauses hold for every version; a version that begins with no number meets no clause.
    """
    if not specifiers.strip():
        return True
    release = re.match(r"v?([0-9]+(?:\.[0-9]+)*)", version or "")
    if release is None:
        return False
    have = _number(release[1])
    for clause in specifiers.split(","):
        found = _CLAUSE.fullmatch(clause)
        if found is None:
            return False
        operator, want = found[1], _number(found[2])
        order = (have > want) - (have < want)
        if not {
            "==": order == 0,
            "!=": order != 0,
            ">=": order >= 0,
            "<=": order <= 0,
            ">": order > 0,
            "<": order < 0,
        }[operator]:
            return False
    return True


def _number(text: str) -> tuple[int, ...]:
    parts = [int(p) for p in text.split(".")]
    while len(parts) > 1 and parts[-1] == 0:
        parts.pop()
    return tuple(parts)
