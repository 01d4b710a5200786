"""Rows of ids as trainers keep them: `input_ids` and `loss_mask`, from the files of three formats.

What enters: a JSONL or Parquet file, a folder of them, or a folder of `datasets.save_to_disk`. What
leaves: `IdRow`s in order, the ids still as they were found, or the reason why a row can not be
read. It promises that nothing of a folder is executed or unpickled, that no file outside it is
opened, that no row is skipped, and that a folder is read whole or refused (of a saved data set the
files that it lists, of an export of ours for SpecForge the file of ids; links to folders aside).
"""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson

from eagle3_data.shards.manifest import MANIFEST
from eagle3_data.shards.schema import ShardError
from eagle3_data.shards.targets import CONVERSATIONS, HEADING, NOTE, TOKENISED

if TYPE_CHECKING:
    import pyarrow as pa

JSON_LINES = "jsonl"
COLUMNAR = ("arrow", "parquet")
_TITLES = {"arrow": "Arrow", "parquet": "Parquet", JSON_LINES: "JSON lines"}
STATE, DICT = "state.json", "dataset_dict.json"
KEYS = ("input_ids", "loss_mask")
NAMES = ("id", "source_id", "split")
"""What a row may say of itself."""
ROWS = 512
_ABOUT = (STATE, DICT, "dataset_info.json", "dataset_infos.json", "stats.json")
"""JSON files of a data set folder that hold no rows."""
_SPLIT_FILE = re.compile(
    r"(train|training|val|valid|validation|dev|test|eval)(-\d{5}-of-\d{5}(-[0-9a-f]+)?)?"
    r"\.(?i:parquet|arrow|(jsonl?|ndjson)(\.gz|\.zst)?)"
)
"""Files of one split: `val.jsonl`, or `test-00000-of-00002.parquet` as hubs name them."""


@dataclass(frozen=True, slots=True)
class IdRow:
    """One row. `line`: physical line, or row from 1; `offset`: bytes, 0 where there are no lines.
    `split`: as the row says, else None. `fault`: why the row could not be read, None when it was.
    """

    line: int
    offset: int
    ids: Any = None
    mask: Any = None
    record_id: str | None = None
    conversation: str | None = None
    split: str | None = None
    fault: str | None = None


@dataclass(frozen=True, slots=True)
class IdFile:
    """One file of rows. `path`: how it is named to the user; `real`: what is opened; `split`: as
    its name or its folder says, else None. `note`: what lies beside it and is not read.
    """

    path: str
    real: Path
    kind: str
    split: str | None = None
    note: str = ""

    def rows(self) -> Iterator[IdRow]:
        """The rows in order. Raises ShardError when the file is not of its kind."""
        if self.kind == JSON_LINES:
            yield from _of_lines(self)
        else:
            yield from _of_tables(self)


def find(paths: list[str]) -> list[IdFile]:
    """The files of rows behind `paths`: files, globs or folders, each once. Raises ShardError and
    InputError.
    """
    from eagle3_data.records.sources import expand

    found: list[IdFile] = []
    for given in paths:
        path = Path(given)
        if path.is_dir():
            found += _in_folder(path)
            continue
        if _kind(path.name) in COLUMNAR and not path.is_file() and not glob.has_magic(given):
            raise ShardError(f"{path} is not a file: check the path")
        found += [_file(s.path, s.real, _kind(s.path) or JSON_LINES) for s in expand([given])]
    once: dict[Path, IdFile] = {}
    for file in found:
        once.setdefault(file.real.resolve(), file)
    return list(once.values())


def _kind(name: str) -> str | None:
    """The kind of a file by its ending, in whichever case; None for one that holds no rows."""
    from eagle3_data.records.sources import ENDINGS

    name = name.lower()
    for kind in COLUMNAR:
        if name.endswith(f".{kind}"):
            return kind
    return JSON_LINES if name.endswith(ENDINGS) and name not in _ABOUT else None


