"""Refusal: why orjson did not read a line, found by the stdlib parser and a look at the bytes.

What enters: a line that orjson refused, and its error. What leaves: the note that names the cause
and the place (1-based column in characters, or byte). Two harmless causes still give the object: a
byte order mark, and anything that only orjson is too strict for. It promises to return for any
bytes: nesting, numbers and text of any size or kind do not raise.
"""

from __future__ import annotations

import json
import re
from typing import Any

import orjson

from eagle3_data.records.sniff import BOM
from eagle3_data.records.table import Note

_DECODER = json.JSONDecoder()
_CUT_LITERAL = re.compile(
    r"(?:t(?:r(?:u)?)?|f(?:a(?:l(?:s)?)?)?|n(?:u(?:l)?)?|-|N(?:a)?|I\w{0,7})?"
)
_CONSTANT = re.compile(r"NaN|-?Infinity")
_MID_RECORD = re.compile(r'"\s*[:,\]}]')


def explain(line: bytes, error: orjson.JSONDecodeError, torn: bool) -> tuple[Any, Note, str | None]:
    """(value or None, note, detail) of a line that orjson refused."""
    if line.startswith(BOM):
        try:
            value = orjson.loads(line[3:])
            return value, Note.BOM if value is not None else Note.BOM | Note.NOT_AN_OBJECT, None
        except orjson.JSONDecodeError as inner:
            value, note, detail = explain(line[3:], inner, torn)
            return value, note | Note.BOM, detail
    if b"\0" in line:
        return (
            None,
            Note.NUL_RUN,
            f"{line.count(0)} NUL bytes, the first at byte {line.find(0) + 1}",
        )
    try:
        text = line.decode()
    except UnicodeDecodeError as bad:
        if torn and bad.end == len(line) and bad.reason == "unexpected end of data":
            return None, Note.TORN_TAIL, "the file ends inside a UTF-8 character"
        return None, Note.INVALID_UTF8, f"byte 0x{line[bad.start]:02x} at byte {bad.start + 1}"
    if "depth limit" in error.msg or "ecursion" in error.msg:
        return None, Note.BAD_JSON, f"nested deeper than the parser allows (column {error.pos + 1})"
    constants: list[str] = []
    try:
        value = json.loads(text, parse_constant=constants.append)
    except json.JSONDecodeError as bad:
        return None, *_place(text, bad, torn)
    except RecursionError:
        return None, Note.BAD_JSON, "nested deeper than the parser allows"
    except ValueError:  # Python refuses to convert more than 4300 digits
        return None, Note.BIG_INTEGER | Note.BAD_JSON, "an integer of more than 4300 digits"
    if constants:
        found = _CONSTANT.search(text, max(0, error.pos - 1))
        at = f" at column {found.start() + 1}" if found else ""
        return None, Note.NAN_INFINITY, f"{found[0] if found else constants[0]}{at}"
    if "surrogate" in error.msg or _has_surrogate(value):
        return None, Note.LONE_SURROGATE, f"half of a surrogate pair at column {error.pos + 1}"
    if "infinity" in error.msg:
        return None, Note.NAN_INFINITY, f"a number too large for a double at column {error.pos + 1}"
    return value, Note(0), None


def _has_surrogate(value: Any) -> bool:
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return True
    except (ValueError, RecursionError):
        return False
    return False


def _place(text: str, error: json.JSONDecodeError, torn: bool) -> tuple[Note, str]:
    """Name a JSON error by where it stands. `text` is valid UTF-8 without NUL."""
    said = f"{error.msg} (column {error.pos + 1})"
    body = text.strip()
    if error.msg == "Extra data":
        return _extra(text, error.pos, said)
    if text[max(0, error.pos - 2) : error.pos] == '{"' and error.pos > 2:
        return Note.FUSED_RECORDS, f"a broken record and the next one meet (column {error.pos - 1})"
    if body.startswith("{"):
        if _ends_inside(text, error):
            return (
                Note.TORN_TAIL if torn else Note.LINE_FRAGMENT
            ), f"it ends inside a record: {said}"
        if error.msg.startswith("Invalid control character"):
            said += f": byte 0x{ord(text[error.pos]):02x} must be escaped"
        return Note.BAD_JSON, said
    if _MID_RECORD.search(text[-4096:]) and body.endswith(("}", "]", '"', ",")):
        return Note.LINE_FRAGMENT, f"it begins inside a record: {said}"
    return Note.BAD_JSON, said


def _ends_inside(text: str, error: json.JSONDecodeError) -> bool:
    """Whether the parser simply ran out of text."""
    if error.msg.startswith("Unterminated string"):
        return True
    rest = text[error.pos :]
    if "escape" in error.msg:
        return len(rest) <= 12
    return _CUT_LITERAL.fullmatch(rest.strip()) is not None


def _extra(text: str, at: int, said: str) -> tuple[Note, str]:
    """One whole value, then more."""
    rest = text[at:]
    if not text.lstrip().startswith("{"):
        if _MID_RECORD.search(rest[:4096]) or rest.rstrip().endswith("}"):
            return Note.LINE_FRAGMENT, f"it begins inside a record: {said}"
        return Note.BAD_JSON, said
    if not rest.startswith("{"):
        tail = _MID_RECORD.search(rest[:4096]) and len(rest) > 8
        return (Note.LINE_FRAGMENT if tail else Note.BAD_JSON), said
    count = 1
    while rest:
        try:
            _, end = _DECODER.raw_decode(rest)
        except (ValueError, RecursionError):
            return (
                Note.FUSED_RECORDS,
                f"{count} whole and one broken value, seam at column {at + 1}",
            )
        count += 1
        rest = rest[end:].lstrip()
    return Note.FUSED_RECORDS, f"{count} values, seam at column {at + 1}"
