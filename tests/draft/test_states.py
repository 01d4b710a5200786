"""The store of states: what goes in comes out, stops go on, and what is not ours is refused."""

from __future__ import annotations

import shutil

import numpy as np
import polars as pl
import pytest

pytest.importorskip("torch")

import torch
from stating import HIDDEN, LAYERS, contents, made_shards, planned, states_of, written

from eagle3_data.draft.packing import Packing, pack, unpack
from eagle3_data.draft.states import open_states
from eagle3_data.draft.states_manifest import INDEX, JOURNAL, Layers, StatesError, usual_layers
from eagle3_data.shards.manifest import MANIFEST

NUMBERS = np.random.default_rng(0).standard_normal((50, 3, 8), dtype=np.float32).view(np.uint32)
BITS = (NUMBERS >> 16).astype(np.uint16)


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory):
    return made_shards(tmp_path_factory.mktemp("shards"))


def test_packing_is_lossless_and_small() -> None:
    frame = pack(BITS)
    assert np.array_equal(unpack(frame, BITS.shape), BITS)
    assert frame == pack(BITS.copy())
    odd = np.array([0x7FC0, 0xFF80, 0x0001, 0x8000], dtype=np.uint16)  # NaN, -inf, tiny, -0
    assert np.array_equal(unpack(pack(odd), (4,)), odd)


def test_a_damaged_frame_is_an_error() -> None:
    frame = pack(BITS)
    for damaged in (frame[:-3], b"x" + frame[1:], b"", pack(BITS[1:])):
        with pytest.raises(ValueError, match=r"damaged|expected"):
            unpack(damaged, BITS.shape)


@pytest.mark.parametrize("packing", [Packing.NONE, Packing.ZSTD, None])
def test_what_is_written_is_read(tmp_path, shards, packing) -> None:
    manifest = written(tmp_path, shards, packing)
    assert manifest.packing == (packing or Packing.ZSTD)
    states = open_states(tmp_path)
    assert len(states) == manifest.samples == len(shards) == 40
    assert len(manifest.files) > 3
    assert states.verify() == []
    for i, (sample, found) in enumerate(zip(shards, states, strict=True)):
        wanted = states_of(sample)
        assert found.sample_id == sample.sample_id
        assert found.input_ids.dtype == torch.int64 and found.loss_mask.dtype == torch.bool
        assert found.input_ids.tolist() == sample.input_ids.tolist()
        assert found.loss_mask.tolist() == sample.loss_mask.astype(bool).tolist()
        count = len(sample.input_ids)
        assert found.aux.shape == (count, len(LAYERS) * HIDDEN)
        assert found.final.shape == (count, HIDDEN)
        assert found.aux.dtype == found.final.dtype == torch.bfloat16
        aux = found.aux.view(torch.int16).numpy().view(np.uint16)
        assert np.array_equal(aux.reshape(wanted.aux.shape), wanted.aux)
        assert np.array_equal(found.final.view(torch.int16).numpy().view(np.uint16), wanted.final)
        assert found.spans[-1]["end"] == count
        assert found.meta["split"] == ("val" if i % 5 == 0 else "train")
        assert found.meta["prompt_len"] == sample.prompt_len


def test_other_readers_open_the_files(tmp_path, shards) -> None:
    from safetensors.torch import load_file

    manifest = written(tmp_path, shards, Packing.NONE)
    found = load_file(tmp_path / manifest.files[0].name)
    assert found["aux"].shape == (manifest.files[0].tokens, len(LAYERS), HIDDEN)
    assert found["offsets"].tolist()[-1] == manifest.files[0].tokens == len(found["input_ids"])
    assert sum(file.bytes for file in manifest.files) < 1.2 * manifest.raw_bytes


def test_filters_and_orders(tmp_path, shards) -> None:
    written(tmp_path, shards)
    states = open_states(tmp_path)
    assert len(states.where(split="val")) == 8
    assert {s.meta["split"] for s in states.where(split="val").iterate(seed=1)} == {"val"}
    assert (
        len(states.where(min_grade="A", max_length=20))
        == states.index.filter(pl.col("seq_len") <= 20).height
    )
    assert len(states.where(condition=pl.col("file") == "nothing")) == 0
    first, again, other = ([s.sample_id for s in states.iterate(seed=seed)] for seed in (1, 1, 2))
    assert first == again != other
    assert sorted(first) == sorted(other) == sorted(s.sample_id for s in states)
    with pytest.raises(StatesError, match="no grade 'Z'"):
        states.where(min_grade="Z")


