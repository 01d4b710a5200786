"""The writer: tables of rows in order become shards, byte for byte the same whatever the batches
were.

What enters: tables of `shard_rows`. What leaves: `part-00000.parquet`, …, and `manifest.json` last.
It promises that a file appears under its name only when it is whole and on the disk, that a run
killed at any moment goes on behind its finished shards when the same rows are fed again, and that
other rows are noticed and refused.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path
from types import TracebackType
from typing import Any

import pyarrow as pa

from eagle3_data.shards.cuts import Layout, fitting, row_sizes
from eagle3_data.shards.journal import SHARDS, open_journal
from eagle3_data.shards.manifest import MANIFEST, Identity, Manifest, Place, Shard
from eagle3_data.shards.part import Part, told
from eagle3_data.shards.rows import conform
from eagle3_data.shards.schema import ShardError, ShardFacts, arrow_schema

BESIDE = ("README.md",)
"""A dataset card may lie beside the shards."""


class ShardWriter:
    """Writes one run into `directory`. Use as a context; `finish` makes it complete.

    `options`, `inputs`: JSON values that decide the output (thresholds, codes, splits; names, sizes
    and digests of the inputs); with `facts` and `layout` they are the identity of the run, and
    stored in the manifest. `beside`: names of further files that may lie in the directory.
    `threads`: shards that are encoded at a time, each on a thread of its own (pyarrow encodes one
    file on one core); their rows are in memory. The bytes do not depend on it. Raises ShardError as
    `open_journal` does.

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
        threads: int = 1,
    ) -> None:
        self.layout = layout or Layout()
        self._identity = Identity.model_validate(
            {
                "facts": facts,
                "options": dict(options or {}),
                "inputs": [dict(entry) for entry in inputs],
                "layout": self.layout.to_dict(),
            }
        )
        self._schema = arrow_schema(facts)
        self._journal = open_journal(
            directory, SHARDS, self._identity, overwrite=overwrite, beside=(*BESIDE, *beside)
        )
        self.directory = directory
        self._finished = tuple(self._journal.files)
        self._seen = _Seen([shard for shard in self._finished if shard.rows])
        self._begun = False
        self._threads = threads
        self._open: Part | None = None
        self._landing: deque[Part] = deque()
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
        if self.complete:
            found = ["complete already, made by the same run: compared, nothing is written"]
        elif self._finished:
            count = len(self._finished)
            found = [f"{count} finished shard{'s' * (count > 1)} of an earlier start: not redone"]
        else:
            found = []
        return (*self._journal.notes, *(f"{self.directory}: {text}" for text in found))

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
        if self._pending or self._open is not None or not self._journal.files:
            self._write_group()
            self._finish_shard()
        while self._landing:
            self._land()
        shards = self._journal.files
        manifest = Manifest(
            schema_version=1,
            identity=self._identity,
            ledger=dict(ledger),
            rows=sum(shard.rows for shard in shards),
            tokens=sum(shard.tokens for shard in shards),
            supervised_tokens=sum(shard.supervised_tokens for shard in shards),
            shards=shards,
        ).sealed()
        if self._journal.manifest is None:
            try:
                self._journal.seal(manifest)
            except OSError as error:
                raise _full(self.directory / MANIFEST, error) from error
        elif self._journal.manifest != manifest:
            raise self._other("gives another ledger than the finished shards")
        self._journal.remove()
        self.close()
        return manifest

    def close(self) -> None:
        """Stop. What is not finished is dropped; finished shards and the journal stay for the next
        start.
        """
        for part in (*self._landing, *([] if self._open is None else [self._open])):
            part.drop()
        self._landing.clear()
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
            number = len(self._journal.files) + len(self._landing)
            path = self.directory / SHARDS.file_name(number)
            self._open = Part(path, self._schema, self.layout, threaded=self._threads > 1)
        try:
            self._open.add(tuple(self._pending), self._held_bytes)
        except OSError as error:
            raise _full(self._open.draft.path, error) from error
        self._pending.clear()
        self._held_rows = self._held_bytes = 0

    def _finish_shard(self) -> None:
        assert self._open is not None
        self._landing.append(self._open)
        self._open = None
        while len(self._landing) >= self._threads:
            self._land()

    def _land(self) -> None:
        """Wait for the oldest shard on its way. They land in order: what lies in the directory is
        what the journal names, and at most the one that follows.
        """
        part = self._landing.popleft()
        try:
            self._journal.add(part.land())
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
    """Finished shards whose rows are still to come again: compared by a digest over `told`, and not
    encoded twice.
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
            self.ids.update(told(rows.slice(0, count)))
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


def _full(path: Path, error: OSError) -> ShardError:
    reason = error.strerror or str(error)
    return ShardError(
        f"{path} can not be written ({reason}): make room and run the same command again;"
        " finished shards are kept"
    )
