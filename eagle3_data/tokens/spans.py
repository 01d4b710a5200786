"""Where the thought, the answer and the tool calls stand in sampled ids: the inverse of writing a
completion.

What enters: completion ids and the positions of control ids in them. What leaves: a `Cut`, and
spans that tile the ids.
It promises to read ids only, never text, so that it works the same on captured and on re-assembled
completions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from eagle3_data.tokens.grammar import Grammar, write
from eagle3_data.tokens.samples import SpanKind

if TYPE_CHECKING:
    from eagle3_data.tokens.tokenizer import Tokenizer

Ids = NDArray[np.int32]
Range = tuple[int, int]
Span = tuple[int, int, int]
"""Kind code (order of SpanKind), start, end."""

KIND = {kind: code for code, kind in enumerate(SpanKind)}
REASONING, CONTENT, TOOLS, MARKER = (
    KIND[kind] for kind in (SpanKind.REASONING, SpanKind.CONTENT, SpanKind.TOOLS, SpanKind.MARKER)
)


@dataclass(frozen=True, slots=True)
class Cut:
    """Half-open token ranges. None: that part was not begun. `ended`: the last id is an end of
    turn.
    """

    reasoning: Range | None
    content: Range | None
    tools: Range | None
    ended: bool


class Cutter:
    """Cuts completions of one grammar. Marker positions come from outside, found for a whole
    batch at once.
    """

    def __init__(self, grammar: Grammar, tokenizer: Tokenizer) -> None:
        self._grammar = grammar
        self._open = grammar.markers.open
        self._stops = grammar.markers.stops
        self._boundary = _ids(grammar.boundary, tokenizer)
        self._ways = {
            thinking: (
                _ids(forms.lead, tokenizer),
                _ids(write(forms.tail, {}), tokenizer),
                bool(forms.thought),
            )
            for thinking, forms in ((True, grammar.on), (False, grammar.off))
        }
        known = np.array([*grammar.markers.ids.values(), *self._stops], dtype=np.int64)
        # The last entry stays False: ids beyond the markers, absurd ones too, are clipped to it.
        self._table = np.zeros(int(known.max(initial=0)) + 2, dtype=np.bool_)
        self._table[known] = True

    def positions(self, ids: Ids) -> NDArray[np.int64]:
        """Where control ids of the profile stand in `ids`, int64, ascending."""
        return np.flatnonzero(self._table.take(ids, mode="clip"))

    def cut(self, ids: Ids, at: list[int], thinking: bool) -> Cut:
        """Cut one completion. `at`: its marker positions. `thinking`: whether the turn begins
        inside a thought.
        """
        ended = len(ids) > 0 and int(ids[-1]) in self._stops
        stop = len(ids) - ended
        lead, tail, thinks = self._ways[thinking]
        if tail and stop >= len(tail) and ids[stop - len(tail) : stop].tolist() == tail:
            stop -= len(tail)
        here = len(lead) if lead and ids[: len(lead)].tolist() == lead else 0
        begun = here > 0 or not lead
        if not begun and thinks and self._open is not None and self._open in ids[:2].tolist():
            here, begun = ids[:2].tolist().index(self._open) + 1, True
        starts = self._grammar.tool_starts
        tools = (
            next((i for i in at if i >= here and int(ids[i]) in starts), stop) if starts else stop
        )
        thought: Range | None = None
        if thinking and thinks:
            close = self._closing(ids, at, here)
            if close is not None and close <= tools:
                thought, here = (here, close), close + len(self._boundary)
            elif begun:
                answer = (tools, stop) if tools < stop else None
                return Cut((here, tools), None, answer, ended)
        if tools < here:  # a tool marker quoted inside the boundary can not be
            tools = stop
        return Cut(
            thought, (here, max(here, tools)), (tools, stop) if tools < stop else None, ended
        )

    def _closing(self, ids: Ids, at: list[int], start: int) -> int | None:
        boundary = self._boundary
        if not boundary:
            return None
        size = len(boundary)
        return next((i for i in at if i >= start and ids[i : i + size].tolist() == boundary), None)


def spans(cut: Cut, at: list[int], length: int, base: int) -> list[Span]:
    """Spans that tile [base, base + length): the ranges of `cut`, control ids inside and around
    them as markers.
    """
    out: list[Span] = []
    here = 0

    def add(kind: int, end: int) -> None:
        nonlocal here
        if end <= here:
            return
        if out and out[-1][0] == kind:
            out[-1] = (kind, out[-1][1], base + end)
        else:
            out.append((kind, base + here, base + end))
        here = end

    for kind, part in ((REASONING, cut.reasoning), (CONTENT, cut.content), (TOOLS, cut.tools)):
        if part is None:
            continue
        start, end = part
        add(MARKER, start)
        for i in at:
            if start <= i < end:
                add(kind, i)
                add(MARKER, i + 1)
        add(kind, end)
    add(MARKER, length)
    return out


def _ids(stream: Sequence[object], tokenizer: Tokenizer) -> list[int]:
    out: list[int] = []
    for piece in stream:
        if isinstance(piece, int):
            out.append(piece)
        elif isinstance(piece, str):
            out.extend(tokenizer.encode([piece])[0].tolist())
    return out
