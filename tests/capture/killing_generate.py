"""Run by `test_capture_kills`: captures that kill themselves at a line of their own code.

python killing_generate.py DIRECTORY URL PROMPTS LIVES SEED [OPTION…]

Each life is a fork that runs `generate --resume` and sends itself SIGKILL before the n-th line of
the capture's code; nothing is flushed, nothing is cleaned up. Now and then the file loses its tail
between two lives, as after a power cut, or gets half of a row. The last life runs to its end.
Prints the lives, the kills that hit, the cuts, and the code of the last life. The parent never uses
Polars: its threads do not survive a fork.
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

import orjson

sys.path.insert(0, str(Path(__file__).parent))

from playing import arguments

WATCHED = (
    ("eagle3_data/capture/", "eagle3_data/cli/generate", "eagle3_data/writing"),
    # what touches files, so that half of the kills fall there
    ("capture/journal", "capture/manifest", "eagle3_data/writing"),
)


@cache
def watched(file: str) -> tuple[bool, ...]:
    return tuple(any(part in file for part in files) for files in WATCHED)


def life(call: list[str], which: int = 0, left: int | None = None) -> tuple[bool, list[int], int]:
    """Run the command in a fork that dies before line `left` of the files number `which`: whether
    it came to its end, the lines it executed, and its exit code.
    """
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        done = [0] * len(WATCHED)

        def count(frame: FrameType, event: str, _: Any) -> Any:
            among = watched(frame.f_code.co_filename)
            if not any(among):
                return None
            if event == "line":
                for number, inside in enumerate(among):
                    done[number] += inside
                if done[which] == left and among[which]:
                    os.kill(os.getpid(), signal.SIGKILL)
            return count

        from eagle3_data.cli.app import main as command

        sys.argv = ["eagle3-data", *call]
        code: object = 0
        sys.settrace(count)
        try:
            command()
        except SystemExit as over:
            code = over.code or 0
        sys.settrace(None)
        with os.fdopen(writing, "wb") as pipe:
            pipe.write(orjson.dumps([done, code, [*sys.modules]]))
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        said = pipe.read()
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        assert os.WTERMSIG(status) == signal.SIGKILL
        return False, [], 0
    lines, code, names = orjson.loads(said)
    for name in names:  # what one life had to import, the next ones find in memory
        if name != "eagle3_data.__main__":
            with suppress(ImportError):
                import_module(name)
    return True, lines, code


def cut(out: Path, rng: random.Random) -> bool:
    """Take some bytes from the end of the file, or half of a row more onto it."""
    if not out.exists() or not (size := out.stat().st_size):
        return False
    with out.open("r+b") as file:
        if rng.random() < 0.5:
            file.truncate(size - rng.randint(1, min(size, 3000)))
        else:
            line = out.read_bytes().split(b"\n")[0]
            file.seek(size)
            file.write(line[: rng.randint(1, len(line) - 1)])
    return True


def main(directory: Path, url: str, prompts: Path, lives: int, seed: int, *options: str) -> int:
    rng = random.Random(seed)
    out = directory / "raw_responses.jsonl"
    call = arguments(prompts, out, "--base-url", url, "--resume", "--quiet", *options)
    # a whole run of other prompts tells how many lines there are, and imports all that there is
    other = directory / "other.jsonl"
    other.write_bytes(prompts.read_bytes().replace(b'"content":"', b'"content":"Or: '))
    trial = arguments(other, directory / "trial.jsonl", "--base-url", url, "--quiet", *options)
    ended, lines, code = life(trial)
    assert ended and code == 0, code
    killed = cuts = 0
    for _ in range(lives):
        which = rng.randrange(len(WATCHED))
        killed += not life(call, which, rng.randint(1, max(lines[which] // 15, 20)))[0]
        cuts += rng.random() < 0.3 and cut(out, rng)
    ended, _, code = life(call)
    sys.stdout.write(orjson.dumps([lives, killed, cuts, code]).decode())
    return 0


if __name__ == "__main__":
    directory, url, prompts, lives, seed, *options = sys.argv[1:]
    sys.exit(main(Path(directory), url, Path(prompts), int(lives), int(seed), *options))
