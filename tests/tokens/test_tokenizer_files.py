"""Finding a tokenizer on disk: templates, named tokens, fingerprints, and refusals."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from eagle3_data.tokens.model_files import find
from eagle3_data.tokens.tokenizer import TokenizerError, open_tokenizer

SMOLLM = Path(__file__).parents[2] / "fixtures" / "tokenizers" / "smollm2-think"


def copied(directory: Path, config: object) -> Path:
    (directory / "tokenizer.json").write_bytes((SMOLLM / "tokenizer.json").read_bytes())
    (directory / "tokenizer_config.json").write_text(json.dumps(config))
    return directory


def test_template_of_the_configuration(tmp_path: Path) -> None:
    assert find(copied(tmp_path, {"chat_template": "one"})).chat_template == "one"
    named = [{"name": "tool_use", "template": "two"}, {"name": "default", "template": "three"}]
    assert find(copied(tmp_path, {"chat_template": named})).chat_template == "three"
    assert find(copied(tmp_path, {"chat_template": named[:1]})).chat_template is None
    assert find(copied(tmp_path, {})).chat_template is None
    (tmp_path / "chat_template.jinja").write_text("file")
    assert find(copied(tmp_path, {"chat_template": "one"})).chat_template == "file"


def test_named_tokens_as_text_or_object(tmp_path: Path) -> None:
    config = {
        "bos_token": {"content": "<|im_start|>"},
        "eos_token": "<|im_end|>",
        "pad_token": None,
    }
    assert find(copied(tmp_path, config)).named == {
        "bos_token": "<|im_start|>",
        "eos_token": "<|im_end|>",
    }
    assert open_tokenizer(tmp_path).bos_id == 1
    assert open_tokenizer(copied(tmp_path, {"bos_token": "no such token"})).bos_id is None
    assert open_tokenizer(copied(tmp_path, {})).bos_id is None


def test_the_fingerprint_covers_vocabulary_and_configuration(tmp_path: Path) -> None:
    one = find(copied(tmp_path, {"a": 1})).fingerprint
    assert find(copied(tmp_path, {"a": 2})).fingerprint != one
    assert find(copied(tmp_path, {"a": 1})).fingerprint == one
    vocabulary = tmp_path / "tokenizer.json"
    vocabulary.write_bytes(vocabulary.read_bytes() + b"\n")
    assert find(tmp_path).fingerprint != one
    assert len(one) == 64


def refused(path: Path | str) -> str:
    with pytest.raises(TokenizerError) as caught:
        open_tokenizer(path)
    return str(caught.value)


def test_a_model_name_is_no_path() -> None:
    told = refused("moonshotai/Kimi-K2.5")
    assert told.startswith("moonshotai/Kimi-K2.5: there is no such path. If it is a model name")
    assert "hf download moonshotai/Kimi-K2.5" in told


def test_an_absent_path(tmp_path: Path) -> None:
    told = refused(tmp_path / "none")
    assert told == (
        f"{tmp_path / 'none'}: there is no such file or directory: "
        "give a directory that holds tokenizer.json or tiktoken.model"
    )


@pytest.mark.parametrize(
    ("names", "told"),
    [
        ([], "give the directory that holds the tokenizer of the served model"),
        (
            ["tokenization_foo.py"],
            "only code (tokenization_foo.py), and code of a model is never run",
        ),
        (["tokenizer.model"], "only a SentencePiece tokenizer.model: save it once"),
        (["vocab.json", "merges.txt"], "only vocab.json: save it once"),
    ],
)
def test_a_directory_without_a_vocabulary(tmp_path: Path, names: list[str], told: str) -> None:
    for name in names:
        (tmp_path / name).write_text("raise SystemExit('never run')")
    found = refused(tmp_path)
    assert found.startswith(f"{tmp_path}: no tokenizer.json and no tiktoken.model here")
    assert told in found


@pytest.mark.parametrize(
    ("body", "told"),
    [
        (b"version https://git-lfs.example/spec/v1\noid sha256:00\nsize 1\n", "run `git lfs pull`"),
        (b"{", "fetch the file again"),
        (b"", "fetch the file again"),
        (b"\xff\xfe\x00", "fetch the file again"),
        (b"[]", "fetch the file again"),
        (b'{"model": {"type": "None of ours"}}', "fetch the file again"),
    ],
)
def test_a_damaged_vocabulary(tmp_path: Path, body: bytes, told: str) -> None:
    file = tmp_path / "tokenizer.json"
    file.write_bytes(body)
    found = refused(tmp_path)
    assert found.startswith(f"{file}: ")
    assert told in found


@pytest.mark.parametrize("body", ["{", "[]", "[" * 100_000, "null"])
def test_a_damaged_configuration(tmp_path: Path, body: str) -> None:
    copied(tmp_path, {})
    (tmp_path / "tokenizer_config.json").write_text(body)
    found = refused(tmp_path)
    assert found.startswith(f"{tmp_path / 'tokenizer_config.json'}: ")
    assert "fetch the file again" in found
