"""Drafters on disk: read from either layout, written so that vLLM, SGLang and llama.cpp load them.

What enters: a folder with config.json and safetensors, `midlayer.*` or `layers.0.*`; or a drafter.
What leaves: a `Checkpoint`; or such a folder, config.json written last. It promises that a missing
or unexpected tensor is an error, that layer ids stand at both places that engines look at, and that
what was exported loads as the same numbers.
"""

from __future__ import annotations

from collections.abc import Mapping as Dict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import torch
from torch import Tensor

from eagle3_data.draft import config as configs
from eagle3_data.draft import tensors as files
from eagle3_data.draft.mapping import Mapping
from eagle3_data.draft.mapping_files import inherited
from eagle3_data.draft.model import Drafter, Shape
from eagle3_data.draft.target import Target, read_tensor, rope_in
from eagle3_data.writing import drafting

WEIGHTS = "model.safetensors"
OWN = "eagle3_data"
"""Key of config.json under which our own facts stand; engines pass over it."""

IDS = "eagle_aux_hidden_state_layer_ids"
FLAGS = ("norm_before_residual", "norm_before_fc", "fc_norm", "norm_output")
DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
_NAMES = {torch.bfloat16: "bfloat16", torch.float16: "float16", torch.float32: "float32"}


class CheckpointError(ValueError):
    """A drafter that can not be read or used here; the message names the next step."""


@dataclass(frozen=True, slots=True, eq=False)
class Checkpoint:
    """A drafter with what belongs to it. `ids`: layer ids as its config.json has them, None when it
    has none. `facts`: what we wrote about its training, empty for a drafter of others.
    """

    drafter: Drafter
    mapping: Mapping
    ids: list[int] | None = None
    facts: dict[str, Any] = field(default_factory=dict)

    def reads(self, output_of: list[int]) -> str | None:
        """None when it was made for the states of these layers, else why not."""
        if self.drafter.shape.aux != len(output_of):
            return f"it takes {self.drafter.shape.aux} auxiliary states, these are {len(output_of)}"
        known = self.facts.get("layers_output_of")
        if known is not None and known != output_of:
            return f"it was trained on outputs of layers {known}, these are of {output_of}"
        # ids as vLLM means them (what enters a layer) or as SGLang does (what leaves it)
        if known is None and self.ids is not None:
            meant = sorted(set(self.ids))
            if output_of not in ([k - 1 for k in meant], meant):
                return f"its layer ids {self.ids} are in neither meaning outputs of {output_of}"
        return None

    def doubt(self, output_of: list[int]) -> str | None:
        """Why it may be for other layers than these although `reads` has nothing against them."""
        if self.ids is None or "layers_output_of" in self.facts:
            return None
        other = [k - 1 for k in self.ids] if output_of == sorted(set(self.ids)) else self.ids
        return (
            f"its layer ids {self.ids} may count what enters a layer (vLLM: outputs of"
            f" {[k - 1 for k in self.ids]}) or what leaves it (SGLang: outputs of {self.ids}); the"
            f" states are outputs of {output_of}: `evaluate` it on these and on states of {other}"
            " before you train, the right ones give the longer acceptance length"
        )


