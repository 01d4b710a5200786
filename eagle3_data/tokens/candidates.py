"""From one captured answer to the token streams that could have made it.

What enters: the texts of one answer and how it stopped. What leaves: candidate streams, likeliest
first.
It promises to list every way the grammar allows (closed and open thought, spelled marker as text or
as id), so that a count which two of them meet is seen as ambiguous and never taken as proof.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from enum import StrEnum
from typing import NamedTuple

from eagle3_data.records.ends import (
    BROKEN_OFF,
    CUT_BY_LENGTH,
    FINISHED,
    MODERATED,
    STOP_STRING,
)
from eagle3_data.tokens.grammar import Forms, Grammar, Parts, Place, Slot, tool_stream, write
from eagle3_data.tokens.markers import Markers, Stream


class Stop(StrEnum):
    """How the turn ended."""

    ENDED = "ended"
    """The model sampled an end of turn."""
    CUT = "cut"
    """The engine stopped it: token limit, abort, error, a stop string."""
    UNKNOWN = "unknown"


class Fix(StrEnum):
    """What had to be done to the text of a record to make this stream."""

    RAW = "raw"
    """Nothing: the text as given, markers put in."""
    REPAIR = "repair"
    """Whitespace written at one place, where this server version is known to strip."""
    TEMPLATE = "template"
    """The template's whitespace written at several places, or where no server is known to strip
    it.
    """


class Candidate(NamedTuple):
    """One stream. `ended`: its last token is the sampled end of turn. `opened`: it begins with an
    opening marker that may as well stand in the prompt.
    """

    stream: Stream
    fix: Fix
    ended: bool
    opened: bool = False


class Answer(NamedTuple):
    """One captured answer. `calls`: tool calls as text fields, None without. `end`: the end-of-turn
    id when it ended.

    `stop_kept`: the request asked to leave the stop string in the text. `spelled`: a text spells a
    marker. `stripped`: where its server strips; `named`: that is known (`servers.was_read`).
    """

    reasoning: str
    content: str
    calls: Sequence[Mapping[str, str]] | None
    thinking: bool
    stop: Stop
    end: int | None
    stop_text: str = ""
    stop_kept: bool = False
    spelled: bool = False
    stripped: frozenset[Place] = frozenset()
    named: bool = False


ENDED = frozenset(FINISHED)
CUT = frozenset((*CUT_BY_LENGTH, *STOP_STRING, *MODERATED, *BROKEN_OFF))
NO_FILL: Mapping[Place, str] = {}
LINE_ENDS = ("\n", "\n\n")


def candidates(answer: Answer, grammar: Grammar) -> list[Candidate]:
    """The natural streams: the text as given, and the template's whitespace at one place where this
    server strips.

    They are what a first comparison with the count looks at; `further` lists the rest.
    """
    found: list[Candidate] = []
    for shape in _shapes(answer, grammar):
        for fields in shape.fields:
            for fill in (NO_FILL, *_repairs(shape, answer)):
                made = write(shape.parts, fields, shape.end, fill)
                if made and not _among(found, made):
                    fix = Fix.REPAIR if fill else Fix.RAW
                    found.append(Candidate(made, fix, shape.end is not None, shape.opened))
    return found


def further(answer: Answer, grammar: Grammar) -> list[Candidate]:
    """The streams to try when the text as given does not meet the count.

    Where this server strips, any line end may have stood: the fixture model writes one newline
    where its template has two. Then the template's whitespace at every place where it may have been
    lost.
    """
    known = candidates(answer, grammar)
    found: list[Candidate] = []
    for shape in _shapes(answer, grammar):
        edges = _lacking(shape, answer)
        tries: list[tuple[Fix, Mapping[Place, str]]] = [
            (Fix.REPAIR, {place: text})
            for place in sorted(edges & answer.stripped)
            for text in LINE_ENDS
        ]
        full = _template(shape, edges, answer)
        if full:
            tries.append((Fix.TEMPLATE, full))
        for fields in shape.fields:
            for fix, fill in tries:
                made = write(shape.parts, fields, shape.end, fill)
                if not _among(known, made) and not _among(found, made):
                    found.append(Candidate(made, fix, shape.end is not None, shape.opened))
    return found


def _among(found: list[Candidate], stream: Stream) -> bool:
    """Whether a stream is listed already. Compared, not hashed: the texts are long and few."""
    return any(candidate.stream == stream for candidate in found)


def uncounted(answer: Answer, grammar: Grammar) -> Candidate | None:
    """The stream to show when there is no count: the text as given, with the template's whitespace
    where it was lost.

    Of an unnamed server only a text without any of that whitespace counts as stripped: a family
    writes it nearly always.
    """
    for shape in _shapes(answer, grammar):
        edges = _lacking(shape, answer)
        fill = _template(shape, edges, answer)
        if not answer.named and not shape.reach & shape.spaces.keys() <= edges:
            fill = NO_FILL
        made = write(shape.parts, shape.fields[0], shape.end, fill)
        if made:
            return Candidate(made, Fix.TEMPLATE if fill else Fix.RAW, shape.end is not None)
    return None


class _Shape(NamedTuple):
    """One way to write the turn: parts, the texts in them (spelled markers as text, then as
    ids), its end.
    """

    parts: Parts
    fields: tuple[dict[Slot, Stream], ...]
    end: int | None
    spaces: Mapping[Place, str]
    reach: frozenset[Place]  # the edges that lie inside this shape
    opened: bool


LEFT = frozenset({Place.REASONING_LEFT})
THOUGHT = LEFT | {Place.REASONING_RIGHT}
REPLY = THOUGHT | {Place.CONTENT_LEFT}
WHOLE = REPLY | {Place.CONTENT_RIGHT}


def _shapes(answer: Answer, grammar: Grammar) -> Iterator[_Shape]:
    forms = grammar.on if answer.thinking else grammar.off
    said = bool(answer.content) or answer.calls is not None
    for end in _ends(answer):
        ways: list[tuple[Parts, frozenset[Place]]] = []
        if not answer.thinking or not grammar.on.thought:
            ways.append((forms.full if answer.calls is not None else forms.answer, WHOLE))
        elif answer.reasoning and said:
            ways.append((forms.full if answer.calls is not None else forms.answer, WHOLE))
            if answer.calls is not None and not answer.content:
                ways.append((forms.implicit, LEFT))
        elif answer.reasoning:
            ways += [(forms.thought, LEFT), (forms.closed, THOUGHT)]
        else:
            # Not the empty thought: `</think>C` is as long as every split of C by one closing
            # marker, so a count can not tell it from a thought and an answer joined without one.
            # Nor a line end that the server stripped before C: there is no marker for it to follow.
            bare = forms.bare if answer.calls is not None else forms.bare_answer
            ways.append((bare, WHOLE - REPLY))
        if answer.thinking and answer.reasoning and grammar.may_open is not None:
            ways += [((grammar.may_open, *parts), reach) for parts, reach in ways]
        for parts, reach in ways:
            tail = forms.tail if end is not None and Slot.CONTENT in parts else ()
            yield _shape(answer, grammar, forms, (*parts, *tail), reach, end)
    if (
        answer.stop is Stop.ENDED
        and answer.thinking
        and answer.reasoning
        and not said
        and forms.thought
    ):
        # The closing marker may be the last token: an engine that stops on it.
        yield _shape(answer, grammar, forms, forms.closed, THOUGHT, None)


def _shape(
    answer: Answer,
    grammar: Grammar,
    forms: Forms,
    parts: Parts,
    reach: frozenset[Place],
    end: int | None,
) -> _Shape:
    if end is None or (forms.gap and answer.calls is None):
        reach -= {Place.CONTENT_RIGHT}
    opened = grammar.may_open is not None and parts[:1] == (grammar.may_open,)
    fields = _fields(answer, grammar, end is not None)
    return _Shape(parts, fields, end, forms.spaces, reach, opened)


def _ends(answer: Answer) -> tuple[int | None, ...]:
    if answer.stop is Stop.CUT or answer.end is None:
        return (None,)
    return (answer.end,) if answer.stop is Stop.ENDED else (answer.end, None)


def _fields(answer: Answer, grammar: Grammar, ended: bool) -> tuple[dict[Slot, Stream], ...]:
    tools: Stream = ()
    if answer.calls is not None and grammar.tools is not None:
        tools = tool_stream(answer.calls, grammar.tools, grammar.markers, ended=ended)
    reasoning, content = answer.reasoning, answer.content
    if answer.stop_text and not answer.stop_kept:  # sampled, then cut from the text
        if content:
            content += answer.stop_text
        else:
            reasoning += answer.stop_text
    as_text: dict[Slot, Stream] = {
        Slot.REASONING: (reasoning,) if reasoning else (),
        Slot.CONTENT: (content,) if content else (),
        Slot.TOOLS: tools,
    }
    if not answer.spelled:
        return (as_text,)
    split, stops = grammar.markers.split, grammar.markers.stops
    as_ids = {Slot.REASONING: split(reasoning), Slot.CONTENT: split(content)}
    # An end of turn inside a text can not have been sampled: the engine stops at it. Read as an id
    # it met the count of 3 in 39 real answers that another tokenization had made one longer.
    if any(piece in stops for stream in as_ids.values() for piece in stream):
        return (as_text,)
    return as_text, {**as_ids, Slot.TOOLS: tools}


def _lacking(shape: _Shape, answer: Answer) -> frozenset[Place]:
    """The edges of this shape where the text has no whitespace of its own (where it has, nothing
    was stripped).
    """
    edges = {
        Place.REASONING_LEFT: answer.reasoning[:1],
        Place.REASONING_RIGHT: answer.reasoning[-1:],
        Place.CONTENT_LEFT: answer.content[:1],
        Place.CONTENT_RIGHT: answer.content[-1:],
    }
    return frozenset(place for place in shape.reach if not edges[place].isspace())


def _template(shape: _Shape, edges: frozenset[Place], answer: Answer) -> Mapping[Place, str]:
    """The template's whitespace at every edge that lacks it. A named server is only credited
    with what it strips.
    """
    places = edges & answer.stripped if answer.named else edges
    return {place: text for place, text in shape.spaces.items() if place in places}


def _repairs(shape: _Shape, answer: Answer) -> list[Mapping[Place, str]]:
    """The template's whitespace at one of the places this server strips."""
    if not answer.stripped or not shape.spaces:
        return []
    places = _lacking(shape, answer) & answer.stripped
    return [{place: text} for place, text in shape.spaces.items() if place in places]


def stopped(
    finish_reason: str | None, stop_reason: str | None, markers: Markers
) -> tuple[Stop, int | None, str]:
    """How a turn ended, the end-of-turn id it sampled (None: none known), and the stop string it
    was cut at.

    `stop_reason` is an id as digits, a marker or a stop string (vLLM `stop_reason`, SGLang
    `matched_stop`).
    """
    usual = markers.ends[0] if markers.ends else None
    if finish_reason in CUT:
        return Stop.CUT, None, (stop_reason or "") if finish_reason in STOP_STRING else ""
    if finish_reason not in ENDED:
        return Stop.UNKNOWN, usual, ""
    if not stop_reason:
        return Stop.ENDED, usual, ""
    if re.fullmatch(r"[0-9]{1,9}", stop_reason):
        return Stop.ENDED, int(stop_reason), ""
    if stop_reason in markers.ids:
        return Stop.ENDED, markers.ids[stop_reason], ""
    return Stop.CUT, None, stop_reason
