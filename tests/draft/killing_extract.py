"""Run by `test_extract_command`: extractions that end early, each in a process of its own (a fork
of one that has run torch may wait for threads that it does not have).

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
import subprocess
import sys
from pathlib import Path
from typing import Any

SHARDS, TARGET, ROOM = (Path(argument) for argument in sys.argv[1:4])


def extracted(out: Path, calls: int, largest: int) -> None:
    """One extraction; its error goes to stdout."""
    from test_extract import CHOICE
    from tiny import loaded

    from eagle3_data.draft.extract import extract
    from eagle3_data.draft.states_manifest import StatesError
    from eagle3_data.shards.reader import open_shards

    left = calls

    def progress(done: int, total: int) -> None:
        nonlocal left
        left -= 1
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    forward, shards = loaded(TARGET), open_shards(SHARDS)
    if largest:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (largest, largest))
    try:
        extract(shards, forward, out, CHOICE, progress=progress)
    except StatesError as error:
        sys.stdout.write(str(error))


def life(out: Path, *, calls: int = 0, largest: int = 0) -> dict[str, Any]:
    """One extraction in a process, and what it left."""
    arguments = [*sys.argv[:4], str(out), str(calls), str(largest)]
    run = subprocess.run([sys.executable, *arguments], stdout=subprocess.PIPE, text=True)
    assert run.returncode in (0, -signal.SIGKILL), run.returncode
    times = {path.name: path.stat().st_mtime_ns for path in sorted(out.iterdir())}
    return {"killed": run.returncode < 0, "error": run.stdout, "files": times}


def lives() -> dict[str, list[dict[str, Any]]]:
    """Every life, in order."""
    whole = life(ROOM / "whole")
    sizes = [(ROOM / "whole" / name).stat().st_size for name in whole["files"] if "states-" in name]
    return {
        "whole": [whole],
        "killed": [life(ROOM / "killed", calls=calls) for calls in (4, 3, 0)],
        "full": [
            life(ROOM / "full", largest=next(s for s in sizes if s > sizes[0]) - 1),
            life(ROOM / "full"),
        ],
    }


if __name__ == "__main__":
    if len(sys.argv) > 4:
        extracted(Path(sys.argv[4]), int(sys.argv[5]), int(sys.argv[6]))
    else:
        sys.stdout.write(json.dumps(lives()))
