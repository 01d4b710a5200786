"""Known faults as functions on a clean captured row: what the mutation test plants and expects to
be named and kept out.

Each fault says where it comes from (the row of the failure catalogue), how it changes the row,
which rules must name it, and what must become of its line. `TEXT` faults are planted on the row
without its captured ids, as a client that stores only text would have it; `IDS` faults keep them.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import orjson

Row = dict[str, Any]


class Base(StrEnum):
    TEXT = "text"
    IDS = "ids"


class Expected(StrEnum):
    """What must become of the line that holds a fault."""

    OUT = "out"
    """Quarantined or unreadable. Of a fault of two lines (a repetition, a collision) one of them is
    enough.
    """
    TOLD = "told"
    """Named by a warning: the sample may be sound, its owner decides."""


@dataclass(frozen=True, slots=True)
class Fault:
    """`plant` returns the lines that replace the row. `rules`: codes of which at least one must
    fire on these lines. `expected`: what must become of them.
    """

    name: str
    source: str
    base: Base
    plant: Callable[[Row, random.Random, Row], list[bytes]]
    rules: tuple[str, ...]
    heuristic: bool = False
    expected: Expected = Expected.OUT


def line(row: Row) -> bytes:
    return orjson.dumps(row)


def message(row: Row) -> Row:
    return row["response"]["choices"][0]["message"]  # type: ignore[no-any-return]


def choice(row: Row) -> Row:
    return row["response"]["choices"][0]  # type: ignore[no-any-return]


def without_ids(row: Row) -> Row:
    """The row as a client stores it that does not ask for ids."""
    out = copy.deepcopy(row)
    choice(out).pop("token_ids", None)
    out["response"].pop("prompt_token_ids", None)
    return out


FAULTS: list[Fault] = []
Edit = Callable[[Row, random.Random, Row], None]
RawEdit = Callable[[Row, random.Random, Row], list[bytes]]


def edits(
    name: str,
    source: str,
    *rules: str,
    base: Base = Base.TEXT,
    heuristic: bool = False,
    expected: Expected = Expected.OUT,
) -> Callable[[Edit], Edit]:
    """Register a fault that changes the row in place. Its third argument is another clean row."""

    def register(edit: Edit) -> Edit:
        def plant(row: Row, rng: random.Random, other: Row) -> list[bytes]:
            edit(row, rng, other)
            return [line(row)]

        FAULTS.append(Fault(name, source, base, plant, rules, heuristic, expected))
        return edit

    return register


def raw(
    name: str, source: str, *rules: str, base: Base = Base.TEXT
) -> Callable[[RawEdit], RawEdit]:
    """Register a fault on the bytes of the line."""

    def register(plant: RawEdit) -> RawEdit:
        FAULTS.append(Fault(name, source, base, plant, rules))
        return plant

    return register


# --- A. reasoning lost, misplaced or malformed ---


@edits("wrong field read: reasoning_content null", "A01", "CAP001")
def _(row: Row, rng: random.Random, other: Row) -> None:
    del message(row)["reasoning"]
    message(row)["reasoning_content"] = None


@edits("reasoning key absent", "A01", "CAP001")
def _(row: Row, rng: random.Random, other: Row) -> None:
    del message(row)["reasoning"]


@edits("reasoning is the empty string", "A01", "CAP001")
def _(row: Row, rng: random.Random, other: Row) -> None:
    message(row)["reasoning"] = ""


@edits("whole think block left in content", "A04", "CAP004")
def _(row: Row, rng: random.Random, other: Row) -> None:
    m = message(row)
    m["content"] = f"<think>\n{m['reasoning']}\n</think>{m['content']}"
    m["reasoning"] = None


@edits("only the closing marker, in content", "A06", "CAP005")
def _(row: Row, rng: random.Random, other: Row) -> None:
    m = message(row)
    m["content"] = f"{m['reasoning']}</think>{m['content']}"
    m["reasoning"] = None


@edits("thought and answer joined without markers", "A17", "TOK001")
def _(row: Row, rng: random.Random, other: Row) -> None:
    m = message(row)
    m["content"] = f"{m['reasoning']}{m['content']}"
    m["reasoning"] = None


@edits("opening marker in content, never closed, cut by length", "A07", "CAP006")
def _(row: Row, rng: random.Random, other: Row) -> None:
    m = message(row)
    m["content"] = f"<think>\n{m['reasoning']}"
    m["reasoning"] = None
    choice(row)["finish_reason"] = "length"


@edits("cut thought stored as the answer", "A08", "CAP007")
def _(row: Row, rng: random.Random, other: Row) -> None:
    m = message(row)
    m["content"], m["reasoning"] = m["reasoning"], None
    choice(row)["finish_reason"] = "length"


@edits("same text in both fields", "A09", "CAP008")
def _(row: Row, rng: random.Random, other: Row) -> None:
    message(row)["content"] = message(row)["reasoning"]


@edits("thought cut by the limit, in another server's word", "A07", "CAP011")
def _(row: Row, rng: random.Random, other: Row) -> None:
    message(row)["content"] = ""
    choice(row)["finish_reason"] = rng.choice(["length", "max_tokens", "max_output_tokens"])


@edits("no answer after a long thought, stopped", "A10", "CAP009")
def _(row: Row, rng: random.Random, other: Row) -> None:
    message(row)["content"] = ""


@edits("thought is only white space", "A12", "CAP012")
def _(row: Row, rng: random.Random, other: Row) -> None:
    message(row)["reasoning"] = "\n\n"


@edits("markers left inside the reasoning field", "A02", "CAP016")
def _(row: Row, rng: random.Random, other: Row) -> None:
    message(row)["reasoning"] = f"<think>{message(row)['reasoning']}</think>"


@edits("opening marker doubled", "A14", "WRP001")
def _(row: Row, rng: random.Random, other: Row) -> None:
    m = message(row)
    m["content"] = f"<think><think>{m['reasoning']}</think>{m['content']}"
    m["reasoning"] = None


@edits("markers nested in the thought", "A15", "WRP002", "WRP004")
def _(row: Row, rng: random.Random, other: Row) -> None:
    m = message(row)
    m["reasoning"] = f"Let me see. <think>again</think></think> {m['reasoning']}"


@edits("half a marker at the end of the thought", "A21", "CAP017")
def _(row: Row, rng: random.Random, other: Row) -> None:
    message(row)["reasoning"] += rng.choice(["</thi", "</think", "<thin"])


@edits("control token text at the end of the answer", "A18", "WRP010")
def _(row: Row, rng: random.Random, other: Row) -> None:
    message(row)["content"] += rng.choice(["<|im_end|>", "<|endoftext|>", "<|im_end|>\n"])


@edits("control token text inside the thought", "A18", "WRP011")
def _(row: Row, rng: random.Random, other: Row) -> None:
    m = message(row)
    m["reasoning"] = f"Well, <|im_start|> {m['reasoning']}"


@edits("two reasoning fields that disagree", "A02", "CAP013")
def _(row: Row, rng: random.Random, other: Row) -> None:
    message(row)["reasoning_content"] = message(other)["reasoning"]


@edits("thought in another family's markers", "A16", "CAP025")
def _(row: Row, rng: random.Random, other: Row) -> None:
    m = message(row)
    pair = rng.choice(
        [("[THINK]", "[/THINK]"), ("<mm:think>", "</mm:think>"), ("<seed:think>", "</seed:think>")]
    )
    m["content"] = f"{pair[0]}{m['reasoning']}{pair[1]}{m['content']}"
    m["reasoning"] = None


# --- B. bad generations ---


@edits("loop with a changing counter", "B01", "GEN001", heuristic=True)
def _(row: Row, rng: random.Random, other: Row) -> None:
    text = rng.choice(
        ["Step {}: I will check the result again and see. ", "{}. Wait, let me count once more.\n"]
    )
    message(row)["content"] += "".join(text.format(i) for i in range(60))
    choice(row)["finish_reason"] = "length"


@edits("loop in another script", "B01", "GEN001", heuristic=True)
def _(row: Row, rng: random.Random, other: Row) -> None:
    text = rng.choice(
        [
            "我们再检查一次结果。",
            "もう一度確認します。",
            "Проверим ещё раз результат. ",
            "चलो फिर से जाँचें। ",
        ]
    )
    message(row)["reasoning"] += text * 80


@edits("one character over and over", "B02", "GEN002")
def _(row: Row, rng: random.Random, other: Row) -> None:
    message(row)["content"] = "!" * rng.randint(30, 200)


@edits("answer of NUL characters", "B03", "GEN002")
def _(row: Row, rng: random.Random, other: Row) -> None:
    message(row)["content"] = "\0" * 40


@edits("finish_reason outside the allowed set", "B04 B07 B10", "GEN003", "GEN004", "GEN012")
def _(row: Row, rng: random.Random, other: Row) -> None:
    choice(row)["finish_reason"] = rng.choice(
        ["abort", "error", "repetition", "content_filter", None]
    )


@edits("placeholder for an answer", "B13", "GEN009")
def _(row: Row, rng: random.Random, other: Row) -> None:
    message(row)["content"] = rng.choice(["N/A", "<nooutput>", "[no response]"])
    message(row)["reasoning"] = None


@edits("unresolved template variable as the prompt", "B11", "CHT007")
def _(row: Row, rng: random.Random, other: Row) -> None:
    row["request"]["messages"] = [
        {"role": "user", "content": rng.choice(["{{question}}", "{{ prompt }}", "{input}"])}
    ]


@edits("nothing generated", "B16", "GEN010")
def _(row: Row, rng: random.Random, other: Row) -> None:
    message(row)["content"] = message(row)["reasoning"] = None
    row["response"]["usage"]["completion_tokens"] = 0
    choice(row)["finish_reason"] = None


# --- C. bytes, JSON, shapes ---


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


# --- D, E. ids, template, mask ---


@edits("one sampled id lost", "D13", "TOK003", base=Base.IDS)
def _(row: Row, rng: random.Random, other: Row) -> None:
    del choice(row)["token_ids"][rng.randrange(3, 10)]


@edits("one prompt id lost", "D13", "TOK018", base=Base.IDS)
def _(row: Row, rng: random.Random, other: Row) -> None:
    del row["response"]["prompt_token_ids"][rng.randrange(1, 8)]


@edits("ids of another answer", "D13", "TOK004", base=Base.IDS)
def _(row: Row, rng: random.Random, other: Row) -> None:
    choice(row)["token_ids"] = choice(other)["token_ids"]
    row["response"]["usage"] = other["response"]["usage"]


@edits("spaces lost from the text beside the ids", "D13", "TOK004", base=Base.IDS)
def _(row: Row, rng: random.Random, other: Row) -> None:
    m = message(row)
    m["reasoning"] = m["reasoning"].replace(" ", "")


@edits("marker encoded as several tokens", "D10", "WRP006", base=Base.IDS)
def _(row: Row, rng: random.Random, other: Row) -> None:
    ids = choice(row)["token_ids"]
    at = ids.index(49153)
    ids[at : at + 1] = [9617, 17400, 46]  # "</", "think", ">"
    row["response"]["usage"]["completion_tokens"] = len(ids)


@edits("BOS twice", "D07", "TOK008", base=Base.IDS)
def _(row: Row, rng: random.Random, other: Row) -> None:
    row["response"]["prompt_token_ids"].insert(0, 1)


@edits("prompt without its generation tail", "E08", "TOK012", base=Base.IDS)
def _(row: Row, rng: random.Random, other: Row) -> None:
    row["response"]["prompt_token_ids"] = row["response"]["prompt_token_ids"][:-2]


@edits("id beyond the vocabulary", "D12", "TOK009", base=Base.IDS)
def _(row: Row, rng: random.Random, other: Row) -> None:
    choice(row)["token_ids"][2] = 60_000


@edits("end of turn missing from the ids", "E05", "TOK011", base=Base.IDS)
def _(row: Row, rng: random.Random, other: Row) -> None:
    choice(row)["token_ids"].pop()
    row["response"]["usage"]["completion_tokens"] -= 1


@edits(
    "prompt ids empty, completion ids there",
    "D15",
    "TOK013",
    base=Base.IDS,
    expected=Expected.TOLD,
)
def _(row: Row, rng: random.Random, other: Row) -> None:
    row["response"]["prompt_token_ids"] = rng.choice([None, []])


@edits("one id over and over", "B02", "TOK014", base=Base.IDS)
def _(row: Row, rng: random.Random, other: Row) -> None:
    choice(row)["token_ids"] = [17] * 50
    row["response"]["usage"]["completion_tokens"] = 50


@edits("usage says fewer tokens than the text has", "D13", "TOK001")
def _(row: Row, rng: random.Random, other: Row) -> None:
    row["response"]["usage"]["completion_tokens"] -= rng.randint(3, 9)


@edits("part of the thought is gone", "A25", "TOK001")
def _(row: Row, rng: random.Random, other: Row) -> None:
    m = message(row)
    half = len(m["reasoning"]) // 2
    m["reasoning"] = m["reasoning"][:half] if half > 3 else "x"


# --- H. corpus ---


@raw("record written twice", "C16", "SET001", base=Base.IDS)
def _(row: Row, rng: random.Random, other: Row) -> list[bytes]:
    return [line(row), line(row)]


@raw("prompt and answer captured again under another id", "C16", "SET002", base=Base.IDS)
def _(row: Row, rng: random.Random, other: Row) -> list[bytes]:
    again = copy.deepcopy(row)
    again["id"], again["response"]["created"] = f"{row['id']}-again", row["response"]["created"] + 9
    return [line(row), line(again)]


@raw("same id, other content", "H04", "SET003")
def _(row: Row, rng: random.Random, other: Row) -> list[bytes]:
    second = without_ids(other) | {"id": row["id"]}
    message(second)["content"] = str(message(second)["content"]) + " And so on."
    return [line(row), line(second)]


@edits("row of another model", "B15", "SET006", base=Base.IDS)
def _(row: Row, rng: random.Random, other: Row) -> None:
    row["response"]["model"] = row["request"]["model"] = "some-other-model"
