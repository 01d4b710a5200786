"""config.json of a drafter: layer ids, vocabulary, head, and what has to agree with the target.

What enters: a drafter's files, and the config of its target where there is one. What leaves:
`Hit`s. It promises to compare with the target only what the target's config says.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from eagle3_data.draft import checkpoint_rules as rules
from eagle3_data.draft.config import Config
from eagle3_data.draft.drafter_files import Files
from eagle3_data.draft.engines import ALL, LLAMACPP, SGLANG, VLLM, Effect, Hit, Reading, shown
from eagle3_data.draft.lint_tensors import EMBEDDING, HEAD

LLAMA_NAMES = {"LlamaForCausalLMEagle3", "Eagle3LlamaForCausalLM", "LlamaForCausalLM"}
LATENT_NAMES = {"Eagle3DeepseekV2ForCausalLM", "Eagle3DeepseekV3ForCausalLM"}
VLLM_NAMES = {
    *LLAMA_NAMES,
    *LATENT_NAMES,
    "Eagle3MiniMaxM2ForCausalLM",
    "Eagle3Qwen2_5vlForCausalLM",
    "Eagle3Qwen3vlForCausalLM",
    "Eagle3Qwen3ForCausalLM",
}
"""As vLLM 0.32.0 registers them; it puts `Eagle3` before another name."""
SPECULATORS_NAMES = {"Eagle3Speculator", "Eagle3DraftModel"}


def config_hits(
    files: Files, target: Config | None, read: Mapping[str, Reading], trained: list[int] | None
) -> Iterator[Hit]:
    """Everything about config.json."""
    layers = None if target is None else target.number("num_hidden_layers")
    yield from _ids(files, layers, read, trained)
    yield from _kind(files)
    yield from _vocabulary(files, target)
    yield from _head(files, target)
    yield from _factor(files)
    if target is not None:
        yield from _rope(files, target)
        yield from _positions(files, target)


def _ids(
    files: Files, layers: int | None, read: Mapping[str, Reading], trained: list[int] | None
) -> Iterator[Hit]:
    top, nested = files.ids(nested=False), files.ids(nested=True)
    mend = "" if trained is None else "writes the ids of the training for vLLM and llama.cpp"
    ids = top or nested
    if ids is None:
        yield Hit(
            rules.IDS_MISSING,
            "neither at the top nor in eagle_config: every engine takes its default",
            {},
            change="write the layer ids",
            mend=mend,
        )
        return
    harmless = layers is not None and [2, layers // 2, layers - 3] == ids
    if (top is None) != (nested is None) and not harmless:
        missing = "eagle_config" if nested is None else "the top"
        wrong = (
            {SGLANG: Effect.WRONG}
            if nested is None
            else {VLLM: Effect.UNKNOWN, LLAMACPP: Effect.WRONG}
        )
        yield Hit(
            rules.IDS_ONE_PLACE,
            f"{ids} are not at {missing}",
            wrong,
            change=f"write the ids at {missing} too",
            mend="writes them at both places",
        )
    if top and nested and top != nested:
        yield Hit(
            rules.IDS_CONFLICT,
            f"{top} at the top, {nested} in eagle_config",
            {},
            change="write the ids of the training at both places",
            mend=mend,
        )
    faults = []
    if ids != sorted(set(ids)):
        faults.append("not ascending, or repeated")
    if min(ids) < 0 or (layers is not None and max(ids) > layers):
        faults.append(f"outside of 0 to {'N' if layers is None else layers}")
    if files.aux and len(ids) != files.aux:
        faults.append(f"{len(ids)} of them, fc takes {files.aux}")
    if faults:
        unsorted = len(faults) == 1 and ids != sorted(set(ids))
        yield Hit(
            rules.IDS_UNUSABLE,
            f"{ids}: {', '.join(faults)}",
            {VLLM: Effect.WRONG, SGLANG: Effect.WRONG}
            | {LLAMACPP: Effect.NONE if unsorted else Effect.REFUSED},
            change="write the ids of the training in ascending order",
            mend=mend,
        )
        return
    if trained is not None and trained not in ([k - 1 for k in ids], ids):
        yield Hit(
            rules.IDS_NOT_TRAINED,
            f"{ids} mean outputs of {shown([k - 1 for k in ids])} or of {shown(ids)}; trained on"
            f" {shown(trained)}",
            {},
            mend=mend,
        )
    vllm, sglang = read[VLLM].outputs, read[SGLANG].outputs
    if nested is not None and vllm != sglang:
        yield Hit(
            rules.ENGINES_DIFFER,
            f"{nested}: vLLM reads outputs of layers {shown(vllm)}, SGLang of {shown(sglang)}",
            {},
            mend=mend if trained not in (None, vllm) else "",
        )
    if len(ids) != 3:
        said = files.config.number("num_aux_hidden_states") == len(ids)
        known = said or len(nested or []) == len(ids)
        yield Hit(
            rules.FLAG_NOT_READ,
            f"{len(ids)} auxiliary states",
            {
                VLLM: Effect.NONE if known else Effect.REFUSED,
                SGLANG: Effect.UNKNOWN,
                LLAMACPP: Effect.REFUSED,
            },
            at="num_aux_hidden_states",
            change="" if said else f"set num_aux_hidden_states to {len(ids)}",
            mend="" if said else f"sets num_aux_hidden_states to {len(ids)}",
        )


def _kind(files: Files) -> Iterator[Hit]:
    values = files.config.values
    names = files.config.raw.get("architectures")
    name = str(names[0]) if isinstance(names, list) and names else None
    known = {
        VLLM: name in (SPECULATORS_NAMES if files.speculators else VLLM_NAMES)
        or (files.speculators and "speculators_model_type" in files.config.raw),
        LLAMACPP: name in LLAMA_NAMES | SPECULATORS_NAMES,
    }
    if not any(known.values()):
        yield Hit(
            rules.ARCHITECTURE_UNKNOWN,
            f"{name!r}"[:60],
            dict.fromkeys(ALL, Effect.REFUSED),
            change="set architectures to LlamaForCausalLMEagle3",
        )
    elif name != "LlamaForCausalLMEagle3":
        yield Hit(
            rules.FLAG_NOT_READ,
            f"architecture {name}",
            {
                VLLM: Effect.NONE if known[VLLM] else Effect.REFUSED,
                SGLANG: Effect.UNKNOWN,
                LLAMACPP: Effect.NONE if known[LLAMACPP] else Effect.REFUSED,
            },
            at="architectures",
        )
    if files.speculators and "norm_before_residual" not in files.config.raw:
        yield Hit(
            rules.RESIDUAL_UNSTATED,
            "vLLM reads true, llama.cpp false",
            {LLAMACPP: Effect.UNKNOWN},
            change="write norm_before_residual",
        )
    flags = {
        # SGLang and llama.cpp; newer versions of SGLang than the one read know norms before fc
        "norm_before_residual": (Effect.WRONG, Effect.NONE),
        "norm_before_fc": (Effect.UNKNOWN, Effect.NONE),
        "fc_norm": (Effect.UNKNOWN, Effect.REFUSED),
        "norm_output": (Effect.UNKNOWN, Effect.WRONG),
        "attention_bias": (Effect.WRONG, Effect.UNKNOWN),
    }
    for flag, (sglang_does, llamacpp_does) in flags.items():
        if files.flag(flag):
            yield Hit(
                rules.FLAG_NOT_READ,
                f"{flag} is set",
                {SGLANG: sglang_does, LLAMACPP: llamacpp_does},
                at=flag,
                change="use an engine that reads it",
            )
    layers = files.config.number("num_hidden_layers")
    if layers != files.layers or files.layers != 1:
        yield Hit(
            rules.LAYERS_DIFFER,
            f"{layers} in config.json, {files.layers} in the files",
            dict.fromkeys(ALL, Effect.REFUSED if layers != files.layers else Effect.UNKNOWN)
            | {LLAMACPP: Effect.REFUSED},
            change="set num_hidden_layers to 1" if files.layers == 1 else "",
            mend="sets num_hidden_layers to 1" if files.layers == 1 else "",
        )
    if values.get("tie_word_embeddings") is True and HEAD in files.plain:
        yield Hit(
            rules.HEAD_TIED,
            f"the head has {files.head_rows:,} rows of its own",
            {SGLANG: Effect.WRONG},
            change="set tie_word_embeddings to false",
            mend="sets it to false",
        )


def _vocabulary(files: Files, target: Config | None) -> Iterator[Hit]:
    config = files.config
    vocab = config.needed("vocab_size")
    d2t = files.plain.get("d2t")
    mapped = d2t.shape[0] if d2t is not None and d2t.shape else None
    wanted = target.needed("vocab_size") if target is not None else vocab
    if vocab != wanted:
        yield Hit(
            rules.TARGET_DIFFERS,
            f"vocab_size {vocab:,}, the target's is {wanted:,}",
            dict.fromkeys(ALL, Effect.WRONG),
            at="vocab_size",
            change="check that this is the drafter of this target",
        )
    rows, said = files.head_rows, files.draft_vocab
    numbers = {n for n in (rows, mapped) if n is not None}
    pruned = any(n < wanted for n in numbers)
    if len(numbers | ({said} if said is not None else set())) > 1 or (said is None and pruned):
        agreed = len(numbers) == 1
        yield Hit(
            rules.DRAFT_SIZE_DIFFERS,
            f"draft_vocab_size {said}, head of {rows} rows, mapping of {mapped} tokens",
            {VLLM: Effect.REFUSED, SGLANG: Effect.REFUSED}
            # it takes the size from d2t, as long as the key is there
            | {LLAMACPP: Effect.NONE if agreed and said is not None else Effect.REFUSED},
            change="set draft_vocab_size to the rows of the head",
            mend=f"sets draft_vocab_size to {min(numbers)}" if agreed else "",
        )
    elif said is None and "draft_vocab_size" not in config.values:
        yield Hit(
            rules.DRAFT_SIZE_DIFFERS,
            "draft_vocab_size is not in config.json",
            {SGLANG: Effect.REFUSED, LLAMACPP: Effect.REFUSED},
            change="write draft_vocab_size",
            mend=f"sets draft_vocab_size to {rows}" if rows is not None else "",
        )
    if mapped is None and rows is not None and rows < wanted:
        yield Hit(
            rules.MAPPING_MISSING,
            f"a head of {rows:,} rows for {wanted:,} tokens",
            {VLLM: Effect.WRONG, SGLANG: Effect.WRONG, LLAMACPP: Effect.REFUSED},
            change="add the d2t of the training",
        )
    if mapped is not None and mapped >= wanted:
        yield Hit(
            rules.MAPPING_NOT_WANTED,
            f"{mapped:,} entries for {wanted:,} tokens",
            {VLLM: Effect.REFUSED},
            change="leave d2t and t2d out",
            mend="leaves it out when it is the identity",
        )


def _head(files: Files, target: Config | None) -> Iterator[Hit]:
    config, hidden = files.config, files.hidden
    vocab = config.needed("vocab_size")
    head, embedding = files.plain.get(HEAD), files.plain.get(EMBEDDING)
    if head is None and config.values.get("tie_word_embeddings") is not True:
        pruned = files.draft_vocab is not None and files.draft_vocab < vocab
        yield Hit(
            rules.HEAD_MISSING,
            f"draft_vocab_size is {files.draft_vocab}",
            {
                VLLM: Effect.WRONG if pruned else Effect.NONE,
                SGLANG: Effect.NONE if files.draft_vocab is None else Effect.WRONG,
                LLAMACPP: Effect.REFUSED if pruned else Effect.NONE,
            },
            change="export the head",
        )
    for name, tensor, rows in ((HEAD, head, None), (EMBEDDING, embedding, vocab)):
        if tensor is not None:
            wanted = (tensor.shape[0] if rows is None and tensor.shape else rows, hidden)
            if tensor.shape != wanted:
                yield Hit(
                    rules.SHAPE_DIFFERS,
                    f"{list(tensor.shape)}, by config.json {list(wanted)}",
                    dict.fromkeys(ALL, Effect.REFUSED),
                    at=name,
                    change=f"make config.json and {name} agree",
                )
    if target is None:
        return
    theirs = target.needed("hidden_size")
    if files.target_hidden != theirs:
        yield Hit(
            rules.TARGET_DIFFERS,
            f"it reads states of {files.target_hidden}, the target's are of {theirs}",
            dict.fromkeys(ALL, Effect.REFUSED),
            at="target_hidden_size",
            change="check that this is the drafter of this target",
        )
    elif hidden != theirs and embedding is None:
        yield Hit(
            rules.TARGET_DIFFERS,
            f"no embed_tokens.weight, and the target's rows of {theirs} do not fit {hidden}",
            dict.fromkeys(ALL, Effect.REFUSED),
            at=EMBEDDING,
            change="export the embedding",
        )


def _rope(files: Files, target: Config) -> Iterator[Hit]:
    ours, theirs = rope_of(files.config.values), rope_of(target.values)
    told = [
        f"{key} {ours.get(key, 'not set')}, the target's is {theirs.get(key, 'not set')}"
        for key in sorted(ours.keys() | theirs.keys())
        if ours.get(key) != theirs.get(key)
    ]
    if told:
        yield Hit(rules.ROPE_DIFFERS, "; ".join(told), {}, change="compare rope with the training")


def _factor(files: Files) -> Iterator[Hit]:
    """The factor of yarn, as engines would take it from this config."""
    rope = rope_of(files.config.values)
    names = ("factor", "attention_factor", "mscale", "mscale_all_dim", "attn_factor")
    numbers = {name: rope[name] for name in names if isinstance(rope.get(name), float)}
    if files.mla or rope["rope_type"] != "yarn" or "factor" not in numbers:
        return  # latent attention has a rope of its own in the engines, which reads the keys
    plain = _scaled(numbers["factor"], 1.0)
    both, trained = (numbers.get("mscale"), numbers.get("mscale_all_dim")), plain
    if "attention_factor" in numbers:
        trained = numbers["attention_factor"]
    elif all(both):
        over, under = (_scaled(numbers["factor"], one or 1.0) for one in both)
        trained = over / under if under else math.inf
    sglang = plain * numbers.get("attn_factor", 1.0)
    wrong = {
        engine: Effect.WRONG
        for engine, factor in ((SGLANG, sglang), (LLAMACPP, plain))
        if not math.isclose(factor, trained, rel_tol=1e-3)
    }
    if wrong:
        yield Hit(
            rules.ROPE_FACTOR,
            f"transformers and vLLM take {trained:.4g}, SGLang {sglang:.4g}, llama.cpp {plain:.4g}"
            " (the last two read in their sources, not run)",
            wrong,
            change="measure with acceptance, or serve with vLLM",
        )


def _scaled(factor: float, weight: float) -> float:
    return 1.0 if factor <= 1 else 0.1 * weight * math.log(factor) + 1.0


def rope_of(values: Mapping[str, Any]) -> dict[str, Any]:
    """The rotary embedding of a config in one spelling: newer transformers keep all of it in
    `rope_parameters`, older ones theta at the top and the rest in `rope_scaling`.
    """
    found: dict[str, Any] = {}
    for key in ("rope_scaling", "rope_parameters"):
        part = values.get(key)
        if isinstance(part, dict):
            kept = part.get("full_attention")  # models with windows keep one for each kind
            found |= kept if isinstance(kept, dict) else part
    kind = found.pop("type", None) or found.get("rope_type") or "default"
    theta = found.get("rope_theta") or values.get("rope_theta") or 10000.0
    found = {key: value for key, value in found.items() if value is not None}
    numbers = {k: float(v) if isinstance(v, int | float) else v for k, v in found.items()}
    # multimodal rope turns text as the default does, and newer transformers write it so
    numbers |= {"rope_type": "default" if kind == "mrope" else kind}
    numbers["rope_theta"] = float(theta) if isinstance(theta, int | float) else theta
    return numbers


def _positions(files: Files, target: Config) -> Iterator[Hit]:
    ours = files.config.number("max_position_embeddings")
    theirs = target.number("max_position_embeddings")
    if theirs is not None and (ours is None or ours < theirs):
        yield Hit(
            rules.POSITIONS_DIFFER,
            f"{'not set' if ours is None else f'{ours:,}'}, the target's is {theirs:,}",
            {},
            change="set max_position_embeddings to the target's" if ours is None else "",
        )
