"""Captures played against the double: the real command, and its file held to what was said."""

from __future__ import annotations

import os
import subprocess
import sys
import urllib.request
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

ROOT = Path(__file__).parent.parent.parent
DOUBLE = ROOT / "tests" / "capture" / "double.py"
KEY_NAME = "DOUBLE_KEY"


@dataclass(frozen=True, slots=True)
class Double:
    """A running double: its address, and the log of what it said."""

    url: str
    said: Path

    def counts(self) -> dict[str, Any]:
        return self._ask("counts")

    def plan(self, **what: object) -> None:
        """The faults from now on, by the names of the double's options."""
        self._ask("plan", orjson.dumps(what))

    def log(self) -> list[dict[str, Any]]:
        return read(self.said)

    def _ask(self, path: str, body: bytes | None = None) -> dict[str, Any]:
        address = f"{self.url.removesuffix('/v1')}/{path}"
        with urllib.request.urlopen(address, data=body, timeout=60) as response:
            answer: dict[str, Any] = orjson.loads(response.read())
        return answer


@contextmanager
def serving(directory: Path, *options: object) -> Iterator[Double]:
    """A double with its log in `directory`; it ends with the block, or with this process."""
    said = directory / f"said-{len(list(directory.glob('said-*')))}.jsonl"
    call = [sys.executable, DOUBLE, "--said", said, *options]
    with subprocess.Popen(
        list(map(str, call)), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin and process.stdout
        try:
            url = process.stdout.readline().strip()
            assert url, "the double did not start"
            yield Double(url, said)
        finally:
            process.stdin.close()


def read(path: Path) -> list[dict[str, Any]]:
    return [orjson.loads(line) for line in path.read_bytes().split(b"\n")[:-1]]


def write_prompts(path: Path, count: int, text: str = "What is {} and three?") -> Path:
    path.write_bytes(
        b"".join(
            orjson.dumps({"id": f"p{n}", "messages": [{"role": "user", "content": text.format(n)}]})
            + b"\n"
            for n in range(count)
        )
    )
    return path


def arguments(prompts: Path, out: Path, *options: object) -> list[str]:
    call = ("generate", prompts, "-o", out, "--no-probe", *options)
    return list(map(str, call))


def environment(**more: str) -> dict[str, str]:
    """Without the keys and the proxies of the machine that the tests run on."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.endswith("_API_KEY") and not name.lower().endswith("_proxy")
    }
    return kept | more


def generate(
    prompts: Path, out: Path, *options: object, **more: str
) -> subprocess.CompletedProcess[str]:
    """The command as a user calls it."""
    return subprocess.run(
        [sys.executable, "-m", "eagle3_data", *arguments(prompts, out, *options)],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env=environment(**more),
        timeout=600,
        check=False,
    )


def plain(body: dict[str, Any]) -> dict[str, Any]:
    """A body without what a stream tells in other words: its kind, and "" for no text."""
    choices = []
    for choice in body["choices"]:
        message = {name: text for name, text in choice["message"].items() if text is not None}
        if not message.get("content"):
            message.pop("content", None)
        rest = {name: value for name, value in choice.items() if value is not None}
        choices.append(rest | {"message": message})
    rest = {name: value for name, value in body.items() if value is not None}
    return rest | {"object": "chat.completion", "choices": choices}


def held(out: Path, count: int, *doubles: Double) -> list[dict[str, Any]]:
    """The rows of a finished capture, each identity once, each body as the double said it."""
    rows = read(out)
    assert out.read_bytes().endswith(b"\n")
    identities = Counter(row["identity"] for row in rows)
    assert set(identities.values()) <= {1} and len(identities) == count
    assert len({row["id"] for row in rows}) == count
    said = {
        (double.url, entry["body"]["id"]): entry
        for double in doubles
        for entry in double.log()
        if "body" in entry
    }
    for row in rows:
        response = row["response"]
        entry = said[row["base_url"], response["id"]]
        assert entry["played"] in ("sound", "slow", "doubled"), f"stored what was {entry['played']}"
        if entry["stream"]:
            assert plain(response) == plain(entry["body"])
        else:
            assert response == entry["body"]
        assert entry["key"] in response["choices"][0]["message"]["content"]
    return rows
