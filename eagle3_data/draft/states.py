"""Hidden states on disk as samples for training: the reader.

What enters: a directory that `extract` finished. What leaves: `States`, filtered as asked, its
samples as torch tensors. It promises that a half result, an edited one or files of different runs
are refused before the first sample, and that one sample is read without the others, packed or not.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import polars as pl

from eagle3_data.draft.packing import Packing, unpack
from eagle3_data.draft.states_manifest import (
    INDEX,
    Identity,
    StateFile,
    StatesError,
    StatesManifest,
)
from eagle3_data.draft.states_manifest import load_manifest as load_states_manifest
from eagle3_data.shards.journal import digest
from eagle3_data.shards.reader import GRADES
from eagle3_data.shards.schema import PREFIX

if TYPE_CHECKING:
    import torch

ROW = ("shard", "row", "start", "end", "sample_id", "spans")


@dataclass(frozen=True, slots=True, eq=False)
class StateSample:
    """One sample with the target's states.

    `input_ids`: int64 [T]; `loss_mask`: bool [T], true = sampled by the model; `aux`: bf16
    [T, layers * H], the layers beside one another in the order of the manifest; `final`: bf16
    [T, H], with the last norm applied when the manifest says "post". `spans`: as in the shards,
    {kind, start, end}; `meta`: the other columns of the index.
    """

    sample_id: str
    input_ids: torch.Tensor
    loss_mask: torch.Tensor
    aux: torch.Tensor
    final: torch.Tensor
    spans: list[dict[str, Any]]
    meta: dict[str, Any]


@dataclass(frozen=True, slots=True)
class States:
    """An opened directory; see `open_states`. `index`: one row a sample, in order, after the
    filters; `sample(i)` is its i-th row.
    """

    directory: Path
    manifest: StatesManifest
    index: pl.DataFrame
    _open: dict[int, Any] = field(default_factory=dict, repr=False, compare=False)

    def where(
        self,
        *,
        split: str | None = None,
        min_grade: str | None = None,
        max_length: int | None = None,
        min_length: int | None = None,
        condition: pl.Expr | None = None,
    ) -> Self:
        """Only samples of a split, of at least this grade (A is best), of a length in tokens, or of
        any condition over the columns of the index. Raises StatesError for a grade there is not.
        """
        return replace(
            self,
            index=self.index.filter(picked(split, min_grade, max_length, min_length, condition)),
        )

    @property
    def identity(self) -> Identity:
        """What makes two extractions the same."""
        return self.manifest.identity

    @property
    def fingerprint(self) -> str:
        """Digest of all that is stored."""
        return self.manifest.checksum

    def __len__(self) -> int:
        return self.index.height

    def __iter__(self) -> Iterator[StateSample]:
        return self.iterate()

    def iterate(self, seed: int | None = None) -> Iterator[StateSample]:
        """Samples one by one: in order, or in an order that `seed` decides."""
        order = list(range(len(self)))
        if seed is not None:
            random.Random(seed).shuffle(order)
        for i in order:
            yield self.sample(i)

    def sample(self, i: int) -> StateSample:
        """The i-th sample. Raises StatesError for a file that is damaged."""
        import torch

        meta = self.index.row(i, named=True)
        shard, row, start, end, sample_id, spans = (meta.pop(name) for name in ROW)
        file = self._file(shard)
        hidden = self.manifest.target.hidden_size
        layers = len(self.manifest.layers.output_of)
        return StateSample(
            sample_id=sample_id,
            input_ids=file.get_slice("input_ids")[start:end].to(torch.int64),
            loss_mask=file.get_slice("loss_mask")[start:end].to(torch.bool),
            aux=self._states(shard, "aux", row, start, end, (end - start, layers * hidden)),
            final=self._states(shard, "final", row, start, end, (end - start, hidden)),
            spans=spans,
            meta=meta,
        )

    def _states(
        self, shard: int, name: str, row: int, start: int, end: int, shape: tuple[int, int]
    ) -> torch.Tensor:
        import torch

        file = self._file(shard)
        if self.manifest.packing is Packing.NONE:
            values: torch.Tensor = file.get_slice(name)[start:end]
            return values.reshape(shape)
        first, last = file.get_slice(f"{name}_frames")[row : row + 2].tolist()
        frame = file.get_slice(name)[first:last].numpy()
        try:
            return torch.from_numpy(unpack(frame.data, shape)).view(torch.bfloat16)
        except ValueError as error:
            path = self.directory / self.manifest.files[shard].name
            raise StatesError(
                f"{path}: {name!r} of row {row} is {error}: copy the file again, or remove it and"
                " run the same `extract` command"
            ) from None

    def _file(self, shard: int) -> Any:
        """The opened file; opening maps it, it reads nothing."""
        if shard not in self._open:
            self._open[shard] = opened(self.directory, self.manifest, self.manifest.files[shard])
        return self._open[shard]

    def verify(self) -> list[str]:
        """Names of files whose bytes are not those that were written. Reads everything."""
        return [
            file.name
            for file in self.manifest.files
            if digest(self.directory / file.name) != file.sha256
        ]


def picked(
    split: str | None,
    min_grade: str | None,
    max_length: int | None,
    min_length: int | None,
    condition: pl.Expr | None,
) -> pl.Expr:
    """The condition of `States.where` over the columns of an index. Raises StatesError."""
    if min_grade is not None and min_grade not in GRADES:
        raise StatesError(f"there is no grade {min_grade!r}: use one of {', '.join(GRADES)}")
    conditions = [
        None if split is None else pl.col("split") == split,
        None if min_grade is None else pl.col("grade").is_in(GRADES[: GRADES.index(min_grade) + 1]),
        None if max_length is None else pl.col("seq_len") <= max_length,
        None if min_length is None else pl.col("seq_len") >= min_length,
        condition,
    ]
    return pl.all_horizontal(pl.lit(True), *[c for c in conditions if c is not None])


def open_states(directory: str | Path) -> States:
    """Open a finished directory.

    Raises StatesError, naming file and next step: no manifest (the run did not finish), an edited
    one, a file that is missing, of another size or of another run. Contents are not hashed:
    `States.verify`.
    """
    path = Path(directory)
    manifest = load_states_manifest(path)
    for file in manifest.files:
        opened(path, manifest, file)
    index = path / INDEX
    if not index.is_file() or digest(index) != manifest.index_sha256:
        raise StatesError(
            f"{index} is missing or was changed: run the same `extract` command again, it makes"
            " the index anew and keeps the states"
        )
    return States(path, manifest, pl.read_parquet(index))


def opened(directory: Path, manifest: StatesManifest, file: StateFile) -> Any:
    """A file of the manifest as safetensors opens it. Raises StatesError when it is another."""
    from safetensors import SafetensorError, safe_open

    path = directory / file.name
    size = path.stat().st_size if path.is_file() else None
    again = "copy it again, or run the same `extract` command"
    if size != file.bytes:
        found = "is missing" if size is None else f"has {size} bytes, not {file.bytes}"
        raise StatesError(f"{path} {found}: {again}")
    try:
        mapped: Any = safe_open(str(path), framework="pt")
        told = mapped.metadata() or {}
    except (SafetensorError, OSError, ValueError) as error:
        raise StatesError(f"{path} can not be read ({error}): {again}") from None
    if told.get(f"{PREFIX}identity") != manifest.identity.digest:
        raise StatesError(
            f"{path} is of another run than the manifest (other shards, target or layers):"
            f" do not mix folders of states; {again}"
        )
    return mapped
