"""A profile's completion templates, read once into parts that a completion is written from.

What enters: `Completion.thinking_on`, `Completion.thinking_off`, `ToolGrammar` and the marker
table.
What leaves: a `Grammar`, whose forms are the ways a turn can be written (closed thought, open
thought, …).
It promises that whitespace which touches a slot is only written when a caller asks for it: a server
with a raw-slice parser already returns that whitespace inside the text (measured: vLLM
`deepseek_r1` returned "\\n" + answer).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from eagle3_data.tokens.markers import Markers, Stream

if TYPE_CHECKING:
    from eagle3_data.profiles.profile import Profile, ToolGrammar


class Slot(StrEnum):
    """What a record fills in."""

    REASONING = "reasoning"
    CONTENT = "content"
    TOOLS = "tools"


class Place(StrEnum):
    """An edge of a slot where the family's template writes whitespace and a server may strip it."""

    REASONING_LEFT = "reasoning-left"
    REASONING_RIGHT = "reasoning-right"
    CONTENT_LEFT = "content-left"
    CONTENT_RIGHT = "content-right"


@dataclass(frozen=True, slots=True)
class Space:
    """Whitespace of the template at the edge of a slot."""

    place: Place
    text: str


Part = int | str | Slot | Space
"""A control id, literal text, a slot, or whitespace at an edge. (A Slot is a str: test for it
first.)
"""
Parts = tuple[Part, ...]
NOWHERE: Mapping[Place, str] = {}


def read(template: str, markers: Markers) -> Parts:
    """Read a completion template into parts, up to the end of turn (how the turn stopped decides
    that one).
    """
    names = [f"{{{slot}}}" for slot in Slot]
    pieces = [
        p
        for p in re.split("(" + "|".join(map(re.escape, [*names, *markers.ids])) + ")", template)
        if p
    ]
    parts: list[Part] = [Slot(p[1:-1]) if p in names else markers.ids.get(p, p) for p in pieces]
    last = max((i for i, part in enumerate(parts) if isinstance(part, Slot)), default=0)
    end = next((i for i in range(last, len(parts)) if parts[i] in markers.stops), len(parts))
    parts = parts[:end]
    return tuple(_edge(parts, i) for i in range(end))


def _edge(parts: list[Part], i: int) -> Part:
    part = parts[i]
    if isinstance(part, Slot) or not isinstance(part, str) or part.strip():
        return part
    before = parts[i - 1] if i else None
    after = parts[i + 1] if i + 1 < len(parts) else None
    for neighbour, side in ((before, "right"), (after, "left")):
        if neighbour is Slot.REASONING or neighbour is Slot.CONTENT:
            return Space(Place(f"{neighbour}-{side}"), part)
    return part  # between two markers: no text can hold it, so it is always written


@dataclass(frozen=True, slots=True)
class Forms:
    """The ways one template can be written. `tail`: what follows the last slot when the turn
    ended.
    """

    full: Parts  # every slot
    answer: Parts  # up to the content: no tools
    thought: Parts  # up to the reasoning: the thought was not closed
    closed: Parts  # up to just before the content: closed, and nothing said
    bare: Parts  # from the content on: no thought at all
    bare_answer: Parts
    implicit: Parts  # the tool section ends the thought, no closing marker
    tail: Parts
    lead: Parts  # what the model samples before the first slot
    spaces: Mapping[Place, str]
    gap: bool  # the whitespace at the content's right edge is written only before tools