def _in_folder(folder: Path) -> list[IdFile]:
    """The files of rows of a folder, or of the saved data set that it is. Raises ShardError where
    some of the rows would not be read, or read twice.
    """
    from eagle3_data.records.sources import expand

    if (folder / MANIFEST).is_file():
        raise ShardError(f"{folder} holds {MANIFEST}: shards are not imported, they are shards")
    if (folder / DICT).is_file():
        raise ShardError(f"{folder} holds several splits: name the folder of one of them")
    held = _held(folder)
    if len(held) > 1:
        told = ", ".join(f"{_TITLES[kind]} ({names[0]})" for kind, names in held.items())
        raise ShardError(
            f"{folder} holds several kinds of files: {told}: name the files to read instead of"
            " the folder"
        )
    deeper = _deeper(folder)
    if deeper:
        more = f", and {len(deeper) - 3} more" if len(deeper) > 3 else ""
        raise ShardError(
            f"{folder} holds rows in subfolders ({', '.join(deeper[:3])}{more}): name the files or"
            " the folders to read one by one"
        )
    if (folder / STATE).is_file():
        return _saved(folder)
    if not held:
        raise ShardError(
            f"{folder} holds no files of rows (.jsonl, .parquet, or what save_to_disk writes):"
            " check the path"
        )
    ((kind, names),) = held.items()
    if kind == "arrow":  # with a data set's own files lie those of its cache
        raise ShardError(
            f"{folder} holds Arrow files ({names[0]}) without {STATE}, which says which of them"
            " are the data set: name the files to read"
        )
    if _ours(folder, names):
        beside = (
            f"{folder} is an export of eagle3-data: {TOKENISED} is read; {CONVERSATIONS} holds the"
            " texts of the same samples and is not"
        )
        return [IdFile(str(folder / TOKENISED), folder / TOKENISED, kind, note=beside)]
    return [_file(s.path, s.real, kind) for s in expand([str(folder / name) for name in names])]


def _ours(folder: Path, names: list[str]) -> bool:
    """Whether a folder is what `export --to specforge` wrote, and nothing else: its note is the
    last file of a whole export.
    """
    if names != sorted((CONVERSATIONS, TOKENISED)) or not (folder / NOTE).is_file():
        return False
    with (folder / NOTE).open("rb") as note:
        return note.read(len(HEADING)) == HEADING.encode()


def _held(folder: Path) -> dict[str, list[str]]:
    """Kind → files of rows in a folder, by name."""
    held: dict[str, list[str]] = {}
    for name in sorted(entry.name for entry in folder.iterdir() if entry.is_file()):
        kind = "arrow" if name == STATE else _kind(name)
        if kind is not None:
            held.setdefault(kind, []).append(name)
    return {kind: held[kind] for kind in _TITLES if kind in held}


def _deeper(folder: Path) -> list[str]:
    """The subfolders that hold files of rows. Links to folders are not followed."""
    found = []
    for place, inside, files in os.walk(folder, onerror=_unreadable):
        inside.sort()
        if Path(place) != folder and any(_kind(name) for name in files):
            found.append(Path(place).relative_to(folder).as_posix())
    return found


def _unreadable(error: OSError) -> None:
    raise ShardError(f"{error.filename} can not be read ({error.strerror}): check it") from error


def _file(path: str, real: Path, kind: str) -> IdFile:
    """A file of rows; its name may say of which split they are."""
    split = _SPLIT_FILE.fullmatch(Path(path).name)
    return IdFile(path, real, kind, split[1] if split else None)


