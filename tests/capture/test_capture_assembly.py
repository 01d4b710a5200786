"""Streams put together again: the same body as without streaming, and what is no answer."""

from __future__ import annotations

from typing import Any

import pytest
from asking import events, stream
from hypothesis import given
from hypothesis import strategies as st

from eagle3_data.capture.assembly import Assembly, BrokenStream
from eagle3_data.capture.wire import dumps

Json = dict[str, Any]
CALLS = [
    {"id": "call_0", "type": "function", "function": {"name": "look", "arguments": '{"a": 1}'}},
    {"id": "call_1", "type": "function", "function": {"name": "find", "arguments": "{}"}},
]
BODY: Json = {
    "id": "chatcmpl-1",
    "object": "chat.completion",
    "created": 1,
    "model": "m",
    "system_fingerprint": None,
    "choices": [
        {
            "index": 0,
            "message": {
                "role": "assistant",
                "content": "An answer.",
                "reasoning": "A thought, which is longer.",
                "tool_calls": CALLS,
            },
            "logprobs": {"content": [{"token": str(n), "logprob": -0.5} for n in range(6)]},
            "finish_reason": "tool_calls",
            "stop_reason": None,
            "token_ids": [1, 2, 3, 4, 5, 6],
        }
    ],
    "usage": {"prompt_tokens": 3, "completion_tokens": 6, "total_tokens": 9},
    "prompt_token_ids": [7, 8, 9],
}


def assembled(sent: bytes, size: int = 10_000) -> Json:
    assembly = Assembly()
    for at in range(0, len(sent), size):
        assembly.feed(sent[at : at + size])
    return assembly.body()


@given(st.integers(1, 12), st.integers(1, 300), st.sampled_from([b"\n", b"\r\n"]))
def test_a_stream_is_the_body_that_was_not_streamed(size: int, piece: int, line: bytes) -> None:
    assert assembled(stream(events(BODY, size), line=line), piece) == BODY


def test_unknown_fields_are_kept() -> None:
    chunks = events(BODY)
    chunks[1]["sglext"] = {"output_ids": [[1, 2]]}
    chunks[1]["choices"][0]["delta"]["reasoning_details"] = [{"text": "A"}]
    chunks[2]["choices"][0]["delta"]["reasoning_details"] = [{"text": " thought"}]
    body = assembled(stream(chunks))
    assert body["sglext"] == {"output_ids": [[1, 2]]}
    message = body["choices"][0]["message"]
    assert message["reasoning_details"] == [{"text": "A"}, {"text": " thought"}]


def test_names_that_come_with_every_delta_are_one_name() -> None:
    chunks = events(BODY)
    for chunk in chunks:
        for choice in chunk["choices"]:
            choice["delta"]["role"] = "assistant"
            for call in choice["delta"].get("tool_calls", ()):
                known = CALLS[call["index"]]
                call |= {"id": known["id"], "type": "function"}
                call["function"].setdefault("name", known["function"]["name"])  # type: ignore[index]
    assert assembled(stream(chunks)) == BODY


@pytest.mark.parametrize("opening", [{}, {"role": "assistant", "content": ""}])
def test_a_thought_alone_has_no_content_as_unstreamed(opening: Json) -> None:
    end = {"index": 0, "delta": {"reasoning": "hm"}, "finish_reason": "length"}
    chunks = [{"choices": [{"index": 0, "delta": opening}]}, {"choices": [end]}]
    message = assembled(stream(chunks))["choices"][0]["message"]
    assert message == {"role": "assistant", "content": None, "reasoning": "hm"}
    assembly = Assembly(marked=False)
    assembly.feed(stream([*chunks, {"usage": {"completion_tokens": 1}}], end=b""))
    assert assembly.body()["choices"][0]["message"]["content"] == ""


