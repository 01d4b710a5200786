"""The manifest of hidden states: whose states they are, of which layers, and in which files.

What enters: the facts of a run. What leaves: `manifest.json`, written last. It promises that layers
are named as *output of layer k* with the spelling of each engine beside it, that the norm of the
final state is said and not assumed, and that the same run gives the same bytes.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal, Self

from pydantic import Field, JsonValue

from eagle3_data.draft.packing import Packing
from eagle3_data.shards.journal import Kind, Listed
from eagle3_data.shards.manifest import MANIFEST, Run, Sealed, Strict, loaded
from eagle3_data.shards.schema import MASK_CONVENTION, ShardFacts

SCHEMA_VERSION = 1
INDEX = "index.parquet"
JOURNAL = "states.journal.jsonl"


class StatesError(ValueError):
    """States that can not be written or read; the message names the file and the next step."""


class Layers(Strict):
    """The layers of the auxiliary states, in the order in which they are stored.

    `output_of`: decoder layers counted from 0, whose outputs the states are. `vllm`: the ids that
    vLLM and speculators mean by it (what enters a layer), and the place in `hidden_states` of
    transformers. `sglang`: the ids that SGLang, SpecForge and ModelOpt mean by it.
    """

    output_of: list[int]
    vllm: list[int]
    sglang: list[int]

    @classmethod
    def of(cls, output_of: list[int]) -> Self:
        """All spellings of one choice."""
        return cls(output_of=output_of, vllm=[k + 1 for k in output_of], sglang=output_of)


def usual_layers(count: int) -> list[int]:
    """The layers that EAGLE-3 drafters read in a target of `count` layers: outputs of 1, N/2 - 1
    and N - 4. Raises StatesError for a target too small to have them.
    """
    found = [1, count // 2 - 1, count - 4]
    if not 0 <= found[0] < found[1] < found[2]:
        raise StatesError(
            f"a target of {count} layers has no usual three: name them with --layers (outputs of"
            f" layers 0 to {count - 1})"
        )
    return found


class Target(Strict):
    """The model whose states they are. `revision`: commit of the hub, None for a folder.
    `weights`: digest over headers and samples of its weight files, "" when they are not at hand.
    `quantisation`: what its config says, None for none. `tokenizer_hash`: "" when it has none.
    """

    id: str
    revision: str | None
    weights: str
    architecture: str
    dtype: str
    quantisation: JsonValue
    hidden_size: int = Field(ge=1)
    layers: int = Field(ge=1)
    vocab_size: int = Field(ge=1)
    tokenizer_hash: str


class Identity(Run):
    """What makes two runs the same run: their files would be the same bytes.

    `facts`: of the shards; `shards`: the checksum of their manifest; `chosen`: which samples of
    them. `final_norm`: "post" when the target's last norm was applied to the final state, "pre"
    when not. `made_by`: backend, its versions, what decides a batch.
    """

    facts: ShardFacts
    mask_convention: str = MASK_CONVENTION
    shards: str
    chosen: dict[str, JsonValue]
    target: Target
    layers: Layers
    final_norm: Literal["post", "pre"]
    packing: str
    file_bytes: int = Field(ge=1)
    made_by: dict[str, JsonValue]

    @property
    def token_bytes(self) -> int:
        """Raw bytes of the states of one token."""
        return (len(self.layers.output_of) + 1) * self.target.hidden_size * 2


class StateFile(Strict):
    """One finished file."""

    name: str = Field(pattern=r"^states-\d{5,}\.safetensors$")
    samples: int = Field(ge=1)
    tokens: int = Field(ge=1)
    bytes: int = Field(ge=1)
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")
    checked: dict[str, JsonValue]


class StatesManifest(Sealed):
    """A finished directory. `packing`: what was chosen. `checked`: what the self-check saw.
    `checksum` covers everything else in it.
    """

    kind: Literal["states"] = "states"
    identity: Identity
    packing: Packing = Field(strict=False)
    samples: int
    tokens: int
    supervised_tokens: int
    raw_bytes: int
    stored_bytes: int
    checked: dict[str, JsonValue]
    index_sha256: str
    files: list[StateFile]
    checksum: str = ""

    @property
    def facts(self) -> ShardFacts:
        """What all samples have in common: profile, tokenizer, template, rules."""
        return self.identity.facts

    @property
    def target(self) -> Target:
        """Whose states they are."""
        return self.identity.target

    @property
    def layers(self) -> Layers:
        """Which layers they are of."""
        return self.identity.layers

    @property
    def final_norm(self) -> str:
        """ "post" or "pre"."""
        return self.identity.final_norm

    @property
    def sound(self) -> bool:
        """Whether the checksum fits and the totals are the sums over the files."""
        return (
            super().sound
            and self.samples == sum(file.samples for file in self.files)
            and self.tokens == sum(file.tokens for file in self.files)
            and self.stored_bytes == sum(file.bytes for file in self.files)
        )


def load_manifest(directory: Path) -> StatesManifest:
    """Read `manifest.json` and prove its checksum. Raises StatesError."""
    manifest = loaded(
        directory, StatesManifest, "states", "extract", SCHEMA_VERSION, StatesError, _foreign
    )
    if not manifest.sound:
        raise StatesError(
            f"{directory / MANIFEST} was edited, so it proves nothing: restore it, or run"
            " `extract --overwrite`"
        )
    return manifest


def _foreign(file: str, version: str) -> StatesError:
    return StatesError(
        f"{file} has schema version {version}, this release reads version {SCHEMA_VERSION}:"
        " install the release that wrote it, or extract again"
    )


STATES: Kind[StateFile, StatesManifest] = Kind(
    name="states",
    stem="states",
    suffix=".safetensors",
    journal=JOURNAL,
    version=SCHEMA_VERSION,
    error=StatesError,
    identity=Identity.model_validate_json,
    file=StateFile.model_validate_json,
    manifest=load_manifest,
    listed=lambda made: Listed(
        made.identity, made.files, made.packing.value, {INDEX: made.index_sha256}
    ),
    # their bytes were on the disk before they got their names, and hashing a terabyte again takes
    # a quarter of an hour: `States.verify` does when asked
    hashed=False,
    further=(INDEX,),
    choice=("packing", tuple(Packing)),
)
