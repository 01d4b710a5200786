"""What training and evaluation need of the target besides its states: embedding, last norm, head.

What enters: the folder of a model with safetensors. What leaves: a `Target`. It promises to run no
code of the folder, to read three tensors and leave the rest where it is, and to refuse a target
whose arithmetic after the last state it does not know.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from eagle3_data.draft import config as configs
from eagle3_data.draft import tensors as files
from eagle3_data.draft.model import Shape
from eagle3_data.draft.target_identity import weights_digest

if TYPE_CHECKING:
    from eagle3_data.draft.states_manifest import Identity

EMBEDDING, NORM, HEAD = "embed_tokens.weight", "norm.weight", "lm_head.weight"


class TargetError(ValueError):
    """A target that can not be used; the message names the next step."""


@dataclass(frozen=True, slots=True, eq=False)
class Target:
    """`embedding` and `head` [vocabulary, hidden] (one tensor when tied), `norm` [hidden]."""

    folder: Path
    config: configs.Config
    embedding: Tensor
    norm: Tensor
    head: Tensor

    @property
    def vocab_size(self) -> int:
        """Rows of the head."""
        return len(self.head)

    def normed(self, final: Tensor, norm: str) -> Tensor:
        """Final states as the head reads them; `norm` as the manifest of the states has it."""
        if norm == "post":
            return final
        wide = final.float()
        eps = float(self.config.values.get("rms_norm_eps", 1e-6))
        wide = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
        return (wide * self.norm.float()).to(final.dtype)


def open_target(path: str | Path) -> Target:
    """Read a target. Raises TargetError, ConfigError, TensorError."""
    folder = Path(path)
    if not folder.is_dir():
        raise TargetError(f"{path} is no folder here: pass --target with the folder of the model")
    config = configs.read(folder)
    for name in ("final_logit_softcapping", "logit_scale", "logits_scaling", "lm_head_multiplier"):
        if config.values.get(name) not in (None, 1, 1.0):
            raise TargetError(f"{config.file} sets {name}, which is not supported for a target yet")
    found = {name: t for name, t in files.tensors(folder).items() if ".layers." not in f".{name}"}
    embedding = _one(found, EMBEDDING, folder)
    prefix = embedding.name.removesuffix(EMBEDDING)
    norm = found.get(prefix + NORM)
    if norm is None:
        raise TargetError(
            f"{folder} has {embedding.name} but no {prefix + NORM}: which is its norm?"
        )
    tied = not any(name.endswith(HEAD) for name in found)
    first = read_tensor(embedding)
    head = first if tied else read_tensor(_one(found, HEAD, folder))
    return Target(folder, config, first, read_tensor(norm), head)


def target_of(identity: Identity, path: str | Path | None) -> Target:
    """The target of states: `path`, else where they say it was. Raises TargetError when it is
    another one.
    """
    target = open_target(path or identity.target.id)
    ours, theirs = target.head.shape, (identity.target.vocab_size, identity.target.hidden_size)
    if tuple(ours) != theirs:
        raise TargetError(
            f"{target.folder} has a head of {list(ours)}, the states are of a target of"
            f" {list(theirs)} (vocabulary, hidden size): pass their own --target"
        )
    if identity.target.weights not in ("", weights_digest(target.folder)):
        raise TargetError(
            f"{target.folder} has other weights than the model that the states are of: pass their"
            " own --target"
        )
    return target


def read_tensor(tensor: files.Tensor) -> Tensor:
    """The values. Raises TargetError for damaged bytes or a quantised tensor."""
    from safetensors import SafetensorError, safe_open

    if tensor.dtype not in ("BF16", "F16", "F32", "F64", "I64", "I32", "BOOL"):
        raise TargetError(f"{tensor.file}: {tensor.name} is {tensor.dtype}, which is not supported")
    try:
        with safe_open(str(tensor.file), framework="pt") as opened:
            values: Tensor = opened.get_tensor(tensor.name)
            return values
    except (SafetensorError, OSError, ValueError) as error:
        raise TargetError(f"{tensor.file} can not be read ({error}): copy it again") from None


def shape_for(target: Target, draft_vocab_size: int, aux: int, **flags: bool) -> Shape:
    """The shape of a new drafter: sizes and rope of the target, its feed-forward part dense."""
    config, values = target.config, target.config.values
    if values.get("hidden_act", "silu") != "silu":
        raise TargetError(
            f"{config.file}: a drafter is made with silu, not {values['hidden_act']!r}"
        )
    heads, hidden = config.needed("num_attention_heads"), config.needed("hidden_size")
    # head_dim of a model with latent attention is its rotary part alone
    latent = config.number("kv_lora_rank") is not None
    size = config.number("v_head_dim" if latent else "head_dim") or hidden // heads
    return Shape(
        hidden_size=hidden,
        intermediate_size=config.needed("intermediate_size"),
        heads=heads,
        kv_heads=config.number("num_key_value_heads") or heads,
        head_dim=size,
        vocab_size=target.vocab_size,
        draft_vocab_size=draft_vocab_size,
        eps=float(values.get("rms_norm_eps", 1e-6)),
        max_positions=config.number("max_position_embeddings") or 4096,
        rope=rope_in(values),
        aux=aux,
        **flags,
    )


def rope_in(values: Mapping[str, Any]) -> dict[str, Any]:
    """`rope_parameters` of a config, in the one spelling, from any of the three in use."""
    found = values.get("rope_parameters") or values.get("rope_scaling") or {}
    found = dict(found.get("full_attention", found))  # models with windows keep one for each kind
    found["rope_type"] = found.pop("type", None) or found.get("rope_type") or "default"
    found.setdefault("rope_theta", values.get("rope_theta") or 10000.0)
    found.pop("partial_rotary_factor", None)  # the drafter turns the whole head
    return found


def _one(found: Mapping[str, files.Tensor], suffix: str, folder: Path) -> files.Tensor:
    named = [tensor for name, tensor in found.items() if name.endswith(suffix)]
    if len(named) != 1:
        raise TargetError(f"{folder} has {len(named)} tensors named …{suffix}, one is needed")
    return named[0]
