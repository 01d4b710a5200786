"""Writing: the same bytes for the same rows, going on after a stop, refusing what is not ours."""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from making import FACTS, SMALL, contents, many, row, table, write

from eagle3_data.shards.cuts import Layout, row_sizes
from eagle3_data.shards.manifest import JOURNAL, MANIFEST, Place, load_manifest
from eagle3_data.shards.schema import ShardError
from eagle3_data.shards.writer import ShardWriter


def test_a_directory_holds_shards_and_a_manifest_that_adds_up(tmp_path) -> None:
    rows = many(60)
    manifest = write(tmp_path, rows, options={"min_grade": "D"}, inputs=[{"path": "a.jsonl"}])
    names = [shard.name for shard in manifest.shards]
    assert len(names) > 3
    assert names == [f"part-{i:05d}.parquet" for i in range(len(names))]
    assert sorted(contents(tmp_path)) == [MANIFEST, *names]
    assert load_manifest(tmp_path) == manifest
    assert manifest.sound
    assert manifest.rows == 60
    assert manifest.tokens == sum(rows["seq_len"].to_pylist())
    assert manifest.supervised_tokens == sum(rows["supervised_tokens"].to_pylist())
    assert manifest.identity.options == {"min_grade": "D"}
    assert manifest.ledger == {"lines": 60}
    back = pa.concat_tables(pq.read_table(tmp_path / name) for name in names)
    assert back.to_pylist() == rows.to_pylist()


@pytest.mark.parametrize("threads", [2, 3, 64])
def test_the_bytes_do_not_depend_on_the_threads(tmp_path, threads) -> None:
    rows = many(60)
    write(tmp_path / "one", rows)
    write(tmp_path / "threads", rows, threads=threads, step=7)
    assert contents(tmp_path / "threads") == contents(tmp_path / "one")


@pytest.mark.parametrize("step", [1, 7, 59, 60])
def test_the_bytes_do_not_depend_on_the_batches(tmp_path, step) -> None:
    rows = many(60)
    write(tmp_path / "whole", rows)
    write(tmp_path / "parts", rows, step=step)
    assert contents(tmp_path / "parts") == contents(tmp_path / "whole")


def test_batches_of_several_chunks_and_offsets_give_the_same_bytes(tmp_path) -> None:
    rows = many(60)
    padded = pa.concat_tables([many(5, seed=1), rows.slice(0, 20), rows.slice(20)]).slice(5)
    write(tmp_path / "whole", rows)
    write(tmp_path / "padded", padded)
    assert contents(tmp_path / "padded") == contents(tmp_path / "whole")


def test_cuts_follow_the_sizes_of_the_rows(tmp_path) -> None:
    rows = many(60)
    manifest = write(tmp_path, rows)
    sizes = row_sizes(rows)
    start = 0
    for shard in manifest.shards:
        size = int(sizes[start : start + shard.rows].sum())
        assert size <= SMALL.shard_bytes
        start += shard.rows
        if start < len(sizes):  # one row more would not have fitted
            assert size + int(sizes[start]) > SMALL.shard_bytes
        file = pq.ParquetFile(tmp_path / shard.name)
        groups = [file.metadata.row_group(i).num_rows for i in range(file.num_row_groups)]
        assert len(groups) > 1
    assert start == 60


def test_a_row_larger_than_a_shard_has_a_shard_of_its_own(tmp_path) -> None:
    rows = table([row(0), row(1, sampled=2000), row(2, sampled=2000), row(3)])
    manifest = write(tmp_path, rows)
    assert [shard.rows for shard in manifest.shards] == [1, 1, 1, 1]


def test_more_rows_than_a_former_start_of_the_same_run_had(tmp_path) -> None:
    write(tmp_path, many(59))
    with pytest.raises(ShardError, match="more rows than the finished shards"):
        write(tmp_path, many(60))


def test_row_sizes_count_values_and_offsets() -> None:
    one, longer = (int(row_sizes(table([r]))[0]) for r in (row(0), row(0, sampled=5)))
    assert longer - one == 5  # an id of four bytes and a mask value of one
    assert int(row_sizes(table([row(0, content="text 0" + "é")]))[0]) - one == 2


def test_group_rows_cap_a_row_group(tmp_path) -> None:
    write(tmp_path, many(10), layout=Layout(group_rows=4))
    metadata = pq.read_metadata(tmp_path / "part-00000.parquet")
    assert [metadata.row_group(i).num_rows for i in range(3)] == [4, 4, 2]


def test_a_run_without_rows_has_one_empty_shard(tmp_path) -> None:
    manifest = write(tmp_path, many(0))
    assert [(s.name, s.rows, s.last) for s in manifest.shards] == [("part-00000.parquet", 0, None)]
    before = contents(tmp_path)
    write(tmp_path, many(0))
    assert contents(tmp_path) == before
    with pytest.raises(ShardError, match="more rows"):
        write(tmp_path, many(1))


