"""Targets of both kinds through the whole room: extracted, trained on, loaded, walked."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("torch")

import numpy as np
import torch
from tiny import LAYERS, VOCAB, loaded, saved, spoken

from eagle3_data.draft.checkpoint import load
from eagle3_data.draft.evaluate import evaluate
from eagle3_data.draft.extract import Choice, extract
from eagle3_data.draft.finetune import Start, finetune
from eagle3_data.draft.lint import lint
from eagle3_data.draft.mapping import choose
from eagle3_data.draft.mapping_files import files
from eagle3_data.draft.states import open_states
from eagle3_data.draft.target import target_of
from eagle3_data.draft.train import Settings

torch.set_num_threads(1)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["llama", "deepseek"])
def test_what_a_target_says_is_learned_and_the_walk_shows_it(kind: str, tmp_path: Path) -> None:
    forward = loaded(saved(tmp_path / "target", kind))
    shards = spoken(tmp_path / "shards", forward)
    assert extract(shards, forward, tmp_path / "states", Choice(layers=LAYERS)).sound
    counts = np.zeros(VOCAB, dtype=np.int64)
    for sample in shards:
        np.add.at(counts, sample.input_ids[sample.prompt_len :], 1)
    mapping = choose(counts, 60, np.array([2]))
    (tmp_path / "mapping").mkdir()
    for name, content in files(mapping, {}).items():
        (tmp_path / "mapping" / name).write_bytes(content)
    states = open_states(tmp_path / "states")
    target = target_of(states.identity, None)
    lengths = []
    for epochs in (1, 40):
        settings = Settings(epochs=epochs, batch_tokens=60, warmup=5, lr=4e-3, bf16=False)
        out = tmp_path / f"drafter{epochs}"
        start = Start(mapping=tmp_path / "mapping")
        finetune(states, out, target=target, start=start, settings=settings)
        made = load(out, target)
        lengths.append(evaluate(made, states, target, bf16=False).walk.length)
    assert lengths[0] < 2 < 2.5 < lengths[1]  # by heart: these are the samples of the training
    found = lint(out, tmp_path / "target")
    assert [finding.code for finding in found.findings if finding.error] == []
    if kind == "deepseek":
        config = json.loads((out / "config.json").read_text())
        assert (config["head_dim"], config["num_key_value_heads"]) == (8, 4)
