"""The journal: finished files of a run that is not finished, so that a killed run goes on where it
was.

What enters: a directory, the kind of files in it (shards, or the states of `draft`) and the
identity of a run. What leaves: the files that are already there, proven as their kind asks. It
promises one writer at a time, that nothing foreign is taken for ours or removed, and that another
run's directory is refused with the settings that differ.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, Generic, Protocol, TypeVar

import orjson

from eagle3_data.shards.manifest import (
    JOURNAL,
    MANIFEST,
    Identity,
    Made,
    Manifest,
    Run,
    Shard,
    load_manifest,
    no_file,
)
from eagle3_data.shards.schema import SCHEMA_VERSION, ShardError
from eagle3_data.writing import drafting


class Entry(Protocol):
    """One finished file."""

    @property
    def name(self) -> str: ...
    @property
    def bytes(self) -> int: ...
    @property
    def sha256(self) -> str: ...
    def model_dump(self, *, mode: str) -> dict[str, Any]: ...


File = TypeVar("File", bound=Entry)


@dataclass(frozen=True, slots=True)
class Listed(Generic[File]):
    """What a manifest or a journal says. `choice`: see `Kind`; `further`: name to SHA-256."""

    identity: Run
    files: Sequence[File]
    choice: str = ""
    further: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind(Generic[File, Made]):
    """What lies in a directory: `stem-00000suffix`, …, `further` names, journal and manifest.

    `hashed`: a file is proven by its digest, else by its size alone. `spoils`: how foreign names
    end that are refused with `--overwrite` too, "" for all. `choice`: key and values of a line
    before the first file, for what is chosen when it is made.
    """

    name: str
    stem: str
    suffix: str
    journal: str
    version: int
    error: type[ValueError]
    identity: Callable[[bytes], Run]
    file: Callable[[bytes], File]
    manifest: Callable[[Path], Made]
    listed: Callable[[Made], Listed[File]]
    hashed: bool
    spoils: str = ""
    further: tuple[str, ...] = ()
    choice: tuple[str, Collection[str]] | None = None

    def file_name(self, number: int) -> str:
        """`part-00000.parquet`; more digits beyond 99,999 files."""
        return f"{self.stem}-{number:05d}{self.suffix}"

    def is_file(self, name: str) -> bool:
        """Whether it is the name of a numbered file."""
        return re.fullmatch(self._pattern, name) is not None

    def is_draft(self, name: str) -> bool:
        """Whether it is the name of a temporary file."""
        others = "|".join(re.escape(n) for n in (MANIFEST, self.journal, *self.further))
        return re.fullmatch(rf"\.({self._pattern}|{others})\..*\.part", name) is not None

    @property
    def _pattern(self) -> str:
        return rf"{self.stem}-\d{{5,}}{re.escape(self.suffix)}"


@dataclass(slots=True)
class Journal(Generic[File, Made]):
    """The open journal of one run. `files`: finished ones in order. `choice`: "" before the first
    of them. `manifest`: set when the run is complete.
    """

    directory: Path
    kind: Kind[File, Made]
    identity: Run
    _lock: int
    files: list[File] = field(default_factory=list)
    choice: str = ""
    manifest: Made | None = None
    notes: list[str] = field(default_factory=list)
    _out: IO[bytes] | None = None

    def choose(self, choice: str) -> None:
        """Record what was chosen, before the first file."""
        self.choice = choice
        self._add(*self._chosen())

    def add(self, file: File) -> None:
        """Record a file that was just renamed; both are on disk when this returns."""
        sync(self.directory)
        self._add(file.model_dump(mode="json"))
        self.files.append(file)

    def _add(self, *entries: dict[str, Any]) -> None:
        assert self._out is not None
        self._out.write(_lines(entries))
        self._out.flush()
        os.fsync(self._out.fileno())

    def _chosen(self) -> list[dict[str, Any]]:
        return [{self.kind.choice[0]: self.choice}] if self.kind.choice and self.choice else []

    def begin(self) -> None:
        """Write header and finished files whole, so that no journal lacks its header."""
        path = self.directory / self.kind.journal
        header = {
            "kind": f"{self.kind.name}-journal",
            "schema_version": self.kind.version,
            "identity": self.identity.model_dump(mode="json"),
        }
        files = (file.model_dump(mode="json") for file in self.files)
        with drafting(path, overwrite=True) as draft:
            draft.write(_lines((header, *self._chosen(), *files)))
        sync(self.directory)
        self._out = path.open("ab")

    def seal(self, manifest: Made) -> None:
        """Write the manifest, on disk when this returns: the run is complete."""
        with drafting(self.directory / MANIFEST, overwrite=True) as draft:
            draft.write(manifest.to_bytes())
        sync(self.directory)

    def remove(self) -> None:
        """Remove the journal: after the manifest landed it says nothing more."""
        (self.directory / self.kind.journal).unlink(missing_ok=True)
        sync(self.directory)

    def close(self) -> None:
        """Let go of the directory. Safe to call twice."""
        if self._out is not None:
            self._out.close()
            self._out = None
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1


def open_journal(
    directory: Path,
    kind: Kind[File, Made],
    identity: Run,
    *,
    overwrite: bool = False,
    beside: Collection[str] = (),
) -> Journal[File, Made]:
    """Take the directory for a run: begin it, or find what a former start of the same run finished.

    `beside`: names of further files that may lie there. Raises the error of the kind when another
    run is writing, when the directory holds foreign files, or the files of a run with another
    identity and not `overwrite`.
    """
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except FileExistsError:
        raise kind.error(f"{directory} is a file: name a directory for the {kind.name}") from None
    journal = Journal(directory, kind, identity, locked(directory, kind.error))
    try:
        names = sorted(entry.name for entry in directory.iterdir())
        _refuse_no_files(journal, names)
        _refuse_foreign(journal, names, beside, overwrite=overwrite)
        if overwrite:  # the manifest goes first: it must not vouch for half of a result
            for name in (MANIFEST, *filter(kind.is_file, names), *kind.further, kind.journal):
                (directory / name).unlink(missing_ok=True)
            names = [name for name in names if (directory / name).exists()]
        _find_finished(journal, names)
        for name in names:
            if kind.is_draft(name):
                (directory / name).unlink(missing_ok=True)  # the temporary file of a dead run
        if journal.manifest is None:
            journal.begin()
        return journal
    except BaseException:
        journal.close()
        raise


def _find_finished(journal: Journal[File, Made], names: Sequence[str]) -> None:
    """Fill `journal` with what the manifest or a former journal lists and the directory proves."""
    directory, kind = journal.directory, journal.kind
    manifest = kind.manifest(directory) if MANIFEST in names else None
    if manifest is not None and not manifest.sound:
        raise kind.error(f"{directory / MANIFEST} was edited: restore it, or pass --overwrite")
    found = _read(directory, kind) if manifest is None else kind.listed(manifest)
    begun = found or Listed(journal.identity, [])
    present = [name for name in names if kind.is_file(name)]
    differences = begun.identity.differences(journal.identity)
    # a run that stopped before its first file left nothing that another one could spoil
    if differences and (begun.files or present):
        raise kind.error(
            f"{directory} holds the {kind.name} of another run ({'; '.join(differences[:4])}):"
            " choose another directory, or pass --overwrite to replace them"
        )
    known = {file.name for file in begun.files}
    if found:
        known.add(kind.file_name(len(begun.files)))  # renamed, not yet in the journal
    for name in present:
        if name not in known:
            raise kind.error(
                f"{directory / name} is not of this run, or the run's manifest was lost: move it"
                " away, or pass --overwrite"
            )
    for number, file in enumerate(begun.files):
        path = directory / kind.file_name(number)
        there = path.name == file.name and path.is_file() and path.stat().st_size == file.bytes
        if not there or (kind.hashed and digest(path) != file.sha256):
            journal.notes.append(
                f"{file.name} is missing or changed: written again, and all after it"
            )
            break
        journal.files.append(file)
    journal.choice = begun.choice if journal.files else ""
    if manifest is not None and len(journal.files) == len(begun.files):
        lost = [
            name
            for name, sha256 in begun.further.items()
            if not (directory / name).is_file() or digest(directory / name) != sha256
        ]
        if not lost:
            journal.manifest = manifest
            return
        journal.notes += [f"{name} is missing or changed: written again" for name in lost]
    (directory / MANIFEST).unlink(missing_ok=True)  # it must not vouch for what is not there
    kept = {file.name for file in journal.files}
    for name in present:
        if name not in kept:
            (directory / name).unlink(missing_ok=True)


def _read(directory: Path, kind: Kind[File, Made]) -> Listed[File] | None:
    """What the journal holds; None when there is none."""
    path = directory / kind.journal
    if not path.exists():
        return None
    try:
        header, *lines = path.read_bytes().split(b"\n")[:-1]  # what follows the last end is torn
        begun = orjson.loads(header)
        if (begun["kind"], begun["schema_version"]) != (f"{kind.name}-journal", kind.version):
            raise ValueError("another kind or version")
        choice = ""
        if kind.choice and lines:
            key, values = kind.choice
            choice = orjson.loads(lines.pop(0))[key]
            if choice not in values:
                raise ValueError("another choice")
        identity = kind.identity(orjson.dumps(begun["identity"]))
        return Listed(identity, [kind.file(line) for line in lines], choice)
    except (ValueError, LookupError, TypeError):  # pydantic's errors are of the first kind
        raise kind.error(f"{path} is damaged: pass --overwrite to begin again") from None


def _refuse_foreign(
    journal: Journal[File, Made], names: Sequence[str], beside: Collection[str], *, overwrite: bool
) -> None:
    directory, kind = journal.directory, journal.kind
    ours = (MANIFEST, kind.journal, *kind.further, *beside)
    others = [  # the Hub and git keep names with a dot; readers take those that end as shards do
        name
        for name in names
        if name not in ours and not (name.startswith(".") and not name.endswith(kind.spoils))
    ]
    foreign = [name for name in others if not kind.is_file(name) and not kind.is_draft(name)]
    if overwrite:
        foreign = [name for name in foreign if name.endswith(kind.spoils)]
        if MANIFEST in names and _of_another_kind(directory / MANIFEST, kind.name):
            foreign.append(MANIFEST)
    if foreign:
        more = f" and {len(foreign) - 3} more" if len(foreign) > 3 else ""
        step = "" if overwrite else ", or choose an empty directory"
        raise kind.error(
            f"{directory} holds foreign files ({', '.join(foreign[:3])}{more}):"
            f" move them away{step}"
        )


def _refuse_no_files(journal: Journal[File, Made], names: Sequence[str]) -> None:
    """Before anything is read or removed: a folder is not replaced, and of a pipe nothing ends."""
    directory, kind = journal.directory, journal.kind
    for name in names:
        ours = name in (MANIFEST, kind.journal, *kind.further)
        what = no_file(directory / name)
        if what is not None and (ours or kind.is_file(name) or kind.is_draft(name)):
            raise kind.error(
                f"{directory / name} is {what}, where a file of the {kind.name} belongs: move it"
                " away and run the same command again"
            )


def _of_another_kind(manifest: Path, name: str) -> bool:
    try:
        found = orjson.loads(manifest.read_bytes())
        return (found["tool"], found["kind"]) != ("eagle3-data", name)
    except (ValueError, LookupError, TypeError):
        return False  # damaged beyond telling: what --overwrite is for


def locked(directory: Path, error: type[ValueError]) -> int:
    """A lock on the directory for this process; it goes with the process, however that ends.
    Returns a descriptor to close; raises `error` when another run has it.
    """
    import fcntl

    descriptor = os.open(directory, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        raise error(
            f"{directory} is being written by another run: wait for it, or choose another directory"
        ) from None
    return descriptor


def _lines(entries: Iterable[dict[str, Any]]) -> bytes:
    return b"".join(orjson.dumps(entry) + b"\n" for entry in entries)


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


SHARDS: Kind[Shard, Manifest] = Kind(
    name="shards",
    stem="part",
    suffix=".parquet",
    journal=JOURNAL,
    version=SCHEMA_VERSION,
    error=ShardError,
    identity=Identity.model_validate_json,
    file=Shard.model_validate_json,
    manifest=load_manifest,
    listed=lambda made: Listed(made.identity, made.shards),
    hashed=True,
    spoils=".parquet",  # readers of the folder would mix them with ours
)
