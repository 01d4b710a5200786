"""Import of folders: read whole or refused, and the split of what was exported comes back."""

from __future__ import annotations

import orjson
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from bringing import GOOD, OTHER, brought, places, written
from making import row as sample
from making import table, write

from eagle3_data.shards.export import export
from eagle3_data.shards.reader import open_shards
from eagle3_data.shards.schema import ShardError


@pytest.mark.parametrize(
    ("names", "told"),
    [
        (["a.parquet", "b.jsonl"], r"Parquet \(a.parquet\), JSON lines \(b.jsonl\)"),
        (["a.parquet", "b.json.gz"], r"Parquet \(a.parquet\), JSON lines \(b.json.gz\)"),
        (["a.parquet", "state.json"], r"Arrow \(state.json\), Parquet \(a.parquet\)"),
        (["a.parquet", "b.arrow"], r"Arrow \(b.arrow\), Parquet \(a.parquet\)"),
        (["b.arrow", "c.jsonl"], r"Arrow \(b.arrow\), JSON lines \(c.jsonl\)"),
        (["a.PARQUET", "b.jsonl"], r"Parquet \(a.PARQUET\), JSON lines \(b.jsonl\)"),
        (["a.parquet", "b.JsonL.GZ"], r"Parquet \(a.parquet\), JSON lines \(b.JsonL.GZ\)"),
    ],
)
def test_a_folder_of_several_kinds_is_refused_not_read_in_part(tmp_path, names, told) -> None:
    folder = tmp_path / "mixed"
    folder.mkdir()
    for name in names:
        (folder / name).touch()
    with pytest.raises(ShardError, match=f"kinds of files: {told}: name the files to read"):
        brought([folder], tmp_path / "shards")


def test_what_is_said_about_a_data_set_is_no_kind_of_rows(tmp_path) -> None:
    folder = tmp_path / "rows"
    folder.mkdir()
    pq.write_table(pa.Table.from_pylist(OTHER), folder / "a.parquet")
    for name in ("dataset_infos.json", "README.md", "token_freq.pt"):
        (folder / name).write_text("{}")
    assert brought([folder], tmp_path / "shards").kept == 4
    both = [folder / "a.parquet", written(tmp_path / "more.jsonl", GOOD)]
    assert brought(both, tmp_path / "both").kept == 5


@pytest.mark.parametrize(
    ("names", "told"),
    [
        (["a.parquet", "sub/b.parquet"], r"rows in subfolders \(sub\): name the files or the"),
        (["sub/b.parquet"], r"rows in subfolders \(sub\): name the files or the folders to read"),
        (["a.jsonl", "x/y/b.ARROW", "x/c.json"], r"rows in subfolders \(x, x/y\): name the"),
        (["1/a.jsonl", "2/a.jsonl", "3/a.jsonl", "4/a.jsonl"], r"\(1, 2, 3, and 1 more\): name"),
        (["state.json", "sub/b.arrow"], r"rows in subfolders \(sub\): name the files"),
        (["x.arrow"], r"holds Arrow files \(x.arrow\) without state.json, .*: name the files"),
        (["stats.json", "sub/NOTE.md", "sub/dataset_info.json"], r"holds no files of rows \("),
    ],
)
def test_a_folder_that_can_not_be_read_whole_is_refused(tmp_path, names, told) -> None:
    for name in names:
        path = tmp_path / "folder" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    with pytest.raises(ShardError, match=told):
        brought([tmp_path / "folder"], tmp_path / "shards")


def test_what_is_said_about_rows_in_json_is_not_read_as_rows(tmp_path) -> None:
    folder = tmp_path / "rows"
    (folder / "sub").mkdir(parents=True)
    written(folder / "a.jsonl", GOOD)
    written(folder / "B.JSONL", OTHER[0])
    for name in ("stats.json", "dataset_info.json", "Dataset_Infos.json", "sub/dataset_info.json"):
        (folder / name).write_text("{}\n")
    found = brought([folder], tmp_path / "shards")
    assert (found.rows, found.kept) == (2, 2)


def test_endings_are_read_in_whichever_case_and_files_once(tmp_path) -> None:
    (tmp_path / "rows").mkdir()
    source = tmp_path / "rows" / "val.PARQUET"
    pq.write_table(pa.Table.from_pylist(OTHER), source)
    named = [source, source.parent, tmp_path / "rows" / "*.PARQUET"]
    found = brought(named, tmp_path / "shards")
    assert (found.rows, found.kept) == (4, 4)
    assert {place[0] for place in places(tmp_path / "shards")} == {"val"}
    assert brought(named[2:], tmp_path / "glob").kept == 4


@pytest.mark.parametrize(
    ("splits", "told"),
    [
        (["val", "val"], "val"),
        (["train", "train"], "train"),
        (["train", "val"], None),
        (["held-out", "held-out"], None),  # datasets would refuse to load the folder
        (["all", "all"], None),
    ],
)
def test_an_export_for_speculators_says_the_split_that_all_samples_are_of(
    tmp_path, splits, told
) -> None:
    given = [sample(number, split=split) for number, split in enumerate(splits)]
    write(tmp_path / "shards", table(given))
    export(tmp_path / "shards", "speculators", tmp_path / "out")
    assert orjson.loads((tmp_path / "out" / "state.json").read_bytes())["_split"] == told
    brought([tmp_path / "out"], tmp_path / "back")
    assert [place[0] for place in places(tmp_path / "back")] == [told or "train"] * 2


def test_one_split_of_several_comes_back_as_itself(tmp_path) -> None:
    given = [sample(number, split=split) for number, split in enumerate(("train", "val"))]
    write(tmp_path / "shards", table(given))
    val = open_shards(tmp_path / "shards").where(split="val")
    export(val, "speculators", tmp_path / "out")
    brought([tmp_path / "out"], tmp_path / "back")
    assert [place[0] for place in places(tmp_path / "back")] == ["val"]
    export(val, "specforge", tmp_path / "rows")  # its rows have no place for a split
    brought([tmp_path / "rows" / "tokenised.jsonl"], tmp_path / "untold")
    assert [place[0] for place in places(tmp_path / "untold")] == ["train"]


@pytest.mark.parametrize("change", ["no note", "note of another", "one file more"])
def test_only_the_whole_folder_of_an_export_is_read_by_its_ids_alone(tmp_path, change) -> None:
    write(tmp_path / "shards", table([sample(1), sample(2)]))
    folder = tmp_path / "out"
    export(tmp_path / "shards", "specforge", folder)
    found = brought([folder], tmp_path / "back")
    assert (found.rows, found.kept) == (2, 2)
    (folder / "conversations.jsonl").write_text('{"id": "x", "conversations": []}\n')
    if change == "no note":
        (folder / "NOTE.md").unlink()
    elif change == "note of another":
        (folder / "NOTE.md").write_text("# Rows of mine\n")
    else:
        written(folder / "more.jsonl", GOOD)
    found = brought([folder], tmp_path / "all")  # each row is read, and told where it is none
    assert found.refused == {"input_ids is no list of integers, or empty": 1}
    assert not any("conversations.jsonl" in text for text in found.notes)
