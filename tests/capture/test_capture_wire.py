"""JSON as servers write it, and the key cut out of it."""

from __future__ import annotations

import json

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from eagle3_data.capture.assembly import BrokenStream
from eagle3_data.capture.request import RequestFault, parse_extra
from eagle3_data.capture.send import Answer, Fault, Sender, _parsed, retry_after
from eagle3_data.capture.wire import cutter, dumps, loads, one_line

KEY = "sk-secret/AbC+123"
PRINTABLE = st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=8, max_size=20)


@pytest.mark.parametrize(
    "spelled",
    [
        KEY,
        KEY.replace("/", "\\/"),
        "".join(f"\\u{ord(c):04x}" for c in KEY),
        KEY.replace("s", "\\u0073", 1),
        KEY.replace("/", "\\u002F"),
    ],
)
def test_the_key_is_found_however_it_is_spelled(spelled: str) -> None:
    text = f'{{"error": "key {spelled} is not known"}}'.encode()
    assert KEY in loads(text)["error"]
    assert cutter(KEY)(text) == b'{"error": "key *** is not known"}'


@given(PRINTABLE, st.text(), st.text())
def test_what_is_left_is_json_without_the_key(key: str, before: str, after: str) -> None:
    for text in (orjson.dumps([before + key + after]), json.dumps([before + key + after]).encode()):
        (left,) = loads(cutter(key)(text))
        assert key not in left or key.isdigit() or key in "***"


def test_a_key_of_figures_leaves_numbers() -> None:
    assert loads(cutter("12345678")(b'{"x": 0.12345678, "n": 12345678, "s": "12345678"}')) == {
        "x": 0.99999999,
        "n": 99999999,
        "s": "99999999",
    }


def test_a_short_key_is_a_dummy() -> None:
    assert cutter("none")(b'{"content": "none"}') == b'{"content": "none"}'


def test_what_orjson_refuses_is_written_as_it_was() -> None:
    assert dumps({"a": "\ud800", "n": 10**30}) == b'{"a":"\\ud800","n":1' + b"0" * 30 + b"}"
    assert dumps([float("nan")], odd=True) == b"[NaN]"
    assert dumps(["\u00e9"]) == '["é"]'.encode()


def test_a_byte_order_mark_is_not_stored_and_another_encoding_is_no_answer() -> None:
    body = '{"choices": []}'
    assert one_line(b"\xef\xbb\xbf" + body.encode() + b"\r\n") == body.encode()
    assert _parsed(body.encode("utf-8-sig")) == (body.encode(), {"choices": []})
    for encoding in ("utf-16", "utf-16-le", "utf-32"):
        with pytest.raises(BrokenStream, match="not JSON"):
            _parsed(body.encode(encoding))


def test_a_count_that_is_none_is_zero() -> None:
    for count, wanted in ((7, 7), (10**30, 0), (-1, 0), (True, 1), ("7", 0)):
        answer = Answer(b"{}", {"choices": [{}], "usage": {"completion_tokens": count}}, 1.0)
        assert answer.tokens == wanted


def test_surrogates_in_what_a_server_says_reach_no_message() -> None:
    sender = Sender(None)  # type: ignore[arg-type]
    for body in (
        {"error": {"message": "bad \ud800"}},
        {"choices": [{"message": {}, "finish_reason": "stop"}], "model": "x\ud800"},
    ):
        with pytest.raises(Fault) as found:
            sender._refuse(body, "m")
        assert orjson.dumps(str(found.value))


def test_a_date_beyond_all_calendars_asks_for_no_wait() -> None:
    import httpx2

    for held in ("Fri, 31 Dec 2020 23:59:59 +99999999999999999999", "1" * 400):
        wait = retry_after(httpx2.Headers({"retry-after": held}))
        assert wait in (None, 900.0)


def test_a_secret_deep_in_the_extra_body_is_refused() -> None:
    for text in ('{"provider":{"api_key":"sk-nested"}}', '{"a":[{"Authorization":"Bearer x"}]}'):
        with pytest.raises(RequestFault, match="it is stored with every row"):
            parse_extra(text)
    schema = '{"response_format":{"schema":{"properties":{"password":{"type":"string"}}}}}'
    assert parse_extra(schema)
