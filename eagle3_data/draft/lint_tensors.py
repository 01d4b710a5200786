"""Tensors of a drafter against what engines read: names, shapes, the flags that belong to them.

What enters: a drafter's files. What leaves: `Hit`s. It promises that a shape is compared only where
config.json says enough for it.
"""

from __future__ import annotations

from collections.abc import Iterator

from eagle3_data.draft import checkpoint_rules as rules
from eagle3_data.draft.drafter_files import Files
from eagle3_data.draft.engines import ALL, LLAMACPP, SGLANG, VLLM, Effect, Hit

FUSED, HEAD, EMBEDDING = "fc.weight", "lm_head.weight", "embed_tokens.weight"
STACKED = ("q_proj", "k_proj", "v_proj", "gate_proj", "up_proj")
INPUT_NORM, CHUNK_NORM = "input_norm.weight", "fc_norm."
FREE = {"d2t", "t2d", EMBEDDING, HEAD, "mask_hidden"}
"""Tensors that may be there or not, and are judged elsewhere."""


def tensor_hits(files: Files) -> Iterator[Hit]:
    """Everything about tensors."""
    wanted = expected(files)
    yield from _names(files)
    found = files.plain
    known = {*wanted, *FREE, INPUT_NORM}
    missing = [name for name in wanted if name not in found and not _norm(name)]
    if missing:
        yield Hit(
            rules.TENSOR_MISSING,
            f"{len(missing)} of {len(wanted)}: {_some(missing)}",
            {VLLM: Effect.WRONG, SGLANG: Effect.WRONG, LLAMACPP: Effect.REFUSED},
            change="export it again",
        )
    unknown = [
        name
        for name in found
        if name not in known and not _norm(name) and not name.endswith(".bias")
        and not name.startswith("layers.")
    ]  # fmt: skip
    if unknown:
        yield Hit(
            rules.TENSOR_UNKNOWN,
            f"{len(unknown)}: {_some(unknown)}",
            {VLLM: Effect.REFUSED, SGLANG: Effect.NONE, LLAMACPP: Effect.REFUSED},
            change="remove the tensor",
        )
    for name, shape in wanted.items():
        if name in found and found[name].shape != shape:
            # vLLM cuts what it stacks: up_proj with a row too many loads without a word (seen)
            cut = name.split(".")[-2] in STACKED and found[name].shape[1:] == shape[1:]
            silent = cut and found[name].shape[0] > shape[0]
            yield Hit(
                rules.SHAPE_DIFFERS,
                f"{list(found[name].shape)}, by config.json {list(shape)}",
                dict.fromkeys(ALL, Effect.REFUSED)
                | {VLLM: Effect.WRONG if silent else Effect.REFUSED},
                at=name,
                change=f"make config.json and {name} agree",
            )
    if FUSED in found and not files.aux:
        yield Hit(
            rules.SHAPE_DIFFERS,
            f"{list(found[FUSED].shape)}: {files.target_hidden} is the hidden size of the target,"
            " its columns are no multiple of it",
            dict.fromkeys(ALL, Effect.REFUSED),
            at=FUSED,
            change="check target_hidden_size",
        )
    yield from _flags(files)


def expected(files: Files) -> dict[str, tuple[int, ...]]:
    """Plain name → shape of the tensors that the layer needs, by config.json."""
    config, hidden = files.config, files.hidden
    inner = config.needed("intermediate_size")
    heads = config.needed("num_attention_heads")
    out: dict[str, tuple[int, ...]] = {
        f"midlayer.{name}.weight": (hidden,)
        for name in ("hidden_norm", "input_layernorm", "post_attention_layernorm")
    }
    attention = _latent(files, heads) if files.mla else _grouped(files, heads)
    out |= {f"midlayer.self_attn.{name}.weight": shape for name, shape in attention.items()}
    out |= {
        "midlayer.mlp.gate_proj.weight": (inner, hidden),
        "midlayer.mlp.up_proj.weight": (inner, hidden),
        "midlayer.mlp.down_proj.weight": (hidden, inner),
        "norm.weight": (hidden,),
    }
    if files.nested.get("use_aux_hidden_state", True):
        states = files.aux or 3
        out[FUSED] = (hidden, states * files.target_hidden)
        if files.flag("norm_before_fc"):
            out[INPUT_NORM] = (states * files.target_hidden,)
        if files.flag("fc_norm"):
            out |= {f"fc_norm.{i}.weight": (files.target_hidden,) for i in range(states)}
    return out


