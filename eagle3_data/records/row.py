"""Row: one record while it is being read, and how foreign values become its cells.

What enters: parsed JSON values of any type. What leaves: `Row`s whose cells fit RECORD_SCHEMA.
It promises that a value of the wrong type is noted and left out, never converted by force.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import orjson

from eagle3_data.records.table import RECORD_SCHEMA, Note

Json = dict[str, Any]

LARGEST = 1 << 53
"""The first integer that no count cell holds: sums of them stay far from 64 bits."""
_BLANK = dict.fromkeys(RECORD_SCHEMA)


@dataclass(slots=True)
class Row:
    """Cells by column name, all of the schema and no other; the bits of `Note`; details in words.

    The cells are in the order of the schema, so that a batch is turned into columns by one `zip`.
    """

    cells: dict[str, Any] = field(default_factory=_BLANK.copy)
    notes: int = 0
    details: list[str] = field(default_factory=list)

    def note(self, note: Note, detail: str | None = None) -> None:
        """Add a note, and a detail in words."""
        self.notes |= int(note)
        if detail is not None and detail not in self.details:
            self.details.append(detail)

    def copy(self) -> Row:
        """A row that begins with the same cells: another answer to the same request."""
        return Row(self.cells.copy(), self.notes, list(self.details))

    def wrong(self, name: str, value: Any) -> None:
        """Note that the field `name` has a type it can not have."""
        self.note(Note.WRONG_TYPE, f"{name} is {kind(value)}")

    def text(self, column: str, value: Any, name: str) -> None:
        """Set a text cell from a string; null stays null."""
        if value.__class__ is str:
            self.cells[column] = value
        elif value is not None:
            self.wrong(name, value)

    def whole(self, column: str, value: Any, name: str) -> None:
        """Set a count cell from a JSON integer of at most 53 bits, or a float without a
        fraction.
        """
        if value.__class__ is float and value.is_integer():
            value = int(value)
        if value.__class__ is int and -LARGEST <= value < LARGEST:
            self.cells[column] = value
        elif value is not None:
            self.wrong(name, value)

    def ids(self, column: str, value: Any) -> None:
        """Set an id list; its elements are checked for the whole batch at once, in `columns`."""
        if value.__class__ is list:
            self.cells[column] = value
        elif value is not None:
            self.note(Note.IDS_INVALID, f"{column}: {kind(value)} instead of a list")


def kind(value: Any) -> str:
    """The JSON type of a value, in words."""
    names = {dict: "an object", list: "a list", str: "a string", bool: "a Boolean"}
    return names.get(type(value), "null" if value is None else "a number")


def dump(value: Any) -> str:
    """JSON text of a parsed value, compact, keys in the order received."""
    return orjson.dumps(value).decode()


def decoded(value: Any) -> Any:
    """`value`, or what it spells when it is JSON text inside JSON. Raises ValueError when it is no
    JSON text.
    """
    return orjson.loads(value) if value.__class__ is str else value


def mapping(value: Any) -> Json:
    """`value` when it is an object, else an empty one."""
    return value if value.__class__ is dict else {}
