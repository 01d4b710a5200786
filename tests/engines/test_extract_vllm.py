"""`extract` against a real vLLM: both backends give the same states of the same ids."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from room import PROMPTS, TOKENIZER, Rack, keep
from room import command as called

from engines import serve
from engines.serve import Engine, Setup

pytest.importorskip("torch")

from eagle3_data.draft.selfcheck import TOLERANCE, furthest
from eagle3_data.draft.states import open_states

LAYERS = [1, 14, 26]
SAMPLES = 12


@pytest.fixture(scope="module")
def target() -> Path:
    if not os.environ.get("EAGLE3_ENGINE_VLLM"):
        pytest.skip("EAGLE3_ENGINE_VLLM is not set: run .ci/stages/engines")
    return serve.home() / "models" / serve.MODEL


@pytest.fixture(scope="module")
def base_url(target, rack: Rack, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A vLLM that extracts what enters layers 2, 15, 27 and what the last one puts out."""
    rack.clear()
    room = tmp_path_factory.mktemp("extracting")
    more = serve.extracting([*(k + 1 for k in LAYERS), 30], room)
    with serve.running(Engine.VLLM, Setup.NONE, log=room / "log", more=more) as server:
        yield server.base_url


def test_vllm_and_transformers_give_the_same_states(tmp_path, target, base_url) -> None:
    shards = tmp_path / "shards"
    ignored = ["--ignore", "CAP,WRP,GEN,SET"]  # what is wrong with the texts is not asked here
    called("convert", PROMPTS, "-o", shards, "--tokenizer", TOKENIZER, *ignored)
    run = ["extract", shards, "--target", target, "--limit", SAMPLES, "--any-tokenizer", "--json"]
    found = {
        "transformers": called(*run, "-o", tmp_path / "transformers"),
        "vllm": called(*run, "-o", tmp_path / "vllm", "--backend", "vllm", "--base-url", base_url),
    }
    for name, one in found.items():
        assert one.code == 0, (name, one.stdout, one.stderr)
        assert one.json["findings"] == []
        assert one.json["checked"]["right"] > 0.6 * one.json["checked"]["asked"]
    ours, theirs = open_states(tmp_path / "transformers"), open_states(tmp_path / "vllm")
    assert len(ours) == len(theirs) == SAMPLES
    largest = 0.0
    for one, other in zip(ours, theirs, strict=True):
        assert one.input_ids.tolist() == other.input_ids.tolist()
        largest = max(largest, furthest(other, one, len(LAYERS)))
    assert largest < TOLERANCE["bfloat16"]
    keep("extract-backends.json", json.dumps({"samples": SAMPLES, "largest_distance": largest}))
