"""Where row groups and shards end: by the accumulated size of their rows, and by nothing else.

What enters: a table of schema v1. What leaves: a size for each row, and the number of rows that
still fit. It promises that a cut depends on the sequence of rows only, never on batch borders,
threads or the clock.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

_SPAN_BYTES = 24
"""A span: two int32, and a short word with its offset."""
_CODE_BYTES = 10


@dataclass(frozen=True, slots=True)
class Layout:
    """Sizes and Parquet settings. Bytes are uncompressed Arrow bytes, counted row by row
    (`row_sizes`).

    `group_bytes` holds one row group far below 2^31 items a list column, the limit that many
    readers break at, and is what a reader of one row has to decode. `shard_bytes` is what one
    thread encodes at a time and what a killed run does again: half a second of work, 10 MB to 40 MB
    on disk. `level`: zstd; measured on records of 12 KB, scaled to 120 MB of JSONL: 3 takes 1.1 s
    of CPU and gives 15 % of the JSONL's bytes, 6 takes 2.6 s for 13 %, 1 takes as long as 3 for
    18 %.
    """

    shard_bytes: int = 128 << 20
    group_bytes: int = 32 << 20
    group_rows: int = 8192
    level: int = 3
    page_bytes: int = 1 << 20

    def to_dict(self) -> dict[str, Any]:
        """As JSON, with the writer's version: another pyarrow may write other bytes for the same
        rows.
        """
        return {**asdict(self), "pyarrow": pa.__version__}


def row_sizes(table: pa.Table) -> NDArray[np.int64]:
    """Uncompressed bytes of each row, int64 [rows]: values and offsets, no padding."""
    total = np.zeros(table.num_rows, dtype=np.int64)
    for field in table.schema:
        column, kind = table.column(field.name), field.type
        if pa.types.is_string(kind):
            total += 4 + _numbers(pc.binary_length(column))
        elif pa.types.is_list(kind):
            item = kind.value_type
            width = (
                _SPAN_BYTES
                if pa.types.is_struct(item)
                else _CODE_BYTES
                if pa.types.is_string(item)
                else item.bit_width // 8
            )
            total += 4 + width * _numbers(pc.list_value_length(column))
        else:
            total += max(kind.bit_width // 8, 1)
    return total


def fitting(sizes: NDArray[np.int64], start: int, room: int, most: int) -> int:
    """Rows from `start` on that fit into `room` bytes and `most` rows."""
    ends = np.cumsum(sizes[start : start + most])
    return int(np.searchsorted(ends, room, side="right"))


def _numbers(column: pa.ChunkedArray) -> NDArray[np.int64]:
    filled = pc.fill_null(column, 0)
    return np.asarray(filled.to_numpy(), dtype=np.int64)
