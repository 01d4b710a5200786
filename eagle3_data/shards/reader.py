"""The reader: a directory of shards as a lazy Polars frame, an Arrow dataset, or samples one by
one.

What enters: a directory that `convert` finished. What leaves: `Shards`, filtered as asked. It
promises that a half result, a foreign schema version or files of different runs are refused before
the first row, that a damaged file is an error with its name, and that samples come in the order of
the files, without torch and without a copy of the ids.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from functools import reduce
from operator import and_, index
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import NDArray

from eagle3_data.shards.manifest import MANIFEST, Manifest, load_manifest
from eagle3_data.shards.schema import COLUMNS, ShardError, ShardFacts, arrow_schema, read_facts
from eagle3_data.tokens.samples import Grade

if TYPE_CHECKING:
    import polars as pl
    import pyarrow as pa
    import pyarrow.dataset as ds

GRADES = tuple(grade.value for grade in Grade)
NAMES = frozenset(column.name for column in COLUMNS)
ROWS = 4096
"""Rows in memory at a time, of columns that are short."""


@dataclass(frozen=True, slots=True, eq=False)
class Sample:
    """One training sample. `input_ids`: int32 [n]; `loss_mask`: uint8 [n], 1 = sampled by the
    model; both read-only.
    """

    sample_id: str
    input_ids: NDArray[np.int32]
    loss_mask: NDArray[np.uint8]
    prompt_len: int
    grade: str
    split: str


@dataclass(frozen=True, slots=True)
class Condition:
    """`column` compared with `value` by `how`: is, in, at_least, at_most."""

    column: str
    how: str
    value: Any

    def on(self, column: Any) -> Any:
        """The comparison as an expression of the library that `column` belongs to."""
        match self.how:
            case "is":
                return column == self.value
            case "at_least":
                return column >= self.value
            case "at_most":
                return column <= self.value
        return column.is_in(self.value) if hasattr(column, "is_in") else column.isin(self.value)


@dataclass(frozen=True, slots=True, repr=False)
class Shards:
    """An opened directory; see `open_shards`. `where` narrows it, nothing is read before it is
    asked for.
    """

    directory: Path
    manifest: Manifest
    conditions: tuple[Condition, ...] = ()

    def __repr__(self) -> str:
        held, count = self.manifest, len(self.manifest.shards)
        columns = ", ".join(condition.column for condition in self.conditions)
        return (
            f"<Shards {str(self.directory)!r}: {held.rows:,} samples, {held.tokens:,} tokens,"
            f" {count} file{'s' * (count != 1)}{columns and f'; narrowed by {columns}'}>"
        )

    @property
    def files(self) -> list[Path]:
        """The Parquet files in order."""
        return [self.directory / shard.name for shard in self.manifest.shards]

    @property
    def facts(self) -> ShardFacts:
        """What all samples have in common: profile, tokenizer, template, rules."""
        return self.manifest.facts

    def where(
        self,
        *,
        min_grade: str | None = None,
        max_length: int | None = None,
        min_length: int | None = None,
        profile: str | None = None,
        split: str | None = None,
    ) -> Self:
        """Only samples of at least this grade (A is best), of a length in tokens, of a profile, of
        a split.

        Raises ShardError for a grade, a profile or a split that there is not, and for a value of
        another type.
        """
        named = {"min_grade": min_grade, "profile": profile, "split": split}
        for name, value in named.items():
            if value is not None and not isinstance(value, str):
                raise ShardError(f"{name} is one name, not {value!r:.80}")
        more: list[Condition] = []
        if min_grade is not None:
            if min_grade not in GRADES:
                raise ShardError(f"there is no grade {min_grade!r}: use one of {', '.join(GRADES)}")
            more.append(Condition("grade", "in", GRADES[: GRADES.index(min_grade) + 1]))
        if max_length is not None:
            more.append(Condition("seq_len", "at_most", _tokens("max_length", max_length)))
        if min_length is not None:
            more.append(Condition("seq_len", "at_least", _tokens("min_length", min_length)))
        if profile is not None:
            if profile != self.facts.profile:
                raise ShardError(
                    f"there is no profile {profile!r}: the shards are of {self.facts.profile}"
                )
            more.append(Condition("profile", "is", profile))
        if split is not None:
            known = self.manifest.ledger.get("splits")  # an import does not list its splits
            if isinstance(known, dict) and split not in known:
                raise ShardError(f"there is no split {split!r}: its splits are {', '.join(known)}")
            more.append(Condition("split", "is", split))
        return replace(self, conditions=(*self.conditions, *more))

    def lazy(self) -> pl.LazyFrame:
        """The rows as a lazy Polars frame, all columns of schema v1. Polars tests no checksums of
        pages: after a copy over a network run `verify` first, or take `frame`.
        """
        import polars as pl

        frame = pl.scan_parquet(self.files)
        for condition in self.conditions:
            frame = frame.filter(condition.on(pl.col(condition.column)))
        return frame

    def dataset(self) -> ds.Dataset:
        """The rows as an Arrow dataset, all columns of schema v1. A damaged page is an OSError of
        pyarrow's own while it is read.
        """
        return self._dataset(self.files)

    def frame(self, columns: Sequence[str], limit: int | None = None) -> pl.DataFrame:
        """These columns of the rows, at most `limit`, in order, read with checksums. Raises as
        `batches` does.
        """
        import polars as pl
        import pyarrow as pa

        names = _known(columns)
        held, room = [arrow_schema().empty_table().select(names)], limit
        for batch in self.batches(names):
            held.append(pa.Table.from_batches([batch.slice(0, room)]).select(names))
            if room is not None:
                room -= held[-1].num_rows
                if room <= 0:
                    break
        made = pl.from_arrow(pa.concat_tables([table.cast(held[0].schema) for table in held]))
        assert isinstance(made, pl.DataFrame)
        return made

    def batches(
        self, columns: Iterable[str], *, rows: int = ROWS, ahead: int = 2
    ) -> Iterator[pa.RecordBatch]:
        """Batches of at most `rows` samples with these columns, in order, none of them empty;
        `ahead`: how many are read ahead. Raises ShardError for a column that there is not, and for
        a file that is damaged.
        """
        columns = _known(columns)
        for path in self.files:
            with self._reading(path):
                found = self._dataset([path]).to_batches(
                    columns=columns, batch_size=rows, batch_readahead=ahead
                )
            while True:
                with self._reading(path):
                    batch = next(found, None)
                    if batch is not None:
                        batch.validate(full=True)  # damage that still unpacks: offsets, UTF-8
                if batch is None:
                    break
                if batch.num_rows:
                    yield batch

    def splits(self) -> dict[str, int]:
        """Split → samples after the filters, by name; the rows are counted."""
        counts: Counter[str] = Counter()
        for batch in self.batches(["split"]):
            for one in batch.column("split").value_counts().to_pylist():
                counts[one["values"]] += one["counts"]
        return dict(sorted(counts.items()))

    def _dataset(self, files: list[Path]) -> ds.Dataset:
        import pyarrow.dataset as ds

        schema = arrow_schema(self.facts)
        proven = ds.ParquetFragmentScanOptions(page_checksum_verification=True)
        form = ds.ParquetFileFormat(default_fragment_scan_options=proven)
        found = ds.dataset([str(path) for path in files], schema=schema, format=form)
        conditions = [c.on(ds.field(c.column)) for c in self.conditions]
        return found.filter(reduce(and_, conditions)) if conditions else found

    def __iter__(self) -> Iterator[Sample]:
        """Samples in order; one row group is in memory at a time."""
        for batch in self._groups():
            yield from _samples(batch)

    def __len__(self) -> int:
        """Samples, after the filters."""
        if not self.conditions:
            return self.manifest.rows
        return sum(batch.num_rows for batch in self.batches([self.conditions[0].column]))

    def _reading(self, path: Path) -> AbstractContextManager[None]:
        return reading(path, self.directory)

    def _groups(self) -> Iterator[pa.Table]:
        import pyarrow.parquet as pq

        names = ["sample_id", "input_ids", "loss_mask", "prompt_len", "grade", "split"]
        needed = [*names, *(c.column for c in self.conditions if c.column not in names)]
        for path in self.files:
            with self._reading(path):
                file = pq.ParquetFile(path, page_checksum_verification=True)
            with file:
                for group in range(file.num_row_groups):
                    with self._reading(path):
                        rows = file.read_row_group(group, columns=needed)
                    yield self._chosen(rows)

    def _chosen(self, table: pa.Table) -> pa.Table:
        import pyarrow.compute as pc

        conditions = [c.on(pc.field(c.column)) for c in self.conditions]
        return table.filter(reduce(and_, conditions)) if conditions else table


def open_shards(directory: str | Path) -> Shards:
    """Open a finished directory.

    Raises ShardError, naming file and next step: a file in place of a folder, no manifest (the run
    did not finish), an edited one, a file that is missing or of another size, a foreign schema
    version, files of different runs. Contents are not hashed: `verify`.
    """
    import pyarrow.parquet as pq

    path = Path(directory)
    if path.is_file():
        raise ShardError(f"{path} is a file: name its folder, {path.parent}")
    manifest = load_manifest(path)
    if not manifest.sound:
        raise ShardError(f"{path / MANIFEST} was edited: run `verify {path}`")
    for shard in manifest.shards:
        file = path / shard.name
        size = file.stat().st_size if file.is_file() else None
        if size is None:
            raise ShardError(f"{file} is missing: run `verify {path}`")
        if size != shard.bytes:
            raise ShardError(
                f"{file} has {size} bytes, the manifest says {shard.bytes}: run `verify {path}`"
            )
        with reading(file, path):
            schema = pq.read_schema(file)
        if read_facts(schema.metadata, str(file)) != manifest.facts:
            raise ShardError(
                f"{file} is of a run with another profile, tokenizer or template than the"
                f" manifest says: run `verify {path}`"
            )
        if not schema.equals(arrow_schema()):
            raise ShardError(f"{file} has other columns than schema v1: run `verify {path}`")
    return Shards(path, manifest)


@contextmanager
def reading(file: Path, directory: Path) -> Iterator[None]:
    """What pyarrow raises inside, bit rot above all, as a ShardError that names file and next step.
    Nothing may be written inside: a full disk would be called damage.
    """
    import pyarrow as pa

    try:
        yield
    except (pa.ArrowException, OSError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise ShardError(f"{file} can not be read ({reason}): run `verify {directory}`") from None


def _known(columns: Iterable[str]) -> list[str]:
    """`columns`, all of them of schema v1. Raises ShardError."""
    names = list(columns)
    for name in names:
        if name not in NAMES:
            raise ShardError(f"schema v1 has no column {name!r}")
    return names


def _tokens(name: str, value: Any) -> int:
    """A length as an int, also one of numpy's. Raises ShardError."""
    try:
        length = -1 if isinstance(value, bool) else index(value)
    except TypeError:
        length = -1
    if not 0 <= length < 2**63:
        raise ShardError(f"{name} is a whole number of tokens, not {value!r:.80}")
    return length


def _samples(table: pa.Table) -> Iterator[Sample]:
    table = table.combine_chunks()
    if not table.num_rows:
        return
    offsets, ids = flat(table["input_ids"])
    mask_offsets, mask = flat(table["loss_mask"])
    names = ("sample_id", "prompt_len", "grade", "split")
    rows = zip(*(table[name].to_pylist() for name in names), strict=True)
    bounds = zip(offsets, offsets[1:], mask_offsets, mask_offsets[1:], strict=False)
    for (key, prompt_len, grade, split), (a, b, c, d) in zip(rows, bounds, strict=True):
        yield Sample(key, ids[a:b], mask[c:d], prompt_len, grade, split)


def flat(column: pa.ChunkedArray) -> tuple[list[int], NDArray[Any]]:
    """Offsets and values of a list column of one chunk, the values as a view of its buffer."""
    array = column.chunk(0)
    return array.offsets.to_pylist(), array.values.to_numpy(zero_copy_only=True)
