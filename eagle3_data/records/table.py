"""The record table: the one schema that every accepted input shape is flattened into.

What enters: parsed lines. What leaves: a Polars frame with exactly `RECORD_SCHEMA`, one row a
record. It promises that missing, null and "" stay three different things (`*_state` columns), and
that a line which could not be read still has a row, so nothing leaves silently.
"""

from __future__ import annotations

from enum import IntFlag, StrEnum

import polars as pl

ID_ROWS = ("speculators", "specforge-ids")
"""Shapes of rows that hold ids and a mask alone, as trainers write them."""


class Status(StrEnum):
    """What a row of the record table stands for."""

    RECORD = "record"
    """One captured answer (a line with n choices, or n supervised turns, gives n rows)."""
    UNREADABLE = "unreadable"
    """A line that is not one JSON object; only the place columns and `notes` are filled."""
    FILE = "file"
    """A fact about a whole file (empty, a Git-LFS pointer, a gzip stream that ends early). `line`
    is null; it is not a line and does not count in the ledger.
    """


class FieldState(StrEnum):
    """How a text field was found in the record. The three empty states are different faults."""

    MISSING = "missing"
    NULL = "null"
    EMPTY = "empty"
    TEXT = "text"


class Note(IntFlag):
    """What the byte, JSON and shape stations noticed about a line. One bit each, in the column
    `notes`.

    A note is an observation, not a verdict: the RAW and REC rules decide.
    """

    # bytes of the file (Status.FILE rows)
    FILE_EMPTY = 1 << 0
    FILE_LFS_POINTER = 1 << 1
    FILE_UTF16 = 1 << 2
    FILE_JSON_ARRAY = 1 << 3
    """One JSON array under a .jsonl name."""
    FILE_PRETTY_PRINTED = 1 << 4
    """Records spread over several lines each."""
    FILE_STREAM_CUT = 1 << 5
    """A gz or zst stream that ends early or is damaged; the lines before the cut were read."""
    FILE_NOT_JSON = 1 << 6
    """Nothing in it looks like JSON (Parquet, CSV, HTML, binary); `note_detail` says what it seems
    to be.
    """
    # bytes of a line
    BOM = 1 << 7
    NUL_RUN = 1 << 8
    INVALID_UTF8 = 1 << 9
    TORN_TAIL = 1 << 10
    """The last line: no final newline and it does not parse."""
    FUSED_RECORDS = 1 << 11
    """Two or more JSON values on one line."""
    LINE_FRAGMENT = 1 << 12
    """The line starts or ends in the middle of a record, and it is not the last one."""
    OVERSIZE = 1 << 13
    """Longer than the line limit: reported, never loaded."""
    BAD_JSON = 1 << 14
    """Any other JSON error; `note_detail` holds the parser's own reason and the column."""
    NAN_INFINITY = 1 << 15
    DUPLICATE_KEYS = 1 << 16
    LONE_SURROGATE = 1 << 17
    NOT_AN_OBJECT = 1 << 18
    """Valid JSON, but a list, a number or a string."""
    BIG_INTEGER = 1 << 19
    """An integer beyond 64 bits (ids are kept as text)."""
    CRLF = 1 << 20
    # shape of a record
    NO_ANSWER = 1 << 21
    """No known place for an answer: a foreign record; `note_detail` lists the keys found."""
    ERROR_BODY = 1 << 22
    """An API error body, or error text, stored in place of an answer (`error_text`)."""
    REASONING_CONFLICT = 1 << 23
    """Two reasoning fields hold different text."""
    CONTENT_PARTS = 1 << 24
    """`content` was a list of text parts; they are joined."""
    CONTENT_NON_TEXT = 1 << 25
    """`content` has parts that are no text (image, audio): the ids can not be rebuilt from text."""
    TOOLS_DOUBLE_ENCODED = 1 << 26
    """`tools` or `tool_calls` came as JSON text inside JSON; decoded once."""
    BAD_TOOL_JSON = 1 << 27
    """`tools`, `tool_calls` or a call's `arguments` are not valid JSON or have the wrong type."""
    WRONG_TYPE = 1 << 28
    """A known field has a type it can not have (`note_detail` names it)."""
    UNKNOWN_ROLE = 1 << 29
    LAST_NOT_ASSISTANT = 1 << 30
    """A dialogue that ends without an assistant turn: a failed request that was stored anyway."""
    TRAIN_FLAG = 1 << 31
    """A per-message `loss`, `trainable`, `weight` or `train` flag of the source set."""
    REASONING_REDACTED = 1 << 32
    """Encrypted or summarised reasoning only (Responses API): the sampled thought is not here."""
    IDS_INVALID = 1 << 33
    """Captured ids are not a list of non-negative integers, or mask and ids differ in length."""
    REPAIRED = 1 << 34
    """`--repair` changed the record; `repair` says how."""
    EMPTY_CHOICES = 1 << 35
    """A response body with no choice in it."""
    ANSWER_CONFLICT = 1 << 36
    """Two places for the answer hold different text."""
    BODY_DOUBLE_ENCODED = 1 << 37
    """The response body came as JSON text inside JSON; decoded once."""


