"""Lines: true numbers and offsets, file faults told once, nothing lost at the edges."""

from __future__ import annotations

import gzip
import io
import os
import threading
from itertools import pairwise
from pathlib import Path

import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st
from reading import LINES, table_of

from eagle3_data.records.lines import InputError, LineBatch, Source, expand, read_batches
from eagle3_data.records.table import Note

GOOD = (LINES / "good.jsonl").read_bytes()


def source(path: Path) -> Source:
    return Source(str(path), path, path.stat().st_size)


def read(path: Path, **options: int) -> list[LineBatch]:
    return list(read_batches(source(path), 0, **options))


def lines_of(batches: list[LineBatch]) -> list[bytes]:
    return [line for batch in batches for line in batch.lines]


def file_notes(batches: list[LineBatch]) -> list[Note]:
    return [f.note for batch in batches for f in batch.faults if f.number is None]


@settings(max_examples=60)
@given(
    st.lists(st.binary(max_size=40).map(lambda b: b.replace(b"\n", b"")), max_size=30),
    st.booleans(),
    st.integers(1, 5),
)
def test_every_line_stands_where_its_number_and_offset_say(
    tmp_path_factory: pytest.TempPathFactory, wanted: list[bytes], ended: bool, target: int
) -> None:
    path = tmp_path_factory.mktemp("lines") / "x.jsonl"
    # the first line keeps the sniffer from calling arbitrary bytes a foreign file
    data = b"\n".join([b"{}", *wanted]) + (b"\n" if ended else b"")
    path.write_bytes(data)
    batches = read(path, target_records=target)
    assert [batch.last for batch in batches] == [False] * (len(batches) - 1) + [True]
    physical = data.split(b"\n")
    found = {}
    for batch in batches:
        assert len(batch.lines) <= target
        for line, number, offset in zip(batch.lines, batch.numbers, batch.offsets, strict=True):
            assert data[offset : offset + len(line)] == line
            found[number] = line
    expected = {}
    for number, line in enumerate(physical, 1):
        body = line[:-1] if line.endswith(b"\r") and number < len(physical) else line
        if body.strip(b" \t\r\x0b\x0c"):
            expected[number] = body
    assert found == expected


