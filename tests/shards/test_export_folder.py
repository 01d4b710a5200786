"""The folder of an export: one run at a time, the rest of a dead one, never among the shards; and
shards that rotted.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from making import ROOT, contents, many, rot, write

from eagle3_data.shards.export import export
from eagle3_data.shards.journal import locked
from eagle3_data.shards.schema import ShardError
from eagle3_data.shards.targets import NOTE, Target
from eagle3_data.shards.verify import verify
from eagle3_data.writing import Draft, OutputError

DYING = """
import os, signal, sys
from eagle3_data.shards.export import export
from eagle3_data.writing import Draft
Draft.land = lambda self: os.kill(os.getpid(), signal.SIGKILL)
export(sys.argv[1], sys.argv[2], sys.argv[3], overwrite=True)
"""


def killed(shards: Path, target: str, out: Path) -> None:
    """An export that dies when all of its files are written and none has its name."""
    call = [sys.executable, "-c", DYING, str(shards), target, str(out)]
    assert subprocess.run(call, cwd=ROOT, check=False).returncode == -9
    assert [path.suffix for path in out.iterdir() if path.name.startswith(".")] != []


@pytest.mark.parametrize("target", ["messages", "specforge"])
def test_what_a_killed_export_left_is_removed_by_the_next(tmp_path, target) -> None:
    write(tmp_path / "shards", many(20))
    killed(tmp_path / "shards", "specforge", tmp_path / "out")
    export(tmp_path / "shards", target, tmp_path / "out")
    export(tmp_path / "shards", target, tmp_path / "whole")
    assert contents(tmp_path / "out") == contents(tmp_path / "whole")
    killed(tmp_path / "shards", target, tmp_path / "out")
    export(tmp_path / "shards", target, tmp_path / "out", overwrite=True)
    assert contents(tmp_path / "out") == contents(tmp_path / "whole")


def test_drafts_of_others_and_of_the_living_stay(tmp_path) -> None:
    write(tmp_path / "shards", many(3))
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / ".mine.jsonl.abcdefgh.part").touch()
    with pytest.raises(OutputError, match=r"holds other files \(\.mine\.jsonl\.abcdefgh\.part\)"):
        export(tmp_path / "shards", "messages", tmp_path / "out", overwrite=True)
    (tmp_path / "out" / ".mine.jsonl.abcdefgh.part").unlink()
    living = Draft(tmp_path / "out" / NOTE, overwrite=False)
    with pytest.raises(OutputError, match=r"holds other files \(\.NOTE\.md\."):
        export(tmp_path / "shards", "messages", tmp_path / "out", overwrite=True)
    living.land()
    assert [path.name for path in (tmp_path / "out").iterdir()] == [NOTE]


def test_a_second_export_into_one_folder_is_refused_in_one_sentence(tmp_path) -> None:
    write(tmp_path / "shards", many(3))
    (tmp_path / "out").mkdir()
    lock = locked(tmp_path / "out", OutputError)
    with pytest.raises(OutputError) as error:
        export(tmp_path / "shards", "messages", tmp_path / "out", overwrite=True)
    assert str(error.value) == (
        f"{tmp_path / 'out'} is being written by another run: wait for it, or choose another"
        " directory"
    )
    assert list((tmp_path / "out").iterdir()) == []
    os.close(lock)
    export(tmp_path / "shards", "messages", tmp_path / "out")
    os.close(locked(tmp_path / "out", OutputError))  # and it is let go of


@pytest.mark.parametrize(
    "given", ["shards", "shards/sub", "shards/a/b", "link", "link/sub", "x/../shards/sub"]
)
def test_nothing_is_exported_into_the_folder_of_the_shards(tmp_path, monkeypatch, given) -> None:
    write(tmp_path / "shards", many(3))
    (tmp_path / "x").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "shards", target_is_directory=True)
    before = contents(tmp_path / "shards")
    monkeypatch.chdir(tmp_path)
    for out, source in ((Path(given), "shards"), (tmp_path / given, "link")):
        with pytest.raises(OutputError, match="the folder of the shards themselves: name one outs"):
            export(source, "messages", out, overwrite=True)
    monkeypatch.chdir(tmp_path / "shards")
    with pytest.raises(OutputError, match="sub lies in the folder of the shards themselves"):
        export(".", "messages", "sub")
    assert contents(tmp_path / "shards") == before
    assert verify(tmp_path / "shards").codes == []
    export(".", "messages", "../beside")


@pytest.mark.parametrize("target", list(Target))
def test_bit_rot_is_told_with_the_file_and_leaves_no_export(tmp_path, target) -> None:
    write(tmp_path / "shards", many(60))
    rot(tmp_path / "shards" / "part-00001.parquet", "input_ids")
    said = rf"part-00001\.parquet can not be read \(.*\): run `verify {tmp_path / 'shards'}`$"
    with pytest.raises(ShardError, match=said):
        export(tmp_path / "shards", target, tmp_path / "out")
    assert not (tmp_path / "out").exists()
