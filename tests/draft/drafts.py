"""What the tests of this room share: shards of schema v1 by hand, and mappings in files."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

sys.path.append(str(Path(__file__).parent.parent / "shards"))  # rows are made there

from making import FACTS, row, table, write

__all__ = ["FACTS", "NPY", "mapping_file", "row", "spans", "table", "write"]

NPY = {"allow_pickle": False}


def spans(*parts: tuple[str, int]) -> list[dict[str, Any]]:
    """Spans from (kind, tokens), in order."""
    out, here = [], 0
    for kind, length in parts:
        out.append({"kind": kind, "start": here, "end": here + length})
        here += length
    return out


def mapping_file(folder: Path, d2t: Any = None, t2d: Any = None, **more: Any) -> Path:
    """A folder with vocab_mapping.safetensors of the given tensors."""
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {"d2t": d2t, "t2d": t2d, **more}
    kept = {name: np.ascontiguousarray(v) for name, v in tensors.items() if v is not None}
    save_file(kept, folder / "vocab_mapping.safetensors")
    return folder
