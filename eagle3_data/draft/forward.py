"""The target's forward: ids in, the states of some layers and the final one out.

What enters: a causal language model that transformers loads, and samples. What leaves: bf16 states
a sample, without padding. It promises to load safetensors only and no code of the folder unless
told, to find layers and last norm by measuring (a probe of a few ids), and that samples of a batch
never see each other: rows are padded at their end, and a causal model looks back only.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from eagle3_data.draft.states_manifest import StatesError, Target
from eagle3_data.draft.target_identity import tokenizer_digest, weights_digest

if TYPE_CHECKING:
    from numpy.typing import NDArray

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
PROBE = 8
"""Ids of the probe."""


@dataclass(frozen=True, slots=True, eq=False)
class Alone:
    """States of one sample [T, H] each. `embedding`: what enters the first layer, None when it is
    not known; `outs`: layer → what it puts out (the last one without the norm), as far as known;
    `final`: with the last norm where the target has one.
    """

    embedding: Tensor | None
    outs: dict[int, Tensor]
    final: Tensor


class Source(Protocol):
    """What gives states: a loaded target, or an engine that serves it. `post`: the final state has
    the last norm. `made_by`: what decides the bytes besides the target.
    """

    @property
    def target(self) -> Target: ...

    @property
    def post(self) -> bool: ...

    @property
    def made_by(self) -> dict[str, Any]: ...

    def states(
        self, batch: Sequence[NDArray[np.int32]], output_of: Sequence[int]
    ) -> list[NDArray[np.uint16]]: ...

    def alone(self, ids: NDArray[np.int32], output_of: Sequence[int] = ()) -> Alone: ...

    def best(self, final: Tensor) -> Tensor: ...

    def normed(self, states: Tensor) -> Tensor: ...


@dataclass(slots=True, eq=False)
class Forward:
    """A loaded target. `norm`: its last norm. `post`: whether its final state has that norm."""

    target: Target
    base: nn.Module
    layers: nn.ModuleList
    norm: nn.Module | None
    head: nn.Module
    post: bool = True
    _seen: dict[int, Tensor] = field(default_factory=dict)

    @property
    def made_by(self) -> dict[str, Any]:
        """What decides the bytes."""
        import transformers

        return {
            "backend": "transformers",
            "transformers": transformers.__version__,
            "torch": torch.__version__,
        }

    @property
    def device(self) -> torch.device:
        """Where ids go in."""
        return next(self.base.parameters()).device

    @contextmanager
    def captured(self, output_of: Sequence[int]) -> Iterator[dict[int, Tensor]]:
        """While it lasts, what these layers put out lands in the dict."""
        self._seen.clear()

        def keeper(number: int) -> Any:
            def keep(_: nn.Module, __: Any, out: Any) -> None:
                self._seen[number] = out if isinstance(out, Tensor) else out[0]

            return keep

        hooks = [self.layers[k].register_forward_hook(keeper(k)) for k in output_of]
        try:
            yield self._seen
        finally:
            for hook in hooks:
                hook.remove()
            self._seen.clear()

    def states(
        self, batch: Sequence[NDArray[np.int32]], output_of: Sequence[int]
    ) -> list[NDArray[np.uint16]]:
        """Of each sample uint16 [T, layers + 1, H] (bf16 bits), the final state last."""
        lengths = [len(ids) for ids in batch]
        rows = np.zeros((len(batch), max(lengths)), dtype=np.int64)
        for row, one in zip(rows, batch, strict=True):
            row[: len(one)], row[len(one) :] = one, one[-1]
        ids = torch.from_numpy(rows)
        with torch.inference_mode(), self.captured(output_of) as seen:
            # no attention mask: real rows see earlier rows only, and those are real
            final = self.base(input_ids=ids.to(self.device), use_cache=False).last_hidden_state
            wide = [seen[k].to(final.device) for k in output_of] + [final]
            return [
                bits(torch.stack([state[i, :n] for state in wide], dim=1))
                for i, n in enumerate(lengths)
            ]

    def alone(self, ids: NDArray[np.int32], output_of: Sequence[int] = ()) -> Alone:
        """One sample by itself, the way transformers gives states. It shares nothing with `states`
        but the weights.
        """
        wide = torch.from_numpy(np.asarray(ids).astype(np.int64))[None].to(self.device)
        last = len(self.layers) - 1
        with torch.inference_mode(), self.captured([last]) as seen:
            out = self.base(input_ids=wide, use_cache=False, output_hidden_states=True)
            final = out.last_hidden_state
            embedding, *outs = (state[0].to(final.device) for state in out.hidden_states[:-1])
            return Alone(
                embedding, dict(enumerate([*outs, seen[last][0].to(final.device)])), final[0]
            )

    def best(self, final: Tensor) -> Tensor:
        """The likeliest next id of each final state [rows, H], int64 [rows], on the CPU."""
        weight = next(self.head.parameters())
        with torch.inference_mode():
            found: Tensor = self.head(final.to(weight.device, weight.dtype)).argmax(-1)
            return found.cpu()

    def normed(self, states: Tensor) -> Tensor:
        """The last norm applied (once more)."""
        assert self.norm is not None
        weight = next(self.norm.parameters())
        with torch.inference_mode():
            out: Tensor = self.norm(states.to(weight.device, weight.dtype))
            return out


def bits(states: Tensor) -> NDArray[np.uint16]:
    """bf16 bits of a tensor, on the CPU."""
    found: NDArray[np.int16] = (
        states.to("cpu", torch.bfloat16).contiguous().view(torch.int16).numpy()
    )
    return found.view(np.uint16)


def tensor(states: NDArray[np.uint16]) -> Tensor:
    """The inverse of `bits`: a bf16 tensor."""
    return torch.from_numpy(np.ascontiguousarray(states).view(np.int16)).view(torch.bfloat16)


def load(
    model: str, *, dtype: str = "auto", device: str = "auto", trust_remote_code: bool = False
) -> Forward:
    """Load a target from a folder or the hub's cache. Raises StatesError with the next step.

    `dtype`: auto (as stored), bf16, fp16, fp32. `device`: auto spreads over the GPUs when there are
    any; else as torch names one.
    """
    from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText
    from transformers.models.auto import modeling_auto as known
    from transformers.utils import logging

    quiet: Any = logging
    quiet.disable_progress_bar()
    where: Any = device
    if device == "auto" and not torch.cuda.is_available():
        where = "cpu"
    try:
        if where != "auto":
            torch.device(where)
        config = AutoConfig.from_pretrained(model, trust_remote_code=trust_remote_code)
        # what sees pictures is a model of text with more in front, and listed apart; code of the
        # folder says by itself what it is
        pictured = config.model_type in known.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES
        plain = config.model_type in known.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES or not pictured
        kind: Any = AutoModelForCausalLM if plain else AutoModelForImageTextToText
        loaded: Any = kind.from_pretrained(
            model,
            dtype="auto" if dtype == "auto" else DTYPES[dtype],
            use_safetensors=True,
            trust_remote_code=trust_remote_code,
            **({"device_map": where} if where == "auto" else {}),
        )
        if where != "auto":
            loaded = loaded.to(where)
    except (OSError, ValueError, RuntimeError, ImportError, KeyError) as error:
        reason = " ".join(str(error).split())[:300]
        raise StatesError(
            f"{model} can not be loaded as a target ({reason}): name the folder of a causal"
            " language model with safetensors, or a device that is there"
        ) from None
    return ready(loaded.eval(), model)


def ready(model: Any, name: str) -> Forward:
    """A loaded model, its parts found and proven. Raises StatesError for one that has others."""
    text = model.config.get_text_config()
    layers, owner = _layers(model, int(text.num_hidden_layers), name)
    norms = [
        child
        for child in owner.children()
        if child is not layers and "Norm" in type(child).__name__
    ]
    head = model.get_output_embeddings()
    if head is None:
        raise StatesError(f"{name} has no head: name the folder of a causal language model")
    config, revision = model.config, getattr(model.config, "_commit_hash", None)
    quantisation = getattr(config, "quantization_config", None)
    folder = Path(name)
    found = Forward(
        target=Target(
            id=name,
            revision=revision,
            weights=weights_digest(folder),
            architecture=type(model).__name__,
            dtype=str(model.dtype).removeprefix("torch."),
            quantisation=_plain(quantisation),
            hidden_size=int(text.hidden_size),
            layers=len(layers),
            vocab_size=int(text.vocab_size),
            tokenizer_hash=tokenizer_digest(folder),
        ),
        base=owner,  # not `base_model`: with pictures that is the whole, or gives no states
        layers=layers,
        norm=norms[-1] if norms else None,
        head=head,
    )
    _prove(found)
    return found


def _layers(model: Any, count: int, name: str) -> tuple[nn.ModuleList, nn.Module]:
    """The list of decoder layers and the module that owns it: the outermost list of that length, in
    what transformers calls the decoder where it has one: a part for pictures has layers too.
    """
    for root in (model.get_decoder(), model):
        lists = [
            (path, module)
            for path, module in (root.named_modules() if isinstance(root, nn.Module) else ())
            if isinstance(module, nn.ModuleList) and len(module) >= count
        ]
        if lists:
            path, layers = min(
                lists, key=lambda entry: (len(entry[1]) > count, entry[0].count("."))
            )
            return layers, root.get_submodule(path.rpartition(".")[0])
    raise StatesError(f"{name} has no list of {count} layers that can be told: report it")


def _prove(found: Forward) -> None:
    """Hold hooks and last norm against what transformers itself gives for a few ids."""
    ids = np.arange(PROBE, dtype=np.int32) % found.target.vocab_size
    alone = found.alone(ids)
    count, hidden = found.target.layers, found.target.hidden_size
    known = [*alone.outs.values(), alone.final]
    if len(known) != count + 1 or any(state.shape != (PROBE, hidden) for state in known):
        raise StatesError(
            f"{found.target.id}: transformers gives {len(known)} states for {count} layers, or"
            f" others than [tokens, {hidden}]: this target can not be extracted"
        )
    inner = list(range(count - 1))
    with torch.inference_mode(), found.captured(inner) as seen:
        wide = torch.from_numpy(ids.astype(np.int64))[None].to(found.device)
        found.base(input_ids=wide, use_cache=False)
        other = [k for k in inner if not close(seen[k][0].to(known[k].device), known[k])]
    if other:
        raise StatesError(
            f"{found.target.id}: what layer {other[0]} puts out is not what transformers calls its"
            " hidden state: this target can not be extracted"
        )
    last = alone.outs[count - 1]
    if found.norm is not None and close(found.normed(last).to(last.device), alone.final):
        found.post = True
    elif close(last, alone.final):
        found.post = False
    else:
        raise StatesError(
            f"{found.target.id}: its final state is neither what the last layer puts out nor that"
            " behind the last norm: this target can not be extracted"
        )


def close(one: Tensor, other: Tensor) -> bool:
    """Whether two states are the same but for rounding."""
    wide = one.float() - other.float()
    return bool(wide.norm() <= 1e-2 * other.float().norm())


def _plain(value: Any) -> Any:
    """A quantisation config as JSON values."""
    if value is None:
        return None
    found = value if isinstance(value, dict) else value.to_dict()
    return {
        str(key): entry if isinstance(entry, int | float | str | bool | None) else str(entry)
        for key, entry in sorted(found.items())
    }
