"""Growing: a file that another process appends to, read as far as its lines are complete.

What enters: the path of a JSON Lines file. What leaves, poll by poll: `LineBatch`es of the lines
that were completed since. It promises the reading of `check` (the same reader, on byte ranges),
that a line without its line end waits until it has one, and that a file which shrank, was written
anew or was replaced is told and read from its start under the next `file_no`; nothing of it is
taken for a continuation.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

from eagle3_data.records.lines import InputError, LineBatch, Source, read_batches
from eagle3_data.records.sniff import sniff
from eagle3_data.records.streams import BUFFER, open_stream
from eagle3_data.records.table import Note

BITE = 16 << 20
"""Bytes that are searched for line ends before the lines found are handed over."""
_MARK = 64
"""Bytes before the place reached by which a file that was written anew is known."""


@dataclass(slots=True, eq=False)
class Growing:
    """A file being followed. `told`: what happened to it, to be taken away by who tells it."""

    path: str
    file_no: int = 0
    told: list[str] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)
    """Bytes read of each file that stood under the name before."""
    offset: int = 0
    """Bytes of the lines handed over."""
    lines: int = 0
    """Physical lines handed over, blank ones too."""
    _file: int = -1
    _searched: int = 0
    _mark: bytes = b""
    _gone: bool = False

    def __post_init__(self) -> None:
        self._open()

    @property
    def waiting(self) -> int:
        """Bytes of the last line as far as it is there."""
        return self._searched - self.offset

    def poll(self) -> Iterator[LineBatch]:
        """The lines completed since the last poll, oldest first. Raises InputError, OSError."""
        while True:
            if self._written_anew():
                yield from self._turn("was written anew")
                continue
            complete, count = self._search()
            if complete > self.offset:
                yield from self._read(complete)
                self.lines += count
            elif change := self._change():
                yield from self._turn(change)
            else:
                return

    def rewind(self) -> None:
        """Read the file that stands under the name now from its start again."""
        self.offset = self.lines = self._searched = 0
        self._mark = b""

    def sources(self) -> list[Source]:
        """Every file that was read, in the order of `file_no`, as far as it was read."""
        real = Path(self.path)
        return [
            Source(f"{self.path} (file {number})" if number > 1 else self.path, real, size)
            for number, size in enumerate([*self.sizes, self.offset], 1)
        ]

    def close(self) -> None:
        """Let go of the file. Safe to call twice."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def _open(self) -> None:
        try:
            self._file = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
            if not stat.S_ISREG(os.fstat(self._file).st_mode):
                raise InputError(f"{self.path} is no regular file: --follow reads one growing file")
            self._refuse_other_kinds()
        except OSError as error:
            raise InputError(
                f"{self.path}: {error.strerror}; --follow reads a file that is there: start the"
                " capture first"
            ) from error
        except InputError:
            self.close()
            raise

    def _refuse_other_kinds(self) -> None:
        with open_stream(self._real()) as stream:
            if stream.compressed:
                raise InputError(
                    f"{self.path} is compressed and has no complete line before it is whole: run"
                    " check without --follow when it is"
                )
            head = stream.reader.peek(BUFFER)
        if head and (found := sniff(head, whole=False)):
            raise InputError(
                f"{self.path} holds no JSON Lines ({found[1]}), so there is nothing to follow: run"
                " check without --follow"
            )

    def _real(self) -> Path:
        """The open file by its descriptor: the name may stand for another one meanwhile."""
        os.lseek(self._file, 0, os.SEEK_SET)  # where opening it anew shares the place
        return Path(f"/dev/fd/{self._file}")

    def _search(self) -> tuple[int, int]:
        """Where the last complete line ends, and how many lines end before it, BITE by BITE."""
        complete, count = self.offset, 0
        while chunk := os.pread(self._file, BITE, self._searched):
            if (last := chunk.rfind(b"\n")) >= 0:
                complete, count = self._searched + last + 1, count + chunk.count(b"\n")
            self._searched += len(chunk)
            self._mark = (self._mark + chunk[-_MARK:])[-_MARK:]
            if complete > self.offset:
                break
        return complete, count

    def _read(self, complete: int) -> Iterator[LineBatch]:
        source = Source(self.path, self._real(), complete)
        for batch in read_batches(source, self.file_no, start=self.offset, end=complete):
            self.offset = batch.bytes_read
            batch.numbers = [number + self.lines for number in batch.numbers]
            batch.faults = [
                replace(fault, number=fault.number + self.lines) if fault.number else fault
                for fault in batch.faults
                if fault.note is not Note.FILE_EMPTY  # not yet more than blank lines
            ]
            if batch.lines or batch.faults:
                yield batch

    def _written_anew(self) -> bool:
        """Whether the bytes before the place reached are no longer those that were read."""
        size = os.fstat(self._file).st_size
        start = self._searched - len(self._mark)
        return size < self._searched or os.pread(self._file, len(self._mark), start) != self._mark

    def _change(self) -> str | None:
        """What happened to the name, None when it still stands for this file."""
        try:
            now = os.stat(self.path)  # noqa: PTH116 -- beside os.fstat below
        except FileNotFoundError:
            if not self._gone:
                self.told.append(f"{self.path} is gone: waiting for a new file of that name")
            self._gone = True
            return None
        self._gone = False
        mine = os.fstat(self._file)
        return None if (now.st_dev, now.st_ino) == (mine.st_dev, mine.st_ino) else "was replaced"

    def _turn(self, how: str) -> Iterator[LineBatch]:
        """Go on with the file that stands under the name now, after the torn end of the old."""
        told = f"{self.path} {how} after {self.lines:,} lines: reading it from its start"
        if self.waiting and (torn := self._torn()):
            told += f" (its last line, {self.waiting:,} bytes, was never completed)"
            yield torn
        self.told.append(told)
        self.sizes.append(self._searched)
        self.close()
        self.file_no += 1
        self.rewind()
        self._open()

    def _torn(self) -> LineBatch | None:
        """The line that will never be complete; None when its bytes are no longer there."""
        if self._written_anew():
            return None
        source = Source(self.path, self._real(), self._searched)
        for batch in read_batches(source, self.file_no, start=self.offset, end=self._searched):
            batch.numbers = [number + self.lines for number in batch.numbers]
            return batch if batch.lines else None
        return None
