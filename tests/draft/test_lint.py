"""Linting drafters: every code on its fault, none on a sound one, engine by engine."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from drafters import (
    CONFIG,
    DRAFT,
    HEADS,
    IDS,
    INNER,
    MAPPING,
    VOCAB,
    H,
    array,
    drafter,
    layers0,
    target,
)

from eagle3_data.draft.checkpoint_rules import CHECKPOINT_RULES
from eagle3_data.draft.findings import Inspection
from eagle3_data.draft.lint import lint

SGLANG_TOO = ["CKP007"]
"""What any ids are told: SGLang reads others than vLLM."""


def judged(path: Path, config: Any = None, tensors: Any = None, **more: Any) -> Inspection:
    return lint(drafter(path / "d", config, tensors, **more), target(path / "t"))


def both(ids: list[int]) -> dict[str, Any]:
    return {IDS: ids, "eagle_config": {IDS: ids}}


KIMI = {
    "rope_type": "yarn",
    "factor": 64.0,
    "beta_fast": 1.0,
    "beta_slow": 1.0,
    "mscale": 1.0,
    "mscale_all_dim": 1.0,
    "original_max_position_embeddings": 4096,
}


def turned(path: Path, rope: Any, tensors: Any = None, **config: Any) -> Inspection:
    """A drafter and its target with the same `rope_scaling`."""
    model = target(path / "t", rope_scaling=rope)
    return lint(drafter(path / "d", {"rope_scaling": rope} | config, tensors), model)


FULL = {"lm_head.weight": array(VOCAB, H), "d2t": None, "t2d": None}
SPECULATORS = {
    "architectures": ["Eagle3DraftModel"],
    "speculators_model_type": "eagle3",
    "transformer_layer_config": {k: v for k, v in CONFIG.items() if k != "eagle_config"},
}

FIRES: dict[str, Callable[[Path], Inspection]] = {
    "CKP001": lambda p: judged(p, None, {"norm.weight": None}),
    "CKP002": lambda p: judged(p, None, {"midlayer.extra.weight": array(H)}),
    "CKP003": lambda p: judged(p, None, {"midlayer.mlp.up_proj.weight": array(INNER + 1, H)}),
    "CKP004": lambda p: judged(p, drop=(IDS, "eagle_config")),
    "CKP005": lambda p: judged(p, {IDS: [3, 16, 28]} | {"eagle3_data": {}}, drop=("eagle_config",)),
    "CKP006": lambda p: judged(p, {IDS: [2, 15, 27], "eagle_config": {IDS: [2, 15, 26]}}),
    "CKP007": lambda p: judged(p),
    "CKP008": lambda p: judged(p, both([2, 15, 31])),
    "CKP009": lambda p: judged(p, both([3, 16, 28])),
    "CKP010": lambda p: judged(p, None, {"input_norm.weight": array(3 * H)}),
    "CKP011": lambda p: judged(p, SPECULATORS),
    "CKP012": lambda p: judged(p, None, {"d2t": None, "t2d": None}),
    "CKP013": lambda p: judged(p, {"draft_vocab_size": 64}),
    "CKP014": lambda p: judged(
        p,
        {"draft_vocab_size": VOCAB},
        FULL | {"d2t": np.zeros(VOCAB, np.int64), "t2d": np.ones(VOCAB, np.bool_)},
    ),
    "CKP015": lambda p: judged(p, {"tie_word_embeddings": True}),
    "CKP016": lambda p: judged(p, None, {"lm_head.weight": None}),
    "CKP017": lambda p: lint(drafter(p / "d"), target(p / "t", hidden_size=32)),
    "CKP018": lambda p: judged(p, {"rope_theta": 10000.0}),
    "CKP019": lambda p: judged(p, {"max_position_embeddings": 2048}),
    "CKP020": lambda p: judged(p, {"architectures": ["GPT2LMHeadModel"]}),
    "CKP021": lambda p: judged(p, {"num_hidden_layers": 2}),
    "CKP022": lambda p: judged(p, rename=layers0),
    "CKP023": lambda p: judged(p, {"norm_before_residual": True}),
    "CKP024": lambda p: turned(p, KIMI),
}
ALSO = {
    "CKP005": [],
    "CKP004": [],
    "CKP006": ["CKP007"],
    "CKP008": [],  # what can not be used is not compared
    "CKP011": ["CKP007", "CKP023"],  # true unless said
}


def test_every_rule_has_a_fixture_and_its_documentation() -> None:
    assert list(FIRES) == list(CHECKPOINT_RULES) == [f"CKP{i:03d}" for i in range(1, 25)]
    for rule in CHECKPOINT_RULES.values():
        assert "Why it matters:" in rule.docs
        assert "What to do:" in rule.docs


@pytest.mark.parametrize("code", FIRES)
def test_a_fault_is_named_by_its_code_alone(tmp_path, code) -> None:
    found = FIRES[code](tmp_path)
    expected = sorted({code, *ALSO.get(code, SGLANG_TOO)})
    assert found.codes == expected, [(f.code, f.detail) for f in found.findings]
    severity = CHECKPOINT_RULES[code].severity.value
    assert found.sound == (severity == "warn")
    assert found.report().exit_code == (0 if found.sound else 1)


def verdicts(found: Inspection) -> dict[str, tuple[str, str]]:
    return {line.engine: (line.loads, line.right) for line in found.engines}


def test_a_sound_drafter_is_right_where_its_ids_are_read_as_trained(tmp_path) -> None:
    found = judged(tmp_path)
    assert found.sound
    assert verdicts(found) == {
        "vLLM": ("yes", "yes"),
        "SGLang": ("yes", "no"),
        "llama.cpp": ("yes", "yes"),
    }
    assert found.layers == {
        "layers vLLM reads": "outputs of 1, 14, 26",
        "layers SGLang reads": "outputs of 2, 15, 27",
        "layers llama.cpp reads": "outputs of 1, 14, 26",
    }
    assert found.serving(["vLLM"]).sound
    assert not found.serving(["SGLang"]).sound


def test_ids_for_sglang_are_right_there_and_nowhere_else(tmp_path) -> None:
    found = judged(tmp_path, both([1, 14, 26]))
    assert verdicts(found) == {
        "vLLM": ("yes", "no"),
        "SGLang": ("yes", "yes"),
        "llama.cpp": ("yes", "no"),
    }
    assert found.codes == ["CKP007"]


@pytest.mark.parametrize("model_type", ["deepseek_v3", "kimi_k2"])
def test_sglang_adds_nothing_for_deepseek_when_the_first_id_is_not_one(
    tmp_path, model_type
) -> None:
    model = target(tmp_path / "t", model_type=model_type)
    found = lint(drafter(tmp_path / "d"), model)
    assert verdicts(found)["SGLang"] == ("yes", "yes")
    assert found.codes == []
    assert found.layers["layers SGLang reads"] == (
        "outputs of 1, 14, 26; other versions of 2, 15, 27"
    )
    ones = lint(drafter(tmp_path / "e", both([1, 14, 26])), model)
    assert ones.layers["layers SGLang reads"] == "outputs of 1, 14, 26"


def test_without_ids_every_engine_takes_the_same_default(tmp_path) -> None:
    found = judged(tmp_path, drop=(IDS, "eagle_config"))
    assert set(found.layers.values()) == {"outputs of 1, 14, 26"}
    assert set(verdicts(found).values()) == {("yes", "yes")}
    alone = lint(tmp_path / "d")
    assert set(alone.layers.values()) == {"outputs of 1, N/2-1, N-4"}
    assert {right for _, right in verdicts(alone).values()} == {"depends"}


def test_what_the_training_read_is_not_guessed(tmp_path) -> None:
    found = judged(tmp_path, drop=("eagle3_data",))
    assert {right for _, right in verdicts(found).values()} == {"depends"}
    assert any("no file can tell" in note for note in found.notes)


def test_default_ids_at_one_place_do_no_harm(tmp_path) -> None:
    assert judged(tmp_path, drop=("eagle_config",)).codes == []
    assert lint(tmp_path / "d").codes == ["CKP005"]  # not known to be the default


@pytest.mark.parametrize(
    ("config", "tensors", "expected"),
    [
        # (vLLM, SGLang, llama.cpp): loads, right
        (None, {"norm.weight": None}, ["yes no", "yes no", "no no"]),
        (None, {"midlayer.extra.weight": array(H)}, ["no no", "yes no", "no no"]),
        (None, {"input_norm.weight": array(3 * H)}, ["yes no", "yes no", "no no"]),
        (None, {"fc_norm.0.weight": array(H)}, ["no no", "yes no", "no no"]),
        ({"norm_before_residual": True}, None, ["yes yes", "yes no", "yes yes"]),
        (None, {"d2t": MAPPING.targets}, ["yes no", "yes no", "yes no"]),
        (None, {"d2t": None}, ["yes no", "yes no", "no no"]),
        ({"tie_word_embeddings": True}, None, ["yes yes", "yes no", "yes yes"]),
        (
            {"architectures": ["Eagle3DeepseekV3ForCausalLM"]},
            None,
            ["yes yes", "unknown no", "no no"],
        ),
    ],
    ids=["norm", "extra", "input_norm", "fc_norm", "residual", "ids", "no d2t", "tied", "arch"],
)
def test_each_engine_has_its_own_verdict(tmp_path, config, tensors, expected) -> None:
    found = judged(tmp_path, config, tensors)
    assert [" ".join(pair) for pair in verdicts(found).values()] == expected


def test_norms_with_their_flags_are_sound_in_vllm(tmp_path) -> None:
    for name, config, tensors in (
        ("a", {"norm_before_fc": True}, {"input_norm.weight": array(3 * H)}),
        ("b", {"fc_norm": True}, {f"fc_norm.{i}.weight": array(H) for i in range(3)}),
    ):
        found = judged(tmp_path / name, config, tensors)
        assert found.codes == ["CKP007", "CKP023"]
        assert verdicts(found)["vLLM"] == ("yes", "yes")


def test_a_flag_in_eagle_config_alone_is_not_seen_by_llamacpp(tmp_path) -> None:
    nested = {"eagle_config": {IDS: [2, 15, 27], "norm_before_fc": True}}
    found = judged(tmp_path, nested, {"input_norm.weight": array(3 * H)})
    assert "CKP010" in found.codes
    assert verdicts(found)["vLLM"] == ("yes", "yes")
    assert verdicts(found)["llama.cpp"] == ("yes", "no")


def test_five_auxiliary_states(tmp_path) -> None:
    five = [2, 8, 15, 21, 27]
    tensors = {"fc.weight": array(H, 5 * H)}
    own = {"eagle3_data": {"layers_output_of": [k - 1 for k in five]}}
    found = judged(tmp_path, both(five) | own | {"num_aux_hidden_states": 5}, tensors)
    assert found.codes == ["CKP007", "CKP023"]
    assert verdicts(found) == {
        "vLLM": ("yes", "yes"),
        "SGLang": ("unknown", "no"),
        "llama.cpp": ("no", "no"),
    }
    wrong = judged(tmp_path / "w", both(five), None)
    assert "CKP008" in wrong.codes


def test_latent_attention_has_its_own_shapes(tmp_path) -> None:
    config = {
        "architectures": ["Eagle3DeepseekV2ForCausalLM"],
        "q_lora_rank": 6, "kv_lora_rank": 5, "qk_nope_head_dim": 4, "qk_rope_head_dim": 2,
        "v_head_dim": 3,
    }  # fmt: skip
    at = "midlayer.self_attn."
    tensors = {
        f"{at}q_proj.weight": None,
        f"{at}k_proj.weight": None,
        f"{at}v_proj.weight": None,
        f"{at}q_a_proj.weight": array(6, 2 * H),
        f"{at}q_a_layernorm.weight": array(6),
        f"{at}q_b_proj.weight": array(HEADS * 6, 6),
        f"{at}kv_a_proj_with_mqa.weight": array(7, 2 * H),
        f"{at}kv_a_layernorm.weight": array(5),
        f"{at}kv_b_proj.weight": array(HEADS * 7, 5),
        f"{at}o_proj.weight": array(H, HEADS * 3),
    }
    found = judged(tmp_path, config, tensors)
    assert found.codes == ["CKP007", "CKP023"]
    assert found.facts["attention"] == "latent (MLA)"
    assert verdicts(found)["vLLM"] == ("yes", "yes")
    tensors[f"{at}kv_b_proj.weight"] = array(HEADS * 7, 4)
    assert "CKP003" in judged(tmp_path / "w", config, tensors).codes


def test_a_full_head_needs_no_mapping(tmp_path) -> None:
    found = judged(tmp_path, {"draft_vocab_size": VOCAB}, FULL)
    assert found.codes == ["CKP007"]
    missing = judged(tmp_path / "m", None, FULL, drop=("draft_vocab_size",))
    assert verdicts(missing) == {
        "vLLM": ("yes", "yes"),
        "SGLang": ("no", "no"),
        "llama.cpp": ("no", "no"),
    }


def test_rope_is_compared_in_either_spelling(tmp_path) -> None:
    yarn = {"type": "yarn", "factor": 64.0, "beta_fast": 32.0, "beta_slow": 1.0}
    new = {"rope_type": "yarn", "rope_theta": 100000.0, "factor": 64, "beta_fast": 1.0}
    model = target(tmp_path / "t", rope_scaling=yarn)
    same = {"rope_parameters": new | {"beta_fast": 32, "beta_slow": 1}}
    assert "CKP018" not in lint(drafter(tmp_path / "a", same), model).codes
    found = lint(drafter(tmp_path / "b", {"rope_parameters": new}), model)
    assert [f.detail for f in found.findings if f.code == "CKP018"] == [
        "beta_fast 1.0, the target's is 32.0; beta_slow not set, the target's is 1.0"
    ]


@pytest.mark.parametrize(
    ("changed", "told", "right"),
    [
        # right in vLLM, SGLang, llama.cpp
        ({}, "1, SGLang 1.416, llama.cpp 1.416", ["yes", "no", "no"]),
        ({"factor": 40}, "1, SGLang 1.369, llama.cpp 1.369", ["yes", "no", "no"]),
        ({"mscale": 0.707}, "0.9139, SGLang 1.416, llama.cpp 1.416", ["yes", "no", "no"]),
        ({"attention_factor": 1.2}, "1.2, SGLang 1.416, llama.cpp 1.416", ["yes", "no", "no"]),
        ({"attn_factor": 0.70626}, "1, SGLang 1, llama.cpp 1.416", ["yes", "yes", "no"]),
        ({"mscale_all_dim": None}, None, ["yes", "yes", "yes"]),
        ({"mscale": 0, "mscale_all_dim": 0}, None, ["yes", "yes", "yes"]),
        ({"factor": 1.0}, None, ["yes", "yes", "yes"]),
        ({"factor": "64"}, None, ["yes", "yes", "yes"]),
        ({"rope_type": "linear"}, None, ["yes", "yes", "yes"]),
    ],
)
def test_the_factor_of_yarn_is_told_for_each_engine(tmp_path, changed, told, right) -> None:
    rope = {k: v for k, v in (KIMI | changed).items() if v is not None}
    same = {IDS: None, "eagle_config": None}  # the default: all engines read the same layers
    found = turned(tmp_path, rope, **same)
    details = [f.detail for f in found.findings if f.code == "CKP024"]
    wanted = f"transformers and vLLM take {told} (the last two read in their sources, not run)"
    assert details == ([] if told is None else [wanted])
    assert [pair[1] for pair in verdicts(found).values()] == right


def test_vllms_and_transformers_factor_is_the_one_that_is_told(tmp_path) -> None:
    pytest.importorskip("torch")
    from eagle3_data.draft.model import Shape, rope_of

    for changed in ({}, {"factor": 40.0}, {"mscale": 0.707}, {"attention_factor": 1.2}):
        rope = {"rope_theta": 1e5} | KIMI | changed
        shape = Shape(16, 24, 4, 2, 4, 200, 60, 1e-5, 262144, rope)
        found = turned(tmp_path / str(len(list(tmp_path.iterdir()))), rope)
        (detail,) = (f.detail for f in found.findings if f.code == "CKP024")
        assert detail.startswith(f"transformers and vLLM take {rope_of(shape)[1]:.4g}, ")


def test_multimodal_rope_is_the_default_rope(tmp_path) -> None:
    sections = {"mrope_section": [1, 1, 0]}
    model = target(tmp_path / "t", rope_scaling={"type": "mrope", **sections})
    own = {"rope_parameters": {"rope_type": "default", "rope_theta": 100000.0, **sections}}
    assert lint(drafter(tmp_path / "d", own), model).codes == SGLANG_TOO


def test_the_text_model_of_a_vision_target_counts(tmp_path) -> None:
    model = target(tmp_path / "t", hidden_size=99, text_config={"hidden_size": H})
    assert "CKP017" not in lint(drafter(tmp_path / "d"), model).codes


def test_a_smaller_draft_size_is_no_fault_of_the_mapping(tmp_path) -> None:
    found = judged(tmp_path, {"draft_vocab_size": DRAFT})
    assert not [code for code in found.codes if code.startswith("VOC")]
