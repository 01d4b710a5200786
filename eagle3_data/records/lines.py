"""Lines: files in, batches of raw lines with their true numbers and byte offsets out.

What enters: a `Source`. What leaves: `LineBatch`es in file order, the last one marked. It promises
that lines are split on byte 0x0A only, that blank lines are skipped but numbered, that one line
above the limit is reported and not loaded (memory is flat whatever the file's size), and that a
fault of the whole file is told once while each of its lines is still counted.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from eagle3_data.records.sniff import BOM, sniff
from eagle3_data.records.sources import InputError as InputError
from eagle3_data.records.sources import Source as Source
from eagle3_data.records.sources import expand as expand
from eagle3_data.records.streams import BUFFER, Stream, open_stream
from eagle3_data.records.table import Note

MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class LineFault:
    """A line that was not loaded (`number` set), or a fact about the whole file (`number` is None).

    The lines of a file that is wrong as a whole come with an empty `note`: they count as
    unreadable in the ledger, the file's own fault says why, once.
    """

    number: int | None
    offset: int | None
    length: int | None
    note: Note
    detail: str


@dataclass(slots=True)
class LineBatch:
    """Some consecutive lines of one file. `lines[i]` has no line end, is never blank, and stands
    at `numbers[i]` (1-based physical line) and `offsets[i]` (bytes, uncompressed stream).
    """

    file_no: int
    lines: list[bytes] = field(default_factory=list)
    numbers: list[int] = field(default_factory=list)
    offsets: list[int] = field(default_factory=list)
    faults: list[LineFault] = field(default_factory=list)
    last: bool = False
    """No line of this file (or range) follows."""
    torn: bool = False
    """The last line of `lines` has no line end: the file (or the cut stream) ends inside or right
    after it.
    """
    bytes_read: int = 0
    """Bytes of the file on disk consumed so far, for progress."""
    notes: dict[int, Note] = field(default_factory=dict)
    """Index into `lines` → what the bytes around the line showed (BOM, CRLF)."""


def read_batches(
    source: Source,
    file_no: int,
    *,
    limit: int = 64 * MIB,
    target_records: int = 2048,
    target_bytes: int = 16 * MIB,
    start: int = 0,
    end: int | None = None,
) -> Iterator[LineBatch]:
    """The lines of `source`, at least one batch. `limit`: longest line that is loaded, bytes.

    `start`, `end`: only lines whose first byte is in this byte range of an uncompressed file;
    adjoining ranges give every line once. Line numbers count from 1 at the first line of the
    range, faults of the file are told by the range that starts at 0. Raises `InputError` when the
    file can not be opened, or a range is asked of a compressed file.
    """
    try:
        stream = open_stream(source.real)
    except OSError as error:
        raise InputError(f"{source.path}: {error.strerror}; check the file") from error
    with stream:
        if stream.compressed and (start or end is not None):
            raise InputError(f"{source.path}: a compressed file has no byte ranges")
        head = stream.reader.peek(BUFFER)
        found = sniff(head, whole=len(head) < BUFFER)
        file_faults = []
        if found and not start:
            file_faults = [LineFault(None, None, None, *found)]
        offset = 0
        if start:
            # the byte before the range decides whether the range begins with a line of its own
            stream.reader.seek(start - 1)
            offset = start - 1 + _skip(stream)
        yield from _batches(
            stream, LineBatch(file_no, faults=file_faults), offset, end, limit, target_records,
            target_bytes, lost=found is not None,
        )  # fmt: skip


def _skip(stream: Stream) -> int:
    """Read to the end of the line without keeping it; the bytes read."""
    size = 0
    while chunk := stream.reader.readline(MIB):
        size += len(chunk)
        if chunk.endswith(b"\n"):
            break
    return size


def _unloaded(number: int, offset: int, length: int, limit: int, lost: bool) -> LineFault:
    """The fault of a line that was not kept."""
    if lost:
        return LineFault(number, offset, length, Note(0), "")
    told = f"{length} bytes, the limit is {limit}"
    return LineFault(number, offset, length, Note.OVERSIZE, told)


def _batches(
    stream: Stream,
    batch: LineBatch,
    offset: int,
    end: int | None,
    limit: int,
    target_records: int,
    target_bytes: int,
    lost: bool,
) -> Iterator[LineBatch]:
    """Fill `batch` line by line and start a new one when it is full. `lost`: the file is wrong as
    a whole.
    """
    readline, number, held = stream.reader.readline, 0, 0
    bound = limit + 2  # the longest good line with its line end
    while (end is None or offset < end) and (line := readline(bound)):
        number += 1
        at, size = offset, len(line)
        ended = line.endswith(b"\n")
        if not ended and size == bound:
            size += _skip(stream)
            offset += size
            batch.faults.append(_unloaded(number, at, size, limit, lost))
            continue
        offset += size
        crlf = line.endswith(b"\r\n")
        body = line[:-2] if crlf else line[:-1] if ended else line
        mark = at == 0 and body.startswith(BOM)
        if mark:
            body, at = body[3:], 3
        if not body or body.isspace():
            continue
        if lost or len(body) > limit:
            batch.faults.append(_unloaded(number, at, len(body), limit, lost))
        else:
            if crlf or mark:
                seen = (Note.CRLF if crlf else Note(0)) | (Note.BOM if mark else Note(0))
                batch.notes[len(batch.lines)] = seen
            batch.torn = not ended
            batch.lines.append(body)
            batch.numbers.append(number)
            batch.offsets.append(at)
        held += size
        if held >= target_bytes or len(batch.lines) + len(batch.faults) >= target_records:
            if not stream.reader.peek(1):
                break
            batch.bytes_read = stream.consumed
            yield batch
            batch, held = LineBatch(batch.file_no), 0
    if stream.fault and (end is None):
        batch.faults.append(LineFault(None, None, None, Note.FILE_STREAM_CUT, stream.fault))
    batch.last, batch.bytes_read = True, stream.consumed
    yield batch
