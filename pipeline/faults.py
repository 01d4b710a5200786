"""Faults to plant: copies of a sound drafter, a capture without markers, final states one row off.

What enters: what the sound run made. What leaves: the same with one fault each. Nothing here mends
or judges: that is the work of `check`, `lint`, `extract` and `acceptance`.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file

from eagle3_data.draft.acceptance import Verdict
from eagle3_data.draft.forward import Forward

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from tokenizers import Tokenizer

Config = dict[str, Any]
Tensors = dict[str, torch.Tensor]
IDS = "eagle_aux_hidden_state_layer_ids"
OTHER_THETA = 10_000.0
"""In place of SmolLM2's 100,000: what engines take where a config names none."""


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault of a drafter's files. `verdict` and `cause`: what `acceptance` has to say of it (the
    beginning of the cause).
    """

    told: str
    plant: Callable[[Config, Tensors], None]
    cause: str
    verdict: Verdict = Verdict.DIFFER

    def named(self, said: Mapping[str, Any]) -> bool:
        """Whether a verdict names it."""
        return said["verdict"] == self.verdict and (said["cause"] or "").startswith(self.cause)


def _layers(by: int) -> Callable[[Config, Tensors], None]:
    def plant(config: Config, _: Tensors) -> None:
        for place in (config, config["eagle_config"]):
            place[IDS] = [k + by for k in place[IDS]]

    return plant


def _theta(config: Config, _: Tensors) -> None:
    config["rope_theta"] = config["rope_parameters"]["rope_theta"] = OTHER_THETA


def _residual(config: Config, _: Tensors) -> None:
    config["norm_before_residual"] = not config["norm_before_residual"]


def _no_d2t(_: Config, tensors: Tensors) -> None:
    del tensors["d2t"]


def _absolute(_: Config, tensors: Tensors) -> None:
    tensors["d2t"] = tensors["d2t"] + torch.arange(len(tensors["d2t"]))


FAULTS = {
    "ids-too-low": Fault("layer ids one too low", _layers(-1), "layer ids one too low"),
    "ids-too-high": Fault("layer ids one too high", _layers(1), "layer ids one too high"),
    "no-d2t": Fault("`d2t` missing", _no_d2t, "d2t missing"),
    "theta": Fault(
        "rope theta 10,000 for 100,000",
        _theta,
        "rope theta 10000 in config.json, trained with 100000",
    ),
    "residual": Fault(
        "`norm_before_residual` flipped",
        _residual,
        "norm_before_residual is true in config.json, trained with false",
    ),
    "absolute": Fault("`d2t` written as ids", _absolute, "VOC002", Verdict.DEAD),
}


def planted(fault: Fault, drafter: Path, out: Path) -> Path:
    """A copy of `drafter` with the fault."""
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    config = json.loads((drafter / "config.json").read_text(encoding="utf-8"))
    tensors = load_file(drafter / "model.safetensors")
    fault.plant(config, tensors)
    (out / "config.json").write_text(json.dumps(config, indent=2), encoding="utf-8")
    save_file({k: v.contiguous() for k, v in tensors.items()}, out / "model.safetensors")
    return out


class Shifted(Forward):
    """A target whose final state stands one row too late."""

    def states(
        self, batch: Sequence[NDArray[np.int32]], output_of: Sequence[int]
    ) -> list[NDArray[np.uint16]]:
        found = Forward.states(self, batch, output_of)
        for wide in found:
            wide[1:, -1] = wide[:-1, -1].copy()
        return found


def shifted(loaded: Forward) -> Shifted:
    """`loaded` with that fault."""
    return Shifted(**{one.name: getattr(loaded, one.name) for one in fields(loaded)})


def without_markers(line: str, tokenizer: Tokenizer) -> tuple[str, str]:
    """A line of a capture with the ids of a script that joins the texts and leaves the markers out,
    and the row of ids and mask that is trained on then.
    """
    row = json.loads(line)
    choice = row["response"]["choices"][0]
    asked = "".join(f"{turn['content']}\n" for turn in row["request"]["messages"])
    prompt, answer = (
        tokenizer.encode(text, add_special_tokens=False).ids
        for text in (asked, choice["message"]["content"])
    )
    row["response"]["prompt_token_ids"], choice["token_ids"] = prompt, answer
    masked = {
        "input_ids": [*prompt, *answer],
        "loss_mask": [*(0 for _ in prompt), *(1 for _ in answer)],
    }
    return json.dumps(row, ensure_ascii=False), json.dumps(masked)