@settings(max_examples=60)
@given(st.data())
def test_adjoining_ranges_give_every_line_once(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    path = tmp_path_factory.mktemp("ranges") / "x.jsonl"
    body = b"\n".join(b'{"n":%d}' % n for n in range(20)) + b"\n"
    path.write_bytes(body)
    cuts = sorted(data.draw(st.sets(st.integers(1, len(body) - 1), max_size=4)))
    edges = [0, *cuts, len(body)]
    parts = [read(path, start=a, end=b) for a, b in pairwise(edges)]
    assert [line for part in parts for line in lines_of(part)] == body.split()
    offsets = [o for part in parts for batch in part for o in batch.offsets]
    assert all(body[o : o + 5] == b'{"n":' for o in offsets)


@pytest.mark.parametrize(
    ("name", "note", "detail", "lines"),
    [
        ("empty.jsonl", Note.FILE_EMPTY, "0 bytes", 0),
        ("blank_only.jsonl", Note.FILE_EMPTY, "only blank lines", 0),
        ("lfs_pointer.jsonl", Note.FILE_LFS_POINTER, "stands for 12345 bytes", 3),
        ("utf16.jsonl", Note.FILE_UTF16, "UTF-16 with a byte order mark", 2),
        (
            "utf16_no_mark.jsonl",
            Note.FILE_UTF16,
            "UTF-16 little-endian without a byte order mark",
            2,
        ),
        ("array.jsonl", Note.FILE_JSON_ARRAY, "one JSON array, not one object a line", 4),
        (
            "array_one_line.jsonl",
            Note.FILE_JSON_ARRAY,
            "one JSON array of 2 items on one line",
            1,
        ),
        (
            "pretty.jsonl",
            Note.FILE_PRETTY_PRINTED,
            "the first record is spread over several lines",
            14,
        ),
        (
            "html.jsonl",
            Note.FILE_NOT_JSON,
            "it looks like HTML (a download page or a server's error page)",
            3,
        ),
        ("csv.jsonl", Note.FILE_NOT_JSON, "it looks like CSV", 3),
        ("parquet.jsonl", Note.FILE_NOT_JSON, "it looks like Parquet", 3),
    ],
)
def test_a_file_wrong_as_a_whole_is_told_once_and_its_lines_are_counted(
    name: str, note: Note, detail: str, lines: int
) -> None:
    table = table_of(LINES / name)
    told = table.filter(table["status"] == "file").to_dicts()
    assert [(r["notes"], r["note_detail"], r["line"]) for r in told] == [(note, detail, None)]
    rest = table.filter(table["status"] == "unreadable")
    assert rest.height == lines == table.height - 1
    assert rest["notes"].to_list() == [0] * lines


def test_one_line_lists_and_fragments_are_not_a_fault_of_the_file(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    for start in (b"[1, 2]\n", b'[{"a": 1}], "b": 2}\n', b'st": "x"}\n', b"\0" * 40 + b"\n"):
        path.write_bytes(start + GOOD)
        assert file_notes(read(path)) == []
        assert len(lines_of(read(path))) == 3


def test_byte_order_mark_carriage_returns_and_blank_lines() -> None:
    (batch,) = read(LINES / "bom_crlf_blank.jsonl")
    assert batch.numbers == [1, 4]
    assert batch.offsets == [3, 112]
    assert batch.notes == {0: Note.BOM | Note.CRLF, 1: Note.CRLF}
    assert all(line.startswith(b"{") and line.endswith(b"}") for line in batch.lines)


def test_only_the_line_feed_ends_a_line() -> None:
    (batch,) = read(LINES / "separators.jsonl")
    assert batch.numbers == [1]
    assert "\u2028" in batch.lines[0].decode()


def test_a_missing_last_line_end_is_told_and_nothing_is_lost() -> None:
    (batch,) = read(LINES / "no_final_newline.jsonl")
    assert (batch.torn, len(batch.lines)) == (True, 2)
    (batch,) = read(LINES / "good.jsonl")
    assert (batch.torn, len(batch.lines)) == (False, 2)


@pytest.mark.parametrize("tail", [b"\n{}\n", b""])
def test_a_line_above_the_limit_is_reported_and_not_loaded(tmp_path: Path, tail: bytes) -> None:
    path = tmp_path / "x.jsonl"
    path.write_bytes(b'{"a":1}\n' + b'{"b":"' + b"x" * 5000 + b'"}' + tail)
    (batch,) = read(path, limit=100)
    assert [(f.number, f.offset, f.length, f.note) for f in batch.faults] == [
        (2, 8, 5008 + (1 if tail else 0), Note.OVERSIZE)
    ]
    assert batch.lines == [b'{"a":1}', *([b"{}"] if tail else [])]


@pytest.mark.parametrize("ending", [b"\n", b"\r\n"])
def test_the_limit_is_the_length_without_the_line_end(tmp_path: Path, ending: bytes) -> None:
    path = tmp_path / "x.jsonl"
    exact, over = b'{"a":"' + b"x" * 92 + b'"}', b'{"a":"' + b"x" * 93 + b'"}'
    path.write_bytes(exact + ending + over + ending)
    (batch,) = read(path, limit=100)
    assert batch.lines == [exact]
    assert [(f.number, f.note) for f in batch.faults] == [(2, Note.OVERSIZE)]


def packed(name: str, data: bytes) -> bytes:
    if name.endswith(".gz"):
        return gzip.compress(data)
    # as the command-line tool does; without a checksum zstd can not see changed literals
    return zstandard.ZstdCompressor(write_checksum=True).compress(data)


MANY = b"".join(
    b'{"id":%d,"text":"%s"}\n' % (n, os.urandom(60).hex().encode()) for n in range(4000)
)


@pytest.mark.parametrize("name", ["x.jsonl.gz", "x.jsonl.zst", "gz_without_its_name.jsonl.gz"])
def test_compressed_files_give_the_same_lines(tmp_path: Path, name: str) -> None:
    path = tmp_path / name.removesuffix(".gz" if "without" in name else "")
    half = len(MANY) // 2
    path.write_bytes(packed(name, MANY[:half]) + packed(name, MANY[half:]))  # two members
    batches = read(path)
    assert b"\n".join(lines_of(batches)) + b"\n" == MANY
    assert file_notes(batches) == []
    assert batches[-1].bytes_read == path.stat().st_size


@pytest.mark.parametrize("kind", [0, 15])
@pytest.mark.parametrize("size", [0, 12, 100_000])
def test_zstd_frames_to_skip_are_no_data(tmp_path: Path, kind: int, size: int) -> None:
    path = tmp_path / "x.jsonl"
    skipped = (0x184D2A50 + kind).to_bytes(4, "little") + size.to_bytes(4, "little") + bytes(size)
    half = len(MANY) // 2
    parts = [packed("zst", MANY[:half]), packed("zst", MANY[half:])]
    path.write_bytes(skipped + parts[0] + skipped + parts[1] + skipped)
    batches = read(path)
    assert b"\n".join(lines_of(batches)) + b"\n" == MANY
    assert file_notes(batches) == []
    path.write_bytes(skipped)
    assert file_notes(read(path)) == [Note.FILE_EMPTY]


@pytest.mark.parametrize("name", ["x.jsonl.gz", "x.jsonl.zst"])
@pytest.mark.parametrize("damage", ["cut", "flipped"])
def test_a_damaged_stream_keeps_what_stands_before(tmp_path: Path, name: str, damage: str) -> None:
    path = tmp_path / name
    data = bytearray(packed(name, MANY))
    place = len(data) * 3 // 4
    if damage == "cut":
        del data[place:]
    else:
        data[place : place + 64] = b"\xff" * 64
    path.write_bytes(data)
    batches = read(path)
    assert file_notes(batches) == [Note.FILE_STREAM_CUT]
    kept = [line for line in lines_of(batches) if line.endswith(b'"}')]
    assert len(kept) > 1000
    # a flipped byte may still inflate to wrong text for a while: the start is what is promised
    assert MANY.startswith(b"\n".join(kept[:1000]))


def test_a_gzip_file_that_is_cut_at_every_place_never_raises(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl.gz"
    whole = gzip.compress(GOOD)
    for end in range(len(whole)):
        path.write_bytes(whole[:end])
        batches = read(path)
        assert file_notes(batches) != []
        assert b"".join(lines_of(batches)) in GOOD.replace(b"\n", b"") or end < 3


def test_padding_after_gzip_is_legal_and_garbage_is_told(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl.gz"
    path.write_bytes(gzip.compress(GOOD) + b"\0" * 512)
    assert file_notes(read(path)) == []
    path.write_bytes(gzip.compress(GOOD) + b"garbage")
    batches = read(path)
    assert file_notes(batches) == [Note.FILE_STREAM_CUT]
    assert len(lines_of(batches)) == 2


def test_a_range_of_a_compressed_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl.gz"
    path.write_bytes(gzip.compress(GOOD))
    with pytest.raises(InputError, match=r"x\.jsonl\.gz: a compressed file has no byte ranges"):
        read(path, start=5)


def test_expand_names_files_globs_directories(tmp_path: Path) -> None:
    for name in ("b.jsonl", "a.jsonl.gz", "c.ndjson", "d.json.zst", "notes.txt"):
        (tmp_path / name).write_bytes(GOOD)
    found = [Path(s.path).name for s in expand([str(tmp_path)])]
    assert found == ["a.jsonl.gz", "b.jsonl", "c.ndjson", "d.json.zst"]
    found = [Path(s.path).name for s in expand([str(tmp_path / "*.jsonl"), str(tmp_path)])]
    assert found == ["b.jsonl", "a.jsonl.gz", "c.ndjson", "d.json.zst"]  # each file once
    (only,) = expand([str(tmp_path / "notes.txt")])
    assert only.size == len(GOOD)


@pytest.mark.parametrize(
    ("paths", "message"),
    [
        ([], "no input: name a file"),
        (["missing.jsonl"], "missing.jsonl: no such file; check the path"),
        (["*.nothing"], r"\*.nothing: the pattern matches no file"),
        (["a\0b"], "not a path"),
        (["x" * 5000], "check the path"),
    ],
)
def test_an_input_that_matches_nothing_names_the_next_step(paths: list[str], message: str) -> None:
    with pytest.raises(InputError, match=message):
        expand(paths)


def test_an_empty_directory_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"holds no \*\.jsonl.*give a glob"):
        expand([str(tmp_path)])


def test_standard_input_can_be_read_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(GOOD)))
    (stdin,) = expand(["-"])
    assert (stdin.path, stdin.size) == ("-", len(GOOD))
    for _ in range(2):
        assert lines_of(list(read_batches(stdin, 0))) == GOOD.splitlines()
    stdin.real.unlink()


def test_a_named_pipe_is_spooled(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = threading.Thread(target=pipe.write_bytes, args=(GOOD,))
    writer.start()
    (spooled,) = expand([str(pipe)])
    writer.join()
    assert (spooled.path, spooled.size) == (str(pipe), len(GOOD))
    assert spooled.real.read_bytes() == GOOD
    spooled.real.unlink()


def test_memory_is_bounded_by_the_limit_and_not_by_the_line(tmp_path: Path) -> None:
    import tracemalloc

    path = tmp_path / "x.jsonl"
    with path.open("wb") as out:
        out.write(GOOD)
        for _ in range(64):
            out.write(b"x" * (1 << 20))
    tracemalloc.start()
    read(path, limit=1 << 20)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 16 << 20
