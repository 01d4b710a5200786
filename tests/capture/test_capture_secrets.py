"""No key in any file, message or traceback: a canary is looked for in all that a capture leaves."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from double import Fault
from playing import KEY_NAME, ROOT, arguments, environment, generate, serving, write_prompts

CANARY = "sk-canary-5f0e8c2ab94d7716e3c05d88fa12b6c9"
PARTS = [CANARY[start : start + 12] for start in range(len(CANARY) - 11)]
KEYED = ("--api-key-env", KEY_NAME)
ROADS = pytest.mark.parametrize("road", ["--stream", "--no-stream"])


def silent(directory: Path, *texts: str) -> None:
    """Not a dozen characters of the canary in a file of `directory` or in a text."""
    named = {str(path): path.read_bytes() for path in directory.rglob("*") if path.is_file()}
    named |= {f"text {number}": text.encode() for number, text in enumerate(texts)}
    for name, content in named.items():
        for part in PARTS:
            assert part.encode() not in content, f"the key is in {name}"
    for name in named:
        assert not any(part in name for part in PARTS)


@ROADS
def test_a_server_that_repeats_the_key_in_its_errors(tmp_path: Path, road: str) -> None:
    client = tmp_path / "client"
    client.mkdir()
    prompts = write_prompts(client / "prompts.jsonl", 40)
    echoing = f"{Fault.BUSY},{Fault.BROKEN},{Fault.ERROR_BODY},{Fault.PAGE}"
    faults = ("--faults", echoing, "--share", 0.7, "--faulty-attempts", -1, "--echo")
    with serving(tmp_path, *faults) as double:
        call = ("--base-url", double.url, *KEYED, road, "--attempts", 3, "--max-failures", 200)
        out = client / "raw_responses.jsonl"
        done = generate(
            prompts, out, *call, "--verbose", **{KEY_NAME: CANARY, "OPENAI_LOG": "debug"}
        )
        assert done.returncode == 1
        # the key was sent, and came back
        assert {entry["authorization"] for entry in double.log()} == {f"Bearer {CANARY}"}
    errors = (client / "raw_responses.errors.jsonl").read_text()
    assert "You sent Bearer ***" in errors
    silent(client, done.stdout, done.stderr)


@pytest.mark.parametrize("place", ["//name:{}@", "//{}@"])
def test_a_key_in_the_address(tmp_path: Path, place: str) -> None:
    client = tmp_path / "client"
    client.mkdir()
    prompts = write_prompts(client / "prompts.jsonl", 4)
    with serving(tmp_path) as double:
        url = double.url.replace("//", place.format(CANARY))
        done = generate(prompts, client / "raw_responses.jsonl", "--base-url", url)
        silent(client, done.stdout, done.stderr)
        assert "Traceback" not in done.stderr
        query = f"{double.url}?api_key={CANARY}"
        done = generate(prompts, client / "again.jsonl", "--base-url", query)
        silent(client, done.stdout, done.stderr)
        assert "Traceback" not in done.stderr


def test_a_key_where_its_name_belongs(tmp_path: Path) -> None:
    client = tmp_path / "client"
    client.mkdir()
    prompts = write_prompts(client / "prompts.jsonl", 4)
    with serving(tmp_path) as double:
        out = client / "raw_responses.jsonl"
        done = generate(prompts, out, "--base-url", double.url, "--api-key-env", CANARY)
        assert done.returncode == 2
        assert double.counts()["asked"] == 0
    silent(client, done.stdout, done.stderr)


@pytest.mark.parametrize("form", ["--verbose", "--json"])
def test_a_probe_shows_no_key(tmp_path: Path, form: str) -> None:
    echoing = f"{Fault.BROKEN},{Fault.ERROR_BODY},{Fault.PAGE}"
    faults = ("--faults", echoing, "--share", 0.7, "--faulty-attempts", -1, "--echo")
    with serving(tmp_path, *faults) as double:
        done = subprocess.run(
            [
                *(sys.executable, "-m", "eagle3_data", "probe", "--base-url", double.url),
                *(*KEYED, form),
            ],
            capture_output=True,
            text=True,
            cwd=ROOT,
            env=environment(**{KEY_NAME: CANARY, "OPENAI_LOG": "debug"}),
            timeout=600,
            check=False,
        )
        assert f"Bearer {CANARY}" in {entry["authorization"] for entry in double.log()}
    assert done.returncode in (0, 1), done.stderr
    silent(tmp_path / "none", done.stdout, done.stderr)


BROKEN = """
import sys
import eagle3_data.capture.journal as journal
from eagle3_data.cli.app import main

def broken(self, *_):
    raise RuntimeError("a fault of our own")

journal.Journal.add = broken
sys.argv = ["eagle3-data", *sys.argv[1:]]
main()
"""


def test_a_fault_of_our_own_shows_no_key(tmp_path: Path) -> None:
    client = tmp_path / "client"
    client.mkdir()
    prompts = write_prompts(client / "prompts.jsonl", 4)
    with serving(tmp_path) as double:
        call = arguments(prompts, client / "out.jsonl", "--base-url", double.url, *KEYED)
        done = subprocess.run(
            [sys.executable, "-c", BROKEN, *call],
            capture_output=True,
            text=True,
            cwd=ROOT,
            env=environment(**{KEY_NAME: CANARY}),
            timeout=600,
            check=False,
        )
        assert double.counts()["asked"] > 0
    assert done.returncode not in (0, 1, 130)
    assert "a fault of our own" in done.stderr
    silent(client, done.stdout, done.stderr)
