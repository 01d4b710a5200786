"""Run by `test_extract_command`: extractions that end early, each in a fork of one process.

    python killing_extract.py SHARDS TARGET ROOM

Leaves ROOM/whole (undisturbed), ROOM/killed and ROOM/full (each ended early, then run again), and
prints what was there in between as JSON. A kill is SIGKILL behind some calls of progress; a full
disk is a limit on the size of files.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import sys
from pathlib import Path
from typing import Any

from test_extract import CHOICE
from tiny import loaded

from eagle3_data.draft.extract import extract
from eagle3_data.draft.states_manifest import StatesError
from eagle3_data.shards.reader import open_shards

SHARDS, TARGET, ROOM = (Path(argument) for argument in sys.argv[1:])
FORWARD = loaded(TARGET)


def life(out: Path, *, calls: int = 0, largest: int = 0) -> dict[str, Any]:
    """One extraction in a fork, and what it left."""
    said, saying = os.pipe()
    child = os.fork()
    if child == 0:
        left = calls

        def progress(done: int, total: int) -> None:
            nonlocal left
            left -= 1
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)

        if largest:
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (largest, largest))
        try:
            extract(open_shards(SHARDS), FORWARD, out, CHOICE, progress=progress)
        except StatesError as error:
            os.write(saying, str(error).encode())
        os._exit(0)
    os.close(saying)
    _, status = os.waitpid(child, 0)
    text = b"".join(iter(lambda: os.read(said, 4096), b"")).decode()
    times = {path.name: path.stat().st_mtime_ns for path in sorted(out.iterdir())}
    return {"killed": os.WIFSIGNALED(status), "error": text, "files": times}


if __name__ == "__main__":
    whole = life(ROOM / "whole")
    sizes = [(ROOM / "whole" / name).stat().st_size for name in whole["files"] if "states-" in name]
    lives = {
        "whole": [whole],
        "killed": [life(ROOM / "killed", calls=calls) for calls in (4, 3, 0)],
        "full": [
            life(ROOM / "full", largest=next(s for s in sizes if s > sizes[0]) - 1),
            life(ROOM / "full"),
        ],
    }
    sys.stdout.write(json.dumps(lives))
