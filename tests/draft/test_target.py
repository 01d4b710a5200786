"""What is read of a target: head, norm and rope as transformers takes them, or a clear refusal."""

from __future__ import annotations

import importlib
import json
import re
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

import torch
import transformers
from safetensors.torch import load_file, save_file
from tiny_target import target_folder

from eagle3_data.draft.config import ConfigError
from eagle3_data.draft.forward import load
from eagle3_data.draft.model import Drafter, rope_of, rotate
from eagle3_data.draft.target import CENTRED, ONE_PLUS, TargetError, open_target, rope_in, shape_for

torch.set_num_threads(1)

MODELS = Path(transformers.__file__).parent / "models"
TEXT: dict[str, Any] = {
    "vocab_size": 100,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 256,
    "bos_token_id": 0,
    "eos_token_id": 2,
    "pad_token_id": None,
}


def changed(folder: Path, drop: tuple[str, ...] = (), **config: Any) -> Path:
    """config.json without some keys, with others set."""
    file = folder / "config.json"
    values = json.loads(file.read_text()) | config
    file.write_text(json.dumps({k: v for k, v in values.items() if k not in drop}))
    return folder


def retensored(folder: Path, drop: tuple[str, ...] = (), **tensors: torch.Tensor) -> Path:
    """The tensors without some, with others; `__` in a name is a dot."""
    file = folder / "model.safetensors"
    found = load_file(file) | {name.replace("__", "."): t for name, t in tensors.items()}
    kept = {name: t.clone() for name, t in found.items() if name not in drop}
    save_file(kept, file, metadata={"format": "pt"})
    return folder


HEAD = "lm_head.weight"


@pytest.mark.parametrize(
    ("config", "drop", "tied"),
    [
        ({"tie_word_embeddings": True}, (), True),
        ({"tie_word_embeddings": False}, (), False),
        ({"tie_word_embeddings": None}, (), False),
        ({}, ("tie_word_embeddings",), False),  # llama: false unless said
        ({"model_type": "gemma3_text"}, ("tie_word_embeddings",), True),
        ({"model_type": "never_heard_of"}, ("tie_word_embeddings",), False),
        ({"text_config": {"tie_word_embeddings": True}}, ("tie_word_embeddings",), True),
        ({"text_config": {"tie_word_embeddings": True}}, (), True),  # glm4v and others forward it
        (
            {"model_type": "gemma3", "text_config": {"model_type": "gemma3_text"}},
            ("tie_word_embeddings",),
            True,
        ),
    ],
)
def test_a_head_that_is_not_stored_is_the_embedding_only_where_it_is_tied(
    tmp_path, config, drop, tied
) -> None:
    folder = changed(retensored(target_folder(tmp_path / "t"), (HEAD,)), drop, **config)
    if tied:
        target = open_target(folder)
        assert target.head is target.embedding
    else:
        with pytest.raises(TargetError, match=f"has no {HEAD}.*tie_word_embeddings") as told:
            open_target(folder)
        assert "copy the file that is missing" in str(told.value)


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("part", ["weight_packed", "qweight", "bias"])
def test_a_head_with_other_parts_is_refused_by_their_names(tmp_path, part, tied) -> None:
    drop = () if part == "bias" else (HEAD,)
    parts = {f"lm_head__{part}": torch.zeros(100, dtype=torch.int32)}
    folder = retensored(target_folder(tmp_path / "t", tie_word_embeddings=tied), drop, **parts)
    with pytest.raises(TargetError, match=rf"lm_head\.{part}.*in bf16"):
        open_target(folder)


def test_a_head_by_another_name_is_named(tmp_path) -> None:
    folder = target_folder(tmp_path / "t")
    head = load_file(folder / "model.safetensors")[HEAD]
    retensored(folder, (HEAD,), output__weight=head)
    with pytest.raises(TargetError, match=r"output\.weight has the shape of a head"):
        open_target(folder)


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("stored", ["none", "other", "same"])
def test_the_head_is_the_one_that_transformers_takes(tmp_path, tied, stored) -> None:
    if stored == "none" and not tied:
        pytest.skip("refused: transformers would make up a head")
    torch.manual_seed(0)
    config = transformers.LlamaConfig(**TEXT, tie_word_embeddings=False)
    model = transformers.AutoModelForCausalLM.from_config(config)
    if stored == "same":
        with torch.no_grad():
            model.lm_head.weight.copy_(model.get_input_embeddings().weight)
    model.save_pretrained(tmp_path)
    changed(tmp_path, tie_word_embeddings=tied)
    if stored == "none":
        retensored(tmp_path, (HEAD,))
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path)
    target = open_target(tmp_path)
    assert torch.equal(target.head, theirs.get_output_embeddings().weight)
    assert (target.head is target.embedding) == (stored != "other")


