"""`generate`: prompts are asked of one or more servers, and every answer is stored whole.

What enters: prompts, addresses, options. What leaves: the rows in the file, a display on stderr, an
exit code: 0 every row is stored, 1 some failed or the run was stopped, 2 the call can not work, 130
interrupted. It promises that the same command with --resume goes on wherever a run ended.
"""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from eagle3_data.cli import console, options
from eagle3_data.cli.faults import UsageFault


class Switch(StrEnum):
    """Thinking on or off."""

    ON = "on"
    OFF = "off"


def generate(
    prompts: Annotated[
        str,
        typer.Argument(
            metavar="PROMPTS",
            help="JSONL of any shape that check knows, .parquet, .txt (a prompt a line), - for"
            " standard input, or owner/name[:split] of a dataset.",
        ),
    ],
    out: Annotated[
        Path, typer.Option("--out", "-o", metavar="FILE", help="Where the rows go (.jsonl).")
    ],
    base_url: Annotated[
        list[str],
        typer.Option(metavar="URL", help="A server, http://host:port/v1 (repeatable)."),
    ],
    model: Annotated[
        str | None, typer.Option(metavar="NAME", help="Model to ask; the served one unless set.")
    ] = None,
    profile: options.Profile = None,
    tokenizer: options.Tokenizer = None,
    chat_template: options.ChatTemplate = None,
    thinking: Annotated[
        Switch | None, typer.Option(help="Turn thinking on or off by the profile's own switch.")
    ] = None,
    temperature: Annotated[
        float | None, typer.Option(min=0.0, help="Sampling temperature.")
    ] = None,
    top_p: Annotated[float | None, typer.Option(min=0.0, max=1.0, help="Nucleus sampling.")] = None,
    top_k: Annotated[int | None, typer.Option(help="Sample from the k likeliest tokens.")] = None,
    min_p: Annotated[
        float | None, typer.Option(min=0.0, max=1.0, help="Least share of the likeliest token.")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Seed; sample k is drawn with seed + k.")] = None,
    max_tokens: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Most tokens of an answer.")
    ] = None,
    stop: Annotated[
        list[str] | None, typer.Option(metavar="TEXT", help="Stop string (repeatable).")
    ] = None,
    extra_body: Annotated[
        str | None, typer.Option(metavar="JSON", help="Further keys of every request, one object.")
    ] = None,
    samples: Annotated[
        int, typer.Option(min=1, metavar="N", help="Answers for each prompt, each a row.")
    ] = 1,
    retry_cut: Annotated[
        int | None,
        typer.Option(
            min=1, metavar="N", help="Ask once more with N tokens when an answer was cut."
        ),
    ] = None,
    stream: Annotated[
        bool, typer.Option("--stream/--no-stream", help="Receive answers as they are made.")
    ] = False,
    ids: Annotated[
        bool, typer.Option("--ids/--no-ids", help="Ask for token ids where a server has them.")
    ] = True,
    concurrency: Annotated[
        str, typer.Option(metavar="N|auto", help="Requests in flight at each server.")
    ] = "auto",
    attempts: Annotated[
        int, typer.Option(min=1, metavar="N", help="Attempts at a row before it has failed.")
    ] = 5,
    timeout: Annotated[
        float, typer.Option(min=0.1, metavar="S", help="Seconds without a byte end an attempt.")
    ] = 600.0,
    max_failures: Annotated[
        int, typer.Option(min=1, metavar="N", help="Failures in a row that drop a server.")
    ] = 16,
    grace: Annotated[
        float, typer.Option(min=0.0, metavar="S", help="Seconds to finish after Ctrl-C.")
    ] = 30.0,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with an output; failed rows are asked again.")
    ] = False,
    probe: Annotated[
        bool, typer.Option("--probe/--no-probe", help="Probe the servers before the first prompt.")
    ] = True,
    stop_on: options.StopOn = None,
    limit: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Only the first N prompts.")
    ] = None,
    accept_model: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Model name that answers may carry too (repeatable)."),
    ] = None,
    api_key_env: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="Variable with the key (EAGLE3_API_KEY, OPENAI_API_KEY)."
        ),
    ] = None,
    json: options.Json = False,
    config: options.Config = None,
    quiet: options.Quiet = False,
    verbose: options.Verbose = False,
) -> None:
    """Ask a served model and store what it says: request, whole response, ids, server, per row.

    \b
    Examples:
      eagle3-data generate prompts.jsonl -o raw_responses.jsonl --base-url http://127.0.0.1:8000/v1
      eagle3-data generate prompts.jsonl -o raw.jsonl --base-url http://a:8000 --base-url http://b:8000
      eagle3-data generate prompts.jsonl -o raw_responses.jsonl --base-url … --resume
    """
    from eagle3_data.capture.missing import needed

    with needed("tenacity", "openai", "httpx2"):
        from eagle3_data.capture.generate import Plan
    from eagle3_data.capture.prompts import open_prompts
    from eagle3_data.capture.request import parse_extra
    from eagle3_data.capture.server import key_from
    from eagle3_data.capture.session import Way
    from eagle3_data.capture.stop import StopOn
    from eagle3_data.cli.capture import Call
    from eagle3_data.cli.config import Settings, located, read

    file = located(config)
    fixed = read(file) if file else Settings()
    sampling = {
        "temperature": temperature, "top_p": top_p, "top_k": top_k, "min_p": min_p, "seed": seed,
        "max_tokens": max_tokens, "stop": stop or None,
    }  # fmt: skip
    if retry_cut is not None and max_tokens is not None and retry_cut <= max_tokens:
        raise UsageFault(f"--retry-cut {retry_cut} is not more than --max-tokens {max_tokens}")
    way = Way(
        base_url, model, key_from(api_key_env), timeout, stream, _concurrency(concurrency), ids,
        tuple(accept_model or ()),
    )  # fmt: skip
    if verbose:
        console.note(f"settings: {file or 'none, defaults in force'}")
    call = Call(
        prompts=open_prompts(prompts),
        out=out,
        way=way,
        plan=Plan(attempts, max_failures, grace, retry_cut, stream),
        options={name: value for name, value in sampling.items() if value is not None},
        extra=parse_extra(extra_body) if extra_body is not None else {},
        thinking=None if thinking is None else thinking is Switch.ON,
        profile=profile or fixed.profile,
        tokenizer=tokenizer or fixed.tokenizer,
        chat_template=chat_template or fixed.chat_template,
        samples=samples,
        limit=limit,
        resume=resume,
        probe=probe,
        stops=[StopOn.parse(text) for text in stop_on or ()],
        json=json,
        quiet=quiet,
    )
    import asyncio  # 25 ms, which --help need not take

    raise typer.Exit(asyncio.run(call.run()))


def _concurrency(text: str) -> int | None:
    if text == "auto":
        return None
    if not text.isdecimal() or int(text) < 1:
        raise UsageFault(f"--concurrency {text}: give a number from 1 on, or auto")
    return int(text)
