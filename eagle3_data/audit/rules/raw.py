"""RAW rules: what the bytes of a file or a line and their JSON say before any record is looked at.

What enters: the notes of the reading stations. What leaves: rules of the family RAW.
They promise one rule a note, so that the cause is named and not only "bad JSON".
"""

from __future__ import annotations

import polars as pl

from eagle3_data.audit.rules.registry import Columns, Severity, rule
from eagle3_data.records.table import Note

ERROR, WARN, IGNORE = Severity.ERROR, Severity.WARN, Severity.IGNORE


def noted(r: Columns) -> pl.Expr:
    """Evidence: what the reading station wrote down."""
    return r.note_detail


@rule("RAW001", "empty-file", severity=ERROR, detail=noted)
def empty_file(r: Columns) -> pl.Expr:
    """The file holds no line.

    Why it matters: a capture that wrote nothing looks like a finished one to the next step.
    What to do: look at the log of the capture, or leave the file out of the inputs.
    """
    return r.noted(Note.FILE_EMPTY)


@rule("RAW002", "git-lfs-pointer", severity=ERROR, detail=noted)
def git_lfs_pointer(r: Columns) -> pl.Expr:
    """The file is a Git-LFS pointer, not the data.

    Why it matters: three short lines stand where the records should be; nothing of the data is
    here.
    What to do: `git lfs pull`, or download the file itself.
    """
    return r.noted(Note.FILE_LFS_POINTER)


@rule("RAW003", "utf16-file", severity=ERROR, detail=noted)
def utf16_file(r: Columns) -> pl.Expr:
    """The file is UTF-16, not UTF-8.

    Why it matters: JSON Lines is UTF-8; every other reader fails or reads nonsense.
    What to do: convert it, for example `iconv -f UTF-16 -t UTF-8 in.jsonl > out.jsonl`.
    """
    return r.noted(Note.FILE_UTF16)


@rule("RAW004", "json-array-file", severity=ERROR, detail=noted)
def json_array_file(r: Columns) -> pl.Expr:
    """The file is one JSON array under a name that promises one record a line.

    Why it matters: records have no lines of their own, so that no finding can name a place and no
    line can be split off.
    What to do: `jq -c '.[]' in.json > out.jsonl`.
    """
    return r.noted(Note.FILE_JSON_ARRAY)


@rule("RAW005", "pretty-printed-file", severity=ERROR, detail=noted)
def pretty_printed_file(r: Columns) -> pl.Expr:
    """The records are spread over several lines each.

    Why it matters: every line alone is no JSON.
    What to do: `jq -c . in.json > out.jsonl`.
    """
    return r.noted(Note.FILE_PRETTY_PRINTED)


@rule("RAW006", "stream-cut", severity=ERROR, detail=noted)
def stream_cut(r: Columns) -> pl.Expr:
    """The compressed stream ends early or is damaged.

    Why it matters: the lines before the cut were read, the rest is lost without a trace in them.
    What to do: download or compress the file again and compare its checksum.
    """
    return r.noted(Note.FILE_STREAM_CUT)


@rule("RAW007", "not-json-file", severity=ERROR, detail=noted)
def not_json_file(r: Columns) -> pl.Expr:
    """Nothing in the file looks like JSON.

    Why it matters: it is another format (Parquet, CSV, HTML, an archive) under a wrong name or
    path.
    What to do: give the JSON Lines file of the capture.
    """
    return r.noted(Note.FILE_NOT_JSON)


@rule("RAW008", "byte-order-mark", severity=WARN)
def byte_order_mark(r: Columns) -> pl.Expr:
    """The line begins with a UTF-8 byte order mark.

    Why it matters: it was left out here, but other readers lose the first record or its first key.
    What to do: write the file without it (`utf-8`, not `utf-8-sig`).
    """
    return r.noted(Note.BOM)


@rule("RAW009", "nul-bytes", severity=ERROR, detail=noted)
def nul_bytes(r: Columns) -> pl.Expr:
    """The line holds raw NUL bytes.

    Why it matters: a crash or a full disk left a hole in the file; what stood there is lost.
    What to do: capture these records again and check the disk.
    """
    return r.noted(Note.NUL_RUN)


@rule("RAW010", "invalid-utf8", severity=ERROR, detail=noted)
def invalid_utf8(r: Columns) -> pl.Expr:
    """The line is not valid UTF-8.

    Why it matters: bytes were cut or written in another encoding; the text is not what the model
    sent.
    What to do: capture the record again; look for a writer that truncates by bytes.

    Not flagged: any valid character, whatever its script.
    """
    return r.noted(Note.INVALID_UTF8)


