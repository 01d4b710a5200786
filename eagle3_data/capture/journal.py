"""The journal: rows that are stored already, so that a run never asks for one of them twice.

What enters: the output's path and finished rows. What leaves: `raw_responses.jsonl`, and beside it
`….errors.jsonl` for rows that failed and `….torn` for the cut last line of a dead run. It promises
one writer at a time, each row as one write, no row twice, no byte of a former run lost, and that no
secret it knows of is ever written.

A row survives the end of the process, however it ends, as soon as it is written; the disk is
flushed every few seconds (`flush`), so a power cut costs seconds, and those rows are asked again.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson

from eagle3_data.capture.wire import cutter, loads
from eagle3_data.writing import drafting, refuse_unwritable

CHUNK = 4 << 20


class JournalError(ValueError):
    """An output that can not be taken; the message names it and the next step."""


@dataclass(slots=True)
class Journal:
    """The open output of one run. `stored`: 16-byte identities of whole rows. `failed`: identity
    → offset of its line in the errors file. `notes`: what was found at the start, to be told.
    """

    path: Path
    cut: Callable[[bytes], bytes] = field(default_factory=lambda: cutter(""))
    """Takes the key out of a line."""
    stored: set[bytes] = field(default_factory=set)
    failed: dict[bytes, int] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    first: bytes | None = None
    """The first row, to tell what another run was asked."""
    rows_fd: int = -1
    errors_fd: int = -1
    dirty: bool = False

    @property
    def errors_path(self) -> Path:
        return self.path.with_name(f"{stem(self.path)}.errors.jsonl")

    @property
    def torn_path(self) -> Path:
        return self.path.with_name(f"{self.path.name}.torn")

    def add(self, identity: bytes, row: dict[str, Any]) -> bytes:
        """Store a row; on disk as far as the system goes when this returns. The line as written."""
        assert identity not in self.stored, "a row must be asked for once"
        line = self.cut(orjson.dumps(row))
        _append(self.rows_fd, line + b"\n", self.path)
        self.stored.add(identity)
        self.dirty = True
        return line

    def fail(self, identity: bytes, row: dict[str, Any]) -> None:
        """Store a failed row with its attempts, those of earlier runs in front."""
        before = self._attempts(self.failed.get(identity))
        if before:
            row = {**row, "attempts": [*before, *row["attempts"]]}
        if self.errors_fd < 0:
            self.errors_fd = os.open(
                self.errors_path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666
            )
        offset = os.lseek(self.errors_fd, 0, os.SEEK_END)
        _append(self.errors_fd, self.cut(orjson.dumps(row)) + b"\n", self.errors_path)
        self.failed[identity] = offset
        self.dirty = True

    def flush(self) -> None:
        """Make what was written survive a power cut."""
        if not self.dirty:
            return
        self.dirty = False
        try:
            for descriptor in (self.rows_fd, self.errors_fd):
                if descriptor >= 0:
                    os.fsync(descriptor)
        except OSError as error:
            self.dirty = True
            raise JournalError(f"{self.path}: the disk does not take it ({error})") from None

    def settle(self) -> None:
        """Leave in the errors file one line for each row that failed and was not stored since."""
        for identity in self.stored.intersection(self.failed):
            del self.failed[identity]
        if self.errors_fd >= 0:
            os.close(self.errors_fd)
            self.errors_fd = -1
        if not self.errors_path.exists():
            return
        if not self.failed:
            self.errors_path.unlink()
            return
        wanted = sorted(self.failed.items(), key=lambda item: item[1])
        with self.errors_path.open("rb") as old, drafting(self.errors_path, overwrite=True) as new:
            for identity, offset in wanted:
                old.seek(offset)
                self.failed[identity] = new.size
                new.write(old.readline())

    def close(self) -> None:
        """Flush and let go of the output; an empty one is removed. Safe to call twice."""
        self.flush()
        if self.rows_fd >= 0:
            held = os.fstat(self.rows_fd)
            if held.st_size == 0 and held.st_nlink:  # none: the name is another run's by now
                self.path.unlink(missing_ok=True)
        for descriptor in (self.rows_fd, self.errors_fd):
            if descriptor >= 0:
                os.close(descriptor)
        self.rows_fd = self.errors_fd = -1

    def _attempts(self, offset: int | None) -> list[Any]:
        if offset is None:
            return []
        with self.errors_path.open("rb") as file:
            file.seek(offset)
            found = loads(file.readline()).get("attempts")
        return found if isinstance(found, list) else []


def stem(path: Path) -> str:
    """`raw_responses` of raw_responses.jsonl: what the files beside it are named after."""
    return path.name.removesuffix(".jsonl")


def open_journal(path: Path, *, resume: bool, secret: str = "") -> Journal:
    """Take the output for a run. Raises JournalError when another run writes it, when it exists
    and not `resume`, or when its lines are no rows of ours.
    """
    if path.name.endswith((".gz", ".zst")):
        raise JournalError(f"{path}: a capture grows row by row, name a plain .jsonl file")
    refuse_unwritable(path, overwrite=True)
    journal = Journal(path, cutter(secret))
    begun = path.exists() and path.stat().st_size > 0
    if begun and not resume:
        raise JournalError(
            f"{path} holds rows already: pass --resume to go on with it, or choose another name"
        )
    try:
        journal.rows_fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666)
        try:
            fcntl.flock(journal.rows_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(journal.rows_fd)
            journal.rows_fd = -1  # not ours to close: an empty file would be removed
            raise JournalError(
                f"{path} is being written by another run: wait for it, or choose another name"
            ) from None
        held = os.fstat(journal.rows_fd)
        if held.st_nlink == 0 or (held.st_size and not resume):
            # another run ended between our first look and our lock: its empty file is removed,
            # and rows written into that would be in no folder
            raise JournalError(f"{path} was let go by another run just now: call again")
        if resume:
            _set_aside(journal.rows_fd, path, journal.torn_path, journal.notes)
            _read_rows(journal)
            _read_errors(journal)
            journal.settle()
        elif journal.errors_path.exists():
            raise JournalError(
                f"{journal.errors_path} is of an earlier run: move it away, or choose another name"
            )
        return journal
    except BaseException:
        journal.close()
        raise


def _append(descriptor: int, line: bytes, path: Path) -> None:
    """One write for one row. A short write (disk full) is taken back, so that no half row stays."""
    before = os.lseek(descriptor, 0, os.SEEK_END)
    try:
        written = os.write(descriptor, line)
        if written == len(line):
            return
        why = f"only {written} of {len(line)} bytes were written"
    except OSError as error:
        why = error.strerror or str(error)
    os.ftruncate(descriptor, before)
    raise JournalError(
        f"{path}: {why}; is the disk full? All rows before are whole: make room, then pass --resume"
    )


def _set_aside(descriptor: int, path: Path, torn: Path, notes: list[str]) -> None:
    """Move what follows the last line end to the torn file, unless it is a whole row.

    It is copied and flushed before it is cut off: a kill in between leaves it twice, never lost.
    """
    size = os.fstat(descriptor).st_size
    tail, start = b"", size
    while start > 0 and b"\n" not in tail:
        step = min(CHUNK, start)
        start -= step
        tail = os.pread(descriptor, step, start) + tail
    tail = tail[tail.rfind(b"\n") + 1 :]
    if not tail:
        return
    if _identity(tail) is not None:  # only its line end is missing
        _append(descriptor, b"\n", path)
        return
    with torn.open("ab") as file:
        file.write(tail + b"\n")
        file.flush()
        os.fsync(file.fileno())
    os.ftruncate(descriptor, size - len(tail))
    notes.append(f"{path.name}: a torn last line ({len(tail)} bytes) was set aside in {torn.name}")


def _lines(path: Path) -> Iterator[tuple[int, int, bytes]]:
    """Number, offset and bytes of each line."""
    offset = 0
    with path.open("rb", buffering=CHUNK) as file:
        for number, line in enumerate(file, 1):
            yield number, offset, line
            offset += len(line)


def _identity(line: bytes) -> bytes | None:
    """The identity of a whole row, else None."""
    try:
        found = loads(line)["identity"]
        made = bytes.fromhex(found)
    except (ValueError, LookupError, TypeError, RecursionError):
        return None
    return made if len(made) == 16 else None


def _read_rows(journal: Journal) -> None:
    broken = []
    for number, _offset, line in _lines(journal.path):
        identity = _identity(line)
        if identity is None:
            if line.strip(b"\x00 \r\n\t").startswith(b"{") and _is_json(line):
                raise JournalError(
                    f"{journal.path}:{number}: a line without an identity, so the file is not of"
                    " generate: choose another name for the output"
                )
            broken.append(number)
            continue
        if identity in journal.stored:
            journal.notes.append(f"{journal.path.name}:{number}: a row that is there already")
        journal.stored.add(identity)
        if journal.first is None:
            journal.first = line
    if broken:
        journal.notes.append(
            f"{journal.path.name}: {len(broken)} lines are damaged (the first is line {broken[0]});"
            " they stay, and their prompts are asked again"
        )


def _is_json(line: bytes) -> bool:
    try:
        loads(line)
    except ValueError:
        return False
    return True


def _read_errors(journal: Journal) -> None:
    path = journal.errors_path
    if not path.exists():
        return
    descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CLOEXEC)
    try:
        _set_aside(descriptor, path, path.with_name(f"{path.name}.torn"), journal.notes)
    finally:
        os.close(descriptor)
    for _number, offset, line in _lines(path):
        identity = _identity(line)
        if identity is not None:
            journal.failed[identity] = offset
