"""Parse: one raw line becomes one JSON object, or the exact reason why it is none.

What enters: the bytes of a line. What leaves: the object with the notes about it, or a refusal. It
promises that no bytes raise, that orjson reads every good line (the stdlib parser only explains a
refusal), and that keys which stand twice in one object are found, whatever object it is.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from json.encoder import encode_basestring_ascii
from typing import Any

import orjson

from eagle3_data.records.refusal import explain
from eagle3_data.records.table import Note

Json = dict[str, Any]
Parsed = tuple[Json | None, int, str | None]
"""(object, or None when the line is unreadable; what was noticed; details)."""

LEVELS = 250
"""Objects and lists in each other that are read: orjson reads 1,020 and writes 254. Counted,
because Python's own limit comes sooner the deeper the caller's stack is.
"""
_LONG = 256
_HEAD = 16
_BACKSLASH = 0x5C


def parse(line: bytes, *, torn: bool = False) -> Parsed:
    """Parse one line. `torn`: it is the last one and has no line end."""
    return object_of(line, *load(line, torn))


def load(line: bytes, torn: bool) -> tuple[Any, int, str | None]:
    """The JSON value of a line, whatever its type; (None, why not, details) of a refused one."""
    try:
        return orjson.loads(line), 0, None
    except orjson.JSONDecodeError as error:
        value, note, detail = explain(line, error, torn)
        return value, int(note), detail


def object_of(line: bytes, value: Any, note: int, detail: str | None) -> Parsed:
    """What `load` gave for `line`, as an object that was looked through for repeated keys."""
    if value is None and note:
        return None, note, detail
    if value.__class__ is not dict:
        kind = {list: "a list", str: "a string", bool: "a Boolean", type(None): "null"}
        return None, note | Note.NOT_AN_OBJECT, kind.get(type(value), "a number")
    twice = twice_given(line, value)
    if twice:
        double, detail = _told(twice)
        return value, note | double, detail
    return value, note, detail


def doubles(line: bytes, value: Json, keys: int, long: list[str]) -> tuple[int, str | None]:
    """(note, details) about repeated keys of an object whose number of `keys` and `long` texts (in
    the order of the line) are known. A wrong number only costs the walk over `value`.
    """
    if _count_ends(line, long) == keys:
        return 0, None
    twice = twice_given(line, value)
    return _told(twice) if twice else (0, None)


def _told(twice: list[str]) -> tuple[int, str]:
    return int(Note.DUPLICATE_KEYS), f"keys given twice: {', '.join(twice)}"


def twice_given(line: bytes, value: Json) -> list[str]:
    """The keys that stand twice in one object of `line`, sorted; `value` is its parsed form.

    `":` ends every key and, in text, is always written `\\":`. So the line holds as many bare `":`
    as the parsed object has keys, unless a key was given twice. The count skips over long texts
    (for a line of 12 KB it costs 8 us, over all its bytes 15 us). Only a line whose count differs
    is parsed again by the slow parser that sees pairs, so a miscount costs time and never an
    answer. Not seen: a repeated key in the company of an equally large miscount the other way.
    """
    long: list[str] = []
    keys = _count_keys(value, long.append)
    if _count_ends(line, long) == keys:
        return []
    if line.count(b'":') - line.count(b'\\":') == keys:
        return []
    found: set[str] = set()

    def look(pairs: list[tuple[str, Any]]) -> Json:
        made = dict(pairs)
        if len(made) != len(pairs):
            seen: set[str] = set()
            for key, _ in pairs:
                if key in seen:
                    found.add(key)
                seen.add(key)
        return made

    json.loads(line, object_pairs_hook=look)
    return sorted(printable(key) for key in found)


def printable(text: str, limit: int = 80) -> str:
    """Foreign text on its way into a detail: no control characters, bounded."""
    safe = "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text[:limit])
    return safe if len(text) <= limit else safe + "…"


def _count_keys(value: Json, long: Callable[[str], None], left: int = LEVELS) -> int:
    """Keys of all objects in `value`; its long texts go to `long` in the order of the line. Raises
    RecursionError when it holds more than `left` levels.
    """
    if not left:
        raise RecursionError(f"more than {LEVELS} levels")
    keys = len(value)
    for item in value.values():
        kind = type(item)
        if kind is str:
            if len(item) > _LONG:
                long(item)
        elif kind is dict:
            keys += _count_keys(item, long, left - 1)
        elif kind is list and item and type(item[0]) is not int:
            # token ids are not walked: an object among them only costs the slow check
            keys += _count_in_list(item, long, left - 1)
    return keys


def _count_in_list(items: list[Any], long: Callable[[str], None], left: int) -> int:
    if not left:
        raise RecursionError(f"more than {LEVELS} levels")
    keys = 0
    for item in items:
        kind = type(item)
        if kind is dict:
            keys += _count_keys(item, long, left - 1)
        elif kind is str:
            if len(item) > _LONG:
                long(item)
        elif kind is list and item:
            keys += _count_in_list(item, long, left - 1)
    return keys


def _count_ends(line: bytes, long: list[str]) -> int:
    """Bare `":` in `line`, long texts left out where they are found."""
    ends = at = 0
    for text in long:
        start = _find_long(line, text[:_HEAD], at)
        if start >= 0:
            ends += line.count(b'":', at, start)
            at = start + len(text)  # a text has at least as many bytes as characters
    return ends + line.count(b'":', at)


def _find_long(line: bytes, head: str, at: int) -> int:
    """Where the long text that begins with `head` begins in `line`; -1 when it is not found."""
    needle = head.encode()
    start = line.find(needle, at)
    if start < 0:  # a character in it is escaped, in one of the two usual ways
        needle = orjson.dumps(head)[1:-1]
        start = line.find(needle, at)
    if start < 0:
        needle = encode_basestring_ascii(head)[1:-1].encode()
        start = line.find(needle, at)
    while start >= 0:
        # a thought often begins like its question: a text that ends so soon is not the long one
        quote = line.find(b'"', start, start + _LONG)
        if quote < 0 or line[quote - 1] == _BACKSLASH:
            return start
        start = line.find(needle, quote)
    return -1
