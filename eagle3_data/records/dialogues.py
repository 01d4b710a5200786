"""Dialogues: rows whose answer is a turn of a conversation, a field of a flat row, or a stretch of
ids.

What enters: a parsed row and its `Row` with the place already read. What leaves: one `Row` an
answer. It promises that facts which stand once in a row (usage, finish reason, ids) are given to
its last answer only, and that ids of a mask with holes are cut at a run of ones: never is an
unsampled id called sampled.
"""

from __future__ import annotations

from typing import Any

from eagle3_data.records.answers import REASONING_KEYS, read_end, read_message, read_usage
from eagle3_data.records.bodies import ID_KEYS, read_ids
from eagle3_data.records.requests import (
    PROMPT_KEYS,
    letter,
    plain,
    read_messages,
    read_prompt,
    read_row_settings,
)
from eagle3_data.records.row import Json, Row, kind, mapping
from eagle3_data.records.table import ID_ROWS, Note

ANSWER_KEYS = ("content", "response", "completion", "output", "answer", "generated_text", "text")
_WITNESSES = frozenset({"finish_reason", "usage", "meta_info", "request", "messages", *ID_KEYS})


def answer_key(value: Json) -> str | None:
    """The key that holds the answer of a flat row: the first that is not null, else the first
    there.
    """
    present = [k for k in ANSWER_KEYS if k in value and value[k].__class__ is not dict]
    return next((k for k in present if value[k] is not None), present[0] if present else None)


def note_conflict(row: Row, value: Json, content: Any = None) -> None:
    """Note answers of one row that hold different text. `content`: of the turn that was taken. A
    text that holds the other is no conflict: `text` and `output` may be prompt and answer.
    """
    found = [(k, value[k]) for k in ANSWER_KEYS if value.get(k).__class__ is str and value[k]]
    if content.__class__ is str and content:
        found.insert(0, ("the last turn", content))
    for key, text in found[1:]:
        if text.strip() not in found[0][1] and found[0][1].strip() not in text:
            row.note(Note.ANSWER_CONFLICT, f"{found[0][0]} and {key} differ")


def is_flat(value: Json) -> bool:
    """Whether a row holds an answer as a field of its own: beside a prompt, a thought, or how it
    ended.
    """
    thought = any(value.get(k).__class__ is str for k in REASONING_KEYS[:3])
    thought = thought or any(k in value for k in ("reasoning_content", "reasoning_details"))
    asked = any(value.get(k).__class__ in (str, list) for k in PROMPT_KEYS)
    witness = not _WITNESSES.isdisjoint(value)
    key = answer_key(value)
    if key is None:
        return (thought and (asked or witness)) or not value.keys().isdisjoint(ID_KEYS)
    if key == "text":  # a bare `text` is a document of some corpus
        return witness and not value.keys().isdisjoint({"meta_info", *ID_KEYS})
    return thought or asked or witness


def read_flat(row: Row, value: Json) -> list[Row]:
    """A flat row; its request is read already when it stood in an object of its own."""
    row.cells["shape"] = "flat"
    row.cells["choice"] = 0
    if value.get("request").__class__ is not dict:
        messages = value.get("messages", value.get("conversations"))
        if messages.__class__ is list:
            read_messages(row, plain(messages))
        elif messages is not None:
            row.wrong("messages", messages)
        else:
            read_prompt(row, value)
        read_row_settings(row, value)
    _read_answer(row, value)
    return [row]


def read_single(row: Row, body: Json) -> list[Row]:
    """A response object without choices: a message, or a native body (SGLang /generate, llama.cpp
    /completion).
    """
    message = body.get("message")
    row.cells["shape"] = "flat"
    row.cells["choice"] = 0
    if message.__class__ is dict:
        read_message(row, message)
        read_end(row, body)
        read_usage(row, body.get("usage"))
        read_ids(row, body, message)
    else:
        _read_answer(row, body)
    if row.cells["model"] is None:
        row.text("model", body.get("model"), "model")
    return [row]


def _read_answer(row: Row, place: Json) -> None:
    native = mapping(place.get("meta_info"))
    read_message(row, place, answer_key(place))
    note_conflict(row, place)
    read_end(row, place if "finish_reason" in place else native or place)
    read_usage(row, place.get("usage") or native or None)
    read_ids(row, place, mapping(place.get("response")))


