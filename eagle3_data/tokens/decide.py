"""Which stream made a record: the candidates of a batch are counted against
`usage.completion_tokens`.

What enters: answers, counts, and whether each server counts its stop token. What leaves: one
`Decision` an answer.
It promises that a grade is never better than its proof: two different streams that meet a count are
E, whichever is likelier; a stream that only fits an unproven reading of the count is D. Where it is
not known whether a server counts its stop token, both readings are tried, and neither proves.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from eagle3_data.tokens.candidates import (
    Answer,
    Candidate,
    Fix,
    Stop,
    candidates,
    further,
    uncounted,
)
from eagle3_data.tokens.edges import loose
from eagle3_data.tokens.grammar import Grammar, Place
from eagle3_data.tokens.markers import Stream
from eagle3_data.tokens.samples import Grade

if TYPE_CHECKING:
    from eagle3_data.tokens.tokenizer import Tokenizer

Ids = NDArray[np.int32]


class Pool:
    """The texts of a batch, encoded once. Ids are only put together for the chosen streams.

    Texts are known by identity: hashing a 10 KB thought costs as much as copying its ids.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        self._ids: dict[int, Ids] = {}
        self._texts: list[str] = []  # kept, so that no identity is given twice
        self._controls: dict[int, Ids] = {}

    def add(self, streams: Iterable[Stream]) -> None:
        """Encode what `streams` hold and the pool does not, in one call."""
        new: dict[int, str] = {}
        for stream in streams:
            for piece in stream:
                if isinstance(piece, int):
                    if piece not in self._controls:
                        self._controls[piece] = np.array([piece], dtype=np.int32)
                elif id(piece) not in self._ids:
                    new[id(piece)] = piece
        if not new:
            return
        texts = list(new.values())
        self._texts += texts
        ragged = self.tokenizer.encode(texts)
        ids, offsets = ragged.ids, ragged.offsets.tolist()
        for i, key in enumerate(new):
            self._ids[key] = ids[offsets[i] : offsets[i + 1]]

    def length(self, stream: Stream) -> int:
        """Tokens of a stream that was added."""
        known = self._ids
        return sum([1 if isinstance(piece, int) else len(known[id(piece)]) for piece in stream])

    def pieces(self, stream: Stream) -> list[Ids]:
        """The ids of a stream, piece by piece, to be put together with others in one copy."""
        known, controls = self._ids, self._controls
        return [controls[piece] if isinstance(piece, int) else known[id(piece)] for piece in stream]

    def marks(self, stream: Stream) -> list[int]:
        """Where the control ids of a stream stand: free text encodes to none."""
        found: list[int] = []
        here = 0
        for piece in stream:
            if isinstance(piece, int):
                found.append(here)
                here += 1
            else:
                here += len(self._ids[id(piece)])
        return found

    def ids(self, stream: Stream) -> Ids:
        """The ids of one stream, int32."""
        pieces = self.pieces(stream)
        return pieces[0] if len(pieces) == 1 else np.concatenate(pieces)


@dataclass(frozen=True, slots=True)
class Decision:
    """The chosen stream of a record (None: the grammar can write none), its token count and its
    grade.
    """

    stream: Stream | None
    tokens: int
    grade: Grade
    reason: str


def decide(
    found: Sequence[Answer | None],
    counts: Sequence[int | None],
    counted: Sequence[bool | None],
    grammar: Grammar,
    pool: Pool,
) -> list[Decision | None]:
    """Decide every answer. `counted`: the count holds the stop token (None: not known for this
    server).
    """
    choices = [
        [] if answer is None
        else _one(uncounted(answer, grammar)) if count is None
        else candidates(answer, grammar)
        for answer, count in zip(found, counts, strict=True)
    ]  # fmt: skip
    pool.add(c.stream for row in choices for c in row)
    out: list[Decision | None] = []
    open_rows: list[int] = []
    for i, (answer, count, row) in enumerate(zip(found, counts, choices, strict=True)):
        if answer is None:
            out.append(None)
        elif not row:
            out.append(Decision(None, 0, Grade.E, "no-grammar"))
        elif count is None:
            out.append(_capped(_decision(row[0], pool, Grade.D, "no-count"), answer, grammar))
        elif len(row) == 1 and pool.length(row[0].stream) == count and counted[i]:
            out.append(_capped(_graded(row, pool), answer, grammar))
        else:
            fits = _fits(row, pool, count, counted[i])
            # The text as given needs no excuse; a repair must be the only one that meets the count.
            settled = any(c.fix is Fix.RAW and _meets(c, pool, count, counted[i]) for c in fits)
            decision = _read(_graded(fits, pool), answer, count, counted[i]) if settled else None
            out.append(_capped(decision, answer, grammar) if decision else None)
            if not settled:
                open_rows.append(i)
    extra = {i: further(answer, grammar) for i in open_rows if (answer := found[i]) is not None}
    pool.add(c.stream for row in extra.values() for c in row)
    for i, more in extra.items():
        answer, count = found[i], counts[i]
        if answer is not None and count is not None:
            decision = _second(choices[i], more, pool, count, counted[i])
            out[i] = _capped(_read(decision, answer, count, counted[i]), answer, grammar)
    _doubt_edges(out, found, grammar, pool)
    return out


