"""Targets that see pictures: their text part is found and forwarded as the whole does it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

import torch

from eagle3_data.draft.forward import Forward, load, tensor
from eagle3_data.draft.target import open_target

torch.set_num_threads(1)
TEXT: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "vocab_size": 100,
}
# the part for pictures has more layers than the text part, and lies less deep
SEEING: dict[str, Any] = {"hidden_size": 16, "intermediate_size": 24}


def made(kind: str) -> Any:
    """A whole model of random weights."""
    import transformers as t

    if kind == "mistral3":
        seeing = SEEING | {"model_type": "pixtral", "num_hidden_layers": 6, "head_dim": 8}
        seeing |= {"num_attention_heads": 2, "image_size": 16, "patch_size": 4}
        config: Any = t.Mistral3Config(
            text_config=TEXT | {"model_type": "mistral"}, vision_config=seeing, image_token_index=99
        )
        return t.Mistral3ForConditionalGeneration(config)
    if kind == "qwen3_vl":
        rope = {"rope_type": "default", "mrope_section": [2, 1, 1], "mrope_interleaved": True}
        seeing = SEEING | {"depth": 6, "num_heads": 2, "out_hidden_size": 32, "patch_size": 4}
        seeing |= {"num_position_embeddings": 16, "deepstack_visual_indexes": [1, 2, 3]}
        config = t.Qwen3VLConfig(
            text_config=TEXT | {"rope_parameters": rope | {"rope_theta": 10_000.0}},
            vision_config=seeing,
            image_token_id=98,
            video_token_id=97,
            vision_start_token_id=96,
            vision_end_token_id=95,
        )
        return t.Qwen3VLForConditionalGeneration(config)
    seeing = SEEING | {"num_hidden_layers": 6, "num_attention_heads": 2}
    config = t.Gemma3Config(
        text_config=TEXT | {"sliding_window": 16},
        vision_config=seeing | {"image_size": 16, "patch_size": 4},
        image_token_index=99,
        boi_token_index=98,
        eoi_token_index=97,
        mm_tokens_per_image=4,
    )
    return t.Gemma3ForConditionalGeneration(config)


@pytest.mark.parametrize("kind", ["mistral3", "qwen3_vl", "gemma3"])
def test_states_are_those_of_the_whole_model(kind: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    whole = made(kind).eval()
    whole.save_pretrained(tmp_path)
    found: Forward = load(str(tmp_path), device="cpu")
    assert (len(found.layers), found.post) == (4, True)
    ids = [np.arange(1, n, dtype=np.int32) for n in (40, 9)]
    for one, states in zip(ids, found.states(ids, [0, 2]), strict=True):
        asked = torch.from_numpy(one.astype(np.int64))[None]
        with torch.inference_mode():
            out = whole(input_ids=asked, output_hidden_states=True)
        for place, layer in enumerate((1, 3, 4)):  # transformers counts the embedding as 0
            wanted = out.hidden_states[layer][0].to(torch.bfloat16).float()
            torch.testing.assert_close(
                tensor(states[:, place]).float(), wanted, rtol=0.02, atol=0.02
            )
        assert found.best(tensor(states[:, 2])).tolist() == out.logits[0].argmax(-1).tolist()
    target = open_target(tmp_path)
    assert tuple(target.head.shape) == (100, 32)
