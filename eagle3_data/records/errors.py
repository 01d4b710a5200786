"""Errors: API errors that were stored where an answer should stand.

What enters: a row, a response body, or the text of an answer. What leaves: Note.ERROR_BODY and the
error's text. It promises that an answer which talks about errors is left alone: a text counts only
when the whole of it is an error message, and when no server vouches for it with a finish reason.
"""

from __future__ import annotations

import re
from typing import Any

import orjson

from eagle3_data.records.ends import CUT_BY_LENGTH, FINISHED
from eagle3_data.records.row import Json, Row, dump, mapping
from eagle3_data.records.table import Note

_VOUCHED = frozenset((*FINISHED, *CUT_BY_LENGTH))
"""A server that says how its model ended vouches for the text."""
_LONGEST = 4096
_WHOLE = re.compile(
    r"""(?xi)
    (?: openai\.\w+Error: \s* )?
    (?: error \s code: \s [45]\d\d (?: \s - \s [{\[<"'] .* )?  # str() of a client's exception
      | (?: [45]\d\d \s )? (?: internal \s server \s error | bad \s gateway | gateway \s time-?out
            | service \s (?: temporarily \s )? unavailable | too \s many \s requests )
      | (?: request \s timed \s out | connection \s error | read \s timeout | stream \s timeout )
      | upstream \s (?: request \s timeout | connect \s error \b .* ) | no \s healthy \s upstream
    ) \.?
    """,
    re.DOTALL,
)
_PAGE = re.compile(
    r"<(?:!doctype\s+html|html)\b.*?<(?:title|h1)[^>]*>\s*(?:Error\s+)?[45]\d\d\b.*</html>",
    re.DOTALL | re.IGNORECASE,
)
_ERROR_KEYS = frozenset({"error", "message", "code", "type", "param", "object", "detail", "status"})


def error_text(error: Any) -> str:
    """The text of an `error` value of any form."""
    if error.__class__ is str:
        return str(error)
    message = mapping(error).get("message")
    return message if message.__class__ is str else dump(error)


def error_of_body(body: Json) -> str | None:
    """The text of an error body (`{"error": ...}`, `{"object": "error"}`), or None."""
    error = body.get("error")
    if error and "choices" not in body:
        return error_text(error)
    if body.get("object") == "error":
        return error_text(body)
    if body.keys() == {"detail"}:
        return error_text(body["detail"])
    return None


def note_error(row: Row, text: str) -> None:
    """Note an error, its first text is kept."""
    row.note(Note.ERROR_BODY)
    if row.cells["error_text"] is None:
        row.cells["error_text"] = text


def read_row_error(row: Row, value: Json) -> None:
    """An error that the row states beside, or in place of, its answer."""
    error = value.get("error")
    status = value.get("status")
    if error:
        note_error(row, error_text(error))
    elif status.__class__ is str and status.lower() in ("error", "failed"):
        note_error(row, f"status: {status}")
    else:
        code = value.get("status_code")
        if code.__class__ is int and code >= 400:
            note_error(row, f"HTTP status {code}")


def read_error_answer(row: Row) -> None:
    """Note an answer that is an error message from its first to its last character."""
    cells = row.cells
    if cells["finish_reason"] in _VOUCHED:
        return
    content = cells["content"]
    if not content or len(content) > _LONGEST or cells["reasoning"]:
        return
    text = content.strip()
    if _WHOLE.fullmatch(text) or _PAGE.fullmatch(text) or _is_error_json(text):
        note_error(row, content)


def _is_error_json(text: str) -> bool:
    if not text.startswith("{") or '"' not in text:
        return False
    try:
        body = orjson.loads(text)
    except orjson.JSONDecodeError:
        return False
    if body.__class__ is not dict or not body.keys() <= _ERROR_KEYS:
        return False
    if body.get("object") == "error":
        return True
    inner = body.get("error")
    return inner.__class__ is dict and "message" in inner and inner.keys() <= _ERROR_KEYS
