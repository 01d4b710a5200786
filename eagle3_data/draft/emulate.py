"""Faults of engines and checkpoints, emulated offline: what would a walk give if …?

What enters: a drafter as it is written, the layers whose outputs it reads, its config and that of
its target. What leaves: `Emulation`s, each a drafter and a choice of states. It promises that each
changes one thing, shares the weights with the original, and carries the facts of the config that
speak for it: two faults can look alike in numbers, and then the facts decide.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from eagle3_data.draft import tensors as files
from eagle3_data.draft.checkpoint import FLAGS, Checkpoint, load
from eagle3_data.draft.drafter_files import Files, open_drafter
from eagle3_data.draft.engines import Reading, readings, shown
from eagle3_data.draft.mapping import Mapping, VocabError
from eagle3_data.draft.mapping_check import holds_ids
from eagle3_data.draft.mapping_files import of_tensors
from eagle3_data.draft.model import Drafter, Shape
from eagle3_data.draft.target import Target, rope_in

WRITTEN = "as written"
USUAL_THETA = 10000.0
"""What engines take where a config names no rope theta."""


@dataclass(frozen=True, slots=True, eq=False)
class Emulation:
    """`name`: the fault; `undone`: what is wrong with the checkpoint when this walks better than
    the checkpoint as written, "" where that can not be. `made`: the drafter; `layers`: outputs it
    reads, -1 is the embedding; `normed`: the state of the last layer is taken behind the last norm.
    `facts`: what in the config speaks for it; `sure`: they say that the engine does just this.
    """

    name: str
    made: Checkpoint
    layers: list[int]
    undone: str = ""
    normed: bool = False
    facts: tuple[str, ...] = ()
    sure: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class Reference:
    """A drafter to walk. `layers`: outputs that it was trained on, as far as anything tells.
    `guessed`: why its mapping had to be guessed, "" when it is sound. `reading`: what the engine
    makes of its layer ids. `facts`: what the config says, for the report.
    """

    files: Files
    made: Checkpoint
    layers: list[int]
    reading: Reading
    guessed: str
    facts: dict[str, Any]


def reference(folder: Path, target: Target, engine: str) -> Reference:
    """Open a drafter even when its mapping is broken. `engine`: as `engines.ALL` names it. Raises
    CheckpointError, ConfigError, TensorError, VocabError.
    """
    found = open_drafter(folder)
    count = target.config.needed("num_hidden_layers")
    guessed = ""
    try:
        made = load(folder, target)
    except VocabError as error:
        guessed = str(error)
        mapping = _guess(folder, target.vocab_size)
        if mapping is None:
            raise
        made = load(folder, target, mapping)
    reading = readings(found, count, str(target.config.values.get("model_type", "")))[engine]
    trained = made.facts.get("layers_output_of")
    layers = trained or reading.outputs or [1, count // 2 - 1, count - 4]
    values = found.config.values
    facts = {
        "layers trained on": trained,
        "layer ids at the top": found.ids(nested=False),
        "layer ids in eagle_config": found.ids(nested=True),
        f"outputs that {engine} reads": reading.outputs,
        "draft_vocab_size": found.draft_vocab,
        "d2t": list(found.plain["d2t"].shape) if "d2t" in found.plain else None,
        "rope_theta": rope_in(values)["rope_theta"],
        "rope_theta of the target": rope_in(target.config.values)["rope_theta"],
        **{name: getattr(made.drafter.shape, name) for name in FLAGS},
    }
    return Reference(found, made, list(layers), reading, guessed, facts)


def emulations(of: Reference, target: Target) -> list[Emulation]:
    """The checkpoint as written first, then every known fault that it can have."""
    made, layers = of.made, of.layers
    count = target.config.needed("num_hidden_layers")
    return [
        Emulation(WRITTEN, made, layers),
        *_shifted(of, count),
        *_last_norm(made, layers, count),
        *_mapped(of),
        *_flagged(of),
        *_turned(of, target),
    ]


def _shifted(of: Reference, count: int) -> list[Emulation]:
    """Neighbouring layers, and those that the engine takes where it finds no ids."""
    found = []
    reads = of.reading.outputs
    for name, other, by in (
        ("layer ids one too low", "layer ids one too high", -1),
        ("layer ids one too high", "layer ids one too low", 1),
    ):
        layers = [k + by for k in of.layers]
        if min(layers) < -1 or max(layers) >= count:
            continue
        facts = []
        if layers in (reads, of.reading.also):
            facts.append(
                f"the engine reads outputs of {shown(layers)} ({of.reading.why}),"
                f" trained on {shown(of.layers)}"
            )
        sure = layers == reads
        found.append(Emulation(name, of.made, layers, other, facts=tuple(facts), sure=sure))
    usual = [1, count // 2 - 1, count - 4]
    known = [of.layers, *(one.layers for one in found)]
    if len(usual) == len(of.layers) and usual not in known and usual[0] < usual[1] < usual[2]:
        facts = []
        if reads == usual:
            facts.append(f"the engine finds no ids that it reads: {of.reading.why}")
        name = "layer ids not read: the engine's default layers"
        undone = "layer ids that are not those of the training"
        found.append(
            Emulation(name, of.made, usual, undone, facts=tuple(facts), sure=reads == usual)
        )
    return found


def _last_norm(made: Checkpoint, layers: list[int], count: int) -> list[Emulation]:
    if count - 1 not in layers:
        return []
    name = "the last norm applied to the final layer's state"
    return [Emulation(name, made, layers, "trained behind the last norm", normed=True)]


def _mapped(of: Reference) -> list[Emulation]:
    mapping = of.made.mapping
    plain = np.arange(mapping.size, dtype=np.int64)
    if not mapping.d2t.any():
        return []
    facts = []
    if "d2t" not in of.files.plain:
        facts.append(
            f"the checkpoint has no d2t, and a head of {mapping.size:,} rows for"
            f" {mapping.vocab_size:,} tokens"
        )
    made = replace(of.made, mapping=Mapping(plain, mapping.vocab_size))
    return [Emulation("d2t missing", made, of.layers, facts=tuple(facts))]


def _flagged(of: Reference) -> list[Emulation]:
    """Norm flags that an engine does not read, or reads where they are not."""
    shape = of.made.drafter.shape
    found = []
    for flag in FLAGS:
        on = getattr(shape, flag)
        needs_tensors = flag in ("norm_before_fc", "fc_norm")
        if needs_tensors and not on:
            continue
        name = f"{flag} {'dropped' if needs_tensors else 'flipped'}"
        other: dict[str, Any] = {flag: not on}
        changed = replace(shape, **other)
        found.append(
            Emulation(
                name,
                _with(of.made, changed),
                of.layers,
                f"{flag} is {str(on).lower()} in config.json, trained with {str(not on).lower()}",
                facts=_said_twice(of.files, flag),
            )
        )
    return found


def _said_twice(found: Files, flag: str) -> tuple[str, ...]:
    """Both places of a flag, where they differ or only one has it."""
    top, nested = found.config.raw.get(flag), found.nested.get(flag)
    if flag in found.nested and bool(top) != bool(nested):
        return (f"{flag} is {top} at the top of config.json and {nested} in eagle_config",)
    return ()


def _turned(of: Reference, target: Target) -> list[Emulation]:
    """Other rope thetas that stand nearby, and the scaling left out."""
    shape = of.made.drafter.shape
    own, theirs = float(shape.rope["rope_theta"]), rope_in(target.config.values)
    raw = of.files.config.values
    near = {USUAL_THETA: "", float(theirs["rope_theta"]): "the target's"}
    for place in (raw, raw.get("rope_parameters"), raw.get("rope_scaling")):
        if isinstance(place, dict) and isinstance(place.get("rope_theta"), int | float):
            near.setdefault(float(place["rope_theta"]), "at another place of config.json")
    found = []
    for theta, whose in near.items():
        if theta == own:
            continue
        rope = {**shape.rope, "rope_theta": theta}
        facts = (f"config.json has rope theta {own:g}, {theta:g} is {whose}",) if whose else ()
        found.append(
            Emulation(
                f"rope theta {theta:g} in place of {own:g}",
                _with(of.made, replace(shape, rope=rope)),
                of.layers,
                f"rope theta {own:g} in config.json, trained with {theta:g}",
                facts=facts,
            )
        )
    if shape.rope["rope_type"] != "default":
        rope = {"rope_type": "default", "rope_theta": own}
        name = f"rope scaling ({shape.rope['rope_type']}) dropped"
        found.append(
            Emulation(name, _with(of.made, replace(shape, rope=rope)), of.layers,
                      "rope scaling in config.json, trained without")
        )  # fmt: skip
    return found


def _with(made: Checkpoint, shape: Shape) -> Checkpoint:
    """The drafter in another arithmetic, on the same weights."""
    drafter = Drafter(shape, made.drafter.embedding)
    wanted = drafter.state_dict()
    weights = {name: w for name, w in made.drafter.state_dict().items() if name in wanted}
    drafter.load_state_dict(weights, assign=True)
    return replace(made, drafter=drafter)


def _guess(folder: Path, vocab_size: int) -> Mapping | None:
    """The mapping that a broken one was made from: ids where offsets belong, `t2d` alone, or none
    at all, which engines read as the identity.
    """
    raw = of_tensors(folder, files.tensors(folder))
    size = raw.head or 0
    targets: Any = np.arange(size, dtype=np.int64)
    if raw.d2t is not None and raw.d2t.ndim == 1:
        d2t = raw.d2t.astype(np.int64)
        mask = raw.t2d.astype(np.bool_) if raw.t2d is not None and raw.t2d.ndim == 1 else None
        targets = d2t if holds_ids(d2t, vocab_size, mask) else d2t + targets[: len(d2t)]
    elif raw.t2d is not None and int(raw.t2d.astype(np.bool_).sum()) == size:
        targets = np.flatnonzero(raw.t2d)
    try:
        return Mapping(targets, vocab_size) if len(targets) == size else None
    except VocabError:
        return None


def union(emulated: Sequence[Emulation]) -> list[int]:
    """Every layer whose output one of them reads; the embedding is not among them."""
    return sorted({k for one in emulated for k in one.layers if k >= 0})
