"""The folder of a run, and its steps.

What enters: the folder, the settings, the commands. What leaves: `results/NAME.json` for each step,
with its seconds, and `logs/`. It promises that a step which has its result is not done again, that
a folder of other settings is refused, and that a command with an unexpected exit code ends the run
with what it said.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from eagle3_data.writing import drafting
from engines.serve import Engine, Running, Setup, running

ROOT = Path(__file__).parents[1]
MODEL = "smollm2"


class Failed(RuntimeError):
    """A step that did not do what it must; the message says which and where its log is."""


@dataclass(slots=True)
class Room:
    """A run. `settings`: what decides its numbers. `results`: of the steps that are done, by their
    names. Raises Failed for a folder of other settings.
    """

    out: Path
    settings: dict[str, Any] = field(default_factory=dict)
    results: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.out = self.out.absolute()
        for name in ("results", "logs"):
            (self.out / name).mkdir(parents=True, exist_ok=True)
        known = self.out / "settings.json"
        theirs = json.loads(known.read_text(encoding="utf-8")) if known.is_file() else None
        if theirs not in (None, self.settings):
            raise Failed(f"{self.out} holds a run with {theirs}: give these, or another folder")
        save(known, self.settings)
        for path in sorted((self.out / "results").glob("*.json")):
            self.results[path.stem] = json.loads(path.read_text(encoding="utf-8"))

    def step(self, name: str, do: Callable[[], dict[str, Any]], told: str) -> Any:
        """The result of `do`, with its seconds, those of attempts that were stopped included; the
        result of an earlier run when there is one.
        """
        if name in self.results:
            say(f"{name}: was done")
            return self.results[name]
        say(f"{name}: {told}")
        spent = self.out / "results" / f"{name}.seconds"
        before = float(spent.read_text()) if spent.is_file() else 0.0
        start = time.monotonic()
        try:
            found = do()
        finally:
            seconds = round(before + time.monotonic() - start, 1)
            spent.write_text(str(seconds))
        found = {**found, "seconds": seconds}
        save(self.out / "results" / f"{name}.json", found)
        spent.unlink()
        self.results[name] = found
        say(f"{name}: done in {seconds:.0f} s")
        return found

    def forget(self, name: str) -> None:
        """The next run does this step again."""
        (self.out / "results" / f"{name}.json").unlink(missing_ok=True)

    def command(
        self, name: str, arguments: Sequence[object], *, codes: Sequence[int] = (0,)
    ) -> tuple[int, str]:
        """Exit code and standard output of an eagle3-data command; what it says on the side goes to
        logs/NAME.log. Raises Failed for an exit code not in `codes`.
        """
        log = self.out / "logs" / f"{name}.log"
        line = [str(one) for one in arguments]
        say(f"  eagle3-data {' '.join(line)}".replace(f"{self.out}/", ""))
        with log.open("ab") as beside:
            run = subprocess.run(
                [sys.executable, "-m", "eagle3_data", *line],
                cwd=ROOT,
                stdout=subprocess.PIPE,
                stderr=beside,
                check=False,
            )
        text = run.stdout.decode()
        if run.returncode not in codes:
            tail = log.read_text(encoding="utf-8", errors="replace")[-2000:]
            raise Failed(f"{line[0]} ended with exit code {run.returncode} ({log}):\n{text}{tail}")
        return run.returncode, text

    def json(self, name: str, *arguments: object, codes: Sequence[int] = (0,)) -> dict[str, Any]:
        """What a command prints with --json, and its exit code."""
        code, text = self.command(name, [*arguments, "--json"], codes=codes)
        return {"exit_code": code, "said": json.loads(text)}

    @contextmanager
    def served(self, name: str, more: Sequence[str] = ()) -> Iterator[Running]:
        """A vLLM with the target; its log is logs/NAME-server.log."""
        log = self.out / "logs" / f"{name}-server.log"
        start = time.monotonic()
        with running(
            Engine.VLLM, Setup.NONE, log=log, model=MODEL, more=more, bound=True
        ) as server:
            say(f"  vLLM is ready after {time.monotonic() - start:.0f} s")
            yield server


def save(path: Path, body: dict[str, Any]) -> None:
    """A JSON file, whole or not at all."""
    with drafting(path, overwrite=True) as draft:
        draft.write(json.dumps(body, indent=1).encode() + b"\n")


def say(text: str) -> None:
    """A line for the person who waits, with the time since the start."""
    print(f"[{time.monotonic() - START:6.0f} s] {text}", flush=True)


START = time.monotonic()
