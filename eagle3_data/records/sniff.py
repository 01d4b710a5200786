"""Sniff: name what makes a whole file unreadable as JSON Lines, from its first bytes.

What enters: the first MiB of the uncompressed stream. What leaves: one note with its evidence, or
nothing. It promises to speak only of faults that make every line meaningless; a file with one good
record near its start is read line by line, however bad its other lines are.
"""

from __future__ import annotations

import json
import re

import orjson

from eagle3_data.records.table import Note

BOM = b"\xef\xbb\xbf"
_LFS = b"version https://git-lfs.github.com/spec/"
_UTF16 = {
    b"\xff\xfe\0\0": "UTF-32",
    b"\0\0\xfe\xff": "UTF-32",
    b"\xff\xfe": "UTF-16",
    b"\xfe\xff": "UTF-16",
}
_MAGIC = {
    b"PAR1": "Parquet",
    b"ARROW1": "Arrow IPC (Feather)",
    b"PK\x03\x04": "a zip archive",
    b"\x1f\x8b": "gzip inside the compressed stream: compressed twice",
    b"\x28\xb5\x2f\xfd": "zstd inside the compressed stream: compressed twice",
    b"BZh": "bzip2 (only gz and zst are read)",
    b"\xfd7zXZ\0": "xz (only gz and zst are read)",
    b"7z\xbc\xaf\x27\x1c": "a 7-Zip archive",
    b"SQLite format 3\0": "an SQLite database",
    b"%PDF": "PDF",
    b"\x89PNG": "a PNG image",
    b"\x89HDF": "HDF5",
    b"\x7fELF": "a program",
    b"Obj\x01": "Avro",
    b"ORC": "ORC",
    b"GGUF": "GGUF model weights",
    b"\x80\x02": "a Python pickle",
    b"\x80\x04": "a Python pickle",
    b"\x80\x05": "a Python pickle",
}
_HTML = re.compile(rb"(?i)<(!doctype html|html|head|body)\b")
_SPACE = b" \t\r\n"


def sniff(head: bytes, whole: bool) -> tuple[Note, str] | None:
    """The fault of a file that begins with `head`, as (note, detail). `whole`: `head` is the whole
    file.
    """
    if whole and not head.strip():
        return Note.FILE_EMPTY, "0 bytes" if not head else "only blank lines"
    if head.startswith(_LFS):
        size = re.search(rb"\nsize (\d{1,20})\s", head[:1024])
        return (
            Note.FILE_LFS_POINTER,
            f"stands for {int(size[1])} bytes" if size else "no size given",
        )
    if wide := _utf16(head):
        return Note.FILE_UTF16, wide
    for magic, kind in _MAGIC.items():
        if head.startswith(magic):
            return Note.FILE_NOT_JSON, f"it looks like {kind}"
    text = head.removeprefix(BOM).lstrip(_SPACE)
    if text.startswith(b"["):
        return _array(text, whole)
    if text.startswith(b"{"):
        return _pretty(text, whole)
    return _foreign(text, whole)


def _utf16(head: bytes) -> str | None:
    for mark, name in _UTF16.items():
        if head.startswith(mark):
            return f"{name} with a byte order mark"
    first = head[:512]
    if len(first) < 8 or first.count(0) < len(first) // 3:
        return None
    if re.match(rb"(?:[\t\n\r -~]\0){4}", first):
        return "UTF-16 little-endian without a byte order mark"
    if re.match(rb"(?:\0[\t\n\r -~]){4}", first):
        return "UTF-16 big-endian without a byte order mark"
    return None


def _array(text: bytes, whole: bool) -> tuple[Note, str] | None:
    """One JSON array, on one line or spread over many; not lines that are lists each."""
    if not re.match(rb"\[\s*(?:\{|\]\s*$|$)", text):
        return None
    first, newline, rest = text.partition(b"\n")
    try:
        value, end = json.JSONDecoder().raw_decode(first.decode("utf-8", "replace"))
    except (ValueError, RecursionError):
        return Note.FILE_JSON_ARRAY, "one JSON array, not one object a line"
    if first.decode("utf-8", "replace")[end:].strip() or (newline and rest.strip()):
        return None
    if not whole and newline:
        return None
    return Note.FILE_JSON_ARRAY, f"one JSON array of {len(value)} items on one line"


def _pretty(text: bytes, whole: bool) -> tuple[Note, str] | None:
    """An object whose own text holds line ends."""
    first, newline, _ = text.partition(b"\n")
    if not newline:
        return None
    try:
        orjson.loads(first)
    except orjson.JSONDecodeError:
        pass
    else:
        return None
    said = Note.FILE_PRETTY_PRINTED, "the first record is spread over several lines"
    if re.match(rb"\{\s*\n[ \t\r\n]*\"", text):
        return said
    decoded = text.decode("utf-8", "replace")
    try:
        _, end = json.JSONDecoder().raw_decode(decoded)
    except (ValueError, RecursionError):
        return None
    return said if "\n" in decoded[:end] else None


def _foreign(text: bytes, whole: bool) -> tuple[Note, str] | None:
    """A file in which no line of `text` begins like a JSON object, and the first is no JSON
    value.
    """
    if not text.strip(b"\0" + _SPACE):
        return (Note.FILE_NOT_JSON, "it holds nothing but NUL bytes") if whole else None
    lines = text.split(b"\n")
    if any(line.lstrip(b"\0" + _SPACE + BOM).startswith(b"{") for line in lines[:100_000]):
        return None
    first = lines[0].strip()
    try:
        orjson.loads(first)
    except orjson.JSONDecodeError:
        pass
    else:
        return None
    if re.search(rb'"\s*:\s*["\[{\dtfn]', first) and first.endswith((b"}", b"]")):
        return None  # the tail of a record: the first line was cut off by another tool
    return Note.FILE_NOT_JSON, f"it looks like {_kind(text, lines)}"


def _kind(text: bytes, lines: list[bytes]) -> str:
    start = text[:4096]
    if b"\0" in start:
        return "binary data"
    if _HTML.match(start):
        return "HTML (a download page or a server's error page)"
    if start.startswith(b"<"):
        return "XML"
    for mark, name in ((b"\t", "TSV"), (b",", "CSV")):
        counts = {line.count(mark) for line in lines[:3] if line.strip()}
        if len(counts) == 1 and counts != {0}:
            return name
    if start.startswith((b"---\n", b"- ")):
        return "YAML"
    try:
        start[:-4].decode() if len(start) == 4096 else start.decode()
    except UnicodeDecodeError:
        return "binary data"
    return "plain text"