def load(path: str | Path, target: Target, mapping: Mapping | None = None) -> Checkpoint:
    """Read a drafter of `target`; `mapping` in place of its own. Raises CheckpointError,
    ConfigError, TensorError, VocabError.
    """
    folder = Path(path)
    config = configs.read(folder)
    found = {_plain(name): tensor for name, tensor in files.tensors(folder).items()}
    if mapping is None:
        mapping = inherited(folder, target.vocab_size)
    shape = shape_in(config, found)
    if (shape.vocab_size, shape.hidden_size) != tuple(target.head.shape):
        raise CheckpointError(
            f"{folder} is a drafter for a vocabulary of {shape.vocab_size:,} and states of"
            f" {shape.hidden_size}, {target.folder} has {list(target.head.shape)}: another target?"
        )
    stored = found.pop("embed_tokens.weight", None)
    embedding = target.embedding if stored is None else read_tensor(stored)
    if alike(embedding, target.embedding):
        embedding = target.embedding  # one of them in memory
    try:
        drafter = Drafter(shape, embedding)
    except configs.ConfigError as error:
        raise configs.ConfigError(f"{config.file}: {error}") from None
    wanted = drafter.state_dict()
    weights = {n: t for n, t in found.items() if n not in ("d2t", "t2d")}
    missing, unexpected = sorted(wanted.keys() - weights), sorted(weights.keys() - wanted)
    if missing or unexpected:
        raise CheckpointError(
            f"{folder} is no EAGLE-3 drafter of one Llama layer with the flags of its config.json:"
            f" missing {missing or 'nothing'}, unexpected {unexpected or 'nothing'}"
        )
    for name, tensor in weights.items():
        if tensor.shape != tuple(wanted[name].shape):
            raise CheckpointError(
                f"{folder}: {name} is {list(tensor.shape)}, by config.json it has to be"
                f" {list(wanted[name].shape)}"
            )
    drafter.load_state_dict({name: read_tensor(tensor) for name, tensor in weights.items()})
    return Checkpoint(drafter, mapping, _ids(config), dict(config.raw.get(OWN) or {}))


def alike(one: Tensor, other: Tensor) -> bool:
    """The same numbers, as far as bfloat16 tells them apart: what drafters are stored in."""
    if one.shape != other.shape:
        return False
    kind = torch.bfloat16
    return one is other or torch.equal(one.to("cpu", kind), other.to("cpu", kind))


