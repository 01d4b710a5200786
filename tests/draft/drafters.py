"""Small drafters with random weights, sound unless told otherwise, and their target's config."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

from eagle3_data.draft.mapping import choose

H, INNER, HEADS, KV, SIZE, VOCAB, DRAFT, LAYERS = 16, 24, 4, 2, 4, 200, 60, 30
IDS = "eagle_aux_hidden_state_layer_ids"
MAPPING = choose(np.random.default_rng(0).integers(1, 50, VOCAB), DRAFT, np.arange(2))
TARGET: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": H,
    "num_hidden_layers": LAYERS,
    "vocab_size": VOCAB,
    "rope_theta": 100000.0,
    "max_position_embeddings": 4096,
}
CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLMEagle3"],
    "model_type": "llama",
    "hidden_size": H,
    "target_hidden_size": H,
    "intermediate_size": INNER,
    "num_hidden_layers": 1,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KV,
    "head_dim": SIZE,
    "vocab_size": VOCAB,
    "draft_vocab_size": DRAFT,
    "max_position_embeddings": 4096,
    "rope_theta": 100000.0,
    "tie_word_embeddings": False,
    IDS: [2, 15, 27],
    "eagle_config": {IDS: [2, 15, 27]},
    "eagle3_data": {"layers_output_of": [1, 14, 26]},
}
SHAPES: dict[str, tuple[int, ...]] = {
    "fc.weight": (H, 3 * H),
    "midlayer.hidden_norm.weight": (H,),
    "midlayer.input_layernorm.weight": (H,),
    "midlayer.post_attention_layernorm.weight": (H,),
    "midlayer.self_attn.q_proj.weight": (HEADS * SIZE, 2 * H),
    "midlayer.self_attn.k_proj.weight": (KV * SIZE, 2 * H),
    "midlayer.self_attn.v_proj.weight": (KV * SIZE, 2 * H),
    "midlayer.self_attn.o_proj.weight": (H, HEADS * SIZE),
    "midlayer.mlp.gate_proj.weight": (INNER, H),
    "midlayer.mlp.up_proj.weight": (INNER, H),
    "midlayer.mlp.down_proj.weight": (H, INNER),
    "norm.weight": (H,),
    "lm_head.weight": (DRAFT, H),
}


def weights(shapes: dict[str, tuple[int, ...]] = SHAPES) -> dict[str, np.ndarray]:
    """Random half-precision tensors."""
    rng = np.random.default_rng(1)
    return {name: rng.standard_normal(shape).astype(np.float16) for name, shape in shapes.items()}


def drafter(
    folder: Path,
    config: dict[str, Any] | None = None,
    tensors: dict[str, Any] | None = None,
    *,
    drop: tuple[str, ...] = (),
    rename: Any = None,
) -> Path:
    """A folder. `config` and `tensors` are put over the sound ones, None leaves one out; `drop`:
    keys of config.json left out; `rename`: old name → new name.
    """
    folder.mkdir(parents=True, exist_ok=True)
    values = {k: v for k, v in (CONFIG | (config or {})).items() if k not in drop}
    (folder / "config.json").write_text(json.dumps(values))
    found = weights() | {"d2t": MAPPING.d2t, "t2d": MAPPING.t2d} | (tensors or {})
    kept = {name: np.ascontiguousarray(value) for name, value in found.items() if value is not None}
    if rename is not None:
        kept = {rename(name): value for name, value in kept.items()}
    save_file(kept, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def target(folder: Path, **changed: Any) -> Path:
    """The folder of the target, with its config.json only."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(TARGET | changed))
    return folder


def layers0(name: str) -> str:
    """Names as the layout of speculators has them."""
    return name.replace("midlayer.", "layers.0.")


def array(*shape: int) -> np.ndarray:
    """A half-precision tensor."""
    return np.ones(shape, dtype=np.float16)
