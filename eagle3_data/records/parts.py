"""Parts: the text of a `content` field, whichever way it was written.

What enters: a string, a list of parts (OpenAI chat, Responses, Mistral), or null. What leaves:
`Text`. It promises that text parts are joined without anything between them, that a thought among
the parts is kept apart from the answer, and that a part which is no text is noted.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from eagle3_data.records.table import Note

_TEXT_TYPES = ("text", "output_text", "input_text", "refusal", None)
"""A tuple: a set asks for the hash of a `type` that may be a list."""
_THOUGHT_TYPES = {"thinking", "reasoning", "reasoning_text"}


class Text(NamedTuple):
    """`text`: None for null. `thought`: None when no part is a thought. `note`: bits of Note, 0
    for a plain string.
    """

    text: str | None
    thought: str | None
    note: int


def read_text(value: Any) -> Text:
    """The text of a content value; a value of another type gives Note.WRONG_TYPE."""
    if value is None or value.__class__ is str:
        return Text(value, None, 0)
    if value.__class__ is not list:
        return Text(None, None, int(Note.WRONG_TYPE))
    texts: list[str] = []
    thoughts: list[str] = []
    note = int(Note.CONTENT_PARTS)
    for part in value:
        if part.__class__ is str:
            texts.append(part)
        elif part.__class__ is not dict:
            note |= int(Note.WRONG_TYPE)
        else:
            sort = part.get("type")
            body = part.get("text")
            if body is None:
                body = part.get("refusal")
            if sort.__class__ is str and sort in _THOUGHT_TYPES:
                inner = read_text(part.get("thinking", body))
                thoughts.append(inner.text or "")
            elif body.__class__ is str and sort in _TEXT_TYPES:
                texts.append(body)
            else:
                note |= int(Note.CONTENT_NON_TEXT)
    return Text("".join(texts), "".join(thoughts) if thoughts else None, note)
