"""Speed and memory of `generate` against the double of the tests, which answers at once or on time.

    python benchmarks/capture.py [--rows 5000] [--rounds 2] [--smoke]

Prints a table and writes benchmarks/out/capture.json. The double is a process of its own on the
same cores. Its answers hold some 600 sampled ids beside their text. `script` is what people write:
the client of openai with a semaphore, each answer dumped to a file, nothing checked, nothing to
resume. Best of the rounds. Exit 1 when a limit of the table is broken (not with --smoke, which only
proves that the benchmark runs).
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
import tempfile
import time
import urllib.request
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from benchmarks.limits import held

ROOT = Path(__file__).parent.parent
OUT = Path(__file__).parent / "out"
DOUBLE = ROOT / "tests" / "capture" / "double.py"
FLIGHT = 64
WORDS = 600
SCRIPT = """
import asyncio, json, sys
import openai

async def main(url, prompts, out):
    client = openai.AsyncOpenAI(base_url=url, api_key="none", max_retries=0)
    free = asyncio.Semaphore(64)
    with open(out, "a") as file:
        async def one(row):
            async with free:
                answer = await client.chat.completions.create(
                    model="double", messages=row["messages"], extra_body={"return_token_ids": True}
                )
            file.write(json.dumps({**row, "response": answer.model_dump()}) + "\\n")
        await asyncio.gather(*(one(json.loads(line)) for line in open(prompts)))

asyncio.run(main(*sys.argv[1:]))
"""


@dataclass(frozen=True, slots=True)
class Run:
    """What one run took. `served`: from the first request to the last answer. `own`: the time that
    answers took at the double, shared out over the lanes in flight.
    """

    rows: int
    wall: float
    cpu: float
    peak: float
    served: float
    own: float
    size: int


def prompts(directory: Path, rows: int) -> Path:
    path = directory / f"prompts-{rows}.jsonl"
    with path.open("w", encoding="utf-8") as file:
        for number in range(rows):
            message = {"role": "user", "content": f"Explain {number} in detail. " * 10}
            file.write(json.dumps({"id": f"p{number}", "messages": [message]}) + "\n")
    return path


def run(rows: int, delay: float, *options: str, flight: int = FLIGHT, script: bool = False) -> Run:
    """A capture of `rows` in a process of its own, against a fresh double."""
    with tempfile.TemporaryDirectory() as folder:
        path, out = prompts(Path(folder), rows), Path(folder) / "raw_responses.jsonl"
        call = [sys.executable, DOUBLE, "--delay", delay, "--words", WORDS]
        with subprocess.Popen(
            list(map(str, call)), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as double:
            assert double.stdin and double.stdout
            url = double.stdout.readline().strip()
            if script:
                call = ["-c", SCRIPT, url, path, out]
            else:
                call = [
                    *("-m", "eagle3_data", "generate", path, "-o", out, "--base-url", url),
                    *("--no-probe", "--concurrency", flight),
                    *("--quiet", *options),
                ]
            start = time.perf_counter()
            client = subprocess.Popen([sys.executable, *map(str, call)], cwd=ROOT)
            _, status, usage = os.wait4(client.pid, 0)
            wall = time.perf_counter() - start
            client.returncode = os.waitstatus_to_exitcode(status)
            with urllib.request.urlopen(f"{url.removesuffix('/v1')}/counts") as response:
                counts = json.load(response)
            double.stdin.close()
        assert client.returncode == 0, f"the run ended with {client.returncode}"
        with out.open("rb") as file:
            assert sum(1 for _ in file) == rows == counts["asked"]
        return Run(
            rows,
            wall,
            usage.ru_utime + usage.ru_stime,
            usage.ru_maxrss * 1024 / 1e6,
            counts["seconds"],
            counts["own"] / flight,
            out.stat().st_size,
        )


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--rows", type=int, default=5_000)
    options.add_argument("--rounds", type=int, default=2)
    options.add_argument("--smoke", action="store_true")
    args = options.parse_args()
    delay = 0.5
    if args.smoke:
        args.rows, args.rounds, delay = min(args.rows, 200), 1, 0.05
    OUT.mkdir(exist_ok=True)

    few = run(args.rows // 5, 0)
    instant = [run(args.rows, 0) for _ in range(args.rounds)]
    script = [run(args.rows, 0, script=True) for _ in range(args.rounds)]
    timed = min((run(args.rows, delay) for _ in range(args.rounds)), key=lambda r: r.served)
    wide = run(args.rows, 4 * delay, flight=4 * FLIGHT)
    stream = run(args.rows, 0, "--stream")
    fast = min(instant, key=lambda r: r.wall)
    bare = min(script, key=lambda r: r.wall)
    ideal = math.ceil(args.rows / FLIGHT) * delay

    runs = {
        f"{few.rows} rows, at once": few,
        f"{fast.rows} rows, at once": fast,
        f"{bare.rows} rows, at once, script": bare,
        f"{stream.rows} rows, at once, streamed": stream,
        f"{timed.rows} rows, {delay:g} s each": timed,
        f"{wide.rows} rows, {4 * delay:g} s, {4 * FLIGHT} in flight": wide,
    }
    print(f"{FLIGHT} in flight, {few.size / few.rows / 1000:.1f} kB a row\n")
    for name, took in runs.items():
        print(
            f"  {name:<34}{took.wall:8.2f} s wall {took.served:8.2f} s served {took.cpu:8.2f} s CPU"
            f" {took.peak:6.0f} MB peak"
        )
    print()
    rows = [
        ("added to the server's time, %", (timed.served / ideal - 1) * 100, "<=", 5.0),
        ("rows a minute, thousands", fast.rows / fast.wall * 60 / 1000, ">=", 10.0),
        (f"peak, {fast.rows} rows / {few.rows} rows", fast.peak / few.peak, "<=", 1.15),
        ("generate / script, CPU", fast.cpu / bare.cpu, "<=", 1.25),
        (f"CPU, {4 * FLIGHT} / {FLIGHT} in flight", wide.cpu / timed.cpu, "<=", 1.3),
    ]
    good = held(rows)
    (OUT / "capture.json").write_text(
        json.dumps(
            {
                "runs": {
                    name: {slot: getattr(took, slot) for slot in Run.__slots__}
                    for name, took in runs.items()
                },
                "ratios": {row[0]: row[1] for row in rows},
            },
            indent=1,
        )
    )
    return 0 if good or args.smoke else 1


if __name__ == "__main__":
    raise SystemExit(main())