def stopped(directory, rows, count: int) -> None:
    """A run that is given `count` rows and then goes away without a word."""
    writer = ShardWriter(directory, FACTS, layout=SMALL)
    writer.write(rows.slice(0, count))
    writer.close()


@pytest.mark.parametrize("count", [0, 1, 20, 45, 60])
def test_a_stopped_run_goes_on_to_the_same_bytes(tmp_path, count) -> None:
    rows = many(60)
    write(tmp_path / "whole", rows)
    stopped(tmp_path / "again", rows, count)
    assert MANIFEST not in contents(tmp_path / "again")
    write(tmp_path / "again", rows, step=11)
    assert contents(tmp_path / "again") == contents(tmp_path / "whole")


def test_finished_shards_are_not_written_again(tmp_path) -> None:
    rows = many(60)
    stopped(tmp_path, rows, 45)
    first = tmp_path / "part-00000.parquet"
    before = first.stat().st_ino
    with ShardWriter(tmp_path, FACTS, layout=SMALL) as writer:
        assert writer.finished_rows == sum(
            pq.read_metadata(path).num_rows for path in tmp_path.glob("part-*")
        )
        last = writer.finished_rows
        assert writer.resume_at == Place(
            file="demo.jsonl", line=last, offset=100 * (last - 1), choice=0, turn=1
        )
        writer.skip_finished()
        writer.write(rows.slice(last))
        writer.finish({"lines": 60})
    assert first.stat().st_ino == before
    again = tmp_path.with_name("whole")
    write(again, rows)
    assert contents(tmp_path) == contents(again)


def test_a_complete_directory_is_left_as_it_is_by_the_same_run(tmp_path) -> None:
    rows = many(60)
    write(tmp_path, rows)
    before = contents(tmp_path)
    nodes = [path.stat().st_ino for path in sorted(tmp_path.iterdir())]
    with ShardWriter(tmp_path, FACTS, layout=SMALL) as writer:
        assert writer.complete
        said = "complete already, made by the same run: compared, nothing is written"
        assert writer.notes == (f"{tmp_path}: {said}",)
        writer.write(rows)
        writer.finish({"lines": 60})
    assert contents(tmp_path) == before
    assert [path.stat().st_ino for path in sorted(tmp_path.iterdir())] == nodes


def test_a_renamed_shard_that_the_journal_does_not_know_is_written_again(tmp_path) -> None:
    rows = many(60)
    write(tmp_path / "whole", rows)
    stopped(tmp_path / "again", rows, 60)
    journal = tmp_path / "again" / JOURNAL
    lines = journal.read_bytes().splitlines(keepends=True)
    journal.write_bytes(b"".join(lines[:-1]) + lines[-1][:30])  # killed while it was written
    write(tmp_path / "again", rows)
    assert contents(tmp_path / "again") == contents(tmp_path / "whole")


def test_a_damaged_shard_is_written_again_and_said(tmp_path) -> None:
    rows = many(60)
    write(tmp_path, rows)
    before = contents(tmp_path)
    (tmp_path / "part-00001.parquet").write_bytes(b"damaged")
    with ShardWriter(tmp_path, FACTS, layout=SMALL) as writer:
        assert not writer.complete
        assert writer.notes == (
            "part-00001.parquet is missing or changed: written again, and all after it",
            f"{tmp_path}: 1 finished shard of an earlier start: not redone",
        )
        assert MANIFEST not in contents(tmp_path)
        writer.write(rows)
        writer.finish({"lines": 60})
    assert contents(tmp_path) == before


def test_temporary_files_of_a_dead_run_are_removed(tmp_path) -> None:
    (tmp_path / ".part-00000.parquet.x1.part").write_bytes(b"half")
    (tmp_path / ".manifest.json.x2.part").write_bytes(b"half")
    (tmp_path / "README.md").write_text("a card")
    write(tmp_path, many(3))
    assert sorted(contents(tmp_path)) == ["README.md", MANIFEST, "part-00000.parquet"]


def test_other_rows_than_those_of_finished_shards_are_refused(tmp_path) -> None:
    rows = many(60)
    stopped(tmp_path, rows, 45)
    with (
        ShardWriter(tmp_path, FACTS, layout=SMALL) as writer,
        pytest.raises(ShardError, match=r"part-00000\.parquet holds other rows .*--overwrite"),
    ):
        writer.write(rows.slice(1))


def test_fewer_rows_than_those_of_finished_shards_are_refused(tmp_path) -> None:
    rows = many(60)
    stopped(tmp_path, rows, 45)
    with (
        ShardWriter(tmp_path, FACTS, layout=SMALL) as writer,
        pytest.raises(ShardError, match="fewer rows"),
    ):
        writer.finish({})


