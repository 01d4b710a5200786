"""Export: shards become the files that a trainer or a fine-tuning service reads.

What enters: opened `Shards` and a target. What leaves: a folder with the target's files, and last a
note that says what the format can not hold. It promises exact ids and mask where the format has a
place for them, that every sample is written or counted as left out with its reason, and that files
appear whole, by one run at a time, beside nothing foreign and never among the shards, and over
existing ones only when asked.
"""

from __future__ import annotations

import contextlib
import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import orjson

from eagle3_data.shards import dialogue
from eagle3_data.shards.arrow_folder import ArrowFolder
from eagle3_data.shards.exported import Exported, note
from eagle3_data.shards.journal import locked
from eagle3_data.shards.reader import Shards, open_shards
from eagle3_data.shards.schema import ShardError
from eagle3_data.shards.targets import (
    ARROW,
    CONVERSATIONS,
    FORMATS,
    MESSAGES,
    NOTE,
    TOKEN_FREQ,
    TOKENISED,
    Target,
)
from eagle3_data.writing import Draft, OutputError, sweep

if TYPE_CHECKING:
    import pyarrow as pa

ROWS = 256
"""Samples in memory at a time."""

COUNTED = ("split", "seq_len", "supervised_tokens")
"""What is counted of samples that are written."""

Frequencies = Callable[[Mapping[int, int]], bytes]
"""Token id → times it is supervised, as the bytes of a `token_freq.pt`; see `draft.token_freq`."""


def export(
    shards: Shards | str | Path,
    target: Target | str,
    directory: str | Path,
    *,
    overwrite: bool = False,
    token_freq: Frequencies | None = None,
) -> Exported:
    """Write the samples of `shards` (narrow them with `where`) into `directory` for `target`.

    `token_freq` adds a `token_freq.pt` to an export for speculators. Raises ShardError (no shards,
    an unknown target, a damaged file) and OutputError (a foreign file or another run is in the
    folder, it is inside that of the shards, a file is in the way, it can not be written), OSError
    when the disk is full. After an error no note is there.
    """
    shards = shards if isinstance(shards, Shards) else open_shards(shards)
    try:
        target = Target(target)
    except ValueError:
        known = ", ".join(Target)
        raise ShardError(f"there is no target {str(target)!r}: use one of {known}") from None
    if token_freq is not None and target is not Target.SPECULATORS:
        raise ShardError(f"{TOKEN_FREQ} is for speculators only: leave it out")
    folder = Path(directory)
    with _taken(folder, shards.directory, target, overwrite=overwrite):
        return _exported(shards, target, folder, overwrite=overwrite, token_freq=token_freq)


def _exported(
    shards: Shards,
    target: Target,
    folder: Path,
    *,
    overwrite: bool,
    token_freq: Frequencies | None,
) -> Exported:
    names = (*FORMATS[target].files, *((TOKEN_FREQ,) if token_freq else ()))
    drafts: dict[str, Draft] = {}
    try:
        for name in (*names, NOTE):
            drafts[name] = Draft(folder / name, overwrite)
        tally = _Tally()
        _write(shards, target, drafts, tally, counting=token_freq is not None)
        if token_freq is not None:
            drafts[TOKEN_FREQ].write(token_freq(tally.frequencies()))
        exported = Exported(
            target=target,
            directory=folder,
            samples_held=shards.manifest.rows,
            splits_held=replace(shards, conditions=()).splits(),
            samples=tally.samples,
            tokens=tally.tokens,
            supervised_tokens=tally.supervised,
            grades=dict(sorted(tally.grades.items())),
            samples_written=tally.splits.total(),
            tokens_written=tally.tokens_written,
            supervised_tokens_written=tally.supervised_written,
            splits=dict(sorted(tally.splits.items(), key=lambda one: (-one[1], one[0]))),
            written=dict(tally.written),
            left_out={name: dict(found) for name, found in tally.left_out.items() if found},
            lost={name: dict(found) for name, found in tally.lost.items() if found},
        )
        drafts[NOTE].write(note(exported, shards).encode())
        for draft in drafts.values():
            draft.close()
        for name in (NOTE, TOKEN_FREQ):  # an old note must not vouch for new files, nor old counts
            (folder / name).unlink(missing_ok=True)
        for draft in drafts.values():
            draft.land()
        return exported
    finally:
        for draft in drafts.values():
            draft.drop()


