"""A chat server on the loopback that fails on purpose: what a capture has to survive.

    python tests/capture/double.py [--port 0] [--faults reset,busy=2 --share 0.5] [--said FILE] …

Prints its address, serves until its standard input closes. Which attempts fail, and how, follows
from the seed, the prompt and the number of the attempt, never from time; after `--faulty-attempts`
every prompt gets its answer. `--said` logs each request with what was played and the whole body
that stood behind it, before a byte of the answer leaves, so that a capture can be held against it.
HTTP is spoken by hand: no framework can reset a connection in the middle of a body.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import socket
import stat
import struct
import sys
import time
from collections import Counter
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import Any

import orjson

sys.path.insert(0, str(Path(__file__).parent))

from answers import Answers, key

VERSION = "0.32.0"
ROUTER_PAGE = b"<html><body><h1>Welcome to the router</h1></body></html>"


class Fault(StrEnum):
    SOUND = "sound"
    BUSY = "busy"  # 429
    BUSY_WAIT = "busy-wait"  # 429 with Retry-After: 1
    BROKEN = "broken"  # 500
    SLOW = "slow"  # a sound answer, late
    HANG = "hang"  # not a byte
    STALL = "stall"  # half of the body, then silence
    RESET = "reset"  # half of the body, then RST
    CLOSED = "closed"  # half of the body, then FIN
    CUT_JSON = "cut-json"  # truncated JSON in a body of the right length, or in one event
    ERROR_BODY = "error-body"  # 200 with an error; in a stream, after half of the events
    PAGE = "page"  # 200 with a page of HTML
    EMPTY = "empty"  # 200 without a choice
    OTHER_MODEL = "other-model"  # another model's name echoed
    NO_DONE = "no-done"  # a stream that ends well, without [DONE]
    NO_FINISH = "no-finish"  # a stream with [DONE], without a finish reason
    DOUBLED = "doubled"  # a stream with one delta twice


STREAM_ONLY = {Fault.NO_DONE, Fault.NO_FINISH, Fault.DOUBLED}
STATUS = {200: "OK", 400: "Bad Request", 404: "Not Found", 429: "Too Many", 500: "Broken"}


class Plan:
    """Which attempt gets which fault."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.seed = args.seed
        self.share = args.share
        self.attempts = args.faulty_attempts
        weights = [part.partition("=") for part in args.faults.split(",") if part]
        self.faults = {Fault(name): float(weight or 1) for name, _, weight in weights}

    def fault(self, name: str, attempt: int, stream: bool) -> Fault:
        fit = {f: w for f, w in self.faults.items() if stream or f not in STREAM_ONLY}
        if not fit or 0 <= self.attempts <= attempt:
            return Fault.SOUND
        rng = random.Random(f"{self.seed} {name} {attempt}")
        if rng.random() >= self.share:
            return Fault.SOUND
        return rng.choices([*fit], [*fit.values()])[0]


