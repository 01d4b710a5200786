"""The target's states out of a serving vLLM: its own extraction, asked for over HTTP.

What enters: the address of a vLLM that extracts hidden states, and samples. What leaves: the same
states that `forward` gives. It promises that the ids which the engine read are compared with those
that were sent, that the last norm (which vLLM leaves out) is applied once, and that the engine's
files are removed when they were read. The engine must write where this machine can read.
"""

from __future__ import annotations

import contextlib
import fcntl
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import numpy as np
import orjson
import torch
from torch import Tensor

from eagle3_data.draft import config as configs
from eagle3_data.draft.forward import Alone, Forward, bits
from eagle3_data.draft.states_manifest import StatesError, Target
from eagle3_data.draft.target import open_target
from eagle3_data.draft.target_identity import tokenizer_digest, weights_digest

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from eagle3_data.draft.target import Target as Tensors

AT_A_TIME = 8
"""Requests on their way."""
WAIT_S = 600.0
"""Longest wait for one answer."""


@dataclass(slots=True, eq=False)
class Engine:
    """A vLLM that extracts. `checker`: the target in transformers, for the self-check; without it
    `tensors` (last norm and head) serve, and a sample alone is asked of the engine once more.
    """

    base_url: str
    model: str
    version: str
    target: Target
    checker: Forward | None
    tensors: Tensors | None
    post: bool = True
    _pool: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(AT_A_TIME))

    @property
    def made_by(self) -> dict[str, Any]:
        """What decides the bytes."""
        return {"backend": "vllm", "vllm": self.version, "light": self.checker is None}

    def states(
        self, batch: Sequence[NDArray[np.int32]], output_of: Sequence[int]
    ) -> list[NDArray[np.uint16]]:
        """Of each sample uint16 [T, layers + 1, H] (bf16 bits), the final state last."""
        return [bits(wide) for wide in self._pool.map(lambda ids: self._one(ids, output_of), batch)]

    def alone(self, ids: NDArray[np.int32], output_of: Sequence[int] = ()) -> Alone:
        """One sample by itself, through transformers when that is at hand."""
        if self.checker is not None:
            return self.checker.alone(ids)
        wide = self._one(ids, output_of)
        return Alone(None, {k: wide[:, i] for i, k in enumerate(output_of)}, wide[:, -1])

    def best(self, final: Tensor) -> Tensor:
        """The likeliest next id of each final state [rows, H], int64 [rows]."""
        if self.checker is not None:
            return self.checker.best(final)
        assert self.tensors is not None
        head = self.tensors.head
        return (final.to(head.dtype) @ head.T).argmax(-1)

    def normed(self, states: Tensor) -> Tensor:
        """The last norm applied (once more)."""
        if self.checker is not None:
            return self.checker.normed(states)
        assert self.tensors is not None
        return self.tensors.normed(states, "pre")

    def _one(self, ids: NDArray[np.int32], output_of: Sequence[int]) -> Tensor:
        """bf16 [T, layers + 1, H]: what the engine wrote, in the order that was asked for."""
        body = {
            "model": self.model,
            "prompt": np.asarray(ids).tolist(),
            "max_tokens": 1,
            "temperature": 0,
            "add_special_tokens": False,
        }
        answer = _asked(f"{self.base_url}/completions", body)
        told = answer.get("kv_transfer_params") or {}
        if not told.get("hidden_states_path"):
            raise StatesError(
                f"{self.base_url} answers without hidden states: start vLLM with the speculative"
                ' method "extract_hidden_states" and a connector (see docs/extract.md)'
            )
        path = Path(told["hidden_states_path"])
        read, found = _written(path)
        if read.tolist() != body["prompt"]:
            raise StatesError(
                f"{self.base_url} read {len(read)} ids that are not the {len(ids)} that were sent"
                " (HID001): does it add special tokens?"
            )
        # only now: a path that the server names may be any file, and this one holds what we asked
        for one in (path, _lock(path)):
            with contextlib.suppress(OSError):
                one.unlink()
        wanted = [len(ids), len(output_of) + 1, self.target.hidden_size]
        if list(found.shape) != wanted:
            raise StatesError(
                f"{self.base_url} gives states of {list(found.shape)}, wanted {wanted}: start it"
                " with eagle_aux_hidden_state_layer_ids"
                f" {[*(k + 1 for k in sorted(output_of)), self.target.layers]}"
            )
        order = sorted(output_of)  # vLLM sorts what it is asked for
        states = [found[:, order.index(k)] for k in output_of]
        final = self.normed(found[:, -1]) if self.post else found[:, -1]
        return torch.stack([*(s.to(final.dtype) for s in states), final.cpu()], dim=1)


