"""Parse: the exact cause of every refusal, no line hidden, nothing raised."""

from __future__ import annotations

import json
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from reading import LINES, ROOT, notes, table_of

from eagle3_data.records.parse import parse, printable, twice_given
from eagle3_data.records.table import Note

CAPTURE = (ROOT / "fixtures" / "captures" / "clean_smollm2-think.jsonl").read_bytes().splitlines()


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("good.jsonl", [Note(0), Note(0)]),
        ("no_final_newline.jsonl", [Note(0), Note(0)]),
        ("torn_tail.jsonl", [Note(0), Note.TORN_TAIL]),
        ("torn_in_character.jsonl", [Note(0), Note.TORN_TAIL]),
        ("fused.jsonl", [Note.FUSED_RECORDS, Note(0)]),
        ("fragments.jsonl", [Note(0), Note.LINE_FRAGMENT, Note.LINE_FRAGMENT, Note(0)]),
        ("nul_run.jsonl", [Note(0), Note.NUL_RUN, Note(0)]),
        ("invalid_utf8.jsonl", [Note.INVALID_UTF8, Note(0)]),
        ("nan.jsonl", [Note.NAN_INFINITY, Note.NAN_INFINITY, Note(0)]),
        ("lone_surrogate.jsonl", [Note.LONE_SURROGATE, Note(0)]),
        ("duplicate_keys.jsonl", [Note.DUPLICATE_KEYS, Note.DUPLICATE_KEYS, Note(0)]),
        ("big_integer.jsonl", [Note.BIG_INTEGER, Note(0)]),
        ("not_objects.jsonl", [Note.NOT_AN_OBJECT] * 5 + [Note(0)]),
        ("bad_json.jsonl", [Note.BAD_JSON] * 4 + [Note(0)]),
    ],
)
def test_each_fault_is_named_and_hides_no_other_line(name: str, expected: list[Note]) -> None:
    rows = table_of(LINES / name).to_dicts()
    assert [notes(row) for row in rows] == expected
    harmless = Note.DUPLICATE_KEYS | Note.BIG_INTEGER
    assert [row["status"] for row in rows] == [
        "unreadable" if note & ~harmless else "record" for note in expected
    ]


@pytest.mark.parametrize(
    ("line", "note", "detail"),
    [
        (b'{"a":1}{"b":2}', Note.FUSED_RECORDS, "2 values, seam at column 8"),
        (
            b'{"a":1}{"b":2}{"c":',
            Note.FUSED_RECORDS,
            "2 whole and one broken value, seam at column 8",
        ),
        (
            b'{"text":"abc{"id":2}',
            Note.FUSED_RECORDS,
            "a broken record and the next one meet (column 13)",
        ),
        (b'{"a":-Infinity}', Note.NAN_INFINITY, "-Infinity at column 6"),
        (b'{"a":1e999}', Note.NAN_INFINITY, "a number too large for a double at column 6"),
        (b'{"a":"\xff"}', Note.INVALID_UTF8, "byte 0xff at byte 7"),
        (b'{"a":"\xed\xa0\x80"}', Note.INVALID_UTF8, "byte 0xed at byte 7"),
        (b'{"a":1}\0\0', Note.NUL_RUN, "2 NUL bytes, the first at byte 8"),
        (b'{"a":"\\udc00"}', Note.LONE_SURROGATE, "half of a surrogate pair at column 7"),
        (
            b'{"a":"\x1b[31m"}',
            Note.BAD_JSON,
            "Invalid control character at (column 7): byte 0x1b must be escaped",
        ),
        (
            b'{"a":' + b"9" * 5000 + b"x}",
            Note.BIG_INTEGER | Note.BAD_JSON,
            "an integer of more than 4300 digits",
        ),
        (b'{"a":' * 3000, Note.BAD_JSON, "nested deeper than the parser allows (column 5122)"),
        (b'"abc","d":1}', Note.LINE_FRAGMENT, "it begins inside a record: Extra data (column 6)"),
        (b'{"a":1},', Note.BAD_JSON, "Extra data (column 8)"),
    ],
)
def test_refusals_give_cause_and_place(line: bytes, note: Note, detail: str) -> None:
    assert parse(line) == (None, note, detail)


