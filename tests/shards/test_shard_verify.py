"""Verifying: a code for each fault of a file, and none for a sound directory."""

from __future__ import annotations

import shutil

import orjson
import pytest
from making import FACTS, contents, many, rewrite, row, table, write

from eagle3_data.audit.columns import FINDINGS_SCHEMA
from eagle3_data.shards.manifest import JOURNAL, MANIFEST
from eagle3_data.shards.rules import SHARD_RULES
from eagle3_data.shards.schema import ShardError
from eagle3_data.shards.verify import verify


def test_a_sound_directory_has_no_findings(tmp_path) -> None:
    write(tmp_path, many(60))
    found = verify(tmp_path)
    assert (found.codes, found.sound, found.rows().height) == ([], True, 60)
    report = found.report()
    assert report.exit_code == 0
    assert (report.ledger.lines, report.ledger.kept) == (60, 60)


def test_an_empty_directory_of_shards_is_sound(tmp_path) -> None:
    write(tmp_path, many(0))
    assert verify(tmp_path).codes == []
    assert verify(tmp_path).report().exit_code == 0


def file_fault(tmp_path, fault) -> list[tuple[str, str]]:
    """(code, file) of every finding after `fault` did something to a sound directory."""
    write(tmp_path, many(60))
    fault()
    found = verify(tmp_path)
    report = found.report()
    assert report.exit_code == (0 if found.sound else 1)
    assert found.frame().schema == FINDINGS_SCHEMA
    return [(f.code, found.paths[f.file_no].name) for f in found.findings]


def test_a_missing_manifest(tmp_path) -> None:
    found = file_fault(tmp_path, (tmp_path / MANIFEST).unlink)
    assert found == [("SHD001", MANIFEST)]


def test_a_manifest_that_is_no_json(tmp_path) -> None:
    found = file_fault(tmp_path, lambda: (tmp_path / MANIFEST).write_bytes(b"{"))
    assert found == [("SHD002", MANIFEST)]


@pytest.mark.parametrize(
    "edit",
    [
        lambda m: m["ledger"].update(lines=61),
        lambda m: m.update(rows=59),
        lambda m: m["identity"]["options"].update(min_grade="A"),
        lambda m: m.update(checksum="0" * 64),
        lambda m: m["shards"].pop(),
        lambda m: m.update(rows="sixty"),
        lambda m: m.update(extra=1),
    ],
    ids=["ledger", "rows", "option", "checksum", "shard", "type", "key"],
)
def test_an_edited_manifest(tmp_path, edit) -> None:
    def fault() -> None:
        body = orjson.loads((tmp_path / MANIFEST).read_bytes())
        edit(body)
        (tmp_path / MANIFEST).write_bytes(orjson.dumps(body))

    assert ("SHD002", MANIFEST) in file_fault(tmp_path, fault)


def test_a_manifest_of_a_foreign_version_is_refused(tmp_path) -> None:
    write(tmp_path, many(3))
    body = orjson.loads((tmp_path / MANIFEST).read_bytes())
    (tmp_path / MANIFEST).write_bytes(orjson.dumps(body | {"schema_version": 2}))
    with pytest.raises(ShardError, match="schema version 2, this release reads version 1"):
        verify(tmp_path)


def test_a_missing_shard(tmp_path) -> None:
    found = file_fault(tmp_path, (tmp_path / "part-00001.parquet").unlink)
    assert found == [("SHD003", "part-00001.parquet")]


def test_an_extra_file(tmp_path) -> None:
    def fault() -> None:
        first = (tmp_path / "part-00000.parquet").read_bytes()
        (tmp_path / "part-00099.parquet").write_bytes(first)

    assert file_fault(tmp_path, fault) == [("SHD004", "part-00099.parquet")]


