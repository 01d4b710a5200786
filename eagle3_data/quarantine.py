"""Quarantine: the lines of a check, split by verdict into files that are valid inputs again.

What enters: a complete `Report` and the sources it was made from. What leaves: a folder with
`clean.jsonl`, `quarantine.jsonl` (every other non-blank line, unreadable ones too),
`findings.jsonl`, `report.json`, with repairs `repairs.jsonl`, and `manifest.json` last. It
promises the original bytes of every line, memory that does not grow with the lines, that inputs
which changed since the check are an error, and that only files it wrote itself are replaced.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson
import polars as pl

from eagle3_data.records.sniff import BOM
from eagle3_data.records.streams import open_stream
from eagle3_data.writing import Draft, OutputError, refuse_unwritable

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


def write_quarantine(
    report: Report,
    sources: Sequence[Source],
    directory: Path,
    *,
    overwrite: bool = False,
    options: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Split the lines of `sources` by their verdicts into `directory`; the manifest written.

    `options` is stored in the manifest as given. Raises OutputError when the report is partial, a
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

        def draft(name: str) -> Draft:
            drafts.append(Draft(directory / name, overwrite))
            return drafts[-1]

        clean, quarantined = Lines(draft(CLEAN)), Lines(draft(QUARANTINE))
        repaired = report.records["repair"].is_not_null().any()
        repairs = Lines(draft(REPAIRS)) if repaired else None
        inputs = [
            _split(report, number, source, clean, quarantined, repairs)
            for number, source in enumerate(sources)
        ]
        if (clean.count, quarantined.count) != (
            report.ledger.kept, report.ledger.quarantined + report.ledger.unreadable,
        ):  # fmt: skip
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
        if not repaired:
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


def _split(
    report: Report,
    file_no: int,
    source: Source,
    clean: Lines,
    quarantined: Lines,
    repairs: Lines | None,
) -> dict[str, Any]:
    """Copy the lines of one source to where they belong; the source's entry in the manifest."""
    known = _known(report.records, file_no)
    wanted = next(known, None)
    lines = 0
    with open_stream(source.real) as stream:
        readline = stream.reader.readline
        number = offset = 0
        while chunk := readline(CHUNK):
            number += 1
            if offset == 0 and chunk.startswith(BOM):  # belongs to the file, not to its first line
                chunk, offset = chunk[len(BOM) :], len(BOM)
            at = offset
            if wanted is None or wanted.number != number:
                while True:  # a blank line, of whatever length
                    offset += len(chunk)
                    if chunk.strip():
                        raise _changed(source)
                    if chunk.endswith(b"\n") or not (chunk := readline(CHUNK)):
                        break
                continue
            if wanted.repair is not None and wanted.keep and repairs is not None:
                while not chunk.endswith(b"\n") and (more := readline(CHUNK)):
                    chunk += more
                offset += len(chunk)
                _repaired(chunk, wanted, source, clean, repairs)
            else:
                target = clean if wanted.keep else quarantined
                target.begin()
                while True:
                    target.add(chunk)
                    offset += len(chunk)
                    if chunk.endswith(b"\n") or not (chunk := readline(CHUNK)):
                        break
            if at != wanted.offset or not 0 <= offset - at - wanted.length <= 2:
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
