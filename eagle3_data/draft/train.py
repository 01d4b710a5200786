"""Test-time training: the drafter learns to predict what the target says, several tokens ahead.

What enters: a drafter, a target, states, settings. What leaves: the trained drafter, one row of
metrics an optimizer step. It promises that the loss is a mean over the positions of the whole
optimizer step, however it is packed, accumulated or spread over processes; and that a run stopped
at any step and resumed ends with the same weights, bit for bit on the CPU.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import chain, pairwise
from typing import Any, Protocol

import polars as pl
import torch
from torch import Tensor, distributed

from eagle3_data.draft.batches import Batch, order, pack, predicted
from eagle3_data.draft.mapping import Mapping
from eagle3_data.draft.model import Drafter
from eagle3_data.draft.states import StateSample
from eagle3_data.draft.target import Target


class Samples(Protocol):
    """What training reads: `States`, or anything that gives the same samples."""

    @property
    def index(self) -> pl.DataFrame:
        """One row a sample, with its `seq_len`."""

    def sample(self, i: int) -> StateSample:
        """The i-th sample."""


@dataclass(frozen=True, slots=True)
class Settings:
    """How to train. `steps`: draft steps unrolled; `decay`: weight of each step as a power;
    `batch_tokens`: tokens of a pack; `accumulate`: packs of an optimizer step on each process;
    `clip`: largest norm of a gradient, 0 for any.
    """

    epochs: int = 4
    steps: int = 3
    batch_tokens: int = 2048
    accumulate: int = 1
    lr: float = 1e-3
    warmup: int = 30
    decay: float = 0.8
    clip: float = 1.0
    seed: int = 0
    bf16: bool = True

    def rate(self, step: int, total: int) -> float:
        """Learning rate of an optimizer step: up in a line, then down in a line to zero."""
        up = min(1.0, (step + 1) / max(self.warmup, 1))
        return self.lr * up * min(1.0, (total - step) / max(total - self.warmup, 1))


class Teacher:
    """What the target would say at a state: `known` and `soft` over the draft vocabulary."""

    def __init__(
        self, target: Target, mapping: Mapping, final_norm: str, device: torch.device, bf16: bool
    ) -> None:
        self.target, self.norm, self.bf16 = target, final_norm, bf16
        self.head = target.head.to(device)
        self.own = self.head[torch.from_numpy(mapping.targets).to(device)]
        self.inside = torch.from_numpy(mapping.t2d).to(device)
        self._known: dict[str, Tensor] = {}

    @torch.no_grad()
    def logits(self, final: Tensor, head: Tensor) -> Tensor:
        """Logits of `head` [rows, hidden] in float32."""
        kind = torch.bfloat16 if self.bf16 else torch.float32
        final = self.target.normed(final.to(head.device), self.norm)
        return (final.to(kind) @ head.to(kind).T).float()

    def known(self, sample: StateSample) -> Tensor:
        """For each of the sample's `predicted` places: is the target's first choice in the draft
        vocabulary? Made for a sample alone, so that it does not depend on how it is packed.
        """
        found = self._known.get(sample.sample_id)
        if found is None:
            states = sample.final[predicted(sample)]
            parts = torch.split(states, 1024)
            best = [self.logits(part, self.head).argmax(-1) for part in parts]
            found = self.inside[torch.cat(best)].cpu()
            self._known[sample.sample_id] = found
        return found

    def soft(self, final: Tensor) -> Tensor:
        """Probabilities over the draft vocabulary, renormalised to it."""
        return torch.softmax(self.logits(final, self.own), -1)


def losses(drafter: Drafter, wanted: Tensor, batch: Batch) -> Iterator[tuple[Tensor, Tensor]]:
    """(sum of the soft cross entropy, rows whose first choice is the target's) of each step."""
    states = drafter.unroll(batch.aux, batch.tokens, batch.positions, batch.bounds)
    for (rows, places), state in zip(batch.pairs, states, strict=True):
        logits = drafter.lm_head(state.index_select(0, rows)).float()
        goal = wanted[places]
        right = (logits.detach().argmax(-1) == goal.argmax(-1)).sum()
        yield -(goal * torch.log_softmax(logits, -1)).sum(), right


@dataclass(frozen=True, slots=True)
class Plan:
    """Which packs make which optimizer step. `world` processes take turns within a step."""

    lengths: Sequence[int]
    settings: Settings
    world: int = 1

    def steps(self) -> list[tuple[int, list[list[int]]]]:
        """(epoch, packs) of every optimizer step."""
        s, out = self.settings, []
        for epoch in range(s.epochs):
            packs = order(self.lengths, s.batch_tokens, s.seed, epoch)
            cuts = [*range(0, len(packs), s.accumulate * self.world), len(packs)]
            out += [(epoch, packs[a:b]) for a, b in pairwise(cuts) if a < b]
        return out


class Trainer:
    """One run. `done`: optimizer steps finished; set it, and load both states, to resume."""

    def __init__(
        self,
        drafter: Drafter,
        teacher: Teacher,
        samples: Samples,
        settings: Settings,
        device: torch.device,
    ) -> None:
        self.drafter, self.teacher, self.samples = drafter, teacher, samples
        self.settings, self.device = settings, device
        shared = distributed.is_available() and distributed.is_initialized()
        self.rank = distributed.get_rank() if shared else 0
        self.world = distributed.get_world_size() if shared else 1
        self.steps = Plan(samples.index["seq_len"].to_list(), settings, self.world).steps()
        self.optimizer = torch.optim.AdamW(
            drafter.parameters(), lr=settings.lr, betas=(0.9, 0.95), weight_decay=0.0
        )
        self.done = 0

    def run(self, stop: Callable[[], bool]) -> Iterator[dict[str, Any]]:
        """Train to the end, or until `stop`; yields a row of metrics after each step."""
        with ThreadPoolExecutor(1) as reader:  # the next samples are read while these are trained
            ahead = reader.submit(self._read, self.done)
            while self.done < len(self.steps) and not stop():
                packs = ahead.result()
                ahead = reader.submit(self._read, self.done + 1)
                yield self._step(packs)

    def _read(self, step: int) -> list[list[StateSample]]:
        if step >= len(self.steps):
            return []
        mine = self.steps[step][1][self.rank :: self.world]
        return [[self.samples.sample(i) for i in indices] for indices in mine]

    def _step(self, packs: list[list[StateSample]]) -> dict[str, Any]:
        began, s = time.monotonic(), self.settings
        batches = [
            pack(samples, [self.teacher.known(one) for one in samples], s.steps)
            for samples in packs
        ]
        # sums over all packs of the step: loss, right, rows that count, rows with others, tokens
        told = torch.zeros(4, s.steps, dtype=torch.float64)
        for batch in batches:
            told[2] += torch.tensor([len(rows) for rows, _ in batch.pairs])
            told[3] += torch.tensor(batch.supervised)
        told[2:] = self._sum(told[2:])
        self.optimizer.zero_grad(set_to_none=False)
        for batch in batches:
            moved = batch.to(self.device)
            with torch.autocast(self.device.type, torch.bfloat16, enabled=s.bf16):
                wanted = self.teacher.soft(moved.final)
                loss = torch.zeros((), device=self.device)
                for k, (part, right) in enumerate(losses(self.drafter, wanted, moved)):
                    loss = loss + part * (s.decay**k / max(float(told[2, k]), 1.0))
                    told[0, k] += float(part.detach())
                    told[1, k] += int(right)
            loss.backward()  # type: ignore[no-untyped-call]
        told[:2] = self._sum(told[:2])
        self._share()
        most = s.clip or math.inf
        norm = float(torch.nn.utils.clip_grad_norm_(self.drafter.parameters(), most))
        if not math.isfinite(norm):
            raise TrainError(f"step {self.done + 1}: the gradient is not finite: lower --lr")
        rate = s.rate(self.done, len(self.steps))
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        self.optimizer.step()
        epoch, of_step = self.steps[self.done]
        self.done += 1
        return {
            "step": self.done,
            "epoch": epoch,
            "loss": (told[0] / told[2].clamp(min=1)).tolist(),
            "accuracy": (told[1] / told[3].clamp(min=1)).tolist(),
            "outside_vocabulary": (1 - told[2] / told[3].clamp(min=1)).tolist(),
            "lr": rate,
            "grad_norm": norm,
            "tokens": sum(self.steps_tokens(of_step)),
            "seconds": round(time.monotonic() - began, 4),
        }

    def steps_tokens(self, packs: list[list[int]]) -> list[int]:
        """Tokens of each sample of an optimizer step."""
        lengths = self.samples.index["seq_len"]
        return [int(lengths[i]) for i in chain.from_iterable(packs)]

    def _sum(self, values: Tensor) -> Tensor:
        """Over all processes."""
        if self.world == 1:
            return values
        moved = values.to(self.device)
        distributed.all_reduce(moved)
        return moved.to(values.device)

    def _share(self) -> None:
        """Add up the gradients of all processes: each has its share of one mean."""
        for parameter in self.drafter.parameters():
            if parameter.grad is None:  # a process without a pack in the last step of an epoch
                parameter.grad = torch.zeros_like(parameter)
            if self.world > 1:
                distributed.all_reduce(parameter.grad)


class TrainError(ValueError):
    """Training can not go on; the message names the next step."""
