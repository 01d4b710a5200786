"""Verifying what the manifest counts: every number of it against the rows, and the ledger."""

from __future__ import annotations

from typing import Any

import pytest
from bringing import OTHER, brought, written
from making import CAPTURE, TOKENIZER, many, rewrite, row, table, vouch, write

from eagle3_data import convert
from eagle3_data.shards.manifest import MANIFEST, Place, load_manifest
from eagle3_data.shards.verify import verify

LAST = Place(file="demo.jsonl", line=9, offset=800, choice=0, turn=1)


def details(directory) -> list[tuple[str, str, str]]:
    """(code, file, detail) of every finding."""
    found = verify(directory)
    assert found.exit_code == found.report().exit_code
    return [(f.code, found.paths[f.file_no].name, f.detail) for f in found.findings]


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"tokens": 5}, "tokens 5, its rows give 14"),
        ({"supervised_tokens": 3}, "supervised_tokens 3, its rows give 8"),
        ({"rows_hash": "x"}, "rows_hash x, its rows give 75a7a7507cbb76d04de3c3b038f76ee0"),
        (
            {"last": None},
            "last None, its rows give demo.jsonl:2 byte 100 choice 0 turn 1",
        ),
        (
            {"last": LAST},
            "last demo.jsonl:9 byte 800 choice 0 turn 1,"
            " its rows give demo.jsonl:2 byte 100 choice 0 turn 1",
        ),
    ],
    ids=["tokens", "supervised", "rows hash", "no last", "last"],
)
def test_a_number_of_a_shard_that_its_rows_contradict(tmp_path, changed, told) -> None:
    write(tmp_path, table([row(0), row(1)]))
    assert details(tmp_path) == []
    (shard,) = load_manifest(tmp_path).shards
    vouch(tmp_path, shards=[shard.model_copy(update=changed)])
    assert details(tmp_path) == [("SHD002", MANIFEST, f"part-00000.parquet: {told}")]


def test_the_numbers_of_a_shard_with_other_bytes_are_not_told(tmp_path) -> None:
    """The digest says it; what such rows give proves nothing against the manifest."""
    import pyarrow.parquet as pq

    write(tmp_path, many(60), ledger={"kept": 60})
    path = tmp_path / "part-00000.parquet"
    rows = pq.read_table(path)
    pq.write_table(rows.slice(1), path)
    assert [code for code, _, _ in details(tmp_path)] == ["SHD005", "SHD009"]


LEDGER = {
    "lines": 6,
    "kept": 3,
    "quarantined": 2,
    "unreadable": 1,
    "splits": {"train": 2, "val": 1, "test": 0},
    "truncated_samples": 1,
}


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"lines": 7}, ["7 lines, but 3 + 2 + 1 kept, quarantined and unreadable"]),
        ({"quarantined": 0}, ["6 lines, but 3 + 0 + 1 kept, quarantined and unreadable"]),
        ({"kept": 4, "lines": 7}, ["kept 4, the shards hold 3"]),
        ({"truncated_samples": 0}, ["truncated_samples 0, the shards hold 1"]),
        (
            {"splits": {"train": 1, "foo": 2}},
            [
                "split foo 2, the shards hold 0",
                "split train 1, the shards hold 2",
                "split val 0, the shards hold 1",
            ],
        ),
        ({"splits": 3}, ["splits 3"]),
        ({"kept": "3"}, ["6 lines, but 3 + 2 + 1 kept, quarantined and unreadable",
                         "kept 3, the shards hold 3"]),
    ],
    ids=["lines", "quarantined", "kept", "truncated", "splits", "no splits", "text"],
)  # fmt: skip
def test_a_ledger_that_the_rows_contradict(tmp_path, changed, told) -> None:
    rows = [row(0), row(1, split="val"), row(2, truncated=True)]
    write(tmp_path, table(rows), ledger=LEDGER)
    assert details(tmp_path) == []
    vouch(tmp_path, ledger=LEDGER | changed)
    assert details(tmp_path) == [("SHD002", MANIFEST, f"ledger: {text}") for text in told]


def test_lines_are_kept_not_samples(tmp_path) -> None:
    """Two choices and a turn of one line are one line of the ledger."""
    one = row(0)
    more = [
        one | {"choice": choice, "turn": turn, "sample_id": sample}
        for choice, turn, sample in (
            (1, 1, sample_id(one, 1, 1)),
            (0, 3, sample_id(one, 0, 3)),
        )
    ]
    write(tmp_path, table([one, *more]), ledger={"kept": 1})
    assert details(tmp_path) == []
    vouch(tmp_path, ledger={"kept": 3})
    assert details(tmp_path) == [("SHD002", MANIFEST, "ledger: kept 3, the shards hold 1")]


def sample_id(one: dict[str, Any], choice: int, turn: int) -> str:
    from eagle3_data.shards.rows import sample_id as made

    return made(one["line_hash"], choice, turn)


