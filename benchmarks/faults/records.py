"""Bytes, JSON and shapes of records (part C)."""

from __future__ import annotations

import random

import orjson

from benchmarks.faults.fault import Expected, Row, choice, edits, line, message, raw, without_ids


@edits("replacement character in the middle", "C01", "CAP020")
def _(row: Row, rng: random.Random, other: Row) -> None:
    m = message(row)
    m["content"] = f"{m['content'][:8]}\ufffd\ufffd{m['content'][8:]}"


@raw("record cut in the middle of the file", "C08", "RAW013", "RAW015")
def _(row: Row, rng: random.Random, other: Row) -> list[bytes]:
    data = line(row)
    return [data[: rng.randint(len(data) // 4, len(data) - 2)]]


@raw("two records on one line", "C08", "RAW012")
def _(row: Row, rng: random.Random, other: Row) -> list[bytes]:
    return [line(row) + line(without_ids(other))]


@raw("invalid UTF-8", "C07", "RAW010")
def _(row: Row, rng: random.Random, other: Row) -> list[bytes]:
    data = line(row)
    at = data.index(b'"content"') if b'"content"' in data else len(data) // 2
    return [data[: at + 14] + rng.choice([b"\xff", b"\xc3\x28", b"\xe2\x82"]) + data[at + 14 :]]


@raw("lone surrogate", "C02", "RAW018")
def _(row: Row, rng: random.Random, other: Row) -> list[bytes]:
    return [line(row).replace(b'"role":"assistant"', b'"role":"assistant","note":"\\ud83d"')]


@raw("NaN in the record", "C05", "RAW016")
def _(row: Row, rng: random.Random, other: Row) -> list[bytes]:
    return [
        line(row).replace(
            b'"latency_s":', b'"score":' + rng.choice([b"NaN", b"Infinity"]) + b',"latency_s":'
        )
    ]


@raw("NUL run in the line", "C08", "RAW009")
def _(row: Row, rng: random.Random, other: Row) -> list[bytes]:
    return [b"\0" * rng.randint(8, 4096) + line(row)]


@raw("duplicate answer key", "C10", "RAW017")
def _(row: Row, rng: random.Random, other: Row) -> list[bytes]:
    return [
        line(row).replace(b'"role":"assistant"', b'"role":"assistant","content":"something else"')
    ]


@raw("a list instead of an object", "C12", "RAW019")
def _(row: Row, rng: random.Random, other: Row) -> list[bytes]:
    return [b"[" + line(row) + b"]"]


@edits("image part in the answer", "C18", "REC006")
def _(row: Row, rng: random.Random, other: Row) -> None:
    m = message(row)
    m["content"] = [
        {"type": "text", "text": m["content"]},
        {"type": "image_url", "image_url": {"url": "x"}},
    ]


@edits("tool arguments are no JSON", "C19", "REC008")
def _(row: Row, rng: random.Random, other: Row) -> None:
    message(row)["tool_calls"] = [
        {"id": "c0", "type": "function", "function": {"name": "f", "arguments": '{"a": '}}
    ]
    choice(row)["finish_reason"] = "tool_calls"


@edits("API error body in place of the response", "C20", "REC002")
def _(row: Row, rng: random.Random, other: Row) -> None:
    row["response"] = {
        "error": {"message": "Rate limit reached", "type": "rate_limit_error", "code": 429}
    }


@edits("error text as the answer", "C20", "REC002")
def _(row: Row, rng: random.Random, other: Row) -> None:
    text = rng.choice(
        ["Internal Server Error", "Error code: 429 - {'error': {'message': 'Rate limit'}}"]
    )
    messages = row["request"]["messages"]
    row.clear()
    row |= {"messages": messages, "response": text}


@edits("response without choices", "C20", "REC003")
def _(row: Row, rng: random.Random, other: Row) -> None:
    row["response"]["choices"] = []


@edits("content of a wrong type", "C10", "REC004")
def _(row: Row, rng: random.Random, other: Row) -> None:
    message(row)["content"] = rng.choice([17, {"text": "x"}, True])


@raw("record of a foreign kind", "C20", "REC001")
def _(row: Row, rng: random.Random, other: Row) -> list[bytes]:
    return [orjson.dumps({"url": "u", "title": "t", "rank": 3})]


@edits("user turn twice", "C21", "CHT002", heuristic=True, expected=Expected.TOLD)
def _(row: Row, rng: random.Random, other: Row) -> None:
    last = row["request"]["messages"][-1]
    row["request"]["messages"] += [dict(last, content=other["request"]["messages"][-1]["content"])]


@edits("tool result after an answer without a call", "C21", "CHT003")
def _(row: Row, rng: random.Random, other: Row) -> None:
    row["request"]["messages"] += [
        {"role": "assistant", "content": "I look at the clock."},
        {"role": "tool", "tool_call_id": "functions.now:0", "content": "12:00"},
    ]


@edits(
    "dialogue begins with the assistant",
    "C21",
    "CHT001",
    heuristic=True,
    expected=Expected.TOLD,
)
def _(row: Row, rng: random.Random, other: Row) -> None:
    row["request"]["messages"] = [
        {"role": "assistant", "content": "Hello."},
        *row["request"]["messages"][-1:],
    ]