def test_what_else_lies_there_is_named(tmp_path) -> None:
    write(tmp_path / "s", many(60))
    first = (tmp_path / "s" / "part-00000.parquet").read_bytes()
    nested = tmp_path / "s" / "old" / "deeper"
    nested.mkdir(parents=True)
    (nested / "x.parquet").write_bytes(first)
    (nested / "notes").write_text("n")
    (tmp_path / "s" / "README.md").write_text("r")
    (tmp_path / "s" / "away").symlink_to(tmp_path)
    (tmp_path / "s" / "part-00000.parquet").rename(tmp_path / "moved.parquet")
    (tmp_path / "s" / "part-00000.parquet").symlink_to(tmp_path / "moved.parquet")
    (tmp_path / "s" / "z.parquet").symlink_to(tmp_path / "none")
    found = verify(tmp_path / "s")
    told = [(f.code, found.paths[f.file_no].name, f.detail) for f in found.findings]
    assert told == [
        ("SHD024", "README.md", "not in the manifest"),
        ("SHD024", "away", "a symbolic link"),
        ("SHD024", "old", "a folder, files in it: 2"),
        ("SHD004", "x.parquet", "not in the manifest"),
        ("SHD024", "z.parquet", "a symbolic link"),
        ("SHD004", "z.parquet", "not in the manifest"),
    ]
    assert found.report().exit_code == 1
    table = found.report().rules.filter(code="SHD024")
    assert table["count"].to_list() == [4]
    assert found.report().place(table["file_no"][0], None) == str(tmp_path / "s" / "README.md")


def test_links_to_all_files_are_the_files(tmp_path) -> None:
    """The layout of a snapshot of the Hub, and of DVC."""
    write(tmp_path / "blobs", many(60))
    (tmp_path / "s").mkdir()
    for path in (tmp_path / "blobs").iterdir():
        (tmp_path / "s" / path.name).symlink_to(path)
    found = verify(tmp_path / "s")
    assert (found.codes, found.rows().height) == ([], 60)
    (tmp_path / "blobs" / "part-00001.parquet").unlink()
    broken = verify(tmp_path / "s")
    told = [(f.code, broken.paths[f.file_no].name) for f in broken.findings]
    assert told == [("SHD003", "part-00001.parquet")]


def test_a_foreign_file_is_no_error(tmp_path) -> None:
    found = file_fault(tmp_path, lambda: (tmp_path / "README.md").write_text("r"))
    assert found == [("SHD024", "README.md")]
    assert verify(tmp_path).sound


def test_hidden_entries_are_nobodys_but_the_spill_is_of_a_run(tmp_path) -> None:
    found = file_fault(tmp_path, lambda: (tmp_path / ".gitattributes").write_text("r"))
    assert found == []
    shutil.copy(tmp_path / "part-00000.parquet", tmp_path / ".old.parquet")  # a glob takes it
    assert verify(tmp_path).codes == ["SHD004"]
    (tmp_path / ".old.parquet").unlink()
    (tmp_path / ".spill" / ("0" * 32)).mkdir(parents=True)
    (tmp_path / ".spill" / ("0" * 32) / "000000-000000000001.arrow").write_bytes(b"")
    assert verify(tmp_path).codes == ["SHD023"]


@pytest.mark.parametrize("cut", [1, 100, -1])
def test_a_truncated_shard(tmp_path, cut) -> None:
    def fault() -> None:
        path = tmp_path / "part-00001.parquet"
        path.write_bytes(path.read_bytes()[:-cut] if cut > 0 else b"")

    name = "part-00001.parquet"
    assert file_fault(tmp_path, fault) == [("SHD005", name), ("SHD008", name)]


def test_two_swapped_shards(tmp_path) -> None:
    def fault() -> None:
        first, second = (tmp_path / f"part-0000{i}.parquet" for i in (0, 1))
        first.rename(tmp_path / "x")
        second.rename(first)
        (tmp_path / "x").rename(second)

    found = file_fault(tmp_path, fault)
    swapped = [name for code, name in found if code == "SHD006"]
    assert swapped == ["part-00000.parquet", "part-00001.parquet"]
    assert {code for code, _ in found} <= {"SHD006", "SHD009"}


def test_an_edited_shard(tmp_path) -> None:
    def fault() -> None:
        path = tmp_path / "part-00001.parquet"
        body = bytearray(path.read_bytes())
        body[200] ^= 1
        path.write_bytes(body)

    assert ("SHD007", "part-00001.parquet") in file_fault(tmp_path, fault)


