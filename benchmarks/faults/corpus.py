"""Faults that only other rows show (part H)."""

from __future__ import annotations

import copy
import random

from benchmarks.faults.fault import Base, Row, edits, line, message, raw, without_ids


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
