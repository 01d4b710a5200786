"""Bodies, identities, and what must not be put into a body."""

from __future__ import annotations

import pytest

from eagle3_data.capture.prompts import Prompt
from eagle3_data.capture.request import RequestFault, Settings, body, identity, parse_extra

PROMPT = Prompt("p", [{"role": "user", "content": "hi"}], None, "prompts.jsonl:1")
SETTINGS = Settings("m", {"temperature": 0.7, "seed": 5})


def made(settings: Settings, prompt: Prompt = PROMPT, sample: int = 0) -> bytes:
    return identity(body(prompt, settings.common(), sample), sample)


def test_a_body_holds_all_that_is_asked() -> None:
    settings = Settings(
        "m",
        {"temperature": 0.7},
        {"chat_template_kwargs": {"thinking": True}},
        {"chat_template_kwargs": {"effort": "low"}, "top_k": 3},
    )
    tool = {"type": "function", "function": {"name": "look"}}
    prompt = Prompt(None, PROMPT.messages, [tool], "")
    assert body(prompt, settings.common(), 0) == {
        "model": "m",
        "messages": PROMPT.messages,
        "tools": [tool],
        "temperature": 0.7,
        "chat_template_kwargs": {"thinking": True, "effort": "low"},
        "top_k": 3,
    }


def test_each_sample_has_a_seed_and_an_identity_of_its_own() -> None:
    assert [body(PROMPT, SETTINGS.common(), k)["seed"] for k in range(3)] == [5, 6, 7]
    assert len({made(Settings("m"), sample=k) for k in range(3)}) == 3


def test_an_identity_is_what_is_asked_and_nothing_else() -> None:
    same = Prompt("another id", PROMPT.messages, None, "elsewhere:9")
    assert made(SETTINGS, same) == made(SETTINGS)
    assert len(made(SETTINGS)) == 16
    others = [
        Settings("other", SETTINGS.options),
        Settings("m", {"temperature": 0.7}),
        Settings("m", SETTINGS.options, extra={"top_k": 1}),
        Settings("m", SETTINGS.options, {"chat_template_kwargs": {"thinking": False}}),
    ]
    assert len({made(SETTINGS), *map(made, others)}) == 5
    # the order of keys says nothing
    assert made(Settings("m", {"seed": 5, "temperature": 0.7})) == made(SETTINGS)


def test_an_identity_of_values_that_orjson_refuses() -> None:
    big = Prompt(None, [{"role": "user", "content": "hi", "n": 1 << 70}], None, "")
    assert len(made(SETTINGS, big)) == 16


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("{", "not JSON"),
        ("[1]", "no JSON object"),
        ('{"messages": []}', "the prompts are the messages"),
        ('{"n": 2}', "--samples"),
        ('{"stream": true}', "--stream"),
        ('{"model": "m"}', "--model"),
        ('{"api_key": "sk-canary-1"}', "--api-key-env"),
        ('{"extra_headers": {"Authorization": "Bearer sk-canary-1"}}', "--api-key-env"),
    ],
)
def test_an_extra_body_that_is_none_is_refused_without_its_values(text: str, why: str) -> None:
    with pytest.raises(RequestFault, match=why) as raised:
        parse_extra(text)
    assert "canary" not in str(raised.value)


def test_an_extra_body_is_taken() -> None:
    assert parse_extra('{"top_k": 20}') == {"top_k": 20}