def test_an_empty_answer_stays_an_empty_text() -> None:
    opening = {"index": 0, "delta": {"role": "assistant", "content": ""}}
    end = {"index": 0, "delta": {}, "finish_reason": "stop"}
    body = assembled(stream([{"choices": [opening]}, {"choices": [end]}]))
    assert body["choices"][0]["message"] == {"role": "assistant", "content": ""}


def broken(chunks: list[Json], why: str, end: bytes = b"data: [DONE]\n\n") -> None:
    with pytest.raises(BrokenStream, match=why):
        assembled(stream(chunks, end))


def test_a_stream_that_stopped_early_is_no_answer() -> None:
    whole = events(BODY)
    broken(whole, r"without \[DONE\]", end=b"")
    broken(whole[:-2], "without a finish_reason")
    broken([], "held no choice")
    broken(whole[:3], "not JSON", end=b'data: {"choices": [\n\ndata: [DONE]\n\n')
    broken(whole[:3], "no JSON object", end=b"data: 1\n\n")


def test_a_server_that_does_not_mark_the_end_tells_its_usage_last() -> None:
    for chunks, whole in ((events(BODY), True), (events(BODY)[:-1], False)):
        assembly = Assembly(marked=False)
        assembly.feed(stream(chunks, end=b""))
        if whole:
            assert assembly.body() == BODY
        else:
            with pytest.raises(BrokenStream, match="without its usage"):
                assembly.body()


def test_an_error_in_a_stream_is_the_body() -> None:
    error = {"error": {"message": "out of memory", "code": 500}}
    body = assembled(stream([*events(BODY)[:3], error]))
    assert body["error"] == error["error"]


def test_a_last_event_without_its_blank_line() -> None:
    assert assembled(stream(events(BODY), end=b"data: [DONE]\n")) == BODY


def test_a_field_that_changes_its_name_half_way_is_no_answer() -> None:
    chunks = events(BODY)
    for chunk in chunks[4:]:
        for choice in chunk["choices"]:
            if "reasoning" in choice["delta"]:
                choice["delta"]["reasoning_content"] = choice["delta"].pop("reasoning")
    broken(chunks, "changed its name half-way")


def test_a_thought_under_both_names_is_one_answer() -> None:
    chunks = events(BODY)
    for chunk in chunks:
        for choice in chunk["choices"]:
            if "reasoning" in choice["delta"]:
                choice["delta"]["reasoning_content"] = choice["delta"]["reasoning"]
    message = assembled(stream(chunks))["choices"][0]["message"]
    assert message["reasoning"] == message["reasoning_content"]


def plain(texts: list[str], counted: int, ids: bool) -> list[Json]:
    chunks: list[Json] = []
    for n, text in enumerate(texts):
        choice: Json = {"index": 0, "delta": {"content": text}}
        chunks.append({"choices": [choice | ({"token_ids": [n]} if ids else {})]})
    end = {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}
    return [*chunks, end, {"choices": [], "usage": {"completion_tokens": counted}}]


def test_a_delta_that_came_twice_is_no_answer() -> None:
    words = ["a ", "b ", "c "]
    doubled = plain(words, 3, ids=True)
    doubled.insert(1, doubled[1])
    broken(doubled, "4 ids arrived for 3 tokens")
    doubled = plain(words, 3, ids=False)
    doubled.insert(1, doubled[1])
    broken(doubled, "4 deltas arrived for 3 tokens, 1 of them twice")


def test_repeated_words_and_small_pieces_are_no_doubles() -> None:
    assert assembled(stream(plain(["ha ", "ha ", "ha "], 4, ids=False)))["choices"]
    # a gateway that cuts text smaller than tokens
    assert assembled(stream(plain(list("abcdef"), 2, ids=False)))["choices"]