def normed_model(kind: str, folder: Path) -> None:
    """A target of a model type with a last norm that is not all ones."""
    configs = {
        "llama": lambda: transformers.LlamaConfig(**TEXT),
        "gemma3_text": lambda: transformers.Gemma3TextConfig(**TEXT),
        "qwen3_next": lambda: transformers.Qwen3NextConfig(
            **TEXT | {"head_dim": 16},
            num_experts=4,
            num_experts_per_tok=2,
            moe_intermediate_size=16,
            shared_expert_intermediate_size=16,
            linear_num_key_heads=2,
            linear_num_value_heads=4,
            linear_key_head_dim=8,
            linear_value_head_dim=8,
        ),
    }
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(configs[kind](), dtype=torch.float32)
    with torch.no_grad():
        model.get_decoder().norm.weight.add_(0.3 * torch.randn(32))
    model.save_pretrained(folder)


@pytest.mark.parametrize("kind", ["llama", "gemma3_text", "qwen3_next"])
def test_the_last_norm_is_that_of_the_model(tmp_path, kind) -> None:
    normed_model(kind, tmp_path)
    target, forward = open_target(tmp_path), load(str(tmp_path), dtype="fp32", device="cpu")
    states = 3 * torch.randn(20, 32, generator=torch.Generator().manual_seed(1))
    theirs = forward.normed(states).float()
    torch.testing.assert_close(target.normed(states, "pre"), theirs, rtol=1e-5, atol=1e-5)
    assert target.normed(states, "post") is states
    # what a new drafter's norm begins as: of a state of ones only the multiplier is left
    multiplier = forward.normed(torch.ones(1, 32)).float()[0]
    torch.testing.assert_close(target.norm.float(), multiplier, rtol=1e-5, atol=1e-5)


def test_states_may_be_on_another_device_than_the_norm(tmp_path) -> None:
    target = open_target(target_folder(tmp_path / "t"))
    out = target.normed(torch.empty(3, target.embedding.shape[1], device="meta"), "pre")
    assert out.device.type == "meta" and target.norm.device.type == "cpu"


@pytest.mark.parametrize(
    ("config", "tensors", "word"),
    [
        ({}, {"model__norm__bias": torch.zeros(16)}, r"model\.norm\.bias"),
        ({"model_type": "cohere2"}, {}, "'cohere2'"),
    ],
)
def test_a_layer_norm_is_refused(tmp_path, config, tensors, word) -> None:
    folder = retensored(target_folder(tmp_path / "t", **config), **tensors)
    with pytest.raises(TargetError, match=f"{word}: its last norm is a LayerNorm"):
        open_target(folder)


@lru_cache(maxsize=1)
def last_norms() -> tuple[tuple[Path, str, str], ...]:
    """(folder, name of the class, its source) of each last norm of a text model in transformers:
    `self.norm` of a module that has `self.embed_tokens`.
    """
    found = []
    for file in sorted(MODELS.glob("*/modeling_*.py")):
        source = file.read_text(encoding="utf-8")
        if "self.embed_tokens = " not in source:
            continue
        # no parser: it takes a minute for all of them
        bodies = re.split(r"^class (?=\w+)", source, flags=re.MULTILINE)[1:]
        classes = {re.match(r"\w+", body)[0]: body for body in bodies}  # type: ignore[index]
        for body in bodies:
            if "self.embed_tokens = " in body:
                for name in re.findall(r"self\.norm = (\w+)\(", body):
                    found.append((file.parent, name, classes.get(name, "")))
    return tuple(found)


@lru_cache
def types_of(folder: Path) -> set[str]:
    """Model types of a folder of transformers, those of other senses left out."""
    text = "".join(file.read_text("utf-8") for file in folder.glob("configuration_*.py"))
    found = set(re.findall(r"""model_type(?:: str)? = "(\w+)\"""", text))
    return {name for name in found if not name.endswith(("_vision", "_audio"))}


def test_the_tables_of_norms_are_those_of_the_installed_transformers() -> None:
    one_plus, centred, known = set(), set(), set()
    for folder, _, source in last_norms():
        known |= types_of(folder)
        if "self.bias" in source or folder.name.startswith("t5"):  # refused; no decoder alone
            continue
        if re.search(r"1(\.0)? \+ self\.weight|self\.weight \+ 1", source):
            one_plus |= types_of(folder)
        elif re.search(r"- mean\b|layer_norm\(", source) and "self.weight" in source:
            centred |= types_of(folder)
    assert len(known) > 100
    assert one_plus == ONE_PLUS & known, "renew ONE_PLUS in eagle3_data/draft/target.py"
    assert centred == CENTRED & known, "renew CENTRED in eagle3_data/draft/target.py"
    assert {"gemma", "gemma2", "gemma3_text", "qwen3_next", "cohere"} <= known


