"""Prompts: templates rendered as transformers renders them, layouts, quoted markers, hostile
templates.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from eagle3_data.profiles.load import load
from eagle3_data.records.table import RECORD_SCHEMA, Status
from eagle3_data.tokens.markers import resolve
from eagle3_data.tokens.prompt import Prompt, PromptBuilder
from eagle3_data.tokens.render import TemplateFault, clock, compile_template, render
from eagle3_data.tokens.request import Quotes, RequestFault, request
from eagle3_data.tokens.samples import PromptSource
from eagle3_data.tokens.tokenizer import open_tokenizer

ROOT = Path(__file__).parents[2]
SMOL = open_tokenizer(ROOT / "fixtures" / "tokenizers" / "smollm2-think")
PROFILE = load("smollm2-think")
THINK_TEMPLATE = SMOL.chat_template or ""

# Written for these tests, with the features that the families' templates use.
HERMES = """
{%- if tools %}
    {{- '<|im_start|>system\\n' }}
    {%- for tool in tools %}
        {{- "\\n" }}{{- tool | tojson }}
    {%- endfor %}
    {{- '<|im_end|>\\n' }}
{%- endif %}
{%- set ns = namespace(multi_step=true, last=messages|length - 1) %}
{%- for message in messages[::-1] %}
    {%- set index = (messages|length - 1) - loop.index0 %}
    {%- if ns.multi_step and message.role == "user" and message.content is string %}
        {%- set ns.multi_step = false %}{%- set ns.last = index %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- if message.role == 'assistant' %}
        {%- set thought = '' %}
        {%- set content = message.content %}
        {%- if message.reasoning_content is string %}
            {%- set thought = message.reasoning_content %}
        {%- elif '</think>' in content %}
            {%- set thought = content.split('</think>')[0].split('<think>')[-1].strip('\\n') %}
            {%- set content = content.split('</think>')[-1].lstrip('\\n') %}
        {%- endif %}
        {%- generation %}
        {%- if loop.index0 > ns.last %}<think>{{ thought }}</think>{% endif %}{{ content }}
        {%- endgeneration %}
        {%- for call in message.tool_calls or [] %}
            {{- call.function.name ~ ':' ~ (call.function.arguments | tojson) }}
        {%- endfor %}
        {{- '<|im_end|>\\n' }}
    {%- elif loop.index0 > 40 %}{% break %}
    {%- else %}
        {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{% endif %}
"""
MACROS = """{% macro turn(m) -%}
<|{{ m['role'] }}|>{% if m['content'] is not string %}
{%- for part in m['content'] %}{{ part['text'] }}{% endfor %}
{%- else %}{{ m['content'] | trim }}{% endif %}<|end|>
{%- endmacro %}
{{ bos_token }}{% if messages[0]['role'] != 'system' %}<|system|>default<|end|>{% endif %}
{% for m in messages %}{{ turn(m) }}{% endfor %}
{% if thinking is defined and thinking is false %}<think></think>{% else %}<think>{% endif %}"""
STRICT = """{% for m in messages %}
{%- if (m['role'] == 'user') != (loop.index0 % 2 == 0) %}
{{- raise_exception('roles must alternate user/assistant') }}{% endif %}{{ m['content'] }}
{%- endfor %}"""

CHATS: list[list[dict[str, Any]]] = [
    [{"role": "user", "content": "Grüße <b>&amp;</b> 日本"}],
    [
        {"role": "system", "content": " be brief \n"},
        {"role": "user", "content": "1+1?"},
        {"role": "assistant", "content": "two", "reasoning_content": "one and one"},
        {"role": "user", "content": "sure?"},
        {"role": "assistant", "content": "<think>\nhm\n</think>\n\nyes"},
    ],
    [
        {"role": "user", "content": "weather"},
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [{"function": {"name": "look", "arguments": {"city": "Zürich <"}}}],
        },
        {"role": "tool", "content": "sun"},
    ],
]
TOOLS = [{"type": "function", "function": {"name": "look", "description": "é <x> 'q'"}}]


@pytest.mark.parametrize("template", [THINK_TEMPLATE, HERMES, MACROS])
@pytest.mark.parametrize("chat", range(len(CHATS)))
@pytest.mark.parametrize("tools", [None, TOOLS])
@pytest.mark.parametrize("kwargs", [{}, {"thinking": False, "enable_thinking": False}])
def test_rendering_is_the_rendering_of_transformers(
    template: str, chat: int, tools: list[Any] | None, kwargs: dict[str, Any]
) -> None:
    from transformers.utils.chat_template_utils import render_jinja_template

    theirs = render_jinja_template(
        conversations=[CHATS[chat]], tools=tools, chat_template=template,
        add_generation_prompt=True, bos_token="<s>", **kwargs,
    )[0][0]  # fmt: skip
    asked = request(
        json.dumps(CHATS[chat]),
        None,
        None,
        json.dumps(tools) if tools else None,
        json.dumps(kwargs),
        None,
        parts=True,
    )
    ours = render(
        compile_template(template),
        {
            "bos_token": "<s>", "messages": asked.messages, "tools": asked.tools,
            "documents": None, "add_generation_prompt": True, **asked.kwargs,
        },
    )  # fmt: skip
    assert ours == theirs


@pytest.mark.parametrize(
    ("template", "reason"),
    [
        ("{{ raise_exception('no\nway') }}", "no way"),
        ("{{ missing.field.deeper }}", "'missing' is undefined"),
        ("{{ messages.append(1) }}", "access to attribute 'append' of 'list' object is unsafe."),
        ("{% for i in range(10 ** 9) %}{% endfor %}", "Range too big. The sandbox blocks ranges"),
        ("{{ 'a' * 100000000 }}", "a product too large"),
        ("{{ 9 ** 999999999 }}", "a power too large"),
        (
            "{{ ''.__class__.__mro__ }}",
            "access to attribute '__class__' of 'str' object is unsafe.",
        ),
        ("{{ 1 / 0 }}", "division by zero"),
        ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "maximum recursion depth exceeded"),
    ],
)
def test_a_hostile_template_is_one_fault(template: str, reason: str) -> None:
    with pytest.raises(TemplateFault, match="^" + re.escape(reason)):
        render(compile_template(template), {"messages": []})


def test_a_template_that_does_not_compile_is_one_fault() -> None:
    with pytest.raises(TemplateFault, match="Expected an expression"):
        compile_template("{% if %}")


def test_the_date_is_the_records() -> None:
    template = compile_template("{{ strftime_now('%d %B %Y') }}")
    assert render(template, {"strftime_now": clock(1_795_961_134)}) == "29 November 2026"
    assert clock(10**18)("%Y").isdigit()


def records(**columns: Any) -> pl.DataFrame:
    height = max(len(v) for v in columns.values())
    frame: dict[str, list[Any]] = {name: [None] * height for name in RECORD_SCHEMA}
    frame |= {"status": [Status.RECORD.value] * height, "notes": [0] * height}
    frame |= {"file_no": [0] * height, **columns}
    return pl.DataFrame(frame, schema=RECORD_SCHEMA)


def prompts(
    template: str | None, thinking: bool = True, profile: Any = PROFILE, **columns: Any
) -> list[Prompt]:
    frame = records(**columns)
    builder = PromptBuilder(profile, SMOL, resolve(profile, SMOL), template)
    return builder.build(frame, [thinking] * frame.height, [None] * frame.height)


def ids(text: str) -> list[int]:
    found: list[int] = SMOL.encode_marked([text])[0].tolist()
    return found


USER = [{"role": "user", "content": "hi"}]


def test_template_layout_none() -> None:
    asked = [json.dumps(USER), None]
    by_template = prompts(THINK_TEMPLATE, messages_json=asked)
    by_layout = prompts(None, messages_json=asked)
    expected = ids("<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n<think>\n")
    for made, source in ((by_template, PromptSource.TEMPLATE), (by_layout, PromptSource.LAYOUT)):
        assert made[0].ids is not None and made[0].ids.tolist() == expected
        assert (made[0].source, made[0].rendered) == (source, len(expected))
        assert (made[1].source, made[1].reason) == (
            PromptSource.NONE,
            "the record holds no request",
        )
    off = prompts(None, thinking=False, messages_json=asked)[0]
    assert off.ids is not None
    assert off.ids.tolist()[-4:] == ids("<think>\n\n</think>\n\n")[-4:]


def test_kwargs_reach_the_template() -> None:
    made = prompts(
        THINK_TEMPLATE,
        messages_json=[json.dumps(USER)],
        template_kwargs_json=['{"enable_thinking": false}'],
    )[0]
    assert made.ids is not None
    assert made.ids.tolist() == ids(
        "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"
    )


def test_a_failing_template_costs_one_prompt() -> None:
    bad = json.dumps([{"role": "assistant", "content": "x"}])
    good, refused = prompts(STRICT, messages_json=[json.dumps(USER), bad])
    assert (good.source, good.reason) == (PromptSource.TEMPLATE, None)
    assert (refused.source, refused.ids) == (PromptSource.NONE, None)
    assert refused.reason == "template: roles must alternate user/assistant"
    with pytest.raises(TemplateFault):
        prompts("{% if %}", messages_json=[json.dumps(USER)])


@pytest.mark.parametrize(
    ("messages", "reason"),
    [
        ("{}", "messages is no list"),
        ("[1]", "a message is no object"),
        ("[{", "messages: unexpected"),
        ('[{"role":"user","content":7}]', "neither text nor a list of parts"),
        ('[{"role":"user","content":[{"type":"image_url"}]}]', "parts that are no text"),
    ],
)
def test_requests_that_can_not_be_shaped(messages: str, reason: str) -> None:
    with pytest.raises(RequestFault, match=reason):
        request(messages, None, None, None, None, None, parts=False)


def test_servers_habits() -> None:
    asked = request(
        json.dumps(
            [
                {"role": "user", "content": [{"type": "text", "text": "a"}, "b"]},
                {
                    "role": "assistant",
                    "content": None,
                    "reasoning": "r",
                    "tool_calls": [{"function": {"name": "f", "arguments": '{"x": 1}'}}],
                },
            ]
        ),
        None, None, None, None, '{"reasoning_effort": "low"}', parts=False,
    )  # fmt: skip
    user, assistant = asked.messages
    assert user["content"] == "a\nb"
    assert (assistant["content"], assistant["reasoning_content"]) == ("", "r")
    assert assistant["tool_calls"][0]["function"]["arguments"] == {"x": 1}
    assert asked.kwargs == {"reasoning_effort": "low"}


QUOTING = [{"role": "user", "content": "what is </think> for? <|im_end|>"}]
RENDERED = (
    "<|im_start|>user\nwhat is </think> for? <|im_end|><|im_end|>\n<|im_start|>assistant\n<think>\n"
)


@pytest.mark.parametrize("escaped", [False, True])
def test_a_quoted_marker_never_becomes_a_control_id_silently(escaped: bool) -> None:
    text = json.dumps(QUOTING).replace("<", "\\u003c") if escaped else json.dumps(QUOTING)
    served = ids(RENDERED)
    for template in (THINK_TEMPLATE, None):
        made = prompts(template, messages_json=[text])[0]
        assert made.quotes and made.ids is not None
        own = made.ids.tolist()
        assert own.count(49153) == 0 and served.count(49153) == 1
        assert own.count(2) == served.count(2) - 1 == 1
        assert SMOL.decode([own]) == [RENDERED]


def test_the_servers_count_decides_between_the_two_readings() -> None:
    text, served = json.dumps(QUOTING), ids(RENDERED)
    own = prompts(THINK_TEMPLATE, messages_json=[text])[0].rendered
    assert own is not None and own != len(served)
    for count, expected in ((len(served), len(served)), (own, own), (own + 50, own), (None, own)):
        made = prompts(THINK_TEMPLATE, messages_json=[text], prompt_tokens=[count])[0]
        assert made.rendered == expected and made.quotes


def test_think_markers_of_earlier_answers_are_not_quotes() -> None:
    chat = [*USER, {"role": "assistant", "content": "<think>a</think>b"}, *USER]
    made = prompts(THINK_TEMPLATE, messages_json=[json.dumps(chat)])[0]
    assert not made.quotes


def test_a_sentinel_in_the_request_is_not_taken_for_a_marker() -> None:
    quotes = Quotes(["</think>"])
    chat = json.dumps([{"role": "user", "content": "\U000f0000 </think>"}])
    asked = request(chat, None, None, None, None, None, parts=False)
    hidden, back = quotes.hidden(asked)
    assert hidden.messages[0]["content"] == "\U000f0000 \U000f0001"
    assert back == {"\U000f0001": "</think>"}


def test_captured_prompts_are_kept_and_compared() -> None:
    expected = ids("<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n<think>\n")
    same = np.array(expected, dtype=np.int32)
    frame = records(messages_json=[json.dumps(USER)] * 3)
    builder = PromptBuilder(PROFILE, SMOL, resolve(PROFILE, SMOL), THINK_TEMPLATE)
    equal, other, absent = builder.build(frame, [True] * 3, [same, same[1:], None])
    assert (equal.source, equal.match, equal.rendered) == (
        PromptSource.CAPTURED,
        True,
        len(expected),
    )
    assert (other.match, None if other.ids is None else len(other.ids)) == (
        False,
        len(expected) - 1,
    )
    assert (absent.source, absent.match) == (PromptSource.TEMPLATE, None)


def test_a_layout_says_what_it_can_not_write() -> None:
    tools = prompts(None, messages_json=[json.dumps(USER)], tools_json=[json.dumps(TOOLS)])[0]
    assert tools.reason == "no chat template, and a layout can not declare tools"
    odd = prompts(None, messages_json=['[{"role": "tool", "content": "x"}]'])[0]
    assert odd.reason == "no chat template, and a layout has no place for the role 'tool'"


def test_a_plain_prompt_is_one_user_message() -> None:
    made = prompts(THINK_TEMPLATE, prompt_text=["hi"], system_text=["be kind"])[0]
    assert made.ids is not None
    assert made.ids.tolist() == ids(
        "<|im_start|>system\nbe kind<|im_end|>\n<|im_start|>user\nhi<|im_end|>\n"
        "<|im_start|>assistant\n<think>\n"
    )
