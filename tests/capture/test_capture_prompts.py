"""Prompts of every kind of input, and what is refused by file and line."""

from __future__ import annotations

import gzip
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import orjson
import polars as pl
import pytest

from eagle3_data.capture.prompts import CHUNK, open_prompts
from eagle3_data.records.lines import InputError

USER = {"role": "user", "content": "hi"}
SYSTEM = {"role": "system", "content": "be brief"}
SAID = {"role": "assistant", "content": "yo", "reasoning": "hm"}
TOOL = {"type": "function", "function": {"name": "look"}}


def read(path: Path | str) -> list[Any]:
    return [(p.id, p.messages, p.tools) for p in open_prompts(str(path)).read()]


def of_line(tmp_path: Path, value: Any) -> Any:
    path = tmp_path / "prompts.jsonl"
    path.write_bytes(orjson.dumps(value) + b"\n")
    (only,) = read(path)
    return only


ASKED = (None, [USER], None)


@pytest.mark.parametrize(
    ("value", "prompt"),
    [
        ({"messages": [USER]}, ASKED),
        ({"messages": [SYSTEM, USER, SAID]}, (None, [SYSTEM, USER], None)),
        ({"messages": [USER, SAID, USER]}, (None, [USER, SAID, USER], None)),
        ({"id": 7, "messages": [USER], "tools": [TOOL]}, ("7", [USER], [TOOL])),
        ({"prompt": "hi"}, ASKED),
        ({"prompt": [USER]}, ASKED),
        ({"prompt": "hi", "system": "be brief"}, (None, [SYSTEM, USER], None)),
        ({"prompt": "hi", "response": "yo", "system": "be brief"}, (None, [SYSTEM, USER], None)),
        ({"id": "a", "question": "hi", "answer": "yo"}, ("a", [USER], None)),
        (
            {"instruction": "add", "input": "1 2", "output": "3"},
            (None, [{"role": "user", "content": "add\n\n1 2"}], None),
        ),
        ({"turns": ["hi", "and then?"]}, ASKED),
        ({"text": "hi"}, ASKED),
        ({"task": "hi"}, ASKED),
        ("hi", ASKED),
        ({"conversations": [{"from": "human", "value": "hi"}]}, ASKED),
        ({"custom_id": "c", "method": "POST", "body": {"messages": [USER]}}, ("c", [USER], None)),
        ({"request": {"messages": [USER], "tools": [TOOL]}}, (None, [USER], [TOOL])),
        (
            {
                "id": "row",
                "request": {"model": "m", "messages": [USER]},
                "response": {"choices": [{"message": SAID}, {"message": SAID}]},
            },
            ("row", [USER], None),
        ),
    ],
)  # fmt: skip
def test_a_line_of_any_shape_is_one_prompt(tmp_path: Path, value: Any, prompt: Any) -> None:
    assert of_line(tmp_path, value) == prompt


@pytest.mark.parametrize(
    "line",
    [b'{"input_ids": [1], "loss_mask": [1]}', b'{"messages": []}', b'{"prompt": ""}', b"[1]",
     b'{"prompt": "cut', b'""', b'{"response": {"choices": [{"message": {"content": "x"}}]}}'],
)  # fmt: skip
def test_a_line_without_a_prompt_is_refused_by_its_place(tmp_path: Path, line: bytes) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_bytes(b'{"prompt": "hi"}\n\n' + line + b"\n")
    with pytest.raises(InputError, match=r"prompts\.jsonl:3: .*; .*|:3: .*[Mm]end or remove"):
        read(path)


def test_several_prompts_on_one_line_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_bytes(b'{"prompt": ["one"]}\n{"prompt": ["one", "two"]}\n')
    with pytest.raises(InputError, match=r"jsonl:2: prompt holds 2 prompts, and only one of them"):
        read(path)


def test_settings_beside_a_prompt_are_named(tmp_path: Path) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_bytes(orjson.dumps({"messages": [USER], "temperature": 0.2}))
    (prompt,) = open_prompts(str(path)).read()
    assert prompt.own == ("temperature",)
    assert prompt.place == f"{path}:1"


def test_plain_text_is_a_prompt_a_line(tmp_path: Path) -> None:
    path = tmp_path / "prompts.txt.gz"
    path.write_bytes(gzip.compress("one\n\n  \ntwo ü\n".encode()))
    texts = [messages[0]["content"] for _, messages, _ in read(path)]
    assert texts == ["one", "two ü"]
    bad = tmp_path / "bad.txt"
    bad.write_bytes(b"one\n\xff\n")
    with pytest.raises(InputError, match=r"bad\.txt:2: not UTF-8"):
        read(bad)


def test_parquet_is_read_in_pieces_without_the_nulls_of_its_structs(tmp_path: Path) -> None:
    count = CHUNK + 3
    told = [[{"role": "user", "content": f"q{n}", "name": None}] for n in range(count)]
    told[0][0]["name"] = "Ada"
    path = tmp_path / "prompts.parquet"
    pl.DataFrame({"id": [f"p{n}" for n in range(count)], "messages": told}).write_parquet(path)
    found = read(path)
    assert len(found) == count
    assert found[0] == ("p0", [{"role": "user", "content": "q0", "name": "Ada"}], None)
    assert found[1] == ("p1", [{"role": "user", "content": "q1"}], None)
    assert found[-1][0] == f"p{count - 1}"


@pytest.mark.parametrize(
    ("name", "content", "why"),
    [
        ("empty.jsonl", b"", "empty"),
        ("array.json", b'[\n{"prompt": "hi"}\n]', "one JSON array"),
        ("bad.parquet", b"PAR1 no", "Parquet"),
        ("lfs.jsonl", b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n", "LFS"),
    ],
)
def test_a_file_that_is_wrong_as_a_whole_is_told(
    tmp_path: Path, name: str, content: bytes, why: str
) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(InputError, match=why):
        read(path)


def test_a_dataset_is_streamed_by_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    class Rows:
        def iter(self, batch_size: int) -> Any:
            assert batch_size == CHUNK
            yield {"prompt": ["a", "b"], "id": [1, 2]}
            yield {"prompt": ["c"], "id": [3]}

    def load(path: str, split: str, streaming: bool) -> Rows:
        asked.append((path, split, streaming))
        return Rows()

    monkeypatch.setitem(sys.modules, "datasets", SimpleNamespace(load_dataset=load, __spec__=1))
    found = open_prompts("owner/name:train[:3]")
    assert found.files == ()
    assert [(p.id, p.messages[0]["content"], p.place) for p in found.read()] == [
        ("1", "a", "owner/name:train[:3]:1"),
        ("2", "b", "owner/name:train[:3]:2"),
        ("3", "c", "owner/name:train[:3]:3"),
    ]
    assert asked == [("owner/name", "train[:3]", True)]


def test_a_dataset_that_is_not_there_tells_the_next_step(monkeypatch: pytest.MonkeyPatch) -> None:
    def load(path: str, split: str, streaming: bool) -> Any:
        raise FileNotFoundError("Dataset 'owner/name' doesn't exist on the Hub")

    monkeypatch.setitem(sys.modules, "datasets", SimpleNamespace(load_dataset=load, __spec__=1))
    with pytest.raises(InputError, match=r"neither a file nor a dataset .* check the name"):
        read("owner/name")
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(InputError, match="pip install datasets"):
        read("owner/name")
