"""The spill: samples that wait for the corpus rules, the first of them in memory, the rest on disk.

What enters: measured batches of the road. What leaves: the rows of schema v1 that may become
samples, after the verdict, in order, filtered. It promises that no more than `HELD_BYTES` of them
stay in memory whatever the input's size, that a row depends on its own record only, and that the
folder of a dead run is removed by the next one.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import polars as pl

from eagle3_data.shards.admission import Admission
from eagle3_data.shards.length import cut_tails
from eagle3_data.shards.splits import Splits, with_splits
from eagle3_data.tokens.samples import SpanKind
from eagle3_data.writing import OutputError

if TYPE_CHECKING:
    import pyarrow as pa

    from eagle3_data.audit.judge import Judged
    from eagle3_data.pipeline import Stations

HELD_BYTES = 256 << 20
"""Rows kept in memory before the disk is used: 10,000 samples of 12 KB text. Without, the way to
the disk and back cost such a run 0.3 of its 3 seconds.
"""

CLEARINGS = 5
"""Tries to remove the folder."""

MARKS = ("refused", "tokens_lost", "inside_thought", "seq_len", "line_hash", "split")
"""What light records of a conversion hold besides those of a check."""


@dataclass(frozen=True, slots=True)
class Spill:
    """Tables, one a batch, named by the first line of it: by name they are in the order of the
    inputs, whichever worker added them when. Those beyond `budget` bytes are Arrow files in
    `folder`.
    """

    folder: Path
    budget: int = field(default_factory=lambda: HELD_BYTES)
    run: str = field(default_factory=lambda: uuid4().hex)
    """Where in `folder` the files of this run are: a process of a run that was killed may still
    write one.
    """
    _held: dict[str, pa.Table] = field(default_factory=dict)
    _turn: Lock = field(default_factory=Lock)

    def __reduce__(self) -> tuple[type[Spill], tuple[Path, int, str]]:
        """In another process nothing can be held: the rows are wanted in this one."""
        return Spill, (self.folder, 0, self.run)

    def clear(self) -> None:
        """Remove what a dead run left. Raises OutputError when it is nothing of ours."""
        if self.folder.is_symlink() or (self.folder.exists() and not self.folder.is_dir()):
            raise OutputError(f"{self.folder} is in the way: move it away")
        for _ in range(CLEARINGS):
            if not self.folder.exists():
                return
            foreign = [path.name for path in self.folder.iterdir() if not _ours(path)]
            if foreign:
                raise OutputError(f"{self.folder} holds {foreign[0]}, not ours: move it away")
            with suppress(OSError):  # a process of the dead run wrote its last file meanwhile
                shutil.rmtree(self.folder)
        raise OutputError(f"{self.folder} can not be removed: see who writes there, or remove it")

    def open(self) -> None:
        """Begin with an empty folder."""
        self.clear()
        self._files.mkdir(parents=True)

    @property
    def _files(self) -> Path:
        return self.folder / self.run

    def add(self, place: tuple[int, int], rows: pa.Table) -> None:
        """Keep the rows of one batch. `place`: number of the file, first line of the batch."""
        import pyarrow as pa

        name = f"{place[0]:06d}-{place[1]:012d}.arrow"
        with self._turn:
            if sum(table.nbytes for table in self._held.values()) + rows.nbytes <= self.budget:
                self._held[name] = rows
                return
        path = self._files / name
        # uncompressed: 0.2 s a 250 MB and read back as a view; lz4 costs 0.9 s for a third
        try:
            with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, rows.schema) as out:
                out.write_table(rows)
        except OSError as error:
            raise OutputError(
                f"{path} can not be written ({error.strerror or error}): a conversion needs room"
                " for its samples twice; make room and run the same command again"
            ) from error

    def tables(self, keep: pl.Series, codes: pl.Series) -> Iterator[pa.Table]:
        """The kept rows of all batches, with their codes, once. `keep`, `codes`: for every row that
        was added, in order.
        """
        import pyarrow as pa

        at = 0
        for name in sorted({*self._held, *(path.name for path in self._files.iterdir())}):
            rows = self._held.pop(name, None)
            if rows is None:
                with pa.memory_map(str(self._files / name)) as file:
                    rows = pa.ipc.open_file(file).read_all()
            wanted, told = keep.slice(at, rows.num_rows), codes.slice(at, rows.num_rows)
            at += rows.num_rows
            place = rows.schema.get_field_index("codes")
            field = rows.schema.field(place)
            column = told.to_arrow(compat_level=pl.CompatLevel.oldest()).cast(field.type)
            rows = rows.set_column(place, field, column)
            yield rows if wanted.all() else rows.filter(wanted.to_arrow())
        if at != len(keep):
            raise AssertionError(f"{at} rows were spilled, {len(keep)} are known")


@dataclass(frozen=True, slots=True)
class Conversion:
    """The stations of a check, and after them the spill."""

    stations: Stations
    spill: Spill
    admission: Admission
    splits: Splits
    files: Sequence[str]

    def run(self, records: pl.DataFrame) -> Judged:
        """One batch: judged as in a check, and its samples spilled. The light records get `MARKS`;
        a row is spilled when it is a record and `refused` is null.
        """
        from eagle3_data.records.table import Status
        from eagle3_data.shards.rows import shard_rows

        frame = self.stations.measured(records)
        judged = self.stations.judged(frame)
        frame = with_splits(frame, self.splits).with_columns(
            *self.admission.marks(), self._inside_thought()
        )
        light = judged.light.hstack(frame.select(*MARKS))
        samples = frame.filter(
            (pl.col("status") == Status.RECORD.value) & pl.col("refused").is_null()
        )
        if samples.height:
            limit = self.admission.max_length
            if self.admission.cuts and limit is not None:
                samples = cut_tails(samples, limit)
            rows = shard_rows(samples, files=self.files, profile=self.stations.profile.name)
            self.spill.add(samples.select("file_no", "line").row(0), rows)
        return replace(judged, light=light)

    def _inside_thought(self) -> pl.Expr:
        """The length limit falls into the thought of the record."""
        limit = self.admission.max_length
        if not self.admission.cuts or limit is None:
            return pl.lit(False).alias("inside_thought")
        field = pl.element().struct.field
        thought = field("kind").cast(pl.String) == SpanKind.REASONING.value
        hit = thought & (field("start") < limit) & (field("end") >= limit)
        return pl.col("spans").list.eval(hit).list.any().fill_null(False).alias("inside_thought")


def _ours(path: Path) -> bool:
    """A folder of a run (files, as former versions left them)."""
    return path.suffix == ".arrow" or (
        re.fullmatch("[0-9a-f]{32}", path.name) is not None and path.is_dir()
    )


def spilled(records: pl.DataFrame) -> pl.DataFrame:
    """The light records whose rows lie in the spill, in its order."""
    from eagle3_data.records.table import Status

    return records.filter((pl.col("status") == Status.RECORD.value) & pl.col("refused").is_null())


def reasons(findings: pl.DataFrame) -> dict[str, Any]:
    """Code → lines with an error of it: why lines are not in the shards."""
    counts = (
        findings.filter((pl.col("severity") == "error") & pl.col("line").is_not_null())
        .group_by("code")
        .agg(pl.struct("file_no", "line").n_unique().alias("lines"))
        .sort("code")
    )
    return dict(counts.iter_rows())
