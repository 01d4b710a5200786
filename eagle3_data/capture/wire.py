"""JSON as servers write it, and the key that must not stand in it.

What enters: bytes of a response, values to store, a key. What leaves: values, JSON on one line,
bytes without the key. It promises that what a server said is kept (NaN, lone surrogates, numbers
of any size), and that the key is found however JSON spells it, and JSON stays JSON without it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import orjson

SHORTEST_KEY = 8
"""Characters. A shorter key is a dummy, and part of words."""
_BOM = b"\xef\xbb\xbf"


def loads(text: bytes) -> Any:
    """JSON in UTF-8 as servers write it: NaN, Infinity and lone surrogates too, which orjson
    refuses and `check` tells of. Raises ValueError, RecursionError.
    """
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        # not `json.loads(text)`: it guesses UTF-16 and a byte-order mark, which no reader of the
        # stored line would
        return json.loads(text.decode("utf-8", "surrogatepass"))


def dumps(value: Any, *, odd: bool = False) -> bytes:
    """One line of JSON. `odd`: the value may hold NaN or Infinity, which orjson makes null of."""
    if not odd:
        try:
            return orjson.dumps(value)
        except TypeError:  # a lone surrogate, or a number beyond 64 bits
            pass
    return json.dumps(value, separators=(",", ":")).encode()


def one_line(content: bytes) -> bytes:
    """A JSON text without its byte-order mark and line ends: those are white space, inside a string
    they would be escaped.
    """
    return content.removeprefix(_BOM).translate(None, b"\r\n").strip()


def printable(text: str) -> str:
    """`text` without lone surrogates, which can be written nowhere."""
    return text.encode("utf-8", "replace").decode()


def cutter(key: str) -> Callable[[bytes], bytes]:
    """Cuts `key` out of JSON text: servers and routers repeat it in their errors, and PHP escapes
    its `/`. Figures take the place of a key of figures: it may stand in a number.
    """
    if len(key) < SHORTEST_KEY:
        return lambda text: text
    plain = orjson.dumps(key)[1:-1]
    spelled = re.compile(b"".join(map(_spellings, key)))
    instead = b"9" * len(key) if key.isdigit() else b"***"

    def cut(text: bytes) -> bytes:
        if b"\\/" in text or b"\\u00" in text:
            return spelled.sub(instead, text)
        return text.replace(plain, instead)

    return cut


def _spellings(character: str) -> bytes:
    """All ways to write an ASCII character inside a JSON string."""
    code = rb"\\u00(?i:%02x)" % ord(character)
    ways = [re.escape(orjson.dumps(character)[1:-1]), code]
    if character == "/":
        ways.append(rb"\\/")
    return b"(?:" + b"|".join(ways) + b")"