def test_any_changed_byte_is_found_and_never_a_traceback(tmp_path) -> None:
    write(tmp_path, many(12))
    path = tmp_path / "part-00000.parquet"
    sound = path.read_bytes()
    for at in range(0, len(sound), max(1, len(sound) // 60)):
        body = bytearray(sound)
        body[at] ^= 0x5A
        path.write_bytes(body)
        assert "SHD007" in verify(tmp_path).codes


def test_rows_that_the_manifest_does_not_count(tmp_path) -> None:
    import pyarrow.parquet as pq

    def fault() -> None:
        path = tmp_path / "part-00001.parquet"
        rows = pq.read_table(path)
        pq.write_table(rows.slice(1), path)  # shorter, too

    found = file_fault(tmp_path, fault)
    assert found == [("SHD005", "part-00001.parquet"), ("SHD009", "part-00001.parquet")]


def test_leftovers_are_told_and_are_no_error(tmp_path) -> None:
    found = file_fault(tmp_path, lambda: (tmp_path / JOURNAL).write_bytes(b""))
    assert found == [("SHD023", MANIFEST)]
    assert verify(tmp_path).sound


def test_other_columns(tmp_path) -> None:
    write(tmp_path, many(3))
    rows = many(3)
    rewrite(tmp_path, "part-00000.parquet", rows.drop_columns(["codes"]))
    assert verify(tmp_path).codes == ["SHD010"]
    assert "codes" in verify(tmp_path).findings[0].detail


def test_a_shard_of_another_tokenizer(tmp_path) -> None:
    write(tmp_path, many(3))
    other = FACTS.model_copy(update={"tokenizer_hash": "zz"})
    rewrite(tmp_path, "part-00000.parquet", many(3), other)
    found = verify(tmp_path)
    assert found.codes == ["SHD011"]
    assert found.findings[0].detail == "tokenizer_hash zz, not bb"


def test_a_parquet_file_that_is_no_shard(tmp_path) -> None:
    import pyarrow.parquet as pq

    def fault() -> None:
        pq.write_table(many(3).replace_schema_metadata(None), tmp_path / "part-00001.parquet")

    found = file_fault(tmp_path, fault)
    assert ("SHD010", "part-00001.parquet") in found


def test_repeated_samples_are_found_across_shards(tmp_path) -> None:
    rows = many(60)
    write(tmp_path, table([*rows.to_pylist(), row(0)]))
    found = verify(tmp_path)
    assert found.codes == ["SHD020"]
    assert [f.detail for f in found.findings] == ["the same as part-00000.parquet:1"]
    assert found.findings[0].file_no == len(found.manifest.shards) - 1


def test_a_conversation_in_two_splits(tmp_path) -> None:
    rows = [
        row(0, conversation_id="c", split="train"),
        row(1, conversation_id="c", split="val"),
        row(2, conversation_id="d", split="val"),
    ]
    write(tmp_path, table(rows))
    frame = verify(tmp_path).frame()
    assert frame["code"].to_list() == ["SHD021", "SHD021"]
    assert frame["line"].to_list() == [1, 2]


def test_verify_needs_a_directory_and_deep_needs_a_tokenizer(tmp_path) -> None:
    with pytest.raises(ShardError, match="is not a directory"):
        verify(tmp_path / "none")
    write(tmp_path, many(3))
    with pytest.raises(ShardError, match="pass --tokenizer"):
        verify(tmp_path, deep=True)


def test_verify_changes_nothing(tmp_path) -> None:
    write(tmp_path, many(20))
    before = contents(tmp_path)
    verify(tmp_path)
    assert contents(tmp_path) == before


def test_every_code_is_documented() -> None:
    assert list(SHARD_RULES) == [f"SHD{i:03d}" for i in range(1, 25)]
    for rule in SHARD_RULES.values():
        assert "Why it matters:" in rule.docs
        assert "What to do:" in rule.docs
        assert len({r.name for r in SHARD_RULES.values()}) == len(SHARD_RULES)
