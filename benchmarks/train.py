"""Speed of a training step on the shapes of SmolLM2, beside speculators' eager step.

    python benchmarks/train.py [--samples 8] [--length 180] [--rounds 5] [--smoke]

One optimizer step: three draft steps, soft cross entropy, backward, AdamW; bf16 autocast, one
thread. Random states, since a step costs the same for any. CPU time, which a busy machine changes
less than the clock. `.ci/stages/speculators` makes an environment with both trainers; elsewhere our
own tokens a second are printed alone, and that is said. Exit 1 when ours is the slower one.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

os.environ.setdefault("TORCH_COMPILE_DISABLE", "1")

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).parent.parent))

from benchmarks.limits import held
from eagle3_data.draft.batches import pack, predicted
from eagle3_data.draft.mapping import Mapping
from eagle3_data.draft.model import Drafter, Shape
from eagle3_data.draft.train import Teacher, losses

OUT = Path(__file__).parent / "out"
STEPS, PROMPT = 3, 40
SHAPE = Shape(
    hidden_size=576,
    intermediate_size=1536,
    heads=9,
    kv_heads=3,
    head_dim=64,
    vocab_size=49152,
    draft_vocab_size=8000,
    eps=1e-5,
    max_positions=8192,
    rope={"rope_type": "default", "rope_theta": 100000.0},
)


def sample(length: int, number: int) -> Any:
    random = torch.Generator().manual_seed(number)
    wide = torch.randn(length, 4 * SHAPE.hidden_size, generator=random).bfloat16()
    return SimpleNamespace(
        sample_id=str(number),
        input_ids=torch.randint(0, SHAPE.vocab_size, (length,), generator=random),
        loss_mask=torch.arange(length) >= PROMPT,
        aux=wide[:, SHAPE.hidden_size :],
        final=wide[:, : SHAPE.hidden_size],
    )


def ours(samples: list[Any], head: torch.Tensor, mapping: Mapping) -> Callable[[], None]:
    """One optimizer step of the product."""
    drafter = Drafter(SHAPE, torch.randn(SHAPE.vocab_size, SHAPE.hidden_size).bfloat16())
    target: Any = SimpleNamespace(head=head, normed=lambda final, _: final)
    teacher = Teacher(target, mapping, "post", torch.device("cpu"), True)
    optimizer = torch.optim.AdamW(drafter.parameters(), lr=1e-3, weight_decay=0.0)

    def step() -> None:
        known = [torch.ones(len(predicted(one)), dtype=torch.bool) for one in samples]
        batch = pack(samples, known, STEPS)
        optimizer.zero_grad(set_to_none=False)
        with torch.autocast("cpu", torch.bfloat16):
            wanted = teacher.soft(batch.final)
            loss = torch.zeros(())
            for k, (part, _) in enumerate(losses(drafter, wanted, batch)):
                loss = loss + part * 0.8**k / len(batch.pairs[k][0])
        loss.backward()
        torch.nn.utils.clip_grad_norm_(drafter.parameters(), 1.0)
        optimizer.step()

    return step


def theirs(samples: list[Any], head: torch.Tensor, mapping: Mapping) -> Callable[[], None] | None:
    """One optimizer step of speculators, attention and loss eager; None when it is not there."""
    try:
        from speculators.losses import resolve_loss_config
        from speculators.models.eagle3 import Eagle3DraftModel, Eagle3SpeculatorConfig
    except ImportError:
        return None
    from transformers import LlamaConfig

    layer = LlamaConfig(
        vocab_size=SHAPE.vocab_size,
        hidden_size=SHAPE.hidden_size,
        intermediate_size=SHAPE.intermediate_size,
        num_hidden_layers=1,
        num_attention_heads=SHAPE.heads,
        num_key_value_heads=SHAPE.kv_heads,
        head_dim=SHAPE.head_dim,
        rms_norm_eps=SHAPE.eps,
        rope_parameters=dict(SHAPE.rope),
    )
    layer._attn_implementation = "eager"
    model = Eagle3DraftModel(
        Eagle3SpeculatorConfig(
            transformer_layer_config=layer, draft_vocab_size=SHAPE.draft_vocab_size
        )
    )
    model.load_vocab_mappings(torch.from_numpy(mapping.t2d), torch.from_numpy(mapping.d2t))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.02)
    optimizer = torch.optim.AdamW(
        [p for p in model.parameters() if p.requires_grad], lr=1e-3, weight_decay=0.0
    )
    loss_config = resolve_loss_config("ce", "eager")

    def step() -> None:
        lengths = [len(one.input_ids) - 1 for one in samples]
        documents = torch.repeat_interleave(torch.arange(len(samples)), torch.tensor(lengths))
        positions = torch.cat([torch.arange(1, n + 1) for n in lengths])
        optimizer.zero_grad(set_to_none=False)
        with torch.autocast("cpu", torch.bfloat16):
            _, loss, _ = model(
                hidden_states=torch.cat([one.aux[:-1] for one in samples])[None].float(),
                input_ids=torch.cat([one.input_ids[1:] for one in samples])[None],
                document_ids=documents[None],
                loss_mask=torch.cat([one.loss_mask[1:] for one in samples])[None],
                position_ids=positions[None],
                verifier_last_hidden_states=torch.cat([one.final[1:] for one in samples])[
                    None
                ].float(),
                ttt_steps=STEPS,
                ttt_step_loss_decay=0.8,
                loss_config=loss_config,
            )
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()

    return step


def seconds(step: Callable[[], None], rounds: int) -> float:
    """Least CPU seconds of a step, after one that warms up."""
    step()
    found = []
    for _ in range(rounds):
        began = time.process_time()
        step()
        found.append(time.process_time() - began)
    return min(found)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--samples", type=int, default=8)
    parser.add_argument("--length", type=int, default=180)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--smoke", action="store_true")
    wanted = parser.parse_args()
    if wanted.smoke:
        wanted.samples, wanted.length, wanted.rounds = 2, 60, 1
    torch.set_num_threads(1)
    torch.manual_seed(0)
    samples = [sample(wanted.length, number) for number in range(wanted.samples)]
    tokens = wanted.samples * wanted.length
    head = torch.randn(SHAPE.vocab_size, SHAPE.hidden_size).bfloat16()
    chosen = np.sort(np.random.default_rng(0).permutation(SHAPE.vocab_size)[:8000])
    mapping = Mapping(chosen.astype(np.int64), SHAPE.vocab_size)
    found = {"tokens": tokens, "ours_s": seconds(ours(samples, head, mapping), wanted.rounds)}
    print(f"{wanted.samples} samples of {wanted.length} tokens, CPU time of one thread")
    print(
        f"  ours         {found['ours_s']:8.3f} s a step  {tokens / found['ours_s']:8,.0f} tokens/s"
    )
    other = theirs(samples, head, mapping)
    good = True
    if other is None:
        print("  speculators is not installed here: our own speed alone, nothing was compared")
    else:
        found["speculators_s"] = seconds(other, wanted.rounds)
        speed = tokens / found["speculators_s"]
        print(f"  speculators  {found['speculators_s']:8.3f} s a step  {speed:8,.0f} tokens/s")
        ratio = found["speculators_s"] / found["ours_s"]
        good = held([("tokens/s, ours / speculators' eager step", ratio, ">=", 1.0)])
    OUT.mkdir(exist_ok=True)
    (OUT / "train.json").write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    return 0 if good or wanted.smoke else 1


if __name__ == "__main__":
    raise SystemExit(main())
