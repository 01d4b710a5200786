"""Streams: a file, plain or compressed, as one buffered stream of uncompressed bytes.

What enters: a path. What leaves: a reader, and a word on how the compressed stream ended. It
promises that a gz or zst stream which ends early or is damaged gives all bytes before the damage
and a `fault`, never an exception, and that output is made in small pieces, so that a compression
bomb does not fill the memory.
"""

from __future__ import annotations

import io
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

GZIP_MAGIC = b"\x1f\x8b"
ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
ZSTD_SKIPPED, ZSTD_FIRST_SKIPPED = b"\x2a\x4d\x18", 0x50
"""A frame to skip: one of 16 first bytes, then always these three."""
BUFFER = 1 << 20
"""Bytes looked at by the file sniffer, and the size of one read."""

_GZ_CHUNK = 1 << 16
_GZ_PIECE = 1 << 22
# zstd gives no way to bound the output of a call: 4 KiB of input is the bound, at most some 100 MiB
# for a bomb. It is also what is lost before a damaged place.
_ZST_CHUNK = 1 << 12


@dataclass(slots=True)
class Stream:
    """An open file. `reader`: uncompressed bytes; `compressed`: whether offsets differ from those
    on disk.
    """

    reader: io.BufferedReader
    compressed: bool
    _file: io.FileIO
    _faults: list[str] = field(default_factory=list)

    @property
    def consumed(self) -> int:
        """Bytes of the file on disk that were read so far."""
        return self._file.tell() if self.compressed else self.reader.tell()

    @property
    def fault(self) -> str | None:
        """What is wrong with the compressed stream; final when the reader is at its end."""
        return self._faults[0] if self._faults else None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.reader.close()
        self._file.close()


def is_zstd(magic: bytes) -> bool:
    """Whether a zstd stream begins so: with a frame, or with one to skip (pzstd and tools that put
    their own facts before the data write such).
    """
    return magic == ZSTD_MAGIC or (
        magic[1:4] == ZSTD_SKIPPED and ZSTD_FIRST_SKIPPED <= magic[0] <= ZSTD_FIRST_SKIPPED + 15
    )


def open_stream(path: Path) -> Stream:
    """Open `path`; the first bytes decide about compression, not the name (downloads lose or gain
    endings). Raises OSError.
    """
    file = io.FileIO(path, "rb")
    magic = file.read(4)
    file.seek(0)
    faults: list[str] = []
    if magic.startswith(GZIP_MAGIC):
        pieces = _gunzip(file, faults)
    elif is_zstd(magic):
        pieces = _unzstd(file, faults)
    else:
        return Stream(io.BufferedReader(file, BUFFER), False, file)
    return Stream(io.BufferedReader(_Pieces(pieces), BUFFER), True, file, faults)


class _Pieces(io.RawIOBase):
    """An iterator of byte strings as a raw stream. A read is short only at the end."""

    def __init__(self, pieces: Iterator[bytes]) -> None:
        self._pieces = pieces
        self._rest = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: WriteableBuffer) -> int:
        view = memoryview(buffer).cast("B")
        filled = 0
        while filled < len(view):
            if not self._rest:
                piece = next(self._pieces, None)
                if piece is None:
                    break
                self._rest = memoryview(piece)
            size = min(len(view) - filled, len(self._rest))
            view[filled : filled + size] = self._rest[:size]
            self._rest = self._rest[size:]
            filled += size
        return filled


def _gunzip(file: io.FileIO, faults: list[str]) -> Iterator[bytes]:
    """Inflate all members of a gzip file; `faults` gets at most one sentence."""
    member = zlib.decompressobj(wbits=31)
    data = b""
    while chunk := data or file.read(_GZ_CHUNK):
        if member.eof:
            chunk = chunk.lstrip(b"\0")  # padding between or after members is legal
            if not chunk:
                data = b""
                continue
            if not GZIP_MAGIC.startswith(chunk[:2]):
                faults.append("bytes that are no gzip data follow the end of the gzip stream")
                return
            member = zlib.decompressobj(wbits=31)
        before = member.copy()
        try:
            yield member.decompress(chunk, _GZ_PIECE)
        except zlib.error as error:
            yield from _salvage(before, chunk)
            faults.append(f"the gzip stream is damaged ({error})")
            return
        data = member.unused_data if member.eof else member.unconsumed_tail
    if not member.eof:
        yield member.flush()
        faults.append("the gzip stream ends before its end mark: the file was cut")


def _salvage(member: zlib._Decompress, chunk: bytes) -> Iterator[bytes]:
    """What `chunk` gives before the byte that is damaged: zlib drops the whole output of a call
    that fails.
    """
    try:
        for i in range(len(chunk)):
            yield member.decompress(chunk[i : i + 1])
    except zlib.error:
        return


def _unzstd(file: io.FileIO, faults: list[str]) -> Iterator[bytes]:
    """Decompress all frames of a zstd file; `faults` gets at most one sentence."""
    import zstandard

    unpacker = zstandard.ZstdDecompressor()
    frame = unpacker.decompressobj()
    data = b""
    while chunk := data or file.read(_ZST_CHUNK):
        if frame.eof:
            frame = unpacker.decompressobj()
        try:
            yield frame.decompress(chunk)
        except zstandard.ZstdError as error:
            faults.append(f"the zstd stream is damaged ({error})")
            return
        data = frame.unused_data if frame.eof else b""
    if not frame.eof:
        faults.append("the zstd stream ends before its end mark: the file was cut")
