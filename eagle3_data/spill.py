"""The spill: samples that wait on disk for the corpus rules.

What enters: measured batches of the road. What leaves: Arrow files with the rows of schema v1 that
may become samples, one file a batch, and after the verdict the same rows in order, filtered. It
promises that no token ids stay in memory, that a row depends on its own record only, and that the
folder of a dead run is removed by the next one.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

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

FOLDER = ".spill"
"""Inside the directory of the shards: its disk is the one that must hold them, and its lock says
that whoever left a spill there is dead.
"""

MARKS = ("refused", "tokens_lost", "inside_thought", "seq_len", "line_hash", "split")
"""What light records of a conversion hold besides those of a check."""


@dataclass(frozen=True, slots=True)
class Spill:
    """A folder of Arrow files, one a batch, named by the first line of it: by name they are in the
    order of the inputs, whichever worker wrote them when.
    """

    folder: Path

    def clear(self) -> None:
        """Remove what a dead run left. Raises OutputError when it is nothing of ours."""
        if self.folder.is_symlink() or (self.folder.exists() and not self.folder.is_dir()):
            raise OutputError(f"{self.folder} is in the way: move it away")
        if self.folder.exists():
            foreign = [path.name for path in self.folder.iterdir() if path.suffix != ".arrow"]
            if foreign:
                raise OutputError(f"{self.folder} holds {foreign[0]}, not ours: move it away")
            shutil.rmtree(self.folder)

    def open(self) -> None:
        """Begin with an empty folder."""
        self.clear()
        self.folder.mkdir()

    def add(self, place: tuple[int, int], rows: pa.Table) -> None:
        """Keep the rows of one batch. `place`: number of the file, first line of the batch."""
        import pyarrow as pa

        path = self.folder / f"{place[0]:06d}-{place[1]:012d}.arrow"
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
        """The kept rows of all batches, with their codes. `keep`, `codes`: for every row that was
        spilled, in order.
        """
        import pyarrow as pa

        at = 0
        for path in sorted(self.folder.iterdir()):
            with pa.memory_map(str(path)) as file:
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
