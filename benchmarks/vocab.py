"""Speed and memory of `vocab`: 100 million tokens, a vocabulary of 163,840, 32,000 draft tokens.

    python benchmarks/vocab.py [--tokens 100000000] [--rounds 3] [--smoke]

Two ways: Arrow batches in memory (the counting itself), and a folder of Parquet shards (what the
command does). Beside them the least that either costs: one `numpy.bincount` over the same ids, and
reading the same columns. Prints a table and writes benchmarks/out/vocab.json. The limits are on CPU
time, which a busy machine changes less than the clock. Exit 1
when a limit of the table is broken (not with --smoke, which only proves that it runs).
"""

from __future__ import annotations

import argparse
import json
import resource
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from hashlib import blake2b
from pathlib import Path

import numpy as np
import pyarrow as pa

sys.path.insert(0, str(Path(__file__).parent.parent))

from benchmarks.limits import held
from eagle3_data.draft.counting import COLUMNS, Counts, count
from eagle3_data.draft.mapping import choose
from eagle3_data.shards.reader import open_shards
from eagle3_data.shards.schema import COLUMNS as ALL
from eagle3_data.shards.schema import ShardFacts, arrow_schema
from eagle3_data.shards.writer import ShardWriter

OUT = Path(__file__).parent / "out"
VOCAB, SIZE = 163_840, 32_000
ROWS, LENGTH, PROMPT = 256, 2048, 300
CONTROL = np.arange(163_584, 163_608, dtype=np.int64)
FACTS = ShardFacts(
    profile="kimi-k2-thinking",
    profile_hash="",
    tokenizer="bench",
    tokenizer_hash="",
    template_hash="",
    vocab_size=VOCAB,
    end_of_turn=(163_586,),
    rules_version="",
    product_version="",
)


def batch(number: int) -> pa.RecordBatch:
    """Rows of schema v1 whose ids are distributed as words are; the other columns are filled."""
    rng = np.random.default_rng(number % 8)
    ids = (rng.zipf(1.2, ROWS * LENGTH) % VOCAB).astype(np.int32)
    mask = np.tile(np.arange(LENGTH) >= PROMPT, ROWS).astype(np.uint8)
    bounds = [0, PROMPT, 1500, 1501, LENGTH - 1, LENGTH]
    kinds = ["prompt", "reasoning", "marker", "content", "marker"]
    spans = [
        {"kind": kind, "start": start, "end": end}
        for kind, start, end in zip(kinds, bounds, bounds[1:], strict=False)
    ]
    rows = range(number * ROWS, (number + 1) * ROWS)
    digests = [blake2b(b"%d" % row, digest_size=16).hexdigest() for row in rows]
    offsets = pa.array(np.arange(0, ROWS * LENGTH + 1, LENGTH, dtype=np.int32))
    schema = arrow_schema()
    filled = {
        "sample_id": digests, "split": "train", "grade": "A", "grade_reason": "captured",
        "seq_len": LENGTH, "prompt_len": PROMPT, "supervised_tokens": LENGTH - PROMPT,
        "spans": [spans] * ROWS, "prompt_source": "captured", "truncated": False,
        "profile": FACTS.profile, "conversation_id": digests, "file": "bench.jsonl",
        "line": list(range(rows.start + 1, rows.stop + 1)), "offset": 0, "line_hash": digests,
        "choice": 0, "codes": [[]] * ROWS,
    }  # fmt: skip
    columns = []
    for column in ALL:
        kind = schema.field(column.name).type
        if column.name == "input_ids":
            columns.append(pa.ListArray.from_arrays(offsets, pa.array(ids), type=kind))
        elif column.name == "loss_mask":
            columns.append(pa.ListArray.from_arrays(offsets, pa.array(mask), type=kind))
        else:
            value = filled.get(column.name)
            columns.append(pa.array(value if isinstance(value, list) else [value] * ROWS, kind))
    return pa.record_batch(columns, schema=schema)


