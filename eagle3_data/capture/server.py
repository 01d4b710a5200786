"""The server that is asked: its address, its kind and version, the model it serves.

What enters: a base URL and a key. What leaves: an `openai` client and a `Server`. It promises that
a key is never part of what it returns or says: an address that holds one is refused, and a key
that can not be sent is told without its text.
"""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import orjson

from eagle3_data.audit.inert import inert
from eagle3_data.capture.missing import needed
from eagle3_data.capture.wire import cutter

if TYPE_CHECKING:
    import httpx2
    from openai import AsyncOpenAI

KEY_VARIABLES = ("EAGLE3_API_KEY", "OPENAI_API_KEY")
NO_KEY = "none"
"""Sent when there is no key: servers of one's own ask for none, the client insists on one."""
CONNECT_S = 10.0
"""A server that is there accepts a connection at once; an answer may take minutes."""
SHOWN = 8
"""Model names told in a message; a router serves hundreds."""

_VERSION_SEGMENT = re.compile(r"v\d+\w*")
_ENDPOINTS = ("/chat/completions", "/completions", "/models", "/responses")


class ServerFault(ValueError):
    """A server that can not be asked; the message says what to do next and holds no key."""


class Kind(StrEnum):
    """What answers. The values are the names that the records room gives servers, too."""

    VLLM = "vllm"
    SGLANG = "sglang"
    LLAMACPP = "llama.cpp"
    TRANSFORMERS = "transformers"
    UNKNOWN = "openai-compatible"


@dataclass(frozen=True, slots=True)
class Server:
    """`base_url` ends in /v1 (or another version) and holds no key; `model`: the name in use;
    `models`: all that are served.
    """

    base_url: str
    kind: Kind
    version: str | None
    model: str
    models: tuple[str, ...]

    @property
    def root(self) -> str:
        """Where the endpoints beside the API lie (/metrics, /version)."""
        return root_of(self.base_url)


def normal_url(text: str) -> str:
    """The base URL of a server: scheme added, endpoint cut off, /v1 added where no version is.

    Raises ServerFault. Keys belong into a header: an address is stored in every row.
    """
    given = text.strip()
    address = given if "://" in given else f"http://{given}"
    try:
        parts = urlsplit(address)
        port = parts.port
    except ValueError:
        raise ServerFault("--base-url is no address: give http://host:port/v1") from None
    if parts.username is not None or parts.password is not None or parts.query or parts.fragment:
        raise ServerFault(
            f"--base-url {parts.hostname}: an address with a user, a password or a query is"
            " refused, because it is stored with every row; put the key into EAGLE3_API_KEY, or"
            " name its variable with --api-key-env"
        )
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ServerFault(f"--base-url {inert(given, 100)}: give http://host:port/v1")
    path = parts.path.rstrip("/")
    for endpoint in _ENDPOINTS:
        path = path.removesuffix(endpoint)
    if not any(_VERSION_SEGMENT.fullmatch(part) for part in path.split("/")):
        path += "/v1"
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    return f"{parts.scheme}://{host}{f':{port}' if port is not None else ''}{path}"


def root_of(base_url: str) -> str:
    """`base_url` without its version."""
    return re.sub(r"/v\d+\w*$", "", base_url)


def key_from(variable: str | None, environment: Mapping[str, str] | None = None) -> str:
    """The key in `variable`, else in the first of KEY_VARIABLES that is set, else NO_KEY. Raises
    ServerFault when a named variable is not set, or a key can not stand in a header.
    """
    known = os.environ if environment is None else environment
    names = KEY_VARIABLES if variable is None else (variable,)
    name = next((name for name in names if known.get(name, "").strip()), None)
    if name is None:
        if variable is not None:
            # not repeated: who passes the key itself must not find it in a log
            raise ServerFault(
                "--api-key-env: no variable of that name is set; name the variable that holds the"
                " key, not the key"
            )
        return NO_KEY
    return _sendable(known[name], f"the key in {name}")


def _sendable(key: str, what: str) -> str:
    """A key that HTTP can carry: the client would quote any other in its error."""
    key = key.strip()
    if not key.isascii() or not key.isprintable():
        raise ServerFault(f"{what} holds characters that no header can carry: copy it again")
    return key


def connect(
    base_url: str,
    *,
    api_key: str | None = None,
    timeout: float | httpx2.Timeout = 600.0,
    connections: int = 1000,
    transport: httpx2.AsyncBaseTransport | None = None,
) -> AsyncOpenAI:
    """A client of the server at `base_url` that retries nothing by itself. Raises ServerFault.

    `api_key`: else from the environment (see `key_from`). `timeout`: seconds for one answer.
    """
    with needed("openai", "httpx2"):
        import httpx2
        from openai import AsyncOpenAI
    address = normal_url(base_url)
    key = key_from(None) if api_key is None else _sendable(api_key, "the key") or NO_KEY
    if not isinstance(timeout, httpx2.Timeout):
        timeout = httpx2.Timeout(timeout, connect=min(timeout, CONNECT_S))
    limits = httpx2.Limits(max_connections=connections, max_keepalive_connections=connections)
    http = httpx2.AsyncClient(
        timeout=timeout, limits=limits, transport=transport, follow_redirects=True
    )
    return AsyncOpenAI(
        base_url=address, api_key=key, max_retries=0, timeout=timeout, http_client=http
    )


