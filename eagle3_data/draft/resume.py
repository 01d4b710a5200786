"""Where a run stands, on disk: weights, optimizer, random state, position.

What enters: a trainer between two steps. What leaves: a folder `step-00000120`. It promises that a
folder of that name is whole (it is written beside and renamed), that only safetensors and JSON are
written and read, and that a run of other settings or data is not taken for this one.
"""

from __future__ import annotations

import os
import shutil
from hashlib import blake2b
from pathlib import Path
from typing import Any

import orjson
import torch
from torch import distributed

from eagle3_data.draft.train import Trainer
from eagle3_data.shards.manifest import canonical, differing

WEIGHTS, OPTIMIZER, STATE = "weights.safetensors", "optimizer.safetensors", "state.json"


class ResumeError(ValueError):
    """A run that can not be resumed; the message names the next step."""


def save(trainer: Trainer, folder: Path, identity: dict[str, Any]) -> None:
    """Write the state, then remove those of earlier steps."""
    from safetensors.torch import save_file

    folder.mkdir(parents=True, exist_ok=True)
    part, final = folder / ".step.part", folder / f"step-{trainer.done:08d}"
    if (final / STATE).is_file():  # a run that was resumed from it, and stopped before a step
        return
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir()
    weights = {name: tensor.contiguous() for name, tensor in trainer.drafter.state_dict().items()}
    save_file(weights, part / WEIGHTS)
    moments = {
        f"{number}.{key}": value.contiguous()
        for number, entry in trainer.optimizer.state_dict()["state"].items()
        for key, value in entry.items()
    }
    save_file(moments | {"random": torch.get_rng_state()}, part / OPTIMIZER)
    body = {"tool": "eagle3-data", "kind": "training", "step": trainer.done, "identity": identity}
    (part / STATE).write_bytes(orjson.dumps(body, option=orjson.OPT_INDENT_2) + b"\n")
    for path in (*part.iterdir(), part):
        descriptor = os.open(path, os.O_RDONLY)
        os.fsync(descriptor)
        os.close(descriptor)
    part.rename(final)
    for earlier in folder.glob("step-*"):
        if earlier != final:
            shutil.rmtree(earlier)


def latest(folder: Path) -> Path | None:
    """The newest state, None when there is none."""
    found = sorted(path for path in folder.glob("step-*") if (path / STATE).is_file())
    return found[-1] if found else None


def restore(trainer: Trainer, path: Path, identity: dict[str, Any]) -> None:
    """Bring a fresh trainer to where the state was written. Raises ResumeError."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        body = orjson.loads((path / STATE).read_bytes())
        other = differing(body["identity"], orjson.loads(canonical(identity)))
        if other:
            raise ResumeError(
                f"{path} is of another run ({'; '.join(other[:4])}): give the same options, or pass"
                " --overwrite to start again"
            )
        trainer.drafter.load_state_dict(load_file(path / WEIGHTS))
        moments = load_file(path / OPTIMIZER)
        torch.set_rng_state(moments.pop("random"))
        state: dict[int, dict[str, torch.Tensor]] = {}
        for name, value in moments.items():
            number, key = name.split(".")
            state.setdefault(int(number), {})[key] = value
        groups = trainer.optimizer.state_dict()["param_groups"]
        trainer.optimizer.load_state_dict({"state": state, "param_groups": groups})
        trainer.done = int(body["step"])
    except (OSError, KeyError, TypeError, RuntimeError, orjson.JSONDecodeError) as error:
        raise _damaged(path, error) from None
    except SafetensorError as error:
        raise _damaged(path, error) from None


def _damaged(path: Path, error: Exception) -> ResumeError:
    reason = " ".join(str(error).split())[:120]
    return ResumeError(f"{path} is damaged ({reason}): pass --overwrite to start again")


def agree(trainer: Trainer, identity: dict[str, Any], *, complete: bool) -> None:
    """Refuse processes that do not stand at the same place of the same run: on several nodes a
    folder or a start that is not shared would train a mixture in silence. Raises ResumeError on all
    of them.
    """
    if trainer.world == 1:
        return
    weights = blake2b(digest_size=7)
    for tensor in trainer.drafter.state_dict().values():
        weights.update(tensor.detach().cpu().contiguous().view(torch.uint8).numpy())
    places = {
        "the steps that were saved": trainer.done,
        "whether the run is complete": int(complete),
        "data and settings": _number(blake2b(canonical(identity), digest_size=7)),
        "the weights to start from": _number(weights),
    }
    mine = torch.tensor(list(places.values()), dtype=torch.int64, device=trainer.device)
    least, most = mine.clone(), mine.clone()
    distributed.all_reduce(least, distributed.ReduceOp.MIN)
    distributed.all_reduce(most, distributed.ReduceOp.MAX)
    apart = [name for name, same in zip(places, (least == most).tolist(), strict=True) if not same]
    if apart:
        raise ResumeError(
            f"the processes differ in {', '.join(apart)}: --out has to be one folder that all nodes"
            " share, and target, states, --init and --mapping the same on each of them"
        )


def _number(digest: blake2b) -> int:
    return int.from_bytes(digest.digest(), "big")