@pytest.mark.parametrize("cut", range(1, 60, 7))
def test_a_cut_record_is_torn_at_the_end_and_a_fragment_elsewhere(cut: int) -> None:
    line = CAPTURE[0][:-cut]
    assert parse(line, torn=True)[1] == Note.TORN_TAIL
    assert parse(line, torn=False)[1] == Note.LINE_FRAGMENT


def test_a_byte_order_mark_inside_the_file_is_taken_off() -> None:
    assert parse(b'\xef\xbb\xbf{"a":1}') == ({"a": 1}, Note.BOM, None)
    assert parse(b"\xef\xbb\xbfnull")[:2] == (None, Note.BOM | Note.NOT_AN_OBJECT)


def with_double(record: Any, path: tuple[Any, ...], key: str, first: bool) -> bytes:
    """The record as JSON with `key` of the object at `path` written twice."""

    def write(value: Any, at: tuple[Any, ...] | None) -> str:
        inside = {k: at[1:] if at and at[0] == k else None for k in _keys(value)}
        if isinstance(value, dict):
            pairs = [f"{json.dumps(k)}: {write(v, inside[k])}" for k, v in value.items()]
            if at == ():
                again = f"{json.dumps(key)}: {json.dumps(value[key], ensure_ascii=False)}"
                pairs.insert(0 if first else len(pairs), again)
            return "{" + ", ".join(pairs) + "}"
        if isinstance(value, list):
            return "[" + ", ".join(write(v, inside[i]) for i, v in enumerate(value)) + "]"
        return json.dumps(value, ensure_ascii=False)

    return write(record, path).encode()


def _keys(value: Any) -> list[Any]:
    return (
        list(value)
        if isinstance(value, dict)
        else list(range(len(value)))
        if isinstance(value, list)
        else []
    )


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize(
    ("path", "key"),
    [
        ((), "response"),
        ((), "id"),
        (("request",), "messages"),
        (("request", "messages", 0), "content"),
        (("response",), "choices"),
        (("response",), "usage"),
        (("response", "choices", 0), "finish_reason"),
        (("response", "choices", 0), "message"),
        (("response", "choices", 0, "message"), "content"),
        (("response", "choices", 0, "message"), "reasoning"),
    ],
)
def test_a_key_given_twice_is_found_wherever_it_stands(
    path: tuple[Any, ...], key: str, first: bool
) -> None:
    for line in CAPTURE:
        doubled = with_double(orjson.loads(line), path, key, first)
        value, note, detail = parse(doubled)
        assert value is not None
        assert (note, detail) == (Note.DUPLICATE_KEYS, f"keys given twice: {key}")


values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(max_size=12),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=6), inner),
    max_leaves=12,
)
objects = st.dictionaries(st.text(max_size=6), values, max_size=5)


@given(objects, st.booleans(), st.sampled_from([(",", ":"), (", ", ": "), (" , ", " : ")]))
def test_an_object_without_doubles_is_clean_however_it_is_written(
    value: dict[str, Any], ascii_only: bool, separators: tuple[str, str]
) -> None:
    line = json.dumps(value, ensure_ascii=ascii_only, separators=separators).encode()
    assert parse(line) == (value, 0, None)


@given(st.text('ab":\\{}, \n\u2019', min_size=200, max_size=700), st.booleans())
def test_text_that_looks_like_keys_is_no_double(text: str, ascii_only: bool) -> None:
    value = {"content": text, "x": {"content": text + "!", "y": [text]}}
    line = json.dumps(value, ensure_ascii=ascii_only).encode()
    assert twice_given(line, value) == []


@given(st.binary(max_size=200), st.booleans())
def test_no_bytes_raise(line: bytes, torn: bool) -> None:
    value, note, _ = parse(line, torn=torn)
    assert value is not None or note


@given(st.data())
def test_no_damage_to_a_real_record_raises(data: st.DataObject) -> None:
    line = bytearray(data.draw(st.sampled_from(CAPTURE[:8])))
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(line) - 1))
        end = data.draw(st.integers(at, min(len(line), at + 30)))
        line[at:end] = data.draw(st.binary(max_size=12) | st.sampled_from([b"NaN", b'"', b"}{"]))
    value, note, _ = parse(bytes(line), torn=data.draw(st.booleans()))
    assert value is not None or note


def test_foreign_text_in_a_detail_is_made_harmless() -> None:
    assert printable("a\x1b[31mb\ud800\u202e") == "a\ufffd[31mb\ufffd\ufffd"
    assert printable("x" * 100) == "x" * 80 + "…"
