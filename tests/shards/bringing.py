"""What the tests of import share: sound rows, and the import of them."""

from __future__ import annotations

from pathlib import Path

import orjson
from making import TOKENIZER

from eagle3_data.shards.importing import Imported, import_rows
from eagle3_data.shards.reader import open_shards

GOOD = {"input_ids": [5, 6, 7, 2, 8, 2], "loss_mask": [0, 0, 1, 1, 0, 1]}
OTHER = [GOOD | {"input_ids": [n, 6, 7, 2, 8, 2]} for n in range(4)]
PLACE = ("split", "conversation_id", "record_id")


def brought(paths: list[Path], into: Path, **more) -> Imported:
    return import_rows(paths, into, tokenizer=TOKENIZER, profile="smollm2-think", **more)


def written(path: Path, *rows: object) -> Path:
    path.write_bytes(
        b"\n".join(row if isinstance(row, bytes) else orjson.dumps(row) for row in rows) + b"\n"
    )
    return path


def places(directory: Path) -> list[tuple[str, str, str]]:
    """(split, conversation, record) of the samples, in order."""
    return open_shards(directory).lazy().select(*PLACE).collect().rows()
