"""The real road of these tests: a capture through lines, shapes, assembly and `shard_rows`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
from making import TOKENIZER

from eagle3_data.audit.thresholds import Thresholds
from eagle3_data.profiles.load import load
from eagle3_data.records.lines import expand, read_batches
from eagle3_data.records.shapes import Turns, table_from
from eagle3_data.shards.facts import facts_of
from eagle3_data.shards.rows import shard_rows, with_line_hashes
from eagle3_data.shards.schema import ShardFacts
from eagle3_data.tokens.assemble import Assembler
from eagle3_data.tokens.tokenizer import Tokenizer, open_tokenizer

PROFILE = load("smollm2-think")
REFERENCE: Tokenizer = open_tokenizer(TOKENIZER)
ASSEMBLER = Assembler(PROFILE, REFERENCE)


def facts() -> ShardFacts:
    """The facts of these runs."""
    return facts_of(
        PROFILE,
        REFERENCE,
        chat_template=None,
        rules=(),
        thresholds=Thresholds(),
        product_version="0.1.0",
    )


def frames(path: Path, *, records: int = 2048, turns: Turns = Turns.LAST) -> Iterator[pl.DataFrame]:
    """Record and sample columns and `line_hash`, a frame a batch."""
    for batch in read_batches(expand([str(path)])[0], 0, target_records=records):
        table = table_from(batch, turns=turns)
        joined = table.hstack(ASSEMBLER.assemble(table))
        yield with_line_hashes(joined, batch.numbers, batch.lines)


def tables(path: Path, **options: Any) -> Iterator[pa.Table]:
    """Rows of schema v1, a table a batch; the file is named `capture.jsonl`."""
    for frame in frames(path, **options):
        yield shard_rows(frame, files=["capture.jsonl"], profile=PROFILE.name)
