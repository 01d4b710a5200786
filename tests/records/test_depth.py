"""Lines nested too deep and numbers too large cost themselves and no other line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from eagle3_data import check
from eagle3_data.records.lines import LineBatch
from eagle3_data.records.shapes import table_from

ROOT = Path(__file__).parent.parent.parent
TOKENIZER = ROOT / "fixtures" / "tokenizers" / "smollm2-think"
GOOD = (ROOT / "fixtures" / "captures" / "clean_smollm2-think.jsonl").read_bytes().split(b"\n")[0]


def nested(key: str, levels: int, opening: bytes, closing: bytes) -> bytes:
    body = opening * levels + b"1" + closing * levels
    return b'{"content":"x","prompt":"q","' + key.encode() + b'":' + body + b"}"


@pytest.mark.parametrize("key", ["id", "error", "request", "tools", "a"])
@pytest.mark.parametrize("levels", [260, 1000, 5000])
@pytest.mark.parametrize("pair", [(b'{"a":', b"}"), (b"[", b"]")], ids=["objects", "lists"])
def test_deep_nesting_costs_one_line(
    tmp_path: Path, key: str, levels: int, pair: tuple[bytes, bytes]
) -> None:
    path = tmp_path / "raw.jsonl"
    path.write_bytes(b"\n".join([GOOD, nested(key, levels, *pair), GOOD.replace(b"q00003", b"z")]))
    report = check(path, tokenizer=TOKENIZER, workers=1)
    assert report.faults == ()
    assert (report.ledger.lines, report.records["line"].to_list()) == (3, [1, 2, 3])
    assert report.records["grade"].to_list()[0] == "A"


@pytest.mark.parametrize("stack", [0, 400])
def test_the_depth_that_is_read_does_not_depend_on_the_caller(stack: int) -> None:
    def depth(left: int) -> list[str]:
        if left:
            return depth(left - 1)
        made = [nested("a", levels, b"[", b"]") for levels in (249, 250, 985)]
        return table_from(LineBatch(0, made, [1, 2, 3], [0, 0, 0]))["status"].to_list()

    assert depth(stack) == ["record", "unreadable", "unreadable"]


@pytest.mark.parametrize("count", [-(2**63), 2**63 - 1, 2**53, -1])
def test_absurd_counts_are_named(tmp_path: Path, count: int) -> None:
    row = {"id": 1, "model": "m", "prompt": "q", "content": "a"}
    row["usage"] = {"completion_tokens": count}
    path = tmp_path / "raw.jsonl"
    path.write_bytes(b"\n".join([json.dumps(row).encode(), GOOD]))
    report = check(path, tokenizer=TOKENIZER, workers=1)
    assert report.faults == ()
    assert report.ledger.lines == 2
    told = report.findings.filter(line=1, severity="error")["code"].to_list()
    assert "REC004" in told or "TOK001" in told
