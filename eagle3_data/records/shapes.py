"""Shapes: which of the known forms a record has, and the batch of them as one record table.

What enters: a `LineBatch`. What leaves: a frame with RECORD_SCHEMA, rows in line order, a line
with n answers as n rows. It promises a row for every line and every fault, that no input raises,
and that a record with no known place for an answer is a row with Note.NO_ANSWER and the list of
its keys, never a guess.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import Any

import orjson
import polars as pl

from eagle3_data.records.bodies import read_body, read_responses, responses_messages
from eagle3_data.records.columns import Columns
from eagle3_data.records.dialogues import (
    is_flat,
    read_dialogue,
    read_flat,
    read_id_row,
    read_single,
)
from eagle3_data.records.errors import error_of_body, note_error, read_error_answer, read_row_error
from eagle3_data.records.lines import LineBatch, LineFault
from eagle3_data.records.parse import LEVELS, doubles, load, object_of, printable
from eagle3_data.records.repair import Markers, repair_record
from eagle3_data.records.requests import letter, read_messages, read_request, read_row_settings
from eagle3_data.records.row import Json, Row, dump, mapping
from eagle3_data.records.table import Note, Status
from eagle3_data.records.usual import read_usual

RECORD, UNREADABLE, FILE = Status.RECORD.value, Status.UNREADABLE.value, Status.FILE.value


class Turns(StrEnum):
    """Which assistant turns of a dialogue are answers."""

    LAST = "last"
    ALL = "all"


def table_from(
    batch: LineBatch, *, turns: Turns = Turns.LAST, repair: Sequence[Markers] | None = None
) -> pl.DataFrame:
    """The record table of a batch. `repair`: marker pairs (open, close) to split inline thoughts
    with; None = do not.

    Lines that were not loaded are Status.UNREADABLE rows, faults of the file Status.FILE rows. The
    lines of a file that is wrong as a whole are UNREADABLE with `notes` = 0: its FILE row says
    why.
    """
    rows = Columns()
    final = len(batch.lines) - 1 if batch.last and batch.torn else -1
    for i in range(len(batch.lines)):
        try:
            _take(rows, batch, i, i == final, turns, repair)
        except (RecursionError, TypeError) as error:
            # orjson writes 254 levels; it says so with a TypeError
            if isinstance(error, TypeError) and "ecursion" not in str(error):
                raise
            rows.add(_too_deep(batch, i))
    for fault in batch.faults:
        rows.add(_fault_row(fault))
    table = rows.frame(batch.file_no)
    if batch.faults and batch.lines:
        table = table.sort("line", nulls_last=False, maintain_order=True)
    return table


def _take(
    rows: Columns,
    batch: LineBatch,
    i: int,
    torn: bool,
    turns: Turns,
    repair: Sequence[Markers] | None,
) -> None:
    """Add the rows of line `i` of the batch."""
    line, number, offset = batch.lines[i], batch.numbers[i], batch.offsets[i]
    value, note, detail = load(line, torn)
    if not (note or repair):
        usual = read_usual(value, number, offset, len(line))
        if usual is not None:
            note, detail = doubles(line, value, usual.keys, usual.long)
            rows.add_cells(usual.cells, note | batch.notes.get(i, 0), detail)
            return
    value, note, detail = object_of(line, value, note, detail)
    row = Row()
    cells = row.cells
    cells["line"], cells["offset"], cells["length"] = number, offset, len(line)
    row.notes = note | batch.notes.get(i, 0)
    if detail is not None:
        row.details.append(detail)
    if value is None:
        cells["status"] = UNREADABLE
        rows.add(row)
        return
    cells["status"] = RECORD
    if repair:
        # a line with a key given twice is never written anew, see `repaired_line`
        double = note & Note.DUPLICATE_KEYS
        done = [] if double else repair_record(value, repair, every=turns is Turns.ALL)
        if done:
            row.note(Note.REPAIRED)
            cells["repair"] = ",".join(done)
    for answer in flatten(value, row, line, turns):
        rows.add(answer)


def _too_deep(batch: LineBatch, i: int) -> Row:
    row = Row()
    cells = row.cells
    cells["status"] = UNREADABLE
    cells["line"], cells["offset"] = batch.numbers[i], batch.offsets[i]
    cells["length"] = len(batch.lines[i])
    row.notes = batch.notes.get(i, 0)
    row.note(Note.BAD_JSON, f"nested too deep: more than {LEVELS} levels of objects and lists")
    return row


def _fault_row(fault: LineFault) -> Row:
    row = Row()
    cells = row.cells
    cells["status"] = FILE if fault.number is None else UNREADABLE
    cells["line"], cells["offset"], cells["length"] = fault.number, fault.offset, fault.length
    row.note(fault.note, fault.detail or None)
    return row


def flatten(value: Json, row: Row, line: bytes, turns: Turns) -> list[Row]:
    """The answers of one parsed record. `row` holds what is known of the line; `line` its bytes."""
    _read_place(row, value, line)
    every = turns is Turns.ALL
    request = value.get("request")
    if request.__class__ is dict:
        if "input" in request and "messages" not in request:
            read_messages(row, responses_messages(request), "input")
            request = {k: v for k, v in request.items() if k not in ("input", "instructions")}
        read_request(row, request)
    rows = _answers(value, row, every)
    for each in rows:
        read_error_answer(each)
        if each.cells["model"] is None:
            each.cells["model"] = each.cells["request_model"]
    return rows


def _answers(value: Json, row: Row, every: bool) -> list[Row]:
    response = value.get("response")
    if response.__class__ is str and response[:1] == "{":
        response = _body_in_text(row, response)
    if isinstance(response, dict):
        body = mapping(response.get("body")) or response
        if body is not response:  # OpenAI batch output: {status_code, body}
            read_row_error(row, response)
        return _response(value, row, body)
    if "choices" in value:
        row.cells["shape"] = "chat-completion"
        _own_request(row, value)
        return read_body(row, value)
    if _is_responses(value):
        if value.get("request").__class__ is not dict:
            read_messages(row, responses_messages(value), "input")
            read_row_settings(row, value)
        return read_responses(row, value)
    if "input_ids" in value and "loss_mask" in value:
        return read_id_row(row, value, every)
    messages = value.get("messages", value.get("conversations"))
    if (
        isinstance(messages, list)
        and messages
        and (_ends_in_answer(messages) or not is_flat(value))
    ):
        return read_dialogue(row, value, messages, every)
    if is_flat(value):
        return read_flat(row, value)
    return [_foreign(value, row)]


def _body_in_text(row: Row, text: str) -> Any:
    """The body that a client dumped twice; any other text stays the answer it is."""
    try:
        body = orjson.loads(text)
    except orjson.JSONDecodeError:
        return text
    if body.__class__ is not dict or not ("choices" in body or _is_responses(body)):
        return text
    row.note(Note.BODY_DOUBLE_ENCODED, "response is JSON text")
    return body


def _response(value: Json, row: Row, body: Json) -> list[Row]:
    """An object under `response`."""
    if "choices" in body:
        row.cells["shape"] = "chat-completion"
        _own_request(row, value)
        return read_body(row, body)
    if _is_responses(body):
        _own_request(row, value)
        return read_responses(row, body)
    _own_request(row, value)
    if (error := error_of_body(body)) is not None:
        row.cells["shape"] = "error"
        note_error(row, error)
        return [row]
    if is_flat(body) or "message" in body or body.get("role") == "assistant" or "content" in body:
        return read_single(row, body)
    row.note(Note.NO_ANSWER, f"keys of response: {_keys(body)}")
    row.cells["shape"] = "foreign"
    return [row]


def _own_request(row: Row, value: Json) -> None:
    """The request of a row that keeps it beside its response, without an object for it."""
    if value.get("request").__class__ is not dict and ("messages" in value or "prompt" in value):
        read_request(row, {k: value[k] for k in ("messages", "prompt", "tools") if k in value})
        row.cells["settings_json"] = None
        read_row_settings(row, value)


def _is_responses(value: Json) -> bool:
    output = value.get("output")
    if output.__class__ is not list:
        return False
    if value.get("object") == "response":
        return True
    # a tuple: a set asks for the hash of what may be a list
    kinds = ("message", "reasoning", "function_call")
    return any(mapping(item).get("type") in kinds for item in output)


def _ends_in_answer(messages: list[Any]) -> bool:
    last = messages[-1]
    return letter(last) == "a" or (
        last.__class__ is dict and last.get("from") in ("gpt", "assistant")
    )


def _foreign(value: Json, row: Row) -> Row:
    if row.notes & Note.ERROR_BODY:
        row.cells["shape"] = "error"
    else:
        row.cells["shape"] = "foreign"
        row.note(Note.NO_ANSWER, f"keys: {_keys(value)}")
    return row


def _keys(value: Json) -> str:
    names = sorted(value)
    more = f" and {len(names) - 20} more" if len(names) > 20 else ""
    return ", ".join(printable(name, 40) for name in names[:20]) + more


def _read_place(row: Row, value: Json, line: bytes) -> None:
    """What a row of any shape may say about itself: id, model, latency, server, error."""
    cells = row.cells
    for key in ("id", "custom_id", "request_id", "uuid"):
        found = value.get(key)
        if found is None:
            continue
        if found.__class__ is str:
            cells["record_id"] = found
        elif found.__class__ is int:
            cells["record_id"] = str(found)
        elif found.__class__ is float:
            _big_id(row, key, found, line)
        else:  # a database's own id object
            cells["record_id"] = dump(found)
        break
    found = value.get("model")
    if found.__class__ is str:
        cells["model"] = found
    for key in ("latency_s", "latency"):
        found = value.get(key)
        if found.__class__ is float or found.__class__ is int:
            cells["latency_s"] = float(found)
            break
    for key in ("server", "engine"):
        found = value.get(key)
        if found.__class__ is str:
            cells["server"] = found
            break
    found = value.get("server_version", value.get("engine_version"))
    if found.__class__ is str:
        cells["server_version"] = found
    if "error" in value or "status" in value or "status_code" in value:
        read_row_error(row, value)


def _big_id(row: Row, key: str, found: float, line: bytes) -> None:
    """orjson reads an integer beyond 64 bits as a float; the stdlib parser gives its digits."""
    import json

    try:
        exact = json.loads(line)[key]
    except ValueError:
        exact = found
    row.cells["record_id"] = str(exact)
    if exact.__class__ is int:
        row.note(Note.BIG_INTEGER, f"{key} is an integer beyond 64 bits")
