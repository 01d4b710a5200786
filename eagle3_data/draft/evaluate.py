"""Evaluate: what a drafter would be accepted, offline, on samples that it was not trained on.

What enters: a drafter and states. What leaves: an `Evaluation`. It promises that a token outside
the draft vocabulary counts as rejected, that real tokens stand in for accepted drafts (they are the
same), and that what does not belong together is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import polars as pl
import torch
from numpy.typing import NDArray
from torch import Tensor

from eagle3_data.draft.batches import SHORTEST, rows_of
from eagle3_data.draft.checkpoint import Checkpoint
from eagle3_data.draft.states import States, StateSample
from eagle3_data.draft.target import Target
from eagle3_data.draft.train import Teacher
from eagle3_data.draft.walk import (
    CAUSES,
    Cause,
    Counts,
    averaged,
    causes,
    frame_of,
    split_by,
    walked,
)

NEAR = 5
META = ("conversation_id", "file", "split", "grade")
USUAL = {"kind": "what is drafted first", "bucket": "position in the answer", "file": "source"}


class EvaluateError(ValueError):
    """A drafter that can not be evaluated on these states; the message names the next step."""


@dataclass(frozen=True, slots=True)
class Evaluation:
    """`walk`: as an engine counts; `every`: the average over all positions, too high;
    `after_prefill`: the first step of each answer. `splits`: name → value → walk; `causes`: what
    stopped steps.
    """

    drafts: int
    temperature: float | None
    samples: int
    tokens: int
    walk: Counts
    every: Counts
    after_prefill: Counts
    splits: dict[str, dict[str, Counts]]
    causes: dict[str, float]
    about: dict[str, Any] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "drafts": self.drafts,
            "temperature": self.temperature,
            "samples": self.samples,
            "tokens": self.tokens,
            "walk": self.walk.to_dict(),
            "all_positions_too_high": self.every.to_dict(),
            "after_prefill": self.after_prefill.to_dict(),
            "splits": {
                name: {value: counts.to_dict() for value, counts in parts.items()}
                for name, parts in self.splits.items()
            },
            "causes_of_rejection": {name: round(v, 6) for name, v in self.causes.items()},
            **self.about,
        }


def evaluate(
    made: Checkpoint,
    states: States,
    target: Target,
    *,
    drafts: int = 3,
    temperature: float | None = None,
    by: Sequence[str] = (),
    extra: pl.DataFrame | None = None,
    device: str = "cpu",
    bf16: bool = True,
    batch_tokens: int = 4096,
    seed: int = 0,
    told: Callable[[int, int], None] = lambda _done, _total: None,
) -> Evaluation:
    """Walk every sample. `temperature` None: the drafter's first choice against the text, which is
    greedy decoding, and sampling too where the engine drafts greedily; a number: drafts drawn at
    that temperature, as the text was. `by`: more columns of the index, or of `extra` (a frame with
    sample_id), to split by. Raises EvaluateError.
    """
    why = made.reads(states.manifest.layers.output_of)
    if why is not None:
        raise EvaluateError(f"the drafter can not be walked on these states: {why}")
    known = made.facts.get("tokenizer_hash")
    if known is not None and known != states.manifest.facts.tokenizer_hash:
        raise EvaluateError("the states hold ids of another tokenizer than the drafter learned")
    index = states.index if extra is None else states.index.join(extra, "sample_id", how="left")
    missing = sorted(set(by) - set(index.columns) - {"kind", "bucket"})
    if missing:
        usable = [n for n, t in index.schema.items() if not isinstance(t, pl.List | pl.Struct)]
        raise EvaluateError(f"no column {', '.join(missing)}: there are {', '.join(usable)}")
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    place = torch.device(device)
    made.drafter.to(place)
    teacher = None
    if temperature is not None:
        teacher = Teacher(target, made.mapping, states.manifest.final_norm, place, bf16)
    columns = [*dict.fromkeys([*META, *by])]
    values = index.select([name for name in columns if name in index.columns]).to_dicts()
    frames, tokens, done = [], 0, 0
    for places in _groups(index["seq_len"].to_list(), batch_tokens):
        samples = [states.sample(i) for i in places]
        with torch.autocast(place.type, torch.bfloat16, enabled=bf16):
            found = marks(made, samples, drafts, teacher, temperature)
        for i, sample, (accept, cause) in zip(places, samples, found, strict=True):
            mask = sample.loss_mask.numpy()
            tokens += int(mask.sum())
            one = frame_of(accept, cause, mask, sample.spans, values[i])
            if one.height:
                frames.append(one)
        done += len(samples)
        told(done, len(states))
    if not frames:
        raise EvaluateError("no sample has a token to draft: look at the splits and filters")
    rows = pl.concat(frames, how="vertical_relaxed")
    return Evaluation(
        drafts=drafts,
        temperature=temperature,
        samples=done,
        tokens=tokens,
        walk=walked(rows, drafts, seed=seed),
        every=averaged(rows, drafts),
        after_prefill=walked(rows.filter("after_prefill"), drafts),
        splits={name: split_by(rows, name, drafts) for name in dict.fromkeys([*USUAL, *by])},
        causes=causes(rows),
    )


@torch.no_grad()
def marks(
    made: Checkpoint,
    samples: Sequence[StateSample],
    drafts: int,
    teacher: Teacher | None = None,
    temperature: float | None = None,
) -> list[tuple[NDArray[np.float64], NDArray[np.int8]]]:
    """(accept, cause) of each sample, [drafts, rows]: what `walk.frame_of` takes."""
    device = made.drafter.embedding.device
    to_draft = torch.full((made.mapping.vocab_size,), -1, dtype=torch.long)
    to_draft[torch.from_numpy(made.mapping.targets)] = torch.arange(made.mapping.size)
    tokens, positions, bounds, wanted, start = [], [], [], [], 0
    for sample in samples:
        ids, at = rows_of(sample, drafts + 1)
        tokens.append(ids[:-1])
        wanted.append(ids[1:])  # what step k embeds next is what it had to predict
        positions.append(at)
        bounds.append((start, start + len(at)))
        start += len(at)
    aux = torch.cat([sample.aux[: len(at)] for sample, at in zip(samples, positions, strict=True)])
    unrolled = made.drafter.unroll(
        aux.to(device), torch.cat(tokens, 1).to(device), torch.cat(positions).to(device), bounds
    )
    goals = to_draft[torch.cat(wanted, 1)].to(device)
    accept, cause = [], []
    for step, state in enumerate(unrolled):
        logits = made.drafter.lm_head(state).float()
        goal = goals[step]
        inside = goal >= 0
        own = logits.gather(1, goal.clamp(min=0)[:, None])
        rank = (logits > own).sum(-1)
        ties = torch.arange(logits.shape[1], device=device) < goal[:, None]
        rank += ((logits == own) & ties).sum(-1)  # the first of equals is the first choice
        right = inside & (rank == 0)
        why = torch.where(rank < NEAR, CAUSES.index(Cause.NEAR), CAUSES.index(Cause.FAR))
        why = torch.where(rank == 0, CAUSES.index(Cause.UNLIKELY), why)
        why = torch.where(inside, why, CAUSES.index(Cause.OUTSIDE))
        chance = right.double()
        if teacher is not None and temperature is not None:
            drafted = torch.log_softmax(logits / temperature, -1).gather(
                1, goal.clamp(min=0)[:, None]
            )
            sampled = _target_chances(teacher, samples, bounds, step, temperature).to(device)
            chance = (drafted[:, 0] - sampled).clamp(max=0).exp().double() * inside
        accept.append(chance.cpu())
        cause.append(why.to(torch.int8).cpu())
    all_accept, all_cause = torch.stack(accept).numpy(), torch.stack(cause).numpy()
    return [(all_accept[:, first:last], all_cause[:, first:last]) for first, last in bounds]


def _target_chances(
    teacher: Teacher,
    samples: Sequence[StateSample],
    bounds: Sequence[tuple[int, int]],
    step: int,
    temperature: float,
) -> Tensor:
    """log p of the target, over its whole vocabulary, for the token that each row drafts at."""
    out = []
    for sample, (first, last) in zip(samples, bounds, strict=True):
        ahead = torch.arange(last - first) + 1 + step
        ahead = ahead.clamp(max=len(sample.input_ids) - 2)
        logits = teacher.logits(sample.final[ahead], teacher.head) / temperature
        chances = torch.log_softmax(logits, -1)
        ids = sample.input_ids[ahead + 1].to(chances.device)
        out.append(chances.gather(1, ids[:, None])[:, 0])
    return torch.cat(out)


def _groups(lengths: Sequence[int], budget: int) -> Iterator[list[int]]:
    """Samples in order, as many at once as keep within the budget; too short ones are left out."""
    group: list[int] = []
    filled = 0
    for i, length in enumerate(lengths):
        if length < SHORTEST:
            continue
        if group and filled + length > budget:
            yield group
            group, filled = [], 0
        group.append(i)
        filled += length
    if group:
        yield group
