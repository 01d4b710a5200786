"""Hostile text made harmless: model text may hold terminal escapes, markup, markers of
bidirectional text, commands.

What enters: any text out of a capture, or a path. What leaves: text that no terminal, Markdown or
HTML renderer, CI runner or XML parser acts upon. It promises that what was hidden becomes visible
(`\\x1b`), never that it can be read back: machine formats carry the original beside it.
"""

from __future__ import annotations

import html
import re

_COMMAND = re.compile(r"(?<!\S):(?=:\w)|(?<=##)\[")
"""The runner of GitHub Actions obeys `::command` at the start of a line of the log (a word may get
there by wrapping) and `##[command]` anywhere in it."""

_BEYOND_ASCII = re.compile("[\x7f-\U0010ffff]+")

_NO_MARKUP = " ,;=%/?"
"""Marks that mean nothing inside a line of Markdown or HTML (`:` and `.` would make links)."""


def inert(text: str, limit: int | None = None) -> str:
    """`text` on one line, every character that does not print written as an escape; at most `limit`
    characters.

    `str.isprintable` is the test: it refuses controls, format characters (bidi, zero width),
    separators other than the plain space, surrogates, private and unassigned code points, which are
    all that a terminal or editor may act on.
    """
    cut = limit is not None and len(text) > limit
    shown = text[:limit]
    if not shown.isprintable():
        shown = "".join(c if c.isprintable() else _escape(c) for c in shown)
    shown = _COMMAND.sub(lambda m: _escape(m.group()), shown)
    if limit is not None and (cut or len(shown) > limit):
        shown = shown[: max(limit - 1, 0)] + "…"
    return shown


def inert_html(text: str, limit: int | None = None) -> str:
    """`inert`, and safe inside an HTML element or a quoted attribute."""
    return html.escape(inert(text, limit), quote=True)


def inert_markdown(text: str, limit: int | None = None) -> str:
    """`inert`, and safe in a Markdown paragraph or table cell.

    Every mark is written as a numeric entity, which CommonMark never takes for structure, and the
    whole stands in a `<code>` element, where GitHub links neither names nor addresses.
    """
    return f"<code>{inert_prose(text, limit) or ' '}</code>"


def inert_prose(text: str, limit: int | None = None) -> str:
    """`inert_markdown` without the code element: for our own sentences, which may quote data."""
    shown = inert(text, limit).strip()
    return "".join(c if c.isalnum() or c in _NO_MARKUP else f"&#{ord(c)};" for c in shown)


def inert_json(text: str) -> str:
    """JSON text whose strings hold no raw invisible character; it parses to the same value."""
    return _BEYOND_ASCII.sub(_json_run, text)


def _escape(char: str) -> str:
    code = ord(char)
    named = {9: "\\t", 10: "\\n", 13: "\\r"}.get(code)
    if named:
        return named
    if code < 0x100:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def _json_run(match: re.Match[str]) -> str:
    run = match.group()
    if run.isprintable():
        return run
    return "".join(c if c.isprintable() else _json_escape(c) for c in run)


def _json_escape(char: str) -> str:
    code = ord(char)
    if code < 0x10000:
        return f"\\u{code:04x}"
    code -= 0x10000
    return f"\\u{0xD800 + (code >> 10):04x}\\u{0xDC00 + (code & 0x3FF):04x}"
