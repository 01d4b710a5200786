"""The journal: what it takes for stored, sets aside, refuses, and never writes."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import orjson
import pytest

from eagle3_data.capture import journal as room
from eagle3_data.capture.journal import JournalError, open_journal


def key(number: int) -> bytes:
    return number.to_bytes(16, "big")


def row(number: int, **more: Any) -> dict[str, Any]:
    return {"id": f"p{number}", "identity": key(number).hex(), **more}


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "raw_responses.jsonl"


def write(out: Path, *numbers: int) -> None:
    journal = open_journal(out, resume=out.exists())
    for number in numbers:
        journal.add(key(number), row(number))
    journal.close()


def read(path: Path) -> list[Any]:
    return [orjson.loads(line) for line in path.read_bytes().split(b"\n")[:-1]]


def test_rows_are_known_again(out: Path) -> None:
    write(out, 1, 2)
    journal = open_journal(out, resume=True)
    assert journal.stored == {key(1), key(2)} and journal.notes == []
    assert journal.first is not None and orjson.loads(journal.first)["id"] == "p1"
    journal.add(key(3), row(3))
    journal.close()
    assert [r["id"] for r in read(out)] == ["p1", "p2", "p3"]


def test_an_output_is_not_gone_on_with_unasked(out: Path) -> None:
    write(out, 1)
    with pytest.raises(JournalError, match="holds rows already: pass --resume"):
        open_journal(out, resume=False)


def test_an_output_has_one_writer(out: Path) -> None:
    journal = open_journal(out, resume=False)
    with pytest.raises(JournalError, match="being written by another run"):
        open_journal(out, resume=True)
    journal.add(key(1), row(1))
    journal.close()
    assert [r["id"] for r in read(out)] == ["p1"]


def test_an_output_that_stayed_empty_is_removed(out: Path) -> None:
    open_journal(out, resume=False).close()
    assert not out.exists()


@pytest.mark.parametrize("tail", [b'{"id":"p3","iden', b"\x00\x00", b'{"identity":"xyz"}'])
def test_a_torn_last_line_is_set_aside(out: Path, tail: bytes) -> None:
    write(out, 1, 2)
    whole = out.read_bytes()
    out.write_bytes(whole + tail)
    journal = open_journal(out, resume=True)
    assert journal.stored == {key(1), key(2)}
    assert journal.notes == [
        f"raw_responses.jsonl: a torn last line ({len(tail)} bytes) was set aside in"
        " raw_responses.jsonl.torn"
    ]
    journal.close()
    assert out.read_bytes() == whole
    assert journal.torn_path.read_bytes() == tail + b"\n"


def test_a_torn_line_longer_than_a_look_back(out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "CHUNK", 16)
    write(out, 1)
    whole = out.read_bytes()
    tail = b'{"id":"' + b"x" * 100
    out.write_bytes(whole + tail)
    open_journal(out, resume=True).close()
    assert out.read_bytes() == whole
    out.write_bytes(tail)  # not one whole line
    journal = open_journal(out, resume=True)
    assert journal.stored == set()
    journal.close()
    assert journal.torn_path.read_bytes() == tail + b"\n" + tail + b"\n"


def test_a_row_that_lacks_only_its_line_end_is_stored(out: Path) -> None:
    write(out, 1, 2)
    whole = out.read_bytes()
    out.write_bytes(whole[:-1])
    journal = open_journal(out, resume=True)
    assert journal.stored == {key(1), key(2)} and journal.notes == []
    journal.close()
    assert out.read_bytes() == whole


def test_damage_in_the_middle_stays_and_is_told(out: Path) -> None:
    write(out, 1)
    out.write_bytes(out.read_bytes() + b"\x00\x00\x00\n" + orjson.dumps(row(2)) + b"\n")
    journal = open_journal(out, resume=True)
    assert journal.stored == {key(1), key(2)}
    assert journal.notes == [
        "raw_responses.jsonl: 1 lines are damaged (the first is line 2); they stay, and their"
        " prompts are asked again"
    ]
    journal.close()


def test_a_file_of_another_tool_is_refused(out: Path) -> None:
    out.write_bytes(b'{"messages": []}\n')
    with pytest.raises(JournalError, match=r"raw_responses\.jsonl:1: a line without an identity"):
        open_journal(out, resume=True)
    assert out.read_bytes() == b'{"messages": []}\n'


def test_a_compressed_output_is_refused(tmp_path: Path) -> None:
    with pytest.raises(JournalError, match=r"a plain \.jsonl file"):
        open_journal(tmp_path / "raw.jsonl.gz", resume=False)


def test_a_full_disk_leaves_whole_rows(out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    journal = open_journal(out, resume=False)
    journal.add(key(1), row(1))
    write = os.write
    monkeypatch.setattr(os, "write", lambda fd, line: write(fd, line[:9]))
    with pytest.raises(JournalError, match=r"only 9 of \d+ bytes were written; is the disk full"):
        journal.add(key(2), row(2))
    assert key(2) not in journal.stored
    journal.close()
    assert [r["id"] for r in read(out)] == ["p1"]


def test_a_failed_row_keeps_the_attempts_of_every_run(out: Path) -> None:
    journal = open_journal(out, resume=False)
    journal.add(key(1), row(1))
    journal.fail(key(2), row(2, attempts=["a"]))
    journal.fail(key(3), row(3, attempts=["b"]))
    journal.settle()
    journal.close()
    assert [r["id"] for r in read(journal.errors_path)] == ["p2", "p3"]

    journal = open_journal(out, resume=True)
    assert set(journal.failed) == {key(2), key(3)}
    journal.fail(key(2), row(2, attempts=["c"]))
    journal.add(key(3), row(3))
    journal.settle()
    journal.close()
    (only,) = read(journal.errors_path)
    assert only["id"] == "p2" and only["attempts"] == ["a", "c"]

    journal = open_journal(out, resume=True)
    journal.add(key(2), row(2))
    journal.settle()
    journal.close()
    assert not journal.errors_path.exists()


def test_a_torn_error_is_set_aside_too(out: Path) -> None:
    journal = open_journal(out, resume=False)
    journal.add(key(1), row(1))
    journal.fail(key(2), row(2, attempts=["a"]))
    journal.close()
    whole = journal.errors_path.read_bytes()
    journal.errors_path.write_bytes(whole + b'{"id":')
    open_journal(out, resume=True).close()
    assert journal.errors_path.read_bytes() == whole
    torn = journal.errors_path.with_name("raw_responses.errors.jsonl.torn")
    assert torn.read_bytes() == b'{"id":\n'


def test_errors_of_an_output_that_is_gone_are_not_mixed(out: Path) -> None:
    journal = open_journal(out, resume=False)
    journal.fail(key(2), row(2, attempts=["a"]))
    journal.close()
    with pytest.raises(JournalError, match="is of an earlier run"):
        open_journal(out, resume=False)


@pytest.mark.parametrize(("secret", "said"), [("sk-canary/1", "***"), ('sk-"canary"', "***")])
def test_a_key_is_never_written(out: Path, secret: str, said: str) -> None:
    journal = open_journal(out, resume=False, secret=secret)
    line = journal.add(key(1), row(1, response=f"you sent {secret}"))
    journal.fail(key(2), row(2, attempts=[secret]))
    journal.close()
    assert orjson.loads(line)["response"] == f"you sent {said}"
    for path in (out, journal.errors_path):
        assert b"canary" not in path.read_bytes()


def test_a_dummy_key_is_a_word_like_others(out: Path) -> None:
    journal = open_journal(out, resume=False, secret="EMPTY")
    assert b"an EMPTY set" in journal.add(key(1), row(1, response="an EMPTY set"))
    journal.close()


@pytest.mark.parametrize("resume", [False, True])
def test_an_output_that_another_run_ends_at_this_moment(
    out: Path, resume: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock = room.fcntl.flock

    def ended(descriptor: int, how: int) -> None:
        lock(descriptor, how)
        out.unlink()  # it stored nothing; and a third one begins
        out.write_bytes(b"")
        if not resume:
            os.write(descriptor, b"{}\n")

    monkeypatch.setattr(room.fcntl, "flock", ended)
    with pytest.raises(JournalError, match="call again"):
        open_journal(out, resume=resume)
    assert out.exists()


@pytest.mark.parametrize("said", [b"NaN", b'"\\ud83d"'])
def test_a_row_that_only_the_lenient_parser_reads_is_stored(out: Path, said: bytes) -> None:
    journal = open_journal(out, resume=False)
    journal.add(key(1), row(1, response=orjson.Fragment(b'{"said": ' + said + b"}")))
    journal.close()
    whole = out.read_bytes()
    for cut in (whole, whole[:-1]):  # also without its line end
        out.write_bytes(cut)
        again = open_journal(out, resume=True)
        assert again.stored == {key(1)} and again.notes == []
        again.close()
        assert out.read_bytes() == whole
