"""CKP: what `lint` finds in the checkpoint of a drafter. Every code with its documentation.

What enters: nothing. What leaves: `CHECKPOINT_RULES`, code → `Rule`. They are not in the registry
of the audit: `lint` decides when they fire.
"""

from __future__ import annotations

from typing import Final

import polars as pl

from eagle3_data.audit.rules.registry import Columns, Rule, Scope, Severity

CHECKPOINT_RULES: Final[dict[str, Rule]] = {}


def _never(_: Columns) -> pl.Expr:
    return pl.lit(False)


def _ckp(
    number: int, name: str, docs: str, *, at: str = "", severity: Severity = Severity.ERROR
) -> str:
    code = f"CKP{number:03d}"
    CHECKPOINT_RULES[code] = Rule(code, name, severity, at, _never, docs, Scope.CORPUS)
    return code


IDS = "eagle_aux_hidden_state_layer_ids"

TENSOR_MISSING = _ckp(
    1,
    "tensor-missing",
    """\
A tensor that the layer needs is not in the files.

Why it matters: vLLM and SGLang do not notice and draft with whatever lies in memory; llama.cpp
refuses the file.
What to do: export the drafter again; look for a half copied checkpoint.""",
)

TENSOR_UNKNOWN = _ckp(
    2,
    "tensor-unknown",
    """\
A tensor has a name that no EAGLE-3 drafter has.

Why it matters: vLLM and llama.cpp's converter refuse the checkpoint; SGLang passes over it in
silence, and what it was for is missing.
What to do: remove it, or give it the name that the engines read.""",
)

SHAPE_DIFFERS = _ckp(
    3,
    "tensor-shape-differs",
    """\
A tensor has another shape than config.json tells.

Why it matters: engines make room by config.json and refuse the tensor, or cut it in silence (vLLM,
a row too many in `up_proj`). `fc.weight` has (auxiliary layers) * (hidden size of the target)
columns; q, k and v take twice the hidden size.
What to do: correct config.json when the tensors are those of the training, else export again.""",
)

IDS_MISSING = _ckp(
    4,
    "layer-ids-missing",
    """\
config.json names no auxiliary layers.

Why it matters: each engine takes its default, which is outputs of layers 1, N/2-1, N-4 of the
target. Right when the drafter was trained on those, and it can not be seen.
What to do: write the layers that it was trained on, at both places.""",
    at=IDS,
    severity=Severity.WARN,
)

IDS_ONE_PLACE = _ckp(
    5,
    "layer-ids-in-one-place",
    """\
The layer ids stand at the top of config.json or in `eagle_config`, not at both places.

Why it matters: SGLang reads only those in `eagle_config`; llama.cpp and some runners of vLLM read
only those at the top. The other engine falls back to its default layers without a word.
What to do: write them at both places; `lint --fix` does.""",
    at=IDS,
)

IDS_CONFLICT = _ckp(
    6,
    "layer-ids-conflict",
    """\
The layer ids at the top of config.json and in `eagle_config` differ.

Why it matters: each engine reads its own place, so two engines draft from other states.
What to do: find out which ones the training used, and write them at both places.""",
    at=IDS,
)

ENGINES_DIFFER = _ckp(
    7,
    "engines-read-other-layers",
    """\
vLLM and SGLang take the stored layer ids for different layers of the target.

Why it matters: for vLLM (and llama.cpp) an id k means what enters layer k, the output of layer
k - 1; SGLang adds one, so that it means the output of layer k. The same checkpoint is off by one
layer in one of the two. It loads, runs, and loses acceptance (2.46 for 2.64 measured on a small
model, far more on large ones). For DeepSeek and Kimi targets SGLang adds one only when the first
id is 1 (since May 2026).
What to do: see which layers each engine reads, and keep one checkpoint for each engine where they
differ: ids for vLLM are one larger than those for SGLang.""",
    at=IDS,
    severity=Severity.WARN,
)

