"""The answers of a probe, and the asking.

What enters: questions. What leaves: one `Answer` a question, whatever the server did: an answer, a
refusal, silence. It promises to read bodies as `check` reads them, and that nothing raises but a
server that is not there at all.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import orjson

from eagle3_data.audit.inert import inert
from eagle3_data.capture.probe_questions import Json, Question
from eagle3_data.capture.server import Server, whole_wait, without_key
from eagle3_data.records.bodies import read_body
from eagle3_data.records.errors import error_of_body
from eagle3_data.records.row import Row

if TYPE_CHECKING:
    from openai import AsyncOpenAI

AT_ONCE = 4
REFUSALS = frozenset({400, 404, 405, 415, 422, 501})


@dataclass(frozen=True, slots=True)
class Answer:
    """`status`: HTTP, None when nothing came. `fault`: what went wrong, inert, "" for an answer."""

    question: Question
    status: int | None
    body: Json = field(hash=False)
    cells: Json = field(hash=False)
    fault: str = ""

    @property
    def ok(self) -> bool:
        return not self.fault

    @property
    def refused(self) -> bool:
        """The server does not want the request as it is."""
        return self.status in REFUSALS

    @property
    def content(self) -> str:
        return str(self.cells.get("content") or "")

    @property
    def reasoning(self) -> str:
        return str(self.cells.get("reasoning") or "")

    @property
    def text(self) -> str:
        """All that came, thought first."""
        return self.reasoning + self.content

    @property
    def reasoning_key(self) -> str | None:
        found = self.cells.get("reasoning_key")
        return found if isinstance(found, str) else None

    @property
    def finish(self) -> str | None:
        found = self.cells.get("finish_reason")
        return found if isinstance(found, str) else None

    @property
    def prompt_tokens(self) -> int | None:
        return _whole(self.cells.get("prompt_tokens"))

    @property
    def completion_tokens(self) -> int | None:
        return _whole(self.cells.get("completion_tokens"))

    @property
    def prompt_ids(self) -> list[int] | None:
        return _ids(self.cells.get("prompt_ids"))

    @property
    def prompt_text(self) -> str:
        """The rendered prompt where the server tells it (llama.cpp), else ""."""
        inner = self.body.get("__verbose")
        found = inner.get("prompt") if isinstance(inner, dict) else None
        return found if isinstance(found, str) else ""

    @property
    def completion_ids(self) -> list[int] | None:
        return _ids(self.cells.get("completion_ids"))


@dataclass(slots=True)
class Asker:
    """Asks one server, a few questions at a time, and keeps every answer in the order asked."""

    client: AsyncOpenAI
    server: Server
    answers: list[Answer] = field(default_factory=list)
    gate: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(AT_ONCE))

    async def ask(self, question: Question) -> Answer:
        """Ask one question."""
        return (await self.ask_all([question]))[0]

    async def ask_all(self, questions: Iterable[Question]) -> list[Answer]:
        """Ask some questions at once."""
        found = list(await asyncio.gather(*(self._one(question) for question in questions)))
        self.answers += found
        return found

    async def _one(self, question: Question) -> Answer:
        async with self.gate:
            status, raw = await _posted(self.client, question.body(self.server.model))
        return read(question, status, without_key(raw, self.client))


async def _posted(client: AsyncOpenAI, body: Json) -> tuple[int | None, bytes]:
    import httpx2
    from openai import APIConnectionError, APIStatusError, APITimeoutError

    try:
        async with asyncio.timeout(whole_wait(client)):
            response = await client.post("/chat/completions", cast_to=httpx2.Response, body=body)
    except APIStatusError as error:
        return error.status_code, error.response.content
    except (APITimeoutError, TimeoutError):
        return None, b"no answer in time"
    except APIConnectionError as error:
        return None, f"the connection broke ({type(error.__cause__ or error).__name__})".encode()
    return response.status_code, response.content


def read(question: Question, status: int | None, raw: bytes) -> Answer:
    """The answer that a response holds."""
    if status is None:
        return Answer(question, None, {}, {}, raw.decode())
    try:
        body = orjson.loads(raw)
    except orjson.JSONDecodeError:
        body = None
    if not isinstance(body, dict):
        return Answer(question, status, {}, {}, f"HTTP {status}, no JSON object")
    error = error_of_body(body)
    if status >= 400 or error is not None or not body.get("choices"):
        told = inert(error or "no choices in the body", 300)
        return Answer(question, status, body, {}, f"HTTP {status}: {told}")
    return Answer(question, status, body, read_body(Row(), body)[0].cells)


def named(answers: Sequence[Answer], name: str) -> list[Answer]:
    """The answers to the questions of that name that are answers."""
    return [answer for answer in answers if answer.ok and answer.question.name == name]


def _whole(value: Any) -> int | None:
    return value if isinstance(value, int) else None


def _ids(value: Any) -> list[int] | None:
    """A list of ids, None for anything else in it."""
    if not isinstance(value, list) or not value:
        return None
    return value if all(isinstance(i, int) and 0 <= i < 1 << 31 for i in value) else None
