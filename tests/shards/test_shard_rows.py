"""From the road to rows: the server's own ids, stable names, no trace of the batches."""

from __future__ import annotations

import hashlib

import orjson
import polars as pl
import pyarrow as pa
import pytest
from making import CAPTURE, row, table, write
from roads import PROFILE, REFERENCE, facts, frames, tables

from eagle3_data.shards.reader import open_shards
from eagle3_data.shards.rows import line_hash, sample_id, shard_rows, with_line_hashes
from eagle3_data.shards.schema import ShardError
from eagle3_data.shards.verify import verify

BODIES = [orjson.loads(line) for line in CAPTURE.read_bytes().splitlines()]


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    path = tmp_path_factory.mktemp("capture")
    write(path, pa.concat_tables(tables(CAPTURE)), facts=facts())
    return path


def test_ids_and_mask_are_the_servers_own(directory) -> None:
    samples = list(open_shards(directory))
    assert len(samples) == len(BODIES) == 120
    for sample, body in zip(samples, BODIES, strict=True):
        response = body["response"]
        prompt = response["prompt_token_ids"]
        completion = response["choices"][0]["token_ids"]
        assert sample.grade == "A"
        assert sample.input_ids.tolist() == prompt + completion
        assert sample.loss_mask.tolist() == [0] * len(prompt) + [1] * len(completion)
        assert int(sample.loss_mask.sum()) == response["usage"]["completion_tokens"]


def test_the_text_stands_beside_the_ids(directory) -> None:
    rows = open_shards(directory).lazy().collect()
    first, message = rows.row(0, named=True), BODIES[0]["response"]["choices"][0]["message"]
    assert (first["reasoning"], first["content"]) == (message["reasoning"], message["content"])
    assert orjson.loads(first["messages"]) == BODIES[0]["request"]["messages"]
    assert (first["file"], first["line"], first["offset"]) == ("capture.jsonl", 1, 0)
    assert first["record_id"] == BODIES[0]["id"]
    assert first["prompt_tokens"] == BODIES[0]["response"]["usage"]["prompt_tokens"]
    assert first["latency_s"] == BODIES[0]["latency_s"]


def test_the_real_capture_verifies_with_every_text_compared(directory) -> None:
    found = verify(directory, deep=True, tokenizer=REFERENCE)
    assert found.codes == []
    report = found.report()
    assert report.exit_code == 0
    assert report.grades.row(0)[:2] == ("A", 120)
    assert "SHD022" in {rule.code for rule in report.rules_run}


def test_other_text_beside_the_ids_is_found(tmp_path) -> None:
    rows = pa.concat_tables(tables(CAPTURE)).to_pylist()
    rows[7]["content"], rows[9]["reasoning"] = "another answer", None
    write(tmp_path, table(rows), facts=facts())
    found = verify(tmp_path, deep=True, tokenizer=REFERENCE).frame()
    assert found["code"].to_list() == ["SHD022", "SHD022"]
    assert found["record_id"].to_list() == [rows[7]["sample_id"], rows[9]["sample_id"]]


def test_another_tokenizer_is_refused(tmp_path) -> None:
    write(tmp_path, table([row(0)]))
    with pytest.raises(ShardError, match="made with the tokenizer letters"):
        verify(tmp_path, tokenizer=REFERENCE)


def test_rows_do_not_depend_on_the_batches() -> None:
    whole = pa.concat_tables(tables(CAPTURE))
    parts = pa.concat_tables(tables(CAPTURE, records=7))
    assert parts.equals(whole)


def test_names_are_stable() -> None:
    assert line_hash(b'{"id": "q1"}') == "9051f2dc4b59bf7b5cf2ec4bcbbd26e8"
    assert sample_id("00" * 16, 0, None) == "1c85935f1c94fa260331e0049f0c879f"
    assert sample_id("00" * 16, 0, 1) == "f5cb0249d247e2e7d99e01d43c08d5da"
    assert sample_id("00" * 16, 1, 0) == "8d7ec495a76038357ec1ff0d6f5f3ba8"


def one_frame() -> pl.DataFrame:
    return next(frames(CAPTURE, records=5)).head(5)


def test_only_kept_rows_become_samples() -> None:
    verdicts = ["keep", "quarantine", "keep", "unreadable", "file"]
    frame = one_frame().with_columns(verdict=pl.Series(verdicts))
    rows = shard_rows(frame, files=["a.jsonl"], profile="p")
    assert rows["line"].to_pylist() == [1, 3]
    assert rows["file"].to_pylist() == ["a.jsonl", "a.jsonl"]
    assert rows["codes"].to_pylist() == [[], []]
    assert rows["split"].to_pylist() == ["train", "train"]
    assert rows["conversation_id"].to_pylist() == rows["line_hash"].to_pylist()


def test_columns_of_the_caller_are_taken() -> None:
    frame = one_frame().with_columns(
        split=pl.lit("val"),
        conversation_id=pl.lit("c"),
        truncated=pl.lit(True),
        codes=pl.lit(["GEN001"], dtype=pl.List(pl.String)),
    )
    rows = shard_rows(frame, files=["a.jsonl"], profile="p")
    assert rows["split"].to_pylist() == ["val"] * 5
    assert rows["conversation_id"].to_pylist() == ["c"] * 5
    assert rows["truncated"].to_pylist() == [True] * 5
    assert rows["codes"].to_pylist() == [["GEN001"]] * 5


def test_a_kept_row_without_ids_is_an_error_with_its_place() -> None:
    frame = one_frame().with_columns(
        input_ids=pl.when(pl.col("line") == 3).then(None).otherwise("input_ids")
    )
    with pytest.raises(ShardError, match=r"b\.jsonl:3: the record has no token ids"):
        shard_rows(frame, files=["b.jsonl"], profile="p")


def test_an_empty_frame_gives_an_empty_table() -> None:
    rows = shard_rows(one_frame().head(0), files=[], profile="p")
    assert rows.num_rows == 0
    assert rows.schema == table([]).schema


def test_two_choices_of_a_line_have_one_hash_and_two_ids() -> None:
    frame = pl.DataFrame({"line": [4, 4], "choice": [0, 1]}, schema_overrides={"line": pl.Int64})
    hashed = with_line_hashes(frame, [3, 4], [b"three", b"four"])
    assert hashed["line_hash"].to_list() == [line_hash(b"four")] * 2


def test_the_facts_name_profile_tokenizer_template_and_rules() -> None:
    found = facts()
    assert (found.profile, found.vocab_size, found.end_of_turn) == (PROFILE.name, 49156, (0, 2))
    template = REFERENCE.chat_template
    assert template is not None
    assert found.template_hash == hashlib.sha256(template.encode()).hexdigest()
    assert found.tokenizer_hash == REFERENCE.fingerprint
