"""The command `generate`: failures and retries, cut answers, and how a run ends."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx2
import pytest
from asking import (
    URL,
    Json,
    Serve,
    Server,
    answer,
    asked,
    command,
    errors,
    failed,
    manifest,
    no_pauses,
    out,
    prompts,
    rows,
    said,
    serve,
    whole,
)

from eagle3_data.capture import generate as room
from eagle3_data.capture import manifest as files

__all__ = ["asked", "no_pauses", "out", "serve"]


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


def test_a_disk_that_takes_no_manifest_is_named_with_the_next_step(
    serve: Serve, asked: Path, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(found: Json, rows: Path) -> None:
        raise OSError(28, "No space left on device")

    serve(Server())
    monkeypatch.setattr(files, "write", full)
    result = command(asked, "-o", out, code=2)
    assert "beside raw_responses.jsonl (No space left on device)" in result.output
    assert "make room and run the same command with --resume" in result.output
    assert len(rows(out)) == 6


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
