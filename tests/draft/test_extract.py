"""Extraction: the states are the target's, whatever the batch; stops go on; what is foreign is
refused.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch")

import torch
from stating import contents
from tiny import DEPTH, HIDDEN, LAYERS, exact, loaded, saved, spoken

from eagle3_data.draft.extract import Choice, batches, extract
from eagle3_data.draft.forward import load
from eagle3_data.draft.packing import Packing
from eagle3_data.draft.states import open_states
from eagle3_data.draft.states_manifest import StatesError
from eagle3_data.shards.manifest import MANIFEST
from eagle3_data.shards.reader import open_shards

CHOICE = Choice(layers=LAYERS, batch_tokens=90, file_bytes=30_000)


@pytest.fixture(scope="module")
def room(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("room")


@pytest.fixture(scope="module")
def forward(room):
    return loaded(saved(room / "target"))


@pytest.fixture(scope="module")
def shards(room, forward):
    return spoken(room / "shards", forward)


@pytest.fixture(scope="module")
def whole(room, shards, forward):
    done = extract(shards, forward, room / "whole", CHOICE)
    assert done.sound and done.findings == ()
    return room / "whole"


def test_the_states_are_those_of_each_sample_alone(whole, shards, forward) -> None:
    states = open_states(whole)
    assert len(states) == len(shards) == 12
    assert len(states.manifest.files) > 2
    for sample, found in zip(shards, states, strict=True):
        aux, final = exact(forward, sample.input_ids)
        assert found.input_ids.tolist() == sample.input_ids.tolist()
        torch.testing.assert_close(
            found.aux.float(), aux.flatten(1), rtol=2**-8, atol=1e-4
        )  # bf16 keeps 8 bits
        torch.testing.assert_close(found.final.float(), final, rtol=2**-8, atol=1e-4)


def test_the_manifest_says_whose_states_they_are(whole, shards, forward) -> None:
    manifest = open_states(whole).manifest
    assert manifest.facts == shards.facts
    assert manifest.final_norm == "post"
    assert manifest.layers.output_of == [0, 2, 4]
    assert manifest.layers.vllm == [1, 3, 5]
    assert manifest.layers.sglang == [0, 2, 4]
    target = manifest.target
    assert (target.hidden_size, target.layers, target.vocab_size) == (HIDDEN, DEPTH, 100)
    assert (target.architecture, target.dtype, target.quantisation) == (
        "LlamaForCausalLM",
        "float32",
        None,
    )
    assert len(target.weights) == 32
    asked, right = manifest.checked["asked"], manifest.checked["right"]
    assert asked > 100
    assert right > 0.97 * asked  # bf16 turns a near tie now and then
    assert manifest.checked["alone"] == 2
    assert manifest.checked["distance"] < 0.01


@pytest.mark.parametrize("tokens", [1, 40, 10_000])
def test_the_states_do_not_depend_on_the_batches(whole, tmp_path, shards, forward, tokens) -> None:
    extract(shards, forward, tmp_path, replace(CHOICE, batch_tokens=tokens))
    for one, other in zip(open_states(whole), open_states(tmp_path), strict=True):
        torch.testing.assert_close(one.aux, other.aux, rtol=2**-7, atol=1e-3)
        torch.testing.assert_close(one.final, other.final, rtol=2**-7, atol=1e-3)


def test_a_mixture_of_experts_with_latent_attention_goes_through(room) -> None:
    forward = loaded(saved(room / "deepseek", "deepseek"))
    assert forward.target.architecture == "DeepseekV3ForCausalLM"
    shards = spoken(room / "deepseek-shards", forward, 6)
    done = extract(shards, forward, room / "deepseek-states", CHOICE)
    assert done.sound and done.findings == ()
    for sample, found in zip(shards, open_states(room / "deepseek-states"), strict=True):
        aux, final = exact(forward, sample.input_ids)
        torch.testing.assert_close(found.aux.float(), aux.flatten(1), rtol=2**-8, atol=1e-3)
        torch.testing.assert_close(found.final.float(), final, rtol=2**-8, atol=1e-3)


def test_bf16_is_within_the_tolerance_of_the_check(room, tmp_path, shards) -> None:
    forward = load(str(room / "target"), dtype="bf16", device="cpu")
    done = extract(shards, forward, tmp_path, CHOICE)
    assert done.sound, done.findings
    assert done.checked.distance < 0.04
    assert open_states(tmp_path).manifest.target.dtype == "bfloat16"


def test_splits_limits_and_layers(tmp_path, shards, forward) -> None:
    extract(shards, forward, tmp_path / "val", replace(CHOICE, split="val"))
    assert {s.meta["split"] for s in open_states(tmp_path / "val")} == {"val"}
    extract(shards, forward, tmp_path / "two", replace(CHOICE, limit=2, layers=(3,)))
    found = open_states(tmp_path / "two")
    assert len(found) == 2
    assert found.sample(0).aux.shape[1] == HIDDEN
    with pytest.raises(StatesError, match="has no usual three"):
        extract(shards, forward, tmp_path / "usual", replace(CHOICE, layers=None))
    for wrong in ((6,), (-1,), (1, 1)):
        with pytest.raises(StatesError, match="outputs of layers 0 to 5"):
            extract(shards, forward, tmp_path / "wrong", replace(CHOICE, layers=wrong))
    with pytest.raises(StatesError, match="holds no sample of this choice"):
        extract(shards, forward, tmp_path / "none", replace(CHOICE, split="test"))


def test_a_stopped_run_goes_on_with_the_same_bytes(whole, tmp_path, shards, forward) -> None:
    class Stop(Exception):
        pass

    def stop_in_the_file_behind(files: int) -> Callable[[int, int], None]:
        calls = 0

        def progress(done: int, total: int) -> None:
            nonlocal calls
            calls += len(list(tmp_path.glob("*.safetensors"))) == files
            if calls == 2:  # the first call told that the file is finished
                raise Stop

        return progress

    for files in (1, 2):
        with pytest.raises(Stop):
            extract(shards, forward, tmp_path, CHOICE, progress=stop_in_the_file_behind(files))
        assert len(list(tmp_path.glob("*.safetensors"))) == files
        assert not list(tmp_path.glob(".*.part"))
    done = extract(shards, forward, tmp_path, CHOICE)
    assert done.finished == 2
    assert contents(tmp_path) == contents(whole)


def test_a_finished_folder_is_checked_again(whole, tmp_path, shards, forward) -> None:
    before = contents(whole)
    done = extract(shards, forward, whole, CHOICE)
    assert done.again and done.sound
    assert contents(whole) == before


def test_a_changed_file_is_found_when_it_is_checked_again(tmp_path, shards, forward) -> None:
    extract(shards, forward, tmp_path, replace(CHOICE, packing=Packing.NONE))
    path = tmp_path / "states-00000.safetensors"
    body = bytearray(path.read_bytes())
    body[-5000] ^= 1
    path.write_bytes(body)
    with pytest.raises(StatesError, match="has other bytes than were written"):
        extract(shards, forward, tmp_path, replace(CHOICE, packing=Packing.NONE))


def test_foreign_shards_and_targets_are_refused(room, tmp_path, shards, forward) -> None:
    large = spoken(tmp_path / "large", forward, 2, vocab_size=101)
    with pytest.raises(StatesError, match="name the target of the capture"):
        extract(large, forward, tmp_path / "states", CHOICE)
    known = replace(forward, target=forward.target.model_copy(update={"tokenizer_hash": "dd" * 32}))
    with pytest.raises(StatesError, match="has another one"):
        extract(shards, known, tmp_path / "states", CHOICE)
    extract(shards, known, tmp_path / "states", replace(CHOICE, any_tokenizer=True))
    other = loaded(saved(room / "other", seed=1))
    with pytest.raises(StatesError, match=r"target\.id: "):
        extract(shards, other, tmp_path / "states", replace(CHOICE, any_tokenizer=True))
    assert (tmp_path / "states" / MANIFEST).exists()


def test_what_is_no_target_is_refused(tmp_path, room) -> None:
    with pytest.raises(StatesError, match="can not be loaded as a target"):
        load(str(tmp_path / "nothing"))
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(StatesError, match="can not be loaded as a target"):
        load(str(tmp_path))
    with pytest.raises(StatesError, match="a device that is there"):
        load(str(room / "target"), device="nothing")


def test_batches_hold_like_lengths_and_no_more_than_asked() -> None:
    lengths = np.random.default_rng(0).integers(1, 200, 300).tolist()
    found = list(batches(lengths, 512))
    assert sorted(i for batch in found for i in batch) == list(range(300))
    for batch in found:
        assert max(lengths[i] for i in batch) * len(batch) <= 512
    padded = sum(max(lengths[i] for i in batch) * len(batch) for batch in found)
    assert padded < 1.05 * sum(lengths)
    assert list(batches([9], 4)) == [[0]]


def test_a_disk_that_fills_stops_the_run_before_the_next_file(
    whole, tmp_path, shards, forward, monkeypatch
) -> None:
    usage = shutil.disk_usage(tmp_path)

    def left(_: object) -> object:
        files = len(list(tmp_path.glob("*.safetensors")))
        return usage._replace(free=10**12 if files < 2 else 50_000_000)

    monkeypatch.setattr(shutil, "disk_usage", left)
    with pytest.raises(StatesError, match=r"0\.[0-9]+ of it in files.* 2 finished files are kept"):
        extract(shards, forward, tmp_path, CHOICE)
    assert len(list(tmp_path.glob("*.safetensors"))) == 2
    done = extract(shards, forward, whole, CHOICE)  # to read again takes no room
    assert done.again and done.sound
    monkeypatch.undo()
    extract(shards, forward, tmp_path, CHOICE)
    assert contents(tmp_path) == contents(whole)


def test_samples_of_one_token_are_no_fault(room, tmp_path, forward) -> None:
    from making import row, table, write

    rows = [row(i, prompt=i, sampled=1) for i in range(4)]
    rows.append(row(9, prompt=9, sampled=9))
    write(tmp_path / "shards", table(rows))
    bf16 = load(str(room / "target"), dtype="bf16", device="cpu")
    done = extract(open_shards(tmp_path / "shards"), bf16, tmp_path / "states", CHOICE)
    assert done.findings == () and done.checked.alone == 1
    found = open_states(tmp_path / "states").sample(0)
    assert (found.aux.shape, found.final.shape) == ((1, 3 * HIDDEN), (1, HIDDEN))