def _grouped(files: Files, heads: int) -> dict[str, tuple[int, ...]]:
    hidden = files.hidden
    size = files.config.number("head_dim") or hidden // max(heads, 1)
    kv = (files.config.number("num_key_value_heads") or heads) * size
    return {
        "q_proj": (heads * size, 2 * hidden),
        "k_proj": (kv, 2 * hidden),
        "v_proj": (kv, 2 * hidden),
        "o_proj": (hidden, heads * size),
    }


def _latent(files: Files, heads: int) -> dict[str, tuple[int, ...]]:
    config, hidden = files.config, files.hidden
    plain, turned = config.needed("qk_nope_head_dim"), config.needed("qk_rope_head_dim")
    values, rank = config.needed("v_head_dim"), config.needed("kv_lora_rank")
    query = config.number("q_lora_rank")
    wide = heads * (plain + turned)
    own: dict[str, tuple[int, ...]] = (
        {"q_proj": (wide, 2 * hidden)}
        if query is None
        else {
            "q_a_proj": (query, 2 * hidden),
            "q_a_layernorm": (query,),
            "q_b_proj": (wide, query),
        }
    )
    return own | {
        "kv_a_proj_with_mqa": (rank + turned, 2 * hidden),
        "kv_a_layernorm": (rank,),
        "kv_b_proj": (heads * (plain + values), rank),
        "o_proj": (hidden, heads * values),
    }


def _names(files: Files) -> Iterator[Hit]:
    leading = [name for name in files.tensors if name.startswith("model.")]
    other = [name for name in files.tensors if name.startswith("layers.0.")]
    if leading:
        yield Hit(
            rules.NAMES_OF_ONE_ENGINE,
            f"{len(leading)} tensors begin with model., for example {leading[0]}",
            {VLLM: Effect.REFUSED, SGLANG: Effect.NONE, LLAMACPP: Effect.REFUSED},
            change="name the tensors midlayer.*",
            mend="names the tensors midlayer.*, fc, norm, …",
        )
    if other and not leading:
        yield Hit(
            rules.NAMES_OF_ONE_ENGINE,
            f"{len(other)} tensors are named layers.0.*, which SGLang passes over",
            {VLLM: Effect.NONE, SGLANG: Effect.WRONG, LLAMACPP: Effect.NONE},
            change="name the tensors midlayer.*",
            mend="names the tensors midlayer.*",
        )


def _flags(files: Files) -> Iterator[Hit]:
    values, nested = files.config.values, files.nested
    has = {
        "norm_before_fc": INPUT_NORM in files.plain,
        "fc_norm": any(name.startswith(CHUNK_NORM) for name in files.plain),
        "attention_bias": any(
            name.startswith("midlayer.self_attn.") and name.endswith("_proj.bias")
            for name in files.plain
        ),
    }
    for flag, there in has.items():
        said = files.flag(flag)
        if said == there:
            continue
        what = "the tensor is there, the flag is not" if there else "the flag is set, no tensor"
        # vLLM drops input_norm without its flag, and refuses the other two
        silent = Effect.WRONG if not there or flag == "norm_before_fc" else Effect.REFUSED
        yield Hit(
            rules.FLAG_CONTRADICTS,
            f"{flag}: {what}",
            {VLLM: silent, SGLANG: Effect.WRONG, LLAMACPP: Effect.REFUSED},
            at=flag,
            change=f"set {flag} to {str(there).lower()}",
            mend=f"sets {flag} to {str(there).lower()}",
        )
    if has["norm_before_fc"] and has["fc_norm"]:
        yield Hit(
            rules.FLAG_CONTRADICTS,
            "input_norm.weight and fc_norm.*: trainers use one of the two",
            dict.fromkeys(ALL, Effect.UNKNOWN),
            at="fc_norm",
        )
    if nested.get("norm_before_fc") and not values.get("norm_before_fc"):
        yield Hit(
            rules.FLAG_CONTRADICTS,
            "norm_before_fc stands in eagle_config only, where llama.cpp does not look",
            {LLAMACPP: Effect.WRONG},
            at="norm_before_fc",
            change="write norm_before_fc at the top too",
            mend="writes norm_before_fc at both places",
        )


def _norm(name: str) -> bool:
    """Tensors whose presence `_flags` judges."""
    return name == INPUT_NORM or name.startswith(CHUNK_NORM)


def _some(names: list[str]) -> str:
    return ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")
