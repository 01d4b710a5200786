"""The command `generate`: rows, resume, what is refused before a prompt is sent."""

from __future__ import annotations

from pathlib import Path
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
    events,
    failed,
    manifest,
    no_pauses,
    out,
    prompts,
    rows,
    said,
    serve,
    stream,
)

from eagle3_data.records.lines import LineBatch
from eagle3_data.records.shapes import table_from

__all__ = ["asked", "no_pauses", "out", "serve"]


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
