"""`probe`: what a server would do to a capture, found out with a dozen small requests.

What enters: the address of a server and options. What leaves: a verdict table on stdout, an exit
code: 1 when a capture would be faulty. It promises that no key is printed and that text of the
model can not act on the terminal.
"""

from __future__ import annotations

import sys
import textwrap
from typing import TYPE_CHECKING, Annotated

import typer

from eagle3_data.cli import console, options
from eagle3_data.cli.faults import Exit
from eagle3_data.cli.generate import Switch

if TYPE_CHECKING:
    from eagle3_data.capture.probe import Check, Probe

WIDTH = 100


def probe(
    base_url: Annotated[
        str, typer.Option(metavar="URL", help="The server, as http://host:port/v1.")
    ],
    model: Annotated[
        str | None, typer.Option(metavar="NAME", help="Served model, where there are several.")
    ] = None,
    profile: options.Profile = None,
    tokenizer: options.Tokenizer = None,
    chat_template: options.ChatTemplate = None,
    thinking: Annotated[
        Switch | None, typer.Option(help="Judge a capture that turns thinking on or off.")
    ] = None,
    api_key_env: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="Variable with the key (EAGLE3_API_KEY, OPENAI_API_KEY)."
        ),
    ] = None,
    timeout: Annotated[
        float, typer.Option(min=1, metavar="S", help="Seconds that one answer may take.")
    ] = 300.0,
    json: options.Json = False,
    quiet: options.Quiet = False,
    verbose: options.Verbose = False,
) -> None:
    """Find out what a server would do to a capture. Exit 1: a capture would be faulty.

    \b
    Examples:
      eagle3-data probe --base-url http://127.0.0.1:8000/v1 --tokenizer ./Qwen3-8B
      eagle3-data probe --base-url http://127.0.0.1:8000/v1 --thinking off --json
    """
    import asyncio  # 25 ms, which --help need not take

    found, notes = asyncio.run(
        _probe(base_url, model, profile, tokenizer, chat_template, thinking, api_key_env, timeout)
    )
    if not quiet:
        for note in notes:
            console.note(note)
    if json:
        console.data(found.as_json())
    else:
        console.result(table(found, paint=console.colourful(sys.stdout)))
    if verbose and not quiet:
        from eagle3_data.audit.inert import inert

        for answer in found.answers:
            told = answer.fault or repr((answer.reasoning, answer.content))
            console.note(f"{answer.question.name}: {answer.finish} {inert(told, 300)}")
    raise typer.Exit(Exit.FINDINGS if found.faulty else Exit.CLEAN)


async def _probe(
    base_url: str,
    model: str | None,
    profile: str | None,
    tokenizer: str | None,
    chat_template: str | None,
    thinking: Switch | None,
    api_key_env: str | None,
    timeout: float,
) -> tuple[Probe, list[str]]:
    from eagle3_data import plan
    from eagle3_data.capture.probe import probe as ask
    from eagle3_data.capture.server import connect, identify, key_from
    from eagle3_data.profiles.choose import choose

    encoder = plan.tokenizer(tokenizer)
    template = plan.template_text(chat_template)
    wanted = None if thinking is None else thinking is Switch.ON
    async with connect(base_url, api_key=key_from(api_key_env), timeout=timeout) as client:
        server = await identify(client, model=model)
        chosen = plan.fitting(choose(profile, [server.model]), encoder, profile)
        found = await ask(
            client,
            server,
            profile=chosen.profile,
            tokenizer=encoder,
            chat_template=template,
            thinking=wanted,
        )
    return found, [note for note in (f"profile: {chosen.why}", chosen.note) if note]


def table(found: Probe, *, paint: bool = False) -> str:
    """The verdict table as text."""
    ink = console.Ansi()
    lines = []
    width = max(len(check.name) for check in found.checks)
    for check in found.checks:
        word = check.verdict.value
        shown = f"{word:8}"
        if paint:
            shown = ink.bad(shown) if word == "bad" else ink.good(shown) if word == "ok" else shown
        lead = f"{shown} {check.name:{width}}  "
        lines += _wrapped(lead, 11 + width, check)
    bad = sum(check.verdict.value == "bad" for check in found.checks)
    end = f"FAULTY: {bad} of {len(found.checks)} checks" if bad else "A capture would be sound"
    lines.append(f"{end} ({len(found.answers)} requests, profile {found.profile})")
    return "\n".join(lines)


def _wrapped(lead: str, indent: int, check: Check) -> list[str]:
    texts = [check.seen, check.means and f"means: {check.means}"]
    texts.append(check.mend and f"mend: {check.mend}")
    blank = " " * indent
    out: list[str] = []
    for text in texts:
        if text:
            out += textwrap.wrap(text, WIDTH - indent, break_on_hyphens=False) or [""]
    return [(lead if i == 0 else blank) + line for i, line in enumerate(out)]
