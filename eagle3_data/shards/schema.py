"""Schema v1: the columns of a shard and the facts that every file carries.

What enters: nothing. What leaves: one list of columns that the Arrow schema, the pandera contract
and the published `schemas/shard.schema.json` are made from. It promises plain types only (no
dictionary, no extension, no large types), so that Polars, pyarrow, DuckDB and `datasets` read the
files with no plugin.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import orjson
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from eagle3_data.tokens.samples import Grade, PromptSource, SpanKind

if TYPE_CHECKING:
    import pyarrow as pa

SCHEMA_VERSION = 1
MASK_CONVENTION = "loss_mask[i] = 1 iff the model sampled token i, a sampled stop token included"
PREFIX = "eagle3_data."
HASH = r"^[0-9a-f]{32}$"


class ShardError(ValueError):
    """Shards that can not be written or read; the message names the file and the next step."""


class ForeignVersion(ShardError):
    """Shards of a schema version that this release does not read."""


class ShardFacts(BaseModel):
    """What all samples of a directory have in common; stored in the metadata of every file.

    `*_hash` are hex digests, `template_hash` "" when no chat template was used. `vocab_size`: one
    more than the largest id a token has. `end_of_turn`: ids that
    end a turn or stop generation. `rules_version`:
    digest of the rules that judged.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    profile: str
    profile_hash: str
    tokenizer: str
    tokenizer_hash: str
    template_hash: str
    vocab_size: int = Field(ge=1)
    end_of_turn: tuple[int, ...]
    rules_version: str
    product_version: str


@dataclass(frozen=True, slots=True)
class Column:
    """One column. `type`: its Arrow type as pyarrow writes it. `checks`: built-in pandera checks,
    name → argument.
    """

    name: str
    type: str
    doc: str
    nullable: bool = False
    checks: Mapping[str, Any] = field(default_factory=dict)


SPANS = "list<item: struct<kind: string, start: int32, end: int32>>"
_COUNT = {"greater_than_or_equal_to": 0}
_TEXT_JSON = "JSON text as received"

COLUMNS: tuple[Column, ...] = (
    Column(
        "sample_id",
        "string",
        "Stable id: BLAKE2b-128 over the line's digest, choice and turn.",
        checks={"str_matches": HASH},
    ),
    Column(
        "split",
        "string",
        "Part of the data set, for example train or val.",
        checks={"str_length": {"min_value": 1}},
    ),
    Column(
        "grade",
        "string",
        "How well the ids are proven, A (captured) to E.",
        checks={"isin": [g.value for g in Grade]},
    ),
    Column("grade_reason", "string", "Why that grade."),
    Column(
        "messages",
        "string",
        f"Messages before the answer, {_TEXT_JSON}; null for a plain prompt.",
        True,
    ),
    Column("prompt_text", "string", "A plain-text prompt; null when there are messages.", True),
    Column("reasoning", "string", "The thought as the server returned it.", True),
    Column("content", "string", "The answer as the server returned it.", True),
    Column(
        "tool_calls",
        "string",
        "Tool calls of the answer as JSON text [{id, name, arguments}].",
        True,
    ),
    Column("finish_reason", "string", "Why the server says it stopped.", True),
    Column("stop_reason", "string", "The stop string or id that the server names.", True),
    Column("input_ids", "list<item: int32>", "Prompt ids, then completion ids."),
    Column("loss_mask", "list<item: uint8>", MASK_CONVENTION + "."),
    Column("seq_len", "int32", "Tokens of the sequence.", checks={"greater_than_or_equal_to": 1}),
    Column("prompt_len", "int32", "Tokens before the first sampled one.", checks=_COUNT),
    Column(
        "supervised_tokens", "int32", "Ones in the mask.", checks={"greater_than_or_equal_to": 1}
    ),
    Column(
        "spans", SPANS, f"Half-open token ranges that tile the sequence: {', '.join(SpanKind)}."
    ),
    Column(
        "prompt_source",
        "string",
        "Where the prompt ids come from.",
        checks={"isin": [s.value for s in PromptSource]},
    ),
    Column("truncated", "bool", "The tail was cut off at the length limit of the run."),
    Column("tools", "string", f"Tools offered in the request, {_TEXT_JSON}.", True),
    Column("template_kwargs", "string", f"chat_template_kwargs, {_TEXT_JSON}.", True),
    Column("settings", "string", f"The rest of the request, {_TEXT_JSON}.", True),
    Column("prompt_tokens", "int64", "usage.prompt_tokens of the server.", True),
    Column("completion_tokens", "int64", "usage.completion_tokens of the server.", True),
    Column("reasoning_tokens", "int64", "Reasoning tokens that the server counted.", True),
    Column("profile", "string", "The profile that the sample was assembled with."),
    Column("model", "string", "The model that answered.", True),
    Column("server", "string", "vllm, sglang, llama.cpp, …", True),
    Column("server_version", "string", "Version of the server.", True),
    Column("created", "int64", "When the answer was made, unix seconds.", True),
    Column("latency_s", "double", "Seconds the request took.", True),
    Column(
        "conversation_id", "string", "Samples of one conversation share it and stay in one split."
    ),
    Column("file", "string", "The capture, as it was named to the run."),
    Column("line", "int64", "Physical line in it, from 1.", checks={"greater_than_or_equal_to": 1}),
    Column("offset", "int64", "Byte offset of the line in the uncompressed stream.", checks=_COUNT),
    Column(
        "line_hash",
        "string",
        "First 128 bits of SHA-256 over the line's bytes without its line end.",
        checks={"str_matches": HASH},
    ),
    Column("choice", "int32", "Index in `choices`.", checks=_COUNT),
    Column(
        "turn", "int32", "Index of the answer among the messages; null without a dialogue.", True
    ),
    Column("record_id", "string", "`id` of the record.", True),
    Column("repair", "string", "Repairs applied, comma-separated.", True),
    Column("codes", "list<item: string>", "Findings that were told and kept."),
)
"""In the order of the file: texts beside ids first, for people who look at it in a viewer."""


