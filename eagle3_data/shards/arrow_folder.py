"""A data set folder as Hugging Face `datasets` saves it, written with pyarrow alone.

What enters: tables of schema v1. What leaves: one Arrow stream file with `input_ids`, `loss_mask`
(list<int64>) and `seq_len` (int64), `dataset_info.json` and `state.json`. It promises a folder that
`datasets.load_from_disk` opens, without that library, one row a sample in order, and the split that
all samples are of.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any

import orjson

from eagle3_data.shards.targets import ARROW, INFO, STATE

if TYPE_CHECKING:
    import pyarrow as pa

    from eagle3_data.writing import Draft

_SPLIT = re.compile(r"(?!all$)\w+(\.\w+)*")
"""What datasets takes for the name of a split: others would make `load_from_disk` fail."""
_INT64 = {"dtype": "int64", "_type": "Value"}
# "Sequence" is what all versions of datasets read; from 4.0 on they write "List"
FEATURES: dict[str, Any] = {
    "input_ids": {"feature": _INT64, "_type": "Sequence"},
    "loss_mask": {"feature": _INT64, "_type": "Sequence"},
    "seq_len": _INT64,
}


class ArrowFolder:
    """Writes one folder into `drafts` (name → draft). Use as a context; leaving it ends the files.

    Raises OSError when the disk is full.
    """

    def __init__(self, drafts: Mapping[str, Draft]) -> None:
        import pyarrow as pa

        self._drafts = drafts
        self._splits: set[str] = set()
        whole = pa.int64()
        self._schema = pa.schema(
            [("input_ids", pa.list_(whole)), ("loss_mask", pa.list_(whole)), ("seq_len", whole)],
            metadata={"huggingface": orjson.dumps({"info": {"features": FEATURES}})},
        )
        self._sink = _Sink(drafts[ARROW])
        self._out = pa.ipc.new_stream(pa.PythonFile(self._sink, mode="w"), self._schema)

    def add(self, table: pa.Table) -> int:
        """Append the samples of a table; how many."""
        self._splits.update(table["split"].unique().to_pylist())
        self._out.write_table(table.select(self._schema.names).cast(self._schema))
        return int(table.num_rows)

    def __enter__(self) -> ArrowFolder:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._out.close()
        info = {"citation": "", "description": "", "features": FEATURES}
        (split,) = self._splits if len(self._splits) == 1 else (None,)
        state: dict[str, Any] = {
            "_data_files": [{"filename": ARROW}],
            # names the caches of what is computed from this data: other data, another name
            "_fingerprint": hashlib.sha256(self._drafts[ARROW].sha256.encode()).hexdigest()[:16],
            "_format_columns": None,
            "_format_kwargs": {},
            "_format_type": "torch",  # speculators takes the rows as tensors without asking
            "_output_all_columns": False,
            "_split": split if split is not None and _SPLIT.fullmatch(split) else None,
        }
        for name, body in ((INFO, info | {"homepage": "", "license": ""}), (STATE, state)):
            self._drafts[name].write(orjson.dumps(body, option=orjson.OPT_INDENT_2))


class _Sink:
    """What pyarrow writes to: it hands the bytes to a draft."""

    closed = False

    def __init__(self, draft: Draft) -> None:
        self._draft = draft

    def write(self, data: bytes) -> int:
        self._draft.write(data)
        return len(data)

    def flush(self) -> None:
        return None

    def close(self) -> None:
        self.closed = True