def forms(parts: Parts) -> Forms:
    """Cut a template into its forms. A template without {tools} takes them after the content."""
    if Slot.CONTENT not in parts:
        raise ValueError("a completion template needs {content}")
    if Slot.TOOLS not in parts:
        after = parts.index(Slot.CONTENT) + 1
        parts = (*parts[:after], Slot.TOOLS, *parts[after:])
    content, tools = parts.index(Slot.CONTENT), parts.index(Slot.TOOLS)
    thought = parts.index(Slot.REASONING) + 1 if Slot.REASONING in parts else 0
    before = content
    while before and isinstance(parts[before - 1], Space):
        before -= 1
    return Forms(
        full=parts[: tools + 1],
        answer=parts[: content + 1],
        thought=parts[:thought],
        closed=parts[:before],
        bare=parts[content : tools + 1],
        bare_answer=parts[content : content + 1],
        implicit=(*parts[:thought], Slot.TOOLS),
        tail=parts[tools + 1 :],
        lead=tuple(
            p for p in parts[: thought - 1 if thought else content] if not isinstance(p, Space)
        ),
        spaces={p.place: p.text for p in parts if isinstance(p, Space)},
        gap=any(isinstance(p, Space) for p in parts[content + 1 : tools]),
    )


@dataclass(frozen=True, slots=True)
class Grammar:
    """`on` / `off`: the forms with thinking on and off (the same where the family does not
    think).
    """

    markers: Markers
    on: Forms
    off: Forms
    may_open: int | None
    """The opening marker, where it is not known whether the prompt or the model writes it."""
    boundary: Stream
    """What ends the thought: the parts between the reasoning and the content, edge whitespace
    left out.
    """
    tools: ToolGrammar | None
    tool_starts: frozenset[int]


def grammar(profile: Profile, markers: Markers) -> Grammar:
    """Read the completion templates of a profile."""
    off = read(profile.completion.thinking_off, markers)
    on = read(profile.completion.thinking_on, markers) if profile.completion.thinking_on else off
    boundary: Parts = ()
    if Slot.REASONING in on:
        boundary = on[on.index(Slot.REASONING) + 1 : on.index(Slot.CONTENT)]
    may_open = markers.open if profile.open_in_prompt is None and markers.open not in on else None
    starts: set[int] = set()
    if profile.tools is not None:
        for text in (profile.tools.section_begin, profile.tools.call):
            head = next((p for p in markers.split(text) if isinstance(p, int)), None)
            if head is not None:
                starts.add(head)
    return Grammar(
        markers,
        forms(on),
        forms(off),
        may_open,
        write(boundary, {}),
        profile.tools,
        frozenset(starts),
    )


def write(
    parts: Iterable[Part],
    fields: Mapping[Slot, Stream],
    end: int | None = None,
    fill: Mapping[Place, str] = NOWHERE,
) -> Stream:
    """Put `fields` into `parts`, then the end of turn. `fill`: the whitespace to write at an
    edge.
    """
    out: list[int | str] = []
    for part in parts:
        if isinstance(part, Slot):
            pieces: Stream = fields[part]
            if fill and part is not Slot.TOOLS:
                pieces = _padded(pieces, part, fill)
        elif isinstance(part, Space):
            continue
        else:
            pieces = (part,)
        for piece in pieces:
            if out and isinstance(piece, str) and isinstance(out[-1], str):
                out[-1] += piece
            elif piece != "":
                out.append(piece)
    if end is not None:
        out.append(end)
    return tuple(out)


def _padded(pieces: Stream, slot: Slot, fill: Mapping[Place, str]) -> Stream:
    left, right = fill.get(Place(f"{slot}-left"), ""), fill.get(Place(f"{slot}-right"), "")
    return (left, *pieces, right) if left or right else pieces


def tool_stream(
    calls: Iterable[Mapping[str, str]], tools: ToolGrammar, markers: Markers, *, ended: bool
) -> Stream:
    """The tool section. A name or an argument that spells a marker stays text. `ended`: the
    section was closed.
    """
    out: list[int | str] = list(markers.split(tools.section_begin))
    for i, call in enumerate(calls):
        if i:
            out.extend(markers.split(tools.separator))
        for piece in re.split(r"(\{(?:id|name|arguments)\})", tools.call):
            slot = piece[1:-1]
            out.extend((call.get(slot) or "",) if piece == f"{{{slot}}}" else markers.split(piece))
    if ended:
        out.extend(markers.split(tools.section_end))
    return write(out, {})