def arrow_schema(facts: ShardFacts | None = None) -> pa.Schema:
    """The Arrow schema of schema v1, with the file metadata when `facts` is given."""
    import pyarrow as pa

    text = pa.string()
    span = pa.struct(
        [
            pa.field("kind", text, nullable=False),
            pa.field("start", pa.int32(), nullable=False),
            pa.field("end", pa.int32(), nullable=False),
        ]
    )
    types: dict[str, pa.DataType] = {
        "string": text,
        "int32": pa.int32(),
        "int64": pa.int64(),
        "double": pa.float64(),
        "bool": pa.bool_(),
        "list<item: int32>": _list(pa.int32()),
        "list<item: uint8>": _list(pa.uint8()),
        "list<item: string>": _list(text),
        SPANS: _list(span),
    }
    fields = [pa.field(c.name, types[c.type], nullable=c.nullable) for c in COLUMNS]
    return pa.schema(fields, metadata=None if facts is None else metadata(facts))


def _list(item: pa.DataType) -> pa.ListType:
    """A list without null items: one level less to store and to decode for every token."""
    import pyarrow as pa

    return pa.list_(pa.field("item", item, nullable=False))


def metadata(facts: ShardFacts) -> dict[bytes, bytes]:
    """Key → value of the file metadata, every key under `eagle3_data.`; the inverse of
    `read_facts`.
    """
    values: dict[str, Any] = {
        "schema_version": SCHEMA_VERSION,
        "mask_convention": MASK_CONVENTION,
        **facts.model_dump(mode="json"),
    }
    return {
        (PREFIX + key).encode(): value.encode() if isinstance(value, str) else orjson.dumps(value)
        for key, value in values.items()
    }


def read_facts(found: Mapping[bytes, bytes] | None, file: str) -> ShardFacts:
    """The facts of a file's metadata. Raises ShardError for a file that is no shard, or of another
    version.
    """
    own = {
        key[len(PREFIX) :].decode(errors="replace"): value
        for key, value in (found or {}).items()
        if key.startswith(PREFIX.encode())
    }
    version = own.pop("schema_version", None)
    if version is None:
        raise ShardError(
            f"{file} is no shard: it has no {PREFIX}schema_version; make one with `convert`"
        )
    if version != str(SCHEMA_VERSION).encode():
        raise foreign_version(file, version.decode(errors="replace"))
    convention = own.pop("mask_convention", b"").decode(errors="replace")
    if convention != MASK_CONVENTION:
        raise ShardError(
            f"{file} has another mask convention ({convention!r}): convert the captures again"
        )
    fields = ShardFacts.model_fields
    try:
        return ShardFacts.model_validate_json(
            orjson.dumps(
                {
                    key: orjson.loads(value)
                    if key in fields and fields[key].annotation is not str
                    else value.decode()
                    for key, value in own.items()
                }
            )
        )
    except (ValidationError, ValueError) as error:
        reason = str(error).splitlines()[0]
        raise ShardError(
            f"{file} has damaged metadata ({reason}): convert the captures again"
        ) from None


def foreign_version(file: str, version: str) -> ForeignVersion:
    """The error for a file of another schema version."""
    return ForeignVersion(
        f"{file} has schema version {version}, this release reads version {SCHEMA_VERSION}:"
        " install the release that wrote it, or convert the captures again"
    )


def described() -> dict[str, Any]:
    """The schema as JSON, published as `schemas/shard.schema.json`."""
    return {
        "title": "eagle3-data shard",
        "schema_version": SCHEMA_VERSION,
        "format": "Parquet",
        "mask_convention": MASK_CONVENTION,
        "columns": [
            {
                "name": c.name,
                "type": c.type,
                "nullable": c.nullable,
                "description": c.doc,
                **({"checks": dict(c.checks)} if c.checks else {}),
            }
            for c in COLUMNS
        ],
        "metadata": [
            f"{PREFIX}{key}"
            for key in ("schema_version", "mask_convention", *ShardFacts.model_fields)
        ],
    }


def published() -> dict[str, str]:
    """Name → text of the files in `schemas/` that are made from this schema."""
    from eagle3_data.shards.contract import exported

    own = orjson.dumps(described(), option=orjson.OPT_INDENT_2).decode() + "\n"
    return {"shard.schema.json": own, "shard.pandera.json": exported()}
