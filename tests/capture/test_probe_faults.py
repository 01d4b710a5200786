"""`probe` against servers that refuse, lie, stay silent or say hostile things: doubles, since no
real engine does this on demand.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import httpx2
import pytest
from recorded import TOKENIZER, ask

from eagle3_data.capture.probe import Probe, Verdict
from eagle3_data.capture.server import ServerFault
from eagle3_data.cli.probe import table
from eagle3_data.profiles.load import load
from eagle3_data.profiles.profile import Profile
from eagle3_data.tokens.tokenizer import Tokenizer, open_tokenizer

Json = dict[str, Any]
THINK = load("smollm2-think")
GENERIC = load("generic")
QWEN = load("qwen3-hybrid")


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return open_tokenizer(TOKENIZER)


def said(
    content: str | None, reasoning: str | None = None, finish: str = "stop", **body: Any
) -> Json:
    """A chat completion."""
    message = {"role": "assistant", "content": content, "reasoning_content": reasoning}
    choice = {"index": 0, "message": message, "finish_reason": finish}
    usage = {"prompt_tokens": 20, "completion_tokens": 9, "total_tokens": 29}
    return {"model": "m", "choices": [choice], "usage": usage, **body}


def probed(
    answer: Callable[[Json], Json | httpx2.Response | Exception],
    *,
    profile: Profile = THINK,
    tokenizer: Tokenizer | None = None,
    thinking: bool | None = None,
    owner: str = "someone",
    metrics: str | None = None,
) -> Probe:
    """Probe a server whose chat answers are `answer(request)`."""

    def serve(request: httpx2.Request) -> httpx2.Response:
        if request.url.path == "/v1/models":
            return httpx2.Response(200, json={"data": [{"id": "m", "owned_by": owner}]})
        if request.url.path == "/metrics" and metrics is not None:
            return httpx2.Response(200, text=metrics)
        if request.url.path != "/v1/chat/completions":
            return httpx2.Response(404, json={"detail": "Not Found"})
        import orjson

        made = answer(orjson.loads(request.content))
        if isinstance(made, Exception):
            raise made
        return made if isinstance(made, httpx2.Response) else httpx2.Response(200, json=made)

    transport = httpx2.MockTransport(serve)
    return asyncio.run(ask(transport, profile=profile, tokenizer=tokenizer, thinking=thinking))


def good(request: Json) -> Json:
    """A sound server of unknown kind: it counts, it splits, its switch acts."""
    cut = request["max_tokens"] <= 8
    off = request.get("chat_template_kwargs", {}).get("enable_thinking") is False
    made = said(None if cut else "It is Paris.", None if off else "A capital.")
    if off and cut:
        made["choices"][0]["message"]["content"] = "It is"
    made["choices"][0]["finish_reason"] = "length" if cut else "stop"
    thought = any("reasoning_content" in m or "reasoning" in m for m in request["messages"])
    made["usage"]["prompt_tokens"] = 20 + 3 * off + 25 * thought
    return made


def test_a_sound_server_is_sound_and_what_was_not_checked_is_told() -> None:
    found = probed(good)
    assert not found.faulty
    assert found.thought_field == "reasoning_content"
    assert found.ids_body == {}
    assert {c.name: c.verdict.value for c in found.checks} == {
        "server": "note",  # unknown
        "model": "ok",
        "thought": "ok",
        "parser": "ok",
        "markers": "ok",
        "cut thought": "ok",
        "token ids": "note",
        "grade": "not made",
        "prompt": "not made",
        "stop token": "unclear",  # a double that always says 9
        "switch": "ok",
        "history": "ok",
        "speculation": "unclear",
    }
    assert found.check("prompt").mend == "pass --tokenizer DIR"
    assert "A capture would be sound" in table(found)


@pytest.mark.parametrize("status", [400, 422])
def test_a_server_that_refuses_what_it_does_not_know_is_lived_with(status: int) -> None:
    usual = {"model", "messages", "max_tokens", "temperature", "seed"}
    asked: list[set[str]] = []

    def picky(request: Json) -> Json | httpx2.Response:
        asked.append(set(request) - usual)
        if set(request) - usual:
            return httpx2.Response(status, json={"detail": f"Unexpected: {set(request) - usual}"})
        return good(request)

    found = probed(picky)
    assert not found.faulty
    assert found.check("token ids").verdict is Verdict.NOTE
    assert f"HTTP {status}: Unexpected" in found.check("token ids").seen
    assert found.check("switch").verdict is Verdict.UNCLEAR
    # one vendor option at a time: the ids' own fields, or the switch, never both
    assert not any("chat_template_kwargs" in extra and len(extra) > 1 for extra in asked)


def test_an_answer_of_another_model_is_a_fault() -> None:
    found = probed(lambda request: {**good(request), "model": "other\x1b[2J"})
    check = found.check("model")
    assert check.verdict is Verdict.BAD
    assert check.seen == 'asked "m", answered by "other\\x1b[2J"'
    assert found.faulty


def test_hostile_text_reaches_no_terminal() -> None:
    evil = "</think>\x1b]0;owned\x07\u202e::error::x"

    def hostile(request: Json) -> Json | httpx2.Response:
        if "return_token_ids" in request:
            return httpx2.Response(422, json={"detail": evil})
        return {**said(evil), "model": evil, "system_fingerprint": evil}

    shown = table(probed(hostile))
    assert not any(char in shown for char in "\x1b\x07\u202e")


def test_no_question_answered_is_an_error_with_the_reason() -> None:
    with pytest.raises(ServerFault, match=r"no question was answered \(HTTP 500: out of memory\)"):
        probed(lambda _: httpx2.Response(500, json={"error": {"message": "out of memory"}}))
    with pytest.raises(ServerFault, match=r"no answer in time"):
        probed(lambda _: httpx2.ReadTimeout("slow"))
    with pytest.raises(ServerFault, match=r"the connection broke \(ReadError\)"):
        probed(lambda _: httpx2.ReadError("reset"))


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"null", b'{"choices": []}', b"<html>"])
def test_bodies_that_are_no_answers_make_nothing_up(body: bytes) -> None:
    """Half of the answers are rubbish; the rest decides."""
    turn = iter(range(1000))

    def half(request: Json) -> Json | httpx2.Response:
        return httpx2.Response(200, content=body) if next(turn) % 2 else good(request)

    found = probed(half)
    assert found.check("thought").verdict is Verdict.OK
    assert not found.faulty


def test_no_counts_leave_what_needs_them_unclear() -> None:
    def silent(request: Json) -> Json:
        made = good(request)
        del made["usage"]
        return made

    found = probed(silent)
    for name in ("history", "stop token"):
        assert found.check(name).verdict is Verdict.UNCLEAR, name
    assert not found.faulty


def thinking_in_content(close: str) -> Callable[[Json], Json]:
    return lambda request: {
        **good(request),
        **said(f"A capital, surely.{close}It is Paris.", None),
    }


def test_a_thought_in_content_is_a_fault_and_names_the_flag() -> None:
    found = probed(thinking_in_content("\n</think>\n\n"), owner="vllm")
    assert found.faulty
    assert found.thought_field is None
    check = found.check("parser")
    assert check.verdict is Verdict.BAD
    assert check.mend == "start vLLM with --reasoning-parser deepseek_r1"
    assert "no parser, or one that does not see this model's markers" in check.means
    assert found.check("markers").verdict is Verdict.BAD
    sglang = probed(thinking_in_content("</think>"), owner="sglang", profile=QWEN)
    assert sglang.check("parser").mend == "start SGLang with --reasoning-parser qwen3"


def test_a_vllm_that_counts_reasoning_tokens_has_a_parser_and_it_is_the_wrong_one() -> None:
    def wrong(request: Json) -> Json:
        made = said("A capital.</think>It is Paris.")
        made["usage"]["completion_tokens_details"] = {"reasoning_tokens": 0}
        return made

    means = probed(wrong, owner="vllm").check("parser").means
    assert means.startswith("wrong parser: one is at work")

    def none(request: Json) -> Json:
        made = wrong(request)
        made["usage"]["completion_tokens_details"] = None
        return made

    assert probed(none, owner="vllm").check("parser").means.startswith("no parser")


def test_everything_as_thought_is_a_fault_only_after_enough_finished_answers() -> None:
    found = probed(lambda request: said("", "All of it, the answer too."))
    check = found.check("parser")
    assert check.verdict is Verdict.BAD
    assert "12 of them finished" in check.seen
    cut = probed(lambda request: said("", "All of it", "length"))
    assert cut.check("parser").verdict is Verdict.UNCLEAR
    assert not cut.faulty


def test_the_closing_marker_inside_the_thought_is_the_wrong_parser() -> None:
    found = probed(lambda request: said(None, "A capital.</think>It is Paris."))
    assert found.check("parser").verdict is Verdict.BAD
    assert "inside the thought" in found.check("parser").means


def test_control_tokens_in_most_texts_are_a_fault_and_in_one_are_the_model_s() -> None:
    turn = iter(range(1000))

    def written(request: Json) -> Json:
        return said("It is Paris.<|im_end|>", "A capital.")

    def once(request: Json) -> Json:
        return written(request) if next(turn) == 4 else good(request)

    check = probed(written).check("markers")
    assert check.verdict is Verdict.BAD
    assert '"<|im_end|>" in content in 4 of 4' in check.seen
    found = probed(once)
    assert found.check("markers").verdict is Verdict.NOTE
    assert not found.faulty


def test_a_thought_in_both_fields_is_a_fault() -> None:
    thought = "A capital, that of France."
    found = probed(lambda request: said(f"<think>{thought}</think>It is Paris.", thought))
    check = found.check("parser")
    assert check.verdict is Verdict.BAD
    assert "leaves it in content, too" in check.means


def test_ids_are_asked_for_in_every_way_that_an_unknown_server_may_know() -> None:
    def sglang(request: Json) -> Json:
        made = good(request)
        if request.get("return_prompt_token_ids"):
            made["choices"][0]["response_token_ids"] = [5, 6, 2]
            made["choices"][0]["prompt_token_ids"] = [1, 2, 3]
        return made

    found = probed(sglang)
    assert found.ids_body == {"return_token_ids": True, "return_prompt_token_ids": True}
    assert found.check("token ids").verdict is Verdict.OK
    assert probed(sglang, owner="sglang").ids_body == found.ids_body

    def some(request: Json) -> Json:
        return sglang(request) if request["max_tokens"] <= 8 else good(request)

    check = probed(some, owner="sglang").check("token ids")
    assert check.verdict is Verdict.NOTE
    assert "0 of 4 answers hold completion ids" in check.seen


def test_no_thought_is_a_fault_only_where_one_is_expected() -> None:
    def plain(request: Json) -> Json:
        return said("It is Paris.")

    assert probed(plain).check("thought").verdict is Verdict.BAD
    assert probed(plain, profile=GENERIC).check("thought").verdict is Verdict.NOTE
    assert not probed(plain, profile=load("kimi-k2-instruct")).faulty


def test_thinking_off_by_default_is_told_with_the_switch() -> None:
    def off(request: Json) -> Json:
        on = request.get("chat_template_kwargs", {}).get("enable_thinking") is True
        made = said("It is Paris.", "A capital." if on else None)
        made["usage"]["prompt_tokens"] = 20 if on else 24
        return made

    found = probed(off, owner="vllm")
    check = found.check("thought")
    assert check.verdict is Verdict.BAD
    assert "thinking is off by default" in check.means
    assert check.mend.startswith("generate with --thinking on, or start vLLM with")
    assert not probed(off, thinking=True).faulty


def test_a_cut_thought_in_content_is_told() -> None:
    def leaky(request: Json) -> Json:
        return said("A capi", None, "length") if request["max_tokens"] == 8 else good(request)

    check = probed(leaky).check("cut thought")
    assert check.verdict is Verdict.NOTE
    assert "stored as content, without a marker" in check.means
    assert "--max-tokens" in check.mend


def test_the_stop_token_is_counted_by_asking_for_one_token_less() -> None:
    def counts(stop: int) -> Callable[[Json], Json]:
        words = ["It", " is", " Paris", "."]

        def answer(request: Json) -> Json:
            n = min(request["max_tokens"], len(words) + stop)
            made = good(request)
            made["choices"][0]["message"]["content"] = "".join(words[:n])
            made["choices"][0]["finish_reason"] = "stop" if n == len(words) + stop else "length"
            made["usage"]["completion_tokens"] = n
            return made

        return answer

    assert probed(counts(1)).check("stop token").seen.startswith("2 of 2: counted (asked again")
    assert probed(counts(0)).check("stop token").seen.startswith("2 of 2: not counted")


def test_speculation_is_read_off_the_counters() -> None:
    on = 'vllm:spec_decode_num_drafts_total{engine="0",model_name="m"} 7.0\n'
    check = probed(good, owner="vllm", metrics=on).check("speculation")
    assert check.verdict is Verdict.NOTE
    assert check.seen == "vllm:spec_decode_num_drafts_total 7"
    assert check.mend == "start vLLM without --speculative-config"
    idle = probed(good, owner="vllm", metrics=on.replace("7.0", "0.0")).check("speculation")
    assert idle.seen == "configured, nothing drafted yet"
    assert probed(good, owner="vllm", metrics="").check("speculation").verdict is Verdict.OK


def test_ids_of_another_tokenizer_are_a_fault(tokenizer: Tokenizer) -> None:
    def foreign(request: Json) -> Json:
        made = good(request)
        made["choices"][0]["token_ids"] = [5, 6, 7, 8, 9, 10, 11, 12, 2]
        made["prompt_token_ids"] = [1] * made["usage"]["prompt_tokens"]
        return made

    check = probed(foreign, owner="vllm", tokenizer=tokenizer).check("grade")
    assert check.verdict is Verdict.BAD
    assert "decode to another text" in check.seen
    assert "not the one of the served model" in check.means


@pytest.mark.parametrize(
    ("change", "cause"),
    [
        (lambda ids: [*ids[:1], *ids], "BOS"),
        (lambda ids: [1, 9690, 198, 11, 12, 13, 2, 198, *ids], "a default system prompt"),
        (lambda ids: [*ids[:-2], 9, 9], "thinking is switched otherwise"),
    ],
)
def test_a_prompt_that_differs_is_told_with_its_cause(
    tokenizer: Tokenizer, change: Callable[[list[int]], list[int]], cause: str
) -> None:
    def other(request: Json) -> Json:
        texts = [
            f"<|im_start|>{m['role']}\n{m['content']}<|im_end|>\n" for m in request["messages"]
        ]
        text = "".join(texts) + "<|im_start|>assistant\n<think>\n"
        made = good(request)
        ids = change([int(i) for i in tokenizer.encode_marked([text])[0]])
        answer = tokenizer.encode_marked(["A capital.\n</think>\n\nIt is Paris.<|im_end|>"])[0]
        made["choices"][0]["token_ids"] = [int(i) for i in answer]
        made["prompt_token_ids"] = ids
        made["usage"]["prompt_tokens"] = len(ids)
        return made

    check = probed(other, owner="vllm", tokenizer=tokenizer).check("prompt")
    assert check.verdict is Verdict.NOTE
    assert cause in check.seen
    assert "the server's own prompt ids are stored" in check.means

    def hidden(request: Json) -> Json:
        made = other(request)
        del made["prompt_token_ids"], made["choices"][0]["token_ids"]
        return made

    if cause != "thinking is switched otherwise":  # the length says nothing there
        check = probed(hidden, owner="vllm", tokenizer=tokenizer).check("prompt")
        assert check.verdict is Verdict.BAD
        assert check.mend == "pass the server's template with --chat-template FILE"


@pytest.mark.parametrize(("every", "verdict"), [(9, Verdict.NOTE), (4, Verdict.BAD)])
def test_requests_that_fail_are_told(every: int, verdict: Verdict) -> None:
    asked = 0

    def serve(_: Json) -> Json | httpx2.Response:
        nonlocal asked
        asked += 1
        if asked > 1 and (asked % every == 0 if verdict is Verdict.NOTE else asked % every):
            return httpx2.Response(500, json={"error": "out of memory"})
        return said("\nYes.", "I look.")

    found = probed(serve).check("answers")
    assert found.verdict is verdict
    assert found.seen.endswith("HTTP 500: out of memory")


def test_a_server_that_answers_all_has_no_row_about_failures() -> None:
    found = probed(lambda _: said("\nYes.", "I look."))
    assert "answers" not in [check.name for check in found.checks]
