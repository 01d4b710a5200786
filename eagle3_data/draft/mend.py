"""`lint --fix`: a corrected copy of a drafter, never in place.

What enters: a drafter's folder, and the config of its target where there is one. What leaves: a new
folder and a list of what was changed. It promises to change only what has one certain reading, to
copy the bytes of every other tensor as they are, and to leave the original alone.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import numpy as np
import orjson
from numpy.typing import NDArray

from eagle3_data.draft import config as configs
from eagle3_data.draft.drafter_files import IDS, INNER, Files, open_drafter, plain
from eagle3_data.draft.lint import trained_on
from eagle3_data.draft.lint_tensors import CHUNK_NORM, HEAD, INPUT_NORM
from eagle3_data.draft.mapping_check import examine, holds_ids
from eagle3_data.draft.mapping_files import Raw, of_tensors
from eagle3_data.draft.tensors import INDEX, PICKLES
from eagle3_data.writing import OutputError, drafting

BLOCK = 1 << 20
"""Bytes copied at a time."""


@dataclass(slots=True)
class Copy:
    """A corrected copy on its way. `told`: what was changed, in words."""

    files: Files
    values: dict[str, Any]
    told: list[str] = field(default_factory=list)
    replaced: dict[str, NDArray[Any] | None] = field(default_factory=dict)
    """Plain name → new tensor, None: left out."""

    def set(self, name: str, value: Any, where: dict[str, Any] | None = None) -> None:
        """Set one key of config.json, at the top or in `where`, and tell it."""
        place = self.values if where is None else where
        if place.get(name) != value or name not in place:
            at = "" if where is None else "eagle_config."
            before = orjson.dumps(place[name]).decode() if name in place else "not set"
            self.told.append(f"{at}{name}: {before} → {orjson.dumps(value).decode()}")
            place[name] = value


def mend(path: str | Path, out: str | Path, target: str | Path | None = None) -> list[str]:
    """Write the corrected copy of `path` to the new folder `out`; what was changed, in words.

    Raises ConfigError, TensorError, OutputError, OSError. Nothing is left behind by a failure.
    """
    folder = Path(out)
    if folder.exists():
        raise OutputError(
            f"{folder} exists: name a new folder, a drafter is never changed in place"
        )
    files = open_drafter(path)
    model = None if target is None else configs.read(target)
    copy = Copy(files, dict(files.config.raw))
    _config(copy)
    _mapping(copy, model)
    made = False
    folder.mkdir(parents=True)
    try:
        _write(copy, folder)
        made = True
    finally:
        if not made:
            shutil.rmtree(folder)
    return copy.told


def _config(copy: Copy) -> None:
    files = copy.files
    top, nested = files.ids(nested=False), files.ids(nested=True)
    trained = trained_on(files)
    ids = top if nested is None else nested if top is None else top if top == nested else None
    if trained is not None and (ids is None or trained not in ([k - 1 for k in ids], ids)):
        ids = [k + 1 for k in trained]
    inner = dict(files.nested)
    if ids is not None:
        copy.set(IDS, ids)
        copy.set(IDS, ids, inner)
    _flags(copy, inner)
    if inner:
        copy.values["eagle_config"] = inner
    if files.aux and ids is not None and len(ids) == files.aux and files.aux != 3:
        copy.set("num_aux_hidden_states", files.aux)
    if copy.values.get("tie_word_embeddings") is True and HEAD in files.plain:
        copy.set("tie_word_embeddings", False)
    if files.layers == 1:
        key = copy.values.get(INNER) if files.speculators else copy.values
        if isinstance(key, dict) and key.get("num_hidden_layers") != 1:
            copy.set("num_hidden_layers", 1, key if files.speculators else None)
    d2t, rows = files.plain.get("d2t"), files.head_rows
    agreed = rows is not None and (d2t is None or d2t.shape == (rows,))
    if agreed and (files.draft_vocab not in (None, rows) or "draft_vocab_size" not in copy.values):
        copy.set("draft_vocab_size", rows)


def _flags(copy: Copy, inner: dict[str, Any]) -> None:
    files = copy.files
    there = {
        "norm_before_fc": INPUT_NORM in files.plain,
        "fc_norm": any(name.startswith(CHUNK_NORM) for name in files.plain),
        "attention_bias": any(
            name.startswith("midlayer.self_attn.") and name.endswith("_proj.bias")
            for name in files.plain
        ),
    }
    for flag, value in there.items():
        if files.flag(flag) != value or (flag == "norm_before_fc" and value):
            copy.set(flag, value)
            if flag == "norm_before_fc" and (value or flag in inner):
                copy.set(flag, value, inner)


def _mapping(copy: Copy, model: configs.Config | None) -> None:
    """Offsets, types and `t2d`, where the result is sound."""
    files = copy.files
    names: tuple[str, ...] = ("d2t", "t2d")
    found = {name: files.plain[name] for name in names if name in files.plain}
    if "d2t" not in found:
        return
    raw = of_tensors(files.folder, found)
    size = (model or files.config).number("vocab_size")
    if raw.d2t is None or raw.d2t.ndim != 1 or size is None:
        return
    d2t = raw.d2t.astype(np.int64)
    if len(d2t) >= size and not d2t.any():
        copy.replaced |= {"d2t": None, "t2d": None}
        copy.told.append("d2t, t2d: left out, the head covers the whole vocabulary")
        return
    mask = raw.t2d.astype(np.bool_) if raw.t2d is not None and raw.t2d.ndim == 1 else None
    if holds_ids(d2t, size, mask):
        d2t = d2t - np.arange(len(d2t), dtype=np.int64)
    targets = d2t + np.arange(len(d2t), dtype=np.int64)
    if len(targets) and not 0 <= int(targets.min()) <= int(targets.max()) < size:
        return
    t2d = np.zeros(size, dtype=np.bool_)
    t2d[targets] = True
    if any(fault.error for fault in examine(Raw(files.folder, d2t, t2d), size)):
        return
    for name, old, new in (("d2t", raw.d2t, d2t), ("t2d", raw.t2d, t2d)):
        if old is None or old.dtype != new.dtype or not np.array_equal(old, new):
            copy.replaced[name] = new
            copy.told.append(f"{name}: {'added' if old is None else 'written anew'}")


def _write(copy: Copy, folder: Path) -> None:
    files = copy.files
    sources = list(dict.fromkeys(tensor.file for tensor in files.tensors.values()))
    renamed = sum(plain(name) != name for name in files.tensors)
    if renamed:
        copy.told.append(f"{renamed} tensors are named as in the plain layout (midlayer.*)")
    changed = bool(renamed or copy.replaced)
    weights: dict[str, str] = {}
    for number, source in enumerate(sources):
        last = number == len(sources) - 1
        if changed:
            names = _rewrite(copy, source, folder / source.name, last=last)
        else:
            shutil.copyfile(source, folder / source.name)
            names = [name for name, tensor in files.tensors.items() if tensor.file == source]
        weights |= dict.fromkeys(names, source.name)
    for entry in sorted(files.folder.iterdir()):
        other = entry.suffix not in (".safetensors", *PICKLES)
        if entry.is_file() and other and entry.name not in (INDEX, configs.CONFIG):
            shutil.copyfile(entry, folder / entry.name)
    out = {configs.CONFIG: copy.values}
    if len(sources) > 1:
        out[INDEX] = {"metadata": {}, "weight_map": weights}
    for name, content in out.items():
        with drafting(folder / name, overwrite=False) as draft:
            draft.write(orjson.dumps(content, option=orjson.OPT_INDENT_2) + b"\n")


def _rewrite(copy: Copy, source: Path, out: Path, *, last: bool) -> list[str]:
    """One file with renamed and replaced tensors, the others byte for byte; their names."""
    with source.open("rb") as opened:
        length = int.from_bytes(opened.read(8), "little")
        header = orjson.loads(opened.read(length))
        base = 8 + length
        told = header.pop("__metadata__", {"format": "pt"})
        entries: list[tuple[str, str, list[int], NDArray[Any] | tuple[int, int]]] = []
        for name, facts in header.items():
            new = copy.replaced.get(plain(name), ...)
            if new is None:
                continue
            if isinstance(new, np.ndarray):
                entries.append((plain(name), _kind(new), list(new.shape), new))
            else:
                start, end = facts["data_offsets"]
                entries.append((plain(name), facts["dtype"], facts["shape"], (start, end)))
        if last:  # tensors that were nowhere go into the last file
            for name, new in copy.replaced.items():
                if new is not None and name not in copy.files.plain:
                    entries.append((name, _kind(new), list(new.shape), new))
        sizes = [d.nbytes if isinstance(d, np.ndarray) else d[1] - d[0] for *_, d in entries]
        made: dict[str, Any] = {"__metadata__": told}
        here = 0
        for (name, dtype, shape, _), size in zip(entries, sizes, strict=True):
            made[name] = {"dtype": dtype, "shape": shape, "data_offsets": [here, here + size]}
            here += size
        head = orjson.dumps(made)
        head += b" " * (-len(head) % 8)
        with drafting(out, overwrite=False) as draft:
            draft.write(len(head).to_bytes(8, "little") + head)
            for *_, data in entries:
                if isinstance(data, np.ndarray):
                    draft.write(data.tobytes())
                else:
                    for block in _blocks(opened, base + data[0], data[1] - data[0]):
                        draft.write(block)
    return [name for name, *_ in entries]


def _blocks(opened: IO[bytes], start: int, size: int) -> Iterator[bytes]:
    opened.seek(start)
    while size > 0:
        block = opened.read(min(BLOCK, size))
        if not block:
            raise OSError("the file ended early")
        size -= len(block)
        yield block


def _kind(array: NDArray[Any]) -> str:
    return "BOOL" if array.dtype == np.bool_ else "I64"
