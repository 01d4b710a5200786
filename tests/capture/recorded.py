"""Recorded answers of real engines: written once by `record`, played back by `replay`.

    python tests/capture/recorded.py URL fixtures/probe/NAME.json [--thinking on|off]
    python tests/capture/recorded.py --docs          # renew the tables in docs/probe.md

A recording is asked for again by method, path and the exact request, so that a changed question
fails with the name of what has to be recorded anew.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
from pathlib import Path
from typing import Any

import httpx2
import orjson

from eagle3_data.capture.probe import Probe, probe
from eagle3_data.capture.server import connect, identify
from eagle3_data.cli import console
from eagle3_data.cli.probe import table
from eagle3_data.profiles.load import load
from eagle3_data.profiles.profile import Profile
from eagle3_data.tokens.tokenizer import Tokenizer, open_tokenizer

ROOT = Path(__file__).parent.parent.parent
RECORDINGS = ROOT / "fixtures" / "probe"
TOKENIZER = ROOT / "fixtures" / "tokenizers" / "smollm2-think"
PAGE = ROOT / "docs" / "probe.md"
ADDRESS = "http://recorded/v1"
SHOWN = re.compile(r"(<!-- recording (\S+) -->\n```text\n).*?```", re.DOTALL)


class Recorder(httpx2.AsyncBaseTransport):
    """Passes requests on and keeps what was said."""

    def __init__(self) -> None:
        self._inner = httpx2.AsyncHTTPTransport()
        self.exchanges: list[dict[str, Any]] = []

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        response = await self._inner.handle_async_request(request)
        body = await response.aread()
        self.exchanges.append(
            {
                "method": request.method,
                "path": request.url.path,
                "request": orjson.loads(request.content) if request.content else None,
                "status": response.status_code,
                "body": _kept(request.url.path, body),
            }
        )
        return httpx2.Response(response.status_code, content=body, request=request)

    async def aclose(self) -> None:
        await self._inner.aclose()


def _kept(path: str, body: bytes) -> Any:
    """The part of a body that a probe reads: /metrics and /openapi.json are large."""
    if path == "/metrics":
        return "\n".join(line for line in body.decode().splitlines() if "spec_" in line)
    try:
        value = orjson.loads(body)
    except orjson.JSONDecodeError:
        return body.decode("utf-8", "replace")
    if path == "/v1/models" and isinstance(value, dict):
        for entry in value.get("data", ()):
            if isinstance(entry.get("root"), str):  # a folder of the machine that recorded
                entry["root"] = "/models/" + entry["root"].rpartition("/")[2]
    if path == "/openapi.json" and "paths" in value:
        return {"paths": {key: {} for key in value["paths"]}}
    if path == "/props" and "chat_template" in value:
        kept = ("default_generation_settings", "build_info", "model_alias", "total_slots")
        return {key: value[key] for key in kept if key in value}
    return value


def replay(exchanges: list[dict[str, Any]]) -> httpx2.MockTransport:
    """A transport that answers as recorded."""
    known = {_key(e["method"], e["path"], e["request"]): e for e in exchanges}

    def answer(request: httpx2.Request) -> httpx2.Response:
        asked = orjson.loads(request.content) if request.content else None
        found = known.get(_key(request.method, request.url.path, asked))
        assert found is not None, f"not recorded, record again: {request.url.path} {asked}"
        body = found["body"]
        content = body.encode() if isinstance(body, str) else orjson.dumps(body)
        return httpx2.Response(found["status"], content=content)

    return httpx2.MockTransport(answer)


def _key(method: str, path: str, body: object) -> bytes:
    return orjson.dumps([method, path, body], option=orjson.OPT_SORT_KEYS)


async def ask(
    transport: httpx2.AsyncBaseTransport,
    url: str = ADDRESS,
    *,
    profile: Profile | None = None,
    tokenizer: Tokenizer | None = None,
    thinking: bool | None = None,
    model: str | None = None,
) -> Probe:
    """Probe over a transport."""
    async with connect(url, api_key="none", transport=transport) as client:
        server = await identify(client, model=model)
        return await probe(
            client,
            server,
            profile=profile or load("smollm2-think"),
            tokenizer=tokenizer,
            thinking=thinking,
        )


def exchanges(name: str) -> list[dict[str, Any]]:
    """A recording by name."""
    found: list[dict[str, Any]] = orjson.loads((RECORDINGS / f"{name}.json").read_bytes())
    return found


async def _record(url: str, out: Path, thinking: bool | None) -> None:
    recorder = Recorder()
    found = await ask(recorder, url, tokenizer=open_tokenizer(TOKENIZER), thinking=thinking)
    rows = ",\n".join(json.dumps(e, ensure_ascii=False) for e in recorder.exchanges)
    out.write_text(f"[\n{rows}\n]\n", encoding="utf-8")
    console.result(table(found))


def probed(name: str, tokenizer: Tokenizer | None) -> Probe:
    """Probe a recording; its name ends in the switch that the capture would send, if any."""
    wish = {"on": True, "off": False}.get(name.rpartition("-asked-")[2])
    return asyncio.run(ask(replay(exchanges(name)), tokenizer=tokenizer, thinking=wish))


def with_tables(page: str) -> str:
    """The page with the table of every recording that it shows."""
    encoder = open_tokenizer(TOKENIZER)
    return SHOWN.sub(lambda m: f"{m[1]}{table(probed(m[2], encoder))}\n```", page)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("url", nargs="?")
    parser.add_argument("out", type=Path, nargs="?")
    parser.add_argument("--thinking", choices=("on", "off"))
    parser.add_argument("--docs", action="store_true")
    given = parser.parse_args()
    if given.docs:
        PAGE.write_text(with_tables(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    else:
        wish = None if given.thinking is None else given.thinking == "on"
        asyncio.run(_record(given.url, given.out, wish))
