"""`probe` on recorded answers of real engines: the verdict for each state of a server.

The model is the small real one of the fixtures. It is erratic on purpose: the marker that closes a
thought is as likely as the end of turn, so that many thoughts are never closed.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import recorded
from recorded import PAGE, RECORDINGS, TOKENIZER, exchanges, replay, with_tables
from typer.testing import CliRunner, Result

from eagle3_data.capture import server as server_module
from eagle3_data.capture.probe import Probe, Verdict
from eagle3_data.capture.server import Kind
from eagle3_data.cli.app import app
from eagle3_data.tokens.tokenizer import Tokenizer, open_tokenizer

CANARY = "sk-canary-77ab"

SOUND = {
    "server": "ok", "model": "ok", "thought": "ok", "parser": "ok", "markers": "ok",
    "cut thought": "ok", "token ids": "ok", "grade": "ok", "prompt": "ok", "stop token": "ok",
    "switch": "ok", "history": "ok", "speculation": "ok",
}  # fmt: skip
ABSENT = {"thought": "bad", "parser": "bad", "markers": "bad", "cut thought": "note"}
PLAIN = {  # transformers serve: no version, no ids, no metrics; it hands no thoughts of history on
    "server": "note", "token ids": "note", "grade": "note", "history": "note",
    "speculation": "unclear",
}  # fmt: skip
VERDICTS: dict[str, dict[str, str]] = {
    # vLLM 0.32: --reasoning-parser deepseek_r1, none, granite
    "vllm-right": {"switch": "note"},
    "vllm-none": ABSENT,
    "vllm-wrong": ABSENT,
    # --default-chat-template-kwargs '{"enable_thinking": false}', without a parser and with one
    "vllm-off": {"thought": "bad", "markers": "note", "prompt": "note"},
    "vllm-off-swallowed": {
        "thought": "bad",
        "parser": "bad",
        "markers": "note",
        "prompt": "note",
        "switch": "note",
    },
    # the capture itself switches thinking on, or off
    "vllm-off-swallowed-asked-on": {"switch": "note"},
    "vllm-right-asked-off": {
        "thought": "bad",
        "parser": "bad",
        "markers": "note",
        "switch": "bad",
    },
    # ngram drafts and a template with a system prompt of its own. This build samples wrong tokens
    # when it speculates (control tokens among them): the very thing that the check is for
    "vllm-speculating": {
        "markers": "bad",
        "prompt": "note",
        "switch": "note",
        "history": "note",
        "speculation": "note",
    },
    # llama-server b11434: --reasoning-format deepseek, none; thinking off by --chat-template-kwargs
    "llamacpp-right": {"markers": "note"},
    "llamacpp-none": ABSENT,
    "llamacpp-off": {"thought": "bad", "markers": "note", "prompt": "note"},
    "llamacpp-right-asked-off": {"markers": "note"},
    # transformers serve 5.24 with a response_template of the model, none, one of another family
    "transformers-right": {**PLAIN, "markers": "note"},
    "transformers-none": {**PLAIN, **ABSENT},
    "transformers-wrong": {**PLAIN, **ABSENT},
    "transformers-off": {**PLAIN, "thought": "bad", "markers": "note", "prompt": "note"},
    "transformers-right-asked-off": {**PLAIN, "markers": "note"},
}
"""What differs from SOUND."""
MEANS: dict[str, dict[str, str]] = {
    "vllm-right": {
        "thought": "a client that reads only `reasoning_content` would store rows without",
        "parser": "right parser: it parts thought and answer",
        "token ids": "return_token_ids: 4 of 4 answers hold completion ids, 4 prompt ids",
        "prompt": "have the same ids",
        "stop token": "4 of 4: counted (by ids)",
        "switch": "with thinking off the answer stands in the thought's field",
        "history": "57 with `reasoning`, 57 with `reasoning_content`",
        "speculation": "off: /metrics has no counters",
    },
    "vllm-none": {
        "thought": "the model thinks, inside content",
        "parser": "no parser: this vLLM counts reasoning tokens whenever it runs one",
        "cut thought": "stored as content, without a marker",
        "markers": "start vLLM with --reasoning-parser deepseek_r1",
    },
    "vllm-wrong": {"parser": "wrong parser: one is at work and does not see"},
    "vllm-off": {
        "thought": "thinking is off by default: a capture would hold no thought",
        "parser": "nothing to part: thinking is off",
        "prompt": "the end of the prompt: thinking is switched otherwise",
        "switch": "prompt tokens [17, 21] on, [19, 23] off",
    },
    "vllm-off-swallowed": {
        "thought": "thinking is off by default, and the answer is taken for a thought",
        "parser": "this parser takes every text for a thought",
    },
    "vllm-off-swallowed-asked-on": {"parser": "right parser"},
    "vllm-right-asked-off": {"thought": "thinking should be off, and text stands in the field"},
    "vllm-speculating": {
        "prompt": "(a default system prompt)",
        "speculation": "vllm:spec_decode_num_drafts_total 171",
        "markers": "control tokens are written out",
        "history": "this server drops them",
    },
    "llamacpp-right": {
        "thought": "4 of 4 answers hold one, in the field reasoning_content",
        "token ids": "verbose+return_tokens: 4 of 4 answers hold completion ids, 0 prompt ids",
        "grade": "4 of 4: A (captured)",
        "prompt": "have the same texts",
        "history": "kept when sent as `reasoning_content`, and are lost under the other name",
    },
    "llamacpp-none": {"parser": "no parser: llama-server hands on all that it sampled"},
    "llamacpp-off": {"thought": "start llama-server with --chat-template-kwargs"},
    "llamacpp-right-asked-off": {"thought": "thinking is off", "switch": "the switch acts"},
    "transformers-right": {
        "thought": "4 of 4 answers hold one, in the field reasoning_content",
        "parser": "right parser",
        "stop token": "2 of 2: counted (asked again with one token less)",
        "history": "transformers serve hands only role, content and tool calls",
    },
    "transformers-none": {"parser": "no parser, or one that does not see"},
    "transformers-wrong": {"parser": "wrong parser: it hands on the opening marker"},
    "transformers-off": {
        "thought": "thinking is off by default",
        "prompt": "thinking is off by default, see: thought",
    },
    "transformers-right-asked-off": {"thought": "thinking is off"},
}


@cache
def opened() -> Tokenizer:
    return open_tokenizer(TOKENIZER)


def probed(name: str, *, encoder: bool = True) -> Probe:
    return recorded.probed(name, opened() if encoder else None)


@pytest.mark.parametrize("name", sorted(VERDICTS))
def test_each_state_of_a_server_has_its_verdicts(name: str) -> None:
    found = probed(name)
    got = {check.name: check.verdict.value for check in found.checks}
    assert got == dict(SOUND) | VERDICTS[name]
    assert found.faulty is ("bad" in VERDICTS[name].values())
    for row, words in MEANS[name].items():
        check = found.check(row)
        assert words in f"{check.seen} | {check.means} | {check.mend}", check


def test_every_recording_is_held_to_a_verdict() -> None:
    assert sorted(path.stem for path in RECORDINGS.glob("*.json")) == sorted(VERDICTS)


@pytest.mark.parametrize("name", sorted(VERDICTS))
def test_without_a_tokenizer_the_verdicts_on_the_parser_stay(name: str) -> None:
    with_one, without = probed(name), probed(name, encoder=False)
    assert without.faulty is with_one.faulty
    for row in ("server", "model", "cut thought", "token ids", "history", "speculation"):
        assert without.check(row).verdict is with_one.check(row).verdict
    for row in ("grade", "prompt"):
        assert without.check(row).verdict is Verdict.NOT_MADE
        assert without.check(row).mend == "pass --tokenizer DIR"
    assert [c.name for c in without.checks if c.verdict is Verdict.BAD] == [
        c.name for c in with_one.checks if c.verdict is Verdict.BAD
    ]


def test_the_page_shows_the_tables_as_they_came_out() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert page.count("<!-- recording ") >= 5
    assert with_tables(page) == page, "renew it: python tests/capture/recorded.py --docs"


def run(
    monkeypatch: pytest.MonkeyPatch, name: str, *args: object, code: int, key: str = CANARY
) -> Result:
    """The command, against a recording."""
    real = server_module.connect

    def connect(base_url: str, **options: Any) -> Any:
        return real(base_url, **{**options, "transport": replay(exchanges(name))})

    monkeypatch.setattr(server_module, "connect", connect)
    monkeypatch.setenv("EAGLE3_API_KEY", key)
    call = ["probe", "--base-url", "http://recorded/v1", *map(str, args)]
    result = CliRunner().invoke(app, call)
    assert result.exit_code == code, result.output
    assert CANARY not in result.output
    return result


def test_the_command_prints_the_table_and_exits_1_when_faulty(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    result = run(monkeypatch, "vllm-none", "--tokenizer", TOKENIZER, code=1)
    lines = result.stdout.splitlines()
    assert lines[0] == "ok       server       vllm 0.32.0"
    assert lines[-1] == "FAULTY: 3 of 13 checks (14 requests, profile smollm2-think)"
    assert "mend: start vLLM with --reasoning-parser deepseek_r1" in result.stdout
    assert max(map(len, lines)) <= 100
    assert result.stderr == "profile: the records name the model smollm2-think\n"


def test_json_holds_the_table_and_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    result = run(monkeypatch, "vllm-none", "--json", "--quiet", code=1)
    found = json.loads(result.stdout)
    assert result.stderr == ""
    assert found["server"] == {
        "base_url": "http://recorded/v1",
        "kind": Kind.VLLM,
        "version": "0.32.0",
        "model": "smollm2-think",
        "models": ["smollm2-think"],
    }
    assert (found["faulty"], found["thought_field"]) == (True, None)
    assert found["ids_body"] == {"return_token_ids": True}
    assert found["requests"] == 14
    assert [set(check) for check in found["checks"]] == [
        {"name", "verdict", "seen", "means", "mend"}
    ] * 13


def test_verbose_shows_every_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    result = run(monkeypatch, "vllm-none", "--verbose", code=1)
    assert sum(line.startswith("open: ") for line in result.stderr.splitlines()) == 4


def test_a_call_that_can_not_work_exits_2(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for args, told in (
        (["--model", "other"], "the server has no model other: it serves smollm2-think"),
        (["--profile", "smollm3"], "no profile 'smollm3'"),
        (["--tokenizer", tmp_path], str(tmp_path)),
        (["--api-key-env", "NOT_SET"], "--api-key-env"),
        (["--thinking", "off", "--profile", "kimi-k2-thinking"], "knows no switch"),
    ):
        assert told in run(monkeypatch, "vllm-none", *args, code=2).stderr
