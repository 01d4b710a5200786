"""Transport: many connections to one server, each in a pool of its own.

What enters: HTTP requests. What leaves: responses. It promises the same as one pool of `httpx2`
with as many connections, at a cost that does not grow with their number: that pool looks at every
idle connection for each request (at 64 in flight a third of the client's processor time, and more
with more).
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

import httpx2

IDLE = 4.0
"""Seconds that a connection may rest before it is closed here. Servers close theirs after five
(uvicorn), and a request that meets the closing fails.
"""


class Spread(httpx2.AsyncBaseTransport):
    """Takes the connection that rested last for a request, a new one when all are in use."""

    def __init__(self) -> None:
        self._context = httpx2.create_ssl_context()  # one for all: it takes 20 ms to make
        self._limits = httpx2.Limits(
            max_connections=1, max_keepalive_connections=1, keepalive_expiry=IDLE
        )
        self._resting: list[httpx2.AsyncHTTPTransport] = []
        self._all: list[httpx2.AsyncHTTPTransport] = []

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        one = self._resting.pop() if self._resting else self._new()
        try:
            response = await one.handle_async_request(request)
        except BaseException:
            self._resting.append(one)
            raise
        assert isinstance(response.stream, httpx2.AsyncByteStream)
        response.stream = _Lent(response.stream, one, self._resting)
        return response

    async def aclose(self) -> None:
        for one in self._all:
            await one.aclose()

    def _new(self) -> httpx2.AsyncHTTPTransport:
        made = httpx2.AsyncHTTPTransport(verify=self._context, limits=self._limits)
        self._all.append(made)
        return made


class _Lent(httpx2.AsyncByteStream):
    """The body of a response; its end gives the connection back."""

    def __init__(
        self,
        inner: httpx2.AsyncByteStream,
        one: httpx2.AsyncHTTPTransport,
        resting: list[httpx2.AsyncHTTPTransport],
    ) -> None:
        self._inner, self._one, self._resting = inner, one, resting
        self._open = True

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for part in self._inner:
            yield part

    async def aclose(self) -> None:
        try:
            await self._inner.aclose()
        finally:
            if self._open:
                self._open = False
                self._resting.append(self._one)


def spread(base_url: str) -> Spread | None:
    """None where a proxy stands between: those of the environment are read by `httpx2` itself."""
    parts = urlsplit(base_url)
    if getproxies().get(parts.scheme) or getproxies().get("all"):
        host = parts.hostname or ""
        if not proxy_bypass(host):
            return None
    return Spread()