def test_a_ledger_is_not_compared_with_shards_that_were_not_all_read(tmp_path) -> None:
    write(tmp_path, many(60), ledger={"kept": 60})
    (tmp_path / "part-00001.parquet").unlink()
    assert [code for code, _, _ in details(tmp_path)] == ["SHD003"]


def test_an_empty_run_and_its_ledger(tmp_path) -> None:
    ledger = {"lines": 2, "kept": 0, "quarantined": 2, "unreadable": 0, "splits": {"train": 0}}
    write(tmp_path, many(0), ledger=ledger)
    assert details(tmp_path) == []
    vouch(tmp_path, ledger=ledger | {"lines": 3, "kept": 1})
    assert details(tmp_path) == [("SHD002", MANIFEST, "ledger: kept 1, the shards hold 0")]


def test_conversions_and_imports_count_what_they_hold(tmp_path) -> None:
    convert(
        CAPTURE, tmp_path / "a", tokenizer=TOKENIZER, split="train=0.6,val=0.4", turns="all",
        max_length=100, on_too_long="drop-tail",
    )  # fmt: skip
    ledger = load_manifest(tmp_path / "a").ledger
    assert ledger["truncated_samples"] and ledger["quarantined"]
    assert details(tmp_path / "a") == []
    brought([written(tmp_path / "rows.jsonl", *OTHER, OTHER[0], b"{")], tmp_path / "b")
    ledger = load_manifest(tmp_path / "b").ledger
    assert (ledger["lines"], ledger["kept"]) == (6, 4)
    assert details(tmp_path / "b") == []
    vouch(tmp_path / "b", ledger=ledger | {"kept": 5})
    assert details(tmp_path / "b") == [
        ("SHD002", MANIFEST, "ledger: 6 lines, but 5 + 1 + 1 kept, quarantined and unreadable"),
        ("SHD002", MANIFEST, "ledger: kept 5, the shards hold 4"),
    ]


def test_a_sample_of_another_profile(tmp_path) -> None:
    write(tmp_path, table([row(0), row(1)]))
    rewrite(tmp_path, "part-00000.parquet", table([row(0), row(1, profile="other")]))
    (finding,) = verify(tmp_path).findings
    assert (finding.code, finding.row["line"]) == ("SHD011", 2)
    assert finding.detail == "profile other, not demo, made from demo.jsonl:2"


def test_two_samples_of_one_place(tmp_path) -> None:
    """Two lines of one number: each sample has an id that fits its own digest."""
    write(tmp_path, table([row(0), row(1, line=1)]))
    found = verify(tmp_path)
    assert [(f.code, f.row["line"], f.detail) for f in found.findings] == [
        ("SHD020", 2, "made from the same answer as part-00000.parquet:1, made from demo.jsonl:1"),
        ("SHD012", 1, "line_hash: samples of one line have different ones, made from demo.jsonl:1"),
        ("SHD012", 2, "line_hash: samples of one line have different ones, made from demo.jsonl:1"),
    ]


def test_one_line_number_of_two_files_is_two_places(tmp_path) -> None:
    write(tmp_path, table([row(0), row(1, line=1, file="other.jsonl")]), ledger={"kept": 2})
    assert details(tmp_path) == []


def test_places_are_compared_across_shards(tmp_path) -> None:
    rows = [*many(60).to_pylist(), row(60, line=1, choice=0, turn=None)]
    rows[-1]["sample_id"] = sample_id(rows[-1], 0, None)
    write(tmp_path, table(rows))
    found = verify(tmp_path)
    assert found.codes == ["SHD012"]
    last = len(found.manifest.shards) - 1
    assert last > 0
    assert [f.file_no for f in found.findings] == [0, last]


@pytest.mark.parametrize("column", ["messages", "tools", "settings"])
def test_texts_that_are_no_json(tmp_path, column) -> None:
    good, bad = row(0, **{column: '{"a": [1]}'}), row(1, **{column: "{'a': 1}"})
    write(tmp_path / "good", table([good, row(1)]))
    assert details(tmp_path / "good") == []
    write(tmp_path / "bad", table([good, bad]))
    (finding,) = verify(tmp_path / "bad").findings
    assert (finding.code, finding.row["line"]) == ("SHD012", 2)
    assert finding.detail.startswith(f"{column}: no JSON (")
    assert finding.detail.endswith("), made from demo.jsonl:2")


def test_json_is_looked_for_in_samples_of_the_shard_and_in_all_when_deep(tmp_path) -> None:
    from making import FACTS
    from roads import REFERENCE

    rows = [row(i, prompt=1, sampled=2, tools="no" if i == 1 else "[]") for i in range(200)]
    facts = FACTS.model_copy(
        update={"tokenizer_hash": REFERENCE.fingerprint, "vocab_size": REFERENCE.vocab_size}
    )
    write(tmp_path, table(rows), facts=facts, layout=None)
    assert details(tmp_path) == []  # the second of 200 is not among the 64
    found = verify(tmp_path, deep=True, tokenizer=REFERENCE)
    assert [(f.row["line"], f.detail[:14]) for f in found.findings if f.code == "SHD012"] == [
        (2, "tools: no JSON")
    ]
