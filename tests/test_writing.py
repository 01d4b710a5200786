"""Files land whole or not at all."""

from __future__ import annotations

import errno
import hashlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

from eagle3_data.writing import Draft, OutputError, drafting, refuse_unwritable


def test_a_draft_lands_with_its_size_and_digest(tmp_path: Path) -> None:
    draft = Draft(tmp_path / "a.txt", overwrite=False)
    draft.write(b"one ")
    draft.write(b"two")
    assert not (tmp_path / "a.txt").exists()
    draft.land()
    assert (tmp_path / "a.txt").read_bytes() == b"one two"
    assert (draft.size, draft.sha256) == (7, hashlib.sha256(b"one two").hexdigest())
    assert os.listdir(tmp_path) == ["a.txt"]  # noqa: PTH208


def test_a_failed_block_leaves_the_old_file_and_no_rest(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("old")
    with pytest.raises(RuntimeError), drafting(tmp_path / "a.txt", overwrite=True) as draft:
        draft.write(b"new")
        raise RuntimeError
    assert (tmp_path / "a.txt").read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["a.txt"]


def test_an_existing_file_is_replaced_only_when_asked(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("old")
    with pytest.raises(OutputError, match="--overwrite"), drafting(path, overwrite=False):
        pass
    with drafting(path, overwrite=True) as draft:
        draft.write(b"new")
    assert path.read_text() == "new"


def test_a_file_that_appears_meanwhile_is_left_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    with pytest.raises(OutputError, match="appeared"), drafting(path, overwrite=False) as draft:
        draft.write(b"new")
        path.write_text("someone else's")
    assert path.read_text() == "someone else's"
    assert [p.name for p in tmp_path.iterdir()] == ["a.txt"]


def test_a_link_stays_a_link(tmp_path: Path) -> None:
    (tmp_path / "real.txt").write_text("old")
    (tmp_path / "link.txt").symlink_to("real.txt")
    with drafting(tmp_path / "link.txt", overwrite=True) as draft:
        draft.write(b"new")
    assert (tmp_path / "link.txt").is_symlink()
    assert (tmp_path / "real.txt").read_text() == "new"


@pytest.mark.parametrize("overwrite", [False, True])
def test_what_is_no_file_is_never_replaced(tmp_path: Path, overwrite: bool) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path, words in [
        (tmp_path, "is a directory"),
        (tmp_path / "pipe", "not a regular file"),
        (Path(os.devnull), "not a regular file"),
        (tmp_path / "missing" / "a.txt", "create it first"),
    ]:
        with pytest.raises(OutputError, match=words):
            refuse_unwritable(path, overwrite=overwrite)


def test_the_file_gets_the_permissions_of_a_plain_open(tmp_path: Path) -> None:
    (tmp_path / "plain").write_text("")
    with drafting(tmp_path / "draft", overwrite=False):
        pass
    assert (tmp_path / "draft").stat().st_mode == (tmp_path / "plain").stat().st_mode


def test_the_rest_of_a_killed_run_is_removed_by_the_next_one(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    code = (
        "import os, pathlib, sys\n"
        "from eagle3_data.writing import Draft\n"
        "Draft(pathlib.Path(sys.argv[1]), overwrite=False).write(b'half')\n"
        "os.kill(os.getpid(), 9)\n"
    )
    subprocess.run([sys.executable, "-c", code, path], cwd=Path(__file__).parent.parent)
    (left,) = tmp_path.iterdir()
    others = [tmp_path / name for name in (".b.txt.abcdefgh.part", ".a.txt.notes.part")]
    for other in others:
        other.touch()
    with drafting(path, overwrite=False) as draft:
        draft.write(b"whole")
    assert left.name.endswith(".part")
    assert sorted(tmp_path.iterdir()) == sorted([path, *others])


def test_a_draft_that_is_being_written_is_not_swept_away(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    first = Draft(path, overwrite=True)
    first.write(b"first")
    first.close()  # complete, but it has not landed
    with drafting(path, overwrite=True) as second:
        second.write(b"second")
    first.land()
    assert path.read_bytes() == b"first"
    assert list(tmp_path.iterdir()) == [path]


def test_a_draft_holds_no_file_open_when_it_is_done(tmp_path: Path) -> None:
    before = len(list(Path("/dev/fd").iterdir()))
    for end in ("land", "drop"):
        draft = Draft(tmp_path / end, overwrite=True)
        getattr(draft, end)()
        draft.drop()
    assert len(list(Path("/dev/fd").iterdir())) == before


def test_a_folder_that_takes_no_file_is_refused_whatever_its_permissions_say(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(**_: object) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr("tempfile.TemporaryFile", full)
    with pytest.raises(OutputError, match=r"is not writable \(Read-only file system\): choose"):
        refuse_unwritable(tmp_path / "a.txt", overwrite=False)