IDS_UNUSABLE = _ckp(
    8,
    "layer-ids-unusable",
    """\
The layer ids are no ascending list of layers of the target, or are more or fewer than `fc` takes.

Why it matters: engines sort them and drop repeated ones, so that the states reach `fc` in another
order or number than in training. An id beyond the target captures nothing or stops the engine.
What to do: write the ids of the training in ascending order.""",
    at=IDS,
)

IDS_NOT_TRAINED = _ckp(
    9,
    "layer-ids-not-those-of-training",
    """\
No reading of the layer ids gives the layers that the drafter was trained on, as config.json itself
says (`eagle3_data.layers_output_of`).

Why it matters: the drafter gets states that it was not trained on. It loads and runs all the same.
What to do: `lint --fix` writes the ids of the training as vLLM and llama.cpp read them.""",
    at=IDS,
)

FLAG_CONTRADICTS = _ckp(
    10,
    "flag-contradicts-tensors",
    """\
A flag of config.json says something else than the tensors: a norm or bias without its flag, a flag
without its tensors, or a flag at a place where not every engine looks.

Why it matters: `input_norm.weight` without `norm_before_fc` is dropped by vLLM in silence
(acceptance of one model went from 40 % to 25 % that way). A flag without tensors norms with
whatever lies in memory.
What to do: `lint --fix` sets the flags by the tensors that are there.""",
)

RESIDUAL_UNSTATED = _ckp(
    11,
    "residual-norm-unstated",
    """\
A checkpoint in the layout of speculators does not say `norm_before_residual`.

Why it matters: vLLM takes it for true in this layout, llama.cpp for false. The wrong one drafts the
first token about as well and loses the later ones (acceptance length 2.09 → 1.61 measured).
What to do: write what the training used.""",
    at="norm_before_residual",
)

MAPPING_MISSING = _ckp(
    12,
    "mapping-missing",
    """\
The head is smaller than the target's vocabulary, and there is no `d2t`.

Why it matters: vLLM and SGLang take draft ids for target ids, so all but the lowest are other
tokens. It loads without a word.
What to do: add the mapping of the training; a new one does not fit the head.""",
    at="d2t",
)

DRAFT_SIZE_DIFFERS = _ckp(
    13,
    "draft-vocabulary-differs",
    """\
`draft_vocab_size`, the rows of `lm_head` and the length of `d2t` are not one number.

Why it matters: engines make the head by `draft_vocab_size`. Without the key vLLM makes a head over
the whole vocabulary, SGLang fails, and llama.cpp does not see that it is a drafter.
What to do: `lint --fix` writes the number when head and mapping agree.""",
    at="draft_vocab_size",
)

MAPPING_NOT_WANTED = _ckp(
    14,
    "mapping-of-a-full-head",
    """\
There is a `d2t`, though the head covers the whole vocabulary of the target.

Why it matters: vLLM 0.32 has no place for it then and refuses the checkpoint (read in its source).
What to do: `lint --fix` leaves it out when it is the identity.""",
    at="d2t",
)

HEAD_TIED = _ckp(
    15,
    "head-tied",
    """\
`tie_word_embeddings` is true, and the drafter has a head of its own.

Why it matters: SGLang then takes the embedding as the head and drops the trained one.
What to do: set it to false; `lint --fix` does.""",
    at="tie_word_embeddings",
)

HEAD_MISSING = _ckp(
    16,
    "head-missing",
    """\
There is no `lm_head.weight`.

Why it matters: vLLM takes the target's head, which is right only for a drafter without a draft
vocabulary of its own; SGLang does so only when `draft_vocab_size` is null.
What to do: export the head. Where the target's is meant, set `draft_vocab_size` to null.""",
    at="lm_head.weight",
)

