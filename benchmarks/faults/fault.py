"""A fault: where it comes from, how it changes a clean row, which rules must name it.

`TEXT` faults are planted on the row without its captured ids, as a client that stores only text
would have it; `IDS` faults keep them. A module of faults registers them as it is imported.
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
