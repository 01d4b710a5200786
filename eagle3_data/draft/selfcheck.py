"""The self-check of an extraction: are these the states of these tokens, of these layers?

What enters: samples with their states, as they are about to be written, and the target. What
leaves: findings (HID) and counts. It promises two proofs that know nothing of each other: the
target's head on the final state finds the sampled tokens, and one sample in a hundred, forwarded
alone through transformers' own list of states, gives the same again. When one fails, the causes
that are known to happen are tried, and the one that fits is named.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from eagle3_data.draft import state_rules as rules
from eagle3_data.draft.findings import Finding
from eagle3_data.draft.forward import bits, tensor

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from eagle3_data.draft.forward import Source
    from eagle3_data.draft.states import StateSample
    from eagle3_data.draft.states_writer import Stated

EVERY = 100
"""One sample in so many is forwarded alone."""
PREFIX = 2048
"""Tokens of it that are: a causal model gives them the same states without the rest."""
ROWS = 8
"""Fewest tokens of such a sample: of one or two rows the rounding alone looks like a difference."""
HEADS, SHARE = 128, 0.02
"""Supervised tokens of a file that the head must find: at least so many, and this share."""
TOLERANCE = {"float32": 0.01, "float16": 0.05, "bfloat16": 0.08}
"""Largest median distance of a row, relative to its length, channels scaled to one size. Measured
on SmolLM2: at most 0.028 in bf16 between a batch and alone (also between vLLM and transformers), 0
in fp32; a neighbouring layer is at 0.44 or more, the norm applied twice at 0.16.
"""
RARE = 0.3
"""Share of tokens found below which they are probably of another model."""


@dataclass(frozen=True, slots=True)
class Checked:
    """What was looked at. `asked`, `right`: tokens that the head was asked for, and found. `alone`:
    samples that were forwarded alone; `distance`: the largest median distance in them.
    """

    asked: int = 0
    right: int = 0
    alone: int = 0
    distance: float = 0.0

    def __add__(self, other: Checked) -> Checked:
        return Checked(
            self.asked + other.asked,
            self.right + other.right,
            self.alone + other.alone,
            max(self.distance, other.distance),
        )

    def to_dict(self) -> dict[str, Any]:
        """As the manifest has it; `Checked(**found)` is the inverse."""
        return asdict(self) | {"distance": round(self.distance, 4)}


@dataclass(slots=True, eq=False)
class SelfCheck:
    """The check of one run: `file` for each file of states, `whole` at the end. `findings`: all so
    far.
    """

    forward: Source
    output_of: Sequence[int]
    findings: list[Finding] = field(default_factory=list)
    _seen: Checked = field(default_factory=Checked)

    def file(
        self,
        samples: Sequence[Stated],
        ids: Sequence[NDArray[np.int32]],
        first: int,
        place: Path,
    ) -> Checked:
        """Check the samples of one file. `ids`: what the shards have; `first`: the number of its
        first sample in the run.
        """
        self._seen = Checked()
        found = [*_rows(samples, ids)]
        if not found:
            found = [*self._alone(samples, first)]
            guessed = [*self._head(samples)]
            if not any(at == "final" for _, at, _ in found):  # states beside states prove more
                found += guessed
        told: dict[tuple[str, str], Finding] = {}
        for code, at, detail in found:
            told.setdefault((code, at), Finding(code, place, detail, at))
        self.findings += told.values()
        return self._seen

    def whole(self, seen: Checked, place: Path) -> None:
        """What only all files together show."""
        if seen.asked >= HEADS and seen.right < RARE * seen.asked:
            share = seen.right / seen.asked
            detail = f"the likeliest token is the sampled one for {share:.3f} of {seen.asked:,}"
            self.findings.append(Finding(rules.NOT_ITS_TOKENS, place, detail))

    @property
    def sound(self) -> bool:
        """Nothing of error level was found so far."""
        return not any(finding.error for finding in self.findings)

    def _head(self, samples: Sequence[Stated]) -> Iterator[tuple[str, str, str]]:
        places = _supervised(samples)
        count = min(len(places), max(HEADS, int(SHARE * sum(len(s.input_ids) for s in samples))))
        if not count:
            return
        chosen = [places[i] for i in np.linspace(0, len(places) - 1, count, dtype=np.int64)]

        def share(some: Sequence[tuple[int, int]], back: int, change: Any = None) -> float:
            rows = np.stack([samples[i].final[max(p - back, 0)] for i, p in some])
            states = tensor(rows) if change is None else change(tensor(rows))
            tokens = torch.tensor([int(samples[i].input_ids[p]) for i, p in some])
            return float((self.forward.best(states) == tokens).float().mean())

        right = share(chosen, 1)
        self._seen += Checked(asked=count, right=round(right * count))
        if right > 0.9 or count < 32:
            return
        few = chosen[:: -(-count // HEADS)]  # causes are tried on some: a head is a large product
        right, count = share(few, 1), len(few)
        others = {
            "the state is of the token before its own": (rules.SHIFTED, share(few, 0)),
            "the state is of the token behind its own": (rules.SHIFTED, share(few, 2)),
        }
        if self.forward.post:
            missing = share(few, 1, self.forward.normed)
            others["the last norm is missing"] = (rules.NORM_MISSING, missing)
            weight = self._weight()
            if weight is not None:
                twice = share(few, 1, lambda states: states.float() / weight)
                others["the last norm was applied twice"] = (rules.NORM_TWICE, twice)
        cause, (code, better) = max(others.items(), key=lambda entry: entry[1][1])
        # a cause must bring what a right target brings: untrained weights that are tied to the
        # embedding find the token before, and nothing is shifted there
        if better >= RARE and better > right + max(0.1, 3 * (0.5 / count) ** 0.5):
            detail = f"the head finds {right:.3f} of {count} sampled tokens"
            yield code, "final", f"{detail}; {better:.3f} when {cause}"

    def _weight(self) -> Tensor | None:
        """What the last norm multiplies by; None when it does more than that."""
        ones = torch.ones(1, self.forward.target.hidden_size)
        weight, turned = (self.forward.normed(side).float().cpu() for side in (ones, -ones))
        plain = torch.equal(weight, -turned) and not bool((weight.abs() < 1e-6).any())
        return weight if plain else None

    def _alone(self, samples: Sequence[Stated], first: int) -> Iterator[tuple[str, str, str]]:
        lengths = {i: len(s.input_ids) for i, s in enumerate(samples) if len(s.input_ids) >= ROWS}
        chosen = {i for i in lengths if (first + i) % EVERY == 0}
        if first == 0 and lengths:  # the one with most padding beside it
            chosen.add(min(lengths, key=lambda i: (lengths[i] < 2 * ROWS, lengths[i])))
        for i in sorted(chosen):
            self._seen += Checked(alone=1)
            yield from self._one(samples[i])

    def _one(self, sample: Stated) -> Iterator[tuple[str, str, str]]:
        ids = sample.input_ids[:PREFIX]
        count = len(ids)
        alone = self.forward.alone(ids, self.output_of)
        outs = {k: _rounded(out) for k, out in alone.outs.items()}
        final = _rounded(alone.final)
        tolerance = TOLERANCE.get(self.forward.target.dtype, 0.08)
        name = f"sample {sample.sample_id}"
        for place, layer in enumerate(self.output_of):
            mine = tensor(sample.aux[:count, place]).float()
            distance = apart(mine, outs[layer])
            if distance <= tolerance:
                self._seen += Checked(distance=distance)
                continue
            causes = [
                (rules.LAYER_DIFFERS, f"it is the output of layer {k}", apart(mine, out))
                for k, out in outs.items()
                if k != layer
            ]
            if alone.embedding is not None:
                entering = apart(mine, _rounded(alone.embedding))
                causes.append((rules.LAYER_DIFFERS, "it is the embedding of the ids", entering))
            causes += _shifts(mine, outs[layer])
            yield _named(name, f"aux, output of layer {layer}", distance, causes, tolerance)
        mine = tensor(sample.final[:count]).float()
        distance = apart(mine, final)
        if distance <= tolerance:
            self._seen += Checked(distance=distance)
            return
        causes = [*_shifts(mine, final)]
        last = self.forward.target.layers - 1
        for k, out in outs.items():
            if k == last:
                continue
            told = f"it is the output of layer {k}"
            causes.append((rules.FINAL_EARLY, f"{told} without the last norm", apart(mine, out)))
            if self.forward.post:
                normed = _rounded(self.forward.normed(out))
                causes.append(
                    (rules.FINAL_EARLY, f"{told} with the last norm", apart(mine, normed))
                )
        if self.forward.post:
            if last in outs:
                missing = apart(mine, outs[last])
                causes.append((rules.NORM_MISSING, "the last norm is missing", missing))
            twice = _rounded(self.forward.normed(final))
            causes.append((rules.NORM_TWICE, "the norm was applied twice", apart(mine, twice)))
        yield _named(name, "final", distance, causes, tolerance)


def apart(one: Tensor, other: Tensor) -> float:
    """Median over the rows of their distance, relative to the length of the row of `other`, every
    channel scaled by its own size: a few channels of large models are a thousand times the rest.
    """
    scale = other.square().mean(0).sqrt()
    scale = scale.clamp_min(max(float(scale.median()) * 1e-2, 1e-6))  # a dead channel says nothing
    one, other = one / scale, other / scale
    distance = (one - other).norm(dim=-1) / other.norm(dim=-1).clamp_min(1e-6)
    return float(distance.nan_to_num(1e9).median())


def furthest(one: StateSample, other: StateSample, layers: int) -> float:
    """The largest distance (`apart`) of two extractions of a sample, over its `layers` auxiliary
    states and the final one.
    """
    mine, theirs = ((*sample.aux.chunk(layers, 1), sample.final) for sample in (one, other))
    return max(apart(a.float(), b.float()) for a, b in zip(mine, theirs, strict=True))


def _shifts(mine: Tensor, wanted: Tensor) -> list[tuple[str, str, float]]:
    if len(mine) < 3:
        return []
    return [
        (rules.SHIFTED, "it is of the token before its own", apart(mine[1:], wanted[:-1])),
        (rules.SHIFTED, "it is of the token behind its own", apart(mine[:-1], wanted[1:])),
    ]


def _named(
    name: str,
    at: str,
    distance: float,
    causes: Sequence[tuple[str, str, float]],
    tolerance: float,
) -> tuple[str, str, str]:
    """The cause that fits best, or a leak when none does."""
    told = f"{name} alone gives other states: median distance of a row {distance:.3f}"
    code, cause, left = min(causes, key=lambda entry: entry[2])
    if left > tolerance:
        return rules.LEAK, at, f"{told}, and no layer, shift or norm explains it"
    return code, at, f"{told}; {left:.3f} when {cause}"


def _rows(
    samples: Sequence[Stated], ids: Sequence[NDArray[np.int32]]
) -> Iterator[tuple[str, str, str]]:
    for sample, wanted in zip(samples, ids, strict=True):
        count = len(sample.input_ids)
        name = f"sample {sample.sample_id}"
        if not np.array_equal(sample.input_ids, wanted):
            yield rules.ROWS_DIFFER, "input_ids", f"{name}: other ids than in the shards"
            continue
        if len(sample.aux) != count or len(sample.final) != count:
            have = f"{len(sample.aux)} auxiliary and {len(sample.final)} final states"
            yield rules.ROWS_DIFFER, "aux", f"{name}: {count} ids, {have}"
            continue
        for at, states in (("aux", sample.aux), ("final", sample.final[:, None])):
            # all ones in the exponent: NaN or infinity
            broken = ((states & 0x7F80) == 0x7F80).any(axis=(1, 2))
            if broken.any():
                yield rules.NOT_FINITE, at, f"{name}: row {int(broken.argmax())} of {count}"
            same = (states == states[:1]).all(axis=(0, 2))
            if count > 1 and same.any() and len(np.unique(sample.input_ids)) > 1:
                yield rules.CONSTANT, at, f"{name}: state {int(same.argmax())}, {count} rows"


def _supervised(samples: Sequence[Stated]) -> list[tuple[int, int]]:
    """(sample, place) of every supervised token that has a row before it."""
    return [
        (i, int(place))
        for i, sample in enumerate(samples)
        for place in np.flatnonzero(sample.loss_mask)
        if place
    ]


def _rounded(states: Tensor) -> Tensor:
    """As they are stored: through bf16, on the CPU."""
    found: NDArray[np.uint16] = bits(states)
    return tensor(found).float()