STATE = pl.Enum([s.value for s in FieldState])
STATUS = pl.Enum([s.value for s in Status])

RECORD_SCHEMA: dict[str, pl.DataType] = {
    # place
    "file_no": pl.Int32(),  # index into the list of inputs of this run
    "line": pl.Int64(),  # 1-based physical line, blank lines counted; null for Status.FILE
    "offset": pl.Int64(),  # byte offset of the line's first byte in the uncompressed stream
    "length": pl.Int64(),  # bytes of the line without its line end
    "choice": pl.Int32(),  # index in `choices`; 0 where there is only one
    # index of the answer among all messages of the dialogue; null if the shape has no dialogue
    "turn": pl.Int32(),
    "status": STATUS,
    # chat-completion, flat, dialogue, responses, speculators, specforge-ids, …; null if
    # unreadable
    "shape": pl.String(),
    "notes": pl.UInt64(),  # bits of Note
    "note_detail": pl.String(),
    "repair": pl.String(),  # names of the repairs applied, comma-separated; null when none
    # who and when
    "record_id": pl.String(),  # `id` of the row as text; null when absent
    "model": pl.String(),  # the response's model, else the row's, else the request's
    "request_model": pl.String(),
    "server": pl.String(),  # vllm, sglang, llama.cpp, … when a body says so; else null
    "server_version": pl.String(),
    "created": pl.Int64(),  # unix seconds
    "latency_s": pl.Float64(),
    # request
    # the messages BEFORE the answer, JSON text with every field as received
    "messages_json": pl.String(),
    "prompt_text": pl.String(),  # a plain-text prompt; null when messages are there
    "tools_json": pl.String(),
    "template_kwargs_json": pl.String(),  # chat_template_kwargs, JSON object text
    # the rest of the request (temperature, max_tokens, …), JSON object text
    "settings_json": pl.String(),
    "system_text": pl.String(),
    "user_text": pl.String(),  # text of the last user message (or `prompt_text`)
    "roles": pl.String(),  # one letter a message before the answer: s u a t d(eveloper) ?(unknown)
    "history_reasoning": pl.Boolean(),  # an earlier assistant turn carries a thought
    # what the request asked for (kwargs, reasoning_effort); null = not said
    "thinking_asked": pl.Boolean(),
    "max_tokens": pl.Int64(),
    # answer
    "reasoning": pl.String(),
    "reasoning_state": STATE,
    "reasoning_key": pl.String(),  # the key the text was read from; null when none holds text
    # every reasoning key present with its state: "reasoning=text,reasoning_content=null"
    "reasoning_keys": pl.String(),
    "content": pl.String(),
    "content_state": STATE,
    # JSON list [{id, name, arguments}], arguments as the raw text received
    "tool_calls_json": pl.String(),
    "n_tool_calls": pl.Int32(),
    "finish_reason": pl.String(),
    "stop_reason": pl.String(),  # vLLM stop_reason / SGLang matched_stop, as text
    "prompt_tokens": pl.Int64(),
    "completion_tokens": pl.Int64(),
    "reasoning_tokens": pl.Int64(),
    "prompt_ids": pl.List(pl.Int32),
    "completion_ids": pl.List(pl.Int32),
    "error_text": pl.String(),
}
"""Column → dtype. The order is the order of the frame. Every column but `file_no`, `status` and
`notes` may be null.
"""


def empty() -> pl.DataFrame:
    """A record table with no rows."""
    return pl.DataFrame(schema=RECORD_SCHEMA)
