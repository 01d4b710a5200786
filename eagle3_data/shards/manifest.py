"""The manifest: what a finished run wrote. It is written last, so its existence means complete.

What enters: the shards of a run, its facts, options, inputs and ledger. What leaves:
`manifest.json`. It promises that the same run gives the same bytes (no clock in it), and that an
edited manifest is noticed by its own checksum.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any, Literal

import orjson
from pydantic import BaseModel, ConfigDict, Field, JsonValue, ValidationError

from eagle3_data.shards.schema import SCHEMA_VERSION, ShardError, ShardFacts, foreign_version

MANIFEST = "manifest.json"
JOURNAL = "shards.journal.jsonl"
KIND = "shards"


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class Place(_Part):
    """Where a row comes from: file as named, physical line, byte offset, choice, turn."""

    file: str
    line: int
    offset: int
    choice: int
    turn: int | None


class Shard(_Part):
    """One finished file. `tokens` and `supervised_tokens` are sums over its rows, `arrow_bytes` of
    their sizes (`row_sizes`); `rows_hash`: BLAKE2b-128 over ids, splits, cuts and codes of its
    rows in order; `last`: where its last row comes from.
    """

    name: str = Field(pattern=r"^part-\d{5,}\.parquet$")
    rows: int = Field(ge=0)
    bytes: int = Field(ge=0)
    arrow_bytes: int = Field(ge=0)
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")
    tokens: int = Field(ge=0)
    supervised_tokens: int = Field(ge=0)
    rows_hash: str
    last: Place | None


class Identity(_Part):
    """What makes two runs the same run: their shards would be the same bytes."""

    facts: ShardFacts
    options: dict[str, JsonValue]
    inputs: list[dict[str, JsonValue]]
    layout: dict[str, JsonValue]

    @property
    def digest(self) -> str:
        """SHA-256 (hex) over the canonical JSON."""
        return hashlib.sha256(canonical(self.model_dump(mode="json"))).hexdigest()

    def differences(self, other: Identity) -> list[str]:
        """`key: theirs → ours` for every entry that differs, `self` being theirs."""
        return differing(self.model_dump(mode="json"), other.model_dump(mode="json"))


class Manifest(_Part):
    """A finished directory. `checksum` covers everything else in it."""

    schema_version: int
    tool: Literal["eagle3-data"] = "eagle3-data"
    kind: Literal["shards"] = "shards"
    identity: Identity
    ledger: dict[str, JsonValue]
    rows: int
    tokens: int
    supervised_tokens: int
    shards: list[Shard]
    checksum: str = ""

    @property
    def facts(self) -> ShardFacts:
        """What all shards have in common."""
        return self.identity.facts

    def sealed(self) -> Manifest:
        """The same with its checksum."""
        return self.model_copy(update={"checksum": self._sum()})

    @property
    def sound(self) -> bool:
        """Whether the checksum fits and the totals are the sums over the shards."""
        names = ("rows", "tokens", "supervised_tokens")
        return self.checksum == self._sum() and all(
            getattr(self, name) == sum(getattr(shard, name) for shard in self.shards)
            for name in names
        )

    def _sum(self) -> str:
        body = self.model_dump(mode="json")
        del body["checksum"]
        return hashlib.sha256(canonical(body)).hexdigest()

    def to_bytes(self) -> bytes:
        """The bytes of `manifest.json`."""
        return orjson.dumps(self.model_dump(mode="json"), option=orjson.OPT_INDENT_2) + b"\n"


def load_manifest(directory: Path) -> Manifest:
    """Read `manifest.json`; the inverse of `to_bytes`. Does not check `sound`.

    Raises ShardError: no manifest, not one of shards, another schema version, or damaged.
    """
    path = directory / MANIFEST
    try:
        body = path.read_bytes()
    except FileNotFoundError:
        if not directory.is_dir():
            raise ShardError(
                f"{directory} is not a directory: name the folder that `convert` wrote"
            ) from None
        raise ShardError(
            f"{directory} has no {MANIFEST}, so the run that wrote it did not finish:"
            " run the same `convert` command again, it continues"
        ) from None
    except OSError as error:
        raise ShardError(f"{path}: {error.strerror}; check the file") from None
    try:
        found = orjson.loads(body)
        if not isinstance(found, dict) or (found.get("tool"), found.get("kind")) != (
            "eagle3-data",
            KIND,
        ):
            raise ShardError(
                f"{path} is not the manifest of shards: name the folder that `convert` wrote"
            )
        if found.get("schema_version") != SCHEMA_VERSION:
            raise foreign_version(str(path), str(found.get("schema_version"))[:40])
        return Manifest.model_validate_json(body)
    except (ValidationError, orjson.JSONDecodeError) as error:
        reason = _reason(error)
        raise ShardError(
            f"{path} is damaged ({reason}): restore it, or run `convert --overwrite` again"
        ) from None


def canonical(value: Any) -> bytes:
    """JSON with sorted keys: the bytes that digests are made over."""
    return orjson.dumps(value, option=orjson.OPT_SORT_KEYS)


def _reason(error: Exception) -> str:
    if isinstance(error, ValidationError):
        first = error.errors()[0]
        return f"{'/'.join(map(str, first['loc']))}: {first['msg']}"
    return str(error)


def differing(theirs: JsonValue, ours: JsonValue) -> list[str]:
    """`key: theirs → ours` for every entry that differs between two JSON objects."""
    mine, yours = flattened(theirs), flattened(ours)
    return [
        f"{key}: {mine.get(key, 'not set')} → {yours.get(key, 'not set')}"
        for key in sorted(mine.keys() | yours.keys())
        if mine.get(key) != yours.get(key)
    ]


def flattened(value: Any, key: str = "") -> dict[str, str]:
    """Every leaf of a JSON value under its dotted key, as short JSON text."""
    if isinstance(value, dict) and value:
        out: dict[str, str] = {}
        for name, item in value.items():
            out |= flattened(item, f"{key}.{name}" if key else str(name))
        return out
    if isinstance(value, list) and value and isinstance(value[0], dict):
        return flattened(dict(enumerate(value)), key)
    return {key: canonical(value).decode()[:80]}
