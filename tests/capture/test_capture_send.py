"""One attempt: what is an answer, and which fault each failure is."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from email.utils import formatdate
from typing import Any

import httpx2
import orjson
import pytest
from asking import URL, Reply, answer

from eagle3_data.capture.send import Answer, Fault, Sender, Trouble, retry_after, same_model
from eagle3_data.capture.server import connect

ASKED = {"model": "model-a", "messages": [{"role": "user", "content": "hi"}]}
KEY = "sk-canary-0123456789"


def ask(
    reply: Callable[[httpx2.Request], Reply], *, stream: bool = False, **options: Any
) -> Answer:
    async def handle(request: httpx2.Request) -> httpx2.Response:
        made = reply(request)
        return made if isinstance(made, httpx2.Response) else await made

    async def run() -> Answer:
        client = connect(URL, api_key=KEY, transport=httpx2.MockTransport(handle))
        async with client:
            sender = Sender(client, stream=stream, secret=KEY, **options)
            return await sender.ask(orjson.dumps(ASKED), ASKED["model"])

    return asyncio.run(run())


def fault(reply: Callable[[httpx2.Request], Reply], **options: Any) -> Fault:
    with pytest.raises(Fault) as raised:
        ask(reply, **options)
    assert KEY not in str(raised.value)
    return raised.value


def body(value: Any, status: int = 200, **headers: str) -> Callable[[httpx2.Request], Reply]:
    content = value if isinstance(value, bytes) else orjson.dumps(value)
    return lambda _: httpx2.Response(status, content=content, headers=headers)


def with_choice(**more: Any) -> Any:
    made = answer(ASKED)
    made["choices"][0] |= more
    return made


def test_an_answer_is_kept_to_the_byte() -> None:
    told = b'{"choices": [{"index":0,\r\n "message":{"content":"a\\nb","x":1.10},\n'
    told += b'"finish_reason":"stop"}],"model":"model-a","usage":{"completion_tokens":3}}\n'
    seen = []

    def reply(request: httpx2.Request) -> httpx2.Response:
        seen.append((request.content, request.headers["authorization"], request.url.path))
        return httpx2.Response(200, content=told)

    found = ask(reply)
    assert found.raw == told.replace(b"\r", b"").replace(b"\n", b"")
    assert found.body["choices"][0]["message"]["content"] == "a\nb"
    assert (found.finish, found.tokens) == ("stop", 3)
    assert seen == [(orjson.dumps(ASKED), f"Bearer {KEY}", "/v1/chat/completions")]


def test_not_a_number_is_an_answer_that_check_tells_of() -> None:
    told = orjson.dumps(with_choice(score=1.5)).replace(b"1.5", b"NaN")
    assert b"NaN" in ask(body(told)).raw


NO_ANSWERS: dict[str, tuple[Callable[[httpx2.Request], Reply], Trouble, bool]] = {
    "429": (body({"error": {"message": "slow down"}}, 429), Trouble.BUSY, True),
    "502-page": (body(b"<html>bad gateway</html>", 502), Trouble.SERVER, True),
    "500-empty": (body(b"", 500), Trouble.SERVER, True),
    "409": (body({"detail": "try again"}, 409), Trouble.SERVER, True),
    "408": (body(b"", 408), Trouble.TIMEOUT, True),
    "504": (body(b"", 504), Trouble.TIMEOUT, True),
    "400": (body({"error": {"message": "too long"}}, 400), Trouble.REFUSED, False),
    "401-with-key": (body({"error": f"wrong key {KEY}"}, 401), Trouble.REFUSED, False),
    "cut": (body(b'{"choices": [{"mess'), Trouble.BROKEN, True),
    "list": (body([1]), Trouble.BROKEN, True),
    "page": (body(b"<html>login</html>"), Trouble.BROKEN, True),
    "no-choice-in-it": (body({"choices": []}), Trouble.BROKEN, True),
    "no-choices": (body({"id": "x"}), Trouble.BROKEN, True),
    "choice-no-object": (body({"choices": ["x"]}), Trouble.BROKEN, True),
    "no-message": (body(with_choice(message=None)), Trouble.BROKEN, True),
    "no-finish": (body(with_choice(finish_reason=None)), Trouble.BROKEN, True),
    "abort": (body(with_choice(finish_reason="abort")), Trouble.ABORTED, True),
    "error-500": (
        body({"error": {"message": f"oom {KEY}", "code": 500}}),
        Trouble.ERROR_BODY,
        True,
    ),
    "error-400": (
        body({"object": "error", "message": "bad", "code": 400}),
        Trouble.ERROR_BODY,
        False,
    ),
    "other-model": (body(answer(ASKED) | {"model": "model-b"}), Trouble.WRONG_MODEL, True),
}


@pytest.mark.parametrize("name", NO_ANSWERS)
def test_what_is_no_answer(name: str) -> None:
    reply, kind, again = NO_ANSWERS[name]
    found = fault(reply)
    assert (found.kind, found.again) == (kind, again)


def test_the_servers_own_words_are_told() -> None:
    found = fault(body({"error": {"message": "context of\n 2048 tokens"}}, 400))
    assert (str(found), found.status) == ("HTTP 400: context of 2048 tokens", 400)
    assert len(str(fault(body(b"x" * 9999, 500)))) < 600


def failing(error: Exception) -> Callable[[httpx2.Request], Reply]:
    def reply(_: httpx2.Request) -> httpx2.Response:
        raise error

    return reply


def test_the_road_may_break() -> None:
    assert fault(failing(httpx2.ReadTimeout(KEY))).kind is Trouble.TIMEOUT
    assert fault(failing(httpx2.ConnectError(f"refused {KEY}"))).kind is Trouble.CONNECTION
    assert fault(failing(httpx2.RemoteProtocolError("cut"))).kind is Trouble.CONNECTION


class Cut(httpx2.AsyncByteStream):
    """A body that breaks in the middle, or goes on for ever."""

    def __init__(self, error: Exception | None) -> None:
        self.error = error

    async def __aiter__(self) -> Any:
        yield b'data: {"choices": []}\n\n'
        while self.error is None:
            await asyncio.sleep(0.01)
            yield b": still here\n\n"
        raise self.error


@pytest.mark.parametrize("stream", [False, True])
def test_a_body_may_break_in_the_middle(stream: bool) -> None:
    cut = fault(
        lambda _: httpx2.Response(200, stream=Cut(httpx2.ReadError("reset"))), stream=stream
    )
    assert cut.kind is Trouble.CONNECTION


def test_a_stream_of_comments_ends() -> None:
    started = time.monotonic()
    found = fault(lambda _: httpx2.Response(200, stream=Cut(None)), stream=True, timeout=0.02)
    assert found.kind is Trouble.TIMEOUT
    assert time.monotonic() - started < 5


def test_a_server_that_does_not_stream_is_understood() -> None:
    reply = body(answer(ASKED), **{"content-type": "application/json"})
    assert ask(reply, stream=True).body == answer(ASKED)


def test_a_stream_that_is_none_is_no_answer() -> None:
    assert fault(body(b"<html>"), stream=True).kind is Trouble.BROKEN
    assert fault(body(b'data: {"choices": []}\n\n'), stream=True).kind is Trouble.BROKEN


@pytest.mark.parametrize(
    ("asked", "echoed", "same"),
    [
        ("m", "m", True),
        ("org/m", "m", True),
        ("m", "/models/m", True),
        ("gpt-x", "gpt-x-2026-01-31", True),
        ("org/m", "org/m@main", True),
        ("org/m@dev", "org/m@main", False),
        ("gpt-x", "gpt-x-mini", False),
        ("m", "n", False),
        ("m", "m2", False),
    ],
)
def test_names_of_one_model(asked: str, echoed: str, same: bool) -> None:
    assert same_model(asked, echoed) is same


def test_another_name_can_be_accepted() -> None:
    reply = body(answer(ASKED) | {"model": "model-b"})
    assert "--accept-model model-b" in str(fault(reply))
    assert ask(reply, accepted=("model-b",)).body["model"] == "model-b"


def test_retry_after_is_seconds_or_a_date() -> None:
    def read(**held: str) -> float | None:
        return retry_after(httpx2.Headers({k.replace("_", "-"): v for k, v in held.items()}))

    assert read(retry_after="2") == 2.0
    assert read(retry_after_ms="250", retry_after="9") == 0.25
    assert 58 < (read(retry_after=formatdate(time.time() + 60, usegmt=True)) or 0) <= 60
    assert read(retry_after="Mon, 01 Jan 2001 00:00:00 GMT") == 0.0
    assert read(retry_after="soon") is None
    assert read() is None
    assert fault(body(b"", 429, **{"retry-after": "7"})).retry_after == 7.0