def shape_in(config: configs.Config, found: Dict[str, files.Tensor]) -> Shape:
    """The shape that a drafter's config.json tells; sizes it leaves out are those of engines."""
    values = dict(config.values)
    inner = values.get("transformer_layer_config")  # the layout of speculators
    if isinstance(inner, dict):
        if "norm_before_residual" not in values:
            raise CheckpointError(
                f"{config.file} does not say norm_before_residual, which readers of the speculators"
                " layout take for true and its trainer for false: write what it was trained with"
            )
        values |= inner
    config = configs.Config(config.file, values, config.raw)
    nested = values.get("eagle_config") or {}
    if config.number("num_hidden_layers") not in (None, 1):
        raise CheckpointError(f"{config.file}: drafters of several layers are not supported")
    if values.get("hidden_act", "silu") != "silu" or values.get("logit_scale") not in (None, 1.0):
        raise CheckpointError(f"{config.file}: an activation or logit_scale that is not supported")
    heads, hidden = config.needed("num_attention_heads"), config.needed("hidden_size")
    fused, head = found.get("fc.weight"), found.get("lm_head.weight")
    if fused is None or head is None:
        raise CheckpointError(f"{config.file.parent} holds no fc.weight and lm_head.weight")
    return Shape(
        hidden_size=hidden,
        intermediate_size=config.needed("intermediate_size"),
        heads=heads,
        kv_heads=config.number("num_key_value_heads") or heads,
        head_dim=config.number("head_dim") or hidden // heads,
        vocab_size=config.needed("vocab_size"),
        draft_vocab_size=config.number("draft_vocab_size") or config.needed("vocab_size"),
        eps=float(values.get("rms_norm_eps", 1e-6)),
        max_positions=config.number("max_position_embeddings") or 4096,
        rope=rope_in(values),
        aux=max(1, fused.shape[-1] // hidden),
        attention_bias=bool(values.get("attention_bias", False)),
        **{name: bool(nested.get(name, values.get(name, False))) for name in FLAGS},
    )


def export(
    made: Checkpoint,
    out: Path,
    target: Target,
    *,
    dtype: str = "bf16",
    with_embedding: bool = False,
    ids_of_outputs: bool = False,
) -> None:
    """Write a drafter into the folder `out`, replacing one. `made.facts` must name
    `layers_output_of`. `ids_of_outputs`: write layer ids as SGLang builds read them that add one.
    An embedding that is not the target's is always written: engines would else share the target's,
    which the drafter did not learn on (0.2 instead of 1.0 of its first choices were right).
    """
    from safetensors.torch import save

    kind = DTYPES[dtype]
    weights: dict[str, Tensor] = {
        name: tensor.detach().to("cpu", kind).contiguous()
        for name, tensor in made.drafter.state_dict().items()
    }
    mapping = made.mapping
    # a head over the whole vocabulary has no mapping: vLLM refuses one there
    if mapping.size < mapping.vocab_size or bool(mapping.d2t.any()):
        weights["d2t"] = torch.from_numpy(np.ascontiguousarray(mapping.d2t))
        weights["t2d"] = torch.from_numpy(np.ascontiguousarray(mapping.t2d))
    if with_embedding or not alike(made.drafter.embedding, target.embedding):
        weights["embed_tokens.weight"] = made.drafter.embedding.detach().to("cpu", kind)
    out.mkdir(parents=True, exist_ok=True)
    told = config_of(made, target, kind, ids_of_outputs=ids_of_outputs)
    for name, content in (
        (WEIGHTS, save(weights, metadata={"format": "pt"})),
        (configs.CONFIG, orjson.dumps(told, option=orjson.OPT_INDENT_2) + b"\n"),
    ):
        with drafting(out / name, overwrite=True) as draft:
            draft.write(content)


def config_of(
    made: Checkpoint, target: Target, dtype: torch.dtype, *, ids_of_outputs: bool = False
) -> dict[str, Any]:
    """config.json of a drafter: every key at every place where an engine looks for it."""
    shape, values = made.drafter.shape, target.config.values
    layers: list[int] = made.facts["layers_output_of"]
    ids = layers if ids_of_outputs else [k + 1 for k in layers]
    rope = dict(shape.rope)
    scaling = {name: value for name, value in rope.items() if name != "rope_theta"}
    flags = {name: getattr(shape, name) for name in FLAGS}
    special: dict[str, Any] = {
        n: values[n] for n in ("bos_token_id", "eos_token_id") if n in values
    }
    return {
        "architectures": ["LlamaForCausalLMEagle3"],
        "model_type": "llama",
        "hidden_size": shape.hidden_size,
        "target_hidden_size": shape.hidden_size,
        "intermediate_size": shape.intermediate_size,
        "num_hidden_layers": 1,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "head_dim": shape.head_dim,
        "hidden_act": "silu",
        "attention_bias": shape.attention_bias,
        "mlp_bias": False,
        "rms_norm_eps": shape.eps,
        "vocab_size": shape.vocab_size,
        "draft_vocab_size": shape.draft_vocab_size,
        "max_position_embeddings": shape.max_positions,
        "rope_theta": rope["rope_theta"],
        **({"rope_scaling": scaling} if rope["rope_type"] != "default" else {}),
        "rope_parameters": rope,
        "tie_word_embeddings": False,
        "torch_dtype": _NAMES[dtype],
        "dtype": _NAMES[dtype],
        **special,
        **flags,
        "num_aux_hidden_states": shape.aux,
        IDS: ids,
        "eagle_config": {
            IDS: ids,
            "use_aux_hidden_state": True,
            "norm_before_fc": shape.norm_before_fc,
        },
        OWN: made.facts,
    }


def _plain(name: str) -> str:
    """The name of a tensor in the plain layout."""
    name = name.removeprefix("model.")
    if name.startswith("layers.0."):
        name = "midlayer." + name.removeprefix("layers.0.")
    return name


def _ids(config: configs.Config) -> list[int] | None:
    """Layer ids, from the place that vLLM looks at first."""
    nested = config.raw.get("eagle_config") or {}
    found = config.raw.get(IDS) or nested.get(IDS)
    return [int(one) for one in found] if found else None
