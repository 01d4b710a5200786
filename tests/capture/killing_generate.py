"""Run by `test_capture_kills`: captures that kill themselves at a line of their own code.

python killing_generate.py DIRECTORY URL PROMPTS LIVES SEED [OPTION…]

Each life is a fork that runs `generate --resume` and sends itself SIGKILL before the n-th line of
the capture's code; nothing is flushed, nothing is cleaned up. Now and then a file loses its tail
between two lives, as after a power cut, or gets half of a row. The last lives run to their end.
Prints the lives, the kills that hit, the torn lines, the code of the last life. The parent never
uses Polars: its threads do not survive a fork.
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


def torn(path: Path) -> bytes:
    """What follows the last line end, unless it is a whole row."""
    tail = path.read_bytes().rpartition(b"\n")[2] if path.exists() else b""
    with suppress(orjson.JSONDecodeError):
        orjson.loads(tail)
        return b""
    return tail


def cut(path: Path, rng: random.Random) -> None:
    """Now and then: take some bytes from the end of the file, or put half of a row onto it."""
    if rng.random() < 0.7 or not path.exists() or torn(path) or not (held := path.read_bytes()):
        return
    line = held.partition(b"\n")[0]
    if rng.random() < 0.5:
        path.write_bytes(held[: -rng.randint(1, min(len(held), 3000))])
    else:
        path.write_bytes(held + line[: rng.randint(1, len(line) - 1)])


def main(directory: Path, url: str, prompts: Path, lives: int, seed: int, *options: str) -> int:
    rng = random.Random(seed)
    out = directory / "raw_responses.jsonl"
    call = arguments(prompts, out, "--base-url", url, "--resume", "--quiet", *options)
    # a whole run of other prompts tells how many lines there are, and imports all that there is
    other = directory / "other.jsonl"
    other.write_bytes(prompts.read_bytes().replace(b'"content":"', b'"content":"Or: '))
    trial = arguments(other, directory / "trial.jsonl", "--base-url", url, "--quiet", *options)
    ended, lines, code = life(trial)
    assert ended and code in (0, 1), code
    killed = 0
    tails = set()
    for _ in range(lives):
        which = rng.randrange(len(WATCHED))
        killed += not life(call, which, rng.randint(1, max(lines[which] // 15, 20)))[0]
        for path in (out, out.with_name("raw_responses.errors.jsonl")):
            cut(path, rng)
            tails |= {torn(path)} - {b""}
    for _ in range(3):  # rows that failed too often in one life are asked again in the next
        ended, _, code = life(call)
        if code == 0:
            break
    kept = b"".join(path.read_bytes() for path in directory.glob("*.torn"))
    lost = [tail for tail in tails if tail not in kept]
    assert not lost, f"{len(lost)} of {len(tails)} torn lines are lost: {lost[0][:200]!r}"
    sys.stdout.write(orjson.dumps([lives, killed, len(tails), code]).decode())
    return 0


if __name__ == "__main__":
    directory, url, prompts, lives, seed, *options = sys.argv[1:]
    sys.exit(main(Path(directory), url, Path(prompts), int(lives), int(seed), *options))
