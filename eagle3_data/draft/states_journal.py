"""The journal of an extraction: which files of states are whole, so that a stopped run goes on.

What enters: a directory and the identity of a run. What leaves: the files that are already there
whole. It promises one writer at a time, that nothing foreign is taken for ours or
removed, and that another run's directory is refused with the settings that differ.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

import orjson
from pydantic import ValidationError

from eagle3_data.draft.packing import Packing
from eagle3_data.draft.states_manifest import (
    INDEX,
    JOURNAL,
    SCHEMA_VERSION,
    Identity,
    StateFile,
    StatesError,
    StatesManifest,
    load_manifest,
)
from eagle3_data.shards.journal import digest, locked, sync
from eagle3_data.shards.manifest import MANIFEST
from eagle3_data.shards.schema import ShardError
from eagle3_data.writing import drafting

FILE_NAME = re.compile(r"states-\d{5,}\.safetensors")
DRAFT_NAME = re.compile(
    r"\.(states-\d{5,}\.safetensors|manifest\.json|index\.parquet|states\.journal\.jsonl)\..*\.part"
)


def file_name(number: int) -> str:
    """`states-00000.safetensors`; more digits beyond 99,999 files."""
    return f"states-{number:05d}.safetensors"


@dataclass(slots=True)
class Journal:
    """The open journal of one run. `files`: finished ones in order. `packing`: chosen, None before
    the first file. `manifest`: set when the run is complete.
    """

    directory: Path
    identity: Identity
    _lock: int
    files: list[StateFile] = field(default_factory=list)
    packing: Packing | None = None
    manifest: StatesManifest | None = None
    notes: list[str] = field(default_factory=list)
    _out: IO[bytes] | None = None

    def choose(self, packing: Packing) -> None:
        """Record how the files are packed, before the first of them."""
        self._add({"packing": packing.value})
        self.packing = packing

    def add(self, file: StateFile) -> None:
        """Record a finished file, on disk when this returns."""
        self._add(file.model_dump(mode="json"))
        self.files.append(file)

    def _add(self, entry: dict[str, object]) -> None:
        assert self._out is not None
        self._out.write(orjson.dumps(entry) + b"\n")
        self._out.flush()
        os.fsync(self._out.fileno())

    def begin(self) -> None:
        """Write header and finished files whole, so that no journal lacks its header."""
        path = self.directory / JOURNAL
        header = {
            "kind": "states-journal",
            "schema_version": SCHEMA_VERSION,
            "identity": self.identity.model_dump(mode="json"),
        }
        entries: list[dict[str, object]] = [header]
        if self.packing is not None:
            entries.append({"packing": self.packing.value})
        entries += [file.model_dump(mode="json") for file in self.files]
        with drafting(path, overwrite=True) as draft:
            for entry in entries:
                draft.write(orjson.dumps(entry) + b"\n")
        sync(self.directory)
        self._out = path.open("ab")

    def remove(self) -> None:
        """Remove the journal: after the manifest landed it says nothing more."""
        (self.directory / JOURNAL).unlink(missing_ok=True)
        sync(self.directory)

    def close(self) -> None:
        """Let go of the directory. Safe to call twice."""
        if self._out is not None:
            self._out.close()
            self._out = None
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1


def open_journal(directory: Path, identity: Identity, *, overwrite: bool = False) -> Journal:
    """Take the directory for a run: begin it, or find what a former start of the same run finished.

    Raises StatesError when another run is writing, when the directory holds foreign files, or the
    states of a run with another identity and not `overwrite`.
    """
    try:
        directory.mkdir(parents=True, exist_ok=True)
        lock = locked(directory)
    except FileExistsError:
        raise StatesError(f"{directory} is a file: name a directory for the states") from None
    except ShardError as error:
        raise StatesError(str(error)) from None
    journal = Journal(directory, identity, lock)
    try:
        names = sorted(entry.name for entry in directory.iterdir())
        foreign = [
            name
            for name in names
            if name not in (MANIFEST, JOURNAL, INDEX)
            and not FILE_NAME.fullmatch(name)
            and not DRAFT_NAME.fullmatch(name)
        ]
        if MANIFEST in names and _of_another_kind(directory / MANIFEST):
            foreign.append(MANIFEST)
        if foreign:
            raise StatesError(
                f"{directory} holds foreign files ({', '.join(foreign[:3])}):"
                " choose an empty directory"
            )
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
    begun, packing, listed = (
        (manifest.identity, manifest.packing, manifest.files) if manifest else _read(directory)
    )
    present = [name for name in names if FILE_NAME.fullmatch(name)]
    if begun is None and present:
        raise StatesError(
            f"{directory / present[0]} is of no run that can be told: pass --overwrite"
        )
    # a run that stopped before its first file left nothing that another one could spoil
    if begun is not None and (listed or present):
        differences = begun.differences(journal.identity)
        if differences:
            raise StatesError(
                f"{directory} holds the states of another run ({'; '.join(differences[:4])}):"
                " choose another directory, or pass --overwrite to replace them"
            )
    for number, file in enumerate(listed):
        if file.name != file_name(number) or not whole(directory / file.name, file):
            journal.notes.append(
                f"{file.name} is missing or changed: written again, and all after it"
            )
            break
        journal.files.append(file)
    journal.packing = packing if journal.files else None
    if manifest is not None and len(journal.files) == len(listed):
        index = directory / INDEX
        if index.is_file() and digest(index) == manifest.index_sha256:
            journal.manifest = manifest
            return
        journal.notes.append(f"{INDEX} is missing or changed: written again")
    (directory / MANIFEST).unlink(missing_ok=True)
    for name in present[len(journal.files) :]:
        (directory / name).unlink(missing_ok=True)


def _read(directory: Path) -> tuple[Identity | None, Packing | None, list[StateFile]]:
    """What the journal holds; (None, None, []) when there is none."""
    path = directory / JOURNAL
    if not path.exists():
        return None, None, []
    lines = path.read_bytes().split(b"\n")[:-1]  # what follows the last line end is torn
    try:
        header, *entries = (orjson.loads(line) for line in lines)
        if (header["kind"], header["schema_version"]) != ("states-journal", SCHEMA_VERSION):
            raise ValueError("another kind or version")
        identity = Identity.model_validate_json(orjson.dumps(header["identity"]))
        packing = Packing(entries[0]["packing"]) if entries else None
        files = [StateFile.model_validate_json(orjson.dumps(entry)) for entry in entries[1:]]
        return identity, packing, files
    except (ValidationError, ValueError, LookupError, TypeError):
        raise StatesError(f"{path} is damaged: pass --overwrite to begin again") from None


def _of_another_kind(manifest: Path) -> bool:
    try:
        found = orjson.loads(manifest.read_bytes())
        return (found["tool"], found["kind"]) != ("eagle3-data", "states")
    except (ValueError, LookupError, TypeError):
        return False  # damaged beyond telling: what --overwrite is for


def _clear(directory: Path, names: Sequence[str]) -> None:
    """Remove a former result, the manifest first: it must not vouch for half of it."""
    (directory / MANIFEST).unlink(missing_ok=True)
    for name in names:
        if FILE_NAME.fullmatch(name) or name == INDEX:
            (directory / name).unlink(missing_ok=True)
    (directory / JOURNAL).unlink(missing_ok=True)


def whole(path: Path, file: StateFile) -> bool:
    """Whether a file is there with its size. Its bytes were on the disk before it got its name, and
    hashing a terabyte again takes a quarter of an hour: `States.verify` does when asked.
    """
    return path.is_file() and path.stat().st_size == file.bytes
