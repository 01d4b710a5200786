"""The stored request as a template sees it: messages, tools and kwargs, shaped as a server shapes
them.

What enters: the JSON text columns of one record. What leaves: the variables of the chat template.
It promises the servers' habits (content parts joined, tool arguments as mappings, a thought under
both of its names), and that texts of the request which spell control markers can be swapped for
sentinels and back.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

import orjson

SENTINELS = 0xF0000
"""First code point of the private-use plane that the sentinels are taken from."""


_OTHER_PROMPT: dict[str, object] = {
    "add_generation_prompt": True,
    "continue_final_message": False,
    "chat_template": None,
    "truncate_prompt_tokens": None,
}
"""Request fields of vLLM and SGLang, and the value that leaves the prompt as it is."""
_READ = (*_OTHER_PROMPT, "reasoning_effort")
"""Settings that decide the prompt: without one of these words they are not parsed."""


class RequestFault(ValueError):
    """The stored request can not be shaped into messages; the text says why."""


@dataclass(frozen=True, slots=True)
class Request:
    """`messages`, `tools` (None without), `kwargs`: what `chat_template_kwargs` and
    `reasoning_effort` asked for.
    """

    messages: list[dict[str, Any]]
    tools: list[Any] | None
    kwargs: dict[str, Any]


def request(
    messages_json: str | None,
    prompt_text: str | None,
    system_text: str | None,
    tools_json: str | None,
    kwargs_json: str | None,
    settings_json: str | None,
    *,
    parts: bool,
) -> Request:
    """Shape one stored request. `parts`: the template reads lists of content parts itself. Raises
    RequestFault.

    A plain-text prompt is one user message: that is what the scripts which store one send.
    """
    if messages_json is None:
        messages: list[dict[str, Any]] = [{"role": "user", "content": prompt_text or ""}]
        if system_text:
            messages.insert(0, {"role": "system", "content": system_text})
    else:
        messages = [_message(m, parts) for m in _list(messages_json, "messages")]
    tools = _list(tools_json, "tools") if tools_json else None
    kwargs: dict[str, Any] = {}
    if settings_json and any(key in settings_json for key in _READ):
        settings = _load(settings_json, "settings")
        _refuse_other_prompt(settings)
        effort = settings.get("reasoning_effort")
        if effort is not None:
            kwargs["reasoning_effort"] = effort
    if kwargs_json:
        extra = _load(kwargs_json, "chat_template_kwargs")
        if not isinstance(extra, dict):
            raise RequestFault("chat_template_kwargs is no object")
        _refuse_other_prompt(extra)
        kwargs.update(extra)
    return Request(messages, tools or None, kwargs)


def _refuse_other_prompt(asked: dict[str, Any]) -> None:
    """Raise RequestFault for a switch of the request by which its server built another prompt than
    the template and the messages give: rebuilt without it, the prompt would be wrong in silence.
    """
    for key, usual in _OTHER_PROMPT.items():
        if asked.get(key, usual) not in (usual, None):
            raise RequestFault(f"the request sets {key}, by which the server built another prompt")


def _load(text: str, what: str) -> Any:
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise RequestFault(f"{what}: {error}") from error


def _list(text: str, what: str) -> list[Any]:
    value = _load(text, what)
    if not isinstance(value, list):
        raise RequestFault(f"{what} is no list")
    return value


def _message(message: object, parts: bool) -> dict[str, Any]:
    if not isinstance(message, dict):
        raise RequestFault("a message is no object")
    content = message.get("content")
    if content is None:
        message["content"] = ""  # vLLM hands the template "" for null
    elif not isinstance(content, str):
        message["content"] = _joined(content, parts)
    if message.get("role") == "assistant":
        thought = message.get("reasoning")
        if thought is None:
            thought = message.get("reasoning_content")
        if thought is not None:  # vLLM >= 0.25.1 hands the template both names
            message["reasoning"] = message["reasoning_content"] = thought
        calls = message.get("tool_calls")
        if isinstance(calls, list):
            for call in calls:
                function = call.get("function") if isinstance(call, dict) else None
                if isinstance(function, dict) and isinstance(function.get("arguments"), str):
                    function["arguments"] = _arguments(function["arguments"])
        elif calls is None:
            message.pop("tool_calls", None)
    return message


def _joined(content: object, parts: bool) -> object:
    if not isinstance(content, list):
        raise RequestFault("the content of a message is neither text nor a list of parts")
    texts: list[str] = []
    for part in content:
        text = (
            part if isinstance(part, str) else part.get("text") if isinstance(part, dict) else None
        )
        if not isinstance(text, str):
            raise RequestFault("a message holds parts that are no text (image, audio)")
        texts.append(text)
    return content if parts else "\n".join(texts)  # vLLM's "string" content format


def _arguments(text: str) -> object:
    try:
        return orjson.loads(text) if text.strip() else {}
    except orjson.JSONDecodeError:
        return text


class Quotes:
    """Control markers that request texts spell, and the sentinels that stand in for them while a
    template runs.

    Assistant turns are left alone: templates cut them at their think markers on purpose.
    """

    def __init__(self, controls: list[str]) -> None:
        self.controls = sorted(controls, key=len, reverse=True)
        self._pattern = re.compile("|".join(map(re.escape, self.controls))) if controls else None

    def spelled(self, asked: Request) -> bool:
        """Whether a system, user or tool message or a tool declaration spells a control marker."""
        pattern = self._pattern
        if pattern is None:
            return False
        seen = False

        def look(text: str) -> str:
            nonlocal seen
            seen = seen or pattern.search(text) is not None
            return text

        self._walk(asked, look)
        return seen

    def hidden(self, asked: Request) -> tuple[Request, dict[str, str]]:
        """The request with one private character for each spelled marker, and character → marker.

        The characters are chosen so that no text of the request holds one of them already.
        """
        used: set[str] = set()

        def note(text: str) -> str:
            used.update(c for c in text if c >= chr(SENTINELS))
            return text

        self._walk(asked, note)
        free = (chr(c) for c in range(SENTINELS, SENTINELS + 0xFFFE) if chr(c) not in used)
        sentinel = {control: next(free) for control in self.controls}
        pattern = cast("re.Pattern[str]", self._pattern)
        swapped = self._walk(asked, lambda text: pattern.sub(lambda m: sentinel[m[0]], text))
        return swapped, {char: control for control, char in sentinel.items()}

    def _walk(self, asked: Request, visit: Callable[[str], str]) -> Request:
        messages = [
            m if m.get("role") == "assistant" else {k: _mapped(v, visit) for k, v in m.items()}
            for m in asked.messages
        ]
        return Request(
            messages, cast("list[Any] | None", _mapped(asked.tools, visit)), asked.kwargs
        )


def _mapped(value: object, visit: Callable[[str], str]) -> object:
    if isinstance(value, str):
        return visit(value)
    if isinstance(value, list):
        return [_mapped(item, visit) for item in value]
    if isinstance(value, dict):
        return {key: _mapped(item, visit) for key, item in value.items()}
    return value
