"""Sources: what the user names on the command line becomes a list of files to read.

What enters: paths, globs, directories and "-". What leaves: one `Source` a file, each file once,
in a stable order. It promises that every name either matches something or raises `InputError` with
the next step, and that a stream which can be read only once (standard input, a named pipe) is
spooled to disk, so that every later pass sees the same bytes.
"""

from __future__ import annotations

import atexit
import glob
import shutil
import stat
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

STDIN = "-"
ENDINGS = tuple(
    f".{kind}{packed}" for kind in ("jsonl", "json", "ndjson") for packed in ("", ".gz", ".zst")
)
"""What a directory is searched for."""


class InputError(ValueError):
    """An input that can not be read at all; the text names it and the next step."""


@dataclass(frozen=True, slots=True)
class Source:
    """One input file. `path`: as given ("-" for standard input). `real`: what to open. `size`:
    bytes on disk.
    """

    path: str
    real: Path
    size: int


def expand(paths: Sequence[str]) -> list[Source]:
    """The files that `paths` name: files, globs, directories (not their subfolders, sorted by
    name) and "-".

    A file that is named twice is read once, at its first place: a shell glob beside an explicit
    name is common, and reading twice would report every record as a duplicate. Raises `InputError`
    when a name matches nothing.
    """
    if not paths:
        raise InputError('no input: name a file, a directory, a glob, or "-" for standard input')
    found: dict[Path, Source] = {}
    for path in paths:
        for source in _sources(path):
            if source.path != source.path.encode(errors="replace").decode():
                told = ascii(source.path)
                raise InputError(f"{told}: the name is not UTF-8, no report can hold it: rename it")
            found.setdefault(source.real.resolve(), source)
    return list(found.values())


def _sources(path: str) -> Iterator[Source]:
    if path == STDIN:
        if sys.stdin is None:
            raise InputError("-: standard input is closed: name a file, or pipe the data in")
        yield _spool(STDIN, sys.stdin.buffer)
        return
    if "\0" in path:
        raise InputError(f"{path!r}: not a path (it holds a NUL character)")
    named = Path(path)
    try:
        exists = named.exists()
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}; check the path") from error
    if exists:
        yield from _existing(path, named)
        return
    matches = sorted(m for m in glob.glob(path, recursive=True) if Path(m).is_file())  # noqa: PTH207 -- Path.glob refuses absolute patterns
    if not matches:
        pattern = any(c in path for c in "*?[")
        why = "the pattern matches no file" if pattern else "no such file"
        raise InputError(f"{path}: {why}; check the path and the working directory")
    for match in matches:
        yield from _existing(match, Path(match))


def _existing(path: str, named: Path) -> Iterator[Source]:
    if named.is_dir():
        inside = sorted(f for f in named.iterdir() if f.name.endswith(ENDINGS) and f.is_file())
        if not inside:
            raise InputError(
                f"{path}: the directory holds no *.jsonl, *.ndjson or *.json file"
                " (.gz and .zst included);"
                f" for files in subfolders give a glob: '{path.rstrip('/')}/**/*.jsonl'"
            )
        for file in inside:
            yield Source(str(file), file, file.stat().st_size)
        return
    try:
        status = named.stat()
        with named.open("rb") as stream:
            if stat.S_ISREG(status.st_mode):
                yield Source(path, named, status.st_size)
            else:
                yield _spool(path, stream)
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}; check the file's permissions") from error


def _spool(path: str, stream: BinaryIO) -> Source:
    """Copy a stream to a temporary file that lives until the program ends."""
    with tempfile.NamedTemporaryFile(prefix="eagle3-data-", suffix=".jsonl", delete=False) as copy:
        real = Path(copy.name)
        atexit.register(real.unlink, missing_ok=True)
        shutil.copyfileobj(stream, copy, 1 << 20)
        return Source(path, real, copy.tell())
