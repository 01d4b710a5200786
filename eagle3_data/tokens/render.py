"""Chat templates, rendered as servers do but by jinja2 directly: transformers' renderer costs 1.3 s
to import.

What enters: a template and its variables. What leaves: the rendered prompt.
It promises the dialect of transformers (trim_blocks, lstrip_blocks, loop controls, `{% generation
%}`, raise_exception, strftime_now, plain `tojson`), and that a template, which comes from
strangers, runs in jinja's immutable sandbox with bounded ranges, products and output. A template
that loops for ever inside those bounds is not stopped.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jinja2 import Template

MAX_PROMPT_CHARS = 64 * 1024 * 1024
"""A record line is at most 64 MiB; a prompt that grows beyond it is an attack, not a prompt."""
MAX_PRODUCT = 1 << 20
"""Largest text or list that `*` may make, and largest bit length that `**` may reach."""


class TemplateFault(ValueError):
    """A template that can not be compiled, or that refuses these messages; the text says why, in
    one line.
    """


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def clock(created: int | None) -> Callable[[str], str]:
    """`strftime_now` for a record: the time it was created (UTC, unix seconds), else now."""

    def strftime_now(layout: str) -> str:
        try:
            at = datetime.now(UTC) if created is None else datetime.fromtimestamp(created, UTC)
        except (OverflowError, OSError, ValueError):
            at = datetime.now(UTC)
        return at.strftime(layout)

    return strftime_now


@dataclass(frozen=True, slots=True)
class Compiled:
    """A compiled template, and its global names as one dict: jinja's own chain of mappings costs
    more to copy than a short prompt costs to render.
    """

    template: Template
    names: Mapping[str, object]


@lru_cache(maxsize=8)
def compile_template(source: str) -> Compiled:
    """Compile a chat template in the sandbox. Raises TemplateFault."""
    from jinja2 import TemplateError, nodes
    from jinja2.exceptions import SecurityError
    from jinja2.ext import Extension, loopcontrols
    from jinja2.parser import Parser
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class Generation(Extension):
        """`{% generation %}` marks what an assistant wrote. For a prompt its body is all that
        counts.
        """

        tags = {"generation"}  # noqa: RUF012 - jinja's own interface

        def parse(self, parser: Parser) -> nodes.Node | list[nodes.Node]:
            line = next(parser.stream).lineno
            body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
            return nodes.Scope(body, lineno=line)

    class Sandbox(ImmutableSandboxedEnvironment):
        intercepted_binops = frozenset({"*", "**"})

        def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
            if operator == "**":
                large = isinstance(left, int) and isinstance(right, int)
                if large and left.bit_length() * max(right, 1) > MAX_PRODUCT:
                    raise SecurityError("a power too large")
            else:
                for text, times in ((left, right), (right, left)):
                    many = isinstance(text, (str, list, tuple)) and isinstance(times, int)
                    if many and len(text) * times > MAX_PRODUCT:
                        raise SecurityError("a product too large")
            return super().call_binop(context, operator, left, right)

    def raise_exception(message: object) -> None:
        raise TemplateError(str(message))

    environment = Sandbox(
        trim_blocks=True,
        lstrip_blocks=True,
        autoescape=False,
        extensions=[Generation, loopcontrols],
    )
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = raise_exception
    environment.globals["strftime_now"] = clock(None)
    try:
        template = environment.from_string(source)
    except Exception as error:
        raise TemplateFault(_reason(error)) from error
    return Compiled(template, dict(template.globals))


def render(compiled: Compiled, variables: Mapping[str, object]) -> str:
    """Render a compiled template. Raises TemplateFault for whatever goes wrong inside it."""
    from jinja2.runtime import new_context

    blocks: list[str] = []
    size = 0
    try:
        names = {**compiled.names, **variables}
        template = compiled.template
        context = new_context(
            template.environment, template.name, template.blocks, vars=names, shared=True
        )
        for block in template.root_render_func(context):
            size += len(block)
            if size > MAX_PROMPT_CHARS:
                raise TemplateFault("the rendered prompt is larger than 64 MiB")
            blocks.append(block)
    except TemplateFault:
        raise
    except Exception as error:  # a stranger may raise anything: TypeError, RecursionError, …
        raise TemplateFault(_reason(error)) from error
    return "".join(blocks)


def _reason(error: Exception) -> str:
    text = " ".join(str(error).split()) or type(error).__name__
    return text[:200]
