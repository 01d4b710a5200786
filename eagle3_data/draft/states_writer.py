"""The writer of states: one file of whole samples after another, the manifest last.

What enters: the plan of a run, and for each file its samples with their states. What leaves:
`states-00000.safetensors`, …, `index.parquet`, `manifest.json`. It promises that no padding is
stored, that a file appears under its name only when it is whole and on the disk, and that a run
stopped at any moment (a kill, a full disk) goes on behind its finished files.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

import numpy as np
import orjson

from eagle3_data.draft.packing import WORTH, Packing, pack
from eagle3_data.draft.states_manifest import (
    INDEX,
    SCHEMA_VERSION,
    STATES,
    Identity,
    StateFile,
    StatesError,
    StatesManifest,
)
from eagle3_data.shards.journal import open_journal
from eagle3_data.shards.manifest import MANIFEST
from eagle3_data.shards.schema import PREFIX, metadata
from eagle3_data.writing import drafting

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from eagle3_data.draft.states_plan import Plan

USUAL_RATIO = 0.75
"""Packed share of the raw bytes that is expected before the first file was measured."""
SPARE = 64 << 20
"""Bytes that must stay free for the index, the manifest and whoever else writes."""


@dataclass(frozen=True, slots=True, eq=False)
class Stated:
    """One sample with its states. `aux`: bf16 as uint16 [T, layers, H]; `final`: [T, H]."""

    sample_id: str
    input_ids: NDArray[np.int32]
    loss_mask: NDArray[np.uint8]
    aux: NDArray[np.uint16]
    final: NDArray[np.uint16]


class StatesWriter:
    """Writes one run into `directory`. Use as a context; `finish` makes it complete.

    `packing`: none or zstd; None measures on the first file. Raises StatesError as `open_journal`
    does, and with numbers when the disk can not hold the run.
    """

    def __init__(
        self,
        directory: Path,
        identity: Identity,
        plan: Plan,
        *,
        packing: Packing | None = None,
        overwrite: bool = False,
    ) -> None:
        self.directory, self.plan = directory, plan
        self._asked = packing
        self._journal = open_journal(directory, STATES, identity, overwrite=overwrite)
        self._identity = identity
        self._pool = ThreadPoolExecutor(2, "eagle3-data-pack")
        self._packing: dict[str, Future[tuple[bytes, bytes]]] = {}
        try:
            if not self.complete:
                self.refuse_too_large()
        except BaseException:
            self.close()
            raise

    @property
    def finished(self) -> int:
        """Files that a former start of this run finished."""
        return len(self._journal.files)

    @property
    def finished_tokens(self) -> int:
        """Tokens in finished files."""
        return sum(file.tokens for file in self._journal.files)

    @property
    def complete(self) -> bool:
        """The directory was complete already, made by the same run."""
        return self._journal.manifest is not None

    @property
    def notes(self) -> Sequence[str]:
        """What the user must be told about the directory as it was found."""
        return tuple(self._journal.notes)

    @property
    def raw_bytes(self) -> int:
        """Raw bytes of all states."""
        return self.plan.tokens * self._identity.token_bytes

    @property
    def ratio(self) -> float:
        """Share of the raw bytes that the files take: measured where there are files, else
        expected.
        """
        done = self.finished_tokens * self._identity.token_bytes
        if done:
            return sum(file.bytes for file in self._journal.files) / done
        return 1.0 if self._asked is Packing.NONE else USUAL_RATIO

    @property
    def bytes_to_come(self) -> int:
        """Bytes that the rest of the run is expected to take."""
        left = self.plan.tokens - self.finished_tokens
        return int(left * self._identity.token_bytes * self.ratio)

    def estimate(self) -> str:
        """What the run takes, for people."""
        left = self.plan.tokens - self.finished_tokens
        free = shutil.disk_usage(self.directory).free
        return (
            f"{self.plan.index.height:,} samples, {self.plan.tokens:,} tokens,"
            f" {size(self.raw_bytes)} of states in {self.plan.files} files; about"
            f" {size(self.bytes_to_come)} to come for {left:,} tokens, {size(free)} free"
        )

    def refuse_too_large(self) -> None:
        """Raise StatesError when the rest of the run does not fit on the disk."""
        kept = (
            f"{self.finished} finished files are kept, and the same command goes on behind them"
            if self.finished
            else "nothing was written"
        )
        left = self.plan.tokens - self.finished_tokens
        refuse(self.directory, left, self._identity.token_bytes, self.ratio, kept)

    def begin(self, sample: Stated) -> None:
        """Start packing a sample of the next file on another thread, while others are made."""
        if (self._chosen or self._asked) is not Packing.NONE:
            self._packing[sample.sample_id] = self._pool.submit(_pack, sample)

    def write(self, samples: Sequence[Stated], checked: Mapping[str, Any]) -> StateFile:
        """Write the next file. `checked`: what the self-check saw in it.

        Raises StatesError when the disk is full; what is whole is kept.
        """
        number = self.finished
        packed = self._packed(samples)
        packing = self._chosen
        assert packing is not None
        path = self.directory / STATES.file_name(number)
        try:
            with drafting(path, overwrite=True) as draft:
                for piece in _file(samples, packed, self._identity, packing):
                    draft.write(piece)
            file = StateFile(
                name=path.name,
                samples=len(samples),
                tokens=sum(len(sample.input_ids) for sample in samples),
                bytes=draft.size,
                sha256=draft.sha256,
                checked=dict(checked),
            )
            self._journal.add(file)
        except OSError as error:
            raise self._full(path, error) from error
        return file

    @property
    def _chosen(self) -> Packing | None:
        """How the files are packed; None before the first."""
        return Packing(self._journal.choice) if self._journal.choice else None

    def _packed(self, samples: Sequence[Stated]) -> list[tuple[bytes, bytes]]:
        """The frames of each sample; none when the states lie as they are."""
        packing = self._chosen or self._asked
        if packing is Packing.NONE:
            frames = []
        else:
            begun = self._packing
            frames = [
                begun[s.sample_id].result() if s.sample_id in begun else _pack(s) for s in samples
            ]
        self._packing.clear()
        if packing is None:
            raw = sum(sample.aux.nbytes + sample.final.nbytes for sample in samples)
            small = sum(len(aux) + len(final) for aux, final in frames) <= WORTH * raw
            packing = Packing.ZSTD if small else Packing.NONE
        if self._chosen is None:
            self._journal.choose(packing.value)
        return frames if packing is Packing.ZSTD else []

    @property
    def files(self) -> Sequence[StateFile]:
        """Finished files, of former starts too."""
        return tuple(self._journal.files)

    def finish(self, checked: Mapping[str, Any]) -> StatesManifest:
        """Write the index and the manifest. `checked`: what the self-check saw over everything."""
        if self._journal.manifest is not None:
            return self._journal.manifest
        files = self._journal.files
        packing = self._chosen
        assert packing is not None and len(files) == self.plan.files
        body = BytesIO()
        self.plan.index.write_parquet(body, compression="zstd")
        try:
            with drafting(self.directory / INDEX, overwrite=True) as draft:
                draft.write(body.getvalue())
            manifest = StatesManifest(
                schema_version=SCHEMA_VERSION,
                identity=self._identity,
                packing=packing,
                samples=self.plan.index.height,
                tokens=self.plan.tokens,
                supervised_tokens=self.plan.supervised_tokens,
                raw_bytes=self.raw_bytes,
                stored_bytes=sum(file.bytes for file in files),
                checked=dict(checked),
                index_sha256=draft.sha256,
                files=files,
            ).sealed()
            self._journal.seal(manifest)
        except OSError as error:
            raise self._full(self.directory / MANIFEST, error) from error
        self._journal.remove()
        self.close()
        return manifest

    def close(self) -> None:
        """Stop. Finished files and the journal stay for the next start. Safe to call twice."""
        self._pool.shutdown(cancel_futures=True)
        self._packing.clear()
        self._journal.close()

    def __enter__(self) -> StatesWriter:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _full(self, path: Path, error: OSError) -> StatesError:
        reason = error.strerror or str(error)
        return StatesError(
            f"{path} can not be written ({reason}): {self.finished} finished files are kept, about"
            f" {size(self.bytes_to_come)} are to come; make room and run the same command again"
        )


def refuse(place: Path, tokens: int, token_bytes: int, ratio: float, kept: str) -> None:
    """Raise StatesError when the states of `tokens` do not fit on the disk of `place`."""
    free = shutil.disk_usage(place).free
    need = int(tokens * token_bytes * ratio) + SPARE
    if need > free:
        raise StatesError(
            f"{place}: {size(need)} are needed for the states of {tokens:,} tokens"
            f" ({token_bytes:,} bytes a token, {ratio:.2f} of it in files; {size(SPARE)} to spare),"
            f" {size(free)} are free;"
            f" {kept}: make room, choose another disk, fewer --layers or a --limit"
        )


def _pack(sample: Stated) -> tuple[bytes, bytes]:
    return pack(sample.aux), pack(sample.final)


def _file(
    samples: Sequence[Stated],
    packed: Sequence[tuple[bytes, bytes]],
    identity: Identity,
    packing: Packing,
) -> list[Any]:
    """The pieces of a safetensors file in order: header, then the tensors without a gap."""
    lengths = np.array([len(sample.input_ids) for sample in samples], dtype=np.int64)
    tokens, layers = int(lengths.sum()), len(identity.layers.output_of)
    hidden = identity.target.hidden_size
    # the wider types first: readers want every tensor to begin at a multiple of its width
    tensors: list[tuple[str, str, list[int], list[Any]]] = [
        ("offsets", "I64", [len(samples) + 1], [_ends(lengths)])
    ]
    ids = ("input_ids", "I32", [tokens], [s.input_ids for s in samples])
    if packing is Packing.ZSTD:
        named = list(zip(("aux", "final"), zip(*packed, strict=True), strict=True))
        sizes = [np.array([len(f) for f in frames], dtype=np.int64) for _, frames in named]
        for (name, _), each in zip(named, sizes, strict=True):
            tensors.append((f"{name}_frames", "I64", [len(samples) + 1], [_ends(each)]))
        tensors.append(ids)
        for (name, frames), each in zip(named, sizes, strict=True):
            tensors.append((name, "U8", [int(each.sum())], list(frames)))
    else:
        tensors.append(ids)
        tensors.append(("aux", "BF16", [tokens, layers, hidden], [s.aux for s in samples]))
        tensors.append(("final", "BF16", [tokens, hidden], [s.final for s in samples]))
    tensors.append(("loss_mask", "U8", [tokens], [s.loss_mask for s in samples]))
    header: dict[str, Any] = {"__metadata__": _told(identity, packing)}
    at, pieces = 0, []
    for name, dtype, shape, parts in tensors:
        views = [_bytes(part) for part in parts]
        size = sum(len(view) for view in views)
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + size]}
        at += size
        pieces += views
    head = orjson.dumps(header)
    head += b" " * (-len(head) % 8)
    return [len(head).to_bytes(8, "little"), head, *pieces]


def _told(identity: Identity, packing: Packing) -> dict[str, str]:
    """The metadata of a file: whose states, from which shards, and how they lie."""
    told = {
        key.decode(): value.decode()
        for key, value in metadata(identity.facts).items()
        if key != f"{PREFIX}schema_version".encode()
    }
    return told | {
        f"{PREFIX}states_version": str(SCHEMA_VERSION),
        f"{PREFIX}identity": identity.digest,
        f"{PREFIX}packing": packing.value,
        f"{PREFIX}output_of": orjson.dumps(identity.layers.output_of).decode(),
        f"{PREFIX}final_norm": identity.final_norm,
        f"{PREFIX}hidden_size": str(identity.target.hidden_size),
    }


def _ends(sizes: NDArray[np.int64]) -> NDArray[np.int64]:
    return np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(sizes)])


def _bytes(part: Any) -> memoryview:
    """The bytes of an array (or bytes themselves) without a copy."""
    if isinstance(part, bytes):
        return memoryview(part)
    return memoryview(np.ascontiguousarray(part).reshape(-1).view(np.uint8).data)


def size(count: int) -> str:
    """Bytes for people."""
    return f"{count / 1e9:.1f} GB" if count >= 1e9 else f"{count / 1e6:.1f} MB"
