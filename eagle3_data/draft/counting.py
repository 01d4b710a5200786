"""How often each token is supervised, in one pass over shards: overall, and by grade, phase, file.

What enters: opened shards. What leaves: `Counts`, one vector of the vocabulary a group. It promises
memory that does not grow with the data (one batch, and at most `FILES` files apart), and that ids
or spans which are not sound stop it with the name of the command that finds them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from eagle3_data.shards.schema import ShardError
from eagle3_data.tokens.samples import SpanKind

if TYPE_CHECKING:
    import pyarrow as pa

    from eagle3_data.shards.reader import Shards

ROWS = 512
"""Samples in memory at a time."""
FILES = 64
"""Source files that get counts of their own; a vocabulary of 163,840 takes 1.3 MB each."""
OTHERS = "other files"

PHASES = {
    SpanKind.REASONING: "thinking",
    SpanKind.CONTENT: "answer",
    SpanKind.TOOLS: "tools",
    SpanKind.MARKER: "markers",
    SpanKind.PROMPT: "prompt",
}
"""Span kinds as people call them."""
PROMPT = list(PHASES).index(SpanKind.PROMPT)

Vector = NDArray[np.int64]


@dataclass(slots=True)
class Counts:
    """Times a token is supervised, int64 [vocabulary], overall and by group."""

    vocab_size: int
    samples: int = 0
    by_grade: dict[str, Vector] = field(default_factory=dict)
    by_file: dict[str, Vector] = field(default_factory=dict)
    phases: Vector = field(init=False)
    """int64 [phases, vocabulary], in the order of PHASES."""

    def __post_init__(self) -> None:
        self.phases = np.zeros((len(PHASES), self.vocab_size), dtype=np.int64)

    @property
    def total(self) -> Vector:
        """Over everything."""
        total: Vector = self.phases.sum(axis=0)
        return total

    @property
    def tokens(self) -> int:
        """Supervised tokens."""
        return int(self.phases.sum())

    @property
    def distinct(self) -> int:
        """Tokens that are supervised at least once."""
        return int(np.count_nonzero(self.phases.any(axis=0)))

    @property
    def by_phase(self) -> dict[str, Vector]:
        """Phases that occur."""
        rows = zip(PHASES.values(), self.phases, strict=True)
        return {name: counts for name, counts in rows if counts.any()}

    def groups(self) -> list[tuple[str, str, Vector]]:
        """(kind of group, name, counts), in the order in which a report shows them."""
        kinds = (("grade", self.by_grade), ("phase", self.by_phase), ("file", self.by_file))
        return [
            (kind, name, found[name])
            for kind, found in kinds
            for name in (found if kind == "phase" else sorted(found))
        ]

    def add(self, batch: pa.RecordBatch) -> None:
        """Count one batch with the columns of `COLUMNS`. Raises ShardError.

        What is supervised is taken from the spans, which a mask must equal (SHD017), and their sum
        compared with that of the mask: reading all masks would double the time.
        """
        lengths, ids = _flat(batch, "input_ids")
        if ids.size and not 0 <= int(ids.min()) <= int(ids.max()) < self.vocab_size:
            raise _unsound(f"an id is not below {self.vocab_size:,}")
        kinds = _kinds(batch, lengths)
        phases = self._table(ids, kinds, len(PHASES))
        phases[PROMPT] = 0
        self.phases += phases
        self.samples += batch.num_rows
        for column, found in (("grade", self.by_grade), ("file", self.by_file)):
            names, codes = _coded(batch, column)
            if column == "file":
                names = [name if self._room(name) else OTHERS for name in names]
            if len(names) == 1:  # most batches: one file, one grade
                tables = phases.sum(axis=0)[None]
            else:
                sampled = kinds != PROMPT
                each = np.repeat(codes, lengths)[sampled]
                tables = self._table(ids[sampled], each, len(names))
            for name, counts in zip(names, tables, strict=True):
                found.setdefault(name, np.zeros(self.vocab_size, dtype=np.int64))
                found[name] += counts

    def _room(self, name: str) -> bool:
        """Whether a file has counts of its own; it gets them while there is room."""
        if name not in self.by_file and len(self.by_file) < FILES:
            self.by_file[name] = np.zeros(self.vocab_size, dtype=np.int64)
        return name in self.by_file

    def _table(self, ids: NDArray[Any], codes: NDArray[Any], groups: int) -> Vector:
        """Counts int64 [groups, vocabulary], by one bincount over both."""
        size = groups * self.vocab_size
        keys: NDArray[Any] = codes.astype(np.int32 if size < 2**31 else np.int64)  # int64 is slow
        keys *= self.vocab_size
        keys += ids
        return np.bincount(keys, minlength=size).reshape(groups, self.vocab_size)


COLUMNS = ("input_ids", "supervised_tokens", "spans", "grade", "file")


def count(
    shards: Shards, vocab_size: int, *, progress: Callable[[int, int], None] | None = None
) -> Counts:
    """Count the supervised tokens of `shards` (narrow them with `where`). Raises ShardError.

    `progress` is called with (bytes read, bytes in all), by the share of rows.
    """
    counts = Counts(vocab_size)
    size = sum(shard.bytes for shard in shards.manifest.shards)
    rows = max(shards.manifest.rows, 1)
    for batch in shards.batches(COLUMNS, rows=ROWS, ahead=4):
        counts.add(batch)
        if progress is not None:
            progress(size * counts.samples // rows, size)
    return counts


def _flat(batch: pa.RecordBatch, name: str) -> tuple[NDArray[np.int64], NDArray[Any]]:
    """Lengths of the rows of a list column, and all its values."""
    array = batch.column(name)
    offsets = array.offsets.to_numpy().astype(np.int64)
    return np.diff(offsets), array.flatten().to_numpy(zero_copy_only=False)


def _kinds(batch: pa.RecordBatch, lengths: NDArray[np.int64]) -> NDArray[np.uint8]:
    """The place in PHASES of every token, uint8 [tokens]."""
    import pyarrow as pa
    import pyarrow.compute as pc

    array = batch.column("spans")
    offsets = array.offsets.to_numpy().astype(np.int64)
    items = array.flatten()
    start, end = (
        pc.struct_field(items, n).to_numpy(zero_copy_only=False).astype(np.int64)
        for n in ("start", "end")
    )
    known = pa.array([kind.value for kind in PHASES])
    codes = pc.fill_null(pc.index_in(pc.struct_field(items, "kind"), value_set=known), 255)
    kinds = codes.to_numpy(zero_copy_only=False).astype(np.uint8)
    sizes = end - start
    sums = np.concatenate([np.zeros(1, np.int64), np.cumsum(sizes)])
    bounds = offsets - offsets[0]
    tiled = np.array_equal(sums[bounds[1:]] - sums[bounds[:-1]], lengths)
    if not tiled or (kinds == 255).any() or (sizes < 0).any():
        raise _unsound("the spans do not tile the sequences")
    sums = np.concatenate([np.zeros(1, np.int64), np.cumsum(np.where(kinds == PROMPT, 0, sizes))])
    told = batch.column("supervised_tokens").to_numpy(zero_copy_only=False)
    if not np.array_equal(sums[bounds[1:]] - sums[bounds[:-1]], told):
        raise _unsound("the spans hold other sampled tokens than were counted")
    return np.repeat(kinds, sizes)


def _coded(batch: pa.RecordBatch, name: str) -> tuple[list[str], NDArray[np.int64]]:
    """Distinct values of a text column, and the place of each row's value among them."""
    encoded = batch.column(name).dictionary_encode()
    codes = encoded.indices.to_numpy(zero_copy_only=False).astype(np.int64)
    return [str(value) for value in encoded.dictionary.to_pylist()], codes


def _unsound(what: str) -> ShardError:
    return ShardError(f"the shards are not sound ({what}): run `verify` on the folder")
