"""Walk the ids of a live run offline: once as the checkpoint is written, once for every fault.

What enters: ids that an engine fed and sampled, emulations, a loaded target. What leaves: a
`Walked` for each emulation. It promises that the target runs once over each sample whatever the
number of emulations, that memory holds the states of one group of samples, and that nothing touches
a disk.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl
import torch
from torch import Tensor

from eagle3_data.draft.emulate import Emulation, union
from eagle3_data.draft.evaluate import marks
from eagle3_data.draft.extract import Choice, states
from eagle3_data.draft.forward import Source, tensor
from eagle3_data.draft.states import StateSample
from eagle3_data.draft.walk import Counts, averaged, causes, frame_of, split_by, walked

if TYPE_CHECKING:
    from eagle3_data.draft.live_run import Said
    from eagle3_data.draft.states_writer import Stated
    from eagle3_data.draft.target import Target

GROUP_TOKENS = 16384
"""Tokens whose states are in memory at a time."""


@dataclass(frozen=True, slots=True)
class Sample:
    """What `extract.states` takes of a sample."""

    sample_id: str
    input_ids: Any
    loss_mask: Any


@dataclass(frozen=True, slots=True)
class Walked:
    """The walk of one emulation over the run's ids. `every`: the average over all positions."""

    emulation: Emulation
    counts: Counts
    every: Counts
    causes: dict[str, float]
    positions: dict[str, Counts]


def walk_all(
    emulated: Sequence[Emulation],
    said: Sequence[Said],
    forward: Source,
    target: Target,
    *,
    drafts: int,
    bf16: bool = True,
    batch_tokens: int = 8192,
    told: Callable[[int, int], None] = lambda _done, _total: None,
) -> list[Walked]:
    """One `Walked` an emulation, in their order. Answers of fewer than two tokens hold no step."""
    samples = [_sample(i, one) for i, one in enumerate(said) if len(one.sampled) > 1]
    if not samples:
        raise ValueError("no answer has two tokens: nothing was drafted")
    layers = union(emulated)
    device = forward_device(forward)
    for one in emulated:
        one.made.drafter.to(device)
    frames: list[list[pl.DataFrame]] = [[] for _ in emulated]
    done = 0
    for group in _groups(samples):
        made = states(forward, group, Choice(batch_tokens=batch_tokens), layers)
        for place, one in enumerate(emulated):
            mine = [_chosen(stated, one, layers, forward, target) for stated in made]
            with torch.autocast(device.type, torch.bfloat16, enabled=bf16):
                found = marks(one.made, mine, drafts)
            for sample, (accept, cause) in zip(mine, found, strict=True):
                meta = {"conversation_id": sample.sample_id}
                mask = sample.loss_mask.numpy()
                frame = frame_of(accept, cause, mask, sample.spans, meta)
                if frame.height:
                    frames[place].append(frame)
        done += len(group)
        told(done, len(samples))
    out = []
    for one, parts in zip(emulated, frames, strict=True):
        rows = pl.concat(parts, how="vertical_relaxed")
        out.append(
            Walked(
                one,
                walked(rows, drafts),
                averaged(rows, drafts),
                causes(rows),
                split_by(rows, "bucket", drafts),
            )
        )
    return out


def forward_device(forward: Source) -> torch.device:
    """Where the drafter is put: beside the target."""
    found = getattr(forward, "device", None)
    return found if isinstance(found, torch.device) else torch.device("cpu")


def _sample(number: int, said: Said) -> Sample:
    ids = np.array([*said.prompt, *said.sampled], dtype=np.int32)
    mask = (np.arange(len(ids)) >= len(said.prompt)).astype(np.uint8)
    return Sample(str(number), ids, mask)


def _chosen(
    stated: Stated, one: Emulation, layers: list[int], forward: Source, target: Target
) -> StateSample:
    """The sample with the states that this emulation reads."""
    ids = torch.from_numpy(stated.input_ids.astype(np.int64))
    wide = tensor(stated.aux)
    last = forward.target.layers - 1
    parts: list[Tensor] = []
    for k in one.layers:
        if k < 0:
            parts.append(target.embedding[ids].to(torch.bfloat16))
        elif k == last and one.normed:
            final = tensor(stated.final)
            normed = final if forward.post else forward.normed(final)
            parts.append(normed.to("cpu", torch.bfloat16))
        else:
            parts.append(wide[:, layers.index(k)])
    prompt = int(len(ids) - stated.loss_mask.sum())
    spans = [
        {"kind": "prompt", "start": 0, "end": prompt},
        {"kind": "answer", "start": prompt, "end": len(ids)},
    ]
    return StateSample(
        sample_id=stated.sample_id,
        input_ids=ids,
        loss_mask=torch.from_numpy(stated.loss_mask.astype(np.bool_)),
        aux=torch.cat(parts, -1),
        final=tensor(stated.final),
        spans=spans,
        meta={},
    )


def _groups(samples: Sequence[Sample]) -> Iterator[list[Any]]:
    group: list[Any] = []
    filled = 0
    for sample in samples:
        if group and filled + len(sample.input_ids) > GROUP_TOKENS:
            yield group
            group, filled = [], 0
        group.append(sample)
        filled += len(sample.input_ids)
    yield group
