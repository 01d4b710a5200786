"""Run every benchmark and write docs/measured.md: no figure in the docs is typed by hand.

    python benchmarks/measured.py [--smoke]

Takes about 15 minutes on 2 cores (2 GB file and all); --smoke runs small sizes and writes nothing.
"""

from __future__ import annotations

import platform
import subprocess
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from os import cpu_count
from pathlib import Path

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "measured.md"
PACKAGES = ("polars", "orjson", "tokenizers", "fastokens", "pyarrow")

RUNS: tuple[tuple[str, str, Sequence[str], Sequence[str]], ...] = (
    (
        "Grades against the captured ids",
        "The real vLLM capture of `fixtures/`, its ids taken away, rebuilt from text and compared.",
        ["oracle.py"],
        ["oracle.py"],
    ),
    (
        "Known faults planted into clean rows",
        "Recall and false positives; the table a fault is in [mutations.md](mutations.md).",
        ["mutations.py", "--rounds", "40", "--write", str(ROOT / "docs" / "mutations.md")],
        ["mutations.py", "--rounds", "1"],
    ),
    (
        "Speed",
        "Ratios in one run, the best of the rounds. `check` without and with a tokenizer.",
        ["speed.py", "--rounds", "5"],
        ["speed.py", "--smoke"],
    ),
    (
        "Memory",
        "Peak memory of `check` on a file of 2 GB, all its processes together.",
        ["memory.py"],
        ["memory.py", "--gigabytes", "0.05"],
    ),
    (
        "Memory, one process",
        "The same file with `--workers 1`.",
        ["memory.py", "--workers", "1"],
        ["memory.py", "--gigabytes", "0.05", "--workers", "1"],
    ),
    (
        "Memory, with tokenizer",
        "The same file with DeepSeek's tokenizer.",
        ["memory.py", "--tokenizer"],
        ["memory.py", "--gigabytes", "0.05", "--tokenizer"],
    ),
    (
        "Memory, with tokenizer, one process",
        "The same with `--workers 1`.",
        ["memory.py", "--tokenizer", "--workers", "1"],
        ["memory.py", "--gigabytes", "0.05", "--tokenizer", "--workers", "1"],
    ),
    (
        "Shards",
        "`convert` beside `check` with the same tokenizer, and `datasets.map` doing the same work.",
        ["convert.py", "--rounds", "3"],
        ["convert.py", "--smoke", "--records", "200"],
    ),
    (
        "Draft vocabulary",
        "Counting supervised tokens and choosing a vocabulary.",
        ["vocab.py"],
        ["vocab.py", "--smoke"],
    ),
    (
        "Capture",
        "`generate` against a server on the same cores that answers at once or after a fixed time.",
        ["capture.py"],
        ["capture.py", "--smoke"],
    ),
)


def printed(arguments: Sequence[str]) -> tuple[str, int]:
    """What a benchmark prints, and its exit code."""
    script, *options = arguments
    done = subprocess.run(
        [sys.executable, str(ROOT / "benchmarks" / script), *options],
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    )
    text = done.stdout.rstrip().replace(f"{ROOT}/", "")
    if script == "mutations.py":  # its table is a page of its own
        lines = text.split("\n")
        text = f"{lines[0]}\n{lines[-1]}"
    return text, done.returncode


def main() -> int:
    smoke = "--smoke" in sys.argv
    worst = 0
    parts = [
        "# Measured\n\nMade by `python benchmarks/measured.py`. "
        f"{datetime.now(UTC):%Y-%m-%d}, {cpu_count()} cores, {platform.machine()}, "
        f"Python {platform.python_version()}, "
        + ", ".join(f"{name} {version(name)}" for name in PACKAGES)
        + ".\n"
    ]
    for title, what, full, small in RUNS:
        text, code = printed(small if smoke else full)
        worst = max(worst, code)
        print(f"## {title}\n\n{text}\n", flush=True)
        command = "python benchmarks/" + " ".join(full).replace(f"{ROOT}/", "")
        parts.append(f"## {title}\n\n{what}\n\n    {command}\n\n```\n{text}\n```\n")
    if not smoke:
        PAGE.write_text("\n".join(parts), encoding="utf-8")
    return worst


if __name__ == "__main__":
    raise SystemExit(main())
