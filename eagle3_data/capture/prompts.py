"""Prompts: files or a dataset in, the conversations to ask out, one at a time.

What enters: a path ("-" for standard input), or the name of a dataset. What leaves: `Prompt`s in
the order of the file, answers ignored. It promises that every non-blank line gives one prompt or
the file is refused by name and line, and that memory stays flat whatever the file's size.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson
import polars as pl

from eagle3_data.records.lines import InputError, LineBatch, Source, expand, read_batches
from eagle3_data.records.parse import load
from eagle3_data.records.prompts import PROMPT_KEYS
from eagle3_data.records.requests import read_request
from eagle3_data.records.row import Row, mapping
from eagle3_data.records.shapes import table_from
from eagle3_data.records.streams import open_stream
from eagle3_data.records.table import Note, Status

CHUNK = 2048
"""Rows of a Parquet file or dataset that are read at a time."""
LONGEST = 8 << 20
"""Bytes of a line of plain text."""
_DATASET = re.compile(r"[\w.\-]+/[\w.\-]+(:[\w.\-\[\]%:+]+)?")
_WHOLE_FILE = {
    Note.FILE_EMPTY: "the file is empty",
    Note.FILE_LFS_POINTER: "a Git-LFS pointer, not the file: run `git lfs pull`",
    Note.FILE_JSON_ARRAY: "one JSON array: write one object a line (jq -c '.[]')",
    Note.FILE_PRETTY_PRINTED: "records spread over several lines: write one a line (jq -c .)",
    Note.FILE_UTF16: "UTF-16 text: convert it to UTF-8",
}


@dataclass(frozen=True, slots=True)
class Prompt:
    """One conversation to ask. `place`: file and line, for messages. `own`: names of settings
    that stand beside it in the file and are not used.
    """

    id: str | None
    messages: list[Any]
    tools: list[Any] | None
    place: str
    own: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Prompts:
    """Prompts that can be read again and again. `files` is empty for a dataset."""

    name: str
    files: tuple[Source, ...]
    read: Callable[[], Iterator[Prompt]]

    def digests(self) -> list[dict[str, Any]]:
        """Name, size and SHA-256 of each file, for the manifest."""
        found = []
        for source in self.files:
            with source.real.open("rb") as file:
                digest = hashlib.file_digest(file, "sha256").hexdigest()
            found.append({"path": source.path, "bytes": source.size, "sha256": digest})
        return found


def open_prompts(name: str) -> Prompts:
    """The prompts under `name`. Raises InputError when it names neither files nor a dataset."""
    if _DATASET.fullmatch(name) and not Path(name).exists():
        if importlib.util.find_spec("datasets") is None:
            raise InputError(
                f"{name}: no such file; to read it as a dataset, pip install datasets first"
            )
        return Prompts(name, (), lambda: _of_dataset(name))
    sources = tuple(expand([name]))
    return Prompts(name, sources, lambda: (p for s in sources for p in _of_file(s)))


def _of_file(source: Source) -> Iterator[Prompt]:
    base = source.path.lower().removesuffix(".gz").removesuffix(".zst")
    if base.endswith((".parquet", ".pq")):
        yield from _of_parquet(source)
        return
    if base.endswith(".txt"):
        yield from _of_text(source)
        return
    for batch in read_batches(source, 0):
        for fault in batch.faults:
            # a line that could not be loaded is a prompt that would be lost
            if fault.number is None:
                why = _WHOLE_FILE.get(fault.note, fault.detail)
                raise InputError(f"{source.path}: no prompts in it: {why}")
            if fault.note:
                raise InputError(f"{source.path}:{fault.number}: line too long ({fault.detail})")
        yield from _of_batch(batch, source.path)


def _of_text(source: Source) -> Iterator[Prompt]:
    """A prompt a line. No look at the first bytes as for JSON: a prompt may begin with anything."""
    with open_stream(source.real) as stream:
        number = 0
        while line := stream.reader.readline(LONGEST + 1):
            number += 1
            place = f"{source.path}:{number}"
            if len(line) > LONGEST:
                raise InputError(f"{place}: longer than {LONGEST >> 20} MiB; is it one prompt?")
            try:
                text = line.decode().rstrip("\r\n")
            except UnicodeDecodeError:
                raise InputError(f"{place}: not UTF-8 text; convert the file first") from None
            if number == 1:
                text = text.removeprefix("\ufeff")
            if text.strip():
                yield Prompt(None, [{"role": "user", "content": text}], None, place)
        if stream.fault:
            raise InputError(f"{source.path}: {stream.fault}; copy the file again")


def _of_parquet(source: Source) -> Iterator[Prompt]:
    try:
        rows = pl.scan_parquet(source.real)
        total = rows.select(pl.len()).collect().item()
        for start in range(0, total, CHUNK):
            found = rows.slice(start, CHUNK).collect().to_dicts()
            yield from _of_rows(found, source.path, start)
    except pl.exceptions.PolarsError as error:
        raise InputError(f"{source.path}: not to be read as Parquet: {error}") from None


def _of_dataset(name: str) -> Iterator[Prompt]:
    """`owner/name` or `owner/name:split`, streamed; the split is train unless named."""
    datasets = importlib.import_module("datasets")  # optional, and without types
    path, _, split = name.partition(":")
    try:
        rows = datasets.load_dataset(path, split=split or "train", streaming=True)
        start = 0
        for chunk in rows.iter(batch_size=CHUNK):
            columns = list(chunk)
            found = [
                dict(zip(columns, cells, strict=True))
                for cells in zip(*chunk.values(), strict=True)
            ]
            yield from _of_rows(found, name, start)
            start += len(found)
    except InputError:
        raise
    except Exception as error:  # its faults are of many classes, none of a common kind
        why = " ".join(str(error).split())[:300]
        raise InputError(
            f"{name}: neither a file nor a dataset that can be read: {type(error).__name__}:"
            f" {why}; check the name (owner/name or owner/name:split) and the network"
        ) from None


def _of_rows(rows: list[dict[str, Any]], name: str, start: int) -> Iterator[Prompt]:
    """Rows of a table take the road of lines, so that a shape means the same in both."""
    lines = [orjson.dumps(_unpadded(row), default=str) for row in rows]
    numbers = [start + i + 1 for i in range(len(rows))]
    yield from _of_batch(LineBatch(0, lines, numbers, [0] * len(rows)), name)


def _unpadded(value: Any) -> Any:
    """Without the nulls that a table puts where another row's object has a key."""
    if isinstance(value, dict):
        return {k: _unpadded(v) for k, v in value.items() if v is not None}
    if isinstance(value, list):
        return [_unpadded(v) for v in value]
    return value


