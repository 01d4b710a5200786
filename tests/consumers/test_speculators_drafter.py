"""speculators 0.9.0 converts and loads the drafters that we export, and computes what we compute.

It needs torch and speculators: `.ci/stages/speculators` makes an environment for it.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("speculators", reason="not installed: run .ci/stages/speculators")

import torch
from safetensors.torch import load_file
from speculators.convert.eagle.eagle3_converter import Eagle3Converter
from speculators.models.eagle3 import Eagle3DraftModel, Eagle3SpeculatorConfig

sys.path.insert(0, str(Path(__file__).parent.parent / "draft"))
from tiny_target import HIDDEN, VOCABULARY, mapping_folder, target_folder

from eagle3_data.draft import checkpoint
from eagle3_data.draft.batches import pack, predicted
from eagle3_data.draft.checkpoint import Checkpoint
from eagle3_data.draft.mapping_files import inherited
from eagle3_data.draft.model import Drafter
from eagle3_data.draft.target import open_target, shape_for

STEPS, LAYERS = 3, [1, 3, 4]
FLAGS: list[dict[str, bool]] = [
    {},
    {"norm_before_residual": True},
    {"norm_before_fc": True},
    {"fc_norm": True, "norm_output": True},
]
VERIFIER = {"embed_tokens.weight", "verifier_lm_head.weight", "verifier_norm.weight"}
"""Parts of its model that are the target's."""
ROPES = [
    {"rope_type": "default", "rope_theta": 1000.0},
    {
        "rope_type": "yarn",
        "rope_theta": 1000.0,
        "factor": 4.0,
        "original_max_position_embeddings": 32,
    },
]


def made(folder: Path, rope: dict[str, Any], flags: dict[str, bool]) -> Checkpoint:
    """A drafter with every weight at random, exported to `folder/draft`."""
    target = open_target(target_folder(folder / "target", rope_parameters=rope))
    mapping = inherited(mapping_folder(folder / "mapping"), VOCABULARY)
    torch.manual_seed(0)
    drafter = Drafter(shape_for(target, mapping.size, len(LAYERS), **flags), target.embedding)
    with torch.no_grad():
        for name, parameter in drafter.named_parameters():
            if "norm" in name:
                parameter.uniform_(0.5, 1.5)
    one = Checkpoint(drafter, mapping, facts={"layers_output_of": LAYERS})
    checkpoint.export(one, folder / "draft", target, dtype="fp32")
    return one


def theirs(folder: Path, flags: dict[str, bool]) -> Eagle3DraftModel:
    """The drafter as speculators converts and loads it."""
    ids = json.loads((folder / "draft" / "config.json").read_text())[checkpoint.IDS]
    Eagle3Converter().convert(
        folder / "draft",
        folder / "converted",
        str(folder / "target"),
        validate=False,
        eagle_aux_hidden_state_layer_ids=ids,
        **flags,
    )
    config = Eagle3SpeculatorConfig.from_pretrained(folder / "converted")
    config.transformer_layer_config._attn_implementation = "eager"
    return Eagle3DraftModel.from_pretrained(folder / "converted", config=config).float().eval()


def sample(length: int, seed: int) -> Any:
    random = torch.Generator().manual_seed(seed)
    return SimpleNamespace(
        sample_id=str(seed),
        input_ids=torch.randint(0, VOCABULARY, (length,), generator=random),
        loss_mask=torch.arange(length) >= 3,
        aux=torch.randn(length, len(LAYERS) * HIDDEN, generator=random),
        final=torch.randn(length, HIDDEN, generator=random),
    )


@pytest.mark.parametrize("rope", ROPES, ids=lambda rope: rope["rope_type"])
@pytest.mark.parametrize("flags", FLAGS, ids=lambda flags: "+".join(flags) or "plain")
def test_it_loads_our_drafter_and_its_forward_is_ours(flags, rope, tmp_path) -> None:
    ours = made(tmp_path, rope, flags)
    model = theirs(tmp_path, flags)
    written = {
        name.replace("midlayer.", "layers.0."): tensor
        for name, tensor in load_file(tmp_path / "draft" / "model.safetensors").items()
    }
    loaded = model.state_dict()
    assert loaded.keys() - written.keys() == VERIFIER
    dropped = {name for name, tensor in written.items() if not torch.equal(loaded[name], tensor)}
    # its converter only warns of norms before fc, and loses them: they are put in by hand
    assert dropped == {name for name in written if name.startswith(("input_norm", "fc_norm"))}
    given = {name: written[name] for name in dropped}
    given["embed_tokens.weight"] = ours.drafter.embedding  # the target's, which it takes over
    assert not model.load_state_dict(given, strict=False).unexpected_keys
    logits: list[torch.Tensor] = []
    model.lm_head.register_forward_hook(lambda _module, _in, out: logits.append(out[0]))
    samples = [sample(9, 1), sample(14, 2)]
    with torch.no_grad():
        # its rows are (token i + 1, state i), samples side by side, told apart by a number
        model(
            hidden_states=torch.cat([one.aux[:-1] for one in samples])[None],
            input_ids=torch.cat([one.input_ids[1:] for one in samples])[None],
            document_ids=torch.tensor([[0] * 8 + [1] * 13]),
            position_ids=torch.cat([torch.arange(1, 9), torch.arange(1, 14)])[None],
            ttt_steps=STEPS,
        )
        batch = pack(
            samples, [torch.ones(len(predicted(one)), dtype=torch.bool) for one in samples], STEPS
        )
        states = list(ours.drafter.unroll(batch.aux, batch.tokens, batch.positions, batch.bounds))
    assert len(logits) == STEPS
    their_start = 0
    for one, (start, _) in zip(samples, batch.bounds, strict=True):
        length = len(one.input_ids)
        for step in range(STEPS):
            rows = length - 2 - step  # rows whose token to predict is there
            mine = ours.drafter.lm_head(states[step][start : start + rows])
            other = logits[step][their_start : their_start + rows]
            torch.testing.assert_close(mine, other, rtol=1e-5, atol=1e-5)
        their_start += length - 1