def test_the_norms_of_the_tables_do_as_the_tables_say() -> None:
    seen = set()
    for folder, name, _ in last_norms():
        kinds = types_of(folder)
        if not kinds & (ONE_PLUS | CENTRED):
            continue
        module = importlib.import_module(
            f"transformers.models.{folder.name}.modeling_{folder.name}"
        )
        norm = getattr(module, name)(4)
        x = torch.tensor([[1.0, 2.0, 3.0, 6.0]])
        with torch.no_grad():
            norm.weight.zero_()
            assert bool(norm(x).any()) == bool(kinds & ONE_PLUS), folder.name
            norm.weight.fill_(1)
            assert (abs(float(norm(x).sum())) < 1e-5) == bool(kinds & CENTRED), folder.name
        seen |= kinds
    assert len(seen) > 10


@pytest.mark.parametrize("name", ["hidden_act", "hidden_activation"])
def test_the_activation_of_a_target_is_none_of_the_drafter_s(tmp_path, name) -> None:
    """A drafter is silu whatever its target is, and its config.json says so."""
    folder = changed(target_folder(tmp_path / "t"), ("hidden_act",))
    changed(folder, **{name: "gelu_pytorch_tanh"})
    assert shape_for(open_target(folder), 40, 3).hidden_size == 16


@pytest.mark.parametrize("spelling", ["type", "rope_type"])
@pytest.mark.parametrize("interleaved", [False, True])
def test_multimodal_rope_over_text_is_the_default_rope(tmp_path, spelling, interleaved) -> None:
    """Against the rotary embeddings of Qwen2-VL and, interleaved, Qwen3-VL: positions of text are
    the same in all three sections.
    """
    rope = {spelling: "mrope", "mrope_section": [2, 1, 1]}
    if interleaved:
        from transformers.models.qwen3_vl import modeling_qwen3_vl as theirs

        config: Any = transformers.Qwen3VLTextConfig(
            **TEXT,
            rope_parameters={"rope_type": "default", "rope_theta": 1e4, "mrope_section": [2, 1, 1]},
        )
        made = theirs.Qwen3VLTextRotaryEmbedding(config)
        apply = theirs.apply_rotary_pos_emb
    else:
        from transformers.models.qwen2_vl import modeling_qwen2_vl as others

        config = transformers.Qwen2VLTextConfig(
            **{k: v for k, v in TEXT.items() if k != "head_dim"},
            rope_parameters={**rope, "rope_theta": 1e4},
        )
        made, apply = others.Qwen2VLRotaryEmbedding(config), others.apply_rotary_pos_emb

    folder = target_folder(
        tmp_path / "t", rope_parameters=None, rope_scaling=rope, rope_theta=1e4, hidden_size=32
    )
    shape = shape_for(open_target(folder), 40, 3)
    assert shape.rope["rope_type"] == "default"
    torch.testing.assert_close(rope_of(shape)[0], made.inv_freq, rtol=0, atol=0)
    x = torch.randn(1, 4, 20, 8)
    cos, sin = made(x, torch.arange(20).expand(3, 1, 20))
    wanted, _ = apply(x, x, cos, sin)
    turn = Drafter(shape, torch.zeros(100, 32))._turn(torch.arange(20))
    turned = rotate(x[0].transpose(0, 1), turn)
    torch.testing.assert_close(turned.transpose(0, 1)[None], wanted, rtol=0, atol=0)


@pytest.mark.parametrize(
    ("rope", "word"),
    [
        ({"type": "su", "short_factor": [1.0] * 4, "long_factor": [2.0] * 4}, "'su' is not known"),
        ({"type": "axial"}, "'axial' is not known"),
        ({"rope_type": ["yarn"]}, "is not known"),
        ({"rope_type": "yarn"}, "'yarn' lacks a value or has a wrong one"),
        ({"rope_type": "llama3", "factor": "8"}, "'llama3' lacks a value or has a wrong one"),
        ({"rope_type": "default", "rope_theta": "x"}, "'default' lacks a value"),
    ],
)
def test_a_rope_that_is_not_known_is_refused_before_anything_is_made(tmp_path, rope, word) -> None:
    folder = target_folder(tmp_path / "t", rope_parameters=None, rope_scaling=rope)
    target = open_target(folder)  # a drafter that has its own can still be walked
    with pytest.raises(TargetError, match=rf"t/config\.json: .*{word}"):
        shape_for(target, 40, 3)


@pytest.mark.parametrize("rope", [[1], "yarn", {"full_attention": 3}])
def test_a_rope_that_is_no_object_is_refused(rope) -> None:
    with pytest.raises(ConfigError, match="not an object"):
        rope_in({"rope_scaling": rope})
