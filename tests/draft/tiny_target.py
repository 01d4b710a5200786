"""A target of a few numbers, a mapping for it, states of it: what the tests of training share."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file
from stating import HIDDEN, identity, made_shards, written

from eagle3_data.draft.mapping import Mapping
from eagle3_data.draft.mapping_files import files
from eagle3_data.draft.states import States, open_states
from eagle3_data.draft.target_identity import weights_digest

VOCABULARY = 100
CONFIG: dict[str, Any] = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": HIDDEN,
    "intermediate_size": 24,
    "num_hidden_layers": 8,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-5,
    "rope_parameters": {"rope_type": "default", "rope_theta": 1000.0},
    "max_position_embeddings": 128,
    "vocab_size": VOCABULARY,
    "tie_word_embeddings": False,
    "eos_token_id": 2,
}


def target_folder(folder: Path, seed: int = 7, **changed: Any) -> Path:
    """The folder of a target: config.json, embedding, norm, head, and a layer nobody reads."""
    random = torch.Generator().manual_seed(seed)
    folder.mkdir(parents=True)
    config = CONFIG | changed
    size = (config["vocab_size"], config["hidden_size"])
    tensors = {
        "model.embed_tokens.weight": torch.randn(size, generator=random),
        "model.norm.weight": 1 + 0.1 * torch.randn(size[1], generator=random),
        "lm_head.weight": torch.randn(size, generator=random),
        "model.layers.8.embed_tokens.weight": torch.zeros(2, 2),
    }
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return folder


def mapping_folder(folder: Path, size: int = 40, seed: int = 3, **about: str) -> Path:
    """The folder of a mapping, as `vocab` writes it."""
    chosen = np.random.default_rng(seed).permutation(VOCABULARY)[:size]
    mapping = Mapping(np.sort(chosen).astype(np.int64), VOCABULARY)
    folder.mkdir(parents=True)
    for name, content in files(mapping, {"tokenizer_hash": "bb"} | about).items():
        (folder / name).write_bytes(content)
    return folder


def made_states(folder: Path, count: int = 12) -> States:
    """States of made-up shards, of the target in `folder`."""
    shards = made_shards(folder / "shards", count)
    target = identity(shards).target
    target = target.model_copy(update={"weights": weights_digest(folder / "target")})
    written(folder / "states", shards, target=target)
    return open_states(folder / "states")
