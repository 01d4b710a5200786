"""Tiny targets with random weights, and shards of what they say: every layer and norm matters."""

from __future__ import annotations

import random
import sys
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from eagle3_data.draft.forward import Forward, load
from eagle3_data.shards.reader import Shards, open_shards

sys.path.insert(0, str(Path(__file__).parent.parent / "shards"))
from making import FACTS, row, table, write

VOCAB, HIDDEN, DEPTH = 100, 32, 6
LAYERS = (0, 2, 4)


def saved(directory: Path, kind: str = "llama", seed: int = 0) -> Path:
    """A target in a folder: llama, or deepseek (MLA and a mixture of experts, V3's class)."""
    import transformers

    torch.set_num_threads(1)
    torch.manual_seed(seed)
    common: dict[str, Any] = {
        "vocab_size": VOCAB,
        "hidden_size": HIDDEN,
        "num_hidden_layers": DEPTH,
        "num_attention_heads": 4,
        "initializer_range": 0.3,
        "max_position_embeddings": 256,
        "bos_token_id": 0,
        "eos_token_id": 2,
        "pad_token_id": None,
        "tie_word_embeddings": False,
    }
    if kind == "llama":
        config: Any = transformers.LlamaConfig(
            **common, intermediate_size=64, num_key_value_heads=2
        )
    else:
        config = transformers.DeepseekV3Config(
            **common,
            intermediate_size=64,
            moe_intermediate_size=32,
            num_key_value_heads=4,
            n_routed_experts=4,
            n_shared_experts=1,
            num_experts_per_tok=2,
            n_group=1,
            topk_group=1,
            first_k_dense_replace=1,
            q_lora_rank=16,
            kv_lora_rank=8,
            qk_nope_head_dim=8,
            qk_rope_head_dim=4,
            v_head_dim=8,
        )
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    with torch.no_grad():  # a norm of ones, applied twice, would change nothing
        model.get_decoder().norm.weight.copy_(torch.rand(HIDDEN) * 2 + 0.2)
    model.save_pretrained(directory)
    return directory


@lru_cache(maxsize=4)
def loaded(directory: Path, dtype: str = "fp32") -> Forward:
    """The target in memory, once."""
    return load(str(directory), dtype=dtype, device="cpu")


def said(forward: Forward, prompt: list[int], count: int) -> list[int]:
    """`count` likeliest ids behind the prompt."""
    ids = list(prompt)
    for _ in range(count):
        final = forward.alone(np.array(ids, dtype=np.int32)).final
        ids.append(int(forward.best(final[-1:])[0]))
    return ids


def spoken(directory: Path, forward: Forward, count: int = 12, **facts: Any) -> Shards:
    """Shards whose answers the target itself says, greedily."""
    rng = random.Random(0)
    rows = []
    for i in range(count):
        prompt, sampled = rng.randint(2, 12), rng.randint(6, 24)
        ids = said(forward, [rng.randrange(3, VOCAB) for _ in range(prompt)], sampled)
        rows.append(
            row(
                i,
                prompt=prompt,
                sampled=sampled,
                input_ids=ids,
                finish_reason="length",
                split="val" if i % 4 == 0 else "train",
                spans=[
                    {"kind": "prompt", "start": 0, "end": prompt},
                    {"kind": "content", "start": prompt, "end": prompt + sampled},
                ],
            )
        )
    write(directory, table(rows), facts=FACTS.model_copy(update=facts))
    return open_shards(directory)


def exact(forward: Forward, ids: NDArray[np.int32]) -> tuple[torch.Tensor, torch.Tensor]:
    """Auxiliary and final states of one sample by itself, float32."""
    alone = forward.alone(ids)
    return torch.stack([alone.outs[k] for k in LAYERS], dim=1), alone.final
