"""Files that land whole or not at all.

What enters: a final path and bytes. What leaves: the file under its final name, with its size and
SHA-256. It promises that bytes are written beside the final name and renamed at the end, that an
existing file is only replaced when asked, that nothing but a regular file is ever replaced, and
that a failure leaves no half file behind.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
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
    if not os.access(folder, os.W_OK | os.X_OK):
        raise OutputError(
            f"{folder} is not writable: choose another place, or change its permissions"
        )


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
        descriptor, name = tempfile.mkstemp(
            prefix=f".{self.path.name[:80]}.", suffix=".part", dir=self.path.parent
        )
        self._file = open(descriptor, "wb", buffering=1 << 20)  # noqa: SIM115, PTH123 (lives until land or drop)
        self._beside = Path(name)

    _beside: Path = field(init=False, repr=False)

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

    def drop(self) -> None:
        """Remove what was written and not landed. Safe to call twice and after `land`."""
        with contextlib.suppress(OSError):
            self._file.close()
        with contextlib.suppress(FileNotFoundError):
            self._beside.unlink()


@contextmanager
def drafting(path: Path, *, overwrite: bool) -> Iterator[Draft]:
    """A draft that lands when the block ends well and is dropped when it does not."""
    draft = Draft(path, overwrite)
    try:
        yield draft
        draft.land()
    finally:
        draft.drop()