@dataclass(slots=True)
class _Tally:
    """Counts of a run, exact. `splits`: those of the samples that a file holds."""

    samples: int = 0
    tokens: int = 0
    supervised: int = 0
    tokens_written: int = 0
    supervised_written: int = 0
    grades: Counter[str] = field(default_factory=Counter)
    splits: Counter[str] = field(default_factory=Counter)
    written: Counter[str] = field(default_factory=Counter)
    left_out: dict[str, Counter[str]] = field(default_factory=dict)
    lost: dict[str, Counter[str]] = field(default_factory=dict)
    _frequencies: Any = None

    def add(self, table: pa.Table, *, counting: bool) -> None:
        """Count a table of samples."""
        import pyarrow.compute as pc

        self.samples += table.num_rows
        self.tokens += _sum(table, "seq_len")
        self.supervised += _sum(table, "supervised_tokens")
        self.grades.update(table["grade"].to_pylist())
        if counting:
            ids, mask = (pc.list_flatten(table[n]).to_numpy() for n in ("input_ids", "loss_mask"))
            counts = np.bincount(ids[mask != 0])
            if self._frequencies is not None:
                longest = max(len(counts), len(self._frequencies))
                counts, before = (
                    np.pad(part, (0, longest - len(part))) for part in (counts, self._frequencies)
                )
                counts += before
            self._frequencies = counts

    def wrote(self, table: pa.Table) -> None:
        """Count a table of samples that are in a file."""
        self.tokens_written += _sum(table, "seq_len")
        self.supervised_written += _sum(table, "supervised_tokens")
        self.splits.update(table["split"].to_pylist())

    def frequencies(self) -> dict[int, int]:
        """Token id → times it is supervised, without zeros, in the order of ids."""
        counts = self._frequencies if self._frequencies is not None else np.zeros(0, np.int64)
        return {int(token): int(counts[token]) for token in np.flatnonzero(counts)}


def _rows_of(table: pa.Table, places: list[int]) -> pa.Table:
    import pyarrow as pa

    return table.take(pa.array(places, pa.int64()))  # of an empty list it can not tell the type


def _sum(table: pa.Table, column: str) -> int:
    import pyarrow.compute as pc

    return pc.sum(table[column]).as_py() or 0


@contextmanager
def _taken(folder: Path, source: Path, target: Target, *, overwrite: bool) -> Iterator[None]:
    """The folder for this run alone, made if need be, or refused; one that was made goes again when
    the run fails.
    """
    place = folder.resolve()
    for at in (place, *place.parents):
        if at.exists() and at.samefile(source):
            held = "is" if at == place else "lies in"
            raise OutputError(
                f"{folder} {held} the folder of the shards themselves: name one outside of it"
            )
    made = not folder.exists()
    if made:
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except FileExistsError:
            raise OutputError(f"{folder} is in the way: move it away, or name another") from None
    elif not folder.is_dir():
        raise OutputError(f"{folder} is a file: name a folder for the export")
    lock = locked(folder, OutputError)
    try:
        _refuse_filled(folder, target, overwrite=overwrite)
        yield
        made = False
    finally:
        if made:
            with contextlib.suppress(OSError):  # the error that led here is the one to tell
                folder.rmdir()
        os.close(lock)


def _refuse_filled(folder: Path, target: Target, *, overwrite: bool) -> None:
    for name in {NOTE, TOKEN_FREQ, *(name for form in FORMATS.values() for name in form.files)}:
        sweep(folder / name)  # what a run that was killed left there, for whichever target
    ours = (*FORMATS[target].files, NOTE, *((TOKEN_FREQ,) if target is Target.SPECULATORS else ()))
    present = sorted(entry.name for entry in folder.iterdir())
    foreign = [name for name in present if name not in ours]
    if foreign:
        raise OutputError(
            f"{folder} holds other files ({', '.join(foreign[:3])}): choose an empty folder"
        )
    if present and not overwrite:
        raise OutputError(
            f"{folder} holds an export ({', '.join(present[:3])}): choose another folder,"
            " or pass --overwrite"
        )