def of_deltas(*deltas: Any, **more: Any) -> Json:
    """The message that a stream of these deltas is."""
    chunks: list[Json] = [{"choices": [{"index": 0, "delta": delta}]} for delta in deltas]
    chunks.append({"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}], **more})
    message: Json = assembled(stream(chunks))["choices"][0]["message"]
    return message


def thinking(text: str) -> list[Json]:
    return [{"type": "thinking", "thinking": [{"type": "text", "text": text}]}]


@pytest.mark.parametrize("opening", [[], [{"role": "assistant", "content": ""}]])
def test_parts_and_then_text_are_parts(opening: list[Json]) -> None:
    """Mistral: the thought comes in parts, the answer as text, none of them is lost."""
    message = of_deltas(
        *opening,
        {"content": thinking("One ")},
        {"content": thinking("and two.")},
        {"content": "The "},
        {"content": "answer."},
    )
    assert message == {
        "role": "assistant",
        "content": [
            {"type": "thinking", "thinking": [{"type": "text", "text": "One and two."}]},
            {"type": "text", "text": "The answer."},
        ],
    }


def test_text_and_then_parts_are_parts() -> None:
    message = of_deltas({"content": "Look: "}, {"content": [{"type": "image_url", "image_url": 1}]})
    assert message["content"] == [
        {"type": "text", "text": "Look: "},
        {"type": "image_url", "image_url": 1},
    ]


@pytest.mark.parametrize(
    ("deltas", "said"),
    [
        (["text"], "a delta is no JSON object"),
        ([{"content": 5}, {"content": "a"}], "content changed its form"),
        ([{"content": "a"}, {"content": 5}], "content changed its form"),
        ([{"role": 7}, {"role": "assistant"}], "role changed its form"),
        ([{"tool_calls": "look()"}], "tool_calls is no list"),
        ([{"tool_calls": ["look"]}], "a tool call is no JSON object"),
        ([{"tool_calls": [{"index": 0, "function": {"arguments": "{"}}]},
          {"tool_calls": [{"index": 0, "function": {"arguments": {}}}]}], "arguments changed"),
        ([{"tool_calls": [{"index": 0, "function": "f"}]},
          {"tool_calls": [{"index": 0, "function": {"name": "f"}}]}], "function changed"),
    ],
)  # fmt: skip
def test_a_form_that_is_not_known_or_changes_is_an_attempt(deltas: list[Any], said: str) -> None:
    with pytest.raises(BrokenStream, match=said):
        of_deltas(*deltas)


@pytest.mark.parametrize(
    ("chunk", "said"),
    [
        ({"choices": ["a"]}, "a choice is no JSON object"),
        ({"choices": {"0": {}}}, "choices is no list"),
        ({"choices": 1}, "choices is no list"),
        ({"choices": [{"index": "0", "delta": {}}]}, "index of a choice is no number"),
        ({"choices": [{"delta": {}, "logprobs": []}, {"delta": {}, "logprobs": {}}]}, "logprobs"),
        ({"choices": [{"delta": {}, "token_ids": {}}, {"delta": {}, "token_ids": [1]}]}, "token_i"),
    ],
)
def test_a_chunk_of_another_form_is_an_attempt(chunk: Json, said: str) -> None:
    with pytest.raises(BrokenStream, match=said):
        assembled(stream([chunk]))


def test_an_error_of_null_in_each_chunk_is_none() -> None:
    assert of_deltas({"content": "a"}, error=None)["content"] == "a"


def test_what_only_the_slow_reader_takes_is_an_answer_as_unstreamed() -> None:
    """An emoji cut in two, and NaN among the logprobs: written again as they were."""
    sent = (
        b'data: {"choices": [{"index": 0, "delta": {"content": "\\ud83d"}}]}\n\n'
        b'data: {"choices": [{"index": 0, "delta": {"content": "\\ude00"},'
        b' "logprobs": {"content": [{"logprob": NaN}]}}]}\n\n'
        b'data: {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}\n\n'
        b"data: [DONE]\n\n"
    )
    assembly = Assembly()
    assembly.feed(sent)
    written = dumps(assembly.body(), odd=assembly.odd)
    assert b'"content":"\\ud83d\\ude00"' in written
    assert b'"logprob":NaN' in written
