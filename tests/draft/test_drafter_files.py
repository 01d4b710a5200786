"""Drafters on disk: what was exported loads as the same numbers, and every oddity is an error."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from tiny_target import CONFIG, VOCABULARY, mapping_folder, target_folder

from eagle3_data.draft import checkpoint
from eagle3_data.draft.checkpoint import Checkpoint, CheckpointError, load
from eagle3_data.draft.mapping import Mapping
from eagle3_data.draft.mapping_files import inherited
from eagle3_data.draft.model import Drafter
from eagle3_data.draft.target import Target, TargetError, open_target, shape_for

torch.set_num_threads(1)

LAYERS = [1, 3, 4]
FLAGS: list[dict[str, Any]] = [
    {},
    {"norm_before_residual": True, "norm_output": True},
    {"norm_before_fc": True},
    {"fc_norm": True},
]


@pytest.fixture
def target(tmp_path: Path) -> Target:
    return open_target(target_folder(tmp_path / "target"))


def made(target: Target, tmp_path: Path, **flags: bool) -> Checkpoint:
    mapping = inherited(mapping_folder(tmp_path / "mapping"), VOCABULARY)
    torch.manual_seed(1)
    drafter = Drafter(shape_for(target, mapping.size, 3, **flags), target.embedding)
    with torch.no_grad():
        for name, parameter in drafter.named_parameters():
            if "norm" in name:
                parameter.uniform_(0.5, 1.5)
    return Checkpoint(drafter, mapping, facts={"layers_output_of": LAYERS})


def exported(target: Target, tmp_path: Path, **options: Any) -> tuple[Checkpoint, Path]:
    one = made(target, tmp_path)
    checkpoint.export(one, tmp_path / "draft", target, **({"dtype": "fp32"} | options))
    return one, tmp_path / "draft"


def outputs(drafter: Drafter) -> torch.Tensor:
    random = torch.Generator().manual_seed(4)
    aux = torch.randn(6, 48, generator=random)
    tokens = torch.randint(0, VOCABULARY, (3, 6), generator=random)
    with torch.no_grad():
        states = drafter.unroll(aux, tokens, torch.arange(6), [(0, 6)])
        return torch.stack([drafter.lm_head(state) for state in states])


def rewrite(folder: Path, change: Any) -> None:
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors")


@pytest.mark.parametrize("flags", FLAGS, ids=lambda f: "+".join(f) or "plain")
def test_what_was_exported_loads_as_the_same_drafter(flags, target, tmp_path) -> None:
    one = made(target, tmp_path, **flags)
    checkpoint.export(one, tmp_path / "draft", target, dtype="fp32")
    again = load(tmp_path / "draft", target)
    assert again.drafter.shape == one.drafter.shape
    assert torch.equal(outputs(again.drafter), outputs(one.drafter))
    assert again.mapping.fingerprint == one.mapping.fingerprint
    assert (again.ids, again.facts) == ([2, 4, 5], {"layers_output_of": LAYERS})
    assert again.reads(LAYERS) is None
    wide = {n: t.bfloat16().float() for n, t in one.drafter.state_dict().items()}
    one.drafter.load_state_dict(wide)
    checkpoint.export(one, tmp_path / "half", target)
    assert torch.equal(outputs(load(tmp_path / "half", target).drafter), outputs(one.drafter))


def test_the_files_are_what_engines_read(target, tmp_path) -> None:
    _, folder = exported(target, tmp_path, dtype="bf16")
    assert sorted(path.name for path in folder.iterdir()) == ["config.json", "model.safetensors"]
    found = {
        n: (t.dtype, tuple(t.shape)) for n, t in load_file(folder / "model.safetensors").items()
    }
    half, layer = torch.bfloat16, "midlayer."
    assert found == {
        "fc.weight": (half, (16, 48)),
        f"{layer}input_layernorm.weight": (half, (16,)),
        f"{layer}hidden_norm.weight": (half, (16,)),
        f"{layer}post_attention_layernorm.weight": (half, (16,)),
        f"{layer}self_attn.q_proj.weight": (half, (32, 32)),
        f"{layer}self_attn.k_proj.weight": (half, (16, 32)),
        f"{layer}self_attn.v_proj.weight": (half, (16, 32)),
        f"{layer}self_attn.o_proj.weight": (half, (16, 32)),
        f"{layer}mlp.gate_proj.weight": (half, (24, 16)),
        f"{layer}mlp.up_proj.weight": (half, (24, 16)),
        f"{layer}mlp.down_proj.weight": (half, (16, 24)),
        "norm.weight": (half, (16,)),
        "lm_head.weight": (half, (40, 16)),
        "d2t": (torch.int64, (40,)),
        "t2d": (torch.bool, (100,)),
    }
    config = json.loads((folder / "config.json").read_text())
    ids = [2, 4, 5]
    assert config["architectures"] == ["LlamaForCausalLMEagle3"]
    assert config["eagle_aux_hidden_state_layer_ids"] == ids
    assert config["eagle_config"]["eagle_aux_hidden_state_layer_ids"] == ids
    assert config["eagle_config"]["use_aux_hidden_state"] is True
    assert (config["draft_vocab_size"], config["vocab_size"]) == (40, 100)
    assert config["torch_dtype"] == config["dtype"] == "bfloat16"
    assert config["tie_word_embeddings"] is False
    assert config["rope_theta"] == config["rope_parameters"]["rope_theta"] == 1000.0
    for name in checkpoint.FLAGS:
        assert config[name] is False


def test_ids_of_outputs_and_an_embedding_when_asked(target, tmp_path) -> None:
    _, folder = exported(target, tmp_path, with_embedding=True, ids_of_outputs=True)
    config = json.loads((folder / "config.json").read_text())
    assert config["eagle_aux_hidden_state_layer_ids"] == LAYERS
    tensors = load_file(folder / "model.safetensors")
    assert torch.equal(tensors["embed_tokens.weight"], target.embedding)
    assert load(folder, target).reads(LAYERS) is None


def test_a_head_over_the_whole_vocabulary_has_no_mapping(target, tmp_path) -> None:
    mapping = Mapping(np.arange(VOCABULARY), VOCABULARY)
    drafter = Drafter(shape_for(target, VOCABULARY, 3), target.embedding)
    one = Checkpoint(drafter, mapping, facts={"layers_output_of": LAYERS})
    checkpoint.export(one, tmp_path / "draft", target)
    assert not {"d2t", "t2d"} & load_file(tmp_path / "draft" / "model.safetensors").keys()
    assert load(tmp_path / "draft", target).mapping.size == VOCABULARY


def test_transformers_reads_the_config(target, tmp_path) -> None:
    from transformers import AutoConfig

    yarn = {
        "rope_type": "yarn",
        "rope_theta": 5e4,
        "factor": 4.0,
        "original_max_position_embeddings": 32,
    }
    one = made(target, tmp_path)
    for rope in (dict(one.drafter.shape.rope), yarn):
        one.drafter.shape = replace(one.drafter.shape, rope=rope)
        checkpoint.export(one, tmp_path / "draft", target)
        config = AutoConfig.from_pretrained(tmp_path / "draft")
        assert config.rope_parameters == rope
        assert (config.head_dim, config.vocab_size, config.draft_vocab_size) == (8, 100, 40)
        assert load(tmp_path / "draft", target).drafter.shape.rope == rope


def test_the_other_layout_loads_the_same(target, tmp_path) -> None:
    """`layers.0.*`, behind `model.` or not: what vLLM maps `midlayer.*` to."""
    one, folder = exported(target, tmp_path)
    tensors = load_file(folder / "model.safetensors")
    for prefix in ("layers.0.", "model.layers.0."):
        renamed = {name.replace("midlayer.", prefix): value for name, value in tensors.items()}
        save_file(renamed, folder / "model.safetensors")
        assert torch.equal(outputs(load(folder, target).drafter), outputs(one.drafter))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: t.pop("midlayer.hidden_norm.weight"), "missing .*hidden_norm"),
        (lambda t: t.update({"midlayer.extra": torch.zeros(2)}), "unexpected .*extra"),
        (lambda t: t.update({"input_norm.weight": torch.ones(48)}), "unexpected .*input_norm"),
        (lambda t: t.update({"layers.1.mlp.up_proj.weight": torch.ones(2)}), "unexpected .*1.mlp"),
        (lambda t: t.update({"norm.weight": torch.ones(17)}), r"norm.weight is \[17\]"),
        (lambda t: t.update({"midlayer.self_attn.q_proj.bias": torch.ones(32)}), "q_proj.bias"),
        (lambda t: t.pop("fc.weight"), "no fc.weight"),
    ],
)
def test_a_missing_or_unexpected_tensor_is_an_error(change, message, target, tmp_path) -> None:
    _, folder = exported(target, tmp_path)
    rewrite(folder, change)
    with pytest.raises(CheckpointError, match=message):
        load(folder, target)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"num_hidden_layers": 2}, "several layers"),
        ({"hidden_act": "gelu"}, "not supported"),
        ({"norm_before_fc": True, "eagle_config": None}, "missing .*input_norm"),
        ({"fc_norm": True}, "missing .*fc_norm"),
        ({"vocab_size": 99}, "another target"),
        ({"num_key_value_heads": 4}, "by config.json it has to be"),
        ({"transformer_layer_config": {}, "norm_before_residual": None}, None),
    ],
)
def test_a_config_that_is_not_of_the_tensors_is_an_error(change, message, target, tmp_path) -> None:
    _, folder = exported(target, tmp_path)
    path = folder / "config.json"
    body = json.loads(path.read_text()) | change
    if "transformer_layer_config" in change:
        del body["norm_before_residual"]
        message = "does not say norm_before_residual"
    path.write_text(json.dumps(body))
    with pytest.raises(CheckpointError, match=message):
        load(folder, target)


def test_layer_ids_of_others_are_read_in_either_meaning(target, tmp_path) -> None:
    one, _ = exported(target, tmp_path)
    for ids, fits in (([2, 4, 5], True), ([5, 2, 4], True), (LAYERS, True), ([3, 5, 6], False)):
        told = Checkpoint(one.drafter, one.mapping, ids).reads(LAYERS)
        assert (told is None) == fits
    assert Checkpoint(one.drafter, one.mapping).reads([1, 3]) is not None


def test_targets_that_can_not_be_read_are_refused(tmp_path) -> None:
    for name, change in (
        ("softcap", {"final_logit_softcapping": 30.0}),
        ("scale", {"logit_scale": 0.5}),
    ):
        with pytest.raises(TargetError, match="not supported"):
            open_target(target_folder(tmp_path / name, **change))
    with pytest.raises(TargetError, match="pass --target"):
        open_target("some/model")


def test_a_target_with_latent_attention_gives_plain_heads(tmp_path) -> None:
    """DeepSeek keeps the rotary part in head_dim; its drafters have heads of v_head_dim."""
    latent = {"kv_lora_rank": 8, "v_head_dim": 6, "head_dim": 4, "num_key_value_heads": 4}
    shape = shape_for(open_target(target_folder(tmp_path / "t", **latent)), 40, 3)
    assert (shape.heads, shape.kv_heads, shape.head_dim) == (4, 4, 6)
    assert shape.intermediate_size == CONFIG["intermediate_size"]
