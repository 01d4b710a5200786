"""`convert`: real captures become samples, and every line is in the shards or has its reason."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from threading import Event
from typing import Any

import polars as pl
import pyarrow as pa
import pytest
from converting import (
    CAPTURES,
    LLAMA,
    SMALL,
    TOKENIZER,
    TOLD,
    VLLM,
    contents,
    converted,
    rows_of,
    write,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from eagle3_data import convert, open_shards, verify
from eagle3_data.profiles.load import load
from eagle3_data.records import lines
from eagle3_data.records.shapes import Turns, table_from
from eagle3_data.shards.cuts import Layout
from eagle3_data.shards.rows import line_hash
from eagle3_data.shards.schema import ShardError
from eagle3_data.spill import Spill
from eagle3_data.tokens.assemble import Assembler
from eagle3_data.writing import OutputError


def test_every_sample_of_the_capture_has_the_ids_of_the_server(tmp_path: Path) -> None:
    """120 rows with the ids that vLLM fed and sampled; rules only warn, so that all are kept."""
    frame, _ = converted(VLLM, tmp_path, warn=TOLD)
    rows = rows_of(VLLM)
    assert frame["grade"].to_list() == ["A"] * len(rows) == ["A"] * 120
    for row, got in zip(rows, frame.iter_rows(named=True), strict=True):
        body = row["response"]
        (choice,) = body["choices"]
        prompt, sampled = body["prompt_token_ids"], choice["token_ids"]
        assert got["input_ids"] == prompt + sampled
        assert got["loss_mask"] == [0] * len(prompt) + [1] * len(sampled)
        assert sum(got["loss_mask"]) == body["usage"]["completion_tokens"]
        assert got["supervised_tokens"] == body["usage"]["completion_tokens"]
        assert got["prompt_len"] == body["usage"]["prompt_tokens"]
        assert got["reasoning"] == choice["message"]["reasoning"]
        assert got["content"] == choice["message"]["content"]
        assert json.loads(got["messages"]) == row["request"]["messages"]
    assert verify(tmp_path, deep=True, tokenizer=TOKENIZER).sound


def test_the_lines_in_are_the_lines_in_shards_and_those_with_a_reason(tmp_path: Path) -> None:
    report, manifest = convert(VLLM, tmp_path, tokenizer=TOKENIZER)
    assert manifest is not None
    frame = open_shards(tmp_path).lazy().collect()
    left_out = report.findings.filter(pl.col("severity") == "error")["line"].drop_nulls().unique()
    assert not set(frame["line"]) & set(left_out)
    assert sorted([*frame["line"], *left_out]) == list(range(1, 121))
    assert manifest.ledger["lines"] == 120
    assert manifest.ledger["kept"] == frame.height
    assert manifest.ledger["quarantined"] == len(left_out)
    wrong = report.findings.filter(pl.col("severity") == "error")
    assert manifest.ledger["reasons"] == {
        code: wrong.filter(code=code)["line"].n_unique() for code in sorted(wrong["code"].unique())
    }
    texts = VLLM.read_bytes().splitlines()
    assert frame["line_hash"].to_list() == [line_hash(texts[n - 1]) for n in frame["line"]]


def test_groups_smaller_than_the_step_of_the_text_check_verify(tmp_path: Path) -> None:
    layout = Layout(group_rows=1)
    frame, manifest = converted([VLLM, LLAMA], tmp_path, warn=TOLD, layout=layout)
    assert len(manifest.shards) == 1 and frame.height > 2 * 64
    found = verify(tmp_path, tokenizer=TOKENIZER)
    assert found.sound and found.rows().height == frame.height


@pytest.mark.parametrize("workers", [1, 3])
@pytest.mark.parametrize("batch", [7, 50])
def test_the_bytes_do_not_depend_on_threads_or_batches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, workers: int, batch: int
) -> None:
    options: dict[str, Any] = {"warn": ["WRP", "CAP"], "layout": SMALL, "split": "a=0.5,b=0.5"}
    converted([VLLM, LLAMA], tmp_path / "usual", **options)
    small = partial(lines.read_batches, target_records=batch)
    monkeypatch.setattr(lines, "read_batches", small)
    converted([VLLM, LLAMA], tmp_path / "other", workers=workers, **options)
    usual = contents(tmp_path / "usual")
    assert len(usual) > 4
    assert contents(tmp_path / "other") == usual


def test_a_finished_directory_is_left_as_it_is(tmp_path: Path) -> None:
    converted(VLLM, tmp_path, layout=SMALL)
    before = {path.name: path.stat() for path in tmp_path.iterdir()}
    converted(VLLM, tmp_path, layout=SMALL, workers=1)
    after = {path.name: path.stat() for path in tmp_path.iterdir()}
    assert before.keys() == after.keys()
    for name in before:
        assert (before[name].st_ino, before[name].st_mtime_ns) == (
            after[name].st_ino, after[name].st_mtime_ns,
        )  # fmt: skip


def test_another_run_is_refused_and_overwrite_replaces_it(tmp_path: Path) -> None:
    converted(VLLM, tmp_path / "shards")
    with pytest.raises(ShardError, match=r"options\.min_grade"):
        convert(VLLM, tmp_path / "shards", tokenizer=TOKENIZER, min_grade="A")
    rows = rows_of(VLLM)
    other = write(tmp_path / "other.jsonl", rows[:60])
    converted(other, tmp_path / "expected")
    converted(other, tmp_path / "shards", overwrite=True)
    assert contents(tmp_path / "shards") == contents(tmp_path / "expected")


def test_an_input_of_the_same_size_that_changed_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(VLLM.read_bytes())
    converted(path, tmp_path / "shards")
    changed = VLLM.read_bytes().replace(b"return_token_ids", b"return_tokem_ids")
    path.write_bytes(changed)
    with pytest.raises(ShardError, match="changed"):
        convert(path, tmp_path / "shards", tokenizer=TOKENIZER)


def test_grades_below_the_least_are_refused_with_their_reason(tmp_path: Path) -> None:
    every, _ = converted(LLAMA, tmp_path / "d", warn=TOLD)
    counts = dict(every["grade"].value_counts().iter_rows())
    assert set(counts) == {"B", "C"}
    report, manifest = convert(LLAMA, tmp_path / "b", tokenizer=TOKENIZER, warn=TOLD, min_grade="B")
    assert manifest is not None and manifest.rows == counts["B"]
    told = report.findings.filter(code="CNV002")
    assert told.height == len(rows_of(LLAMA)) - counts["B"]
    assert all(detail.endswith("the least is B") for detail in told["detail"])
    assert manifest.ledger["reasons"] == {"CNV002": told.height}
    with pytest.raises(ShardError, match="E is contradicted"):
        convert(LLAMA, tmp_path / "e", tokenizer=TOKENIZER, min_grade="E")
    assert not (tmp_path / "e").exists()


def test_samples_that_are_too_long_are_kept_out(tmp_path: Path) -> None:
    frame, _ = converted(VLLM, tmp_path / "all", warn=TOLD)
    long = frame.filter(pl.col("seq_len") > 200)
    assert 0 < long.height < 120
    report, manifest = convert(
        VLLM, tmp_path / "short", tokenizer=TOKENIZER, warn=TOLD, max_length=200
    )
    assert manifest is not None and manifest.rows == 120 - long.height
    told = report.findings.filter(code="CNV003")
    assert told["line"].to_list() == long["line"].to_list()
    assert told["detail"][0] == f"{long['seq_len'][0]} tokens, the limit is 200"
    short = open_shards(tmp_path / "short").lazy().collect()
    assert short["seq_len"].max() <= 200  # type: ignore[operator]
    assert not short["truncated"].any()


def test_a_cut_tail_is_marked_told_and_counted(tmp_path: Path) -> None:
    frame, _ = converted(VLLM, tmp_path / "all", warn=TOLD)
    report, manifest = convert(
        VLLM, tmp_path / "cut", tokenizer=TOKENIZER, warn=TOLD, max_length=200,
        on_too_long="drop-tail",
    )  # fmt: skip
    assert manifest is not None and manifest.rows == 120
    cut = open_shards(tmp_path / "cut").lazy().collect()
    lost = (frame["seq_len"] - 200).clip(lower_bound=0)
    for before, after in zip(frame.iter_rows(named=True), cut.iter_rows(named=True), strict=True):
        assert after["input_ids"] == before["input_ids"][:200]
        assert after["loss_mask"] == before["loss_mask"][:200]
        assert after["truncated"] == (before["seq_len"] > 200) == ("CNV004" in after["codes"])
    told = report.findings.filter(code="CNV004")
    assert told["tokens"].to_list() == lost.filter(lost > 0).to_list()
    assert manifest.ledger["supervised_tokens_lost"] == lost.sum()
    assert manifest.ledger["truncated_samples"] == told.height == (lost > 0).sum()
    inside = frame.filter(
        pl.col("spans")
        .list.eval(
            (pl.element().struct["kind"] == "reasoning")
            & (pl.element().struct["start"] < 200)
            & (pl.element().struct["end"] >= 200)
        )
        .list.any()
    )
    assert 0 < inside.height < told.height
    endings = [detail.rsplit(" ", 1)[1] for detail in told["detail"]]
    assert endings.count("thought") == inside.height
    assert endings.count("answer") == told.height - inside.height
    (note,) = [note for note in report.notes if "were cut" in note]
    assert f"{inside.height} of them inside the thought" in note
    assert f"{lost.sum():,} supervised tokens are lost" in note
    assert verify(tmp_path / "cut", deep=True, tokenizer=TOKENIZER).sound


def test_a_prompt_that_fills_the_length_is_kept_out_and_not_cut(tmp_path: Path) -> None:
    report, manifest = convert(
        VLLM, tmp_path, tokenizer=TOKENIZER, warn=TOLD, max_length=30, on_too_long="drop-tail"
    )
    assert manifest is not None
    prompts = [row["response"]["usage"]["prompt_tokens"] for row in rows_of(VLLM)]
    assert manifest.rows == sum(length < 30 for length in prompts) > 0
    assert report.findings.filter(code="CNV003").height == sum(n >= 30 for n in prompts) > 0


def test_the_same_line_twice_is_one_sample_also_when_its_rule_only_warns(tmp_path: Path) -> None:
    line = (CAPTURES / "clean_smollm2-think.jsonl").read_bytes().splitlines()[0]
    path = tmp_path / "twice.jsonl"
    path.write_bytes(line + b"\n" + line + b"\n")
    report, manifest = convert(path, tmp_path / "s", tokenizer=TOKENIZER, warn=TOLD)
    assert manifest is not None and manifest.rows == 1
    assert report.findings.filter(code="CNV005")["line"].to_list() == [2]
    assert verify(tmp_path / "s").sound


def test_records_without_ids_have_a_reason_also_when_all_rules_are_off(tmp_path: Path) -> None:
    path = tmp_path / "mixed.jsonl"
    good = (CAPTURES / "clean_smollm2-think.jsonl").read_bytes().splitlines()[:3]
    path.write_bytes(b"\n".join([*good, b'{"note": "no answer"}', b"{broken", b"[]"]) + b"\n")
    report, manifest = convert(path, tmp_path / "s", tokenizer=TOKENIZER, ignore=TOLD)
    assert manifest is not None and manifest.rows == 3
    assert report.findings["code"].to_list() == ["CNV001"]
    ledger = manifest.ledger
    assert (ledger["kept"], ledger["quarantined"], ledger["unreadable"]) == (3, 1, 2)


def test_nothing_to_keep_gives_one_empty_shard_that_reads(tmp_path: Path) -> None:
    path = tmp_path / "none.jsonl"
    path.write_text("{broken\n")
    frame, manifest = converted(path, tmp_path / "s", profile="smollm2-think")
    assert frame.height == manifest.rows == 0
    assert verify(tmp_path / "s").sound


def test_an_interrupted_run_finishes_nothing_and_goes_on(tmp_path: Path) -> None:
    cancel = Event()
    cancel.set()
    report, manifest = convert(VLLM, tmp_path, tokenizer=TOKENIZER, cancel=cancel)
    assert manifest is None and report.partial
    with pytest.raises(ShardError, match="did not finish"):
        open_shards(tmp_path)
    frame, _ = converted(VLLM, tmp_path)
    assert frame.height > 0


def test_the_spill_of_a_dead_run_is_removed_and_a_foreign_one_is_not(tmp_path: Path) -> None:
    left = tmp_path / "dead" / ".spill"
    left.mkdir(parents=True)
    (left / "000000-000000000001.arrow").write_bytes(b"half a batch")
    converted(VLLM, tmp_path / "dead")
    assert not left.exists()
    foreign = tmp_path / "foreign" / ".spill"
    foreign.mkdir(parents=True)
    (foreign / "thesis.tex").write_text("x")
    with pytest.raises(OutputError, match=r"thesis\.tex"):
        convert(VLLM, tmp_path / "foreign", tokenizer=TOKENIZER)
    assert (foreign / "thesis.tex").read_text() == "x"


@pytest.mark.parametrize("held", [0, 60_000, 1 << 30])
def test_where_samples_wait_makes_no_difference(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, held: int
) -> None:
    monkeypatch.setattr("eagle3_data.spill.HELD_BYTES", held)
    defaults = {**(lines.read_batches.__kwdefaults__ or {}), "target_records": 20}
    monkeypatch.setattr(lines.read_batches, "__kwdefaults__", defaults)
    in_files = []
    tables = Spill.tables

    def seen(spill: Spill, *verdicts: pl.Series) -> Iterator[pa.Table]:
        in_files.extend(spill.folder.rglob("*.arrow"))
        return tables(spill, *verdicts)

    monkeypatch.setattr(Spill, "tables", seen)
    frame, _ = converted(VLLM, tmp_path / "s")
    # six batches of 42 to 51 KB; which of them is added first is the threads' affair
    assert len(in_files) in {0: [6], 60_000: [5], 1 << 30: [0]}[held]
    monkeypatch.undo()
    assert frame.equals(converted(VLLM, tmp_path / "again")[0])


TEXTS = st.text(max_size=60)
"""Any text, markers and control characters of other families among it only by chance."""
MARKED = st.sampled_from(["<think>", "</think>", "<|im_end|>", "\x1b[31m", "\x00", "\ufeff", "\n"])
ANSWERS = st.lists(TEXTS | MARKED, max_size=4).map("".join)


@st.composite
def records(draw: Callable[..., Any]) -> dict[str, Any]:
    """A chat-completion row of vLLM with any texts; with captured ids or without."""
    message = {"role": "assistant", "content": draw(st.none() | ANSWERS)}
    message["reasoning"] = draw(st.none() | ANSWERS)
    choice: dict[str, Any] = {"index": 0, "message": message, "finish_reason": draw(
        st.sampled_from(["stop", "length", None])
    )}  # fmt: skip
    body: dict[str, Any] = {"model": "smollm2-think", "choices": [choice]}
    if draw(st.booleans()):
        ids = st.lists(st.integers(0, 49155), min_size=1, max_size=12)
        choice["token_ids"], body["prompt_token_ids"] = draw(ids), draw(ids)
        body["usage"] = {
            "completion_tokens": len(choice["token_ids"]),
            "prompt_tokens": len(body["prompt_token_ids"]),
        }
    request = {"messages": [{"role": "user", "content": draw(ANSWERS)}]}
    return {"request": request, "response": body}


@settings(max_examples=25)
@given(made=st.lists(records(), min_size=1, max_size=6))
def test_any_records_come_back_with_their_ids_mask_and_text(
    tmp_path_factory: pytest.TempPathFactory, made: list[dict[str, Any]]
) -> None:
    folder = tmp_path_factory.mktemp("any")
    path = folder / "any.jsonl"
    path.write_bytes(b"".join(json.dumps(row).encode() + b"\n" for row in made))
    _, manifest = convert(
        path, folder / "s", tokenizer=TOKENIZER, profile="smollm2-think", warn=TOLD
    )
    assert manifest is not None
    (batch,) = lines.read_batches(lines.expand([str(path)])[0], 0)
    table = table_from(batch, turns=Turns.LAST)
    expected = table.hstack(Assembler(load("smollm2-think"), TOKENIZER).assemble(table))
    by_line = {row["line"]: row for row in expected.iter_rows(named=True)}
    got = open_shards(folder / "s").lazy().collect()
    for row in got.iter_rows(named=True):
        source, known = made[row["line"] - 1], by_line[row["line"]]
        message = source["response"]["choices"][0]["message"]
        for name in ("input_ids", "loss_mask", "prompt_len", "seq_len", "grade", "spans"):
            assert row[name] == known[name]
        assert row["reasoning"] == message["reasoning"] and row["content"] == message["content"]
        sampled = source["response"]["choices"][0].get("token_ids")
        if sampled is not None:
            assert row["input_ids"] == source["response"]["prompt_token_ids"] + sampled
            assert sum(row["loss_mask"]) == len(sampled)
    # whatever is not in the shards is refused by name: a grade E, no ids, a repeated line
    missing = set(by_line) - set(got["line"])
    seen: set[bytes] = set()
    for number in sorted(by_line):
        text = path.read_bytes().splitlines()[number - 1]
        known = by_line[number]
        bare = known["grade"] in (None, "E") or not known["supervised_tokens"]
        assert (number in missing) == (bare or text in seen)
        seen.add(text)
