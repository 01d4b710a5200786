"""Ids, template, mask, and counts that contradict the text (parts D and E)."""

from __future__ import annotations

import random

from benchmarks.faults.fault import Base, Expected, Row, choice, edits, message


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


@edits("an invented next turn behind the end", "E05", "WRP015", base=Base.IDS)
def _(row: Row, rng: random.Random, other: Row) -> None:
    # "\n", <|im_start|>, "user\n", "What", ".", <|im_end|>, and how it reads without special tokens
    choice(row)["token_ids"] += [198, 1, 4093, 198, 1780, 30, 2]
    message(row)["content"] += "\nuser\nWhat."
    row["response"]["usage"]["completion_tokens"] += 7


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