def read_dialogue(row: Row, value: Json, messages: list[Any], every: bool) -> list[Row]:
    """The last assistant turn of a dialogue, or every one."""
    messages = plain(messages)
    system = value.get("system")
    if system.__class__ is str and system and letter(messages[0]) != "s":
        messages = [{"role": "system", "content": system}, *messages]
    row.cells["shape"] = "dialogue"
    row.cells["choice"] = 0
    read_row_settings(row, value)
    metadata = mapping(value.get("metadata"))
    turns = [i for i, m in enumerate(messages) if letter(m) == "a"]
    complete = bool(turns) and turns[-1] == len(messages) - 1
    if not complete:
        row.note(Note.LAST_NOT_ASSISTANT, f"the last message is of role {_role(messages[-1])}")
    if not turns or not (complete or every):
        read_messages(row, messages)
        row.cells["turn"] = len(messages)
        return [row]
    rows = []
    for turn in turns if every else turns[-1:]:
        each = row if turn == turns[-1] else row.copy()
        read_messages(each, messages[:turn])
        each.cells["turn"] = turn
        answer = messages[turn]
        read_message(each, answer)
        _note_answer(each, answer)
        if turn == turns[-1]:
            note_conflict(each, value, answer.get("content"))
            places = (answer, value, metadata)
            read_end(each, next((p for p in places if "finish_reason" in p), answer))
            read_usage(each, value.get("usage") or metadata.get("usage"))
            read_ids(each, value, answer)
        else:
            read_end(each, answer)
        rows.append(each)
    return rows


def _note_answer(row: Row, answer: Json) -> None:
    """Notes about the answering message that `read_messages` gives for the messages before it."""
    probe = Row()
    read_messages(probe, [{k: v for k, v in answer.items() if k not in ("content", "tool_calls")}])
    row.notes |= probe.notes
    row.details.extend(probe.details)


def _role(message: Any) -> str:
    names = {"s": "system", "d": "developer", "u": "user", "t": "tool"}
    return names.get(letter(message), "not known")


def read_id_row(row: Row, value: Json, every: bool) -> list[Row]:
    """`input_ids` + `loss_mask`, as speculators and SpecForge write them.

    A mask that is one stretch of zeros and one of ones to the end gives prompt and completion.
    With more stretches the last run of ones is the answer and all before it the prompt (`every`:
    each run is one).
    """
    cells = row.cells
    known = not value.keys().isdisjoint({"text", "metadata", "primary_id", "seq_len"})
    cells["shape"] = ID_ROWS[0] if known else ID_ROWS[1]
    cells["choice"] = 0
    metadata = mapping(value.get("metadata"))
    read_row_settings(row, metadata)
    read_end(row, metadata)
    read_usage(row, metadata.get("usage"))
    ids, mask = value["input_ids"], value["loss_mask"]
    if ids.__class__ is not list or mask.__class__ is not list:
        row.note(Note.IDS_INVALID, f"input_ids is {kind(ids)}, loss_mask is {kind(mask)}")
        return [row]
    if len(ids) != len(mask):
        row.note(Note.IDS_INVALID, f"{len(ids)} input_ids, {len(mask)} values in loss_mask")
        return [row]
    runs = _runs(mask)
    if runs is None:
        row.note(Note.IDS_INVALID, "loss_mask has values other than 0 and 1")
        return [row]
    if not runs:
        row.note(Note(0), "loss_mask is all zeros: no id is supervised")
        cells["prompt_ids"], cells["completion_ids"] = ids, []
        return [row]
    if len(runs) > 1:
        row.note(Note(0), f"loss_mask has {len(runs)} runs of ones, each is an answer of its own")
    if runs[-1][1] < len(ids):
        left = len(ids) - runs[-1][1]
        row.note(Note(0), f"{left} ids after the last run of ones are left out")
    rows = []
    for number, (start, end) in enumerate(runs if every else runs[-1:]):
        each = row.copy() if every and number < len(runs) - 1 else row
        each.cells["prompt_ids"], each.cells["completion_ids"] = ids[:start], ids[start:end]
        if every:
            each.cells["turn"] = number
        rows.append(each)
    return rows


def _runs(mask: list[Any]) -> list[tuple[int, int]] | None:
    """Half-open runs of ones; None when a value is neither 0 nor 1."""
    try:
        flags = bytes(mask)
    except (TypeError, ValueError):
        return None
    if flags.count(0) + flags.count(1) != len(flags):
        return None
    runs: list[tuple[int, int]] = []
    start = flags.find(1)
    while start >= 0:
        end = flags.find(0, start)
        end = len(flags) if end < 0 else end
        runs.append((start, end))
        start = flags.find(1, end)
    return runs
