"""Run by `test_shard_faults`: a writer that kills itself at a line of its own code, again and
again.

python killing.py DIRECTORY COUNT SEED

Each life is a fork that sends itself SIGKILL before the n-th line of the shards room (and of
`writing.py`); nothing is flushed, nothing is cleaned up. Prints one line a directory and ends with
1 at the first result that differs.
"""

from __future__ import annotations

import os
import random
import signal
import sys
from pathlib import Path
from types import FrameType
from typing import Any

from making import FACTS, SMALL, contents, many, write

from eagle3_data.shards.manifest import MANIFEST
from eagle3_data.shards.reader import open_shards
from eagle3_data.shards.schema import ShardError
from eagle3_data.shards.writer import ShardWriter

ROWS = many(40)
WATCHED = ("eagle3_data/shards/", "eagle3_data/writing.py")


def life(directory: Path, lines: int) -> bool:
    """Write `directory` in a process that dies before line number `lines`; whether it came to the
    end.
    """
    child = os.fork()
    if child == 0:
        left = lines

        def count(frame: FrameType, event: str, _: Any) -> Any:
            nonlocal left
            if not any(part in frame.f_code.co_filename for part in WATCHED):
                return None
            if event == "line":
                left -= 1
                if left == 0:
                    os.kill(os.getpid(), signal.SIGKILL)
            return count

        sys.settrace(count)
        write(directory, ROWS, step=9)
        sys.settrace(None)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        assert os.WTERMSIG(status) == signal.SIGKILL
        return False
    assert os.WEXITSTATUS(status) == 0, "the writer failed"
    return True


def lines_of(directory: Path) -> int:
    """Lines that an undisturbed run executes, by halving."""
    low, high = 1, 1 << 17
    while low < high:
        middle = (low + high) // 2
        if life(directory / str(middle), middle):
            high = middle
        else:
            low = middle + 1
    return low


def main(directory: Path, count: int, seed: int) -> int:
    rng = random.Random(seed)
    write(directory / "whole", ROWS)
    whole = contents(directory / "whole")
    lines = lines_of(directory / "measure")
    finished = []
    for number in range(count):
        where = directory / f"run{number}"
        points = [rng.randint(1, lines) for _ in range(rng.randint(1, 3))]
        for point in points:
            if life(where, point):
                continue
            if not (where / MANIFEST).exists():
                try:
                    open_shards(where)
                except ShardError:
                    pass
                else:
                    sys.stdout.write(f"{where}: half a result was taken for whole after {points}")
                    return 1
        with ShardWriter(where, FACTS, layout=SMALL) as writer:
            finished.append(writer.finished_rows)
            writer.write(ROWS)
            writer.finish({"lines": ROWS.num_rows})
        if contents(where) != whole:
            sys.stdout.write(f"{where}: differs after {points}")
            return 1
    sys.stdout.write(
        f"{count} runs of {lines} lines, {sum(map(bool, finished))} went on behind finished shards"
    )
    return 0 if any(finished) else 1


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])))