def _doubt_edges(
    out: list[Decision | None], found: Sequence[Answer | None], grammar: Grammar, pool: Pool
) -> None:
    """Lower what a strip may have changed unseen: the count fits, and would fit with a line end
    more.
    """
    doubted = [
        (i, decision, answer)
        for i, (decision, answer) in enumerate(zip(out, found, strict=True))
        if decision is not None
        and answer is not None
        and answer.stripped
        and decision.grade in (Grade.B, Grade.C)
    ]
    free = loose([answer for _, _, answer in doubted], grammar, pool.tokenizer)
    for (i, decision, _), unsure in zip(doubted, free, strict=True):
        if unsure:
            out[i] = Decision(decision.stream, decision.tokens, Grade.D, "edge-unknown")


def _one(candidate: Candidate | None) -> list[Candidate]:
    return [] if candidate is None else [candidate]


def _meets(candidate: Candidate, pool: Pool, count: int, counted: bool | None) -> bool:
    """Whether the stream has the counted length; of an unknown server: with its stop token."""
    tokens = pool.length(candidate.stream)
    return tokens - candidate.ended == count if counted is False else tokens == count


def _fits(
    row: Sequence[Candidate], pool: Pool, count: int, counted: bool | None
) -> list[Candidate]:
    """The streams that meet the count; of an unknown server under either reading, the usual one
    first.

    An opening marker that nothing proves, under a reading that nothing proves, is no rival of a
    stream that needs neither: it would make every answer of a generic profile ambiguous.
    """
    usual = [c for c in row if _meets(c, pool, count, counted)]
    if counted is not None:
        return usual
    return usual + [
        c
        for c in row
        if c.ended and pool.length(c.stream) - 1 == count and not (usual and c.opened)
    ]


def _second(
    first: list[Candidate], more: list[Candidate], pool: Pool, count: int, counted: bool | None
) -> Decision:
    """The text as given does not meet the count: whitespace, and a stop token that is not
    counted, are tried.
    """
    fits = _fits([*first, *more], pool, count, counted)
    if fits:
        # A text as given under the other reading comes before whitespace under the usual one.
        return _graded(sorted(fits, key=lambda c: c.fix is not Fix.RAW), pool)
    nearest = min(first, key=lambda c: abs(pool.length(c.stream) - count))
    return _decision(nearest, pool, Grade.E, "count-differs")


def _graded(fits: list[Candidate], pool: Pool) -> Decision:
    chosen = fits[0]
    if _differ(fits, pool):
        return _decision(chosen, pool, Grade.E, "ambiguous")
    if chosen.opened:  # one newline that a server stripped has the same length
        return _decision(chosen, pool, Grade.D, "opening-unproven")
    match chosen.fix:
        case Fix.RAW:
            return _decision(chosen, pool, Grade.B, "count-equal")
        case Fix.REPAIR:
            return _decision(chosen, pool, Grade.C, "whitespace-repair")
        case Fix.TEMPLATE:
            return _decision(chosen, pool, Grade.D, "whitespace-unproven")


def _read(decision: Decision, answer: Answer, count: int, counted: bool | None) -> Decision:
    """Lower what rests on an unproven reading of the count. A turn that the engine cut holds no
    stop token, so there both readings are one.

    Measured: of 177 vLLM rows that stopped, counted without their stop token and read as if with
    it, 6 met the count by a stream that was one token short.
    """
    if counted is not None or answer.stop is Stop.CUT:
        return decision
    if decision.tokens != count and decision.grade is not Grade.E:
        return Decision(decision.stream, decision.tokens, Grade.D, "stop-token-not-counted")
    if decision.grade in (Grade.B, Grade.C):
        return Decision(decision.stream, decision.tokens, Grade.D, "stop-token-reading-unproven")
    return decision


def _differ(fits: list[Candidate], pool: Pool) -> bool:
    if len(fits) < 2:
        return False
    first = pool.ids(fits[0].stream)
    return any(not np.array_equal(first, pool.ids(other.stream)) for other in fits[1:])


def _decision(candidate: Candidate, pool: Pool, grade: Grade, reason: str) -> Decision:
    return Decision(candidate.stream, pool.length(candidate.stream), grade, reason)


def _may_be_stripped(decision: Decision, answer: Answer, grammar: Grammar) -> bool:
    """A thought that was cut right after its closing marker is as long as one cut after a line end
    that the server took away: only a named server that leaves the edge alone can tell them apart.
    """
    cut = answer.stop is not Stop.ENDED and answer.reasoning
    if not cut or answer.content or answer.calls is not None or not answer.thinking:
        return False
    closed = grammar.markers.close is not None and grammar.markers.close in (decision.stream or ())
    strips = not answer.named or Place.REASONING_RIGHT in answer.stripped
    return closed and strips and decision.reason != "no-count"


def _capped(decision: Decision, answer: Answer, grammar: Grammar) -> Decision:
    """Lower the grade of what text can not prove: tool calls a server re-wrote, a thought the
    grammar has no place for.
    """
    if answer.reasoning and not (grammar.on.thought and answer.thinking):
        return Decision(decision.stream, decision.tokens, Grade.E, "no-grammar")
    if decision.grade is not Grade.E and _may_be_stripped(decision, answer, grammar):
        return Decision(decision.stream, decision.tokens, Grade.E, "ambiguous")
    if answer.stop_text and decision.grade in (Grade.B, Grade.C):
        # The last token may reach beyond the stop string: 43 of 79 such rows were equally long.
        return Decision(decision.stream, decision.tokens, Grade.D, "stop-string")
    if answer.calls is None or decision.grade is Grade.E:
        return decision
    if grammar.tools is None:
        return Decision(decision.stream, decision.tokens, Grade.E, "tools-unknown")
    if grammar.tools.exact:
        return decision
    return Decision(decision.stream, decision.tokens, Grade.D, "tools-rewritten")
