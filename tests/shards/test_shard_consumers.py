"""The readers that people have: Polars, pyarrow, DuckDB and `datasets`, with no plugin."""

from __future__ import annotations

import polars as pl
import pyarrow.parquet as pq
import pytest
from making import many, write

ROWS = many(60)


@pytest.fixture
def directory(tmp_path):
    write(tmp_path / "shards", ROWS)
    return tmp_path / "shards"


def test_polars_reads_the_directory(directory) -> None:
    frame = pl.read_parquet(directory / "*.parquet")
    assert frame.rows(named=True) == ROWS.to_pylist()
    assert frame.schema["input_ids"] == pl.List(pl.Int32)
    assert frame.schema["loss_mask"] == pl.List(pl.UInt8)


def test_pyarrow_reads_the_files(directory) -> None:
    files = sorted(directory.glob("*.parquet"))
    assert [row for file in files for row in pq.read_table(file).to_pylist()] == ROWS.to_pylist()
    metadata = pq.read_metadata(files[0])
    assert metadata.metadata[b"eagle3_data.schema_version"] == b"1"
    assert metadata.row_group(0).column(0).has_offset_index


def test_duckdb_reads_the_directory(directory) -> None:
    duckdb = pytest.importorskip("duckdb")
    with duckdb.connect() as connection:
        found = connection.execute(
            f"select count(*), sum(len(input_ids)), sum(list_sum(loss_mask)), min(spans[1].kind)"
            f" from '{directory}/*.parquet' where seq_len = len(loss_mask)"
        ).fetchone()
    tokens, ones = (sum(ROWS[n].to_pylist()) for n in ("seq_len", "supervised_tokens"))
    assert found == (60, tokens, ones, "prompt")


@pytest.mark.parametrize("streaming", [False, True])
def test_datasets_reads_the_directory(directory, tmp_path, streaming) -> None:
    datasets = pytest.importorskip("datasets")
    loaded = datasets.load_dataset(
        str(directory), split="train", streaming=streaming, cache_dir=str(tmp_path / "cache")
    )
    rows = list(loaded)
    assert [row["input_ids"] for row in rows] == ROWS["input_ids"].to_pylist()
    assert [row["loss_mask"] for row in rows] == ROWS["loss_mask"].to_pylist()
    assert [row["content"] for row in rows] == ROWS["content"].to_pylist()
    assert rows[0]["spans"] == ROWS["spans"].to_pylist()[0]
    assert loaded.features["input_ids"].feature.dtype == "int32"


def test_datasets_takes_one_shard_for_the_data_and_not_the_manifest(tmp_path) -> None:
    datasets = pytest.importorskip("datasets")
    write(tmp_path / "one", many(3))
    loaded = datasets.load_dataset(
        str(tmp_path / "one"), split="train", cache_dir=str(tmp_path / "cache")
    )
    assert loaded.num_rows == 3
    assert "input_ids" in loaded.column_names
