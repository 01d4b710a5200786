"""The command `generate`: rows, resume, retries, several servers, ends, what is refused."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx2
import orjson
import pytest
from asking import (
    URL,
    Json,
    Server,
    answer,
    command,
    events,
    failed,
    prompts,
    rows,
    said,
    serve,
    stream,
    whole,
)
from tenacity import wait_none

from eagle3_data.capture import generate as room
from eagle3_data.capture import pool
from eagle3_data.records.lines import LineBatch
from eagle3_data.records.shapes import table_from

__all__ = ["serve"]
Serve = Callable[..., None]


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


# --- rows ---


def test_a_row_holds_request_response_and_server(serve: Serve, asked: Path, out: Path) -> None:
    server = Server()
    serve(server)
    options = (
        "--temperature",
        0.7,
        "--top-k",
        20,
        "--stop",
        "END",
        "--extra-body",
        '{"min_tokens": 1}',
    )
    command(asked, "-o", out, *options, "--extra-body", '{"min_tokens": 1}', "--limit", 1)
    (row,) = rows(out)
    assert row["request"] == {
        "model": "model-a",
        "messages": [{"role": "user", "content": "a"}],
        "temperature": 0.7,
        "top_k": 20,
        "stop": ["END"],
        "min_tokens": 1,
        "return_token_ids": True,
    }
    assert server.asked == [row["request"]]
    assert row["response"] == answer(row["request"])
    assert row.keys() == {
        *("id", "identity", "sample", "request", "response", "server", "server_version"),
        *("base_url", "latency_s", "attempt", "finished_at"),
    }
    assert (row["id"], row["sample"], row["attempt"]) == ("a", 0, 1)
    assert (row["server"], row["server_version"], row["base_url"]) == ("vllm", "0.32.0", URL)
    assert len(row["identity"]) == 32


def test_check_reads_the_rows(serve: Serve, asked: Path, out: Path) -> None:
    serve(Server())
    command(asked, "-o", out, "--max-tokens", 9)
    lines = out.read_bytes().split(b"\n")[:-1]
    table = table_from(LineBatch(0, lines, list(range(1, 7)), [0] * 6))
    assert table["shape"].unique().to_list() == ["chat-completion"]
    assert sorted(table["record_id"]) == list("abcdef")
    assert table["server"].to_list() == ["vllm"] * 6
    assert table["max_tokens"].to_list() == [9] * 6
    assert table["completion_ids"].to_list() == [[5, 6, 7, 8, 9, 10, 11]] * 6


def test_samples_are_rows_of_their_own(serve: Serve, asked: Path, out: Path) -> None:
    serve(Server())
    command(asked, "-o", out, "--samples", 3, "--seed", 10, "--limit", 2)
    found = {row["id"]: (row["sample"], row["request"]["seed"]) for row in rows(out)}
    assert found == {
        "a": (0, 10), "a#1": (1, 11), "a#2": (2, 12),
        "b": (0, 10), "b#1": (1, 11), "b#2": (2, 12),
    }  # fmt: skip


def test_a_prompt_without_an_id_goes_by_its_identity(
    serve: Serve, tmp_path: Path, out: Path
) -> None:
    serve(Server())
    path = tmp_path / "prompts.txt"
    path.write_text("one\ntwo\n")
    command(path, "-o", out, "--samples", 2)
    found = rows(out)
    assert len(found) == 4 and all(row["id"] == row["identity"] for row in found)


def test_thinking_is_switched_by_the_profile(serve: Serve, asked: Path, out: Path) -> None:
    server = Server()
    server.models = ["Qwen/Qwen3-8B"]
    serve(server)
    command(asked, "-o", out, "--thinking", "off", "--limit", 1)
    assert server.asked[0]["chat_template_kwargs"] == {"enable_thinking": False}
    server.models = ["model-a"]
    result = command(asked, "-o", out.with_name("b.jsonl"), "--thinking", "off", code=2)
    assert "knows no switch" in result.output


def test_a_stream_gives_the_same_rows(serve: Serve, asked: Path, out: Path) -> None:
    def reply(asked: Json, _: int) -> httpx2.Response:
        assert asked["stream"] is True and asked["stream_options"] == {"include_usage": True}
        kind = {"content-type": "text/event-stream"}
        return httpx2.Response(200, content=stream(events(answer(asked))), headers=kind)

    serve(Server(reply))
    command(asked, "-o", out, "--stream")
    serve(Server())
    plain = out.with_name("plain.jsonl")
    command(asked, "-o", plain)
    kept = ("id", "identity", "response")
    streamed, other = ({row["id"]: [row[k] for k in kept] for row in rows(p)} for p in (out, plain))
    assert len(other) == 6 and streamed == other


# --- resume ---


def test_resume_asks_only_for_what_is_missing(serve: Serve, asked: Path, out: Path) -> None:
    server = Server()
    serve(server)
    command(asked, "-o", out, "--limit", 2)
    assert command(asked, "-o", out, code=2).output.count("pass --resume") == 1
    command(asked, "-o", out, "--resume")
    assert [a["messages"][0]["content"] for a in server.asked] == list("abcdef")
    assert sorted(row["id"] for row in rows(out)) == list("abcdef")
    out.write_bytes(out.read_bytes()[:-30])
    result = command(asked, "-o", out, "--resume")
    assert "a torn last line" in result.output
    assert sorted(row["id"] for row in rows(out)) == list("abcdef")
    assert len(server.asked) == 7
    command(asked, "-o", out, "--resume")
    assert len(server.asked) == 7


def test_a_prompt_that_stands_twice_is_asked_once(serve: Serve, tmp_path: Path, out: Path) -> None:
    server = Server()
    serve(server)
    path = prompts(tmp_path / "prompts.jsonl", "a", "b", "a", "a")
    result = command(path, "-o", out)
    assert "2 prompts stand in the file before (the first is" in result.output
    assert ":3): asked once" in result.output
    assert len(server.asked) == 2 and len(rows(out)) == 2
    assert manifest(out)["rows"]["repeated_prompts"] == 2


def test_other_settings_do_not_go_on_with_an_output(serve: Serve, asked: Path, out: Path) -> None:
    server = Server()
    serve(server)
    command(asked, "-o", out, "--temperature", 0.7)
    before = out.read_bytes()
    result = command(asked, "-o", out, "--temperature", 1, "--top-p", 0.9, "--resume", code=2)
    assert "temperature 0.7, now 1.0; top_p not set, now 0.9" in result.output
    assert out.read_bytes() == before and len(server.asked) == 6


def test_a_refused_row_is_asked_again_by_resume(serve: Serve, asked: Path, out: Path) -> None:
    server = Server(
        lambda asked, n: (
            failed(400, "too long")
            if asked["messages"][0]["content"] == "c" and n < 3
            else said(asked)
        )
    )
    serve(server)
    assert "1 rows failed" in command(asked, "-o", out, code=1).output
    (row,) = errors(out)
    assert (row["id"], row["error"]) == ("c", "refused: HTTP 400: too long")
    assert [(a["kind"], a["status"]) for a in row["attempts"]] == [("refused", 400)]
    assert row["prompt"] == f"{asked}:3" and len(server.asked) == 6
    command(asked, "-o", out, "--resume", code=1)
    (row,) = errors(out)
    assert len(row["attempts"]) == 2 and len(server.asked) == 7
    command(asked, "-o", out, "--resume")
    assert len(rows(out)) == 6
    assert not out.with_name("raw_responses.errors.jsonl").exists()
    assert [run["stored"] for run in manifest(out)["runs"]] == [5, 0, 1]
    assert manifest(out)["complete"] is True


# --- failures ---


def test_what_is_worth_it_is_asked_again(serve: Serve, asked: Path, out: Path) -> None:
    server = Server(lambda asked, n: said(asked) if n > 2 else failed(500 if n == 1 else 429))
    serve(server)
    command(asked, "-o", out)
    found = rows(out)
    assert {row["attempt"] for row in found} == {3}
    kinds = [[(a["kind"], a["status"]) for a in row["attempts"]] for row in found]
    assert kinds == [[("server-error", 500), ("busy", 429)]] * 6
    assert len(server.asked) == 18


def test_retry_after_is_kept(
    serve: Serve, asked: Path, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits: list[float] = []

    async def sleep(self: room.Run, seconds: float) -> None:
        waits.append(seconds)

    monkeypatch.setattr(room.Run, "_sleep", sleep)
    serve(Server(lambda a, n: said(a) if n > 1 else failed(429, **{"retry-after": "7"})))
    command(asked, "-o", out)
    assert waits == [7.0] * 6


def test_a_row_has_failed_after_its_attempts(serve: Serve, asked: Path, out: Path) -> None:
    bad = lambda a, _: failed(429) if a["messages"][0]["content"] == "b" else said(a)  # noqa: E731
    server = Server(bad)
    serve(server)
    command(asked, "-o", out, "--attempts", 3, code=1)
    assert len(server.asked) == 5 + 3
    (row,) = errors(out)
    assert len(row["attempts"]) == 3 and len(rows(out)) == 5
    assert manifest(out)["complete"] is False and manifest(out)["rows"]["failed"] == 1


def test_rows_that_fail_in_a_row_stop_the_run(serve: Serve, tmp_path: Path, out: Path) -> None:
    path = prompts(tmp_path / "prompts.jsonl", *map(str, range(50)))
    good = lambda a, _: said(a) if int(a["messages"][0]["content"]) < 5 else failed(403)  # noqa: E731
    server = Server(good)
    serve(server)
    result = command(path, "-o", out, "--max-failures", 4, "--concurrency", 2, code=1)
    assert "stopped: 4 rows failed in a row, the last (" in result.output
    assert "HTTP 403" in result.output and "--resume" in result.output
    assert len(rows(out)) == 5 and len(server.asked) <= 11


def test_a_server_that_is_gone_stops_the_run(serve: Serve, asked: Path, out: Path) -> None:
    def reply(asked: Json, _: int) -> httpx2.Response:
        raise httpx2.ConnectError("refused")

    server = Server(reply)
    serve(server)
    call = (asked, "-o", out, "--max-failures", 6, "--attempts", 9, "--concurrency", 3)
    result = command(*call, code=1)
    assert f"{URL} fails (connection: ConnectError: refused)" in result.output
    assert "stopped: no server is left" in result.output
    assert len(server.asked) <= 12 and not out.exists()


def test_a_dead_server_is_dropped_and_the_others_go_on(
    serve: Serve, asked: Path, out: Path
) -> None:
    def dead(asked: Json, _: int) -> httpx2.Response:
        raise httpx2.ConnectError("refused")

    one, other = Server(dead), Server()
    serve(one=one, other=other)
    urls = ("--base-url", "http://one.test/v1", "--base-url", "http://other.test/v1")
    result = command(asked, "-o", out, *urls, "--max-failures", 1, "--attempts", 3)
    assert "http://one.test/v1 is dropped: 1 failures in a row" in result.output
    found = rows(out)
    assert len(found) == 6 and {row["base_url"] for row in found} == {"http://other.test/v1"}
    servers = {s["base_url"]: s for s in manifest(out)["runs"][0]["servers"]}
    assert servers["http://other.test/v1"]["stored"] == 6
    assert "ConnectError" in servers["http://one.test/v1"]["dropped"]


def test_another_models_answer_is_a_fault(serve: Serve, asked: Path, out: Path) -> None:
    serve(Server(lambda asked, _: whole(answer(asked) | {"model": "model-b"})))
    call = (asked, "-o", out, "--limit", 1, "--attempts", 2)
    command(*call, code=1)
    (row,) = errors(out)
    assert row["error"].startswith(
        "wrong-model: asked for model 'model-a', the answer is of 'model-b'"
    )
    command(*call, "--resume", "--accept-model", "model-b")
    assert len(rows(out)) == 1


# --- cut answers ---


def by_limit(asked: Json, _: int) -> httpx2.Response:
    """Needs 100 tokens for its answer."""
    cut = asked["max_tokens"] < 100
    body = answer(asked, text="x" * min(asked["max_tokens"], 100))
    body["choices"][0]["finish_reason"] = "length" if cut else "stop"
    body["usage"]["completion_tokens"] = min(asked["max_tokens"], 100)
    return whole(body)


def test_a_cut_answer_is_asked_for_once_more(serve: Serve, asked: Path, out: Path) -> None:
    serve(Server(by_limit))
    call = (asked, "--max-tokens", 50, "--limit", 1)
    command(*call, "-o", out, "--retry-cut", 200)
    (row,) = rows(out)
    assert row["request"]["max_tokens"] == 200 and row["attempt"] == 2
    assert row["response"]["choices"][0]["finish_reason"] == "stop"
    assert row["attempts"] == [{"kind": "cut", "max_tokens": 50, "tokens": 50, "base_url": URL}]
    plain = out.with_name("plain.jsonl")
    command(*call, "-o", plain)
    assert rows(plain)[0]["identity"] == row["identity"]
    assert rows(plain)[0]["request"]["max_tokens"] == 50


def test_of_two_cut_answers_the_longer_is_kept(serve: Serve, asked: Path, out: Path) -> None:
    serve(Server(by_limit))
    command(asked, "-o", out, "--max-tokens", 50, "--limit", 1, "--retry-cut", 90)
    (row,) = rows(out)
    assert row["response"]["usage"]["completion_tokens"] == 90
    assert manifest(out)["runs"][0]["cut"] == 1


def test_a_cut_answer_is_kept_when_the_retry_fails(serve: Serve, asked: Path, out: Path) -> None:
    serve(Server(lambda a, n: by_limit(a, n) if n == 1 else failed(400, "context")))
    command(asked, "-o", out, "--max-tokens", 50, "--limit", 1, "--retry-cut", 200)
    (row,) = rows(out)
    assert row["request"]["max_tokens"] == 50
    assert row["attempts"][0]["kept"] == "this one, the retry failed: Fault"
    assert row["attempts"][1]["kind"] == "refused"


# --- ends ---


def test_an_interruption_finishes_what_is_in_flight(
    serve: Serve, tmp_path: Path, out: Path
) -> None:
    path = prompts(tmp_path / "prompts.jsonl", *map(str, range(50)))

    async def reply(asked: Json) -> httpx2.Response:
        if asked["messages"][0]["content"] == "5":
            os.kill(os.getpid(), signal.SIGINT)
        await asyncio.sleep(0.05)
        return said(asked)

    server = Server(lambda asked, _: reply(asked))
    serve(server)
    result = command(path, "-o", out, "--concurrency", 4, code=130)
    assert "requests in flight get 30 s to finish" in result.output
    assert f"interrupted with {len(server.asked)} rows stored" in result.output
    assert len(rows(out)) == len(server.asked) < 12
    assert manifest(out)["runs"][0]["ended"] == "interrupted"
    server.reply = lambda asked, _: said(asked)
    command(path, "-o", out, "--resume")
    assert len({row["identity"] for row in rows(out)}) == len(rows(out)) == 50
    assert len(server.asked) == 50


@pytest.mark.parametrize(("grace", "signals"), [(0.05, 1), (30, 2)])
def test_what_hangs_is_cut_off_after_the_grace(
    serve: Serve, asked: Path, out: Path, grace: float, signals: int
) -> None:
    async def reply(asked: Json) -> httpx2.Response:
        if asked["messages"][0]["content"] != "a":
            for _ in range(signals):
                os.kill(os.getpid(), signal.SIGINT)
                await asyncio.sleep(0.02)
            await asyncio.sleep(60)
        return said(asked)

    serve(Server(lambda asked, _: reply(asked)))
    command(asked, "-o", out, "--concurrency", 2, "--grace", grace, "--limit", 2, code=130)
    assert [row["id"] for row in rows(out)] == ["a"]


def test_a_stop_rule_stops_the_run(
    serve: Serve, asked: Path, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from eagle3_data.capture.live import Live

    monkeypatch.setattr(Live, "tripped", lambda self: "CAP001 fired on 7 of 100 rows")
    serve(Server())
    call = (asked, "-o", out, "--stop-on", "CAP001>1%", "--concurrency", 1)
    result = command(*call, code=1)
    assert "stopped: CAP001 fired on 7 of 100 rows" in result.output
    assert len(rows(out)) < 6


def test_a_stop_rule_that_is_passed_at_the_end_is_told(
    serve: Serve, asked: Path, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from eagle3_data.capture.live import Live

    told = lambda live: "CAP001 fired" if live._closed.is_set() else None  # noqa: E731
    monkeypatch.setattr(Live, "tripped", told)
    serve(Server())
    result = command(asked, "-o", out, "--stop-on", "CAP001>1%", code=1)
    assert "6 rows, but CAP001 fired" in result.output
    assert manifest(out)["complete"] is True


def test_a_faulty_probe_sends_no_prompt(
    serve: Serve, asked: Path, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from eagle3_data.capture import probe as probing
    from eagle3_data.cli import probe as shown

    async def faulty(client: Any, server: Any, **options: Any) -> Any:
        return SimpleNamespace(faulty=True, ids_body={}, thought_field=None)

    monkeypatch.setattr(probing, "probe", faulty)
    monkeypatch.setattr(shown, "table", lambda found: "bad      thought  none arrives")
    server = Server()
    serve(server)
    result = command(asked, "-o", out, "--probe", code=1)
    assert "thought  none arrives" in result.output and "--no-probe" in result.output
    assert server.asked == [] and not out.exists()


def test_a_sound_probe_says_how_ids_are_asked_for(
    serve: Serve, asked: Path, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from eagle3_data.capture import probe as probing

    async def sound(client: Any, server: Any, **options: Any) -> Any:
        ids = {"return_token_ids": True}
        return SimpleNamespace(faulty=False, ids_body=ids, thought_field="reasoning")

    monkeypatch.setattr(probing, "probe", sound)
    server = Server()
    serve(server)
    result = command(asked, "-o", out, "--probe", "--limit", 1)
    assert f"{URL}: probe sound, thought in reasoning, token ids arrive" in result.output
    assert server.asked[0]["return_token_ids"] is True
    command(asked, "-o", out.with_name("b.jsonl"), "--probe", "--no-ids", "--limit", 1)
    assert "return_token_ids" not in server.asked[1]


# --- what is refused, before a prompt is sent ---


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (("--concurrency", "many"), "give a number from 1 on, or auto"),
        (("--max-tokens", 9, "--retry-cut", 9), "is not more than --max-tokens"),
        (("--extra-body", "{"), "--extra-body is not JSON"),
        (("--stop-on", "CAP001"), "write it as CODE>SHARE%"),
        (("--model", "other"), "it serves model-a"),
        (("--api-key-env", "NOT_THERE"), "no variable of that name is set"),
        (("--tokenizer", "not/there"), "not/there"),
    ],
)
def test_a_call_that_can_not_work(
    serve: Serve, asked: Path, out: Path, options: tuple[Any, ...], why: str
) -> None:
    server = Server()
    serve(server)
    assert why in command(asked, "-o", out, *options, code=2).output
    assert server.asked == [] and not out.exists()


def test_a_bad_line_is_told_before_the_first_request(serve: Serve, asked: Path, out: Path) -> None:
    server = Server()
    serve(server)
    asked.write_bytes(asked.read_bytes() + b'{"input_ids": [1]}\n')
    assert "prompts.jsonl:7: no prompt" in command(asked, "-o", out, code=2).output
    assert server.asked == []


def test_servers_with_different_models_are_refused(serve: Serve, asked: Path, out: Path) -> None:
    one, other = Server(), Server()
    other.models = ["model-b"]
    serve(one=one, other=other)
    urls = ("--base-url", "http://one.test", "--base-url", "http://other.test")
    result = command(asked, "-o", out, *urls, code=2)
    assert "name the one to ask with --model" in result.output


def test_the_manifest_tells_what_was_asked_of_whom(
    serve: Serve, asked: Path, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EAGLE3_API_KEY", "sk-canary-0123456789")
    server = Server()
    serve(server)
    command(asked, "-o", out, "--temperature", 0.5, "--concurrency", 2)
    found = manifest(out)
    assert found["asked"] == {"model": "model-a", "temperature": 0.5}
    assert found["prompts"]["files"][0]["path"] == str(asked)
    assert len(found["prompts"]["files"][0]["sha256"]) == 64
    assert found["rows"] == {
        "file": "raw_responses.jsonl", "bytes": out.stat().st_size, "stored": 6, "wanted": 6,
        "failed": 0, "repeated_prompts": 0,
    }  # fmt: skip
    (run,) = found["runs"]
    assert run["completion_tokens"] == 42 and run["rows_per_second"] > 0
    assert run["servers"][0] | {"stored": 0} == {
        "base_url": URL, "kind": "vllm", "version": "0.32.0", "model": "model-a",
        "asked_for_ids": {"return_token_ids": True}, "stored": 0, "failed_attempts": 0,
        "concurrency": 2, "dropped": None,
    }  # fmt: skip
    assert {h["authorization"] for h in server.headers} == {"Bearer sk-canary-0123456789"}
    for path in out.parent.iterdir():
        assert b"canary" not in path.read_bytes()