def _of_batch(batch: LineBatch, name: str) -> Iterator[Prompt]:
    """The prompt of each line, by the same reader as `check` (its columns before the answer)."""
    table = table_from(batch).unique("line", keep="first", maintain_order=True)  # n answers: one
    wanted = ("line", "status", "note_detail", "record_id", "messages_json", "prompt_text")
    columns = table.select(*wanted, "system_text", "tools_json", "settings_json").rows()
    for raw, row in zip(batch.lines, columns, strict=True):
        line, status, detail, record_id, messages, text, system, tools, settings = row
        place = f"{name}:{line}"
        asked = orjson.loads(messages) if messages else None
        if status == Status.UNREADABLE.value:
            asked = _bare(raw)
            if asked is None:
                raise InputError(f"{place}: not a JSON object: {detail}; mend or remove the line")
        elif not asked and text:
            asked = [{"role": "user", "content": text}]
            if system:
                asked.insert(0, {"role": "system", "content": system})
        if not asked:
            asked, tools = _elsewhere(raw, tools, place)
        if not asked:
            raise InputError(
                f"{place}: no prompt; looked for messages and {', '.join(PROMPT_KEYS)}."
                " Mend or remove the line"
            )
        own = tuple(orjson.loads(settings)) if settings else ()
        yield Prompt(record_id, asked, orjson.loads(tools) if tools else None, place, own)


def _bare(raw: bytes) -> list[Any] | None:
    """A line that is one JSON string: the prompt itself."""
    value, _note, _detail = load(raw, False)
    return [{"role": "user", "content": value}] if isinstance(value, str) and value else None


def _elsewhere(raw: bytes, tools: str | None, place: str) -> tuple[list[Any] | None, str | None]:
    """The question of a line that holds no answer, so that its shape is none `check` knows: a
    request body (also one of OpenAI's batch files), or one of PROMPT_KEYS. Of several `turns` the
    first: the next one needs its answer. Raises InputError for several prompts on one line.
    """
    value, _note, _detail = load(raw, False)
    found = mapping(value)
    found = mapping(found.get("body")) or found
    row = Row()
    read_request(row, found)
    cells = row.cells
    tools = tools or cells["tools_json"]
    if cells["messages_json"]:
        return orjson.loads(cells["messages_json"]), tools
    for key, held in (("", cells["prompt_text"]), *((key, found.get(key)) for key in PROMPT_KEYS)):
        texts = held if isinstance(held, list) else []
        if len(texts) > 1 and key != "turns" and all(isinstance(one, str) for one in texts):
            raise InputError(
                f"{place}: {key} holds {len(held)} prompts, and only one of them would be asked:"
                " give each a line of its own"
            )
        first = held[0] if isinstance(held, list) and held else held
        if isinstance(first, str) and first.strip():
            return [{"role": "user", "content": first}], tools
    return None, tools