@rule("RAW011", "torn-tail", severity=ERROR, detail=noted)
def torn_tail(r: Columns) -> pl.Expr:
    """The last line is half a record.

    Why it matters: the writer was killed, so the last answer is incomplete.
    What to do: remove the line and resume the capture at this record.

    Not flagged: a whole last record without a line end.
    """
    return r.noted(Note.TORN_TAIL)


@rule("RAW012", "fused-records", severity=ERROR, detail=noted)
def fused_records(r: Columns) -> pl.Expr:
    """Two or more records stand on one line.

    Why it matters: several writers shared the file without a lock; neighbouring lines may be
    damaged too.
    What to do: one writer a file; split the line at `}{` only after looking at it.
    """
    return r.noted(Note.FUSED_RECORDS)


@rule("RAW013", "line-fragment", severity=ERROR, detail=noted)
def line_fragment(r: Columns) -> pl.Expr:
    """The line begins or ends in the middle of a record.

    Why it matters: a raw line break or a second writer tore the record apart; its text is
    incomplete.
    What to do: one writer a file, and write records with a JSON serializer that escapes line
    breaks.
    """
    return r.noted(Note.LINE_FRAGMENT)


@rule("RAW014", "oversize-line", severity=ERROR, detail=noted)
def oversize_line(r: Columns) -> pl.Expr:
    """The line is longer than the limit and was not loaded.

    Why it matters: such a line is mostly a whole file without line ends, or a loop without a token
    limit.
    What to do: look at it with `head -c`, set `max_tokens`, or split the file into lines.
    """
    return r.noted(Note.OVERSIZE)


@rule("RAW015", "bad-json", severity=ERROR, detail=noted)
def bad_json(r: Columns) -> pl.Expr:
    """The line is not valid JSON.

    Why it matters: nothing of the record can be trusted.
    What to do: write records with a JSON serializer; single quotes and trailing commas come from
    `str(dict)`.
    """
    return r.noted(Note.BAD_JSON)


@rule("RAW016", "nan-or-infinity", severity=ERROR, detail=noted)
def nan_or_infinity(r: Columns) -> pl.Expr:
    """The line holds NaN or Infinity, which JSON does not know.

    Why it matters: some readers stop at the line and drop the rest of the file without a word.
    What to do: write such numbers as null (`json.dumps(..., allow_nan=False)` finds them).

    Not flagged: the words NaN and Infinity inside a text.
    """
    return r.noted(Note.NAN_INFINITY)


@rule("RAW017", "duplicate-keys", severity=ERROR, detail=noted)
def duplicate_keys(r: Columns) -> pl.Expr:
    """An object of the line has the same key twice.

    Why it matters: readers differ in which value they take, so that the record means two things.
    What to do: find the step that merges fields by writing text, and let it merge objects.
    """
    return r.noted(Note.DUPLICATE_KEYS)


@rule("RAW018", "lone-surrogate", severity=ERROR, detail=noted)
def lone_surrogate(r: Columns) -> pl.Expr:
    r"""A text holds half of a surrogate pair (`\ud83d` without its partner).

    Why it matters: it is no character; the text can not be encoded, so its tokens can not be
    rebuilt.
    What to do: capture again; the writer cuts strings between two UTF-16 units.

    Not flagged: whole pairs.
    """
    return r.noted(Note.LONE_SURROGATE)


@rule("RAW019", "not-an-object", severity=ERROR, detail=noted)
def not_an_object(r: Columns) -> pl.Expr:
    """The line is valid JSON, but no object.

    Why it matters: a list, a number or a text has no fields, so there is no record.
    What to do: write one object a line; a list of messages belongs under `messages`.
    """
    return r.noted(Note.NOT_AN_OBJECT)


@rule("RAW020", "big-integer", severity=WARN, detail=noted)
def big_integer(r: Columns) -> pl.Expr:
    """A number of the line does not fit 64 bits.

    Why it matters: ids are kept as text here; other readers round them, so that two records get one
    id.
    What to do: write ids as text.
    """
    return r.noted(Note.BIG_INTEGER)


@rule("RAW021", "crlf-line-end", severity=IGNORE)
def crlf_line_end(r: Columns) -> pl.Expr:
    """The line ends in CR LF.

    Why it matters: it is read like any other line here; some readers keep the CR in the last field.
    What to do: nothing, or `dos2unix`. Off unless selected.
    """
    return r.noted(Note.CRLF)
