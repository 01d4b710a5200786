"""The journal: finished shards of a run that is not finished, so that a killed run goes on where it
was.

What enters: a directory and the identity of a run. What leaves: the shards that are already there,
proven by their digest. It promises one writer at a time, that nothing foreign is taken for ours or
removed, and that another run's directory is refused with the settings that differ.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

import orjson
from pydantic import ValidationError

from eagle3_data.shards.manifest import JOURNAL, MANIFEST, Identity, Manifest, Shard, load_manifest
from eagle3_data.shards.schema import SCHEMA_VERSION, ShardError
from eagle3_data.writing import drafting

SHARD_NAME = re.compile(r"part-\d{5,}\.parquet")
DRAFT_NAME = re.compile(r"\.(part-\d{5,}\.parquet|manifest\.json|shards\.journal\.jsonl)\..*\.part")
BESIDE = ("README.md",)
"""A dataset card may lie beside the shards."""


def shard_name(number: int) -> str:
    """`part-00000.parquet`; more digits beyond 99,999 shards."""
    return f"part-{number:05d}.parquet"


@dataclass(slots=True)
class Journal:
    """The open journal of one run. `shards`: finished ones in order. `manifest`: set when the run
    is complete.
    """

    directory: Path
    identity: Identity
    _lock: int
    shards: list[Shard] = field(default_factory=list)
    manifest: Manifest | None = None
    notes: list[str] = field(default_factory=list)
    _file: IO[bytes] | None = None

    def add(self, shard: Shard) -> None:
        """Record a finished shard, on disk when this returns."""
        assert self._file is not None
        self._file.write(_line(shard.model_dump(mode="json")))
        self._file.flush()
        os.fsync(self._file.fileno())
        self.shards.append(shard)

    def begin(self) -> None:
        """Write header and finished shards whole, so that no file lacks its header."""
        path = self.directory / JOURNAL
        with drafting(path, overwrite=True) as draft:
            header = {"kind": "shards-journal", "schema_version": SCHEMA_VERSION}
            draft.write(_line(header | {"identity": self.identity.model_dump(mode="json")}))
            for shard in self.shards:
                draft.write(_line(shard.model_dump(mode="json")))
        sync(self.directory)
        self._file = path.open("ab")

    def remove(self) -> None:
        """Remove the journal: after the manifest landed it says nothing more."""
        (self.directory / JOURNAL).unlink(missing_ok=True)
        sync(self.directory)

    def close(self) -> None:
        """Let go of the directory. Safe to call twice."""
        if self._file is not None:
            self._file.close()
            self._file = None
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1


def open_journal(
    directory: Path, identity: Identity, *, overwrite: bool = False, beside: Collection[str] = ()
) -> Journal:
    """Take the directory for a run: begin it, or find what a former start of the same run finished.

    `beside`: names of further files that may lie there. Raises ShardError when another run is
    writing, when the directory holds foreign files, or the shards of a run with another identity
    and not `overwrite`.
    """
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except FileExistsError:
        raise ShardError(f"{directory} is a file: name a directory for the shards") from None
    journal = Journal(directory, identity, locked(directory))
    try:
        names = sorted(entry.name for entry in directory.iterdir())
        _refuse_foreign(directory, names, (*BESIDE, *beside), overwrite=overwrite)
        if overwrite:
            _clear(directory, names)
            names = [name for name in names if (directory / name).exists()]
        _find_finished(journal, names)
        for name in names:
            if DRAFT_NAME.fullmatch(name):
                (directory / name).unlink(missing_ok=True)  # the temporary file of a dead run
        if journal.manifest is None:
            journal.begin()
        return journal
    except BaseException:
        journal.close()
        raise


def _find_finished(journal: Journal, names: Sequence[str]) -> None:
    """Fill `journal` with what the manifest or a former journal lists and the directory proves."""
    directory = journal.directory
    manifest = load_manifest(directory) if MANIFEST in names else None
    if manifest is not None and not manifest.sound:
        raise ShardError(f"{directory / MANIFEST} was edited: restore it, or pass --overwrite")
    begun, listed = (manifest.identity, manifest.shards) if manifest else _read(directory)
    # a run that stopped before its first shard left nothing that another one could spoil
    if begun is not None and (listed or any(SHARD_NAME.fullmatch(name) for name in names)):
        _refuse_other(directory, begun, journal.identity)
    known = [shard.name for shard in listed]
    next_one = [] if begun is None else [shard_name(len(listed))]  # renamed, not yet in the journal
    for name in names:
        if SHARD_NAME.fullmatch(name) and name not in (*known, *next_one):
            raise ShardError(
                f"{directory / name} is not of this run: move it away, or pass --overwrite"
            )
    for number, shard in enumerate(listed):
        if shard.name != shard_name(number) or not _whole(directory / shard.name, shard):
            journal.notes.append(
                f"{shard.name} is missing or changed: written again, and all after it"
            )
            break
        journal.shards.append(shard)
    if manifest is not None and len(journal.shards) == len(listed):
        journal.manifest = manifest
        return
    (directory / MANIFEST).unlink(missing_ok=True)  # it must not vouch for what is not there
    for name in (*known, *next_one)[len(journal.shards) :]:
        (directory / name).unlink(missing_ok=True)


def _read(directory: Path) -> tuple[Identity | None, list[Shard]]:
    """Identity and shards of the journal; (None, []) when there is none."""
    path = directory / JOURNAL
    if not path.exists():
        return None, []
    lines = path.read_bytes().split(b"\n")[:-1]  # what follows the last line end is torn
    try:
        header = orjson.loads(lines[0])
        if (header["kind"], header["schema_version"]) != ("shards-journal", SCHEMA_VERSION):
            raise ValueError("another kind or version")
        identity = Identity.model_validate_json(orjson.dumps(header["identity"]))
        return identity, [Shard.model_validate_json(line) for line in lines[1:]]
    except (ValidationError, ValueError, LookupError, TypeError):
        raise ShardError(f"{path} is damaged: pass --overwrite to begin again") from None


def _refuse_other(directory: Path, theirs: Identity, ours: Identity) -> None:
    differences = theirs.differences(ours)
    if differences:
        raise ShardError(
            f"{directory} holds the shards of another run ({'; '.join(differences[:4])}):"
            " choose another directory, or pass --overwrite to replace them"
        )


def _refuse_foreign(
    directory: Path, names: Sequence[str], beside: Collection[str], *, overwrite: bool
) -> None:
    ours = (MANIFEST, JOURNAL, *beside)
    foreign = [
        name
        for name in names
        if name not in ours and not SHARD_NAME.fullmatch(name) and not DRAFT_NAME.fullmatch(name)
    ]
    if overwrite:  # other files stay as they are, but readers of the folder would mix Parquet files
        foreign = [name for name in foreign if name.endswith(".parquet")]
        if MANIFEST in names and _of_another_kind(directory / MANIFEST):
            foreign.append(MANIFEST)
    if foreign:
        more = f" and {len(foreign) - 3} more" if len(foreign) > 3 else ""
        step = "" if overwrite else ", or choose an empty directory"
        raise ShardError(
            f"{directory} holds foreign files ({', '.join(foreign[:3])}{more}):"
            f" move them away{step}"
        )


def _of_another_kind(manifest: Path) -> bool:
    try:
        found = orjson.loads(manifest.read_bytes())
        return (found["tool"], found["kind"]) != ("eagle3-data", "shards")
    except (ValueError, LookupError, TypeError):
        return False  # damaged beyond telling: what --overwrite is for


def _clear(directory: Path, names: Sequence[str]) -> None:
    """Remove a former result, the manifest first: it must not vouch for half of it."""
    (directory / MANIFEST).unlink(missing_ok=True)
    for name in names:
        if SHARD_NAME.fullmatch(name):
            (directory / name).unlink(missing_ok=True)
    (directory / JOURNAL).unlink(missing_ok=True)


def locked(directory: Path) -> int:
    """A lock on the directory for this process; it goes with the process, however that ends."""
    import fcntl

    descriptor = os.open(directory, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        raise ShardError(
            f"{directory} is being written by another run: wait for it, or choose another directory"
        ) from None
    return descriptor


def _whole(path: Path, shard: Shard) -> bool:
    return path.is_file() and path.stat().st_size == shard.bytes and digest(path) == shard.sha256


def _line(entry: dict[str, object]) -> bytes:
    return orjson.dumps(entry) + b"\n"


def digest(path: Path) -> str:
    """SHA-256 (hex) of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def sync(directory: Path) -> None:
    """Make renames in `directory` survive a power cut."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
