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
from eagle3_data.tokens.columns import distinct, list_column, span_column
from eagle3_data.tokens.decide import Pool
from eagle3_data.tokens.grammar import Grammar
from eagle3_data.tokens.markers import Stream
from eagle3_data.tokens.prompt import Prompt
from eagle3_data.tokens.samples import SAMPLE_COLUMNS, Grade, SpanKind
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
CHECKED = ("marker_as_text", "text_matches_ids", "roundtrip")


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


@dataclass(slots=True)
class _Batch:
    """All completions of a batch in one array; row i is flat[bounds[i]:bounds[i + 1]]."""

    flat: Ids
    lengths: NDArray[np.int64]
    bounds: list[int]
    marks: list[list[int]]


class Samples:
    """Builds the sample table for one grammar and tokenizer."""

    def __init__(self, grammar: Grammar, tokenizer: Tokenizer, *, want_ids: bool) -> None:
        self._tokenizer, self._want_ids = tokenizer, want_ids
        self._markers = grammar.markers
        self._cutter = Cutter(grammar, tokenizer)
        blank = tokenizer.encode(BLANKS)
        self._blanks = frozenset(int(blank[i][0]) for i in range(len(blank)) if len(blank[i]) == 1)

    def frame(self, rows: list[Sample | None], pool: Pool) -> pl.DataFrame:
        """The sample columns of `rows`, one row a row."""
        batch = self._together(rows, pool)
        checks = self._checks(rows, pool, batch)
        unlike = distinct(batch.flat, np.array(batch.bounds, dtype=np.int64)).tolist()
        names = [name for name in SAMPLE_COLUMNS if name not in LISTS]
        out: dict[str, list[Any]] = {name: [] for name in names}
        tiles: list[Span] = []
        tile_counts = np.zeros(len(rows), dtype=np.int64)
        for i, row in enumerate(rows):
            if row is None:
                for values in out.values():
                    values.append(None)
                continue
            ids = batch.flat[batch.bounds[i] : batch.bounds[i + 1]]
            at = batch.marks[i]
            base = 0 if row.prompt.ids is None else len(row.prompt.ids)
            tiled = spans(self._cutter.cut(ids, at, row.thinking), at, len(ids), base)
            if base:
                tiled.insert(0, (PROMPT, 0, base))
            if self._want_ids:
                tiles.extend(tiled)
                tile_counts[i] = len(tiled)
            for name, value in self._scalars(row, ids, at, tiled, unlike[i], checks.get(i)).items():
                out[name].append(value)
        series = [pl.Series(name, out[name], dtype=SAMPLE_COLUMNS[name]) for name in names]
        return pl.DataFrame([*series, *self._lists(rows, batch, tiles, tile_counts)])

    def _together(self, rows: list[Sample | None], pool: Pool) -> _Batch:
        pieces: list[Ids] = []
        lengths = np.zeros(len(rows), dtype=np.int64)
        for i, row in enumerate(rows):
            if row is None:
                continue
            mine = [row.own] if row.own is not None else pool.pieces(row.stream or ())
            pieces.extend(mine)
            lengths[i] = sum(map(len, mine))
        flat = np.concatenate(pieces) if pieces else np.empty(0, dtype=np.int32)
        offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])
        found = self._cutter.positions(flat)
        cuts, bounds, places = (
            np.searchsorted(found, offsets).tolist(),
            offsets.tolist(),
            found.tolist(),
        )
        marks = [[p - bounds[i] for p in places[cuts[i] : cuts[i + 1]]] for i in range(len(rows))]
        return _Batch(flat, lengths, bounds, marks)

    def _checks(self, rows: list[Sample | None], pool: Pool, batch: _Batch) -> dict[int, Check]:
        """Captured rows against their text. Equal to the re-assembled ids settles all three
        questions at once.
        """
        done: dict[int, Check] = {}
        open_rows: list[int] = []
        for i, row in enumerate(rows):
            if row is None or row.own is None:
                continue
            plain = row.stream is not None and row.answer is not None and not row.answer.spelled
            if plain and row.stream is not None and np.array_equal(pool.ids(row.stream), row.own):
                done[i] = Check(True, True, False)
            else:
                open_rows.append(i)
        jobs = [
            (batch.flat[batch.bounds[i] : batch.bounds[i + 1]], batch.marks[i], row.answer)
            for i in open_rows
            if (row := rows[i]) is not None
        ]
        done.update(zip(open_rows, check(jobs, self._markers, self._tokenizer), strict=True))
        return done

    def _scalars(
        self,
        row: Sample,
        ids: Ids,
        at: list[int],
        tiled: list[Span],
        unlike: int,
        found: Check | None,
    ) -> dict[str, object]:
        prompt, markers = row.prompt.ids, self._markers
        base = 0 if prompt is None else len(prompt)
        last, opens = int(ids[-1]), [int(ids[i]) for i in at]
        top = int(ids.max())
        return {
            "grade": row.grade,
            "grade_reason": row.reason,
            "prompt_source": row.prompt.source,
            "prompt_reason": row.prompt.reason,
            "assembled_tokens": row.tokens,
            "count_delta": None
            if row.tokens is None or row.count is None
            else row.tokens - row.count,
            "prompt_len": None if prompt is None else base,
            "seq_len": base + len(ids),
            "supervised_tokens": len(ids),
            "reasoning_span_tokens": sum(b - a for kind, a, b in tiled if kind == REASONING),
            "content_span_tokens": sum(b - a for kind, a, b in tiled if kind == CONTENT),
            "prompt_tokens_rendered": row.prompt.rendered,
            "prompt_ids_match": row.prompt.match,
            "prompt_quotes_marker": row.prompt.quotes,
            "double_bos": self._double_bos(prompt),
            "prompt_ends_open": self._ends_open(prompt),
            "starts_open": markers.open is not None and int(ids[0]) == markers.open,
            "ends_eot": last in markers.stops,
            "n_open_ids": opens.count(-1 if markers.open is None else markers.open),
            "n_close_ids": opens.count(-1 if markers.close is None else markers.close),
            "marker_as_text": None if found is None else found.marker_as_text,
            "text_matches_ids": None if found is None else found.text_matches,
            "roundtrip": None if found is None else found.roundtrip,
            "max_id": max(top, int(prompt.max())) if prompt is not None and base else top,
            "distinct_ids": unlike,
        }

    def _double_bos(self, prompt: Ids | None) -> bool | None:
        bos = self._tokenizer.bos_id
        if prompt is None:
            return None
        return bos is not None and prompt[:2].tolist() == [bos, bos]

    def _ends_open(self, prompt: Ids | None) -> bool | None:
        if prompt is None:
            return None
        tail = prompt[-4:].tolist()
        while tail and tail[-1] in self._blanks:
            tail.pop()
        return bool(tail) and tail[-1] == self._markers.open

    def _lists(
        self,
        rows: list[Sample | None],
        batch: _Batch,
        tiles: list[Span],
        tile_counts: NDArray[np.int64],
    ) -> list[pl.Series]:
        if not self._want_ids:
            return [
                pl.Series(name, [None] * len(rows), dtype=SAMPLE_COLUMNS[name]) for name in LISTS
            ]
        present = np.array([row is not None for row in rows], dtype=np.bool_)
        pieces: list[Ids] = []
        runs = np.zeros((len(rows), 2), dtype=np.int64)
        runs[:, 1] = batch.lengths
        for i, row in enumerate(rows):
            if row is None:
                continue
            if row.prompt.ids is not None:
                pieces.append(row.prompt.ids)
                runs[i, 0] = len(row.prompt.ids)
            pieces.append(batch.flat[batch.bounds[i] : batch.bounds[i + 1]])
        ids = np.concatenate(pieces) if pieces else np.empty(0, dtype=np.int32)
        mask = np.repeat(np.tile(np.array([0, 1], dtype=np.uint8), len(rows)), runs.reshape(-1))
        lengths = runs.sum(axis=1)
        return [
            list_column("input_ids", ids, lengths, present),
            list_column("loss_mask", mask, lengths, present),
            span_column("spans", tiles, tile_counts, present),
        ]
