"""Supervised ids against the text beside them.

What enters: rows of schema v1 and a tokenizer. What leaves: the rows whose ids decode to another
text, with the place of the first difference. It promises the comparison of rule TOK004: whitespace
and control markers aside, which servers strip, and only up to the tool calls, which servers
re-write, or to a stop string or stop id of the request, which they cut off.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from eagle3_data.tokens.samples import IMPORTED, SpanKind

if TYPE_CHECKING:
    import pyarrow as pa

    from eagle3_data.tokens.tokenizer import Tokenizer

NAMES = (
    *("input_ids", "spans", "reasoning", "content", "tool_calls"),
    *("stop_reason", "truncated", "grade_reason"),
)


def text_differs(table: pa.Table, tokenizer: Tokenizer) -> dict[int, str]:
    """Row of `table` → what differs. Rows whose ids or spans are out of range are left to their own
    rules; imported rows have no text to compare with.
    """
    rows = table.select(NAMES).to_pylist()
    pieces: list[list[int]] = []
    owners: list[tuple[int, bool]] = []
    for i, row in enumerate(rows):
        ids = row["input_ids"]
        if ids and row["stop_reason"] == str(ids[-1]):
            ids = ids[:-1]  # a stop id of the request: servers keep it out of the text
        for span in row["spans"]:
            piece = ids[max(span["start"], 0) : max(span["end"], 0)]
            if (
                span["kind"] != SpanKind.PROMPT
                and piece
                and min(piece) >= 0
                and max(piece) < tokenizer.vocab_size
            ):
                pieces.append(piece)
                owners.append((i, span["kind"] == SpanKind.MARKER))
    written: list[list[str]] = [[] for _ in rows]
    markers: list[set[str]] = [set() for _ in rows]
    for (i, marker), text in zip(owners, tokenizer.decode(pieces), strict=True):
        if marker:
            markers[i].add(text)
        else:
            written[i].append(text)
    out: dict[int, str] = {}
    for i, row in enumerate(rows):
        ours = _bare("".join(written[i]), markers[i])
        theirs = _bare((row["reasoning"] or "") + (row["content"] or ""), markers[i])
        if row["grade_reason"] != IMPORTED and not _fits(ours, theirs, row):
            out[i] = _difference(ours, theirs)
    return out


def _fits(ours: str, theirs: str, row: dict[str, Any]) -> bool:
    stop = row["stop_reason"]  # figures are the id of a token
    open_end = row["tool_calls"] is not None or (stop is not None and not stop.isdigit())
    if row["truncated"] and theirs.startswith(ours):
        return True
    return ours.startswith(theirs) if open_end else ours == theirs


def _bare(text: str, markers: set[str]) -> str:
    for marker in markers:
        text = text.replace(marker.strip(), "") if marker.strip() else text
    # ids cut inside a character decode to U+FFFD here and to nothing, or to it, at the server
    return "".join(text.replace("\ufffd", "").split())


def _difference(ours: str, theirs: str) -> str:
    at = next(
        (i for i, (a, b) in enumerate(zip(ours, theirs, strict=False)) if a != b),
        min(len(ours), len(theirs)),
    )
    start = max(at - 10, 0)
    return (
        f"from character {at} (whitespace aside): ids {ours[start : at + 20]!r},"
        f" text {theirs[start : at + 20]!r}"
    )