def _write(
    shards: Shards, target: Target, drafts: Mapping[str, Draft], tally: _Tally, *, counting: bool
) -> None:
    ends = frozenset(shards.facts.end_of_turn)
    needed = {*COUNTED, "grade", "input_ids", "loss_mask"}
    if target is not Target.SPECULATORS:
        needed |= set(dialogue.COLUMNS)
    if target is Target.SPECULATORS:
        tally.written[ARROW] = 0
        with ArrowFolder(drafts) as out:
            for table in _tables(shards, needed):
                tally.add(table, counting=counting)
                tally.written[ARROW] += out.add(table)
                tally.wrote(table)
        return
    name = CONVERSATIONS if target is Target.SPECFORGE else MESSAGES
    left_out = tally.left_out.setdefault(name, Counter())
    lost = tally.lost.setdefault(name, Counter())
    for each in (TOKENISED, name) if target is Target.SPECFORGE else (name,):
        tally.written[each] = 0
    for table in _tables(shards, needed):
        tally.add(table, counting=False)
        if target is Target.SPECFORGE:
            tally.written[TOKENISED] += _write_ids(table, drafts[TOKENISED])
        told_of: list[int] = []
        for place, row in enumerate(table.select(dialogue.COLUMNS).to_pylist()):
            try:
                told = dialogue.dialogue(row, _SPELLINGS[target], ends)
                line = _LINES[target](row, told.messages)
            except dialogue.Untellable as untellable:
                left_out[untellable.gap.value] += 1
                continue
            drafts[name].write(orjson.dumps(line) + b"\n")
            tally.written[name] += 1
            told_of.append(place)
            lost.update({loss.value: count for loss, count in told.lost.items()})
        # ids are never left out: beside them each sample is in a file
        counted = table.select(COUNTED)
        tally.wrote(counted if target is Target.SPECFORGE else _rows_of(counted, told_of))


def _tables(shards: Shards, columns: set[str]) -> Iterator[pa.Table]:
    import pyarrow as pa

    for batch in shards.batches(sorted(columns), rows=ROWS):
        yield pa.table(batch).combine_chunks()


def _write_ids(table: pa.Table, draft: Draft) -> int:
    """SpecForge's rows of ids: exactly its two keys, equal lengths, ints, mask 0 or 1."""
    for ids, mask in zip(table["input_ids"], table["loss_mask"], strict=True):
        row = {"input_ids": ids.values.to_numpy(), "loss_mask": mask.values.to_numpy()}
        draft.write(orjson.dumps(row, option=orjson.OPT_SERIALIZE_NUMPY) + b"\n")
    return int(table.num_rows)


def _conversation(row: dict[str, Any], told: list[dict[str, Any]]) -> dict[str, Any]:
    tools = dialogue.tools(row)
    return {
        "id": row["sample_id"], "conversations": told, **({"tools": tools} if tools else {})
    }  # fmt: skip


def _messages(row: dict[str, Any], told: list[dict[str, Any]]) -> dict[str, Any]:
    tools, kwargs = dialogue.tools(row), dialogue.kwargs(row)
    return {
        "id": row["sample_id"],
        "messages": told,
        **({"tools": tools} if tools else {}),
        **({"chat_template_kwargs": kwargs} if kwargs else {}),
    }


def _openai(row: dict[str, Any], told: list[dict[str, Any]]) -> dict[str, Any]:
    tools = dialogue.tools(row)
    return {"messages": told, **({"tools": tools} if tools else {})}


_SPELLINGS: Mapping[Target, dialogue.Spelling] = {
    Target.SPECFORGE: dialogue.Spelling(),
    Target.MESSAGES: dialogue.Spelling(),
    Target.OPENAI: dialogue.Spelling(thoughts=False, refusals=True, weights=True, call_ids=True),
}
_LINES: Mapping[Target, Callable[[dict[str, Any], list[dict[str, Any]]], dict[str, Any]]] = {
    Target.SPECFORGE: _conversation,
    Target.MESSAGES: _messages,
    Target.OPENAI: _openai,
}
