"""Verifying folders: what is no folder of shards, what lies in the place of a file, and the API."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import orjson
import pytest
from making import CAPTURE, FACTS, TOKENIZER, contents, many, row, table, write
from roads import REFERENCE

import eagle3_data
from eagle3_data.shards.export import export
from eagle3_data.shards.manifest import JOURNAL, MANIFEST
from eagle3_data.shards.schema import ShardError
from eagle3_data.shards.verify import verify
from eagle3_data.tokens.tokenizer import TokenizerError

SHARD = "part-00000.parquet"


def nothing(_: Path) -> None:
    pass


def note(folder: Path) -> None:
    (folder / "data.txt").write_text("x")


def foreign(folder: Path) -> None:
    (folder / MANIFEST).write_text('{"name": "a web app"}')


def damaged(folder: Path) -> None:
    (folder / MANIFEST).write_bytes(b"{")


def states(folder: Path) -> None:
    (folder / MANIFEST).write_bytes(orjson.dumps({"tool": "eagle3-data", "kind": "states"}))


def quarantine(folder: Path) -> None:
    (folder / MANIFEST).write_bytes(orjson.dumps({"tool": "eagle3-data", "kind": "quarantine"}))


def exported(folder: Path) -> None:
    write(folder.parent / "s", many(3))
    export(folder.parent / "s", "specforge", folder)


def above(folder: Path) -> None:
    write(folder / "b", many(3))
    write(folder / "a", many(3))
    (folder / "c").mkdir()


NEITHER = (
    "is no folder of shards: it holds neither part-00000.parquet, nor the journal of a run, nor a"
    " manifest.json that `convert` wrote: name the folder that `convert` wrote"
)


@pytest.mark.parametrize(
    ("fill", "told"),
    [
        (nothing, "is empty: name the folder that `convert` wrote"),
        (note, NEITHER),
        (foreign, NEITHER),
        (damaged, NEITHER),
        (
            states,
            "holds the hidden states of `extract`, no shards: name the folder that `convert` wrote",
        ),
        (
            quarantine,
            "holds lines that --quarantine put apart, no shards: name the folder that `convert`"
            " wrote",
        ),
        (
            exported,
            "is an export, no shards: name the folder that `convert` wrote, the one that it was"
            " made from",
        ),
        (above, "is no folder of shards, but folders of shards lie in it: name a, b"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_a_folder_of_something_else_is_told(
    tmp_path, fill: Callable[[Path], None], told: str
) -> None:
    folder = tmp_path / "f"
    folder.mkdir()
    fill(folder)
    with pytest.raises(ShardError) as error:
        verify(folder)
    assert str(error.value) == f"{folder} {told}"


@pytest.mark.parametrize(
    ("fill", "beside", "code"),
    [
        (quarantine, SHARD, "SHD002"),
        (damaged, JOURNAL, "SHD002"),
        (nothing, SHARD, "SHD001"),
        (nothing, JOURNAL, "SHD001"),
    ],
)
def test_where_a_run_left_something_it_is_a_finding(tmp_path, fill, beside, code) -> None:
    fill(tmp_path)
    (tmp_path / beside).write_bytes(b"")
    found = verify(tmp_path)
    assert [(f.code, found.paths[f.file_no].name) for f in found.findings] == [(code, MANIFEST)]


def test_a_damaged_manifest_of_shards_is_one_without_any_shard(tmp_path) -> None:
    (tmp_path / MANIFEST).write_bytes(orjson.dumps({"tool": "eagle3-data", "kind": "shards",
                                                    "schema_version": 1}))  # fmt: skip
    assert verify(tmp_path).codes == ["SHD002"]


def folder_at(path: Path) -> None:
    path.unlink()
    path.mkdir()


def pipe_at(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


@pytest.mark.parametrize(
    ("name", "change", "codes", "told"),
    [
        (SHARD, folder_at, ["SHD003", "SHD024"], "is a folder"),
        (MANIFEST, folder_at, ["SHD002"], "is a folder"),
        (SHARD, pipe_at, ["SHD003"], "is no regular file"),
        (MANIFEST, pipe_at, ["SHD002"], "is no regular file"),
    ],
)
@pytest.mark.parametrize("overwrite", [False, True])
def test_what_is_no_file_is_named_and_nothing_is_removed(
    tmp_path, name, change, codes, told, overwrite
) -> None:
    write(tmp_path, many(60))
    change(tmp_path / name)
    before = sorted(path.name for path in tmp_path.iterdir())
    assert verify(tmp_path).codes == codes
    with pytest.raises(ShardError) as error:
        write(tmp_path, many(60), overwrite=overwrite)
    assert str(error.value) == (
        f"{tmp_path / name} {told}, where a file of the shards belongs: move it away and run the"
        " same command again"
    )
    assert sorted(path.name for path in tmp_path.iterdir()) == before


def test_the_same_run_again_when_the_folder_was_moved_away(tmp_path) -> None:
    write(tmp_path / "s", many(60))
    sound = contents(tmp_path / "s")
    folder_at(tmp_path / "s" / "part-00001.parquet")
    with pytest.raises(ShardError, match="is a folder"):
        write(tmp_path / "s", many(60))
    (tmp_path / "s" / "part-00001.parquet").rmdir()
    write(tmp_path / "s", many(60))
    assert contents(tmp_path / "s") == sound


@pytest.mark.parametrize("name", [JOURNAL, f".{SHARD}.x.part"])
def test_a_folder_in_the_place_of_what_a_run_leaves(tmp_path, name) -> None:
    write(tmp_path, many(3))
    (tmp_path / name).mkdir()
    assert verify(tmp_path).codes == ["SHD023"]
    with pytest.raises(ShardError, match="is a folder, where a file of the shards belongs"):
        write(tmp_path, many(3))
    assert MANIFEST in contents_names(tmp_path)


def contents_names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def test_a_manifest_in_the_place_of_which_a_pipe_lies_is_not_waited_for(tmp_path) -> None:
    os.mkfifo(tmp_path / MANIFEST)
    with pytest.raises(ShardError, match="no regular file: move it away and restore"):
        eagle3_data.open_shards(tmp_path)
    with pytest.raises(ShardError, match="is no folder of shards"):
        verify(tmp_path)


@pytest.mark.parametrize("kind", [str, Path])
def test_verify_takes_the_path_of_a_tokenizer_as_check_and_convert_do(tmp_path, kind) -> None:
    eagle3_data.convert(CAPTURE, tmp_path / "s", tokenizer=kind(TOKENIZER))
    found = eagle3_data.verify(kind(tmp_path / "s"), deep=True, tokenizer=kind(TOKENIZER))
    assert (found.codes, found.exit_code, found.texts_compared) == ([], 0, True)
    opened = eagle3_data.verify(tmp_path / "s", tokenizer=REFERENCE)
    assert (opened.codes, opened.texts_compared) == ([], True)
    with pytest.raises(TokenizerError):
        eagle3_data.verify(tmp_path / "s", tokenizer=kind(tmp_path / "none"))
    write(tmp_path / "other", many(3), facts=FACTS)
    with pytest.raises(ShardError, match="pass the one of the capture"):
        eagle3_data.verify(tmp_path / "other", tokenizer=kind(TOKENIZER))


def test_a_verification_is_short_to_show_and_its_text_is_the_report(tmp_path) -> None:
    folder = tmp_path / "s"
    write(folder, table([row(0), row(1)]))
    found = verify(folder)
    assert found.exit_code == 0
    assert repr(found) == f"<Verification of {folder}: shards 1, samples read 2, exit 0>"
    assert str(found) == str(found.report())
    assert str(found).startswith("CLEAN  nothing found\n2 lines in = 2 kept")
    (folder / SHARD).unlink()
    (folder / "README.md").write_text("r")
    found = verify(folder)
    assert found.exit_code == 1
    assert repr(found) == (
        f"<Verification of {folder}: shards 1, samples read 0, exit 1, SHD003, SHD024>"
    )
    assert str(found).startswith("FAULTS")
    (folder / "README.md").rename(folder / JOURNAL)
    (folder / MANIFEST).unlink()
    found = verify(folder)
    assert repr(found) == (
        f"<Verification of {folder}: shards unknown, samples read 0, exit 1, SHD001>"
    )


def test_a_warning_alone_is_exit_0(tmp_path) -> None:
    write(tmp_path, many(3))
    (tmp_path / "README.md").write_text("r")
    found = verify(tmp_path)
    assert (found.codes, found.exit_code, found.report().exit_code) == (["SHD024"], 0, 0)
