"""The answer columns of a batch as `Answer`s: what the grammar needs to know about each record.

What enters: a record frame. What leaves: one `Answer` a row, None where there is nothing to
assemble.
It promises that a thought which is there was sampled as one; else `profiles.thinking` decides.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import orjson
import polars as pl

from eagle3_data.profiles.thinking import thinking_on
from eagle3_data.records.table import Note, Status
from eagle3_data.tokens.candidates import Answer, stopped
from eagle3_data.tokens.grammar import Place
from eagle3_data.tokens.markers import Markers
from eagle3_data.tokens.servers import stripped_places, was_read

if TYPE_CHECKING:
    from eagle3_data.profiles.profile import Profile

ERROR_BODY = int(Note.ERROR_BODY)
COLUMNS = (
    "reasoning", "content", "tool_calls_json", "finish_reason", "stop_reason", "server",
    "server_version", "notes", "status", "settings_json",
)  # fmt: skip


def answers(
    records: pl.DataFrame, profile: Profile, markers: Markers, thinking: Sequence[bool]
) -> list[Answer | None]:
    """One `Answer` a row. A row without a text or a tool call, or with an error body, has none.
    `thinking`: as `thinks` gives it.
    """
    spelled = _spelled(records, markers)
    strips: dict[tuple[str | None, str | None, bool], tuple[frozenset[Place], bool]] = {}
    stops: dict[tuple[str | None, str | None], Any] = {}
    out: list[Answer | None] = []
    columns = [records.get_column(name).to_list() for name in COLUMNS]
    for *row, inside, quoting in zip(*columns, thinking, spelled, strict=True):
        reasoning, content, calls_json, finish, reason, server, version, notes, status, *rest = row
        if status != Status.RECORD or notes & ERROR_BODY:
            out.append(None)
            continue
        calls = _calls(calls_json) if calls_json else None
        if not reasoning and not content and calls is None:
            out.append(None)
            continue
        place = (server, version, calls is not None)
        if place not in strips:
            strips[place] = (
                stripped_places(profile, server, version, tools=place[2]),
                was_read(server, version),
            )
        if (finish, reason) not in stops:
            stops[finish, reason] = stopped(finish, reason, markers)
        stop, end, stop_text = stops[finish, reason]
        out.append(
            Answer(
                reasoning or "", content or "", calls, inside,
                stop, end, stop_text, bool(stop_text) and _keeps_stop(rest[0]),
                quoting, *strips[place],
            )
        )  # fmt: skip
    return out


def _keeps_stop(settings: str | None) -> bool:
    """Whether the request asked to leave the stop string in the text (a vLLM option)."""
    return '"include_stop_str_in_output":true' in (settings or "").replace(" ", "")


def thinks(records: pl.DataFrame, profile: Profile) -> list[bool]:
    """Whether each turn was sampled with thinking on.

    A thought beside a request that turned thinking off was parsed out of the output all the same:
    it is written as one.
    """
    thought = (pl.col("reasoning").str.len_bytes() > 0).fill_null(False)
    asked = thinking_on(profile, shown=False)
    return records.select(thinking=thought | asked)["thinking"].to_list()


def _spelled(records: pl.DataFrame, markers: Markers) -> Sequence[bool]:
    if not markers.ids:
        return [False] * records.height
    hits = [
        pl.col(name).str.contains_any(list(markers.ids)).fill_null(False)
        for name in ("reasoning", "content")
    ]
    return records.select(pl.any_horizontal(hits)).to_series().to_list()


def _calls(text: str) -> list[Mapping[str, str]] | None:
    try:
        calls = orjson.loads(text)
    except orjson.JSONDecodeError:
        return None
    if not isinstance(calls, list) or not calls:
        return None
    return [_call(call) for call in calls if isinstance(call, dict)] or None


def _call(call: dict[str, Any]) -> dict[str, str]:
    fields: dict[str, str] = {}
    for key in ("id", "name", "arguments"):
        value = call.get(key)
        fields[key] = (
            value
            if isinstance(value, str)
            else ""
            if value is None
            else orjson.dumps(value).decode()
        )
    return fields
