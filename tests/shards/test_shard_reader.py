"""Reading: the same ids, mask and text come back, and what is no whole result is refused."""

from __future__ import annotations

import numpy as np
import orjson
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from making import FACTS, SMALL, many, rewrite, rot, row, table, write

from eagle3_data.shards.manifest import MANIFEST
from eagle3_data.shards.reader import open_shards
from eagle3_data.shards.schema import ShardError, arrow_schema


def test_samples_come_in_order_with_read_only_arrays(tmp_path) -> None:
    rows = many(60)
    write(tmp_path, rows)
    shards = open_shards(tmp_path)
    samples = list(shards)
    assert len(shards) == len(samples) == 60
    assert shards.facts == FACTS
    for sample, expected in zip(samples, rows.to_pylist(), strict=True):
        assert sample.sample_id == expected["sample_id"]
        assert sample.input_ids.dtype == np.int32
        assert sample.loss_mask.dtype == np.uint8
        assert sample.input_ids.tolist() == expected["input_ids"]
        assert sample.loss_mask.tolist() == expected["loss_mask"]
        assert (sample.prompt_len, sample.grade, sample.split) == (
            expected["prompt_len"],
            expected["grade"],
            expected["split"],
        )
    assert not samples[0].input_ids.flags.writeable


def test_lazy_and_dataset_give_every_column(tmp_path) -> None:
    rows = many(60)
    write(tmp_path, rows)
    shards = open_shards(tmp_path)
    assert shards.lazy().collect().rows(named=True) == rows.to_pylist()
    assert shards.dataset().to_table().to_pylist() == rows.to_pylist()
    assert shards.dataset().schema.metadata == arrow_schema(FACTS).metadata


MIXED = [
    row(0, grade="A", prompt=3, sampled=4),
    row(1, grade="B", prompt=3, sampled=9, split="val"),
    row(2, grade="D", prompt=3, sampled=4, profile="other"),
    row(3, grade="C", prompt=9, sampled=9, split="val"),
]


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        ({}, [0, 1, 2, 3]),
        ({"min_grade": "A"}, [0]),
        ({"min_grade": "C"}, [0, 1, 3]),
        ({"max_length": 12}, [0, 1, 2]),
        ({"min_length": 12}, [1, 3]),
        ({"profile": "demo"}, [0, 1, 3]),
        ({"max_length": np.int64(12), "min_length": 2**62}, []),
        ({"split": "val", "min_grade": "B"}, [1]),
        ({"split": "none"}, []),
    ],
    ids=str,
)
def test_filters_agree_in_every_view(tmp_path, wanted, expected) -> None:
    write(tmp_path, table(MIXED))
    shards = open_shards(tmp_path).where(**wanted)
    ids = [MIXED[i]["sample_id"] for i in expected]
    assert [sample.sample_id for sample in shards] == ids
    assert shards.lazy().collect()["sample_id"].to_list() == ids
    assert shards.dataset().to_table()["sample_id"].to_pylist() == ids
    assert len(shards) == len(ids)


def test_filters_add_up_and_leave_the_first_as_it_was(tmp_path) -> None:
    write(tmp_path, table(MIXED))
    every = open_shards(tmp_path)
    some = every.where(min_grade="C").where(split="val")
    assert [len(list(s)) for s in (every, some)] == [4, 2]
    with pytest.raises(ShardError, match="there is no grade 'F': use one of A, B, C, D, E"):
        every.where(min_grade="F")


