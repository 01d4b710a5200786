"""The manifest: what a finished run wrote. It is written last, so its existence means complete.

What enters: the shards of a run, its facts, options, inputs and ledger. What leaves:
`manifest.json`; that of `draft`'s states is sealed and loaded the same way. It promises that the
same run gives the same bytes (no clock in it), and that an edited manifest is noticed by its own
checksum.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, Self, TypeVar

import orjson
from pydantic import BaseModel, ConfigDict, Field, JsonValue, ValidationError

from eagle3_data.shards.schema import SCHEMA_VERSION, ShardError, ShardFacts, foreign_version

MANIFEST = "manifest.json"
JOURNAL = "shards.journal.jsonl"
SPILL = ".spill"
"""The folder where samples wait for their verdicts while a conversion runs. In the directory of the
shards: its disk is the one that must hold them, and its lock says that whoever left one is dead.
"""
KIND = "shards"


class Strict(BaseModel):
    """Nothing is changed, added or converted."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class Run(Strict):
    """What makes two runs the same run: their files would be the same bytes."""

    @property
    def digest(self) -> str:
        """SHA-256 (hex) over the canonical JSON."""
        return hashlib.sha256(canonical(self.model_dump(mode="json"))).hexdigest()

    def differences(self, other: Self) -> list[str]:
        """`key: theirs → ours` for every entry that differs, `self` being theirs."""
        return differing(self.model_dump(mode="json"), other.model_dump(mode="json"))


class Sealed(Strict):
    """A finished directory: the head of its manifest, and the checksum that ends it."""

    schema_version: int
    tool: Literal["eagle3-data"] = "eagle3-data"

    def sealed(self) -> Self:
        """The same with its checksum."""
        return self.model_copy(update={"checksum": self._sum()})

    @property
    def sound(self) -> bool:
        """Whether the checksum fits."""
        return self == self.sealed()

    def _sum(self) -> str:
        body = self.model_dump(mode="json")
        del body["checksum"]
        return hashlib.sha256(canonical(body)).hexdigest()

    def to_bytes(self) -> bytes:
        """The bytes of `manifest.json`."""
        return orjson.dumps(self.model_dump(mode="json"), option=orjson.OPT_INDENT_2) + b"\n"


Made = TypeVar("Made", bound=Sealed)


class Place(Strict):
    """Where a row comes from: file as named, physical line, byte offset, choice, turn."""

    file: str
    line: int
    offset: int
    choice: int
    turn: int | None


class Shard(Strict):
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


class Identity(Run):
    """What makes two runs the same run: their shards would be the same bytes."""

    facts: ShardFacts
    options: dict[str, JsonValue]
    inputs: list[dict[str, JsonValue]]
    layout: dict[str, JsonValue]

    def differences(self, other: Self) -> list[str]:
        """As above. Of the rules only a digest is known: told are the options that set it."""
        return [
            "other rules, severities or thresholds: --select, --ignore, --error, --warn, settings"
            if line.startswith("facts.rules_version:")
            else line
            for line in super().differences(other)
        ]


class Manifest(Sealed):
    """A finished directory. `checksum` covers everything else in it."""

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

    @property
    def sound(self) -> bool:
        """Whether the checksum fits and the totals are the sums over the shards."""
        names = ("rows", "tokens", "supervised_tokens")
        return super().sound and all(
            getattr(self, name) == sum(getattr(shard, name) for shard in self.shards)
            for name in names
        )


def load_manifest(directory: Path) -> Manifest:
    """Read `manifest.json`; the inverse of `to_bytes`. Does not check `sound`.

    Raises ShardError: no manifest, not one of shards, another schema version, or damaged.
    """
    return loaded(directory, Manifest, KIND, "convert", SCHEMA_VERSION, ShardError, foreign_version)


def loaded(
    directory: Path,
    model: type[Made],
    kind: str,
    command: str,
    version: int,
    error: type[ValueError],
    foreign: Callable[[str, str], ValueError],
) -> Made:
    """The manifest of a directory that `command` wrote. Raises `error`, and what `foreign` makes of
    file and version for another schema version.
    """
    path = directory / MANIFEST
    try:
        if (what := no_file(path)) is not None:  # a pipe would be read for ever
            raise error(
                f"{path} is {what}: move it away and restore the manifest, or run `{command}"
                " --overwrite` again"
            )
        body = path.read_bytes()
    except FileNotFoundError:
        if not directory.is_dir():
            raise error(
                f"{directory} is not a directory: name the folder that `{command}` wrote"
            ) from None
        raise error(
            f"{directory} has no {MANIFEST}, so the run that wrote it did not finish:"
            f" run the same `{command}` command again, it continues (if only that file was lost,"
            " with --overwrite)"
        ) from None
    except OSError as fault:
        raise error(f"{path}: {fault.strerror}; check the file") from None
    try:
        found = orjson.loads(body)
        told = (found.get("tool"), found.get("kind")) if isinstance(found, dict) else None
        if told != ("eagle3-data", kind):
            raise error(
                f"{path} is not the manifest of {kind}: name the folder that `{command}` wrote"
            )
        if found.get("schema_version") != version:
            raise foreign(str(path), str(found.get("schema_version"))[:40])
        return model.model_validate_json(body)
    except (ValidationError, orjson.JSONDecodeError) as fault:
        raise error(
            f"{path} is damaged ({_reason(fault)}): restore it, or run `{command} --overwrite`"
            " again"
        ) from None


def no_file(path: Path) -> str | None:
    """What lies at `path` in place of a regular file; None for a file, and for nothing."""
    if not path.exists() or path.is_file():
        return None
    return "a folder" if path.is_dir() else "no regular file"


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
