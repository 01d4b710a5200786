"""Reasoning lost, misplaced or malformed (part A of the failure catalogue)."""

from __future__ import annotations

import random

from benchmarks.faults.fault import Row, choice, edits, message


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


# the missing marker is one token less, but where the two texts meet the join can make one more (1
# of 40): then the count says nothing, and the thought is missing all the same
@edits("thought and answer joined without markers", "A17", "TOK001", "CAP001")
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
    # the longer one: below 32 characters (`copied_equal_chars`) the same text twice may be honest
    both = max(message(row)["reasoning"], message(row)["content"], key=len)
    message(row).update(reasoning=both, content=both)


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