TARGET_DIFFERS = _ckp(
    17,
    "target-differs",
    """\
Vocabulary or hidden size of the drafter's config.json are not the target's, or its embedding is
neither there nor the target's.

Why it matters: engines share the target's embedding and write drafts into its vocabulary: other
sizes fail, or draft other tokens.
What to do: check that this is the drafter of this target.""",
)

ROPE_DIFFERS = _ckp(
    18,
    "rope-differs",
    """\
The rotary embedding of the drafter is not the target's.

Why it matters: the drafter has its own, so another one is right if it was trained with it. Lost on
the way (a converter dropped `rope_scaling`) it costs acceptance, more with the length of the
context (2.09 → 2.01 for a theta of 1e4 in place of 1e5, short contexts).
What to do: compare with the config of the training.""",
    at="rope_parameters",
    severity=Severity.WARN,
)

POSITIONS_DIFFER = _ckp(
    19,
    "positions-differ",
    """\
`max_position_embeddings` of the drafter is smaller than the target's, or not there.

Why it matters: engines stop drafting, or stop, where the drafter's positions end.
What to do: write the length up to which it shall draft.""",
    at="max_position_embeddings",
    severity=Severity.WARN,
)

ARCHITECTURE_UNKNOWN = _ckp(
    20,
    "architecture-unknown",
    """\
`architectures` names no EAGLE-3 drafter that the engines register.

Why it matters: the engine refuses it, or loads it as a plain language model.
What to do: `LlamaForCausalLMEagle3` is known to vLLM, SGLang and llama.cpp.""",
    at="architectures",
)

LAYERS_DIFFER = _ckp(
    21,
    "number-of-layers-differs",
    """\
`num_hidden_layers` is not the number of layers in the files, or there is more than one.

Why it matters: the first layer reads embedding and state, others the state alone. llama.cpp takes
one layer only.
What to do: correct config.json.""",
    at="num_hidden_layers",
)

NAMES_OF_ONE_ENGINE = _ckp(
    22,
    "names-of-one-engine",
    """\
The tensors have names that not every engine reads: `layers.0.*` in place of `midlayer.*`, or a
leading `model.`.

Why it matters: SGLang passes over `layers.0.*` in silence and drafts with an untrained layer; vLLM
refuses a leading `model.`.
What to do: name them `midlayer.*`, which vLLM, SGLang and llama.cpp's converter read;
`lint --fix` does.""",
)

FLAG_NOT_READ = _ckp(
    23,
    "flag-not-read-everywhere",
    """\
The drafter is of a kind that not every engine knows: `norm_before_residual`, a norm before `fc`,
`norm_output`, biases, or another number of auxiliary states than three.

Why it matters: an engine that does not know the flag ignores it and drafts wrong, or refuses.
What to do: see the line of your engine; versions differ, so measure with `acceptance`.""",
    severity=Severity.WARN,
)

ROPE_FACTOR = _ckp(
    24,
    "yarn-factor-differs",
    """\
The factor on sine and cosine of the drafter's yarn is not the same in every engine.

Why it matters: transformers and vLLM 0.32 take it from `attention_factor`, else from `mscale` and
`mscale_all_dim` (1.0 where both are equal, as in DeepSeek-V3 and Kimi-K2). SGLang's plain yarn
reads none of these, only `attn_factor`, and llama.cpp none at all: both take 0.1 * ln(factor) + 1,
which is 1.416 for a factor of 64, and scores of attention twice as large (read in the sources of
SGLang, rotary_embedding at eb047c1, and of llama.cpp build 11434, not run). It loads, and drafts
with an attention that it was not trained with: 2.43 tokens a step in place of 2.75 when the factor
of a small drafter was changed so.
What to do: measure with `acceptance` on the engine that serves, or serve with vLLM; for the others
train a drafter whose rope has neither key. An `attn_factor` of the right factor divided by
SGLang's would cancel it there, and only there (read, not run).""",
    at="rope_parameters",
    severity=Severity.WARN,
)