def test_another_run_is_refused_with_what_differs(tmp_path) -> None:
    rows = many(60)
    write(tmp_path, rows, options={"min_grade": "D", "turns": "last"})
    before = contents(tmp_path)
    with pytest.raises(ShardError, match=r'options\.min_grade: "D" → "B"\).*--overwrite'):
        write(tmp_path, rows, options={"min_grade": "B", "turns": "last"})
    other = FACTS.model_copy(update={"tokenizer_hash": "dd"})
    with pytest.raises(ShardError, match=r'facts\.tokenizer_hash: "bb" → "dd"'):
        write(tmp_path, rows, facts=other, options={"min_grade": "D", "turns": "last"})
    other = FACTS.model_copy(update={"rules_version": "dd"})
    with pytest.raises(ShardError, match=r"another run \(other rules, severities or thresholds: "):
        write(tmp_path, rows, facts=other, options={"min_grade": "D", "turns": "last"})
    with pytest.raises(ShardError, match=r"layout\.level: 3 → 9"):
        write(
            tmp_path,
            rows,
            layout=replace(SMALL, level=9),
            options={"min_grade": "D", "turns": "last"},
        )
    assert contents(tmp_path) == before


def test_an_unfinished_run_of_other_options_is_refused(tmp_path) -> None:
    stopped(tmp_path, many(60), 45)
    before = contents(tmp_path)
    with pytest.raises(ShardError, match="another run"):
        write(tmp_path, many(60), options={"turns": "all"})
    assert contents(tmp_path) == before


def test_overwrite_replaces_another_run(tmp_path) -> None:
    write(tmp_path / "a", many(60), options={"a": 1})
    write(tmp_path / "a", many(3), overwrite=True)
    write(tmp_path / "b", many(3))
    assert contents(tmp_path / "a") == contents(tmp_path / "b")


def test_names_with_a_dot_are_let_be_unless_readers_take_them(tmp_path) -> None:
    (tmp_path / ".gitattributes").write_text("mine")
    write(tmp_path, many(3))
    assert contents(tmp_path)[".gitattributes"] == b"mine"
    (tmp_path / ".old.parquet").write_bytes(b"mine")
    with pytest.raises(ShardError, match=r"foreign files \(\.old\.parquet\)"):
        write(tmp_path, many(3))


def test_foreign_files_are_refused_and_never_touched(tmp_path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(ShardError, match=r"foreign files \(notes\.txt\)"):
        write(tmp_path, many(3))
    assert contents(tmp_path) == {"notes.txt": b"mine"}
    write(tmp_path, many(3), overwrite=True)
    assert contents(tmp_path)["notes.txt"] == b"mine"
    (tmp_path / "mine.parquet").write_bytes(b"mine")
    with pytest.raises(ShardError, match=r"foreign files \(mine\.parquet\)"):
        write(tmp_path, many(3), overwrite=True)


def test_a_manifest_of_another_kind_is_foreign(tmp_path) -> None:
    body = b'{"tool": "eagle3-data", "kind": "quarantine", "schema_version": 1}'
    (tmp_path / MANIFEST).write_bytes(body)
    with pytest.raises(ShardError, match="not the manifest of shards"):
        write(tmp_path, many(3))
    with pytest.raises(ShardError, match="foreign files"):
        write(tmp_path, many(3), overwrite=True)
    assert contents(tmp_path) == {MANIFEST: body}


def test_a_shard_that_no_run_vouches_for_is_refused(tmp_path) -> None:
    write(tmp_path, many(3))
    (tmp_path / MANIFEST).unlink()
    with pytest.raises(ShardError, match=r"part-00000\.parquet is not of this run"):
        write(tmp_path, many(3))


def test_two_writers_can_not_share_a_directory(tmp_path) -> None:
    with (
        ShardWriter(tmp_path, FACTS),
        pytest.raises(ShardError, match="being written by another run"),
    ):
        ShardWriter(tmp_path, FACTS)
    ShardWriter(tmp_path, FACTS).close()


def test_a_file_in_place_of_the_directory(tmp_path) -> None:
    path = tmp_path / "file"
    path.write_text("mine")
    with pytest.raises(ShardError, match="is a file"):
        ShardWriter(path, FACTS)


def test_an_error_in_the_middle_leaves_finished_shards_only(tmp_path) -> None:
    rows = many(60)
    with pytest.raises(ZeroDivisionError), ShardWriter(tmp_path, FACTS, layout=SMALL) as writer:
        writer.write(rows.slice(0, 45))
        raise ZeroDivisionError
    names = sorted(contents(tmp_path))
    assert names[-1] == JOURNAL
    assert all(pq.read_table(tmp_path / name).num_rows for name in names[:-1])


def test_a_run_without_a_shard_yet_does_not_hold_the_directory(tmp_path) -> None:
    with ShardWriter(tmp_path, FACTS, options={"turns": "all"}, layout=SMALL) as writer:
        writer.write(many(2))
    assert sorted(contents(tmp_path)) == [JOURNAL]
    manifest = write(tmp_path, many(60), options={"turns": "last"})
    assert manifest.identity.options == {"turns": "last"}
