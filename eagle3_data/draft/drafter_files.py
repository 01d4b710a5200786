"""A drafter as its files tell it: config.json and the headers of its tensors, without torch.

What enters: the folder of a drafter, in the plain layout or that of speculators. What leaves: a
`Files`: sizes, flags, layer ids by place, tensors under their plain names. It promises to keep
apart what is written, what is missing and what is only an engine's default.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from eagle3_data.draft.config import Config, ConfigError, read
from eagle3_data.draft.tensors import Tensor, tensors

IDS = "eagle_aux_hidden_state_layer_ids"
OWN = "eagle3_data"
INNER = "transformer_layer_config"


@dataclass(frozen=True, slots=True, eq=False)
class Files:
    """One drafter. `config`: with the entries of speculators' inner config on top. `tensors`: by
    the names in the files; `plain`: by those of the plain layout (`midlayer.*`).
    """

    folder: Path
    config: Config
    tensors: dict[str, Tensor]
    plain: dict[str, Tensor]

    @property
    def speculators(self) -> bool:
        """The layout of speculators: sizes stand in an inner config."""
        return isinstance(self.config.raw.get(INNER), dict)

    @property
    def nested(self) -> dict[str, Any]:
        """`eagle_config`, empty when there is none."""
        found = self.config.raw.get("eagle_config")
        return found if isinstance(found, dict) else {}

    @property
    def own(self) -> dict[str, Any]:
        """What this product wrote about the training, empty for a drafter of others."""
        found = self.config.raw.get(OWN)
        return found if isinstance(found, dict) else {}

    @property
    def mla(self) -> bool:
        """Multi-head latent attention (DeepSeek), else that of Llama."""
        return any(".kv_a_proj_with_mqa." in name for name in self.plain)

    @property
    def hidden(self) -> int:
        """Hidden size of the drafter."""
        return _size(self.config, self.config.needed("hidden_size"), "hidden_size")

    @property
    def target_hidden(self) -> int:
        """Hidden size of the states it reads."""
        found = self.config.number("target_hidden_size")
        return self.hidden if found is None else _size(self.config, found, "target_hidden_size")

    @property
    def draft_vocab(self) -> int | None:
        """`draft_vocab_size`, None when it is not there or null."""
        return self.config.number("draft_vocab_size")

    @property
    def head_rows(self) -> int | None:
        """Rows of `lm_head.weight`, None when there is none."""
        head = self.plain.get("lm_head.weight")
        return head.shape[0] if head is not None and head.shape else None

    @property
    def layers(self) -> int:
        """Layers in the files."""
        more = [name for name in self.plain if name.startswith("layers.")]
        return 1 + len({name.split(".")[1] for name in more})

    def ids(self, *, nested: bool) -> list[int] | None:
        """Layer ids at one place, None when they are not there. Raises ConfigError."""
        found = (self.nested if nested else self.config.raw).get(IDS)
        if not found:
            return None
        numbers = isinstance(found, list) and all(
            isinstance(one, int) and not isinstance(one, bool) for one in found
        )
        if not numbers or len(found) > 64:
            raise ConfigError(
                f"{self.config.file}: {IDS} is {str(found)[:60]}, not a list of layers"
            )
        return list(found)

    def flag(self, name: str) -> bool:
        """A flag, from either place; `norm_before_residual` is true unless said in the layout of
        speculators, as vLLM reads it.
        """
        default = name == "norm_before_residual" and self.speculators
        return bool(self.nested.get(name, self.config.values.get(name, default)))

    @property
    def aux(self) -> int:
        """Auxiliary states that `fc` takes, by its width; 0 when it takes no whole number."""
        fused = self.plain.get("fc.weight")
        if fused is None or len(fused.shape) != 2 or fused.shape[1] % self.target_hidden:
            return 0
        return fused.shape[1] // self.target_hidden


def open_drafter(path: str | Path) -> Files:
    """Read a drafter. Raises ConfigError, TensorError."""
    folder = Path(path)
    config = read(folder)
    inner = config.raw.get(INNER)
    if isinstance(inner, dict):
        config = Config(config.file, {**inner, **config.values}, config.raw)
    found = tensors(folder)
    return Files(folder, config, found, {plain(name): tensor for name, tensor in found.items()})


def _size(config: Config, value: int, name: str) -> int:
    if value < 1:
        raise ConfigError(f"{config.file}: {name} is {value}, not a size")
    return value


def plain(name: str) -> str:
    """The name of a tensor in the plain layout, which all engines read."""
    name = name.removeprefix("model.")
    if name.startswith("layers.0."):
        name = "midlayer." + name.removeprefix("layers.0.")
    return "d2t" if name == "draft_id_to_target_id" else name
