"""The writer: tables of rows in order become shards, byte for byte the same whatever the batches
were.

What enters: tables of `shard_rows`. What leaves: `part-00000.parquet`, …, and `manifest.json` last.
It promises that a file appears under its name only when it is whole and on the disk, that a run
killed at any moment goes on behind its finished shards when the same rows are fed again, and that
other rows are noticed and refused.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path
from types import TracebackType
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from eagle3_data.shards.cuts import Layout, fitting, row_sizes
from eagle3_data.shards.journal import open_journal, shard_name, sync
from eagle3_data.shards.manifest import MANIFEST, Identity, Manifest, Place, Shard
from eagle3_data.shards.rows import conform
from eagle3_data.shards.schema import COLUMNS, ShardError, ShardFacts, arrow_schema
from eagle3_data.writing import Draft, drafting

DICTIONARY = [
    "split",
    "grade",
    "grade_reason",
    "finish_reason",
    "stop_reason",
    "prompt_source",
    "tools",
    "template_kwargs",
    "profile",
    "model",
    "server",
    "server_version",
    "file",
    "repair",
    "codes.list.element",
    "spans.list.element.kind",
    "loss_mask.list.element",
]
"""Columns with few distinct values. Not `input_ids`: on varied text (source code, zstd 3) its plain
ids take 24 % of the JSONL's bytes, with a dictionary 31, split into byte streams 29, delta-packed
twice as many; read back all alike. Only on repeated sentences a dictionary is better (6 against 8).
"""

STATISTICS = [
    column.name
    for column in COLUMNS
    if column.name
    not in ("messages", "prompt_text", "reasoning", "content", "tool_calls", "tools", "settings")
]
"""Long texts have no use for a smallest and a largest value."""


class ShardWriter:
    """Writes one run into `directory`. Use as a context; `finish` makes it complete.

    `options`, `inputs`: JSON values that decide the output (thresholds, codes, splits; names, sizes
    and digests of the inputs); with `facts` and `layout` they are the identity of the run, and
    stored in the manifest. `beside`: names of further files that may lie in the directory. Raises
    ShardError as `open_journal` does.

    A run that was begun before goes on: feed the same rows again, those of finished shards are
    compared and left out; or call `skip_finished()` and feed only the rows behind `resume_at`.
    """

    def __init__(
        self,
        directory: Path,
        facts: ShardFacts,
        *,
        options: Mapping[str, Any] | None = None,
        inputs: Sequence[Mapping[str, Any]] = (),
        layout: Layout | None = None,
        overwrite: bool = False,
        beside: Collection[str] = (),
    ) -> None:
        self.layout = layout or Layout()
        identity = Identity.model_validate(
            {
                "facts": facts,
                "options": dict(options or {}),
                "inputs": [dict(entry) for entry in inputs],
                "layout": self.layout.to_dict(),
            }
        )
        self._schema = arrow_schema(facts)
        self._journal = open_journal(directory, identity, overwrite=overwrite, beside=beside)
        self.directory = directory
        self._finished = tuple(self._journal.shards)
        self._seen = _Seen([shard for shard in self._finished if shard.rows])
        self._begun = False
        self._open: _Part | None = None
        self._pending: list[pa.Table] = []
        self._held_rows = self._held_bytes = 0

    @property
    def finished_rows(self) -> int:
        """Rows in shards that a former start of this run finished."""
        return sum(shard.rows for shard in self._finished)

    @property
    def resume_at(self) -> Place | None:
        """Where the last finished row comes from; None when no shard is finished."""
        return self._finished[-1].last if self._finished else None

    @property
    def complete(self) -> bool:
        """The directory was complete already, made by the same run."""
        return self._journal.manifest is not None

    @property
    def notes(self) -> Sequence[str]:
        """What the user must be told about the directory as it was found."""
        return tuple(self._journal.notes)

    def skip_finished(self) -> None:
        """Say that the next row written is the one behind `resume_at`."""
        self._seen.shards.clear()

    def write(self, rows: pa.Table) -> None:
        """Append rows in order. Raises ShardError for other rows than those of finished shards, and
        on a full disk.
        """
        rows = self._seen.rest(conform(rows), self.directory)
        sizes, start = row_sizes(rows), 0
        if self._finished and rows.num_rows and not self._begun:
            # a shard with room for more was the last one of its run
            if self._finished[-1].arrow_bytes + int(sizes[0]) <= self.layout.shard_bytes:
                raise self._other("has more rows than the finished shards")
            self._begun = True
        while start < rows.num_rows:
            room = self.layout.group_bytes - self._held_bytes
            left = (
                self.layout.shard_bytes - self._held_bytes - (self._open.size if self._open else 0)
            )
            count = fitting(sizes, start, min(room, left), self.layout.group_rows - self._held_rows)
            if (
                count == 0
                and self._held_rows == 0
                and (self._open is None or left >= int(sizes[start]))
            ):
                count = 1  # a row larger than a group has a group of its own
            if count == 0:
                self._write_group()
                if (
                    self._open is not None
                    and int(sizes[start]) > self.layout.shard_bytes - self._open.size
                ):
                    self._finish_shard()
                continue
            self._pending.append(rows.slice(start, count))
            self._held_rows += count
            self._held_bytes += int(sizes[start : start + count].sum())
            start += count

    def finish(self, ledger: Mapping[str, Any]) -> Manifest:
        """Write the last shard and the manifest. A run without rows has one empty shard, so that
        readers find a schema.

        Raises ShardError when the rows of finished shards were not all fed, and on a full disk.
        """
        if self._seen.shards:
            raise self._other("has fewer rows than the finished shards")
        if self._pending or self._open is not None or not self._journal.shards:
            self._write_group()
            self._finish_shard()
        shards = self._journal.shards
        manifest = Manifest(
            schema_version=1,
            identity=self._journal.identity,
            ledger=dict(ledger),
            rows=sum(shard.rows for shard in shards),
            tokens=sum(shard.tokens for shard in shards),
            supervised_tokens=sum(shard.supervised_tokens for shard in shards),
            shards=shards,
        ).sealed()
        if self._journal.manifest is None:
            path = self.directory / MANIFEST
            try:
                with drafting(path, overwrite=True) as draft:
                    draft.write(manifest.to_bytes())
            except OSError as error:
                raise _full(path, error) from error
            sync(self.directory)
        elif self._journal.manifest != manifest:
            raise self._other("gives another ledger than the finished shards")
        self._journal.remove()
        self.close()
        return manifest

    def close(self) -> None:
        """Stop. What is not finished is dropped; finished shards and the journal stay for the next
        start.
        """
        if self._open is not None:
            self._open.drop()
            self._open = None
        self._pending.clear()
        self._journal.close()

    def __enter__(self) -> ShardWriter:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _write_group(self) -> None:
        if self._open is None:
            path = self.directory / shard_name(len(self._journal.shards))
            self._open = _Part(path, self._schema, self.layout)
        # one chunk: the pages of a column would else end where the batches did
        group = pa.concat_tables([arrow_schema().empty_table(), *self._pending]).combine_chunks()
        try:
            self._open.add(group, self._held_bytes)
        except OSError as error:
            raise _full(self._open.draft.path, error) from error
        self._pending.clear()
        self._held_rows = self._held_bytes = 0

    def _finish_shard(self) -> None:
        assert self._open is not None
        part, self._open = self._open, None
        try:
            shard = part.land()
            sync(self.directory)
            self._journal.add(shard)
        except OSError as error:
            raise _full(part.draft.path, error) from error
        finally:
            part.drop()

    def _other(self, difference: str) -> ShardError:
        return ShardError(
            f"{self.directory}: the input {difference}, it changed since they were"
            " written: pass --overwrite"
        )


@dataclass(slots=True)
class _Seen:
    """Finished shards whose rows are still to come again. Their sample ids are compared, so nothing
    is encoded twice.
    """

    shards: list[Shard]
    rows: int = 0
    ids: Any = field(default_factory=lambda: blake2b(digest_size=16))

    def rest(self, rows: pa.Table, directory: Path) -> pa.Table:
        """The rows that belong to no finished shard. Raises ShardError when a finished shard holds
        other rows.
        """
        while self.shards and rows.num_rows:
            count = min(self.shards[0].rows - self.rows, rows.num_rows)
            self.ids.update(_ids_of(rows.slice(0, count)))
            self.rows += count
            rows = rows.slice(count)
            if self.rows == self.shards[0].rows:
                shard = self.shards.pop(0)
                if self.ids.hexdigest() != shard.rows_hash:
                    raise ShardError(
                        f"{directory / shard.name} holds other rows than the input gives,"
                        " it changed since: pass --overwrite to begin again"
                    )
                self.rows, self.ids = 0, blake2b(digest_size=16)
        return rows


class _Part:
    """One shard being written beside its name."""

    def __init__(self, path: Path, schema: pa.Schema, layout: Layout) -> None:
        self.draft = Draft(path, overwrite=True)
        self.size = 0
        self._rows = self._tokens = self._supervised = 0
        self._ids = blake2b(digest_size=16)
        self._last: Place | None = None
        self._sink = _Sink(self.draft)
        self._out = pq.ParquetWriter(
            pa.PythonFile(self._sink, mode="w"),
            schema,
            compression="zstd",
            compression_level=layout.level,
            use_dictionary=DICTIONARY,
            write_statistics=STATISTICS,
            write_page_index=True,
            data_page_size=layout.page_bytes,
            version="2.6",
        )

    def add(self, group: pa.Table, size: int) -> None:
        """Append one row group. Raises OSError."""
        if not group.num_rows:
            return
        self._out.write_table(group, row_group_size=group.num_rows)
        self.size += size
        self._rows += group.num_rows
        self._tokens += int(pc.sum(group["seq_len"]).as_py())
        self._supervised += int(pc.sum(group["supervised_tokens"]).as_py())
        self._ids.update(_ids_of(group))
        names = ("file", "line", "offset", "choice", "turn")
        self._last = Place(**group.slice(group.num_rows - 1).select(names).to_pylist()[0])

    def land(self) -> Shard:
        """Close the file, give it its name, say what it holds. Raises OSError."""
        self._out.close()
        self.draft.land()
        return Shard(
            name=self.draft.path.name,
            rows=self._rows,
            bytes=self.draft.size,
            arrow_bytes=self.size,
            sha256=self.draft.sha256,
            tokens=self._tokens,
            supervised_tokens=self._supervised,
            rows_hash=self._ids.hexdigest(),
            last=self._last,
        )

    def drop(self) -> None:
        """Remove what did not land. Safe to call twice and after `land`."""
        self._sink.draft = None  # pyarrow writes the footer when its writer goes
        with contextlib.suppress(pa.ArrowException, OSError):
            self._out.close()
        self.draft.drop()


@dataclass(slots=True)
class _Sink:
    """What pyarrow writes to: it hands bytes to a draft, which counts and hashes them."""

    draft: Draft | None
    size: int = 0
    closed: bool = False

    def write(self, data: bytes) -> int:
        if self.draft is not None:
            self.draft.write(data)
        self.size += len(data)
        return len(data)

    def tell(self) -> int:
        return self.size

    def flush(self) -> None:
        return None

    def close(self) -> None:
        self.closed = True


def _ids_of(rows: pa.Table) -> bytes:
    return "".join(rows["sample_id"].to_pylist()).encode()


def _full(path: Path, error: OSError) -> ShardError:
    reason = error.strerror or str(error)
    return ShardError(
        f"{path} can not be written ({reason}): make room and run the same command again;"
        " finished shards are kept"
    )
