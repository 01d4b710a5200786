"""A file that grows gives the lines of the finished file, each once, when it is complete."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eagle3_data.capture import growing as module
from eagle3_data.capture.growing import Growing
from eagle3_data.records.lines import InputError, LineBatch, expand, read_batches

PIECES = st.lists(
    st.sampled_from([b'{"a": 1}\n', b'{"b": 2}\r\n', b"\n", b'{"c', b'": 3}\n', b"  \n", b"}\n{"]),
    max_size=12,
)


def lines_of(batches: list[LineBatch]) -> list[tuple[int, int, bytes]]:
    return [
        place
        for batch in batches
        for place in zip(batch.numbers, batch.offsets, batch.lines, strict=True)
    ]


@given(pieces=PIECES, bite=st.sampled_from([3, 1 << 20]))
def test_however_it_grows_the_lines_are_those_of_the_finished_file(
    pieces: list[bytes], bite: int
) -> None:
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory() as folder:
        patch.setattr(module, "BITE", bite)
        path = Path(folder) / "raw.jsonl"
        path.write_bytes(b'{"start": 0}\n')
        growing = Growing(str(path))
        found = list(growing.poll())
        for piece in pieces:
            with path.open("ab") as file:
                file.write(piece)
            found += growing.poll()
        whole = path.read_bytes()
        complete = whole[: whole.rfind(b"\n") + 1]
        assert growing.waiting == len(whole) - len(complete)
        assert growing.lines == complete.count(b"\n")
        assert growing.sources()[0].size == len(complete)
        growing.close()
        path.write_bytes(complete)
        assert lines_of(found) == lines_of(list(read_batches(expand([str(path)])[0], 0)))
        assert not growing.told


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "raw.jsonl"
    path.write_bytes(b'{"a": 1}\n{"a": 2}\n')
    return path


def texts(batches: list[LineBatch]) -> list[tuple[int, int, bytes]]:
    return [
        (batch.file_no, number, line)
        for batch in batches
        for number, line in zip(batch.numbers, batch.lines, strict=True)
    ]


def test_a_torn_line_waits_until_it_is_complete(path: Path) -> None:
    growing = Growing(str(path))
    assert len(texts(list(growing.poll()))) == 2
    with path.open("ab", buffering=0) as file:
        file.write(b'{"a": ')
        assert list(growing.poll()) == [] and growing.waiting == 6
        file.write(b"3}")
        assert list(growing.poll()) == [] and growing.waiting == 8
        file.write(b"\n")
    assert texts(list(growing.poll())) == [(0, 3, b'{"a": 3}')]
    growing.close()


@pytest.mark.parametrize("longer", [False, True], ids=["shorter", "longer"])
def test_a_file_written_anew_is_told_and_read_from_its_start(path: Path, longer: bool) -> None:
    growing = Growing(str(path))
    list(growing.poll())
    path.write_bytes(b'{"new": 1}\n' * (9 if longer else 1))
    assert texts(list(growing.poll()))[0] == (1, 1, b'{"new": 1}')
    assert growing.told == [f"{path} was written anew after 2 lines: reading it from its start"]
    assert [source.path for source in growing.sources()] == [str(path), f"{path} (file 2)"]
    assert growing.sources()[0].size == 18
    growing.close()


def test_a_replaced_file_is_read_to_its_end_first(path: Path) -> None:
    growing = Growing(str(path))
    list(growing.poll())
    old = path.rename(path.with_suffix(".1"))
    with old.open("ab") as file:
        file.write(b'{"a": 3}\n{"torn')
    assert texts(list(growing.poll())) == [(0, 3, b'{"a": 3}')]
    assert growing.told == [f"{path} is gone: waiting for a new file of that name"]
    path.write_bytes(b'{"new": 1}\n')
    batches = list(growing.poll())
    assert texts(batches) == [(0, 4, b'{"torn'), (1, 1, b'{"new": 1}')]
    assert batches[0].torn and batches[0].last
    assert growing.told[1] == (
        f"{path} was replaced after 3 lines: reading it from its start"
        " (its last line, 6 bytes, was never completed)"
    )
    growing.close()


def test_blank_lines_at_the_start_are_no_empty_file(tmp_path: Path) -> None:
    path = tmp_path / "raw.jsonl"
    path.write_bytes(b"\n\n")
    growing = Growing(str(path))
    assert list(growing.poll()) == []
    with path.open("ab") as file:
        file.write(b'{"a": 1}\n')
    assert texts(list(growing.poll())) == [(0, 3, b'{"a": 1}')]
    growing.close()


def open_files() -> int:
    return sum(1 for _ in Path("/dev/fd").iterdir())


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (None, "start the capture first"),
        (b"\x1f\x8b\x08\x00", "is compressed"),
        (b"PAR1....", "it looks like Parquet"),
        (b'[{"a": 1},\n', "one JSON array"),
    ],
)
def test_what_can_not_be_followed_is_refused(tmp_path: Path, body: bytes | None, said: str) -> None:
    path = tmp_path / "raw.jsonl"
    if body is not None:
        path.write_bytes(body)
    before = open_files()
    with pytest.raises(InputError, match=said):
        Growing(str(path))
    assert open_files() == before


def test_folders_and_pipes_are_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for name in (tmp_path, tmp_path / "pipe"):
        with pytest.raises(InputError, match="no regular file"):
            Growing(str(name))
