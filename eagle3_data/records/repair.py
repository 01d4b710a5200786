"""Repair: put an inline think block of an answer into fields of its own. Only when the user asks
for it.

What enters: a parsed record and the marker pairs of the profile. What leaves: the record changed
in place and the names of the repairs, or its line written anew. It promises that nothing but the
markers leaves the text (thought and answer keep their whitespace; of an opening marker that the
profile's prompt writes with a line end, that line end leaves with it), and that a case with two
readings is left alone: more than one marker of a kind, a marker in quotes, a thought already
there. Whether the opening marker that leaves was sampled is not decided here: the profile puts it
into the prompt or the completion, and the server's count refutes it where it is wrong.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

from eagle3_data.records.answers import REASONING_KEYS
from eagle3_data.records.dialogues import answer_key, is_flat
from eagle3_data.records.row import Json, mapping

Markers = tuple[str, str]
"""(opening marker, closing marker). Of several, the first whose opening a text holds is taken: an
opening with the whitespace that a prompt writes behind it stands before the bare one.
"""

BLOCK, CLOSING = "split-think-block", "split-closing-marker"


def repair_record(value: Json, markers: Sequence[Markers], *, every: bool = False) -> list[str]:
    """Split the inline thoughts of the answers of `value`, in place; the names of the repairs,
    sorted.
    """
    done = set()
    for place, key in _places(value, every):
        if name := _split(place, key, markers):
            done.add(name)
    return sorted(done)


def repaired_line(line: bytes, markers: Sequence[Markers], *, every: bool = False) -> bytes | None:
    """The line with the repairs of `repair_record`, or None when there are none (or it can not be
    read).

    Written by the stdlib parser, which keeps integers of any size; a line with a key given twice
    is left alone, because one of the two values would leave silently.
    """
    try:
        value = json.loads(line, object_pairs_hook=_without_doubles)
    except (ValueError, RecursionError):
        return None
    if value.__class__ is not dict or not repair_record(value, markers, every=every):
        return None
    try:
        return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()
    except UnicodeEncodeError:  # half of a surrogate pair: such a line is no record
        return None


def _without_doubles(pairs: list[tuple[str, Any]]) -> Json:
    made = dict(pairs)
    if len(made) != len(pairs):
        raise ValueError("a key is given twice")
    return made


def _places(value: Json, every: bool) -> Iterator[tuple[Json, str]]:
    """The objects that hold an answer, and the key of its text."""
    response = value.get("response")
    body = mapping(response) or value
    body = mapping(body.get("body")) or body
    choices = body.get("choices")
    if choices.__class__ is list:
        for choice in choices:
            message = mapping(choice).get("message")
            if message.__class__ is dict:
                yield message, "content"
        return
    messages = value.get("messages", value.get("conversations"))
    if messages.__class__ is list and messages:
        turns = [m for m in messages if m.__class__ is dict and _is_answer(m)]
        if turns and (every or messages[-1] is turns[-1]):
            for message in turns if every else turns[-1:]:
                yield message, "value" if "value" in message else "content"
            return
    message = body.get("message")
    place = message if message.__class__ is dict else body
    key = answer_key(place)
    if key is not None and (place is not value or is_flat(value)):
        yield place, key


def _is_answer(message: Json) -> bool:
    return message.get("role", message.get("from")) in ("assistant", "gpt", "model")


def _split(place: Json, key: str, markers: Sequence[Markers]) -> str | None:
    text = place.get(key)
    if text.__class__ is not str or any(place.get(k) for k in REASONING_KEYS):
        return None
    for opening, closing in markers:
        if text.count(closing) != 1 or any(text.count(other) > 1 for other, _ in markers):
            continue
        before, _, after = text.partition(closing)
        if before[-1:] in ("`", '"', "'"):  # the marker is quoted: the answer talks about it
            continue
        name = CLOSING
        if opening in before:
            lead, _, before = before.partition(opening)
            if lead.strip():
                continue
            name = BLOCK
        elif any(other in text for other, _ in markers):  # another pair's, or in the answer
            continue
        field = next(
            (k for k in REASONING_KEYS[:3] if k in place and place[k] is None), "reasoning"
        )
        field = next((k for k in REASONING_KEYS[:3] if place.get(k) == ""), field)
        place[field], place[key] = before, after
        return name
    return None
