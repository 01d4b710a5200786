"""The manifest of a capture: what was asked of whom, and what came of it.

What enters: prompts, settings, servers, the outcome of a run. What leaves: `….manifest.json` beside
the rows, whole or not at all. It promises to be written at every end of a run but a kill, with the
earlier runs of the same file in it, and to hold no key.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import orjson

from eagle3_data import __version__
from eagle3_data.capture.generate import Outcome
from eagle3_data.capture.jobs import Survey
from eagle3_data.capture.journal import Journal, stem
from eagle3_data.capture.pool import Lane
from eagle3_data.capture.prompts import Prompts
from eagle3_data.writing import drafting

Json = dict[str, Any]
KIND, SCHEMA_VERSION = "capture", 1


@dataclass(frozen=True, slots=True)
class Facts:
    """What holds for a run from its start. `asked`: the common body; `settings`: the rest."""

    prompts: Prompts
    asked: Json
    settings: Json
    survey: Survey | None
    started: datetime


def manifest_path(rows: Path) -> Path:
    """Where the manifest of an output lies."""
    return rows.with_name(f"{stem(rows)}.manifest.json")


def made(facts: Facts, journal: Journal, lanes: Sequence[Lane], outcome: Outcome) -> Json:
    """The manifest as an object; earlier runs are taken from the one that is there."""
    wanted = facts.survey.jobs if facts.survey is not None else None
    stored, failed = len(journal.stored), len(journal.failed)
    complete = outcome.whole and failed == 0
    run = {
        "started_at": facts.started.isoformat(timespec="seconds"),
        "ended_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "ended": outcome.ended.value,
        "reason": outcome.reason,
        **_rates(outcome),
        "servers": [_server(lane) for lane in lanes],
    }
    return {
        "tool": "eagle3-data",
        "version": __version__,
        "kind": KIND,
        "schema_version": SCHEMA_VERSION,
        "complete": complete,
        "prompts": {"name": facts.prompts.name, "files": facts.prompts.digests()},
        "asked": facts.asked,
        "settings": facts.settings,
        "rows": {
            "file": journal.path.name,
            "bytes": journal.path.stat().st_size,
            "stored": stored,
            "wanted": wanted,
            "failed": failed,
            "repeated_prompts": facts.survey.repeated if facts.survey else outcome.repeated,
        },
        "runs": [*_runs(manifest_path(journal.path)), run],
    }


def write(found: Json, rows: Path) -> None:
    """Put the manifest beside the rows."""
    with drafting(manifest_path(rows), overwrite=True) as draft:
        draft.write(orjson.dumps(found, option=orjson.OPT_INDENT_2) + b"\n")


def _rates(outcome: Outcome) -> Json:
    seconds = max(outcome.seconds, 1e-9)
    return {
        "stored": outcome.stored,
        "failed": outcome.failed,
        "cut": outcome.cut,
        "completion_tokens": outcome.tokens,
        "seconds": round(outcome.seconds, 3),
        "rows_per_second": round(outcome.stored / seconds, 3),
        "tokens_per_second": round(outcome.tokens / seconds, 1),
    }


def _server(lane: Lane) -> Json:
    server = lane.server
    return {
        "base_url": server.base_url,
        "kind": server.kind.value,
        "version": server.version,
        "model": server.model,
        "asked_for_ids": lane.ids,
        "stored": lane.stored,
        "failed_attempts": lane.faults,
        "concurrency": lane.limit.value,
        "dropped": lane.dropped,
    }


def _runs(path: Path) -> list[Any]:
    """The runs that a former manifest tells; none when it is not to be read."""
    try:
        found = orjson.loads(path.read_bytes())
        runs = found["runs"] if found["kind"] == KIND else []
    except (OSError, ValueError, LookupError, TypeError):
        return []
    return runs if isinstance(runs, list) else []
