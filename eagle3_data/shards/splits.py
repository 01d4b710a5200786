"""Splits: which part of the data set a conversation belongs to.

What enters: the request columns of records. What leaves: `conversation_id` and `split`. It promises
that both depend on the conversation's first messages alone, so that a second run, more data or
another order of it moves nothing, and the turns and retries of one conversation stay together.
"""

from __future__ import annotations

import math
import re
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import blake2b
from itertools import accumulate
from typing import Self

import orjson
import polars as pl

from eagle3_data.records.parts import read_text
from eagle3_data.records.requests import letter
from eagle3_data.shards.schema import ShardError

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")


@dataclass(frozen=True, slots=True)
class Splits:
    """Names and shares, in order. Shares are positive and sum to 1."""

    names: tuple[str, ...] = ("train",)
    shares: tuple[float, ...] = (1.0,)

    @classmethod
    def parse(cls, text: str) -> Self:
        """`train=0.98,val=0.02`. Raises ShardError with what is wrong."""
        example = "write it as train=0.98,val=0.02"
        names: list[str] = []
        shares: list[float] = []
        for part in text.split(","):
            name, equals, share = (piece.strip() for piece in part.partition("="))
            try:
                value = float(share)
            except ValueError:
                value = math.nan
            if value > 1:  # percent, or a number of samples
                raise ShardError(
                    f"--split {text}: {part.strip()!r}: shares are parts of one, for example"
                    " train=0.98,val=0.02"
                )
            if not equals or not 0 < value <= 1:
                raise ShardError(f"--split {text}: {part.strip()!r} has no share: {example}")
            if not _NAME.fullmatch(name):
                raise ShardError(
                    f"--split {text}: {name!r} is no name: use letters, digits, _ . and -"
                )
            if name in names:
                raise ShardError(f"--split {text}: {name} is named twice")
            names.append(name)
            shares.append(value)
        if abs(sum(shares) - 1) > 1e-9:
            raise ShardError(f"--split {text}: the shares sum to {sum(shares):g}, not to 1")
        return cls(tuple(names), tuple(shares))

    def __str__(self) -> str:
        return ",".join(f"{n}={s!r}" for n, s in zip(self.names, self.shares, strict=True))

    def of(self, conversation: str) -> str:
        """The split of a conversation id: its first 64 bits are its place between 0 and 1."""
        bounds = list(accumulate(self.shares))[:-1]
        return self.names[bisect_right(bounds, int(conversation[:16], 16) / 2**64)]


def with_splits(frame: pl.DataFrame, splits: Splits) -> pl.DataFrame:
    """`frame` (record table and `line_hash`) with `conversation_id` and `split`."""
    ids = list(conversations(frame))
    return frame.with_columns(
        pl.Series("conversation_id", ids, dtype=pl.String),
        pl.lit(splits.names[0]).alias("split")
        if len(splits.names) == 1
        else pl.Series("split", [splits.of(one) for one in ids], dtype=pl.String),
    )


def conversations(frame: pl.DataFrame) -> Iterator[str]:
    """BLAKE2b-128 (hex) over the opening system text and the first user message; the line's hash
    for a record without either (ids alone).
    """
    rows = frame.select(
        "line_hash",
        # one that comes later is no part of how the conversation began
        pl.when(pl.col("roles").str.starts_with("s")).then("system_text"),
        "user_text",
        # parsing is for dialogues: of all others the last user message is the first
        pl.when(pl.col("roles").str.count_matches("u", literal=True) > 1).then("messages_json"),
    )
    for line_hash, system, user, messages in rows.iter_rows():
        first = user if messages is None else _first_user(messages)
        if first is None and system is None:
            yield line_hash
        else:
            yield blake2b(orjson.dumps([system, first]), digest_size=16).hexdigest()


def _first_user(messages: str) -> str | None:
    for message in orjson.loads(messages):
        if letter(message) == "u":
            return read_text(message.get("content")).text
    return None