async def identify(client: AsyncOpenAI, *, model: str | None = None) -> Server:
    """Which server answers, and with which model. Raises ServerFault with the next step."""
    base_url = str(client.base_url).rstrip("/")
    entries = await _entries(client, base_url)
    owners = {entry["owned_by"] for entry in entries if isinstance(entry.get("owned_by"), str)}
    kind, version = await _kind(client, root_of(base_url), owners)
    names = tuple(dict.fromkeys(str(entry["id"]) for entry in entries))
    return Server(base_url, kind, version, _chosen(entries, names, model, kind), names)


async def read_json(client: AsyncOpenAI, url: str) -> tuple[int, Any]:
    """(status, parsed body) of a GET; None for a body that is no JSON. Raises ServerFault when
    nothing answers.
    """
    status, body = await read_bytes(client, url)
    try:
        return status, orjson.loads(body)
    except orjson.JSONDecodeError:
        return status, None


async def read_bytes(client: AsyncOpenAI, url: str) -> tuple[int, bytes]:
    """(status, body) of a GET. Raises ServerFault when nothing answers."""
    import httpx2
    from openai import APIConnectionError, APIStatusError, APITimeoutError

    try:
        async with asyncio.timeout(whole_wait(client)):
            response = await client.get(url, cast_to=httpx2.Response)
    except APIStatusError as error:
        return error.status_code, without_key(error.response.content, client)
    except (APITimeoutError, TimeoutError):
        raise ServerFault(
            f"{url}: no answer in time; is the server still loading? Wait, or raise --timeout"
        ) from None
    except APIConnectionError as error:
        cause = type(error.__cause__ or error).__name__
        raise ServerFault(
            f"{url}: nothing answers there ({cause}): start the server, or check --base-url"
        ) from None
    return response.status_code, without_key(response.content, client)


def without_key(body: bytes, client: AsyncOpenAI) -> bytes:
    """`body` with the client's key cut out: servers and routers repeat it in their error texts."""
    return cutter(client.api_key)(body)


def whole_wait(client: AsyncOpenAI) -> float | None:
    """Seconds that one answer may take in all: the client's own time-out is for each read, and a
    server that drips would be heard for ever.
    """
    held = client.timeout
    return held if isinstance(held, int | float) or held is None else held.read


async def _entries(client: AsyncOpenAI, base_url: str) -> list[dict[str, Any]]:
    """The served models as the server lists them."""
    status, body = await read_json(client, f"{base_url}/models")
    if status in (401, 403):
        raise ServerFault(
            f"{base_url}: the server refuses the key (HTTP {status}): put it into"
            f" {KEY_VARIABLES[0]}, or name its variable with --api-key-env"
        )
    found = body.get("data") if isinstance(body, dict) else None
    if status != 200 or not isinstance(found, list):
        raise ServerFault(
            f"{base_url}/models answers HTTP {status} and lists no models: is this the address of"
            " an OpenAI-compatible server? Check --base-url"
        )
    return [entry for entry in found if isinstance(entry, dict) and entry.get("id")]


async def _kind(client: AsyncOpenAI, root: str, owners: set[str]) -> tuple[Kind, str | None]:
    """Each engine signs its models, or has an endpoint that no other has. A router that signs
    otherwise stays UNKNOWN, whatever runs behind it.
    """
    if "vllm" in owners:
        return Kind.VLLM, await _told(client, f"{root}/version", "version")
    if "sglang" in owners:
        version = await _told(client, f"{root}/server_info", "version")
        return Kind.SGLANG, version or await _told(client, f"{root}/get_server_info", "version")
    if "llamacpp" in owners:
        return Kind.LLAMACPP, await _told(client, f"{root}/props", "build_info")
    # transformers serve signs with the owner of the weights; its own endpoints give it away, and
    # it tells no version anywhere
    status, body = await read_json(client, f"{root}/openapi.json")
    paths = body.get("paths") if status == 200 and isinstance(body, dict) else None
    if isinstance(paths, dict) and {"/load_model", "/v1/responses"} <= paths.keys():
        return Kind.TRANSFORMERS, None
    return Kind.UNKNOWN, None


async def _told(client: AsyncOpenAI, url: str, key: str) -> str | None:
    status, body = await read_json(client, url)
    value = body.get(key) if status == 200 and isinstance(body, dict) else None
    return inert(value, 80) if isinstance(value, str) and value else None


def _chosen(
    entries: list[dict[str, Any]], names: tuple[str, ...], model: str | None, kind: Kind
) -> str:
    served = ", ".join(inert(name, 120) for name in names[:SHOWN]) or "none"
    if len(names) > SHOWN:
        served += f" and {len(names) - SHOWN} more"
    if model is not None:
        # transformers serve loads whatever model a request names, listed or not
        if model in names or not names or kind is Kind.TRANSFORMERS:
            return model
        raise ServerFault(f"the server has no model {inert(model, 120)}: it serves {served}")
    # vLLM lists LoRA adapters under their parent, and one model under each of its names
    bases = [entry for entry in entries if not entry.get("parent")]
    if len({str(entry.get("root") or entry["id"]) for entry in bases}) == 1:
        return str(bases[0]["id"])
    loaded = [entry for entry in bases if _loaded(entry)]
    if len(loaded) == 1:
        return str(loaded[0]["id"])
    raise ServerFault(f"name the model with --model: the server serves {served}")


def _loaded(entry: dict[str, Any]) -> bool:
    status = entry.get("status")
    return isinstance(status, dict) and status.get("value") == "loaded"
