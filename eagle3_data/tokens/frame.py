"""Samples of a batch → the sample table: ids put together once, every column filled.

What enters: one `Sample` a row (None: a null row) and the pool of encoded texts. What leaves:
`SAMPLE_COLUMNS`.
It promises that spans tile prompt and completion, and that the mask is 1 on exactly the sampled
tokens.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from eagle3_data.tokens.candidates import Answer
from eagle3_data.tokens.captured import Check, check
from eagle3_data.tokens.columns import changes, list_column, span_column
from eagle3_data.tokens.decide import Pool
from eagle3_data.tokens.grammar import Grammar
from eagle3_data.tokens.markers import Stream
from eagle3_data.tokens.prompt import Prompt
from eagle3_data.tokens.ragged import Ragged
from eagle3_data.tokens.samples import SAMPLE_COLUMNS, Grade, SpanKind, unassembled
from eagle3_data.tokens.spans import KIND, Cutter, Span, spans

if TYPE_CHECKING:
    from eagle3_data.tokens.tokenizer import Tokenizer

Ids = NDArray[np.int32]

PROMPT, REASONING, CONTENT = (
    KIND[k] for k in (SpanKind.PROMPT, SpanKind.REASONING, SpanKind.CONTENT)
)
BLANKS = ("\n", "\n\n", " ", "  ", "\n\n\n", "\r\n", "\t")
"""Whitespace that a generation prompt may write after the opening marker, where it is one token."""
LISTS = ("input_ids", "loss_mask", "spans")


@dataclass(slots=True)
class Sample:
    """One sample on its way. `stream`, `tokens`: built from text. `own`: ids captured from the
    server, None without.
    `thinking`: the completion begins inside a thought.
    """

    prompt: Prompt
    stream: Stream | None
    tokens: int | None
    count: int | None
    own: Ids | None
    thinking: bool
    answer: Answer | None
    grade: Grade
    reason: str


class Samples:
    """Builds the sample table for one grammar and tokenizer."""

    def __init__(self, grammar: Grammar, tokenizer: Tokenizer, *, want_ids: bool) -> None:
        self._tokenizer, self._want_ids = tokenizer, want_ids
        self._markers = grammar.markers
        self._cutter = Cutter(grammar, tokenizer)
        blank = tokenizer.encode(BLANKS)
        self._blanks = [int(blank[i][0]) for i in range(len(blank)) if len(blank[i]) == 1]

    def frame(self, rows: list[Sample | None], pool: Pool) -> pl.DataFrame:
        """The sample columns of `rows`, one row a row."""
        live = [row for row in rows if row is not None]
        if not live:
            return unassembled(len(rows))
        out = self._filled(live, pool)
        if len(live) == len(rows):
            return out
        places = iter(range(len(live)))
        index = [None if row is None else next(places) for row in rows]
        return out.select(pl.all().gather(pl.Series(index, dtype=pl.UInt32)))

    def _filled(self, rows: list[Sample], pool: Pool) -> pl.DataFrame:
        said = _joined(
            [[r.own] if r.own is not None else pool.pieces(r.stream or ()) for r in rows]
        )
        asked = _joined([[] if r.prompt.ids is None else [r.prompt.ids] for r in rows])
        starts = said.offsets.tolist()
        marks = [
            self._cutter.positions(r.own).tolist()
            if r.own is not None
            else pool.marks(r.stream or ())
            for r in rows
        ]
        tiles: list[Span] = []
        totals: list[int] = []
        for row, at, start, end, base in zip(
            rows, marks, starts, starts[1:], asked.lengths.tolist(), strict=False
        ):
            ids = said.ids[start:end]
            if base:
                tiles.append((PROMPT, 0, base))
            tiles += spans(self._cutter.cut(ids, at, row.thinking), at, len(ids), base)
            totals.append(len(tiles))
        bounds = np.array([0, *totals], dtype=np.int64)
        table = np.array(tiles, dtype=np.int32).reshape(-1, 3)
        checks = self._checks(rows, pool, said, marks)
        columns = {
            **self._graded(rows),
            **self._prompts(rows, asked),
            **self._completions(said, marks, checks),
            **_span_tokens(table, bounds),
            "seq_len": asked.lengths + said.lengths,
            "max_id": np.maximum(_largest(said), _largest(asked)),
        }
        lists = self._lists(asked, said, table, bounds)
        return pl.DataFrame(
            [
                lists[name] if name in lists else pl.Series(name, columns[name], dtype=dtype)
                for name, dtype in SAMPLE_COLUMNS.items()
            ]
        )

    def _checks(
        self, rows: list[Sample], pool: Pool, said: Ragged, marks: list[list[int]]
    ) -> list[Check | None]:
        """Captured rows against their text. Ids equal to the re-assembled ones settle it all."""
        done: list[Check | None] = [None] * len(rows)
        jobs: list[tuple[Ids, list[int], Answer | None]] = []
        unsettled: list[int] = []
        for i, row in enumerate(rows):
            if row.own is None:
                continue
            plain = row.answer is not None and not row.answer.spelled and row.stream is not None
            if plain and np.array_equal(pool.ids(row.stream or ()), row.own):
                done[i] = Check(True, True, False)
            else:
                unsettled.append(i)
                jobs.append((said[i], marks[i], row.answer))
        for i, result in zip(unsettled, check(jobs, self._markers, self._tokenizer), strict=True):
            done[i] = result
        return done

    def _graded(self, rows: list[Sample]) -> dict[str, list[Any]]:
        deltas = [None if r.tokens is None or r.count is None else r.tokens - r.count for r in rows]
        return {
            "grade": [r.grade.value for r in rows],
            "grade_reason": [r.reason for r in rows],
            "assembled_tokens": [r.tokens for r in rows],
            "count_delta": deltas,
        }

    def _prompts(self, rows: list[Sample], asked: Ragged) -> dict[str, Any]:
        present = [r.prompt.ids is not None for r in rows]
        double, opens = self._double_bos(asked), self._ends_open(asked)
        return {
            "prompt_source": [r.prompt.source.value for r in rows],
            "prompt_reason": [r.prompt.reason for r in rows],
            "prompt_len": _where(present, asked.lengths.tolist()),
            "prompt_tokens_rendered": [r.prompt.rendered for r in rows],
            "prompt_ids_match": [r.prompt.match for r in rows],
            "prompt_quotes_marker": [r.prompt.quotes for r in rows],
            "double_bos": _where(present, double.tolist()),
            "prompt_ends_open": _where(present, opens.tolist()),
        }

    def _completions(
        self, said: Ragged, marks: list[list[int]], checks: list[Check | None]
    ) -> dict[str, Any]:
        markers = self._markers
        first, last = said.ids[said.offsets[:-1]], said.ids[said.offsets[1:] - 1]
        row_of = np.repeat(np.arange(len(marks)), [len(at) for at in marks])
        at_row = np.array([place for at in marks for place in at], dtype=np.int64)
        controls = said.ids[at_row + said.offsets[:-1][row_of]]

        def times(token: int | None) -> NDArray[np.int64]:
            return np.bincount(
                row_of[controls == (-1 if token is None else token)], minlength=len(said)
            )

        stops = list(markers.stops)
        ended = np.isin(last, stops)
        opened, closed = times(markers.open), times(markers.close)
        controls_held = np.bincount(row_of, minlength=len(said))
        stops_held = np.bincount(row_of[np.isin(controls, stops)], minlength=len(said))
        return {
            "supervised_tokens": said.lengths,
            "starts_open": first == (-1 if markers.open is None else markers.open),
            "ends_eot": ended,
            "n_open_ids": opened,
            "n_close_ids": closed,
            "n_control_ids": controls_held - opened - closed - ended,
            "n_early_stop_ids": stops_held - ended,
            "marker_as_text": [None if c is None else c.marker_as_text for c in checks],
            "text_matches_ids": [None if c is None else c.text_matches for c in checks],
            "roundtrip": [None if c is None else c.roundtrip for c in checks],
            "id_changes": changes(said),
        }

    def _double_bos(self, asked: Ragged) -> NDArray[np.bool_]:
        bos = self._tokenizer.bos_id
        if bos is None:
            return np.zeros(len(asked), dtype=np.bool_)
        double: NDArray[np.bool_] = (_token(asked, 0) == bos) & (_token(asked, 1) == bos)
        return double

    def _ends_open(self, asked: Ragged) -> NDArray[np.bool_]:
        """The opening marker is the last id, blanks after it not counted (at most three)."""
        if self._markers.open is None:
            return np.zeros(len(asked), dtype=np.bool_)
        ends = np.zeros(len(asked), dtype=np.bool_)
        blank_so_far = np.ones(len(asked), dtype=np.bool_)
        for back in (-1, -2, -3, -4):
            token = _token(asked, back)
            ends |= blank_so_far & (token == self._markers.open)
            blank_so_far &= np.isin(token, self._blanks)
        return ends

    def _lists(
        self, asked: Ragged, said: Ragged, table: NDArray[np.int32], bounds: NDArray[np.int64]
    ) -> dict[str, pl.Series]:
        n = len(said)
        if not self._want_ids:
            return {name: pl.Series(name, [None] * n, dtype=SAMPLE_COLUMNS[name]) for name in LISTS}
        whole = _joined([[asked[i], said[i]] for i in range(n)])
        runs = np.stack([asked.lengths, said.lengths], axis=1).reshape(-1)
        mask = np.repeat(np.tile(np.array([0, 1], dtype=np.uint8), n), runs)
        return {
            "input_ids": list_column("input_ids", whole.ids, whole.offsets),
            "loss_mask": list_column("loss_mask", mask, whole.offsets),
            "spans": span_column("spans", table, bounds),
        }


def _joined(rows: list[list[Ids]]) -> Ragged:
    """Pieces of ids, row by row, in one copy."""
    pieces = [piece for row in rows for piece in row]
    lengths = [sum(map(len, row)) for row in rows]
    ids = np.concatenate(pieces) if pieces else np.empty(0, dtype=np.int32)
    return Ragged(ids, np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths, dtype=np.int64)]))


def _token(ragged: Ragged, place: int) -> NDArray[np.int64]:
    """The id at `place` of each sequence (negative: from its end), -1 where it is shorter."""
    at = (ragged.offsets[:-1] if place >= 0 else ragged.offsets[1:]) + place
    inside = (at >= ragged.offsets[:-1]) & (at < ragged.offsets[1:])
    if not inside.any():
        return np.full(len(ragged), -1, dtype=np.int64)
    return np.where(inside, ragged.ids[np.where(inside, at, 0)], -1).astype(np.int64)


def _largest(ragged: Ragged) -> NDArray[np.int64]:
    """The largest id of each sequence, -1 for an empty one."""
    out = np.full(len(ragged), -1, dtype=np.int64)
    filled = ragged.lengths > 0
    if filled.any():
        out[filled] = np.maximum.reduceat(ragged.ids, ragged.offsets[:-1][filled])
    return out


def _span_tokens(table: NDArray[np.int32], bounds: NDArray[np.int64]) -> dict[str, Any]:
    row_of = np.repeat(np.arange(len(bounds) - 1), np.diff(bounds))
    sizes = (table[:, 2] - table[:, 1]).astype(np.float64)

    def total(kind: int) -> NDArray[np.int64]:
        mine = table[:, 0] == kind
        found = np.bincount(row_of[mine], weights=sizes[mine], minlength=len(bounds) - 1)
        return found.astype(np.int64)

    return {"reasoning_span_tokens": total(REASONING), "content_span_tokens": total(CONTENT)}


def _where(present: list[bool], values: list[Any]) -> list[Any]:
    return [value if there else None for there, value in zip(present, values, strict=True)]
