"""Captured ids against the text beside them: do they decode to it, and does their own text encode
back to them.

What enters: completion ids that differ from the re-assembled ones. What leaves: three yes-or-no
answers a row.
It promises that nothing is decoded for rows whose captured and re-assembled ids are equal: there
all is settled.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from eagle3_data.tokens.markers import Markers

if TYPE_CHECKING:
    from eagle3_data.tokens.candidates import Answer
    from eagle3_data.tokens.tokenizer import Tokenizer

Ids = NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class Check:
    """`text_matches`: the ids decode to the record's text, whitespace at the edges of a field
    aside; None when the record has no text.
    `roundtrip`: encode(decode(ids)) == ids. `marker_as_text`: a think marker stands in them as
    ordinary tokens.
    """

    text_matches: bool | None
    roundtrip: bool
    marker_as_text: bool


def check(
    rows: Sequence[tuple[Ids, Sequence[int], Answer | None]], markers: Markers, tokenizer: Tokenizer
) -> list[Check]:
    """Check rows of (ids, marker positions, answer). Stretches between markers are decoded and
    encoded in one call.
    """
    pieces: list[Ids] = []
    owners: list[int] = []
    for row, (ids, at, answer) in enumerate(rows):
        start, end = 0, len(ids)
        if answer is not None and end and ids[-1] == answer.end:
            end -= 1  # a stop id of the request is no marker, and servers keep it out of the text
        for i in (*at, end):
            if i > start:
                pieces.append(ids[start:i])
                owners.append(row)
            start = i + 1
    known = [int(piece.max()) < tokenizer.vocab_size for piece in pieces]
    decoded = iter(
        tokenizer.decode([p.tolist() for p, ok in zip(pieces, known, strict=True) if ok])
    )
    texts = [next(decoded) if ok else None for ok in known]
    encoded = tokenizer.encode([text or "" for text in texts])
    same = [True] * len(rows)
    spelled = [False] * len(rows)
    stretches: list[list[str]] = [[] for _ in rows]
    for k, (row, text) in enumerate(zip(owners, texts, strict=True)):
        if text is None or not np.array_equal(encoded[k], pieces[k]):
            same[row] = False
        if text is not None:
            stretches[row].append(text)
            spelled[row] = spelled[row] or any(marker in text for marker in markers.think_texts)
    return [
        Check(_matches(stretches[row], answer, markers), same[row], spelled[row])
        for row, (_, _, answer) in enumerate(rows)
    ]


def _matches(stretches: list[str], answer: Answer | None, markers: Markers) -> bool | None:
    """Follow the record's text along the stretches that the ids decode to.

    Servers strip the edges of a field, and some drop markers that the model sampled twice: so
    whitespace is free where a stretch begins or ends, and inside one every character counts. A
    record with tool calls holds them re-written, and a stop string is cut from the text: there only
    what stands before is compared.
    """
    if answer is None:
        return None
    theirs = _plain(answer.reasoning + answer.content, markers).rstrip()
    open_end = answer.calls is not None or bool(answer.stop_text)
    at = 0
    for stretch in stretches:
        for piece in markers.split(_known(stretch)):
            ours = "" if isinstance(piece, int) else piece.strip()
            at = _space(theirs, at)
            left = len(theirs) - at
            if open_end and left <= len(ours) and ours.startswith(theirs[at:]):
                return True
            if not theirs.startswith(ours, at):
                return False
            at += len(ours)
    return at >= len(theirs)


def _space(text: str, at: int) -> int:
    """Where the whitespace that begins at `at` ends."""
    while at < len(text) and text[at].isspace():
        at += 1
    return at


def _plain(text: str, markers: Markers) -> str:
    return "".join(p for p in markers.split(_known(text)) if isinstance(p, str))


def _known(text: str) -> str:
    """Ids cut inside a character decode to U+FFFD here and to nothing, or to it, at the server."""
    return text.replace("\ufffd", "")