class Double:
    """What all connections share: the plan, the answers, the log and the counts."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.args = args
        self.plan = Plan(args)
        self.answers = Answers(args.words, args.capture)
        self.attempts: Counter[str] = Counter()
        self.played: Counter[str] = Counter()
        self.log = args.said.open("ab", buffering=0) if args.said else None
        self.flying = self.most = self.asked = 0
        self.first = self.last = self.own = 0.0

    def counts(self) -> dict[str, Any]:
        return {
            "asked": self.asked,
            "played": {str(fault): count for fault, count in self.played.items()},
            "most_in_flight": self.most,
            "in_flight": self.flying,
            "seconds": self.last - self.first,
            "own": self.own,  # seconds of all answers, from the request to the last byte
        }

    def note(self, **what: object) -> None:
        if self.log:
            self.log.write(orjson.dumps({"at": time.monotonic(), **what}) + b"\n")


class Connection(asyncio.Protocol):
    def __init__(self, double: Double) -> None:
        self.double = double
        self.buffer = b""
        self.flying = False
        self.since = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        self.loop = asyncio.get_running_loop()

    def connection_lost(self, exc: Exception | None) -> None:
        self.landed()

    def landed(self) -> None:
        if self.flying:
            self.flying = False
            self.double.flying -= 1
            self.double.last = time.monotonic()
            self.double.own += self.double.last - self.since

    def data_received(self, data: bytes) -> None:
        self.buffer += data
        head, end, rest = self.buffer.partition(b"\r\n\r\n")
        if not end:
            return
        request, *fields = head.decode("latin-1").split("\r\n")
        headers = {
            name.lower(): value.strip() for name, _, value in (f.partition(":") for f in fields)
        }
        length = int(headers.get("content-length", 0))
        if len(rest) < length:
            return
        self.buffer = rest[length:]
        method, path, _ = request.split(" ")
        self.asked(method, path.partition("?")[0], headers, rest[:length])

    def asked(self, method: str, path: str, headers: dict[str, str], body: bytes) -> None:
        args, double = self.double.args, self.double
        match method, path:
            case "POST", "/v1/chat/completions":
                self.chat(orjson.loads(body), headers.get("authorization", ""))
            case "GET", "/v1/models":
                model = {
                    "id": args.model,
                    "object": "model",
                    "owned_by": "vllm",
                    "root": args.model,
                }
                self.json(200, {"object": "list", "data": [model | {"max_model_len": 8192}]})
            case "GET", "/version":
                self.json(200, {"version": VERSION})
            case "GET", "/metrics":
                self.send(
                    200, f"vllm:num_requests_running {double.flying}\n".encode(), "text/plain"
                )
            case "GET", "/counts":
                self.json(200, double.counts())
            case "POST", "/plan":  # the plan of faults from now on
                for name, value in orjson.loads(body).items():
                    setattr(args, name, value)
                double.plan = Plan(args)
                self.json(200, {})
            case _:
                self.json(404, {"detail": "Not Found"})

    def chat(self, request: dict[str, Any], authorization: str) -> None:
        double, args = self.double, self.double.args
        name = key(request)
        attempt = double.attempts[name]
        double.attempts[name] += 1
        double.asked += 1
        self.since = time.monotonic()
        double.first = double.first or self.since
        double.flying += 1
        self.flying = True
        double.most = max(double.most, double.flying)
        stream = bool(request.get("stream"))
        fault = double.plan.fault(name, attempt, stream)
        double.played[fault] += 1
        field = "reasoning" if double.asked <= args.rename_after else "reasoning_content"
        if args.refuse and args.refuse in orjson.dumps(request["messages"]).decode():
            double.note(key=name, attempt=attempt, played="refused")
            self.error(400, "This model's maximum context length is 8192 tokens.")
            return
        model = "another/model" if fault is Fault.OTHER_MODEL else request["model"]
        body, parts = double.answers.said(request, name, attempt, model, field)
        if double.log:
            double.note(
                key=name, attempt=attempt, played=fault, stream=stream, authorization=authorization,
                seed=request.get("seed"), body=orjson.Fragment(body),
            )  # fmt: skip
        # the key at another place each time: it is not to be seen in part where a text is cut
        told = f" {'.' * (double.asked * 37 % 900)} You sent {authorization}." if args.echo else ""
        delay = args.delay + (args.slow if fault is Fault.SLOW else 0)
        if delay and fault is not Fault.HANG:
            self.loop.call_later(delay, self.play, fault, parts, stream, told)
        else:
            self.play(fault, parts, stream, told)

    def play(self, fault: Fault, parts: list[bytes], stream: bool, told: str) -> None:
        if self.transport.is_closing():
            return
        middle = len(parts) // 2
        match fault:
            case Fault.BUSY | Fault.BUSY_WAIT:
                wait = ("retry-after: 1",) if fault is Fault.BUSY_WAIT else ()
                self.error(429, f"Too many requests.{told}", *wait)
            case Fault.BROKEN:
                self.error(500, f"EngineCore died.{told}")
            case Fault.HANG:
                pass
            case Fault.PAGE:
                self.send(200, ROUTER_PAGE + told.encode(), "text/html")
            case Fault.STALL | Fault.RESET | Fault.CLOSED:
                self.half(fault, parts, stream)
            case Fault.ERROR_BODY if not stream:
                self.error(200, f"The engine ran out of memory.{told}")
            case Fault.ERROR_BODY:
                message = {"error": {"message": f"The engine died.{told}", "code": 500}}
                self.events([*parts[:middle], orjson.dumps(message)])
            case Fault.EMPTY if not stream:
                self.json(200, orjson.loads(parts[0]) | {"choices": []})
            case Fault.EMPTY:
                self.events([])
            case Fault.CUT_JSON if not stream:
                self.send(200, parts[0][: len(parts[0]) // 2])
            case Fault.CUT_JSON:
                parts[middle] = parts[middle][: len(parts[middle]) // 2]
                self.events(parts)
            case Fault.NO_DONE:
                self.events(parts, done=False)
            case Fault.NO_FINISH:
                self.events([part for part in parts if b'"finish_reason":null' in part])
            case Fault.DOUBLED:
                self.events([*parts[: middle + 1], *parts[middle:]])
            case _ if stream:
                self.events(parts)
            case _:
                self.send(200, parts[0])

    def half(self, fault: Fault, parts: list[bytes], stream: bool) -> None:
        """A sound answer up to its middle, then nothing, an RST or a FIN."""
        payload = sse(parts) if stream else parts[0]
        framing = "transfer-encoding: chunked" if stream else f"content-length: {len(payload)}"
        payload = payload[: len(payload) // 2]
        kind = "text/event-stream" if stream else "application/json"
        head = f"HTTP/1.1 200 OK\r\ncontent-type: {kind}\r\n{framing}\r\n\r\n".encode()
        self.transport.write(head + (chunked(payload) if stream else payload))
        if fault is Fault.CLOSED:
            self.transport.close()
        elif fault is Fault.RESET:
            opened = self.transport.get_extra_info("socket")
            opened.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            # an RST may overtake what the other side has not read yet; both are worth playing
            self.loop.call_later(random.choice((0, 0.02)), self.transport.abort)

    def events(self, parts: Sequence[bytes], done: bool = True) -> None:
        self.send(200, chunked(sse(parts, done)) + b"0\r\n\r\n", "text/event-stream")

    def error(self, status: int, message: str, *headers: str) -> None:
        error = {"message": message, "type": "error", "param": None, "code": status}
        self.json(status, {"error": error}, *headers)

    def json(self, status: int, body: object, *headers: str) -> None:
        self.send(status, orjson.dumps(body), "application/json", *headers)

    def send(self, status: int, body: bytes, kind: str = "application/json", *headers: str) -> None:
        stream = kind == "text/event-stream"
        framing = "transfer-encoding: chunked" if stream else f"content-length: {len(body)}"
        lines = (f"HTTP/1.1 {status} {STATUS[status]}", f"content-type: {kind}", framing, *headers)
        self.transport.write("\r\n".join((*lines, "", "")).encode() + body)
        self.landed()


def sse(parts: Sequence[bytes], done: bool = False) -> bytes:
    return b"".join(b"data: " + part + b"\n\n" for part in (*parts, *([b"[DONE]"] if done else ())))


def chunked(payload: bytes) -> bytes:
    """Chunks whose borders fall anywhere: inside an event, inside a character."""
    return b"".join(
        b"%x\r\n%b\r\n" % (len(part), part)
        for part in (payload[start : start + 997] for start in range(0, len(payload), 997))
    )


def options() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--model", default="double")
    parser.add_argument("--seed", type=int, default=0, help="of the plan of faults")
    parser.add_argument("--faults", default="", help="NAME[=WEIGHT],…: " + ", ".join(Fault))
    parser.add_argument("--share", type=float, default=0.5, help="of the attempts that may fail")
    parser.add_argument("--faulty-attempts", type=int, default=2, help="a prompt; -1: for ever")
    parser.add_argument("--delay", type=float, default=0.0, help="seconds before each answer")
    parser.add_argument("--slow", type=float, default=0.3, help="seconds more of a slow answer")
    parser.add_argument("--words", type=int, default=40, help="of the longest thought")
    parser.add_argument("--rename-after", type=int, default=1 << 60, help="requests")
    parser.add_argument("--refuse", help="answer 400 to prompts with this text")
    parser.add_argument("--echo", action="store_true", help="errors tell the key they were sent")
    parser.add_argument("--capture", type=Path, help="answer with the bodies of this capture")
    parser.add_argument("--said", type=Path, help="log of all requests and answers")
    return parser


async def serve(args: argparse.Namespace) -> None:
    loop, double, over = asyncio.get_running_loop(), Double(args), asyncio.Event()
    server = await loop.create_server(lambda: Connection(double), "127.0.0.1", args.port)
    sys.stdout.write(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1\n")
    sys.stdout.flush()
    if stat.S_ISFIFO(os.fstat(0).st_mode):  # started by a test, and over with it
        loop.add_reader(0, lambda: None if os.read(0, 1) else over.set())
    await over.wait()


if __name__ == "__main__":
    asyncio.run(serve(options().parse_args()))