@pytest.mark.parametrize(
    ("wanted", "told"),
    [
        ({"profile": "typo"}, "there is no profile 'typo': the shards are of demo"),
        ({"profile": ["demo"]}, "profile is one name, not ['demo']"),
        ({"split": ["train"]}, "split is one name, not ['train']"),
        ({"min_grade": 1}, "min_grade is one name, not 1"),
        ({"max_length": "200"}, "max_length is a whole number of tokens, not '200'"),
        ({"max_length": True}, "max_length is a whole number of tokens, not True"),
        ({"min_length": 2.5}, "min_length is a whole number of tokens, not 2.5"),
        ({"min_length": -1}, "min_length is a whole number of tokens, not -1"),
        ({"max_length": 2**63}, f"max_length is a whole number of tokens, not {2**63}"),
    ],
    ids=str,
)
def test_a_filter_that_can_not_be_meant_is_one_sentence(tmp_path, wanted, told) -> None:
    write(tmp_path, table(MIXED[:2]), ledger={"lines": 2, "splits": {"train": 1, "val": 1}})
    with pytest.raises(ShardError) as error:
        open_shards(tmp_path).where(**wanted)
    assert str(error.value) == told


def test_splits_are_counted_behind_the_filters(tmp_path) -> None:
    write(tmp_path, table(MIXED))
    assert open_shards(tmp_path).splits() == {"train": 2, "val": 2}
    assert open_shards(tmp_path).where(min_grade="B").splits() == {"train": 1, "val": 1}
    assert open_shards(tmp_path).where(max_length=1).splits() == {}


def test_bit_rot_is_told_with_the_file_and_the_next_step(tmp_path) -> None:
    write(tmp_path, many(60))
    rot(tmp_path / "part-00001.parquet", "input_ids")
    shards = open_shards(tmp_path)
    said = rf"part-00001\.parquet can not be read \(.*CRC checksum.*\): run `verify {tmp_path}`"
    with pytest.raises(ShardError, match=said):
        list(shards)
    with pytest.raises(ShardError, match=said):
        list(shards.batches(["input_ids"]))
    assert shards.splits() == {"train": 60}  # of a column that is whole
    with pytest.raises(ShardError, match=said):
        shards.frame(["input_ids"])
    with pytest.raises(OSError, match="CRC checksum"):
        shards.dataset().to_table(columns=["input_ids"])
    rot(tmp_path / "part-00001.parquet", "seq_len")
    with pytest.raises(ShardError, match=said):
        len(shards.where(max_length=40))


def test_a_frame_is_the_rows_in_order_and_no_more_than_the_limit(tmp_path) -> None:
    write(tmp_path, many(60))
    shards = open_shards(tmp_path)
    lazy = shards.lazy().select("seq_len", "spans", "split").collect()
    assert shards.frame(["seq_len", "spans", "split"]).equals(lazy)
    for limit in (0, 1, 25, 60, 99):
        assert shards.frame(["spans", "seq_len"], limit).equals(
            lazy.select("spans", "seq_len").head(limit)
        )
    none = shards.where(max_length=1).frame(["seq_len", "split"])
    assert none.shape == (0, 2) and none.schema == lazy.select("seq_len", "split").schema
    with pytest.raises(ShardError, match="schema v1 has no column 'nope'"):
        shards.frame(["seq_len", "nope"])


def test_a_file_in_place_of_the_folder_is_called_one(tmp_path) -> None:
    write(tmp_path, many(3))
    for name in ("part-00000.parquet", MANIFEST):
        with pytest.raises(ShardError) as error:
            open_shards(tmp_path / name)
        assert str(error.value) == f"{tmp_path / name} is a file: name its folder, {tmp_path}"


def test_no_manifest_is_no_result(tmp_path) -> None:
    write(tmp_path, many(3))
    (tmp_path / MANIFEST).unlink()
    with pytest.raises(ShardError, match="run the same `convert` command again"):
        open_shards(tmp_path)
    with pytest.raises(ShardError, match="is not a directory"):
        open_shards(tmp_path / "none")


def test_an_edited_manifest_is_refused(tmp_path) -> None:
    write(tmp_path, many(3))
    body = orjson.loads((tmp_path / MANIFEST).read_bytes())
    (tmp_path / MANIFEST).write_bytes(orjson.dumps(body | {"rows": 4}))
    with pytest.raises(ShardError, match="was edited"):
        open_shards(tmp_path)


