"""Choosing a profile: the wish, the model name, a marker, the last resort."""

from __future__ import annotations

import pytest

from eagle3_data.profiles.choose import choose, match
from eagle3_data.profiles.load import ProfileError


@pytest.mark.parametrize(
    ("model", "name"),
    [
        ("moonshotai/Kimi-K2.5", "kimi-k2.5"),
        ("kimi-k2.6", "kimi-k2.5"),
        ("kimi-k2.5:nitro", "kimi-k2.5"),
        ("/models/Kimi-K2-Thinking/", "kimi-k2-thinking"),
        ("C:\\models\\Kimi-K2-Instruct-0905", "kimi-k2-instruct"),
        (
            "hub/models--deepseek-ai--DeepSeek-R1-Distill-Qwen-7B/snapshots/0ab1",
            "deepseek-r1-distill",
        ),
        ("deepseek-ai/DeepSeek-R1-0528", "deepseek-r1"),
        ("deepseek-r1:671b", "deepseek-r1"),
        ("deepseek-ai/DeepSeek-R1-0528-Qwen3-8B", "deepseek-r1-distill"),
        ("deepseek-r1:8b", "deepseek-r1-distill"),
        ("deepseek-r1:70b-llama-distill-q4_K_M", "deepseek-r1-distill"),
        ("deepseek-r1:latest", "deepseek-r1-distill"),
        ("deepseek-ai/DeepSeek-V3.1-Terminus", "deepseek-v3.1"),
        ("deepseek-ai/DeepSeek-V3.2", "deepseek-v3.2"),
        ("Qwen/Qwen3-8B", "qwen3-hybrid"),
        ("Qwen/Qwen3-8B-AWQ", "qwen3-hybrid"),
        ("qwen3:8b", "qwen3-hybrid"),
        ("Qwen3-30B-A3B-Thinking-2507", "qwen3-thinking-2507"),
        ("Qwen3-Next-80B-A3B-Thinking", "qwen3-thinking-2507"),
        ("Qwen/Qwen3-235B-A22B-Instruct-2507-FP8", "qwen3-instruct-2507"),
        ("Qwen3-Coder-30B-A3B-Instruct", "qwen3-instruct-2507"),
        ("Qwen/Qwen3.5-27B", "qwen3.5"),
        ("zai-org/GLM-4.6", "glm-4.5"),
        ("GLM-5", "glm-5"),
        ("MiniMaxAI/MiniMax-M2.1", "minimax-m2"),
        ("openai/gpt-oss-120b", "gpt-oss"),
        ("ByteDance-Seed/Seed-OSS-36B-Instruct", "seed-oss"),
        ("nvidia/NVIDIA-Nemotron-3-Nano-30B", "nemotron-3"),
        ("nvidia/NVIDIA-Nemotron-3-Ultra-500B", "nemotron-3-ultra"),
        ("smollm2-think", "smollm2-think"),
    ],
)
def test_model_names(model: str, name: str) -> None:
    found = match(model)
    assert found is not None
    assert found.name == name


@pytest.mark.parametrize(
    "model",
    ["gpt-4o", "GLM-5.3", "Qwen3.8-32B", "QwQ-32B", "kimi", "", "///", "Nemotron-3-8B-Base-4k"],
)
def test_names_that_no_profile_claims(model: str) -> None:
    assert match(model) is None


def test_the_wish_is_first() -> None:
    found = choose("gpt-oss", ["Kimi-K2.5"], ["<seed:think>"])
    assert found.profile.name == "gpt-oss"
    assert found.why == "asked for with --profile gpt-oss"
    with pytest.raises(ProfileError):
        choose("no-such-profile", ["Kimi-K2.5"])


def test_then_the_model() -> None:
    found = choose(None, [None, "Kimi-K2.5", "Kimi-K2.5"], ["<seed:think>"])
    assert found.profile.name == "kimi-k2.5"
    assert found.why == "the records name the model Kimi-K2.5"


def test_of_two_models_the_more_frequent_one_and_the_other_is_told() -> None:
    found = choose(None, ["gpt-oss-20b", "Kimi-K2.5", "Kimi-K2.5", "gpt-4o"])
    assert found.profile.name == "kimi-k2.5"
    assert found.why == (
        "the records name the model Kimi-K2.5 (and 2 that it does not fit, gpt-oss-20b among them)"
    )


def test_then_a_marker_that_one_family_has() -> None:
    found = choose(None, ["my-model"], ["<seed:think>a</seed:think>\nb", "plain"])
    assert found.profile.name == "seed-oss"
    assert found.why == ("no model name fits, and <seed:think> is a marker that only seed-oss has")


@pytest.mark.parametrize(
    "texts",
    [
        ["<think>a</think>b"],  # many families have it
        ["<seed:think>"] + ["plain"] * 10,  # one text that talks about a marker
        ["<seed:think>", "[THINK]"],  # two families
        ["html </s> here"] * 5,  # an end of turn of Magistral, and a tag
    ],
)
def test_else_generic(texts: list[str]) -> None:
    found = choose(None, [None], texts)
    assert found.profile.name == "generic"
    assert found.why == (
        "the records name no model: give --profile to have the family's own checks"
    )
    assert choose(None, ["gpt-4o"], texts).why.startswith("no profile fits the model gpt-4o: ")
