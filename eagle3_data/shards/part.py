"""One shard on its way: row groups in, a whole Parquet file out.

What enters: tables of schema v1, one row group a call. What leaves: the file under its final name,
and what the manifest says about it. It promises that nothing lies under that name before the file
is whole and on the disk, and the same bytes whether it encodes on the caller's thread or its own.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from eagle3_data.shards.cuts import Layout
from eagle3_data.shards.manifest import Place, Shard
from eagle3_data.shards.schema import COLUMNS, arrow_schema
from eagle3_data.writing import Draft

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
]
"""Columns with few distinct values. Not `loss_mask`: zstd makes as little of plain zeros and ones,
in two thirds of the time. Not `input_ids`: on varied text (source code, zstd 3) its plain
ids take 24 % of the JSONL's bytes, with a dictionary 31, split into byte streams 29, delta-packed
twice as many; read back all alike. Only on repeated sentences a dictionary is better (6 against 8).
"""

STATISTICS = [
    column.name
    for column in COLUMNS
    if column.name
    not in ("messages", "prompt_text", "reasoning", "content", "tool_calls", "tools", "settings")
    and not column.type.startswith("list")
]
"""Long texts have no use for a smallest and a largest value, and no reader skips lists by one: to
find it in ids and mask is 8 % of their encoding.
"""


class Part:
    """One shard being written beside its name, on a thread of its own when `threaded`."""

    def __init__(self, path: Path, schema: pa.Schema, layout: Layout, *, threaded: bool) -> None:
        self.draft = Draft(path, overwrite=True)
        self._thread = ThreadPoolExecutor(1, "eagle3-data-shard") if threaded else None
        self._jobs: list[Future[None]] = []
        self.size = 0
        self._sums = Sums()
        self._sink = Sink(self.draft)
        self._out = pq.ParquetWriter(
            pa.PythonFile(self._sink, mode="w"),
            schema,
            compression="zstd",
            compression_level=layout.level,
            use_dictionary=DICTIONARY,
            write_statistics=STATISTICS,
            write_page_index=True,
            write_page_checksum=True,  # zstd notices half of the flipped bits by itself
            data_page_size=layout.page_bytes,
            version="2.6",
        )

    def add(self, tables: Sequence[pa.Table], size: int) -> None:
        """Append one row group. Raises OSError, at the latest when the shard lands."""
        self.size += size
        self._do(lambda: self._encode(tables))

    def _do(self, job: Callable[[], None]) -> None:
        if self._thread is None:
            job()
        else:
            self._jobs.append(self._thread.submit(job))

    def _encode(self, tables: Sequence[pa.Table]) -> None:
        # one chunk: the pages of a column would else end where the batches did
        group = pa.concat_tables([arrow_schema().empty_table(), *tables]).combine_chunks()
        if not group.num_rows:
            return
        self._out.write_table(group, row_group_size=group.num_rows)
        self._sums.add(group)

    def land(self) -> Shard:
        """Close the file, give it its name, say what it holds. Raises OSError."""
        self._do(self._close)
        for job in self._jobs:
            job.result()
        self.draft.land()
        return Shard(
            name=self.draft.path.name,
            bytes=self.draft.size,
            arrow_bytes=self.size,
            sha256=self.draft.sha256,
            **self._sums.told(),
        )

    def _close(self) -> None:
        self._out.close()
        self.draft.close()

    def drop(self) -> None:
        """Remove what did not land. Safe to call twice and after `land`."""
        if self._thread is not None:
            self._thread.shutdown(cancel_futures=True)
        self._sink.draft = None  # pyarrow writes the footer when its writer goes
        with contextlib.suppress(pa.ArrowException, OSError):
            self._out.close()
        self.draft.drop()


@dataclass(slots=True)
class Sums:
    """What the manifest says of the rows of a shard, added up a row group at a time: the writer
    writes it, `verify` adds it up again.
    """

    rows: int = 0
    tokens: int = 0
    supervised_tokens: int = 0
    last: Place | None = None
    _told: Any = field(default_factory=lambda: blake2b(digest_size=16))
    _ids: Any = field(default_factory=lambda: blake2b(digest_size=16))

    def add(self, group: pa.Table) -> None:
        """Count the rows of `group`, which follow those before."""
        if not group.num_rows:
            return
        self.rows += group.num_rows
        self.tokens += int(pc.sum(group["seq_len"]).as_py())
        self.supervised_tokens += int(pc.sum(group["supervised_tokens"]).as_py())
        self._told.update(told(group))
        self._ids.update("".join(group["sample_id"].to_pylist()).encode())
        names = ("file", "line", "offset", "choice", "turn")
        self.last = Place(**group.slice(group.num_rows - 1).select(names).to_pylist()[0])

    def told(self) -> dict[str, Any]:
        """By the names of `Shard`."""
        return {
            "rows": self.rows,
            "tokens": self.tokens,
            "supervised_tokens": self.supervised_tokens,
            "rows_hash": self._told.hexdigest(),
            "last": self.last,
        }

    def differing(self, shard: Shard) -> Iterator[tuple[str, Any, Any]]:
        """(name, what `shard` says, what the rows give) of all that differs."""
        for name, found in self.told().items():
            said = getattr(shard, name)
            # the first shards of schema v1 are told by their ids alone
            if found != said and not (name == "rows_hash" and said == self._ids.hexdigest()):
                yield name, said, found


@dataclass(slots=True)
class Sink:
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


def told(rows: pa.Table) -> bytes:
    """What rows are compared by, a line a row: the id says which line of the capture it is, the
    rest what the run made of it.
    """
    columns = (rows[name].to_pylist() for name in ("sample_id", "split", "truncated", "codes"))
    return b"".join(orjson.dumps(row) + b"\n" for row in zip(*columns, strict=True))
