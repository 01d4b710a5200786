"""Quarantine: the lines of a check, split by verdict into files that are valid inputs again.

What enters: a complete `Report` and the sources it was made from. What leaves: a folder with
`clean.jsonl`, `quarantine.jsonl` (every other non-blank line, unreadable ones too),
`findings.jsonl`, `report.json`, with repairs `repairs.jsonl`, and `manifest.json` last. It
promises the original bytes of every line, memory that does not grow with the lines, that inputs
which changed since the check are an error, and that only files it wrote itself are replaced.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson
import polars as pl

from eagle3_data.records.repair import Markers, repaired_line
from eagle3_data.records.sniff import BOM
from eagle3_data.records.streams import open_stream
from eagle3_data.writing import Draft, OutputError, refuse_folder, refuse_unwritable, sweep

if TYPE_CHECKING:
    from eagle3_data.audit.report import Report
    from eagle3_data.records.lines import Source

CLEAN, QUARANTINE, REPAIRS = "clean.jsonl", "quarantine.jsonl", "repairs.jsonl"
FINDINGS, REPORT, MANIFEST = "findings.jsonl", "report.json", "manifest.json"
KIND, SCHEMA_VERSION = "quarantine", 1
CHUNK = 1 << 20


@dataclass(slots=True)
class Lines:
    """A file of lines being written. A missing line end is added only when another line follows."""

    draft: Draft
    count: int = 0
    _open: bool = False

    def begin(self) -> None:
        """Start the next line."""
        if self._open:
            # the source ended without a line end; at the end of our file that state is kept, so
            # that a torn last line is still torn when it is checked again
            self.draft.write(b"\n")
        self.count += 1

    def add(self, data: bytes) -> None:
        """Append a piece of the line that `begin` started; the last one brings the line end."""
        self.draft.write(data)
        self._open = not data.endswith(b"\n")


@dataclass(frozen=True, slots=True)
class Kept:
    """What the check knew of one physical line."""

    number: int
    offset: int
    length: int
    keep: bool
    repair: str | None


@dataclass(slots=True)
class Split:
    """Where lines go, and how the check mended them."""

    clean: Lines
    quarantined: Lines
    repairs: Lines | None
    markers: Sequence[Markers]
    every_turn: bool

    def copy(self, pieces: Iterable[bytes], known: Kept, source: Source) -> int:
        """Write one line to its place; its size with the line end."""
        if known.keep and known.repair is not None and self.repairs is not None:
            return self._mend(b"".join(pieces), known, self.repairs, source)
        target = self.clean if known.keep else self.quarantined
        target.begin()
        size = 0
        for piece in pieces:
            target.add(piece)
            size += len(piece)
        return size

    def _mend(self, line: bytes, known: Kept, repairs: Lines, source: Source) -> int:
        body = line.rstrip(b"\r\n")
        mended = repaired_line(body, self.markers, every=self.every_turn)
        if mended is None:
            raise OutputError(
                f"{source.path}:{known.number} was mended in the check but can not be written"
                " mended: split without --repair"
            )
        self.clean.begin()
        self.clean.add(mended + line[len(body) :])
        entry = {
            "file": source.path,
            "line": known.number,
            "repairs": known.repair.split(",") if known.repair else [],
            "original": body.decode(),  # it parsed as JSON, so it is UTF-8
        }
        repairs.begin()
        repairs.add(orjson.dumps(entry) + b"\n")
        return len(line)


def write_quarantine(
    report: Report,
    sources: Sequence[Source],
    directory: Path,
    *,
    overwrite: bool = False,
    repair: Sequence[Markers] = (),
    every_turn: bool = False,
    options: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Split the lines of `sources` by their verdicts into `directory`; the manifest written.

    `repair`: the marker pairs that the check mended with; `every_turn`: of all turns. `options`
    is stored in the manifest as given. Raises OutputError when the report is partial, a
    file is in the way, or an input changed since it was checked; OSError when the disk is full.
    After an error no manifest is there.
    """
    if report.partial:
        raise OutputError(
            "the check was interrupted: a split of half the lines would look like a whole one"
        )
    refuse_occupied(directory, sources, overwrite=overwrite)
    drafts: list[Draft] = []
    try:
        directory.mkdir(parents=True, exist_ok=True)
        sweep(directory / REPAIRS)  # the only file that is not written every time

        def draft(name: str) -> Draft:
            drafts.append(Draft(directory / name, overwrite))
            return drafts[-1]

        kept = report.records.filter(verdict="keep")
        mended = kept["repair"].is_not_null().any()
        into = Split(
            Lines(draft(CLEAN)),
            Lines(draft(QUARANTINE)),
            Lines(draft(REPAIRS)) if mended else None,
            repair,
            every_turn,
        )
        inputs = [_split(report, number, source, into) for number, source in enumerate(sources)]
        lost = report.ledger.quarantined + report.ledger.unreadable
        if (into.clean.count, into.quarantined.count) != (report.ledger.kept, lost):
            raise AssertionError("lines written differ from the ledger")
        from eagle3_data.audit.formats import render

        draft(FINDINGS).write(render(report, "jsonl"))
        draft(REPORT).write(render(report, "json"))
        manifest = _manifest(report, inputs, drafts, options or {})
        draft(MANIFEST).write(orjson.dumps(manifest, option=orjson.OPT_INDENT_2) + b"\n")
        for each in drafts:
            each.close()
        # an old manifest must not vouch for new files, however far the renames below come
        (directory / MANIFEST).unlink(missing_ok=True)
        if not mended:
            (directory / REPAIRS).unlink(missing_ok=True)
        for each in drafts:
            each.land()
        return manifest
    finally:
        for each in drafts:
            each.drop()