def shards(folder: Path, batches: int) -> None:
    """Write the folder once; it is kept for the next run."""
    if (folder / "manifest.json").exists():
        return
    shutil.rmtree(folder, ignore_errors=True)
    with ShardWriter(folder, FACTS) as writer:
        for number in range(batches):
            writer.write(pa.table(batch(number)))
        writer.finish({"lines": batches * ROWS})


def clock(run: Callable[[], object]) -> tuple[float, float]:
    """Wall and CPU seconds, all threads."""
    start, cpu = time.perf_counter(), time.process_time()
    run()
    return time.perf_counter() - start, time.process_time() - cpu


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--tokens", type=int, default=100_000_000)
    options.add_argument("--rounds", type=int, default=3)
    options.add_argument("--smoke", action="store_true")
    args = options.parse_args()
    if args.smoke:
        args.tokens, args.rounds = 2_000_000, 1
    OUT.mkdir(exist_ok=True)
    batches = max(1, round(args.tokens / (ROWS * LENGTH)))
    tokens = batches * ROWS * LENGTH
    folder = OUT / f"vocab-shards-{batches}"
    shards(folder, batches)
    kept = [batch(number).select(COLUMNS) for number in range(8)]

    def all_batches() -> Iterator[pa.RecordBatch]:
        return (kept[number % 8] for number in range(batches))

    def in_memory() -> None:
        counts = Counts(VOCAB)
        for one in all_batches():
            counts.add(one)
        choose(counts.total, SIZE, CONTROL)

    def from_shards() -> None:
        counts = count(open_shards(folder), VOCAB)
        mapping = choose(counts.total, SIZE, CONTROL)
        assert mapping.d2t.shape == (SIZE,)
        assert counts.tokens == tokens // LENGTH * (LENGTH - PROMPT)

    def read() -> None:
        for _ in open_shards(folder).dataset().to_batches(columns=list(COLUMNS), batch_size=512):
            pass

    def least() -> None:
        for one in all_batches():
            np.bincount(one.column("input_ids").flatten().to_numpy(), minlength=VOCAB)

    def peak() -> float:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024

    quarter = OUT / f"vocab-shards-{batches // 4 or 1}"
    shards(quarter, batches // 4 or 1)
    count(open_shards(quarter), VOCAB)
    before = peak()
    from_shards()
    grown = peak() / before
    runs = {"bincount": least, "in memory": in_memory, "read": read, "from shards": from_shards}
    wall = dict.fromkeys(runs, float("inf"))
    cpu = dict(wall)
    for _ in range(args.rounds):
        for name, run in runs.items():
            seconds, busy = clock(run)
            wall[name], cpu[name] = min(wall[name], seconds), min(cpu[name], busy)
    scale = 100e6 / tokens
    print(f"{tokens / 1e6:.1f} million tokens, vocabulary {VOCAB:,}, draft vocabulary {SIZE:,}\n")
    for name in runs:
        print(f"  {name:<26}{wall[name]:8.3f} s wall {cpu[name]:8.3f} s CPU")
    print()
    rows = [
        ("count and map, CPU s for 100 M tokens", cpu["in memory"] * scale, "<=", 3.0),
        ("from shards, s for 100 M tokens", wall["from shards"] * scale, "<=", 3.0),
        ("count and map / bincount, CPU", cpu["in memory"] / cpu["bincount"], "<=", 5.0),
        ("from shards / reading them, CPU", cpu["from shards"] / cpu["read"], "<=", 2.5),
        ("peak memory, shards / a quarter of them", grown, "<=", 1.5),
    ]
    good = held(rows)
    ratios = {name: value for name, value, _, _ in rows}
    (OUT / "vocab.json").write_text(
        json.dumps({"tokens": tokens, "wall": wall, "cpu": cpu, "measured": ratios}, indent=1)
    )
    return 0 if good or args.smoke else 1


if __name__ == "__main__":
    raise SystemExit(main())
