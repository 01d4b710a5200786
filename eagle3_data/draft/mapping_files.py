"""A mapping in files: those that `vocab` writes, those of trainers, those inside a checkpoint.

What enters: a safetensors file, a `d2t.npy` (its `t2d.npy` beside it), or a folder of either, or of
a checkpoint. What leaves: the raw tensors as they are, unproven. It promises to name the file of
each, and that what is written comes back the same.
"""

from __future__ import annotations

from collections.abc import Mapping as Dict
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray

from eagle3_data.draft.mapping import Mapping, VocabError, from_offsets
from eagle3_data.draft.tensors import Tensor, TensorError, load, load_npy, tensors

SAFETENSORS = "vocab_mapping.safetensors"
D2T, T2D = "d2t.npy", "t2d.npy"


@dataclass(frozen=True, slots=True, eq=False)
class Raw:
    """Tensors of a mapping as they lie on disk. None: not there. `head`: rows of `lm_head`, where
    the mapping is part of a checkpoint. `place`: the file or folder that was read.
    """

    place: Path
    d2t: NDArray[Any] | None
    t2d: NDArray[Any] | None
    head: int | None = None

    @property
    def unmapped(self) -> bool:
        """A checkpoint without a mapping: its head is the whole vocabulary, or it is broken."""
        return self.d2t is None and self.t2d is None


def read(path: str | Path) -> Raw:
    """The raw mapping at `path`. Raises TensorError: no such file, a pickle, damaged bytes."""
    place = Path(path)
    if place.is_dir():
        own = place / SAFETENSORS
        if own.is_file():
            return of_tensors(own, tensors(own))
        pair = _pair(place)
        if pair is not None:
            return pair
        return of_tensors(place, tensors(place))
    if place.suffix == ".npy":
        return _beside(place)
    return of_tensors(place, tensors(place))


def of_tensors(place: Path, found: Dict[str, Tensor]) -> Raw:
    """The raw mapping among the tensors of a checkpoint; engines look for `d2t` in a name."""
    named = {name.rsplit(".", 1)[-1]: tensor for name, tensor in found.items()}
    head = found.get("lm_head.weight")
    d2t, t2d = named.get("d2t"), named.get("t2d")
    if d2t is None and t2d is None and head is None:
        raise TensorError(
            f"{place} holds neither d2t nor t2d: name a mapping, or the checkpoint of a drafter"
        )
    return Raw(
        place,
        None if d2t is None else load(d2t),
        None if t2d is None else load(t2d),
        head.shape[0] if head is not None and head.shape else None,
    )


def inherited(draft: str | Path, vocab_size: int) -> Mapping:
    """The mapping of an existing drafter, sound or refused. Raises VocabError, TensorError."""
    from eagle3_data.draft.mapping_check import examine

    raw = read(draft)
    if raw.d2t is None:
        if raw.head == vocab_size:
            return Mapping(np.arange(vocab_size, dtype=np.int64), vocab_size)
        told = "nothing" if raw.head is None else f"a head of {raw.head:,} rows"
        raise VocabError(
            f"{draft} has no d2t, and {told} where the target has {vocab_size:,} tokens: there is"
            " no mapping to inherit"
        )
    faults = [f for f in examine(raw, vocab_size) if f.error]
    if faults:
        raise VocabError(
            f"the mapping of {draft} is not sound ({faults[0].code}: {faults[0].detail}):"
            f" see `vocab check {draft}`"
        )
    return from_offsets(raw.d2t, vocab_size)


def files(mapping: Mapping, about: Dict[str, str]) -> dict[str, bytes]:
    """Name → bytes of the files of a mapping. `about` goes into the metadata of the safetensors."""
    from safetensors.numpy import save

    # one key of metadata: the library writes several in a random order
    told = {"eagle3_data": orjson.dumps(dict(about), option=orjson.OPT_SORT_KEYS).decode()}
    tensors = {"d2t": np.ascontiguousarray(mapping.d2t), "t2d": np.ascontiguousarray(mapping.t2d)}
    return {
        SAFETENSORS: save(tensors, metadata=told),
        D2T: _npy(tensors["d2t"]),
        T2D: _npy(tensors["t2d"]),
    }


def _npy(array: NDArray[Any]) -> bytes:
    out = BytesIO()
    np.save(out, array, allow_pickle=False)
    return out.getvalue()


def _pair(folder: Path) -> Raw | None:
    """The one pair d2t*.npy and t2d*.npy of a folder, None when there is none."""
    found = sorted(folder.glob("d2t*.npy"))
    if not found:
        return None
    if len(found) > 1:
        names = ", ".join(path.name for path in found[:3])
        raise TensorError(f"{folder} holds several mappings ({names}): name the file")
    return _beside(found[0])


def _beside(path: Path) -> Raw:
    """A `.npy` and the one that belongs to it: d2t-32000.npy and t2d-32000.npy."""
    for one, other in (("d2t", "t2d"), ("t2d", "d2t")):
        if path.name.startswith(one):
            twin = path.with_name(other + path.name[len(one) :])
            values = {one: load_npy(path), other: load_npy(twin) if twin.is_file() else None}
            return Raw(path, values["d2t"], values["t2d"])
    raise TensorError(f"{path}: name it d2t….npy or t2d….npy, so that it is known which it is")
