"""What lies in a folder that is verified: whose each entry is, and what a folder is instead that
holds no shards.

What enters: a folder, and the names that its manifest lists. What leaves: each entry that has no
business there, with its code; a sentence about a folder of another kind. It promises that nothing
is opened but what says of which kind a folder is.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

import orjson

from eagle3_data.shards import rules
from eagle3_data.shards.journal import SHARDS
from eagle3_data.shards.manifest import JOURNAL, KIND, MANIFEST, SPILL
from eagle3_data.shards.targets import HEADING, NOTE

EXTRA = "not in the manifest"
SHOWN = 3
"""Folders named that may have been meant."""

_OTHERS = {
    "quarantine": "holds lines that --quarantine put apart",
    "states": "holds the hidden states of `extract`",
}
"""Kind of a manifest → what its folder is."""


def odd(directory: Path, listed: Collection[str]) -> Iterator[tuple[str, Path, str]]:
    """(code, path, detail) of every entry that is neither the manifest nor one that it lists."""
    for entry in sorted(directory.iterdir()):
        if entry.name in (JOURNAL, SPILL) or SHARDS.is_draft(entry.name):
            yield rules.LEFTOVERS, directory / MANIFEST, entry.name
        elif entry.name.startswith(".") and not _parquet(entry):
            continue  # the Hub and git keep theirs so; a glob of Polars or DuckDB takes the others
        elif entry.is_dir() and not entry.is_symlink():
            inside = list(_inside(entry))
            yield rules.FOREIGN_ENTRY, entry, f"a folder, files in it: {len(inside)}"
            for path in filter(_parquet, inside):
                yield rules.SHARD_EXTRA, path, EXTRA
        elif entry.name in listed:
            # a link too, as the Hub and DVC lay files out: what it leads to is read and
            # hashed, and one that leads to nothing is a missing shard
            continue
        elif entry.is_symlink():
            yield rules.FOREIGN_ENTRY, entry, "a symbolic link"
            if _parquet(entry):
                yield rules.SHARD_EXTRA, entry, EXTRA
        elif _parquet(entry):
            yield rules.SHARD_EXTRA, entry, EXTRA
        else:
            yield rules.FOREIGN_ENTRY, entry, EXTRA


def _parquet(path: Path) -> bool:
    """Whether readers that take the whole folder would read it."""
    return path.suffix == ".parquet"


def _inside(folder: Path) -> Iterator[Path]:
    """The files of a folder and of those in it, in order; no link is followed."""
    for place, folders, names in os.walk(folder):
        folders.sort()
        yield from (Path(place, name) for name in sorted(names))


def no_shards(directory: Path) -> str | None:
    """What a folder is in which no run left anything, and the next step; None where shards, a
    journal or a manifest of shards lie, whatever is wrong with them.
    """
    names = sorted(entry.name for entry in directory.iterdir())
    if any(name == JOURNAL or SHARDS.is_file(name) for name in names):
        return None
    step = "name the folder that `convert` wrote"
    if not names:
        return f"{directory} is empty: {step}"
    kind = _kind(directory / MANIFEST)
    if kind == KIND:
        return None
    if kind in _OTHERS:
        return f"{directory} {_OTHERS[kind]}, no shards: {step}"
    if _is_export(directory / NOTE):
        return f"{directory} is an export, no shards: {step}, the one that it was made from"
    deeper = [name for name in names if _kind(directory / name / MANIFEST) == KIND]
    if deeper:
        more = f" and {len(deeper) - SHOWN} more" if len(deeper) > SHOWN else ""
        meant = f"{', '.join(deeper[:SHOWN])}{more}"
        return f"{directory} is no folder of shards, but folders of shards lie in it: name {meant}"
    return (
        f"{directory} is no folder of shards: it holds neither {SHARDS.file_name(0)}, nor the"
        f" journal of a run, nor a {MANIFEST} that `convert` wrote: {step}"
    )


def _kind(manifest: Path) -> str | None:
    """What a manifest of this product says that it is of."""
    try:
        # anything but a file is not waited for
        found: Any = orjson.loads(manifest.read_bytes()) if manifest.is_file() else None
    except (OSError, ValueError):
        return None
    if not isinstance(found, dict) or found.get("tool") != "eagle3-data":
        return None
    return str(found.get("kind"))


def _is_export(note: Path) -> bool:
    """Whether it is the note that `export` writes last."""
    try:
        if not note.is_file():
            return False
        with note.open("rb") as file:
            return file.read(len(HEADING)) == HEADING.encode()
    except OSError:
        return False
