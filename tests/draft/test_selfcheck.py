"""The self-check names each planted fault, and says nothing on sound states."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

import torch
from tiny import LAYERS, exact, loaded, saved, spoken

from eagle3_data.draft.extract import Choice, extract, states
from eagle3_data.draft.forward import Forward, bits
from eagle3_data.draft.selfcheck import SelfCheck
from eagle3_data.draft.state_rules import STATE_RULES

CHOICE = Choice(layers=LAYERS, batch_tokens=200)


@pytest.fixture(scope="module", params=["llama", "deepseek"])
def forward(request, tmp_path_factory: pytest.TempPathFactory):
    return loaded(saved(tmp_path_factory.mktemp("target"), request.param))


@pytest.fixture(scope="module")
def shards(tmp_path_factory, forward):
    return spoken(tmp_path_factory.mktemp("shards"), forward, 9)


def planted(forward: Forward, spoil: Any) -> Forward:
    """The same target, its batches spoiled."""

    class Planted(Forward):
        def states(self, batch: Sequence[Any], output_of: Sequence[int]) -> list[Any]:
            return list(spoil(self, batch, output_of))

    return Planted(**{f.name: getattr(forward, f.name) for f in fields(Forward)})


def each(change: Any) -> Any:
    """A spoiler that changes the states [T, layers + 1, H] of each sample."""

    def spoil(forward: Forward, batch: Any, output_of: Any) -> Any:
        for ids in batch:
            aux, final = exact(forward, ids)
            yield bits(change(forward, ids, torch.cat([aux, final[:, None]], dim=1)))

    return spoil


def final(change: Any) -> Any:
    """A spoiler of the final state alone."""

    def spoil(forward: Forward, ids: Any, states: torch.Tensor) -> torch.Tensor:
        changed = change(forward, ids, states[:, -1])
        return torch.cat([states[:, :-1], changed[:, None]], dim=1)

    return each(spoil)


def packed(forward: Forward, batch: Any, output_of: Any) -> Any:
    """All samples of a batch as one text: they see what stands before them."""
    aux, state = exact(forward, np.concatenate(batch))
    wide, at = torch.cat([aux, state[:, None]], dim=1), 0
    for ids in batch:
        yield bits(wide[at : at + len(ids)])
        at += len(ids)


def padded_before(forward: Forward, batch: Any, output_of: Any) -> Any:
    """Padding in front of the short ones, and nothing that hides it."""
    most = max(len(ids) for ids in batch)
    for ids in batch:
        aux, state = exact(forward, np.concatenate([np.full(most - len(ids), 7, np.int32), ids]))
        yield bits(torch.cat([aux, state[:, None]], dim=1)[most - len(ids) :])


def layer(forward: Forward, ids: Any, k: int) -> torch.Tensor:
    return forward.alone(ids).outs[k % forward.target.layers]


def spoiled_number(value: float) -> Any:
    def spoil(_: Any, __: Any, states: torch.Tensor) -> torch.Tensor:
        states[3, 1, 5] = value
        return states

    return each(spoil)


def other_layer(by: int) -> Any:
    def spoil(forward: Forward, ids: Any, states: torch.Tensor) -> torch.Tensor:
        states[:, 1] = layer(forward, ids, LAYERS[1] + by)
        return states

    return each(spoil)


def constant(_: Any, __: Any, states: torch.Tensor) -> torch.Tensor:
    states[:, 2] = states[:1, 2]
    return states


FAULTS = {
    "final shifted down": (final(lambda f, i, s: s.roll(1, 0)), "HID004"),
    "final shifted up": (final(lambda f, i, s: s.roll(-1, 0)), "HID004"),
    "all shifted": (each(lambda f, i, s: s.roll(1, 0)), "HID004"),
    "norm missing": (final(lambda f, i, s: layer(f, i, -1)), "HID005"),
    "norm twice": (final(lambda f, i, s: f.normed(s)), "HID006"),
    "final one early": (final(lambda f, i, s: f.normed(layer(f, i, -2))), "HID007"),
    "final two early": (final(lambda f, i, s: f.normed(layer(f, i, -3))), "HID007"),
    "final early, no norm": (final(lambda f, i, s: layer(f, i, -2)), "HID007"),
    "layer one low": (other_layer(-1), "HID008"),
    "layer one high": (other_layer(1), "HID008"),
    "embedding": (
        each(lambda f, i, s: torch.cat([f.alone(i).embedding[:, None], s[:, 1:]], dim=1)),
        "HID008",
    ),
    "packed without borders": (packed, "HID009"),
    "padding seen": (padded_before, "HID009"),
    "not a number": (spoiled_number(float("nan")), "HID002"),
    "infinite": (spoiled_number(float("-inf")), "HID002"),
    "never filled": (each(constant), "HID003"),
    "a row too few": (each(lambda f, i, s: s[1:]), "HID001"),
}


def codes(shards: Any, forward: Forward, out: Path, **more: Any) -> tuple[list[str], str]:
    done = extract(shards, forward, out, CHOICE, **more)
    told = "; ".join(f"{finding.at}: {finding.detail}" for finding in done.findings)
    return sorted({finding.code for finding in done.findings}), told


@pytest.mark.parametrize("name", FAULTS)
def test_a_planted_fault_is_named_and_nothing_is_written(tmp_path, shards, forward, name) -> None:
    spoil, code = FAULTS[name]
    found, told = codes(shards, planted(forward, spoil), tmp_path)
    assert found == [code], told
    assert not list(tmp_path.glob("*.safetensors"))


def test_the_evidence_says_which_layer_it_is(tmp_path, shards, forward) -> None:
    _, told = codes(shards, planted(forward, other_layer(1)), tmp_path)
    assert "aux, output of layer 2: " in told
    assert "when it is the output of layer 3" in told


def test_sound_states_give_no_finding(tmp_path, shards, forward) -> None:
    assert codes(shards, forward, tmp_path) == ([], "")
    exactly = planted(forward, each(lambda f, i, s: s))
    assert codes(shards, exactly, tmp_path / "exact") == ([], "")


def test_tokens_of_another_model_are_told_and_kept(tmp_path, shards, forward) -> None:
    class Other(Forward):
        def best(self, states: torch.Tensor) -> torch.Tensor:
            return (super().best(states) + 1) % 100

    other = Other(**{f.name: getattr(forward, f.name) for f in fields(Forward)})
    done = extract(shards, other, tmp_path, CHOICE)
    assert [finding.code for finding in done.findings] == ["HID010"]
    assert done.sound and done.manifest is not None


@pytest.mark.parametrize(
    "name", ["final shifted down", "final shifted up", "norm missing", "norm twice"]
)
def test_the_head_alone_names_what_it_can(shards, forward, name) -> None:
    class Agreeing(SelfCheck):  # a second forward with the same fault
        def _alone(self, *_: Any) -> Any:
            return iter(())

    spoil, code = FAULTS[name]
    samples = list(shards)
    check = Agreeing(forward, LAYERS)
    made = states(planted(forward, spoil), samples, CHOICE, LAYERS)
    check.file(made, [sample.input_ids for sample in samples], 0, Path("here"))
    assert [finding.code for finding in check.findings] == [code]


def test_states_of_other_ids_are_found(shards, forward) -> None:
    samples = list(shards)
    made = states(forward, samples, CHOICE, LAYERS)
    check = SelfCheck(forward, LAYERS)
    check.file(made, [sample.input_ids[::-1] for sample in samples], 0, Path("here"))
    assert [finding.code for finding in check.findings] == ["HID001"]


def test_every_rule_has_a_planted_fault() -> None:
    assert {code for _, code in FAULTS.values()} | {"HID010"} == set(STATE_RULES)