def _saved(folder: Path) -> list[IdFile]:
    """The Arrow files of a saved data set, and the split that it was saved as."""
    state = folder / STATE
    try:
        body = orjson.loads(state.read_bytes())
        names = [entry["filename"] for entry in body["_data_files"]]
    except (orjson.JSONDecodeError, LookupError, TypeError):
        raise ShardError(f"{state} is not the state of a saved data set: save it again") from None
    for name in names:
        if not isinstance(name, str) or name != Path(name).name or not name:
            raise ShardError(f"{state} names a file outside its folder ({name!r:.80}): not opened")
        if not (folder / name).is_file():
            raise ShardError(f"{folder / name} is missing: save the data set again")
    # "train[:10%]" is a part of train; of "train+test" nobody can tell which row is of which
    said = body.get("_split")
    split = re.fullmatch(r"(\w[\w.-]*)(\[.*\])?", said) if isinstance(said, str) else None
    told = split[1] if split else None
    return [IdFile(str(folder / name), folder / name, "arrow", told) for name in names]


def _of_lines(file: IdFile) -> Iterator[IdRow]:
    from eagle3_data.records.lines import read_batches
    from eagle3_data.records.sources import Source

    source = Source(file.path, file.real, file.real.stat().st_size)
    for batch in read_batches(source, 0):
        rows = [
            _of_line(*one) for one in zip(batch.lines, batch.numbers, batch.offsets, strict=True)
        ]
        for fault in batch.faults:
            if fault.number is None:
                raise ShardError(f"{file.path} holds no rows of ids: {fault.detail}")
            rows.append(
                IdRow(fault.number, fault.offset or 0, fault=fault.detail or "can not be read")
            )
        yield from sorted(rows, key=lambda row: row.line)


def _of_line(line: bytes, number: int, offset: int) -> IdRow:
    try:
        value = orjson.loads(line)
    except orjson.JSONDecodeError:
        return IdRow(number, offset, fault="the line is not JSON")
    if not isinstance(value, dict):
        return IdRow(number, offset, fault="the line is no object")
    ids, mask = (value.get(key) for key in KEYS)
    return IdRow(number, offset, ids, mask, *(_name(value.get(key)) for key in NAMES))


def _of_tables(file: IdFile) -> Iterator[IdRow]:
    import pyarrow as pa

    number = 0
    try:
        for batch in _batches(file):
            batch.validate(full=True)  # offsets of a foreign file may point anywhere
            lists = [batch.column(key) for key in KEYS]
            nothing = [None] * batch.num_rows
            names = [
                batch.column(key).to_pylist() if key in batch.schema.names else nothing
                for key in NAMES
            ]
            for i in range(batch.num_rows):
                number += 1
                ids, mask = (_values(column[i]) for column in lists)
                yield IdRow(number, 0, ids, mask, *(_name(column[i]) for column in names))
    except ShardError:  # a ValueError too, and it says what to do
        raise
    except (pa.ArrowException, OSError, ValueError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0][:200]
        raise ShardError(f"{file.path} can not be read ({reason}): check the file") from None


def _batches(file: IdFile) -> Iterator[pa.RecordBatch]:
    """Batches with the columns of KEYS, and those of NAMES that are there."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    if file.kind == "parquet":
        with pq.ParquetFile(file.real) as parquet:
            names = _needed(file, parquet.schema_arrow)
            yield from parquet.iter_batches(ROWS, columns=names)
        return
    with pa.memory_map(str(file.real)) as mapped, pa.ipc.open_stream(mapped) as stream:
        names = _needed(file, stream.schema)
        for batch in stream:
            yield batch.select(names)


def _needed(file: IdFile, schema: pa.Schema) -> list[str]:
    missing = [key for key in KEYS if key not in schema.names]
    if missing:
        raise ShardError(
            f"{file.path} has no column {missing[0]}: rows of ids have input_ids and loss_mask"
        )
    needed = [*KEYS, *(key for key in NAMES if key in schema.names)]
    for key in needed:
        if schema.names.count(key) > 1:
            raise ShardError(f"{file.path} has several columns {key}: write it with one of them")
    return needed


def _values(scalar: Any) -> Any:
    values = getattr(scalar, "values", None)
    return None if values is None else values.to_numpy(zero_copy_only=False)


def _name(value: Any) -> str | None:
    if isinstance(value, str) and value:
        return value
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else None
