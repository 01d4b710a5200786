"""Sending: one attempt at one request, ending in a whole answer or in a named fault.

What enters: a client of `openai`, the bytes of a body. What leaves: an `Answer`, its body as the
server said it, or a `Fault` that says whether another attempt is worth while. It promises that
nothing which is cut, empty, an error text or another model's is taken for an answer, and that no
message holds a key.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Any

import orjson

from eagle3_data.capture.assembly import Assembly, BrokenStream
from eagle3_data.capture.wire import dumps, loads, one_line, printable

if TYPE_CHECKING:
    import httpx2
    from openai import AsyncOpenAI

Json = dict[str, Any]
PATH = "/chat/completions"
LONGEST_PAUSE = 900.0
"""Seconds; a date of tomorrow, or a clock that is wrong, would park the row for the night."""
ENDURED = 10
"""A response may take so many times the time-out as long as bytes arrive: a stream that only sends
keep-alive comments must end too."""


class Trouble(StrEnum):
    """Kinds of failed attempts."""

    CONNECTION = "connection"
    TIMEOUT = "timeout"
    BUSY = "busy"
    """HTTP 429: the server asks for fewer requests."""
    SERVER = "server-error"
    REFUSED = "refused"
    """HTTP 4xx: the same request will be refused again."""
    BROKEN = "broken-body"
    """A body or stream that is cut, no JSON, or not of the form."""
    ERROR_BODY = "error-body"
    """HTTP 200 with an error in place of an answer."""
    WRONG_MODEL = "wrong-model"
    ABORTED = "aborted"
    """finish_reason abort or error: the engine gave up."""


WORTH = frozenset(Trouble) - {Trouble.REFUSED}
OVERLOAD = frozenset({Trouble.BUSY, Trouble.SERVER, Trouble.TIMEOUT})
"""What lowers the concurrency."""


class Fault(ValueError):
    """A failed attempt."""

    def __init__(
        self,
        kind: Trouble,
        message: str,
        *,
        status: int | None = None,
        retry_after: float | None = None,
        again: bool | None = None,
    ) -> None:
        super().__init__(message)
        self.kind, self.status, self.retry_after = kind, status, retry_after
        self.again = kind in WORTH if again is None else again


@dataclass(frozen=True, slots=True)
class Answer:
    """A whole response. `raw`: the JSON to store, on one line; `body`: the same, parsed."""

    raw: bytes
    body: Json
    latency: float

    @property
    def finish(self) -> str | None:
        found = self.body["choices"][0].get("finish_reason")
        return found if isinstance(found, str) else None

    @property
    def tokens(self) -> int:
        """Sampled tokens as the server counts them; 0 when it does not."""
        usage = self.body.get("usage")
        found = usage.get("completion_tokens") if isinstance(usage, dict) else None
        return found if isinstance(found, int) and 0 <= found < 1 << 31 else 0


@dataclass(frozen=True, slots=True)
class Sender:
    """How one server is asked. `secret` is cut out of every message. `accepted`: model names that
    the server may echo beside the one asked. `marked`: its streams end with [DONE].
    """

    client: AsyncOpenAI
    stream: bool = False
    timeout: float = 600.0
    secret: str = ""
    accepted: Sequence[str] = ()
    marked: bool = True

    async def ask(self, content: bytes, model: str) -> Answer:
        """Send the body and read the whole answer. Raises Fault."""
        import httpx2
        import openai

        started = time.monotonic()
        try:
            async with asyncio.timeout(self.timeout * ENDURED):
                raw, body = await (self._streamed(content) if self.stream else self._whole(content))
        except openai.APIStatusError as error:
            raise self._of_status(error.response) from None
        except (openai.APITimeoutError, httpx2.TimeoutException, TimeoutError):
            raise Fault(
                Trouble.TIMEOUT, f"no byte for {self.timeout:g} s, or no end (--timeout)"
            ) from None
        except (openai.APIConnectionError, httpx2.HTTPError, httpx2.StreamError) as error:
            cause = error.__cause__ or error
            raise Fault(
                Trouble.CONNECTION, self.clean(f"{type(cause).__name__}: {cause}")
            ) from None
        except BrokenStream as error:
            raise Fault(Trouble.BROKEN, self.clean(str(error))) from None
        self._refuse(body, model)
        return Answer(raw, body, time.monotonic() - started)

    async def _whole(self, content: bytes) -> tuple[bytes, Json]:
        import httpx2

        # `post` with bytes for the body and httpx2's own response back: 2.0 ms of processor time a
        # request where chat.completions.with_raw_response.create takes 2.6 (its transform of the
        # parameters), and what is stored as the request is what was sent, to the byte
        response = await self.client.post(
            PATH,
            cast_to=httpx2.Response,
            content=content,
            options={"headers": {"Content-Type": "application/json"}},
        )
        return _parsed(response.content)

    async def _streamed(self, content: bytes) -> tuple[bytes, Json]:
        import httpx2
        import openai

        response: httpx2.Response = await self.client.post(  # type: ignore[assignment]
            PATH,
            cast_to=httpx2.Response,
            content=content,
            options={"headers": {"Content-Type": "application/json"}},
            stream=True,
            stream_cls=openai.AsyncStream[Any],
        )
        try:
            if "json" in response.headers.get("content-type", ""):  # it does not stream, or failed
                return _parsed(await response.aread())
            assembly = Assembly(self.marked)
            async for piece in response.aiter_bytes():
                assembly.feed(piece)
            body = assembly.body()
            return dumps(body, odd=assembly.odd), body
        finally:
            await response.aclose()

    def _of_status(self, response: httpx2.Response) -> Fault:
        status = response.status_code
        kind = (
            Trouble.BUSY
            if status == 429
            else Trouble.TIMEOUT
            if status in (408, 504)
            else Trouble.SERVER
            if status >= 500 or status == 409
            else Trouble.REFUSED
        )
        text = self.clean(_error_text(response.text))
        return Fault(
            kind, f"HTTP {status}: {text}", status=status, retry_after=retry_after(response.headers)
        )

    def _refuse(self, body: Json, model: str) -> None:
        """Raise Fault when a body that came with HTTP 200 is no answer."""
        error = body.get("error") or (body if body.get("object") == "error" else None)
        if error:
            code = error.get("code") if isinstance(error, dict) else None
            refused = isinstance(code, int) and 400 <= code < 500 and code not in (408, 409, 429)
            text = self.clean(_error_text(dumps(error).decode()))
            raise Fault(
                Trouble.ERROR_BODY, f"HTTP 200 with an error inside: {text}", again=not refused
            )
        choices = body.get("choices")
        if not isinstance(choices, list) or not choices:
            raise Fault(Trouble.BROKEN, "a body without choices")
        for choice in choices:
            if not isinstance(choice, dict) or not isinstance(choice.get("message"), dict):
                raise Fault(Trouble.BROKEN, "a choice without a message")
            finish = choice.get("finish_reason")
            if not finish:
                raise Fault(Trouble.BROKEN, "a choice without a finish_reason")
            if finish in ("abort", "error", "cancelled"):
                raise Fault(Trouble.ABORTED, f"finish_reason {finish!r}: the engine gave up")
        echoed = body.get("model")
        if isinstance(echoed, str) and echoed and not same_model(model, echoed):
            if echoed in self.accepted:
                return
            raise Fault(
                Trouble.WRONG_MODEL,
                self.clean(
                    f"asked for model {model!r}, the answer is of {echoed!r}: is a router in"
                    f" between? If they are the same, pass --accept-model {echoed}"
                ),
            )

    def clean(self, text: str) -> str:
        """`text` on one line, bounded, without the key."""
        text = printable(" ".join(text.split()))
        if self.secret:
            text = text.replace(self.secret, "***")
        return text[:500]


def same_model(asked: str, echoed: str) -> bool:
    """True when an echo names the model asked for: equal, the last part of its path, its revision
    (transformers serve: org/m → org/m@main), or its dated release (gpt-x → gpt-x-2026-01-31).
    """
    if "@" not in asked:
        echoed = echoed.partition("@")[0]
    if asked == echoed or asked.rsplit("/", 1)[-1] == echoed.rsplit("/", 1)[-1]:
        return True
    rest = echoed.removeprefix(asked + "-")
    return rest != echoed and rest.replace("-", "").isdigit()


def retry_after(headers: httpx2.Headers) -> float | None:
    """Seconds that the server asks to wait for: a number, or a date; at most LONGEST_PAUSE."""
    held = headers.get("retry-after-ms")
    scale = 1000.0
    if held is None:
        held, scale = headers.get("retry-after"), 1.0
    if not held:
        return None
    try:
        return min(LONGEST_PAUSE, max(0.0, float(held) / scale))
    except ValueError:
        pass
    try:
        wait = parsedate_to_datetime(held).timestamp() - time.time()
        return min(LONGEST_PAUSE, max(0.0, wait))
    except (ValueError, TypeError, OverflowError):
        return None


def _parsed(content: bytes) -> tuple[bytes, Json]:
    """The JSON to store, on one line, and its value. Raises BrokenStream."""
    content = one_line(content)
    try:
        value = loads(content)
    except (ValueError, RecursionError) as error:
        told = " ".join(str(error).split())[:120]
        raise BrokenStream(f"a body of {len(content)} bytes that is not JSON ({told})") from None
    if not isinstance(value, dict):
        raise BrokenStream("a body that is no JSON object")
    return content, value


def _error_text(text: str) -> str:
    """The message in an error body, else the body itself."""
    try:
        value = orjson.loads(text)
    except orjson.JSONDecodeError:
        return text
    for _ in range(2):
        if isinstance(value, dict):
            value = value.get("error") or value.get("message") or value.get("detail") or value
    return value if isinstance(value, str) else orjson.dumps(value).decode()
