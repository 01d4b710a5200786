"""Prompts alone: the questions of a file, whatever its shape, answers ignored.

What enters: a path (an evaluation set to hold out). What leaves: texts. It promises that every
non-blank line gives a prompt or the file is refused by name: a held-out set that is read only in
part would hide a contamination.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import orjson

from eagle3_data.records.lines import InputError, expand, read_batches
from eagle3_data.records.shapes import table_from

PROMPT_KEYS = (
    "prompt",
    "question",
    "problem",
    "instruction",
    "query",
    "input",
    "text",
    "turns",
    "task",
)
"""Keys under which evaluation sets store the question, in the order in which they are tried."""


def read_prompts(path: str) -> list[str]:
    """The prompts of `path`: one a line of plain text (.txt), else JSON lines of any shape that
    `check` knows, or with one of PROMPT_KEYS. Raises InputError when a line gives none.
    """
    found: list[str] = []
    for number, source in enumerate(expand([path])):
        plain = source.path.lower().removesuffix(".gz").removesuffix(".zst").endswith(".txt")
        for batch in read_batches(source, number):
            texts = [line.decode("utf-8", "replace") for line in batch.lines] if plain else None
            if texts is None:
                table = table_from(batch)
                known: dict[int | None, str | None] = dict(
                    zip(table["line"].to_list(), table["user_text"].to_list(), strict=True)
                )
                texts = []
                for line, at in zip(batch.lines, batch.numbers, strict=True):
                    prompts = [known[at]] if known.get(at) else list(_prompts(line))
                    if not any(prompts):
                        raise InputError(
                            f"{source.path}:{at}: no prompt; looked for messages and "
                            + ", ".join(PROMPT_KEYS)
                        )
                    texts += [text for text in prompts if text]
            found += texts
    if not found:
        raise InputError(f"{path}: no prompt in it")
    return found


def _prompts(line: bytes) -> Iterator[str]:
    try:
        value: Any = orjson.loads(line)
    except orjson.JSONDecodeError:
        return
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for key in PROMPT_KEYS:
            held = value.get(key)
            if isinstance(held, str) and held.strip():
                yield held
                return
            if isinstance(held, list) and held and all(isinstance(turn, str) for turn in held):
                yield from held
                return
