"""Import: rows of ids from elsewhere, sound, broken and hostile."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from bringing import GOOD, OTHER, brought, places, written
from hypothesis import given
from hypothesis import strategies as st
from making import many, table, write
from making import row as sample
from roads import REFERENCE

from eagle3_data.records.sources import InputError
from eagle3_data.shards.export import export
from eagle3_data.shards.id_rows import IdRow
from eagle3_data.shards.importing import Refusal, Refused, checked
from eagle3_data.shards.reader import open_shards
from eagle3_data.shards.schema import ShardError
from eagle3_data.shards.verify import verify


def test_a_row_becomes_a_sample_of_grade_d_that_claims_nothing_more(tmp_path) -> None:
    source = written(tmp_path / "rows.jsonl", GOOD | {"id": "r1#turn2", "source_id": "r1"})
    brought([source], tmp_path / "shards")
    (found,) = open_shards(tmp_path / "shards").lazy().collect().to_dicts()
    known = {key: value for key, value in found.items() if value not in (None, [])}
    digest = found["line_hash"]
    assert known == {
        "sample_id": found["sample_id"],
        "split": "train",
        "grade": "D",
        "grade_reason": "imported",
        **GOOD,
        "seq_len": 6,
        "prompt_len": 2,
        "supervised_tokens": 3,
        "spans": [
            {"kind": "prompt", "start": 0, "end": 2},
            {"kind": "content", "start": 2, "end": 4},
            {"kind": "prompt", "start": 4, "end": 5},
            {"kind": "content", "start": 5, "end": 6},
        ],
        "prompt_source": "none",
        "truncated": False,
        "profile": "smollm2-think",
        "conversation_id": "r1",
        "file": str(source),
        "line": 1,
        "offset": 0,
        "line_hash": digest,
        "choice": 0,
        "record_id": "r1#turn2",
    }
    facts = open_shards(tmp_path / "shards").facts
    assert (facts.template_hash, facts.vocab_size) == ("", 49156)
    assert verify(tmp_path / "shards", deep=True, tokenizer=REFERENCE).codes == []


BAD = [
    (b"{", Refusal.UNREADABLE),
    ([1], Refusal.UNREADABLE),
    ({"loss_mask": [1]}, Refusal.NO_IDS),
    ({"input_ids": [], "loss_mask": []}, Refusal.NO_IDS),
    ({"input_ids": [1.5], "loss_mask": [1]}, Refusal.NO_IDS),
    ({"input_ids": ["a"], "loss_mask": [1]}, Refusal.NO_IDS),
    ({"input_ids": [[1]], "loss_mask": [1]}, Refusal.NO_IDS),
    ({"input_ids": [[1], [1, 2]], "loss_mask": [1]}, Refusal.NO_IDS),
    ({"input_ids": [1, None], "loss_mask": [1, 1]}, Refusal.NO_IDS),
    (b'{"input_ids": [99999999999999999999999], "loss_mask": [1]}', Refusal.NO_IDS),
    ({"input_ids": "12", "loss_mask": [1]}, Refusal.NO_IDS),
    ({"input_ids": [1]}, Refusal.NO_MASK),
    ({"input_ids": [1, 2], "loss_mask": [True, 1]}, Refusal.NO_MASK),
    ({"input_ids": [1, 2], "loss_mask": [True, None]}, Refusal.NO_MASK),
    ({"input_ids": [True, False], "loss_mask": [1, 1]}, Refusal.NO_IDS),
    ({"input_ids": [1, 2], "loss_mask": [False, False]}, Refusal.NOTHING),
    (GOOD | {"loss_mask": [False, False, True, True, False, True]}, Refusal.REPEATED),
    ({"input_ids": [1, 2], "loss_mask": [1]}, Refusal.LENGTHS),
    ({"input_ids": [1, -1], "loss_mask": [0, 1]}, Refusal.RANGE),
    ({"input_ids": [1, 49156], "loss_mask": [0, 1]}, Refusal.RANGE),
    ({"input_ids": [1, 18446744073709551615], "loss_mask": [0, 1]}, Refusal.NO_IDS),
    ({"input_ids": [1, 2], "loss_mask": [0, 2]}, Refusal.MASK),
    ({"input_ids": [1, 2], "loss_mask": [-1, 1]}, Refusal.MASK),
    ({"input_ids": [1, 2], "loss_mask": [0, 0]}, Refusal.NOTHING),
    (GOOD, Refusal.REPEATED),
]


@pytest.mark.parametrize(("bad", "why"), BAD)
def test_a_row_that_is_no_sample_is_refused_with_its_place(tmp_path, bad, why) -> None:
    source = written(tmp_path / "rows.jsonl", GOOD, b"", bad, GOOD | {"input_ids": [9] * 6})
    found = brought([source], tmp_path / "shards")
    assert (found.rows, found.kept, found.refused) == (3, 2, {why.value: 1})
    assert [(file, line, reason) for file, line, reason, _ in found.examples] == [
        (str(source), 3, why.value)
    ]
    ledger = found.manifest.ledger
    assert ledger["lines"] == ledger["kept"] + ledger["quarantined"] + ledger["unreadable"] == 3
    assert ledger["unreadable"] == (why is Refusal.UNREADABLE)
    assert verify(tmp_path / "shards").codes == []


@pytest.mark.parametrize("kind", ["parquet", "jsonl"])
def test_a_mask_of_booleans_is_one_of_0_and_1(tmp_path, kind) -> None:
    rows = [{"input_ids": [5, 6, 7], "loss_mask": [False, True, True]}]
    if kind == "parquet":
        source = tmp_path / "rows.parquet"
        pq.write_table(pa.Table.from_pylist(rows), source)
    else:
        source = written(tmp_path / "rows.jsonl", *rows)
    assert brought([source], tmp_path / "shards").kept == 1
    (sample,) = open_shards(tmp_path / "shards")
    assert (sample.input_ids.tolist(), sample.loss_mask.tolist()) == ([5, 6, 7], [0, 1, 1])
    assert sample.loss_mask.dtype == np.uint8
    assert verify(tmp_path / "shards").codes == []


def test_booleans_among_integers_are_refused_with_the_step(tmp_path) -> None:
    mixed = {"input_ids": [1, 2], "loss_mask": [True, 0]}
    found = brought([written(tmp_path / "rows.jsonl", GOOD, mixed)], tmp_path / "shards")
    assert [(line, reason, detail) for _, line, reason, detail in found.examples] == [
        (
            2,
            "loss_mask is no list of integers or of booleans",
            "booleans among other values: cast them to 0 and 1",
        )
    ]


def test_no_conversation_is_brought_into_two_splits(tmp_path) -> None:
    rows = [
        OTHER[0] | {"source_id": "talk", "split": "train"},
        OTHER[1] | {"source_id": "talk", "split": "val"},
        OTHER[2] | {"source_id": "other", "split": "val"},
        OTHER[3] | {"source_id": "talk"},  # train, as nothing says another
    ]
    found = brought([written(tmp_path / "rows.jsonl", *rows)], tmp_path / "shards")
    assert [place[:2] for place in places(tmp_path / "shards")] == [
        ("train", "talk"), ("val", "other"), ("train", "talk")
    ]  # fmt: skip
    assert found.refused == {
        "its conversation (source_id) has earlier rows in another split: give all rows of a"
        " conversation one split, and ids that are counted anew in each file another name in"
        " each": 1
    }
    assert [(line, detail) for _, line, _, detail in found.examples] == [
        (2, "'talk': 'train', 'val'")
    ]
    assert found.manifest.ledger["quarantined"] == 1
    assert verify(tmp_path / "shards").codes == []


def test_counts_are_exact_and_examples_capped(tmp_path) -> None:
    source = written(tmp_path / "rows.jsonl", GOOD, *[{"input_ids": []}] * 40)
    found = brought([source], tmp_path / "shards")
    assert (found.refused, len(found.examples)) == ({Refusal.NO_IDS.value: 40}, 5)


def test_nothing_to_keep_is_an_error_and_no_result(tmp_path) -> None:
    source = written(tmp_path / "rows.jsonl", {"input_ids": []})
    with pytest.raises(ShardError, match="the only row can not become a sample: input_"):
        brought([source], tmp_path / "shards")
    with pytest.raises(ShardError, match="did not finish"):
        open_shards(tmp_path / "shards")


@pytest.fixture(scope="module")
def rows() -> pa.Table:
    """Sound rows, all distinct."""
    return many(60)


@pytest.mark.parametrize("form", ["specforge", "speculators", "parquet", "parquet folder", "gz"])
def test_ids_and_mask_come_back_from_every_format(tmp_path, rows, form) -> None:
    import gzip

    write(tmp_path / "shards", rows)
    match form:
        case "specforge" | "speculators":
            export(tmp_path / "shards", form, tmp_path / "out")
            source = tmp_path / "out"
            source = source / "tokenised.jsonl" if form == "specforge" else source
        case "gz":
            export(tmp_path / "shards", "specforge", tmp_path / "out")
            source = tmp_path / "rows.jsonl.gz"
            source.write_bytes(gzip.compress((tmp_path / "out" / "tokenised.jsonl").read_bytes()))
        case _:
            (tmp_path / "foreign").mkdir()
            source = tmp_path / "foreign" / "rows.parquet"
            pq.write_table(rows.select(["loss_mask", "input_ids", "content"]), source)
            source = source.parent if form == "parquet folder" else source
    found = brought([source], tmp_path / "back")
    assert (found.rows, found.kept) == (60, 60)
    samples = [(s.input_ids.tolist(), s.loss_mask.tolist()) for s in open_shards(tmp_path / "back")]
    wanted = zip(rows["input_ids"].to_pylist(), rows["loss_mask"].to_pylist(), strict=True)
    assert samples == list(wanted)
    assert verify(tmp_path / "back").codes == []


def test_the_same_import_again_changes_nothing(tmp_path) -> None:
    source = written(tmp_path / "rows.jsonl", GOOD)
    brought([source], tmp_path / "shards")
    before = {p.name: p.read_bytes() for p in (tmp_path / "shards").iterdir()}
    brought([source], tmp_path / "shards")
    assert {p.name: p.read_bytes() for p in (tmp_path / "shards").iterdir()} == before


@given(
    st.lists(st.tuples(st.integers(0, 49155), st.booleans()), min_size=1, max_size=40).filter(
        lambda pairs: any(on for _, on in pairs)
    )
)
def test_any_sound_row_is_taken_as_it_is(pairs) -> None:
    ids, mask = [token for token, _ in pairs], [int(on) for _, on in pairs]
    for kind in (list, np.array):
        got = checked(IdRow(1, 0, kind(ids), kind(mask)), 49156)
        assert (got[0].tolist(), got[1].tolist()) == (ids, mask)
        assert (got[0].dtype, got[1].dtype) == (np.int32, np.uint8)
    with pytest.raises(Refused, match=Refusal.RANGE.value):
        checked(IdRow(1, 0, ids, mask), max(ids))


def saved(tmp_path: Path, *names: object) -> Path:
    """A folder whose state lists these files."""
    folder = tmp_path / "saved"
    folder.mkdir()
    state = {"_data_files": [{"filename": name} for name in names]}
    (folder / "state.json").write_bytes(orjson.dumps(state))
    return folder


@pytest.mark.parametrize("name", ["../shards/data.arrow", "/etc/hostname", "", 7])
def test_a_saved_data_set_can_not_point_outside_its_folder(tmp_path, name) -> None:
    with pytest.raises(ShardError, match="outside its folder"):
        brought([saved(tmp_path, name)], tmp_path / "out")


def test_folders_and_files_that_are_something_else(tmp_path) -> None:
    folder = saved(tmp_path, "gone.arrow")
    with pytest.raises(ShardError, match="is missing"):
        brought([folder], tmp_path / "out1")
    (folder / "gone.arrow").write_bytes(b"no arrow")
    with pytest.raises(ShardError, match=r"gone.arrow can not be read"):
        brought([folder], tmp_path / "out2")
    (folder / "state.json").write_bytes(b"[]")
    with pytest.raises(ShardError, match="not the state of a saved data set"):
        brought([folder], tmp_path / "out3")
    (folder / "dataset_dict.json").write_bytes(b"{}")
    with pytest.raises(ShardError, match="name the folder of one of them"):
        brought([folder], tmp_path / "out4")
    write(tmp_path / "shards", table([sample(0)]))
    with pytest.raises(ShardError, match="they are shards"):
        brought([tmp_path / "shards"], tmp_path / "out5")
    pq.write_table(pa.table({"text": ["x"]}), tmp_path / "text.parquet")
    with pytest.raises(ShardError, match="no column input_ids"):
        brought([tmp_path / "text.parquet"], tmp_path / "out6")
    with pytest.raises(ShardError, match="is not a file"):
        brought([tmp_path / "none.parquet"], tmp_path / "out7")
    with pytest.raises(InputError):
        brought([tmp_path / "none.jsonl"], tmp_path / "out8")
    (tmp_path / "page.jsonl").write_text("<!DOCTYPE html><html></html>\n")
    with pytest.raises(ShardError):
        brought([tmp_path / "page.jsonl"], tmp_path / "out9")


TOLD = [
    {"id": "r1#turn1", "source_id": "r1", "split": "val"},
    {"id": "r1#turn2", "source_id": "r1", "split": "val"},
    {"id": "r2", "source_id": 7, "split": None},
    {"id": "r3", "source_id": None, "split": ""},
]


@pytest.mark.parametrize("kind", ["parquet", "jsonl", "saved"])
def test_rows_say_their_conversation_and_split_in_every_format(tmp_path, kind) -> None:
    rows = [ids | told for ids, told in zip(OTHER, TOLD, strict=True)]
    texts = [row | {"source_id": row["source_id"] and str(row["source_id"])} for row in rows]
    match kind:
        case "parquet":
            source = tmp_path / "rows.parquet"
            pq.write_table(pa.Table.from_pylist(texts), source)
        case "jsonl":
            source = written(tmp_path / "rows.jsonl", *rows)
        case _:
            source = saved(tmp_path, "data.arrow")
            _write_arrow(source / "data.arrow", texts)
    found = brought([source], tmp_path / "shards")
    *named, (split, own, record) = places(tmp_path / "shards")
    assert named == [("val", "r1", "r1#turn1"), ("val", "r1", "r1#turn2"), ("train", "7", "r2")]
    assert (split, len(own), record) == ("train", 32, "r3")  # the digest of ids and mask
    assert found.notes == ("splits as rows and files name them: 'val' 2, 'train' 2 (samples)",)
    assert verify(tmp_path / "shards").codes == []


def _write_arrow(path: Path, rows: list[dict]) -> None:
    made = pa.Table.from_pylist(rows)
    with pa.ipc.new_stream(path, made.schema) as stream:
        stream.write_table(made)


@pytest.mark.parametrize(
    ("name", "split"),
    [
        ("validation-00000-of-00002.parquet", "validation"),
        ("test-00001-of-00002-0123456789abcdef.parquet", "test"),
        ("dev.parquet", "dev"),
        ("train.parquet", "train"),
        ("data-00000-of-00001.parquet", "train"),
        ("test_of_rows.parquet", "train"),
        ("val.jsonl", "val"),
        ("mine.val.jsonl", "train"),
    ],
)
def test_a_file_named_after_a_split_gives_it_to_rows_that_say_none(tmp_path, name, split) -> None:
    source = tmp_path / name
    if source.suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(OTHER[:1]), source)
    else:
        written(source, OTHER[0])
    found = brought([source], tmp_path / "shards")
    assert [place[0] for place in places(tmp_path / "shards")] == [split]
    note = (f"splits as rows and files name them: '{split}' 1 (samples)",)
    assert found.notes == (() if split == "train" else note)


def test_what_a_row_says_of_its_split_goes_before_the_name_of_its_file(tmp_path) -> None:
    rows = [OTHER[0] | {"split": "held-out"}, OTHER[1] | {"split": None}]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "val.parquet")
    brought([tmp_path / "val.parquet"], tmp_path / "shards")
    assert [place[0] for place in places(tmp_path / "shards")] == ["held-out", "val"]


@pytest.mark.parametrize(
    ("told", "split"),
    [("validation", "validation"), ("test[:10%]", "test"), ("train+test", "train"), (7, "train")],
)
def test_a_saved_data_set_says_its_split(tmp_path, told, split) -> None:
    source = saved(tmp_path, "data.arrow")
    state = orjson.loads((source / "state.json").read_bytes())
    (source / "state.json").write_bytes(orjson.dumps(state | {"_split": told}))
    _write_arrow(source / "data.arrow", [OTHER[0], OTHER[1]])
    brought([source], tmp_path / "shards")
    assert [place[0] for place in places(tmp_path / "shards")] == [split, split]


def test_many_splits_are_told_in_one_line(tmp_path) -> None:
    rows = [GOOD | {"input_ids": [n, 6, 7, 2, 8, 2], "split": f"s{n}"} for n in range(8)]
    found = brought([written(tmp_path / "rows.jsonl", *rows)], tmp_path / "shards")
    assert found.notes == (
        "splits as rows and files name them: 's0' 1, 's1' 1, 's2' 1, 's3' 1, 's4' 1, and 3 more"
        " (samples)",
    )


def test_a_column_that_stands_twice_is_refused(tmp_path) -> None:
    columns = [pa.array([GOOD["input_ids"]]), pa.array([GOOD["loss_mask"]])]
    twice = pa.Table.from_arrays(
        [*columns, pa.array(["a"]), pa.array(["b"])], names=[*GOOD, "id", "id"]
    )
    pq.write_table(twice, tmp_path / "rows.parquet")
    with pytest.raises(
        ShardError, match=r"rows.parquet has several columns id: write it with one of them$"
    ):
        brought([tmp_path / "rows.parquet"], tmp_path / "shards")
