"""A server inside the test: the command `generate`, each request answered by a function."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx2
import orjson
import pytest
from tenacity import wait_none
from typer.testing import CliRunner, Result

from eagle3_data.capture import generate as room
from eagle3_data.capture import pool, session
from eagle3_data.cli.app import app

Json = dict[str, Any]
Reply = httpx2.Response | Awaitable[httpx2.Response]
Serve = Callable[..., None]
"""The fixture `serve`."""
URL = "http://server.test/v1"


def answer(asked: Json, text: str = "", **more: Any) -> Json:
    """A body as vLLM says it: the prompt comes back in the content."""
    said = text or f"You said: {asked['messages'][-1]['content']}"
    message: Json = {"role": "assistant", "content": said, "reasoning": f"thought of {said}"}
    made: Json = {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1_790_000_000,
        "model": asked["model"],
        "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 4, "completion_tokens": 7, "total_tokens": 11},
    }
    if asked.get("return_token_ids"):
        made["prompt_token_ids"] = [1, 2, 3, 4]
        made["choices"][0]["token_ids"] = [5, 6, 7, 8, 9, 10, 11]
    return made | more


def whole(body: Json, status: int = 200, **headers: str) -> httpx2.Response:
    return httpx2.Response(status, json=body, headers=headers)


def said(asked: Json, **more: Any) -> httpx2.Response:
    return whole(answer(asked, **more))


def failed(status: int, message: str = "no", **headers: str) -> httpx2.Response:
    return whole({"error": {"message": message, "code": status}}, status, **headers)


def events(body: Json, size: int = 4) -> list[Json]:
    """The chunks that a server could have sent for `body`, `size` characters a delta."""
    choice = copy.deepcopy(body["choices"][0])
    message = choice.pop("message")
    deltas: list[Json] = [{"role": "assistant", "content": ""}]
    for key in ("reasoning", "content"):
        text = message.get(key) or ""
        deltas += [{key: text[at : at + size]} for at in range(0, len(text), size)]
    for at, call in enumerate(message.get("tool_calls") or ()):
        function = call["function"]
        first = {"id": call["id"], "type": "function", "function": {"name": function["name"]}}
        deltas.append({"tool_calls": [{"index": at, **first}]})
        for start in range(0, len(function["arguments"]), size):
            piece = function["arguments"][start : start + size]
            deltas.append({"tool_calls": [{"index": at, "function": {"arguments": piece}}]})
    head = {k: body[k] for k in ("id", "created", "model", "system_fingerprint") if k in body}
    head["object"] = "chat.completion.chunk"
    ids, logs = choice["token_ids"], (choice.get("logprobs") or {}).get("content", [])
    cut = [len(ids) * n // len(deltas) for n in range(len(deltas) + 1)]
    made = []
    for n, delta in enumerate(deltas):
        one: Json = {"index": 0, "delta": delta, "finish_reason": None}
        one["token_ids"] = ids[cut[n] : cut[n + 1]]
        if logs:
            one["logprobs"] = {"content": logs[cut[n] : cut[n + 1]]}
        made.append({**head, "choices": [one], "usage": None})
    made[0]["prompt_token_ids"] = body["prompt_token_ids"]
    end: Json = {"index": 0, "delta": {}, "finish_reason": choice["finish_reason"]}
    if "stop_reason" in choice:
        end["stop_reason"] = choice["stop_reason"]
    made.append({**head, "choices": [end]})
    made.append({**head, "choices": [], "usage": body["usage"]})
    return made


def stream(chunks: list[Json], end: bytes = b"data: [DONE]\n\n", line: bytes = b"\n") -> bytes:
    told = b": keep-alive" + 2 * line
    return told + b"".join(b"data: " + orjson.dumps(c) + 2 * line for c in chunks) + end


class Server:
    """Answers `reply(asked, attempt)`; keeps what it was asked, and with which headers."""

    def __init__(self, reply: Callable[[Json, int], Reply] | None = None) -> None:
        self.reply = reply or (lambda asked, _: said(asked))
        self.asked: list[Json] = []
        self.headers: list[httpx2.Headers] = []
        self.tries: dict[str, int] = {}
        self.models = ["model-a"]

    async def __call__(self, request: httpx2.Request) -> httpx2.Response:
        path = request.url.path
        if path.endswith("/models"):
            entries = [{"id": name, "object": "model", "owned_by": "vllm"} for name in self.models]
            return httpx2.Response(200, json={"object": "list", "data": entries})
        if path == "/version":
            return httpx2.Response(200, json={"version": "0.32.0"})
        if not path.endswith("/chat/completions"):
            return httpx2.Response(404, json={"detail": "Not Found"})
        asked = orjson.loads(await request.aread())
        self.asked.append(asked)
        self.headers.append(request.headers)
        key = orjson.dumps(asked["messages"]).decode()
        self.tries[key] = self.tries.get(key, 0) + 1
        made = self.reply(asked, self.tries[key])
        return await made if inspect.isawaitable(made) else made


@pytest.fixture
def serve(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., None]:
    """Put servers in the place of the network: one, or several by host name."""
    monkeypatch.chdir(tmp_path)
    for name in ("EAGLE3_API_KEY", "OPENAI_API_KEY"):
        monkeypatch.delenv(name, raising=False)

    def put(server: Server | None = None, **hosts: Server) -> None:
        async def handle(request: httpx2.Request) -> httpx2.Response:
            found = server or hosts[request.url.host.split(".")[0]]
            return await found(request)

        monkeypatch.setattr(session, "transport", lambda _: httpx2.MockTransport(handle))

    return put


def command(*args: object, code: int = 0) -> Result:
    """`generate` without a probe, as a user calls it."""
    call = ["generate", *map(str, args)]
    if "--base-url" not in call:
        call += ["--base-url", URL]
    if "--probe" not in call:
        call += ["--no-probe"]
    result = CliRunner().invoke(app, call)
    assert result.exit_code == code, result.output
    return result


def prompts(path: Path, *texts: str) -> Path:
    path.write_bytes(b"".join(orjson.dumps({"id": t, "prompt": t}) + b"\n" for t in texts))
    return path


def rows(path: Path) -> list[Json]:
    return [orjson.loads(line) for line in path.read_bytes().split(b"\n")[:-1]]


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "_WAIT", wait_none())
    monkeypatch.setattr(pool, "FIRST_PAUSE", 0.001)


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "raw_responses.jsonl"


@pytest.fixture
def asked(tmp_path: Path) -> Path:
    return prompts(tmp_path / "prompts.jsonl", *"abcdef")


def manifest(out: Path) -> Json:
    found: Json = orjson.loads(out.with_name("raw_responses.manifest.json").read_bytes())
    return found


def errors(out: Path) -> list[Json]:
    return rows(out.with_name("raw_responses.errors.jsonl"))
