"""The manifest of hidden states: whose states they are, of which layers, and in which files.

What enters: the facts of a run. What leaves: `manifest.json`, written last. It promises that layers
are named as *output of layer k* with the spelling of each engine beside it, that the norm of the
final state is said and not assumed, and that the same run gives the same bytes.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Literal, Self

import orjson
from pydantic import BaseModel, ConfigDict, Field, JsonValue, ValidationError

from eagle3_data.draft.packing import Packing
from eagle3_data.shards.manifest import MANIFEST, canonical, differing
from eagle3_data.shards.schema import MASK_CONVENTION, ShardFacts

SCHEMA_VERSION = 1
INDEX = "index.parquet"
JOURNAL = "states.journal.jsonl"


class StatesError(ValueError):
    """States that can not be written or read; the message names the file and the next step."""


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class Layers(_Part):
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


class Target(_Part):
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


class Identity(_Part):
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
    def digest(self) -> str:
        """SHA-256 (hex) over the canonical JSON."""
        return hashlib.sha256(canonical(self.model_dump(mode="json"))).hexdigest()

    @property
    def token_bytes(self) -> int:
        """Raw bytes of the states of one token."""
        return (len(self.layers.output_of) + 1) * self.target.hidden_size * 2

    def differences(self, other: Identity) -> list[str]:
        """`key: theirs → ours` for every entry that differs, `self` being theirs."""
        return differing(self.model_dump(mode="json"), other.model_dump(mode="json"))


class StateFile(_Part):
    """One finished file."""

    name: str = Field(pattern=r"^states-\d{5,}\.safetensors$")
    samples: int = Field(ge=1)
    tokens: int = Field(ge=1)
    bytes: int = Field(ge=1)
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")
    checked: dict[str, JsonValue]


class StatesManifest(_Part):
    """A finished directory. `packing`: what was chosen. `checked`: what the self-check saw.
    `checksum` covers everything else in it.
    """

    schema_version: int
    tool: Literal["eagle3-data"] = "eagle3-data"
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

    def sealed(self) -> StatesManifest:
        """The same with its checksum."""
        return self.model_copy(update={"checksum": self._sum()})

    @property
    def sound(self) -> bool:
        """Whether the checksum fits and the totals are the sums over the files."""
        return (
            self.checksum == self._sum()
            and self.samples == sum(file.samples for file in self.files)
            and self.tokens == sum(file.tokens for file in self.files)
            and self.stored_bytes == sum(file.bytes for file in self.files)
        )

    def _sum(self) -> str:
        body = self.model_dump(mode="json")
        del body["checksum"]
        return hashlib.sha256(canonical(body)).hexdigest()

    def to_bytes(self) -> bytes:
        """The bytes of `manifest.json`."""
        return orjson.dumps(self.model_dump(mode="json"), option=orjson.OPT_INDENT_2) + b"\n"


def load_manifest(directory: Path) -> StatesManifest:
    """Read `manifest.json` and prove its checksum. Raises StatesError."""
    path = directory / MANIFEST
    try:
        body = path.read_bytes()
    except FileNotFoundError:
        if not directory.is_dir():
            raise StatesError(
                f"{directory} is not a directory: name the folder that `extract` wrote"
            ) from None
        raise StatesError(
            f"{directory} has no {MANIFEST}, so the run that wrote it did not finish:"
            " run the same `extract` command again, it continues"
        ) from None
    except OSError as error:
        raise StatesError(f"{path}: {error.strerror}; check the file") from None
    try:
        found = orjson.loads(body)
        kind = (found.get("tool"), found.get("kind")) if isinstance(found, dict) else None
        if kind != ("eagle3-data", "states"):
            raise StatesError(
                f"{path} is not the manifest of states: name the folder that `extract` wrote"
            )
        if found.get("schema_version") != SCHEMA_VERSION:
            raise StatesError(
                f"{path} has schema version {str(found.get('schema_version'))[:40]}, this release"
                f" reads version {SCHEMA_VERSION}: install the release that wrote it, or extract"
                " again"
            )
        manifest = StatesManifest.model_validate_json(body)
    except (ValidationError, orjson.JSONDecodeError) as error:
        reason = str(error).splitlines()[0]
        raise StatesError(
            f"{path} is damaged ({reason}): restore it, or run `extract --overwrite` again"
        ) from None
    if not manifest.sound:
        raise StatesError(
            f"{path} was edited, so it proves nothing: restore it, or run `extract --overwrite`"
        )
    return manifest
