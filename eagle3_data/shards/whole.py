"""What only all shards together show: repeated samples and places, split conversations, a ledger
that the rows contradict.

What enters: the light rows of a verification, and where each comes from. What leaves: findings. It
promises that the ledger is compared where every shard was read as the manifest vouches for it, and
that of a ledger only what stands in it is compared: an import writes another one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import polars as pl

from eagle3_data.shards import rules
from eagle3_data.shards.verified import Finding, Verification

if TYPE_CHECKING:
    from pydantic import JsonValue

PLACE = ("source", "source_line")
_SOURCE = {
    "source": pl.Categorical(),
    "source_line": pl.Int64(),
    "line_hash": pl.UInt64(),
    "truncated": pl.Boolean(),
}


def origins(group: pl.DataFrame) -> pl.DataFrame:
    """Where the rows of a row group come from, 21 bytes a row: it is kept for the whole folder.
    `line_hash` is a hash of the text, enough to tell two apart.
    """
    return group.select(
        pl.col("file").cast(pl.Categorical).alias("source"),
        pl.col("line").alias("source_line"),
        pl.col("line_hash").hash(),
        "truncated",
    )


def whole(
    out: Verification, sources: Sequence[pl.DataFrame], *, vouched: bool
) -> Iterator[Finding]:
    """Findings. `sources`: `origins` of the row groups of `out.light`. `vouched`: every shard was
    read to its end, with the bytes that the manifest says.
    """
    rows = out.rows()
    found = pl.concat(sources) if sources else pl.DataFrame(schema=_SOURCE)
    rows = rows.hstack(found.get_columns())
    if sources:
        yield from _repeated(out, rows)
        yield from _split(rows)
    if vouched and out.manifest is not None:
        at = len(out.manifest.shards)
        for detail in _contradicted(out.manifest.ledger, rows):
            yield Finding(rules.MANIFEST_CHANGED, at, f"ledger: {detail}")


def _repeated(out: Verification, rows: pl.DataFrame) -> Iterator[Finding]:
    """One id twice; one place in the captures twice; one line of them with two digests."""
    told = set()
    for row in _after_the_first(rows, ["record_id"]):
        told.add((row["file_no"], row["line"]))
        name = out.paths[row["first_file"]].name
        yield Finding(
            rules.SAMPLE_REPEATED, row["file_no"], f"the same as {name}:{row['first_line']}", row
        )
    for row in _after_the_first(rows, [*PLACE, "choice", "turn"]):
        if (row["file_no"], row["line"]) not in told:  # its id says the same
            name = out.paths[row["first_file"]].name
            detail = f"made from the same answer as {name}:{row['first_line']}, {_place(row)}"
            yield Finding(rules.SAMPLE_REPEATED, row["file_no"], detail, row)
    several = rows.filter(pl.col("line_hash").n_unique().over(PLACE) > 1)
    for row in several.iter_rows(named=True):
        detail = f"line_hash: samples of one line have different ones, {_place(row)}"
        yield Finding(rules.CONTRACT_BROKEN, row["file_no"], detail, row)


def _after_the_first(rows: pl.DataFrame, key: list[str]) -> Iterator[dict[str, Any]]:
    """The rows whose key a row before has, with the place of that one."""
    repeated = rows.filter(pl.struct(key).is_duplicated())
    if not repeated.height:
        return
    first = repeated.select(
        *key, pl.col("file_no").alias("first_file"), pl.col("line").alias("first_line")
    ).unique(key, keep="first", maintain_order=True)
    joined = repeated.join(first, on=key, how="left", nulls_equal=True, maintain_order="left")
    for row in joined.iter_rows(named=True):
        if (row["file_no"], row["line"]) != (row["first_file"], row["first_line"]):
            yield row


def _split(rows: pl.DataFrame) -> Iterator[Finding]:
    """Conversations in two splits."""
    splits = rows.with_columns(splits=pl.col("split").n_unique().over("conversation_id"))
    for row in splits.filter(pl.col("splits") > 1).iter_rows(named=True):
        detail = (
            f"conversation {row['conversation_id'][:80]} is in {row['splits']} splits,"
            f" here {row['split'][:40]}"
        )
        yield Finding(rules.CONVERSATION_SPLIT, row["file_no"], detail, row)


def _contradicted(ledger: Mapping[str, JsonValue], rows: pl.DataFrame) -> Iterator[str]:
    """What a ledger says otherwise than the rows do, or than itself."""
    parts = [ledger.get(name) for name in ("kept", "quarantined", "unreadable")]
    if "lines" in ledger and None not in parts:
        total = sum(part for part in parts if isinstance(part, int))
        if ledger["lines"] != total:
            yield (
                f"{_told(ledger['lines'])} lines, but {' + '.join(map(_told, parts))}"
                " kept, quarantined and unreadable"
            )
    splits = dict(rows["split"].value_counts().iter_rows())
    held = {
        "kept": rows.select(PLACE).n_unique() if rows.height else 0,
        "truncated_samples": int(rows["truncated"].sum()),
    }
    for name, count in held.items():
        if name in ledger and ledger[name] != count:
            yield f"{name} {_told(ledger[name])}, the shards hold {count}"
    if "splits" in ledger:
        said = ledger["splits"]
        if not isinstance(said, dict):
            yield f"splits {_told(said)}"
            return
        for name in sorted(said.keys() | splits.keys()):
            if said.get(name, 0) != splits.get(name, 0):
                told = _told(said.get(name, 0))
                yield f"split {name[:40]} {told}, the shards hold {splits.get(name, 0)}"


def _told(value: JsonValue) -> str:
    return str(value)[:40]


def _place(row: Mapping[str, Any]) -> str:
    return f"made from {row['source']}:{row['source_line']}"
