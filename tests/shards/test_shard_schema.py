"""The published schema is the one in force, and shards of v1 stay readable for ever."""

from __future__ import annotations

import orjson
import polars as pl
import pytest
from making import FACTS, ROOT, V1, polars_of, row, table

from eagle3_data.shards.contract import DTYPES, contract
from eagle3_data.shards.reader import open_shards
from eagle3_data.shards.schema import COLUMNS, arrow_schema, metadata, published, read_facts
from eagle3_data.shards.verify import verify


@pytest.mark.parametrize("name", ["shard.schema.json", "shard.pandera.json"])
def test_the_published_files_are_those_of_the_code(name) -> None:
    assert (ROOT / "schemas" / name).read_text(encoding="utf-8") == published()[name]


def test_the_export_holds_every_check() -> None:
    exported = orjson.loads(published()["shard.pandera.json"])["columns"]
    for column in COLUMNS:
        assert set(column.checks) <= set(exported[column.name])
        assert exported[column.name].get("nullable", False) == column.nullable
    assert list(contract().columns) == [column.name for column in COLUMNS]


def test_arrow_polars_and_the_column_list_agree() -> None:
    schema = arrow_schema()
    frame = polars_of(table([row()]))
    for column, field in zip(COLUMNS, schema, strict=True):
        assert (field.name, field.nullable) == (column.name, column.nullable)
        assert str(field.type).replace(" not null", "") == column.type
        assert frame.schema[column.name] == DTYPES[column.type]


def test_facts_go_through_the_metadata() -> None:
    assert read_facts(metadata(FACTS), "a file") == FACTS
    assert read_facts(arrow_schema(FACTS).metadata, "a file") == FACTS
    numbers = FACTS.model_copy(update={"profile": "7", "end_of_turn": ()})
    assert read_facts(metadata(numbers), "a file") == numbers


def test_a_shard_of_v1_is_readable_for_ever() -> None:
    shards = open_shards(V1)
    assert verify(V1).codes == []
    samples = list(shards)
    assert len(samples) == 5
    first = samples[0]
    assert first.sample_id == "c3708be38b803846e6dc689944de39c9"
    assert first.input_ids[:6].tolist() == [1, 4093, 198, 1780, 314, 216]
    assert first.loss_mask.tolist() == [0] * 28 + [1] * 106
    frame = shards.lazy().collect()
    assert frame["grade"].to_list() == ["A"] * 5
    assert frame["loss_mask"].list.sum().sum() == 621
    assert frame.select(pl.col("input_ids").list.sum().sum()).item() == 2_211_591
