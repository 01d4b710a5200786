"""Import: rows of ids and mask from elsewhere become shards.

What enters: files of rows with `input_ids` and `loss_mask`, a tokenizer and a profile that they
are said to belong to. What leaves: shards of grade D with ids, mask and spans, and nothing that the
rows do not say. It promises that every row is kept or refused with its place and reason, in a
ledger that adds up, that no row of foreign origin is taken for a captured one, and that no
conversation is in two splits: rows of a later split are refused, as `verify` would refuse them.

A mask of booleans alone is taken as 0 and 1: it can mean nothing else, and numpy and torch read it
so. Booleans among integers, or as ids, are refused: whoever wrote them had something else in mind.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from eagle3_data import __version__
from eagle3_data.shards.id_rows import IdFile, IdRow, find
from eagle3_data.shards.rows import sample_id
from eagle3_data.shards.schema import COLUMNS, ShardError, arrow_schema
from eagle3_data.tokens.samples import IMPORTED, Grade, PromptSource, SpanKind

if TYPE_CHECKING:
    import pyarrow as pa

    from eagle3_data.shards.manifest import Manifest

EXAMPLES = 5
ROWS = 512
TRAIN = "train"
"""The split of rows that neither say one nor come from a file that does."""


class Refusal(StrEnum):
    """Why a row becomes no sample."""

    UNREADABLE = "the row can not be read"
    NO_IDS = "input_ids is no list of integers, or empty"
    NO_MASK = "loss_mask is no list of integers or of booleans"
    LENGTHS = "input_ids and loss_mask differ in length"
    RANGE = "an id is negative or not in the tokenizer's vocabulary"
    MASK = "loss_mask holds other values than 0 and 1"
    NOTHING = "no token is supervised"
    REPEATED = "the same ids and mask as an earlier row"
    SPLIT = (
        "its conversation (source_id) has earlier rows in another split: give all rows of a"
        " conversation one split, and ids that are counted anew in each file another name in each"
    )


class Refused(Exception):
    """A row that becomes no sample."""

    def __init__(self, why: Refusal, detail: str = "") -> None:
        super().__init__(why.value)
        self.why, self.detail = why, detail


@dataclass(frozen=True, slots=True)
class Imported:
    """What an import did. `rows` = `kept` + the sum of `refused`; `examples`: (file, line, reason,
    detail), the first few of each reason.
    """

    manifest: Manifest
    rows: int
    kept: int
    refused: dict[str, int]
    examples: list[tuple[str, int, str, str]]
    notes: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """As JSON."""
        names = ("file", "line", "reason", "detail")
        return {
            "rows": self.rows,
            "kept": self.kept,
            "refused": self.refused,
            "tokens": self.manifest.tokens,
            "supervised_tokens": self.manifest.supervised_tokens,
            "examples": [dict(zip(names, one, strict=True)) for one in self.examples],
        }


def import_rows(
    paths: Sequence[str | Path],
    directory: str | Path,
    *,
    tokenizer: str | Path,
    profile: str | Path,
    overwrite: bool = False,
) -> Imported:
    """Write the rows of `paths` as shards into `directory`.

    `tokenizer`, `profile`: what the ids are said to belong to; ids outside its vocabulary are
    refused. Raises ShardError (no such files, none of the rows can be kept, foreign files in the
    directory), InputError, ProfileError, TokenizerError.
    """
    from eagle3_data.audit.thresholds import Thresholds
    from eagle3_data.profiles.load import load
    from eagle3_data.shards.facts import facts_of
    from eagle3_data.shards.journal import digest
    from eagle3_data.shards.writer import ShardWriter
    from eagle3_data.tokens.tokenizer import open_tokenizer

    files = find([str(path) for path in paths])
    facts = facts_of(
        load(str(profile)),
        open_tokenizer(tokenizer),
        chat_template="",  # which template made the prompts, the rows do not say
        rules=(),
        thresholds=Thresholds(),
        product_version=__version__,
    )
    inputs = [
        {"name": f.path, "bytes": f.real.stat().st_size, "sha256": digest(f.real)} for f in files
    ]
    run = _Import(facts.vocab_size, facts.profile)
    with ShardWriter(
        Path(directory), facts, options={"import": IMPORTED}, inputs=inputs, overwrite=overwrite
    ) as writer:
        for table in run.tables(files):
            writer.write(table)
        if not run.kept:
            which = "the only row can not" if run.rows == 1 else f"none of the {run.rows} rows can"
            raise ShardError(f"{which} become a sample: {run.why()}")
        return Imported(
            manifest=writer.finish(run.ledger()),
            rows=run.rows,
            kept=run.kept,
            refused=dict(run.refused),
            examples=run.examples,
            notes=(*writer.notes, *(file.note for file in files if file.note), *run.told()),
        )


@dataclass(slots=True)
class _Import:
    """The rows of one import on their way, and the count of all of them."""

    vocab_size: int
    profile: str
    rows: int = 0
    kept: int = 0
    refused: Counter[str] = field(default_factory=Counter)
    examples: list[tuple[str, int, str, str]] = field(default_factory=list)
    splits: Counter[str] = field(default_factory=Counter)
    _seen: set[bytes] = field(default_factory=set)
    _split_of: dict[str, str] = field(default_factory=dict)
    """Conversation → its split, of those that rows name."""

    def tables(self, files: Sequence[IdFile]) -> Iterator[pa.Table]:
        """Tables of schema v1."""
        made: list[dict[str, Any]] = []
        for file in files:
            for row in file.rows():
                self.rows += 1
                sample = self._sample(file, row)
                if sample is not None:
                    made.append(sample)
                if len(made) >= ROWS:
                    yield _table(made)
                    made = []
        if made:
            yield _table(made)

    def ledger(self) -> dict[str, Any]:
        """Rows in = kept + quarantined + unreadable."""
        unreadable = self.refused[Refusal.UNREADABLE.value]
        return {
            "lines": self.rows,
            "kept": self.kept,
            "quarantined": self.refused.total() - unreadable,
            "unreadable": unreadable,
            "refused": {reason: self.refused[reason] for reason in sorted(+self.refused)},
        }

    def told(self) -> Iterator[str]:
        """That samples are in other splits than train: `finetune` takes that one alone."""
        if self.splits.keys() - {TRAIN}:
            first = [f"{name!r:.80} {count:,}" for name, count in self.splits.most_common(EXAMPLES)]
            more = len(self.splits) - len(first)
            names = ", ".join([*first, *([f"and {more:,} more"] if more else [])])
            yield f"splits as rows and files name them: {names} (samples)"

    def why(self) -> str:
        """The refusals in one sentence, with a place."""
        if not self.rows:
            return "the files are empty"
        file, line, reason, detail = self.examples[0]
        told = reason
        if self.rows > 1:
            from eagle3_data.audit.formats.text import count_of

            told = "; ".join(f"{count_of(n, 'time')} {why}" for why, n in self.refused.items())
        return f"{told} (first at {file}:{line}{', ' + detail if detail else ''})"

    def _sample(self, file: IdFile, row: IdRow) -> dict[str, Any] | None:
        try:
            ids, mask = checked(row, self.vocab_size)
            content = blake2b(ids.tobytes() + mask.tobytes(), digest_size=16)
            if content.digest() in self._seen:  # shards hold a sample once
                raise Refused(Refusal.REPEATED)
            split = self._split(file, row)
        except Refused as refused:
            why = refused.why.value
            self.refused[why] += 1
            if self.refused[why] <= EXAMPLES:
                self.examples.append((file.path, row.line, why, refused.detail))
            return None
        self._seen.add(content.digest())
        self.kept += 1
        self.splits[split] += 1
        made = _made(file, row, ids, mask, content.hexdigest())
        return made | {"split": split, "profile": self.profile}

    def _split(self, file: IdFile, row: IdRow) -> str:
        """The split of a row that is kept but for this. Raises Refused where validation would
        measure what was trained.
        """
        split = row.split or file.split or TRAIN
        if row.conversation and self._split_of.setdefault(row.conversation, split) != split:
            before = self._split_of[row.conversation]
            raise Refused(Refusal.SPLIT, f"{row.conversation!r:.80}: {before!r:.80}, {split!r:.80}")
        return split


def checked(row: IdRow, vocab_size: int) -> tuple[NDArray[np.int32], NDArray[np.uint8]]:
    """Ids [n] and mask [n] of a row, n > 0. Raises Refused."""
    if row.fault is not None:
        raise Refused(Refusal.UNREADABLE, row.fault)
    ids, mask = _numbers(row.ids), _numbers(row.mask)
    if ids is None or not len(ids) or ids.dtype == bool:
        raise Refused(Refusal.NO_IDS)
    if mask is None:
        raise Refused(Refusal.NO_MASK, _mixed(row.mask))
    if len(ids) != len(mask):
        raise Refused(Refusal.LENGTHS, f"{len(ids)} and {len(mask)}")
    low, high = int(ids.min()), int(ids.max())
    if low < 0 or high >= vocab_size:
        raise Refused(Refusal.RANGE, f"ids from {low} to {high}, the vocabulary has {vocab_size}")
    if ((mask != 0) & (mask != 1)).any():
        raise Refused(Refusal.MASK)
    if not mask.any():
        raise Refused(Refusal.NOTHING)
    return ids.astype("<i4"), mask.astype(np.uint8)


def _made(
    file: IdFile, row: IdRow, ids: NDArray[np.int32], mask: NDArray[np.uint8], content: str
) -> dict[str, Any]:
    """A row of schema v1, its profile and split aside. `content`: digest (hex) of ids and mask;
    there is no line that a sample of a column file could be told by.
    """
    return {
        **dict.fromkeys(column.name for column in COLUMNS),
        "sample_id": sample_id(content, 0, None),
        "grade": Grade.D.value,
        "grade_reason": IMPORTED,
        "input_ids": ids,
        "loss_mask": mask,
        "seq_len": len(ids),
        "prompt_len": int(mask.argmax()),
        "supervised_tokens": int(mask.sum()),
        "spans": _spans(mask),
        "prompt_source": PromptSource.NONE.value,
        "truncated": False,
        "conversation_id": row.conversation or content,
        "file": file.path,
        "line": row.line,
        "offset": row.offset,
        "line_hash": content,
        "choice": 0,
        "record_id": row.record_id,
        "codes": [],
    }


def _numbers(value: Any) -> NDArray[Any] | None:
    """A flat array of integers, or one of booleans; None for anything else (floats, nulls, nested
    lists, both together).
    """
    if not isinstance(value, list | np.ndarray):
        return None
    if len(value) == 0:
        return np.zeros(0, dtype=np.int64)
    try:
        array = np.asarray(value)
    except ValueError:
        return None
    if array.ndim != 1 or array.dtype.kind not in "iub":
        return None
    # bool is an integer to numpy once it stands among others
    return None if array.dtype != bool and _mixed(value) else array


def _mixed(value: Any) -> str:
    """What to do where booleans stand among other values; "" where none does."""
    if isinstance(value, list) and any(item.__class__ is bool for item in value):
        return "booleans among other values: cast them to 0 and 1"
    return ""


def _spans(mask: NDArray[np.uint8]) -> list[dict[str, Any]]:
    """Runs of the mask: what is not supervised is prompt, what is supervised is content (rows of
    ids say no more).
    """
    ends = [*(np.flatnonzero(np.diff(mask)) + 1).tolist(), len(mask)]
    starts = [0, *ends[:-1]]
    kinds = (SpanKind.PROMPT.value, SpanKind.CONTENT.value)
    return [
        {"kind": kinds[int(mask[a])], "start": a, "end": b}
        for a, b in zip(starts, ends, strict=True)
    ]


def _table(rows: list[dict[str, Any]]) -> pa.Table:
    import pyarrow as pa

    return pa.Table.from_pylist(rows, schema=arrow_schema())