def refuse_occupied(directory: Path, sources: Sequence[Source], *, overwrite: bool) -> None:
    """Raise OutputError when the folder can not take a split. For before the check, and after."""
    if not directory.exists():
        existing = next(parent for parent in directory.absolute().parents if parent.exists())
        if not existing.is_dir():
            raise OutputError(f"{directory}: {existing} is not a directory: choose another place")
        refuse_folder(existing)
        return
    if not directory.is_dir():
        raise OutputError(f"{directory} is a file: name a folder for the split")
    ours = _written_before(directory)
    for name in (CLEAN, QUARANTINE, REPAIRS, FINDINGS, REPORT, MANIFEST):
        path = directory / name
        if not path.exists():
            continue
        if any(source.real.samefile(path) for source in sources):
            raise OutputError(
                f"{path} is an input of this run: choose another folder, inputs are never replaced"
            )
        refuse_unwritable(path, overwrite=overwrite)
        if name != MANIFEST and ours.get(name) is None:
            raise OutputError(
                f"{path} is not from an earlier split: move it away, or choose another folder"
            )
        if name != MANIFEST and ours[name] != _sha256(path):
            raise OutputError(
                f"{path} was changed since it was written: move it away, or choose another folder"
            )
    refuse_unwritable(directory / MANIFEST, overwrite=True)


def _written_before(directory: Path) -> dict[str, str]:
    """Name -> SHA-256 of the files that the manifest names; OutputError when it is not ours."""
    path = directory / MANIFEST
    if not path.exists():
        return {}
    try:
        manifest = orjson.loads(path.read_bytes())
        if (manifest["tool"], manifest["kind"]) != ("eagle3-data", KIND):
            raise ValueError
        return {file["name"]: file["sha256"] for file in manifest["files"]}
    except (ValueError, KeyError, TypeError):
        raise OutputError(
            f"{path} is not the manifest of a split: move it away, or choose another folder"
        ) from None


def _split(report: Report, file_no: int, source: Source, into: Split) -> dict[str, Any]:
    """Copy the lines of one source to where they belong; the source's entry in the manifest."""
    known = _known(report.records, file_no)
    wanted = next(known, None)
    lines = number = offset = 0
    with open_stream(source.real) as stream:
        readline = stream.reader.readline
        while chunk := readline(CHUNK):
            number += 1
            if offset == 0 and chunk.startswith(BOM):  # belongs to the file, not to its first line
                chunk, offset = chunk[len(BOM) :], len(BOM)
            line = _pieces(chunk, readline)
            if wanted is None or wanted.number != number:
                for piece in line:
                    offset += len(piece)
                    if piece.strip():  # only a blank line is unknown to the check
                        raise _changed(source)
                continue
            offset += into.copy(line, wanted, source)
            if not 0 <= offset - wanted.offset - wanted.length <= 2:  # at most \r\n is no content
                raise _changed(source)
            lines += 1
            wanted = next(known, None)
    if wanted is not None:
        raise _changed(source)
    return {
        "path": source.path,
        "bytes": source.real.stat().st_size,
        "sha256": _sha256(source.real),
        "lines": lines,
    }


def _pieces(first: bytes, readline: Callable[[int], bytes]) -> Iterator[bytes]:
    """The rest of a line after its first piece, never more than CHUNK bytes in memory."""
    piece = first
    while piece:
        yield piece
        piece = b"" if piece.endswith(b"\n") else readline(CHUNK)


def _known(records: pl.DataFrame, file_no: int) -> Iterator[Kept]:
    """The lines of one file in order. A line with several records has one verdict."""
    lines = (
        records.lazy()
        .filter((pl.col("file_no") == file_no) & pl.col("line").is_not_null())
        .group_by("line")
        .agg(
            pl.col("offset").first(),
            pl.col("length").first(),
            (pl.col("verdict") == "keep").first().alias("keep"),
            pl.col("repair").drop_nulls().first(),
        )
        .sort("line")
        .collect()
    )
    for row in lines.iter_rows():
        yield Kept(*row)


def _changed(source: Source) -> OutputError:
    return OutputError(
        f"{source.path} changed while it was being checked: run again when it is complete"
    )


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _manifest(
    report: Report,
    inputs: list[dict[str, Any]],
    drafts: Sequence[Draft],
    options: Mapping[str, Any],
) -> dict[str, Any]:
    return {
        "schema_version": SCHEMA_VERSION,
        "tool": "eagle3-data",
        "kind": KIND,
        "versions": dict(report.versions),
        "inputs": inputs,
        "profile": asdict(report.profile),
        "tokenizer": asdict(report.tokenizer) if report.tokenizer else None,
        "options": dict(options),
        "ledger": asdict(report.ledger),
        "files": [{"name": d.path.name, "bytes": d.size, "sha256": d.sha256} for d in drafts],
    }
