"""A Ctrl-C is heard wherever it falls, also inside the waiting for it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent

AT_EVERY_LINE = """
import signal, sys
from eagle3_data.cli.choices import interruptible

def interrupted_at(step):
    seen = 0
    def trace(frame, what, _arg):
        nonlocal seen
        if frame.f_code.co_filename.endswith(("threading.py", "choices.py")) and what == "line":
            seen += 1
            if seen == step:
                signal.raise_signal(signal.SIGINT)
        return trace
    with interruptible() as cancel:
        sys.settrace(trace)
        heard = cancel.is_set() or cancel.wait(0.01)
        sys.settrace(None)
    return heard, seen >= step

step = 1
while True:
    heard, reached = interrupted_at(step)
    if not reached:
        assert not heard
        break
    assert heard, step
    step += 1
print(step)
"""


def test_ctrl_c_at_every_line_of_the_waiting_is_heard() -> None:
    """A plain threading.Event hangs here for good: its lock is held by the very thread."""
    ran = subprocess.run(
        [sys.executable, "-c", AT_EVERY_LINE], cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    assert ran.returncode == 0, ran.stderr
    assert int(ran.stdout) > 3
    assert ran.stderr.count("interrupted: ") == int(ran.stdout) - 1
