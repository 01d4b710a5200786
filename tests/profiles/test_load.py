"""Loading profiles: the shipped ones, the schema, and what a house profile may get wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

from eagle3_data.profiles.load import ProfileError, available, fingerprint, load, parse
from eagle3_data.profiles.profile import Profile, Thinking
from eagle3_data.profiles.schema import schema_text

SCHEMAS = Path(__file__).parents[2] / "schemas"
FILES = sorted((SCHEMAS / "profiles").glob("*.toml"))

HOUSE = """
name = "house"
title = "House"
thinking = "always"
think_open = { text = "<think>" }
think_close = { text = "</think>", id = 5 }
open_in_prompt = true
[prompt]
thinking_on = "<think>"
[completion]
thinking_on = "{reasoning}</think>{content}<end>"
thinking_off = "{content}<end>"
"""


@pytest.mark.parametrize("file", FILES, ids=[f.stem for f in FILES])
def test_every_shipped_profile_is_named_as_its_file_and_has_sources(file: Path) -> None:
    profile = load(file.stem)
    assert profile.name == file.stem
    assert profile == load(str(file))
    assert profile.sources
    assert file.read_text().startswith("#:schema ../profile.schema.json\n")
    if profile.thinking is Thinking.NEVER:
        assert profile.think_open is None
        assert profile.completion.thinking_on is None
    else:
        assert profile.think_open is not None
        assert profile.think_close is not None
        assert profile.completion.thinking_on is not None


def test_the_families_that_are_promised() -> None:
    assert [profile.name for profile in available()] == [
        "chatml", "deepseek-r1", "deepseek-r1-distill", "deepseek-v3.1", "deepseek-v3.2", "generic",
        "glm-4.5", "glm-5", "gpt-oss", "kimi-k2-instruct", "kimi-k2-thinking", "kimi-k2.5",
        "magistral", "minimax-m2", "nemotron-3", "nemotron-3-ultra", "qwen3-hybrid",
        "qwen3-instruct-2507", "qwen3-thinking-2507", "qwen3.5", "seed-oss", "smollm2-think",
    ]  # fmt: skip


def test_the_schema_file_is_current() -> None:
    assert (SCHEMAS / "profile.schema.json").read_text() == schema_text(), (
        "run: python -m eagle3_data.profiles.schema > schemas/profile.schema.json"
    )


@pytest.mark.parametrize(
    ("name", "prompt_on", "completion_on", "in_prompt"),
    [
        (
            "kimi-k2.5",
            "<|im_middle|><think>",
            "{reasoning}</think>{content}{tools}<|im_end|>",
            True,
        ),
        (
            "kimi-k2-thinking",
            "<|im_middle|>",
            "<think>{reasoning}</think>{content}{tools}<|im_end|>",
            False,
        ),
        (
            "qwen3-hybrid",
            "<|im_start|>assistant\n",
            "<think>\n{reasoning}\n</think>\n\n{content}{tools}<|im_end|>",
            False,
        ),
        (
            "qwen3.5",
            "<|im_start|>assistant\n<think>\n",
            "{reasoning}\n</think>\n\n{content}{tools}<|im_end|>",
            True,
        ),
        (
            "glm-4.5",
            "<|assistant|>",
            "\n<think>{reasoning}</think>\n{content}{tools}<|user|>",
            False,
        ),
        (
            "smollm2-think",
            "<|im_start|>assistant\n<think>\n",
            "{reasoning}\n</think>\n\n{content}<|im_end|>",
            True,
        ),
    ],
)
def test_who_writes_the_opening_marker(
    name: str, prompt_on: str, completion_on: str, in_prompt: bool
) -> None:
    profile = load(name)
    assert profile.prompt.thinking_on is not None
    assert profile.prompt.thinking_on.endswith(prompt_on)
    assert profile.completion.thinking_on == completion_on
    assert profile.open_in_prompt is in_prompt


def test_stated_ids() -> None:
    stated = {
        profile.name: (profile.think_open.id, profile.think_close.id)
        for profile in available()
        if profile.think_open is not None
        and profile.think_close is not None
        and profile.think_close.id is not None
    }
    assert stated == {
        "deepseek-r1": (128798, 128799),
        "glm-4.5": (151350, 151351),
        "gpt-oss": (None, 200007),
        "kimi-k2-thinking": (163606, 163607),
        "kimi-k2.5": (163606, 163607),
        "qwen3-hybrid": (151667, 151668),
        "qwen3-thinking-2507": (151667, 151668),
        "qwen3.5": (248068, 248069),
        "smollm2-think": (49152, 49153),
    }


def test_no_profile_states_one_id_for_two_markers() -> None:
    for profile in available():
        ids = [marker.id for marker in profile.markers if marker.id is not None]
        assert len(ids) == len(set(ids)), profile.name


def test_a_house_profile(tmp_path: Path) -> None:
    file = tmp_path / "house.toml"
    file.write_text(HOUSE)
    assert load(str(file)).think_close is not None
    assert load(str(file)).name == "house"


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        (
            'title = "House"',
            'title = "House"\nthinkng = 1',
            "thinkng: Extra inputs are not permitted",
        ),
        ("id = 5", 'id = "5"', "think_close.id: Input should be a valid integer"),
        ("id = 5", "id = -5", "think_close.id: Input should be greater than or equal to 0"),
        ('name = "house"', 'name = "My House"', "name: String should match pattern"),
        ('title = "House"', "", "title: Field required"),
        ('thinking = "always"', 'thinking = "often"', "thinking: Input should be"),
        ('thinking = "always"', "thinking = 2026-01-01", "a profile holds no dates"),
        ('name = "house"', 'name = "house', "not TOML"),
        ("{reasoning}</think>", "</think>", "completion.thinking_on: needs {reasoning}"),
        ("{content}<end>", "{answer}<end>", "completion.thinking_on: needs {content}"),
        (
            '= "{content}<end>"',
            '= "{content}{answer}<end>"',
            "completion.thinking_off: {answer} is no slot (there are {content}, {tools})",
        ),
        (
            '= "{content}<end>"',
            '= "{content}{content}"',
            "completion.thinking_off: names a slot twice",
        ),
        (
            "open_in_prompt = true",
            "open_in_prompt = false",
            "completion.thinking_on: open_in_prompt says that the opening marker is sampled",
        ),
        (
            '"{reasoning}</think>',
            '"<think>{reasoning}</think>',
            "completion.thinking_on: open_in_prompt says that the opening marker is in the prompt",
        ),
        (
            "[prompt]",
            '[[strips]]\nserver = "vllm"\nversions = "~0.25"\n[prompt]',
            "strips.0.versions: '~0.25' is no list like '>=0.25,<0.34'",
        ),
        (
            "[prompt]",
            '[[strips]]\nserver = "vllm"\ncontent = "some"\n[prompt]',
            "strips.0.content: String should match pattern",
        ),
    ],
)
def test_a_house_profile_is_refused_with_file_key_and_reason(old: str, new: str, told: str) -> None:
    assert old in HOUSE
    with pytest.raises(ProfileError) as caught:
        parse(HOUSE.replace(old, new).encode(), "house.toml")
    assert str(caught.value).startswith(f"house.toml: {told}")


@pytest.mark.parametrize("body", [b"\xff\xfe", b"", b"a = " + b"[" * 5000])
def test_any_bytes_are_refused_in_words(body: bytes) -> None:
    with pytest.raises(ProfileError, match=r"^house\.toml: "):
        parse(body, "house.toml")


@pytest.mark.parametrize(
    ("name", "told"),
    [
        (
            "smolm2-think",
            "no profile 'smolm2-think': did you mean smollm2-think or kimi-k2-thinking?",
        ),
        ("kimi", "did you mean kimi-k2-instruct or kimi-k2-thinking or kimi-k2.5?"),
        ("xx", "no profile 'xx': There are chatml, deepseek-r1, "),
        ("none/such.toml", "none/such.toml: cannot be read"),
    ],
)
def test_an_unknown_name_is_answered_with_the_names(name: str, told: str) -> None:
    with pytest.raises(ProfileError) as caught:
        load(name)
    assert told in str(caught.value)


def test_names_are_read_in_any_case() -> None:
    assert load("Kimi-K2.5") is load("kimi-k2.5")


def test_the_fingerprint_is_of_the_facts() -> None:
    house = parse(HOUSE.encode(), "one.toml")
    same = parse(("# a remark\n" + HOUSE).encode(), "two.toml")
    other = parse(HOUSE.replace("id = 5", "id = 6").encode(), "one.toml")
    assert fingerprint(house) == fingerprint(same)
    assert fingerprint(house) != fingerprint(other)
    assert len({fingerprint(profile) for profile in available()}) == len(available())
    assert Profile.model_validate_json(house.model_dump_json()) == house


@pytest.mark.parametrize("profile", available(), ids=lambda profile: profile.name)
def test_strips_are_credited_to_versions_that_were_read(profile: Profile) -> None:
    """vLLM's engine parsers were read in 0.25.1 to 0.33.0, SGLang's in 0.5.5 to 0.5.12 and in
    0.5.14 to 0.5.23.
    """
    read = {
        "vllm": {">=0.25.1,<=0.33.0"},
        "sglang": {">=0.5.5,<=0.5.12", ">=0.5.14,<=0.5.23"},
        "llama.cpp": {""},
    }
    for strip in profile.strips:
        assert strip.versions in read[strip.server]