def connect(
    base_url: str, model: str, *, checker: Forward | None = None, wait: float = WAIT_S
) -> Engine:
    """A vLLM at `base_url` that serves the target in the folder `model`. Raises StatesError."""
    url = base_url.rstrip("/")
    url = url if url.endswith("/v1") else f"{url}/v1"
    served = [str(entry["id"]) for entry in _asked(f"{url}/models").get("data", [])]
    if not served:
        raise StatesError(f"{url} serves no model: is it a vLLM that is ready?")
    version = str(_asked(f"{url.removesuffix('/v1')}/version").get("version", "unknown"))
    if checker is not None:
        return Engine(url, served[0], version, checker.target, checker, None, post=checker.post)
    tensors = open_target(model)
    config = tensors.config
    return Engine(url, served[0], version, _described(model, config), None, tensors)


def _described(model: str, config: configs.Config) -> Target:
    """The target as its config.json tells it."""
    values = config.values
    quantisation = values.get("quantization_config")
    return Target(
        id=model,
        revision=None,
        weights=weights_digest(Path(model)),
        architecture=str((config.raw.get("architectures") or ["unknown"])[0]),
        dtype=str(values.get("dtype") or values.get("torch_dtype") or "bfloat16"),
        quantisation=None if quantisation is None else orjson.dumps(quantisation).decode(),
        hidden_size=config.needed("hidden_size"),
        layers=config.needed("num_hidden_layers"),
        vocab_size=config.needed("vocab_size"),
        tokenizer_hash=tokenizer_digest(Path(model)),
    )


def _asked(url: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
    """The answer of the engine as JSON. Raises StatesError with what it said."""
    if not url.startswith(("http://", "https://")):
        raise StatesError(f"{url} is no address: write http://127.0.0.1:8000/v1")
    data = None if body is None else orjson.dumps(body)
    request = Request(url, data=data, headers={"Content-Type": "application/json"})
    try:
        with urlopen(request, timeout=WAIT_S) as answer:
            found = orjson.loads(answer.read())
    except HTTPError as error:
        said = error.read()[:300].decode(errors="replace")
        raise StatesError(f"{url} answers {error.code}: {said}") from None
    except (OSError, orjson.JSONDecodeError) as error:
        raise StatesError(f"{url} can not be asked ({error}): is the engine up?") from None
    if not isinstance(found, dict):
        raise StatesError(f"{url} answers with no JSON object: is it a vLLM?")
    return found


def _written(path: Path) -> tuple[Tensor, Tensor]:
    """Ids and states of a file of the connector. Raises StatesError.

    A lock beside it is held by the engine until the file is whole.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    lock = _lock(path)
    until = time.monotonic() + WAIT_S
    try:
        while not lock.exists() and not path.exists() and time.monotonic() < until:
            time.sleep(0.01)
        if lock.exists():
            with lock.open() as held:
                fcntl.flock(held, fcntl.LOCK_SH)
        found = load_file(path)
        return found["token_ids"], found["hidden_states"]
    except (SafetensorError, OSError, KeyError) as error:
        raise StatesError(
            f"{path}, where the engine says it wrote states, can not be read ({error}): engine and"
            " this command must share that folder"
        ) from None


def _lock(path: Path) -> Path:
    return path.with_name(path.name + ".lock")
