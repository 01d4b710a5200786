"""The session: everything that is settled before the first prompt is sent.

What enters: addresses, a key, options. What leaves: lanes for the pool, the settings of all rows,
the survey of the prompts. It promises that what can not work is refused here: a server that is not
there, servers with different models, a switch that the model family lacks, prompts with a bad line,
an output that holds another run's rows.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import orjson

from eagle3_data.capture.ids import WAYS, ask_for_ids
from eagle3_data.capture.jobs import Survey
from eagle3_data.capture.journal import Journal, JournalError
from eagle3_data.capture.limit import Adaptive, Fixed
from eagle3_data.capture.pool import Lane
from eagle3_data.capture.request import Json
from eagle3_data.capture.send import Sender
from eagle3_data.capture.server import NO_KEY, Kind, ServerFault, connect, identify, normal_url
from eagle3_data.capture.wire import loads

if TYPE_CHECKING:
    import httpx2

_ROAD = {"messages", "tools", "stream", "stream_options", "seed"} | {
    k for w in WAYS for k in w.body
}
"""Keys of a body that tell nothing of the settings (the seed differs from sample to sample)."""


@dataclass(frozen=True, slots=True)
class Way:
    """How servers are asked. `concurrency`: None = found by trying; `ids`: ask for token ids."""

    urls: Sequence[str]
    model: str | None
    key: str
    timeout: float
    stream: bool
    concurrency: int | None
    ids: bool
    accepted: Sequence[str] = ()

    @property
    def secret(self) -> str:
        """The key, when it is one."""
        return "" if self.key == NO_KEY else self.key


async def open_lanes(way: Way) -> list[Lane]:
    """Connect to each server and learn what it is. Raises ServerFault for the first that is not
    there: at the start a name is more often wrong than a server down.
    """
    urls = list(dict.fromkeys(normal_url(url) for url in way.urls))
    lanes = await asyncio.gather(*(_lane(url, way) for url in urls))
    models = {lane.server.model for lane in lanes}
    if len(models) > 1:
        told = ", ".join(f"{lane.server.base_url}: {lane.server.model}" for lane in lanes)
        raise ServerFault(
            f"the servers have different models ({told}): name the one to ask with --model, or run"
            " one capture for each"
        )
    return lanes


def transport(url: str) -> httpx2.AsyncBaseTransport | None:
    """The connections to a server; None where `httpx2` must choose (a proxy)."""
    from eagle3_data.capture.transport import spread

    return spread(url)


async def _lane(url: str, way: Way) -> Lane:
    client = connect(url, api_key=way.key, timeout=way.timeout, transport=transport(url))
    server = await identify(client, model=way.model)
    limit = Adaptive() if way.concurrency is None else Fixed(way.concurrency)
    marked = server.kind is not Kind.TRANSFORMERS
    sender = Sender(client, way.stream, way.timeout, way.secret, way.accepted, marked)
    ids = ask_for_ids(server.kind, stream=way.stream) if way.ids else {}
    return Lane(server, sender, limit, ids)


def proven(ids: Json, *, stream: bool) -> Json:
    """The keys that a probe saw ids arrive with, or their like for a stream."""
    known = next((way for way in WAYS if dict(way.body) == ids), None)
    if not stream or known is None or known.streams:
        return ids
    return ask_for_ids(known.kind, stream=True)


def refuse_foreign(journal: Journal, survey: Survey, common: Json) -> None:
    """Raise when the rows that are there are of other prompts or settings, all of them: going on
    would mix two captures in one file.
    """
    if not journal.stored or survey.stored:
        return
    told = "; ".join(_differences(journal.first, common)) or "other prompts"
    raise JournalError(
        f"{journal.path} holds {len(journal.stored)} rows, none of these prompts with these"
        f" settings ({told}): pass what they were asked with, or choose another output"
    )


def _differences(first: bytes | None, common: Json) -> list[str]:
    """`temperature 0.7, now 1.0` for each setting of the first row that is another now."""
    request: Any = loads(first).get("request") if first else None
    if not isinstance(request, dict):
        return []
    names = sorted((request.keys() | common.keys()) - _ROAD)
    return [
        f"{name} {_shown(request.get(name))}, now {_shown(common.get(name))}"
        for name in names
        if request.get(name) != common.get(name)
    ]


def _shown(value: Any) -> str:
    return "not set" if value is None else orjson.dumps(value).decode()[:80]