@pytest.mark.parametrize("packing", [Packing.NONE, None])
def test_a_stopped_run_goes_on_with_the_same_bytes(tmp_path, shards, packing) -> None:
    written(tmp_path / "whole", shards, packing)
    for stop in (0, 2, 4):
        with pytest.raises(KeyboardInterrupt):
            written(tmp_path / "parts", shards, packing, stop_after=stop)
        names = sorted(p.name for p in (tmp_path / "parts").iterdir())
        assert names == [f"states-{i:05d}.safetensors" for i in range(stop)] + [JOURNAL]
        with pytest.raises(StatesError, match="did not finish"):
            open_states(tmp_path / "parts")
    written(tmp_path / "parts", shards, packing)
    assert contents(tmp_path / "parts") == contents(tmp_path / "whole")
    written(tmp_path / "parts", shards, packing)
    assert contents(tmp_path / "parts") == contents(tmp_path / "whole")


@pytest.mark.parametrize("lost", ["states-00001.safetensors", INDEX])
def test_a_lost_file_is_written_again(tmp_path, shards, lost) -> None:
    written(tmp_path, shards)
    whole = contents(tmp_path)
    (tmp_path / lost).unlink()
    with pytest.raises(StatesError, match="is missing"):
        open_states(tmp_path)
    written(tmp_path, shards)
    assert contents(tmp_path) == whole


def test_a_file_that_the_run_does_not_know_is_refused_and_stays(tmp_path, shards) -> None:
    with pytest.raises(KeyboardInterrupt):
        written(tmp_path, shards, stop_after=2)
    surplus = tmp_path / "states-00007.safetensors"
    surplus.write_bytes(b"of an hour of a GPU")
    with pytest.raises(StatesError, match=r"states-00007\.safetensors is not of this run"):
        written(tmp_path, shards)
    assert surplus.read_bytes() == b"of an hour of a GPU"
    surplus.unlink()
    written(tmp_path, shards)


def test_another_run_is_refused_with_what_differs(tmp_path, shards) -> None:
    written(tmp_path, shards)
    with pytest.raises(StatesError, match=r"layers.output_of.0: |layers\.output_of: \[1,3\]"):
        written(tmp_path, shards, layers=Layers.of([2, 3]))
    before = contents(tmp_path)
    written(tmp_path, shards, layers=Layers.of([2, 3]), overwrite=True)
    assert contents(tmp_path) != before


def test_files_of_two_runs_are_refused(tmp_path, shards) -> None:
    written(tmp_path / "a", shards, Packing.NONE)
    written(tmp_path / "b", shards, Packing.NONE, layers=Layers.of([2, 3]))
    name = "states-00001.safetensors"
    shutil.copy(tmp_path / "b" / name, tmp_path / "a" / name)
    with pytest.raises(StatesError, match=r"of another run than the manifest|bytes, not"):
        open_states(tmp_path / "a")


def test_foreign_and_edited_folders_are_refused(tmp_path, shards) -> None:
    with pytest.raises(StatesError, match="is not a directory"):
        open_states(tmp_path / "nothing")
    with pytest.raises(StatesError, match="not the manifest of states"):
        open_states(shards.directory)
    with pytest.raises(StatesError, match="foreign files"):
        written(shards.directory, shards)
    written(tmp_path, shards)
    path = tmp_path / MANIFEST
    path.write_bytes(path.read_bytes().replace(b'"samples": 40', b'"samples": 41'))
    with pytest.raises(StatesError, match="was edited"):
        open_states(tmp_path)


def test_a_damaged_state_is_named_when_it_is_read(tmp_path, shards) -> None:
    manifest = written(tmp_path, shards, Packing.ZSTD)
    path = tmp_path / manifest.files[0].name
    body = bytearray(path.read_bytes())
    body[-manifest.files[0].tokens - 40] ^= 255
    path.write_bytes(body)
    states = open_states(tmp_path)
    assert states.verify() == [path.name]


def test_a_disk_that_is_too_small_is_refused_with_numbers(tmp_path, shards, monkeypatch) -> None:
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=1_000_000))
    with pytest.raises(StatesError, match=r"MB are needed .* 1\.0 MB are free; nothing was"):
        written(tmp_path / "states", shards)
    assert [p.name for p in (tmp_path / "states").iterdir()] == [JOURNAL]


def test_the_plan_leaves_no_gap(shards) -> None:
    cut = planned(shards)
    assert sum(rows.height for rows in cut.cuts()) == cut.index.height == 40
    assert [rows["shard"].unique().to_list() for rows in cut.cuts()] == [
        [i] for i in range(cut.files)
    ]
    for rows in cut.cuts():
        assert rows["start"].to_list() == [0, *rows["end"].to_list()[:-1]]
        assert (rows["end"] - rows["start"]).to_list() == rows["seq_len"].to_list()
        assert rows["row"].to_list() == list(range(rows.height))


def test_the_spellings_of_layers() -> None:
    assert usual_layers(30) == [1, 14, 26]
    assert usual_layers(61) == [1, 29, 57]
    assert Layers.of([1, 29, 57]).vllm == [2, 30, 58]
    with pytest.raises(StatesError, match="--layers"):
        usual_layers(6)
