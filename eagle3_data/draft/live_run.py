"""The live half of `acceptance`: prompts sent greedily to an engine that speculates, ids returned.

What enters: an address, prompts. What leaves: a `Run`: the ids that this very run fed and sampled,
what the engine counted meanwhile, whether it died. It promises that the first request is sent
alone, so that an engine which is healthy until it drafts is told from one that fails later; and
that ids of another run are never used: greedy text depends on the shape of batches.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING, Any

import orjson

from eagle3_data.capture.ids import ask_for_ids
from eagle3_data.capture.prompts import Prompts
from eagle3_data.capture.request import Json, Settings, body, merged
from eagle3_data.capture.send import Answer, Fault, Sender, Trouble
from eagle3_data.capture.server import (
    NO_KEY,
    Kind,
    Server,
    ServerFault,
    connect,
    identify,
    read_bytes,
)
from eagle3_data.draft.live import (
    Counted,
    LiveError,
    Scrape,
    between,
    of_answers,
    scrape,
    told_length,
)
from eagle3_data.records.bodies import read_body
from eagle3_data.records.row import Row

if TYPE_CHECKING:
    import httpx2
    from openai import AsyncOpenAI

    from eagle3_data.capture.prompts import Prompt

ATTEMPTS = 3
SETTLED_S = 0.25
"""Between two looks at counters that are still written after the last answer."""
LOOKS = 20
FATAL = frozenset({Trouble.SERVER, Trouble.CONNECTION, Trouble.ABORTED})
CHAT = {Kind.SGLANG: {"return_meta_info": True}}
"""More that an engine is asked for: SGLang counts steps in each answer and nowhere else."""


@dataclass(frozen=True, slots=True)
class Asked:
    """How the engine is asked. `engine`: None = found out."""

    base_url: str
    engine: Kind | None = None
    model: str | None = None
    key: str = NO_KEY
    max_tokens: int = 256
    limit: int | None = None
    concurrency: int = 8
    timeout: float = 600.0
    extra: Json = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Said:
    """One conversation of the run."""

    prompt: list[int]
    sampled: list[int]


@dataclass(slots=True)
class Run:
    """`died`: what was seen when the engine failed, "" when it did not. `counted`: None when it
    counts no speculation.
    """

    server: Server
    said: list[Said] = field(default_factory=list)
    counted: Counted | None = None
    died: str = ""
    warnings: list[str] = field(default_factory=list)


async def run(
    asked: Asked,
    prompts: Prompts,
    *,
    transport: httpx2.AsyncBaseTransport | None = None,
    told: Callable[[int, int], None] = lambda _done, _total: None,
) -> Run:
    """Send the prompts and take the counters. Raises ServerFault, LiveError, InputError."""
    chosen = list(islice(prompts.read(), asked.limit))
    if not chosen:
        raise LiveError(f"{prompts.name} holds no prompt")
    client = connect(asked.base_url, api_key=asked.key, timeout=asked.timeout, transport=transport)
    async with client:
        server = await identify(client, model=asked.model)
        kind = asked.engine or server.kind
        found = Run(server)
        sender = Sender(client, False, asked.timeout, "" if asked.key == NO_KEY else asked.key)
        extra = merged(merged(ask_for_ids(kind), CHAT.get(kind, {})), asked.extra)
        options: Json = {"temperature": 0.0, "max_tokens": asked.max_tokens}
        common = Settings(server.model, options, extra=extra).common()
        before = await _scrape(client, server, kind)
        answers = await _ask(found, sender, common, chosen, asked.concurrency, told)
        if found.died:
            return found
        after = await _settled(client, server, kind)
        found.said = [await _ids(answer, client, server) for answer in answers]
        if (before is None) != (after is None):
            raise LiveError(
                f"{server.root}/metrics could be read {'after' if before is None else 'before'} the"
                " run and not at its other end: only the difference of both tells of this run; try"
                " again"
            )
        found.counted = _counted(found, before or Scrape(), after or Scrape(), answers)
    return found


async def _ask(
    found: Run,
    sender: Sender,
    common: Json,
    prompts: Sequence[Prompt],
    concurrency: int,
    told: Callable[[int, int], None],
) -> list[Answer]:
    """All answers in order; the engine's death is noted and ends the run."""
    healthy = await _health(sender.client, found.server)
    gate = asyncio.Semaphore(concurrency)
    done = 0

    async def one(prompt: Prompt) -> Answer:
        nonlocal done
        content = orjson.dumps(body(prompt, common, 0))
        async with gate:
            if found.died:
                raise Fault(Trouble.ABORTED, found.died)
            for attempt in range(1, ATTEMPTS + 1):
                try:
                    answer = await sender.ask(content, found.server.model)
                    break
                except Fault as fault:
                    if fault.kind in FATAL and fault.status != 503:
                        found.died = found.died or str(fault)
                        raise
                    if not fault.again or attempt == ATTEMPTS:
                        raise ServerFault(f"{prompt.place}: {fault}") from None
                    await asyncio.sleep(min(fault.retry_after or 1.0, 30.0))
        done += 1
        told(done, len(prompts))
        return answer

    try:
        first = await one(prompts[0])
    except Fault:
        was = "healthy, and the first request failed" if healthy else "the first request failed"
        found.died = f"{was}: {found.died}"
        return []
    made = await asyncio.gather(*(one(p) for p in prompts[1:]), return_exceptions=True)
    if found.died:
        found.died = f"a request failed after {done} answers: {found.died}"
        return []
    answers = [first]
    for answer in made:
        if isinstance(answer, BaseException):
            raise answer
        answers.append(answer)
    return answers


