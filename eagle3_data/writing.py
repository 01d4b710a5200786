"""Files that land whole or not at all.

What enters: a final path and bytes. What leaves: the file under its final name, with its size and
SHA-256. It promises that bytes are written beside the final name and renamed at the end, that an
existing file is only replaced when asked, that nothing but a regular file is ever replaced, and
that a failure leaves no half file behind; the rest of a run that was killed is removed by the next
one that writes the same file.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO


class OutputError(ValueError):
    """An output that can not be written; the message names the path and the next step."""


def refuse_unwritable(path: Path, *, overwrite: bool) -> None:
    """Raise OutputError when `path` can not become an output; asked before the work as well."""
    if path.exists() or path.is_symlink():
        if path.is_dir():
            raise OutputError(f"{path} is a directory: name a file in it")
        if not path.is_file():
            # a rename would replace the device or pipe itself, /dev/null included
            raise OutputError(
                f"{path} is not a regular file: name a file, or - for standard output"
            )
        if not overwrite:
            raise OutputError(
                f"{path} exists: choose another name, or pass --overwrite to replace it"
            )
    folder = path.parent
    if not folder.is_dir():
        raise OutputError(f"{folder} is not a directory: create it first, then run again")
    refuse_folder(folder)


def refuse_folder(folder: Path) -> None:
    """Raise OutputError when no file can be made in `folder`. Tried, because permissions do not
    tell it all: a read-only mount, /proc, a disk without room.
    """
    try:
        tempfile.TemporaryFile(dir=folder).close()
    except OSError as fault:
        raise OutputError(
            f"{folder} is not writable ({fault.strerror}): choose another place, or change its"
            " permissions"
        ) from fault


def sweep(path: Path) -> None:
    """Remove what runs that were killed left beside `path`. A draft that is being written is
    locked by its process, and stays.
    """
    rest = re.compile(re.escape(_prefix(path)) + r"[a-z0-9_]{8}" + re.escape(_SUFFIX))
    for name in os.listdir(path.parent):  # noqa: PTH208 -- names alone, of a folder that may be large
        if rest.fullmatch(name):
            with contextlib.suppress(OSError), (path.parent / name).open("rb") as left:
                fcntl.flock(left, fcntl.LOCK_EX | fcntl.LOCK_NB)
                (path.parent / name).unlink()


_SUFFIX = ".part"


def _prefix(path: Path) -> str:
    return f".{path.name[:80]}."


def _beside(path: Path) -> tuple[int, int, Path]:
    """A new file beside `path`: its descriptor, a second one that holds its lock, its name."""
    while True:
        descriptor, name = tempfile.mkstemp(prefix=_prefix(path), suffix=_SUFFIX, dir=path.parent)
        with contextlib.suppress(OSError):  # a file system without locks
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        if os.fstat(descriptor).st_nlink:
            return descriptor, os.dup(descriptor), Path(name)
        os.close(descriptor)  # another run swept it away before it was locked


@dataclass(slots=True)
class Draft:
    """A file being written beside its final name: `land` puts it there, `drop` removes it."""

    path: Path
    overwrite: bool
    size: int = 0
    _digest: hashlib._Hash = field(default_factory=hashlib.sha256, repr=False)
    _file: IO[bytes] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self.path = self.path.resolve()  # a link stays a link: the file it points to is replaced
        refuse_unwritable(self.path, overwrite=self.overwrite)
        sweep(self.path)
        descriptor, self._lock, self._beside = _beside(self.path)
        self._file = open(descriptor, "wb", buffering=1 << 20)  # noqa: SIM115, PTH123 (lives until land or drop)

    _beside: Path = field(init=False, repr=False)
    _lock: int = field(init=False, repr=False)

    def write(self, data: bytes) -> None:
        """Append bytes. Raises OSError (disk full); the caller drops the draft then."""
        self._file.write(data)
        self._digest.update(data)
        self.size += len(data)

    @property
    def sha256(self) -> str:
        """Hex digest of everything written so far."""
        return self._digest.hexdigest()

    def close(self) -> None:
        """Flush to the disk, so that a full disk is an error before anything is renamed."""
        if not self._file.closed:
            self._file.flush()
            os.fsync(self._file.fileno())
            self._file.close()
            mask = os.umask(0)
            os.umask(mask)
            self._beside.chmod(
                0o666 & ~mask
            )  # mkstemp gives 0600; the file gets what open() would give

    def land(self) -> None:
        """Give the file its final name. Raises OutputError when one appeared there meanwhile."""
        self.close()
        if not self.overwrite:
            try:
                os.link(self._beside, self.path)  # unlike a rename, a link never replaces
            except FileExistsError:
                self.drop()
                raise OutputError(
                    f"{self.path} appeared meanwhile and was left as it is: choose another name"
                ) from None
            except OSError:  # a file system without hard links
                refuse_unwritable(self.path, overwrite=False)
                self._beside.replace(self.path)
            else:
                self._beside.unlink()
        else:
            self._beside.replace(self.path)
        self._unlock()

    def drop(self) -> None:
        """Remove what was written and not landed. Safe to call twice and after `land`."""
        with contextlib.suppress(OSError):
            self._file.close()
        with contextlib.suppress(FileNotFoundError):
            self._beside.unlink()
        self._unlock()

    def _unlock(self) -> None:
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1


@contextmanager
def drafting(path: Path, *, overwrite: bool) -> Iterator[Draft]:
    """A draft that lands when the block ends well and is dropped when it does not."""
    draft = Draft(path, overwrite)
    try:
        yield draft
        draft.land()
    finally:
        draft.drop()
