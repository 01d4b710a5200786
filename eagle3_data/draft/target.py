"""What training and evaluation need of the target besides its states: embedding, last norm, head.

What enters: the folder of a model with safetensors. What leaves: a `Target`. It promises to run no
code of the folder, to read three tensors and leave the rest where it is, to take the embedding for
the head only where config.json says so, and to refuse a target whose arithmetic after the last
state it does not know.
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
from eagle3_data.draft.model import Shape, rope_of
from eagle3_data.draft.target_identity import weights_digest

if TYPE_CHECKING:
    from eagle3_data.draft.states_manifest import Identity

EMBEDDING, NORM, HEAD = "embed_tokens.weight", "norm.weight", "lm_head.weight"
TIED = "tie_word_embeddings"

ONE_PLUS = frozenset(
    [
        *("gemma", "gemma2", "gemma3", "gemma3_text", "vaultgemma"),
        *("qwen3_next", "qwen3_5", "qwen3_5_text", "qwen3_5_moe", "qwen3_5_moe_text"),
        *("minimax_m3_vl", "minimax_m3_vl_text", "step3p5", "step3p7"),
    ]
)
"""Model types whose last norm multiplies by 1 + weight; all others that are taken multiply by the
weight. Source: `self.norm` beside `self.embed_tokens` in models/*/modeling_*.py of transformers
5.24; a test reads those of the installed one again."""
CENTRED = frozenset(["cohere", "cohere2", "cohere_compass", "cohere_compass_text"])
"""Model types whose last norm takes the mean away, without a bias that would tell. Same source."""


class TargetError(ValueError):
    """A target that can not be used; the message names the next step."""


@dataclass(frozen=True, slots=True, eq=False)
class Target:
    """`embedding` and `head` [vocabulary, hidden] (one tensor when tied). `norm` [hidden]: what the
    last norm multiplies by, which is not always its weight.
    """

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
        return (wide * self.norm.to(final.device, torch.float32)).to(final.dtype)


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
    norm = _multiplier(found, embedding.name.removesuffix(EMBEDDING), config)
    first = read_tensor(embedding)
    return Target(folder, config, first, norm, _head(found, first, config))


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
    heads, hidden = config.needed("num_attention_heads"), config.needed("hidden_size")
    # head_dim of a model with latent attention is its rotary part alone
    latent = config.number("kv_lora_rank") is not None
    size = config.number("v_head_dim" if latent else "head_dim") or hidden // heads
    shape = Shape(
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
    try:
        rope_of(shape)  # now, not when hours of states are read
    except configs.ConfigError as error:
        raise TargetError(f"{config.file}: {error}") from None
    return shape


def rope_in(values: Mapping[str, Any]) -> dict[str, Any]:
    """`rope_parameters` of a config, in the one spelling, from any of the three in use. Raises
    ConfigError.
    """
    found = values.get("rope_parameters") or values.get("rope_scaling") or {}
    if isinstance(found, dict):  # models with windows keep one for each kind
        found = found.get("full_attention", found)
    if not isinstance(found, dict):
        raise configs.ConfigError(
            f"rope_parameters (or rope_scaling) of a config.json is {str(found)[:40]!r}, not an"
            " object of names and values: copy the file again"
        )
    found = dict(found)
    found["rope_type"] = found.pop("type", None) or found.get("rope_type") or "default"
    if found["rope_type"] == "mrope":
        # sections of the head turn by positions of their own, which are one and the same for text:
        # equal to the default to the bit (tests/draft/test_target.py), and transformers renames it
        found["rope_type"] = "default"
    found.setdefault("rope_theta", values.get("rope_theta") or 10000.0)
    found.pop("partial_rotary_factor", None)  # the drafter turns the whole head
    return found


def _multiplier(found: Mapping[str, files.Tensor], prefix: str, config: configs.Config) -> Tensor:
    """What the last norm multiplies by. Raises TargetError when it is no RMSNorm."""
    norm, folder = found.get(prefix + NORM), config.file.parent
    if norm is None:
        raise TargetError(
            f"{folder} has {prefix + EMBEDDING} but no {prefix + NORM}: which is its norm?"
        )
    kind = str(config.values.get("model_type"))
    if f"{prefix}norm.bias" in found or kind in CENTRED:
        told = f"{prefix}norm.bias" if f"{prefix}norm.bias" in found else f"model_type {kind!r}"
        raise TargetError(
            f"{folder} has {told}: its last norm is a LayerNorm, which is not supported for a"
            " target yet; targets with an RMSNorm are"
        )
    weight = read_tensor(norm)
    return 1 + weight.float() if kind in ONE_PLUS else weight


def _head(found: Mapping[str, files.Tensor], embedding: Tensor, config: configs.Config) -> Tensor:
    """The head, as transformers takes it: the stored one, though config.json ties it, when its
    numbers are others (5.24, `tie_weights`); the embedding only where config.json ties a head that
    is not stored. Raises TargetError.
    """
    folder = config.file.parent
    parts = sorted(name for name in found if ".lm_head." in f".{name}")
    other = [name for name in parts if not name.endswith(HEAD)]
    if other:
        raise TargetError(
            f"{folder} stores of its head {', '.join(other)[:120]}: a head with more than"
            " lm_head.weight (quantised, or with a bias) is not supported; name a folder of the"
            " same model with a plain head, in bf16"
        )
    if parts:
        head = read_tensor(_one(found, HEAD, folder))
        same = head.dtype == embedding.dtype and torch.equal(head, embedding)
        return embedding if same else head
    tied, why = _tied(config)
    if not tied:
        alike = [n for n, t in found.items() if t.shape == embedding.shape and EMBEDDING not in n]
        raise TargetError(
            f"{folder} has no {HEAD}, and its config.json does not tie it to the embedding ({why})"
            + (f"; {', '.join(alike)[:120]} has the shape of a head" if alike else "")
            + f": copy the file that is missing, or write {TIED} true where the model is so"
        )
    return embedding


def _tied(config: configs.Config) -> tuple[bool, str]:
    """Whether the head is the embedding, and what says so: config.json at either place, else the
    default that transformers has for the model type (true for Gemma, false for Llama).
    """
    places = (config.raw, config.raw.get("text_config"))
    said = [one[TIED] for one in places if isinstance(one, dict) and TIED in one]
    if said:
        return any(one is True for one in said), f"{TIED} is {said[0]!r}"
    from transformers import CONFIG_MAPPING

    kind = str(config.raw.get("model_type"))
    if kind not in CONFIG_MAPPING:
        return False, f"{TIED} is not there, and transformers does not know model_type {kind!r}"
    default = getattr(CONFIG_MAPPING[kind](), TIED, False) is True
    return default, f"{TIED} is not there, and false by default for model_type {kind!r}"


def _one(found: Mapping[str, files.Tensor], suffix: str, folder: Path) -> files.Tensor:
    named = [tensor for name, tensor in found.items() if name.endswith(suffix)]
    if len(named) != 1:
        raise TargetError(f"{folder} has {len(named)} tensors named …{suffix}, one is needed")
    return named[0]