async def _health(client: AsyncOpenAI, server: Server) -> bool:
    try:
        status, _ = await read_bytes(client, f"{server.root}/health")
    except ServerFault:
        return False
    return status == 200


async def _scrape(client: AsyncOpenAI, server: Server, kind: Kind) -> Scrape | None:
    """The counters, empty where an engine has none; None when they could not be read."""
    try:
        status, page = await read_bytes(client, f"{server.root}/metrics")
        if status >= 500:
            return None
        found = scrape(page.decode("utf-8", "replace")) if status == 200 else Scrape()
        if kind is Kind.SGLANG:
            for name in ("server_info", "get_server_info"):
                status, page = await read_bytes(client, f"{server.root}/{name}")
                if status == 200:
                    return Scrape(length=told_length(page.decode("utf-8", "replace")))
        return found
    except ServerFault:
        return None


async def _settled(client: AsyncOpenAI, server: Server, kind: Kind) -> Scrape | None:
    """The counters once they stand still: engines write them behind the last answer."""
    last = await _scrape(client, server, kind)
    for _ in range(LOOKS):
        await asyncio.sleep(SETTLED_S)
        now = await _scrape(client, server, kind)
        if now == last:
            break
        last = now
    return last


def _counted(
    found: Run, before: Scrape, after: Scrape, answers: Sequence[Answer]
) -> Counted | None:
    counted = between(before, after) if before.found or after.found else None
    if counted is not None:
        sampled = sum(len(one.sampled) for one in found.said)
        made = None if after.made is None or before.made is None else after.made - before.made
        # drafts that were accepted behind a stop token or max_tokens are counted, not said
        if made is not None and abs(made - sampled) > max(8, sampled // 50):
            found.warnings.append(
                f"the engine made {made:,.0f} tokens meanwhile, this run {sampled:,}: others used"
                " it, and their steps are in the counters; measure while it is idle"
            )
        return counted
    counted = of_answers([answer.body for answer in answers])
    if counted is None and after.length is not None:
        found.warnings.append(
            "the engine tells only its mean since it was started, other requests included: start"
            " it anew before the measurement"
        )
        return Counted("mean since the start of the engine", 0, 0, None, after.length)
    return counted


async def _ids(answer: Answer, client: AsyncOpenAI, server: Server) -> Said:
    """The ids of an answer. Raises LiveError when they did not arrive."""
    cells = read_body(Row(), answer.body)[0].cells
    prompt, sampled = cells.get("prompt_ids"), cells.get("completion_ids")
    verbose: Any = answer.body.get("__verbose")
    text = verbose.get("prompt") if isinstance(verbose, dict) else None
    if prompt is None and isinstance(text, str):
        prompt = await _tokenized(client, server, text)
    if not prompt or not sampled:
        raise LiveError(
            f"{server.base_url} ({server.kind}) returned no ids of its"
            f" {'prompt' if sampled else 'answer'}, and ids of another run tell nothing: ask vLLM"
            " 0.11, SGLang 0.5.19 or llama.cpp b11434 or newer, or name the kind with --engine"
        )
    return Said(list(prompt), list(sampled))


async def _tokenized(client: AsyncOpenAI, server: Server, text: str) -> list[int] | None:
    """llama.cpp tells its prompt as text, and turns it into ids at another address."""
    import httpx2
    from openai import APIConnectionError, APIStatusError

    asked = {"content": text, "add_special": True, "parse_special": True}
    try:
        response = await client.post(f"{server.root}/tokenize", cast_to=httpx2.Response, body=asked)
        found = orjson.loads(response.content).get("tokens")
    except (APIStatusError, APIConnectionError, orjson.JSONDecodeError, AttributeError):
        return None
    return found if isinstance(found, list) else None
