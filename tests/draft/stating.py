"""What the tests of states share: shards of a tiny vocabulary, and states made up for them."""

from __future__ import annotations

import random
import sys
from pathlib import Path
from typing import Any

import numpy as np

from eagle3_data.draft.packing import Packing
from eagle3_data.draft.states_manifest import Identity, Layers, StatesManifest, Target
from eagle3_data.draft.states_plan import Plan, plan
from eagle3_data.draft.states_writer import Stated, StatesWriter
from eagle3_data.shards.reader import Shards, open_shards

sys.path.insert(0, str(Path(__file__).parent.parent / "shards"))
from making import FACTS, row, table, write

HIDDEN, LAYERS = 16, [1, 3]
FILE_BYTES = 12_000


def made_shards(directory: Path, count: int = 40, seed: int = 0, **facts: Any) -> Shards:
    """A folder of `count` sound samples of many lengths, every fifth in the split val."""
    rng = random.Random(seed)
    rows = table(
        row(
            i,
            prompt=rng.randint(1, 9),
            sampled=rng.randint(2, 40),
            split="val" if i % 5 == 0 else "train",
        )
        for i in range(count)
    )
    write(directory, rows, facts=FACTS.model_copy(update=facts))
    return open_shards(directory)


def identity(shards: Shards, **changed: Any) -> Identity:
    """The identity of a run over `shards`."""
    found: dict[str, Any] = {
        "facts": shards.facts,
        "shards": shards.manifest.checksum,
        "chosen": {"split": None, "limit": None},
        "target": Target(
            id="tiny",
            revision=None,
            weights="aa",
            architecture="LlamaForCausalLM",
            dtype="bfloat16",
            quantisation=None,
            hidden_size=HIDDEN,
            layers=8,
            vocab_size=100,
            tokenizer_hash="bb",
        ),
        "layers": Layers.of(LAYERS),
        "final_norm": "post",
        "packing": "auto",
        "file_bytes": FILE_BYTES,
        "made_by": {"backend": "test"},
    }
    return Identity(**(found | changed))


def planned(shards: Shards) -> Plan:
    """Its plan."""
    return plan(shards, token_bytes=(len(LAYERS) + 1) * HIDDEN * 2, file_bytes=FILE_BYTES)


def states_of(sample: Any) -> Stated:
    """States that depend on the sample's id only: normal numbers as bf16."""
    rng = np.random.default_rng(int(sample.sample_id[:8], 16))
    count = len(sample.input_ids)
    wide = rng.standard_normal((count, len(LAYERS) + 1, HIDDEN), dtype=np.float32)
    bits = (wide.view(np.uint32) >> 16).astype(np.uint16)
    return Stated(sample.sample_id, sample.input_ids, sample.loss_mask, bits[:, :-1], bits[:, -1])


def written(
    directory: Path, shards: Shards, packing: Packing | None = None, **more: Any
) -> StatesManifest:
    """A finished folder of made-up states."""
    stop_after = more.pop("stop_after", None)
    overwrite = more.pop("overwrite", False)
    source = iter(shards)
    cut = planned(shards)
    with StatesWriter(
        directory, identity(shards, **more), cut, packing=packing, overwrite=overwrite
    ) as writer:
        for number, rows in enumerate(cut.cuts()):
            samples = [states_of(next(source)) for _ in range(rows.height)]
            if number == stop_after:
                raise KeyboardInterrupt
            if number >= writer.finished:
                writer.write(samples, {"rows": rows.height})
        return writer.finish({"samples": cut.index.height})


def contents(directory: Path) -> dict[str, bytes]:
    """Name → bytes of everything in a directory."""
    return {path.name: path.read_bytes() for path in sorted(directory.iterdir())}