def test_missing_and_cut_files_are_refused(tmp_path) -> None:
    write(tmp_path, many(60))
    path = tmp_path / "part-00001.parquet"
    body = path.read_bytes()
    path.write_bytes(body[:-1])
    with pytest.raises(ShardError, match=rf"has {len(body) - 1} bytes, the manifest says"):
        open_shards(tmp_path)
    path.write_bytes(b"x" * len(body))
    with pytest.raises(ShardError, match=r"part-00001\.parquet can not be read"):
        open_shards(tmp_path)
    path.unlink()
    with pytest.raises(ShardError, match=r"part-00001\.parquet is missing"):
        open_shards(tmp_path)


def test_mixed_fingerprints_are_refused(tmp_path) -> None:
    write(tmp_path, many(3))
    rewrite(tmp_path, "part-00000.parquet", many(3), FACTS.model_copy(update={"profile": "x"}))
    with pytest.raises(ShardError, match="another profile, tokenizer or template"):
        open_shards(tmp_path)


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        (b"eagle3_data.schema_version", b"2", "schema version 2, this release reads version 1"),
        (b"eagle3_data.schema_version", None, "is no shard"),
        (b"eagle3_data.mask_convention", b"shifted", "another mask convention"),
        (b"eagle3_data.vocab_size", b"many", "damaged metadata"),
        (b"eagle3_data.tokenizer", b"\xff", "damaged metadata"),
        (b"eagle3_data.tokenizer", None, "damaged metadata"),
    ],
    ids=str,
)
def test_foreign_files_are_refused(tmp_path, key, value, message) -> None:
    write(tmp_path, many(3))
    rewrite(tmp_path, "part-00000.parquet", many(3))
    path = tmp_path / "part-00000.parquet"
    metadata = dict(arrow_schema(FACTS).metadata)
    metadata.pop(key)
    if value is not None:
        metadata[key] = value
    pq.write_table(many(3).replace_schema_metadata(metadata), path)
    size = path.stat().st_size
    from eagle3_data.shards.manifest import load_manifest

    manifest = load_manifest(tmp_path)
    shard = manifest.shards[0].model_copy(update={"bytes": size})
    sealed = manifest.model_copy(update={"shards": [shard]}).sealed()
    (tmp_path / MANIFEST).write_bytes(sealed.to_bytes())
    with pytest.raises(ShardError, match=message):
        open_shards(tmp_path)


texts = st.none() | st.text(st.characters(exclude_categories=["Cs"]), max_size=30)
samples = st.lists(
    st.builds(
        lambda prompt, sampled, reasoning, content, top: {
            "input_ids": [(top * (i + 1)) % 2**31 for i in range(prompt + sampled)],
            "loss_mask": [0] * prompt + [1] * sampled,
            "seq_len": prompt + sampled,
            "prompt_len": prompt,
            "supervised_tokens": sampled,
            "reasoning": reasoning,
            "content": content,
        },
        st.integers(0, 30),
        st.integers(1, 60),
        texts,
        texts,
        st.integers(0, 2**31 - 1),
    ),
    max_size=12,
)


@settings(max_examples=50)
@given(samples, st.integers(1, 5), st.integers(200, 4000))
def test_what_is_written_is_read(tmp_path_factory, made, step, room) -> None:
    from dataclasses import replace

    directory = tmp_path_factory.mktemp("any")
    rows = table(row(i, **one) for i, one in enumerate(made))
    layout = replace(SMALL, shard_bytes=room * 2, group_bytes=room)
    write(directory, rows, step=step, layout=layout)
    shards = open_shards(directory)
    assert shards.lazy().collect().rows(named=True) == rows.to_pylist()
    for sample, one in zip(shards, made, strict=True):
        assert sample.input_ids.tolist() == one["input_ids"]
        assert sample.loss_mask.tolist() == one["loss_mask"]
