"""speculators 0.9.0 reads what we write, and its own mask code agrees with our mask.

It needs torch: `.ci/stages/speculators` makes an environment for it and runs this file there.
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("speculators", reason="not installed: run .ci/stages/speculators")

import torch
from datasets import load_from_disk
from loopback import rendering
from safetensors.torch import save_file
from speculators.data_generation import preprocessing
from speculators.models.eagle3.data import shift_batch
from speculators.train.data import ArrowDataset, CollateFn
from speculators.train.vocab_mapping import save_token_frequency_distribution

from eagle3_data import convert
from eagle3_data.draft.token_freq import torch_bytes
from eagle3_data.shards.export import export
from eagle3_data.shards.importing import import_rows
from eagle3_data.shards.reader import Sample, open_shards

FIXTURES = Path(__file__).parents[2] / "fixtures"
TOKENIZER = FIXTURES / "tokenizers" / "smollm2-think"
CAPTURES = {name: FIXTURES / "captures" / f"{name}_smollm2-think.jsonl" for name in
            ("clean", "vllm", "llamacpp")}  # fmt: skip
EVERYTHING = ["WRP", "CAP", "GEN", "TOK", "SET"]
"""Rules that are left out, so that the malformed samples are there too."""
HIDDEN = 8
LONG = 100_000
END, NEWLINE, CLOSE = 2, 198, 49153


@pytest.fixture(scope="module")
def shards(tmp_path_factory) -> Path:
    """The whole vLLM capture as shards, 120 samples."""
    folder = tmp_path_factory.mktemp("consumer") / "shards"
    convert(CAPTURES["vllm"], folder, tokenizer=TOKENIZER, ignore=EVERYTHING)
    return folder


def pairs(folder: Path) -> list[tuple[list[int], list[int]]]:
    return [(s.input_ids.tolist(), s.loss_mask.tolist()) for s in open_shards(folder)]


def test_its_preparation_takes_the_shards_as_they_are(shards, tmp_path) -> None:
    assert len(pairs(shards)) == 120
    prepared, _ = preprocessing.load_and_preprocess_dataset(
        str(TOKENIZER),
        [f"hf:{shards}"],
        seq_length=LONG,
        build_dataset_num_proc=1,
        token_freq_path=tmp_path / "token_freq.pt",
        skip_token_freq=False,
    )
    rows = [(row["input_ids"].tolist(), row["loss_mask"].tolist()) for row in prepared]
    assert sorted(rows) == sorted(pairs(shards))  # it shuffles
    assert [row["seq_len"] for row in prepared] == [len(ids) for ids, _ in rows]


def test_its_collate_gives_back_the_same_ids_and_mask(shards, tmp_path) -> None:
    export(shards, "speculators", tmp_path / "prepared")
    expected = pairs(shards)
    hidden = tmp_path / "prepared" / "hidden_states"
    hidden.mkdir()
    for number, (ids, _) in enumerate(expected):
        states = torch.zeros(len(ids), 4, HIDDEN, dtype=torch.bfloat16)
        tensors = {"token_ids": torch.tensor(ids), "hidden_states": states}
        save_file(tensors, hidden / f"hs_{number}.safetensors")
    data = ArrowDataset(LONG, tmp_path / "prepared", on_missing="raise")
    assert len(data) == 120
    assert data.approx_lengths == [len(ids) for ids, _ in expected]
    batch = [data[i] for i in range(120)]
    total = sum(len(ids) for ids, _ in expected)
    whole = CollateFn(total, HIDDEN)(batch)
    assert whole["input_ids"][0].tolist() == [token for ids, _ in expected for token in ids]
    assert whole["loss_mask"][0].tolist() == [bit for _, mask in expected for bit in mask]
    # as its EAGLE-3 trainer collates: the first position of each sample goes, ids and mask alike
    shifted = CollateFn(total - 120, HIDDEN, preprocess=shift_batch)([data[i] for i in range(120)])
    assert shifted["input_ids"][0].tolist() == [t for ids, _ in expected for t in ids[1:]]
    assert shifted["loss_mask"][0].tolist() == [b for _, mask in expected for b in mask[1:]]


def test_the_token_counts_are_those_that_it_makes(shards, tmp_path) -> None:
    export(shards, "speculators", tmp_path / "ours", token_freq=torch_bytes)
    prepared = load_from_disk(str(tmp_path / "ours"))
    save_token_frequency_distribution(prepared.with_format("torch"), tmp_path / "theirs.pt")
    ours = torch.load(tmp_path / "ours" / "token_freq.pt", weights_only=True)
    assert ours == torch.load(tmp_path / "theirs.pt", weights_only=True)
    assert sum(ours.values()) == 20964


def test_what_it_prepared_comes_back_as_shards(shards, tmp_path) -> None:
    prepared, _ = preprocessing.load_and_preprocess_dataset(
        str(TOKENIZER), [f"hf:{shards}"], seq_length=LONG, build_dataset_num_proc=1
    )
    prepared.save_to_disk(str(tmp_path / "prepared"))
    found = import_rows(
        [tmp_path / "prepared"], tmp_path / "back", tokenizer=TOKENIZER, profile="smollm2-think"
    )
    assert (found.rows, found.kept) == (120, 120)
    assert sorted(pairs(tmp_path / "back")) == sorted(pairs(shards))


def boundary_rows(shards: Path, out: Path, endpoint: str) -> list[tuple[Sample, Any, bool]]:
    """(our sample, the row that its mask code makes of the same conversation, the answer is a
    thought alone) of every sample that has an end.
    """
    export(shards, "specforge", out)  # the conversations that speculators reads, too
    ours = {sample.sample_id: sample for sample in open_shards(shards)}
    found = []
    for line in (out / "conversations.jsonl").read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        turns = preprocessing._normalize_conversation(row["conversations"])
        theirs = preprocessing._render_boundary_rows(turns, endpoint, LONG)[-1]
        found.append((ours[row["id"]], theirs, not row["conversations"][-1]["content"]))
    return found


@pytest.mark.parametrize(
    ("capture", "whole", "thoughts"), [("clean", 39, 0), ("vllm", 26, 46), ("llamacpp", 15, 0)]
)
def test_its_boundary_is_our_prompt_length(capture, whole, thoughts, tmp_path) -> None:
    """Real samples: the same prompt ids and the same first supervised token in every one; behind
    it only what the template writes in another way than the model did.
    """
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(TOKENIZER)
    convert(CAPTURES[capture], tmp_path / "shards", tokenizer=TOKENIZER, ignore=EVERYTHING)
    seen: Counter[bool] = Counter()
    with rendering(TOKENIZER) as endpoint:
        rows = boundary_rows(tmp_path / "shards", tmp_path / "conversations", endpoint)
    for ours, theirs, thought_only in rows:
        ids, mask = theirs["input_ids"], theirs["loss_mask"]
        n = ours.prompt_len
        assert ids[:n] == ours.input_ids[:n].tolist()
        assert mask == [0] * n + [1] * (len(ids) - n)
        assert ours.loss_mask.tolist() == [0] * n + [1] * (len(ours.input_ids) - n)
        assert ids[-2:] == [END, NEWLINE]  # the line end was never sampled, it supervises it
        written, sampled = (
            "".join(tokenizer.decode(part[n:]).split()) for part in (ids, ours.input_ids.tolist())
        )
        if thought_only:  # the template closes a thought that the model left open
            sampled = sampled.replace("<|im_end|>", "</think><|im_end|>")
        assert written == sampled
        seen[thought_only] += 1
    assert (seen[False], seen[True]) == (whole, thoughts)


def test_where_the_template_writes_what_was_sampled_ids_and_mask_are_equal(tmp_path) -> None:
    """The answers of the clean capture in the template's own whitespace, with a history before
    half of them: nothing differs but the line end behind the end of turn.
    """
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(TOKENIZER)
    earlier = [{"role": "user", "content": "Hello"}, {"role": "assistant", "content": "Hi there."}]
    lines = []
    for number, line in enumerate(CAPTURES["clean"].read_text(encoding="utf-8").splitlines()):
        record = json.loads(line)
        request, response = record["request"], record["response"]
        if number % 2:
            # behind a system message, if there is one
            at = int(request["messages"][0]["role"] == "system")
            request["messages"][at:at] = earlier
        choice = response["choices"][0]
        said = choice["message"]
        said["reasoning"], said["content"] = (said[k].strip() for k in ("reasoning", "content"))
        text = f"{said['reasoning']}\n</think>\n\n{said['content']}<|im_end|>"
        prompt = tokenizer.apply_chat_template(
            request["messages"], add_generation_prompt=True, tokenize=False
        )
        choice["token_ids"], response["prompt_token_ids"] = (
            tokenizer(part, add_special_tokens=False)["input_ids"] for part in (text, prompt)
        )
        response["usage"] = {
            "prompt_tokens": len(response["prompt_token_ids"]),
            "completion_tokens": len(choice["token_ids"]),
        }
        lines.append(json.dumps(record))
    (tmp_path / "capture.jsonl").write_text("\n".join(lines), encoding="utf-8")
    convert(tmp_path / "capture.jsonl", tmp_path / "shards", tokenizer=TOKENIZER, ignore=EVERYTHING)
    with rendering(TOKENIZER) as endpoint:
        rows = boundary_rows(tmp_path / "shards", tmp_path / "conversations", endpoint)
    assert len(rows) == 39
    for ours, theirs, _ in rows:
        assert theirs["input_ids"] == [*ours.input_ids.tolist(), NEWLINE]
        assert theirs["loss_mask"] == [*ours.loss_mask.tolist(), 1]
        assert CLOSE in theirs["input_ids"]
