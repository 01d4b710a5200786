"""`verify`: a directory of shards against its manifest, its schema and every invariant of a sample.

What enters: a directory, and a tokenizer when texts are to be compared. What leaves: a
`Verification` with findings in the form of the audit. It promises that every shard is read, hashed
and validated as collected data, that a missing, extra, truncated, swapped or edited file is named
as such and whatever else lies there by its name, and that damaged files give findings and no
traceback.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from eagle3_data.shards import entries, rules
from eagle3_data.shards.invariants import (
    JSON_TEXTS,
    broken_rows,
    no_json,
    other_profiles,
    unmade_ids,
)
from eagle3_data.shards.journal import digest
from eagle3_data.shards.manifest import MANIFEST, Manifest, Place, Shard, load_manifest
from eagle3_data.shards.part import Sums
from eagle3_data.shards.schema import (
    ForeignVersion,
    ShardError,
    ShardFacts,
    arrow_schema,
    read_facts,
)
from eagle3_data.shards.texts import NAMES, text_differs
from eagle3_data.shards.verified import Finding, Verification
from eagle3_data.shards.whole import origins, whole
from eagle3_data.tokens.samples import GRADE, PROMPT_SOURCE, SpanKind

if TYPE_CHECKING:
    from eagle3_data.tokens.tokenizer import Tokenizer

TEXTS_A_SHARD = 64
"""Samples of a shard whose text is compared without `deep`, spread evenly over it."""

LIGHT = (
    "choice",
    "turn",
    "sample_id",
    "model",
    "server",
    "server_version",
    "finish_reason",
    "stop_reason",
    "grade",
    "grade_reason",
    "prompt_source",
    "prompt_tokens",
    "completion_tokens",
    "prompt_len",
    "supervised_tokens",
    "latency_s",
    "created",
    "repair",
    "conversation_id",
    "split",
)


def verify(
    directory: str | Path,
    *,
    deep: bool = False,
    tokenizer: str | Path | Tokenizer | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Verification:
    """Check everything that can be checked of the shards in `directory`.

    `tokenizer`: its folder or file, or an opened one; without it ids are not compared with texts.
    `deep`: compare the texts of all samples, not of some a shard. `progress` is called with (bytes
    read, bytes in all).

    The `Verification` has `sound`, `exit_code` (0, or 1 when errors were found) and `codes`, its
    text is the report, `report()` the same in the form of `check`. Raises ShardError for a call
    that can not be answered: no directory, none of shards, a foreign schema version, `deep` without
    a tokenizer, a tokenizer that is not the shards' own; and TokenizerError.
    """
    path = Path(directory)
    if not path.is_dir():
        raise ShardError(f"{path} is not a directory: name the folder that `convert` wrote")
    if deep and tokenizer is None:
        raise ShardError("the texts can not be compared without the tokenizer: pass --tokenizer")
    try:
        manifest = load_manifest(path)
    except ForeignVersion:
        raise
    except ShardError as error:
        other = entries.no_shards(path)
        if other is not None:
            raise ShardError(other) from None
        code = rules.MANIFEST_CHANGED if (path / MANIFEST).exists() else rules.MANIFEST_MISSING
        return Verification(path, [path / MANIFEST], None, findings=[Finding(code, 0, str(error))])
    facts = manifest.facts
    if isinstance(tokenizer, str | Path):
        from eagle3_data.tokens.tokenizer import open_tokenizer

        tokenizer = open_tokenizer(tokenizer)
    if tokenizer is not None and tokenizer.fingerprint != facts.tokenizer_hash:
        raise ShardError(
            f"{path} was made with the tokenizer {facts.tokenizer} ({facts.tokenizer_hash[:12]}),"
            f" {tokenizer.path} is another one ({tokenizer.fingerprint[:12]}):"
            " pass the one of the capture"
        )
    run = _Run(path, manifest, tokenizer, deep)
    total = sum(shard.bytes for shard in manifest.shards)
    done = 0
    run.directory()
    for number, shard in enumerate(manifest.shards):
        run.shard(number, shard)
        done += shard.bytes
        if progress is not None:
            progress(done, total)
    run.whole()
    return run.out


@dataclass(slots=True)
class _Run:
    """One verification on its way."""

    path: Path
    manifest: Manifest
    tokenizer: Tokenizer | None
    deep: bool
    out: Verification = field(init=False)
    _schema_v1: Any = None
    _sources: list[pl.DataFrame] = field(default_factory=list)
    _vouched: bool = True
    """So far every shard was read to its end, and its bytes are the manifest's."""

    def __post_init__(self) -> None:
        files = [self.path / shard.name for shard in self.manifest.shards]
        self.out = Verification(self.path, [*files, self.path / MANIFEST], self.manifest)
        self.out.texts_compared = self.tokenizer is not None

    def directory(self) -> None:
        """What lies in the directory against what should."""
        at = len(self.manifest.shards)
        if not self.manifest.sound:
            self._tell(rules.MANIFEST_CHANGED, at, "checksum or sums do not fit its content")
        places = {path: number for number, path in enumerate(self.out.paths)}
        listed = {MANIFEST, *(shard.name for shard in self.manifest.shards)}
        for code, path, detail in entries.odd(self.path, listed):
            if path not in places:
                places[path] = len(self.out.paths)
                self.out.paths.append(path)
            self._tell(code, places[path], detail)

    def shard(self, number: int, shard: Shard) -> None:
        """One file, from its bytes to its samples."""
        path = self.path / shard.name
        vouched, self._vouched = self._vouched, False
        if not path.is_file():
            self._tell(rules.SHARD_MISSING, number, f"{shard.rows} samples, {shard.bytes} bytes")
            return
        try:
            changed = self._bytes(number, shard, path)
            with pq.ParquetFile(path, page_checksum_verification=True) as file:
                if not changed and file.metadata.num_rows != shard.rows:
                    self._rows(number, shard, file.metadata.num_rows)
                if self._schema(number, file.schema_arrow, path):
                    sums = Sums()
                    broken: dict[tuple[str, str], str] = {}
                    for group in _groups(file):
                        self._group(number, sums.rows, group, broken)
                        sums.add(group)
                    for (column, check), case in broken.items():
                        self._tell(
                            rules.CONTRACT_BROKEN, number, f"{column}: {check} fails, {case}"
                        )
                    if not changed:
                        self._sums(shard, sums)
                        self._vouched = vouched
                    elif sums.rows != shard.rows:
                        self._rows(number, shard, sums.rows)
        except (pa.ArrowException, OSError, ValueError) as error:
            reason = (str(error).splitlines() or [type(error).__name__])[0][:200]
            self._tell(rules.SHARD_UNREADABLE, number, reason)

    def whole(self) -> None:
        """What only all shards together show."""
        self.out.findings += whole(self.out, self._sources, vouched=self._vouched)

    def _bytes(self, number: int, shard: Shard, path: Path) -> bool:
        """Size and digest; whether they differ from the manifest's."""
        found = digest(path)
        if found == shard.sha256:
            return False
        size = path.stat().st_size
        others = {other.sha256: other.name for other in self.manifest.shards}
        if found in others:
            self._tell(rules.SHARD_SWAPPED, number, f"holds the bytes of {others[found]}")
        elif size < shard.bytes:
            self._tell(
                rules.SHARD_TRUNCATED,
                number,
                f"{size} bytes, {shard.bytes - size} fewer than written",
            )
        else:
            self._tell(
                rules.SHARD_CHANGED, number, f"{size} bytes of {shard.bytes}, SHA-256 {found[:12]}…"
            )
        return True

    def _rows(self, number: int, shard: Shard, found: int) -> None:
        self._tell(rules.ROWS_DIFFER, number, f"{found} rows, the manifest says {shard.rows}")

    def _sums(self, shard: Shard, sums: Sums) -> None:
        """What the manifest says of the rows. Only of bytes that it vouches for: others are told as
        such, and their rows prove nothing against it.
        """
        for name, said, found in sums.differing(shard):
            if name != "rows":  # another number of them has its own code
                detail = f"{shard.name}: {name} {_short(said)}, its rows give {_short(found)}"
                self._tell(rules.MANIFEST_CHANGED, len(self.manifest.shards), detail)

    def _schema(self, number: int, schema: pa.Schema, path: Path) -> bool:
        """Whether the samples of the file can be checked at all."""
        try:
            if read_facts(schema.metadata, path.name) != self.manifest.facts:
                self._tell(
                    rules.FACTS_DIFFER, number, _different(schema, self.manifest.facts, path)
                )
        except ShardError as error:
            self._tell(rules.SCHEMA_DIFFERS, number, str(error))
            return False
        wanted = arrow_schema()
        if schema.equals(wanted):
            return True
        names = [f.name for f in (*wanted, *schema) if f not in wanted or f not in schema]
        told = ", ".join(dict.fromkeys(names)) or "the order of the columns"
        self._tell(rules.SCHEMA_DIFFERS, number, f"differs from schema v1: {told}"[:300])
        return False

    def _group(
        self, number: int, start: int, group: pa.Table, broken: dict[tuple[str, str], str]
    ) -> None:
        from eagle3_data.shards import contract

        self._schema_v1 = self._schema_v1 or contract.contract()
        frame = pl.DataFrame(pl.from_arrow(group))
        for column, check, row, case in contract.broken(frame, self._schema_v1):
            place = "" if row is None else f", row {start + row + 1}"
            broken.setdefault((column, check), f"for example {case!r}{place}")
        light = (
            frame.select(LIGHT)
            .rename({"sample_id": "record_id"})
            .select(
                pl.lit(number, dtype=pl.Int32).alias("file_no"),
                pl.int_range(start + 1, start + 1 + pl.len(), dtype=pl.Int64).alias("line"),
                pl.lit("record").alias("status"),
                pl.all().exclude("grade", "prompt_source"),
                # a word that there is not breaks the contract; here it is null
                pl.col("grade").cast(GRADE, strict=False),
                pl.col("prompt_source").cast(PROMPT_SOURCE, strict=False),
            )
        )
        self.out.light.append(light)
        self._sources.append(origins(frame))
        for code, flags in broken_rows(group, self.manifest.facts).items():
            for i in flags.nonzero()[0].tolist():
                self._tell(code, number, _evidence(group, i), light.row(i, named=True))
        for i in unmade_ids(group).nonzero()[0].tolist():
            detail = f"sample_id: not made of line_hash, choice and turn, {_source(group, i)}"
            self._tell(rules.CONTRACT_BROKEN, number, detail, light.row(i, named=True))
        for i in other_profiles(group, self.manifest.facts).nonzero()[0].tolist():
            named = (
                f"profile {group['profile'][i].as_py()!s:.40}, not {self.manifest.facts.profile}"
            )
            detail = f"{named}, {_source(group, i)}"
            self._tell(rules.FACTS_DIFFER, number, detail, light.row(i, named=True))
        step = 1 if self.deep else max(1, self.manifest.shards[number].rows // TEXTS_A_SHARD)
        chosen = list(range(-start % step, group.num_rows, step))
        if not chosen:  # a group smaller than the step
            return
        for i, column, reason in no_json(group.select(JSON_TEXTS).take(chosen)):
            at = chosen[i]
            detail = f"{column}: no JSON ({reason}), {_source(group, at)}"
            self._tell(rules.CONTRACT_BROKEN, number, detail, light.row(at, named=True))
        if self.tokenizer is not None:
            self._texts(number, chosen, group, light)

    def _texts(self, number: int, chosen: list[int], group: pa.Table, light: pl.DataFrame) -> None:
        assert self.tokenizer is not None
        rows = group.take(chosen)
        found = text_differs(rows, self.tokenizer)
        places, thoughts = _thoughts(rows)
        for i, detail in text_differs(thoughts, self.tokenizer).items():
            found.setdefault(places[i], f"the thought, {detail}")
        for i, detail in sorted(found.items()):
            self._tell(rules.TEXT_DIFFERS, number, detail, light.row(chosen[i], named=True))

    def _tell(
        self, code: str, file_no: int, detail: str, row: dict[str, Any] | None = None
    ) -> None:
        self.out.findings.append(Finding(code, file_no, detail, row))


def _groups(file: pq.ParquetFile) -> Iterator[pa.Table]:
    for group in range(file.num_row_groups):
        yield file.read_row_group(group)


def _thoughts(rows: pa.Table) -> tuple[list[int], pa.Table]:
    """The rows whose thoughts can be compared alone, and those: of the ids what they hold as a
    thought, of the texts `reasoning`.

    Only where both fields hold text: all of it in one is what servers write that have no reasoning
    parser, or one that waits for a marker, and no other column tells that from an exchange (`codes`
    lacks the rules that were ignored). And only where the ids hold one stretch of answer: without
    one the thought was never closed, and of two markers that close it a server may have split at
    the other.
    """
    frame = pl.DataFrame(pl.from_arrow(rows.select(NAMES))).with_row_index("place")
    both = [pl.col(name).str.contains(r"\S").fill_null(False) for name in ("reasoning", "content")]
    kind = pl.element().struct.field("kind")
    answers = pl.col("spans").list.eval(kind == SpanKind.CONTENT).list.sum()
    wanted = kind.is_in([SpanKind.REASONING, SpanKind.MARKER])
    none = pl.lit(None, dtype=pl.String)
    alone = frame.filter(*both, answers == 1).with_columns(
        pl.col("spans").list.eval(pl.element().filter(wanted)),
        # what ends the answer, which holds text, ends no thought
        content=none,
        tool_calls=none,
        stop_reason=none,
    )
    table = alone.select(NAMES).to_arrow(compat_level=pl.CompatLevel.oldest())
    return alone["place"].to_list(), table


def _short(value: Any) -> str:
    if isinstance(value, Place):
        file = value.file if len(value.file) <= 40 else f"…{value.file[-39:]}"
        at = f"{file}:{value.line} byte {value.offset}"
        return f"{at} choice {value.choice} turn {value.turn}"
    return str(value)[:40]


def _evidence(group: pa.Table, row: int) -> str:
    one = group.slice(row, 1)
    ids, mask = one["input_ids"].to_pylist()[0], one["loss_mask"].to_pylist()[0]
    extent = f" from {min(ids)} to {max(ids)}" if ids else ""
    names = ("seq_len", "prompt_len", "supervised_tokens", "finish_reason", "grade")
    counts = ("prompt_tokens", "completion_tokens")
    told = [f"{n} {one[n].to_pylist()[0]}" for n in (*names, *counts)]
    return (
        f"{len(ids)} ids{extent}, {len(mask)} mask values, {', '.join(told)}, {_source(group, row)}"
    )


def _source(group: pa.Table, row: int) -> str:
    file, line = (group[name][row].as_py() for name in ("file", "line"))
    return f"made from {file}:{line}"


def _different(schema: pa.Schema, facts: ShardFacts, path: Path) -> str:
    found = read_facts(schema.metadata, path.name).model_dump()
    told = [
        f"{key} {found[key]!s:.40}, not {value!s:.40}"
        for key, value in facts.model_dump().items()
        if found[key] != value
    ]
    return "; ".join(told)
