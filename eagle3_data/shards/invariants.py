"""Invariants of samples, one vectorised check a code over a whole row group.

What enters: a row group of schema v1. What leaves: code → one Boolean a row, True where it is
broken. It promises to hold for any values that the types allow: hostile lengths and spans break
rules, not the program.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from eagle3_data.shards import rules
from eagle3_data.shards.rows import sample_id
from eagle3_data.shards.schema import HASH, ShardFacts
from eagle3_data.tokens.samples import Grade, PromptSource, SpanKind

Flags = NDArray[np.bool_]
Ints = NDArray[np.int64]

STOP_TEXT = r"[^\d\[\]-]"
"""A stop reason that is no token id: a stop string of the request ended the answer, not an end of
turn.
"""

COUNTED = pa.array([Grade.B.value, Grade.C.value])
"""Grades that rest on `completion_tokens`; A has no quarrel with it where it is known."""

JSON_TEXTS = ("messages", "tools", "tool_calls", "template_kwargs", "settings")
"""Columns that hold JSON text, or null."""


@dataclass(frozen=True, slots=True)
class Lists:
    """A list column: row i is values[starts[i]:ends[i]]."""

    values: NDArray[Any]
    starts: Ints
    ends: Ints

    @property
    def lengths(self) -> Ints:
        """Items of each row."""
        return self.ends - self.starts

    @property
    def rows(self) -> Ints:
        """The row of every item, int64 [items]."""
        return np.repeat(np.arange(len(self.starts)), self.lengths)


def lists(column: pa.ChunkedArray) -> Lists:
    """A list column of numbers as numpy arrays."""
    array = _one(column)
    offsets = array.offsets.to_numpy(zero_copy_only=False).astype(np.int64)
    flat = (
        array.values.slice(int(offsets[0]), int(offsets[-1] - offsets[0]))
        if len(offsets)
        else array.values
    )
    first = offsets[0] if len(offsets) else 0
    return Lists(flat.to_numpy(zero_copy_only=False), offsets[:-1] - first, offsets[1:] - first)


def broken_rows(table: pa.Table, facts: ShardFacts) -> dict[str, Flags]:
    """Code → rows of `table` that break it."""
    ids, mask = lists(table["input_ids"]), lists(table["loss_mask"])
    seq_len, prompt_len = (_ints(table[name]) for name in ("seq_len", "prompt_len"))
    same = (ids.lengths == mask.lengths) & (ids.lengths == seq_len)
    tiles, wanted = _spans(table["spans"], seq_len, same)
    sampled = _total(mask, mask.values != 0)
    last = _last_sampled(ids, mask)
    ended = np.isin(last, facts.end_of_turn)
    out = {
        rules.LENGTHS_DIFFER: ~same,
        rules.MASK_NOT_BINARY: _any(mask, mask.values > 1),
        rules.ID_OUT_OF_RANGE: _any(ids, (ids.values < 0) | (ids.values >= facts.vocab_size)),
        rules.SPANS_DO_NOT_TILE: ~tiles,
        rules.MASK_NOT_SPANS: _mask_differs(mask, wanted, tiles & same),
        rules.COUNTS_DIFFER: same
        & tiles
        & (
            (sampled != _ints(table["supervised_tokens"]))
            | (_leading_zeros(mask) != prompt_len)
            | _usage_differs(table, sampled, ended)
        ),
    }
    if facts.end_of_turn:
        out[rules.END_NOT_SUPERVISED] = _end_missing(table, last, ended)
    return out


def _spans(column: pa.ChunkedArray, seq_len: Ints, same: Flags) -> tuple[Flags, Lists]:
    """Which rows are tiled; and for those that are `same` too (only their lengths are to be
    trusted) the mask that the spans ask for.
    """
    array = _one(column)
    offsets = array.offsets.to_numpy(zero_copy_only=False).astype(np.int64)
    starts_at, ends_at = offsets[:-1] - offsets[0], offsets[1:] - offsets[0]
    items = array.values.slice(int(offsets[0]), int(offsets[-1] - offsets[0]))
    start, end = (_ints(pc.struct_field(items, name)) for name in ("start", "end"))
    known = pc.is_in(
        pc.struct_field(items, "kind"), value_set=pa.array([k.value for k in SpanKind])
    )
    kind_known = known.to_numpy(zero_copy_only=False)
    prompt = pc.equal(pc.struct_field(items, "kind"), SpanKind.PROMPT.value).to_numpy(
        zero_copy_only=False
    )
    counts = ends_at - starts_at
    owner = np.repeat(np.arange(len(counts)), counts)
    before = np.concatenate([np.zeros(1, np.int64), end[:-1]]) if len(end) else end
    filled = counts > 0
    before[starts_at[filled]] = 0  # the first span of a row begins at 0
    wrong = (start != before) | (end <= start) | ~kind_known
    last = np.full(len(counts), -1, dtype=np.int64)
    last[filled] = end[ends_at[filled] - 1]
    tiles = filled & (last == seq_len)
    np.logical_and.at(tiles, owner, ~wrong)
    keep = (tiles & same)[owner]
    lengths = np.where(tiles & same, seq_len, 0)
    stops = np.cumsum(lengths)
    return tiles, Lists(np.repeat(~prompt[keep], (end - start)[keep]), stops - lengths, stops)


def _mask_differs(mask: Lists, wanted: Lists, comparable: Flags) -> Flags:
    """Rows whose mask is not `wanted`, among those where both have one length."""
    ours = mask.values[comparable[mask.rows]] != 0
    theirs = wanted.values[comparable[wanted.rows]]
    owner = mask.rows[comparable[mask.rows]]
    out = np.zeros(len(comparable), dtype=bool)
    out[owner[ours != theirs]] = True
    return out


def unmade_ids(table: pa.Table) -> Flags:
    """Rows whose `sample_id` is not made of their line hash, choice and turn. Columns that hold no
    hash at all are left to the contract.
    """
    names = ("sample_id", "line_hash", "choice", "turn")
    hashes = (pc.match_substring_regex(table[name], HASH) for name in names[:2])
    readable = pc.fill_null(pc.and_(*hashes), False).to_pylist()
    rows = zip(*(table[name].to_pylist() for name in names), readable, strict=True)
    return np.array(
        [ok and found != sample_id(line, choice, turn) for found, line, choice, turn, ok in rows],
        dtype=bool,
    )


def other_profiles(table: pa.Table, facts: ShardFacts) -> Flags:
    """Rows that name another profile than the facts of their folder."""
    return _flags(pc.not_equal(table["profile"], facts.profile))


def no_json(table: pa.Table) -> Iterator[tuple[int, str, str]]:
    """(row, column, why not) of texts in the columns of `JSON_TEXTS` that are no JSON."""
    for name in JSON_TEXTS:
        for row, text in enumerate(table[name].to_pylist()):
            try:
                if text is not None:
                    orjson.loads(text)
            except orjson.JSONDecodeError as error:
                yield row, name, str(error)[:80]


def _usage_differs(table: pa.Table, sampled: Ints, ended: Flags) -> Flags:
    """Rows of a proven grade beside counts of the server that would have refuted it: it counts
    what was sampled, and may leave out the stop token. What a cut took is not known, so there the
    count is only never the smaller one.
    """
    grade = table["grade"]
    cut = _flags(table["truncated"])
    count = _ints(pc.fill_null(table["completion_tokens"], 0))
    told = _flags(pc.is_valid(table["completion_tokens"]))
    fits = np.where(cut, count >= sampled, (count == sampled) | (count == sampled - ended))
    counted = _flags(pc.is_in(grade, value_set=COUNTED))
    proven = counted | _flags(pc.equal(grade, Grade.A.value))
    captured = _flags(pc.equal(table["prompt_source"], PromptSource.CAPTURED.value))
    asked = _flags(pc.fill_null(pc.equal(table["prompt_tokens"], table["prompt_len"]), True))
    return (proven & told & ~fits) | (counted & ~told) | (proven & captured & ~asked)


def _last_sampled(ids: Lists, mask: Lists) -> Ints:
    """The last id of each row, -1 where the model did not sample it."""
    out = np.full(len(ids.starts), -1, dtype=np.int64)
    filled = (ids.lengths > 0) & (mask.lengths > 0)
    sampled = mask.values[mask.ends[filled] - 1] != 0
    out[filled] = np.where(sampled, ids.values[ids.ends[filled] - 1], -1)
    return out


def _end_missing(table: pa.Table, last: Ints, ended: Flags) -> Flags:
    """The model stopped, and no end of turn, stop string or stop id of the request says how."""
    stopped = pc.fill_null(pc.equal(table["finish_reason"], "stop"), False)
    text = pc.fill_null(pc.match_substring_regex(table["stop_reason"], STOP_TEXT), False)
    asked = pc.fill_null(pc.equal(table["stop_reason"], pa.array(last).cast(pa.string())), False)
    expected = pc.and_not(pc.and_not(stopped, text), pc.or_(table["truncated"], asked))
    return _flags(expected) & ~ended


def _leading_zeros(mask: Lists) -> Ints:
    """Items before the first non-zero one of each row."""
    where = np.flatnonzero(mask.values)
    first = np.searchsorted(where, mask.starts)
    found = np.append(where, np.iinfo(np.int64).max)[first]
    zeros: Ints = np.minimum(found, mask.ends) - mask.starts
    return zeros


def _any(column: Lists, flags: Flags) -> Flags:
    out = np.zeros(len(column.starts), dtype=bool)
    if flags.any():
        out[column.rows[flags]] = True
    return out


def _total(column: Lists, flags: Flags) -> Ints:
    sums = np.concatenate([np.zeros(1, np.int64), np.cumsum(flags)])
    totals: Ints = sums[column.ends] - sums[column.starts]
    return totals


def _ints(column: pa.ChunkedArray | pa.Array) -> Ints:
    return np.asarray(
        column.to_numpy(zero_copy_only=False)
        if isinstance(column, pa.Array)
        else column.to_numpy(),
        dtype=np.int64,
    )


def _flags(column: pa.ChunkedArray | pa.Array) -> Flags:
    flags: Flags = _one(column).to_numpy(zero_copy_only=False)
    return flags


def _one(column: pa.ChunkedArray | pa.Array) -> Any:
    return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
