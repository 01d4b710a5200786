"""The whole run: keys that a batch leaves on its light records, and the corpus rules that search
them.

What enters: frames with all columns of the road, one after another. What leaves: the same frames +
`KEY_COLUMNS`, and at
the end the findings of the corpus rules over all light records. It promises that both are pure and
give the same whatever
the borders of the batches: hashes depend on the text only (of messages and tools not on the order
of their JSON keys), sampling on the line number only.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

import orjson
import polars as pl

from eagle3_data.audit.rules.registry import Severity
from eagle3_data.audit.shift import words
from eagle3_data.records.table import Status

if TYPE_CHECKING:
    from eagle3_data.audit.holdout import Holdout
    from eagle3_data.audit.rules.registry import Rule
    from eagle3_data.audit.thresholds import Thresholds

KEY_COLUMNS: dict[str, pl.DataType] = {
    # hash of the request's messages (or its text) and tools; null when there are none
    "key_prompt": pl.UInt64(),
    "key_answer": pl.UInt64(),  # hash of reasoning, content and tool calls
    # hash of both, the id, the times and the usage: equal = the same record twice
    "key_record": pl.UInt64(),
    "key_opening": pl.UInt64(),  # hash of the first 60 characters of content; null when shorter
    "key_tag": pl.String(),  # name of the tag that closes the answer; null for none
    "key_holdout": pl.Int32(),  # number of the held-out prompt inside the user text; null for none
    "key_words_prompt": pl.List(pl.UInt32),  # word hashes on sampled rows; null elsewhere
    "key_words_answer": pl.List(pl.UInt32),
}

_OPENING = 60
"""Characters of an opening: longer than a greeting, shorter than what a budget injects."""


def _but(key: str) -> str:
    """A pattern of what begins with another key; there is no look-ahead to say it with."""
    return "|".join(f"{key[:at]}[^{sign}]" for at, sign in enumerate(key))


_OTHER_KEYS = rf'\{{"(?:{_but("role")}|role[^"])|,"(?:{_but("content")}|content[^"])'
"""Matches messages that are anything but role, then content. A quote inside a text has a backslash
before it, so that every key begins with `{"` or `,"`; of texts only those match that end in { or a
comma, and lists of them. The search takes 0.35 us for 2 KB of messages, parsing them all would
take 11.
"""

_TURN = {"role", "content"}


def keys(frame: pl.DataFrame, thresholds: Thresholds, holdout: Holdout | None) -> pl.DataFrame:
    """`frame` + KEY_COLUMNS, one row for one row. Rows that are no records have nulls."""
    found = frame.with_columns(
        _in_order(frame["messages_json"], _OTHER_KEYS), _in_order(frame["tools_json"], "")
    ).select(_hashed())
    sampled = words(frame)
    none = pl.Series("key_holdout", [None] * frame.height, dtype=pl.Int32)
    return frame.hstack(
        found.with_columns(
            key_holdout=none if holdout is None else holdout.found(frame["user_text"]),
            key_words_prompt=sampled[0],
            key_words_answer=sampled[1],
        ).select(pl.col(name).cast(dtype) for name, dtype in KEY_COLUMNS.items())
    )


def _in_order(texts: pl.Series, odd: str) -> pl.Series:
    """JSON texts with their keys in one order, whichever they came in. Only those that match `odd`
    are read: the others have that order already.
    """
    at = texts.str.contains(odd).fill_null(False).arg_true()
    if at.is_empty():
        return texts
    known: dict[str, str] = {}  # tools are the same in all records of a run
    found = texts.gather(at).to_list()
    for text in found:
        if text not in known:
            known[text] = _sorted(text)
    return texts.clone().scatter(at, [known[text] for text in found])


def _sorted(text: str) -> str:
    """JSON text with sorted keys; role first where messages hold nothing but role and content, as
    nearly everyone writes them and as those stand that are not read. A text too deep to be written
    stays as it is.
    """
    try:
        value = orjson.loads(text)
        turns = value if isinstance(value, list) else [value]
        if all(turn.keys() <= _TURN for turn in turns if isinstance(turn, dict)):
            return orjson.dumps(_role_first(value)).decode()
        return orjson.dumps(value, option=orjson.OPT_SORT_KEYS).decode()
    except (orjson.JSONDecodeError, orjson.JSONEncodeError, RecursionError):
        return text


def _role_first(value: Any) -> Any:
    """The same value, its keys in the order role, content, all others sorted, at any depth."""
    if isinstance(value, dict):
        order = sorted(value, key=lambda key: (key != "role", key != "content", key))
        return {key: _role_first(value[key]) for key in order}
    return [_role_first(item) for item in value] if isinstance(value, list) else value


@cache
def _hashed() -> tuple[pl.Expr, ...]:
    """The columns of `keys` that need neither sampling nor held-out prompts; built once."""
    record = pl.col("status") == Status.RECORD.value
    asked = pl.coalesce("messages_json", "prompt_text")
    prompt = _mixed(asked.hash(seed=1), pl.col("tools_json").hash(seed=2))
    answer = _mixed(
        pl.col("reasoning").hash(seed=3),
        pl.col("content").hash(seed=4),
        pl.col("tool_calls_json").hash(seed=5),
    )
    holds = pl.any_horizontal(
        asked.is_not_null(),
        *(pl.col(c).is_not_null() for c in ("reasoning", "content", "tool_calls_json")),
        pl.col("completion_ids").is_not_null(),
    )
    rest = pl.struct(
        "record_id", "created", "latency_s", "finish_reason", "completion_tokens", "choice", "turn"
    ).hash(seed=6)
    tail = pl.col("content").str.tail(48)
    return (
        pl.when(record & asked.is_not_null()).then(prompt).alias("key_prompt"),
        pl.when(record & holds).then(answer).alias("key_answer"),
        pl.when(record & holds).then(_mixed(prompt, answer, rest)).alias("key_record"),
        pl.when(pl.col("content").str.len_bytes() > _OPENING)
        .then(pl.col("content").str.head(_OPENING).hash(seed=7))
        .alias("key_opening"),
        tail.str.extract(r"</([A-Za-z_][A-Za-z0-9_]{1,24})>\s*$").alias("key_tag"),
    )


def _mixed(*hashes: pl.Expr) -> pl.Expr:
    """One hash of several, order kept."""
    total = hashes[0]
    for one in hashes[1:]:
        total = pl.struct(total.alias("a"), one.alias("b")).hash(seed=8)
    return total


def corpus_findings(
    light: pl.DataFrame,
    thresholds: Thresholds,
    rules: Sequence[Rule],
    findings: pl.DataFrame | None = None,
) -> pl.DataFrame:
    """Findings (columns of the findings frame) of the corpus rules among `rules`, in their order.

    `light`: all light records in the order of the inputs, with KEY_COLUMNS. `findings`: those of
    the record rules; of equal records one without an error is kept. A finding of a whole file has a
    null `line`.
    """
    records = _with_wrong(light.with_row_index("row"), findings).filter(
        pl.col("status") == Status.RECORD.value
    )
    parts: list[pl.DataFrame] = []
    for rule in rules:
        if rule.search is not None and records.height:
            found = rule.search(records, thresholds)
            if found.height:
                parts.append(_findings(records, found, rule))
    return pl.concat(parts) if parts else _findings(records.clear(), records.clear(), None)


def _with_wrong(light: pl.DataFrame, findings: pl.DataFrame | None) -> pl.DataFrame:
    """`light` with `wrong`: its line has a finding of level error already."""
    if findings is None or findings.is_empty():
        return light.with_columns(wrong=pl.lit(False))
    lines = findings.filter(
        (pl.col("severity") == Severity.ERROR.value) & pl.col("line").is_not_null()
    )
    place = ["file_no", "line"]
    found = lines.select(*place, wrong=pl.lit(True)).unique()
    # only the place is joined: a join copies every column it is given
    wrong = light.select(place).join(found, on=place, how="left", maintain_order="left")["wrong"]
    return light.with_columns(wrong.fill_null(False))


def _findings(records: pl.DataFrame, found: pl.DataFrame, rule: Rule | None) -> pl.DataFrame:
    """Rows of a search as findings: place and tokens come from the record, the rest from the
    rule."""
    place = records.select(
        pl.col("row"),
        pl.col("line", "offset").cast(pl.Int64),
        pl.col("choice", "turn").cast(pl.Int32),
        pl.col("record_id"),
        pl.coalesce("supervised_tokens", "completion_tokens").cast(pl.Int64).alias("tokens"),
    )
    if rule is None:
        found = pl.DataFrame(schema={"row": pl.UInt32, "file_no": pl.Int32, "detail": pl.String})
    told = found.select(
        pl.col("row").cast(place.schema["row"]),
        pl.col("file_no").cast(pl.Int32),
        pl.col("detail").cast(pl.String),
    )
    return told.join(place, on="row", how="left", maintain_order="left").select(
        pl.lit(rule.code if rule else "").alias("code"),
        pl.lit(rule.name if rule else "").alias("name"),
        pl.lit(rule.severity.value if rule else "").alias("severity"),
        "file_no",
        "line",
        "offset",
        "choice",
        "turn",
        "record_id",
        pl.lit(rule.at if rule else "").alias("at"),
        "detail",
        "tokens",
    )
