"""Samples as packed batches: rows one after another, no padding, and what each row has to predict.

What enters: samples of states. What leaves: a `Batch`. It promises that the mask is that of the
*predicted* token (row i at draft step k predicts token i + 2 + k and counts iff the target sampled
that one), and that the order of training is a function of seed and epoch alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from eagle3_data.draft.states import StateSample

SHORTEST = 3
"""Tokens of a sample that has a row: a state, the token after it, the one to predict."""


@dataclass(frozen=True, slots=True, eq=False)
class Batch:
    """`aux` [rows, aux × hidden]; `tokens` [steps, rows]; `positions` [rows]; `bounds`: the rows of
    each sample. `final` [places, hidden]: states whose head gives what is to be predicted.
    `pairs`: for each step the rows that count and their places in `final`; `supervised`: how many
    rows would count at each step if the draft vocabulary were whole.
    """

    aux: Tensor
    tokens: Tensor
    positions: Tensor
    bounds: list[tuple[int, int]]
    final: Tensor
    pairs: list[tuple[Tensor, Tensor]]
    supervised: list[int]

    def to(self, device: torch.device) -> Batch:
        """The same on another device."""
        if device.type == "cpu":
            return self
        return Batch(
            self.aux.to(device),
            self.tokens.to(device),
            self.positions.to(device),
            self.bounds,
            self.final.to(device),
            [(rows.to(device), places.to(device)) for rows, places in self.pairs],
            self.supervised,
        )


def rows_of(sample: StateSample, steps: int) -> tuple[Tensor, Tensor]:
    """(tokens [steps, rows], positions [rows]) of one sample. Behind its end a row embeds the last
    token; such a row predicts nothing and no other row sees it.
    """
    length = len(sample.input_ids)
    positions = torch.arange(max(length - 2, 0))
    ahead = positions + 1 + torch.arange(steps)[:, None]
    return sample.input_ids[ahead.clamp(max=length - 1)], positions


def predicted(sample: StateSample) -> Tensor:
    """Places whose state predicts a token that the target sampled: p such that token p + 1 is."""
    places = torch.nonzero(sample.loss_mask[1:]).flatten()
    return places[places > 0]


def pack(samples: Sequence[StateSample], known: Sequence[Tensor], steps: int) -> Batch:
    """One batch. `known` of a sample: whether the target's choice at each of its `predicted` places
    is in the draft vocabulary; the others do not count.
    """
    aux, tokens, positions, bounds, final = [], [], [], [], []
    pairs: list[tuple[list[Tensor], list[Tensor]]] = [([], []) for _ in range(steps)]
    supervised = [0] * steps
    start = place = 0
    for sample, inside in zip(samples, known, strict=True):
        ids, at = rows_of(sample, steps)
        rows = len(at)
        aux.append(sample.aux[:rows])
        tokens.append(ids)
        positions.append(at)
        bounds.append((start, start + rows))
        wanted = predicted(sample)
        kept = wanted[inside]
        final.append(sample.final[kept])
        for step in range(steps):
            supervised[step] += int((wanted - 1 - step >= 0).sum())
            row = kept - 1 - step
            here = torch.nonzero(row >= 0).flatten()
            pairs[step][0].append(row[here] + start)
            pairs[step][1].append(here + place)
        start, place = start + rows, place + len(kept)
    return Batch(
        torch.cat(aux),
        torch.cat(tokens, 1),
        torch.cat(positions),
        bounds,
        torch.cat(final),
        [(torch.cat(rows), torch.cat(places)) for rows, places in pairs],
        supervised,
    )


def order(lengths: Sequence[int], budget: int, seed: int, epoch: int) -> list[list[int]]:
    """The packs of one epoch: samples in an order of seed and epoch, as many in a pack as keep it
    within `budget` tokens; a longer sample is a pack of its own, one too short is left out.
    """
    packs: list[list[int]] = []
    filled = budget
    for index in np.random.default_rng([seed, epoch]).permutation(len(lengths)).tolist():
        if lengths[index] < SHORTEST:
            continue
        if filled + lengths[index] > budget:
            packs.append([])
            filled = 0
        packs[-1].append(index)
        filled += lengths[index]
    return packs
