"""`acceptance`: a live engine against the walk on its own ids: data, drafter, engine, checkpoint?

What enters: a drafter, its target, the address of an engine that speculates with it, prompts; or
saved numbers. What leaves: a table and a verdict on stdout, JSON where asked, an exit code: 0
engine and checkpoint are right, 1 they are not, or there is nothing to compare. It promises to send
one request before all others, and to name the fault whose numbers fit.
"""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from eagle3_data.cli import console, options
from eagle3_data.cli.evaluate import counting
from eagle3_data.cli.faults import Exit, UsageFault
from eagle3_data.cli.finetune import Dtype

if TYPE_CHECKING:
    from eagle3_data.draft.acceptance import Judgement
    from eagle3_data.draft.emulate import Reference
    from eagle3_data.draft.live_run import Asked, Run
    from eagle3_data.draft.paired import Walked


class Engine(StrEnum):
    """The engines whose counters are known."""

    VLLM = "vllm"
    SGLANG = "sglang"
    LLAMACPP = "llamacpp"


def acceptance(
    draft: Annotated[
        Path | None,
        typer.Argument(metavar="DRAFT", help="Folder of the drafter that the engine serves."),
    ] = None,
    target: Annotated[
        Path | None, typer.Option(metavar="MODEL", help="Folder of the target model.")
    ] = None,
    base_url: Annotated[
        str | None, typer.Option(metavar="URL", help="The speculating engine, http://host:port/v1.")
    ] = None,
    prompts: Annotated[
        str | None, typer.Option(metavar="FILE", help="Prompts, as generate reads them.")
    ] = None,
    engine: Annotated[
        Engine | None, typer.Option(help="What serves there; found out unless set.")
    ] = None,
    drafts: Annotated[
        int | None,
        typer.Option(min=1, metavar="K", help="Tokens drafted in a step; as the engine counts."),
    ] = None,
    max_tokens: Annotated[
        int, typer.Option(min=2, metavar="N", help="Most tokens of an answer.")
    ] = 256,
    limit: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Only the first N prompts.")
    ] = None,
    concurrency: Annotated[int, typer.Option(min=1, metavar="N", help="Requests in flight.")] = 8,
    model: Annotated[
        str | None, typer.Option(metavar="NAME", help="Model to ask; the served one unless set.")
    ] = None,
    extra_body: Annotated[
        str | None, typer.Option(metavar="JSON", help="Further keys of every request, one object.")
    ] = None,
    api_key_env: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="Variable with the key (EAGLE3_API_KEY, OPENAI_API_KEY)."
        ),
    ] = None,
    timeout: Annotated[
        float, typer.Option(min=1, metavar="S", help="Seconds without a byte end an attempt.")
    ] = 600.0,
    offline: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="What evaluate --json printed, in place of a live run."),
    ] = None,
    metrics: Annotated[
        list[Path] | None,
        typer.Option(metavar="FILE", help="With --offline: /metrics before, then after."),
    ] = None,
    compute: Annotated[Dtype, typer.Option(help="Numbers of the matrix products.")] = Dtype.BF16,
    device: Annotated[
        str, typer.Option(metavar="DEVICE", help="Where the target is loaded: auto, cpu, cuda:1, …")
    ] = "auto",
    trust_remote_code: Annotated[
        bool, typer.Option("--trust-remote-code", help="Run code that lies in the target's folder.")
    ] = False,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", metavar="FILE", help="Write the JSON here too.")
    ] = None,
    overwrite: options.Overwrite = False,
    json: options.Json = False,
    quiet: options.Quiet = False,
    verbose: options.Verbose = False,
) -> None:
    """Measure acceptance in a live engine, and tell who is to blame. Exit 0: engine and checkpoint
    are right, 1: they are not.

    \b
    Examples:
      eagle3-data acceptance drafter/ --target model/ --base-url http://host:8000 --prompts p.jsonl
      eagle3-data acceptance --offline eval.json --metrics before.txt --metrics after.txt
    """
    from eagle3_data.writing import drafting, refuse_unwritable

    if out is not None:
        refuse_unwritable(out, overwrite=overwrite)
    if offline is not None:
        if draft or target or base_url or prompts or not metrics or len(metrics) > 2:
            raise UsageFault(
                "--offline takes one or two --metrics FILE (before, after) and neither a drafter"
                " nor a server"
            )
        found = _saved(offline, metrics)
        text = "\n".join(verdict(found))
    else:
        if draft is None or target is None or base_url is None or prompts is None or metrics:
            raise UsageFault(
                "name DRAFT, --target MODEL, --base-url URL and --prompts FILE; or --offline FILE"
                " with --metrics FILE"
            )
        from eagle3_data.capture.request import parse_extra
        from eagle3_data.capture.server import Kind, key_from
        from eagle3_data.draft.live_run import Asked

        kinds = {
            Engine.VLLM: Kind.VLLM,
            Engine.SGLANG: Kind.SGLANG,
            Engine.LLAMACPP: Kind.LLAMACPP,
        }
        asked = Asked(
            base_url,
            None if engine is None else kinds[engine],
            model,
            key_from(api_key_env),
            max_tokens,
            limit,
            concurrency,
            timeout,
            parse_extra(extra_body) if extra_body is not None else {},
        )
        load = {"device": device, "trust_remote_code": trust_remote_code}
        found, text = _live(
            draft, target, prompts, asked, drafts, compute is Dtype.BF16, load, quiet
        )
    told = found.to_dict()
    if out is not None:
        import orjson

        with drafting(out, overwrite=overwrite) as file:
            file.write(orjson.dumps(told, option=orjson.OPT_INDENT_2) + b"\n")
    if json:
        console.data(told)
    else:
        console.result(console.visible(text))
    raise typer.Exit(Exit.CLEAN if found.sound else Exit.FINDINGS)


def _saved(offline: Path, metrics: list[Path]) -> Judgement:
    import orjson

    from eagle3_data.draft.acceptance import unpaired

    try:
        evaluation = orjson.loads(offline.read_bytes())
    except orjson.JSONDecodeError:
        evaluation = None
    if not isinstance(evaluation, dict):
        raise UsageFault(
            f"--offline {offline}: no JSON object; pass what `evaluate --json` printed"
        )
    return unpaired(evaluation, [path.read_text("utf-8", "replace") for path in metrics])


def _live(
    draft: Path,
    target: Path,
    prompts: str,
    asked: Asked,
    drafts: int | None,
    bf16: bool,
    load: dict[str, Any],
    quiet: bool,
) -> tuple[Judgement, str]:
    """Measure, walk, judge. Returns the verdict and the text for people."""
    import asyncio  # 25 ms, which --help need not take
    from dataclasses import replace

    from eagle3_data.draft.needs import need_torch

    need_torch("acceptance")
    from eagle3_data.capture.prompts import open_prompts
    from eagle3_data.capture.server import Kind
    from eagle3_data.draft import acceptance as judging
    from eagle3_data.draft.emulate import emulations, reference
    from eagle3_data.draft.engines import LLAMACPP, SGLANG, VLLM
    from eagle3_data.draft.forward import load as load_target
    from eagle3_data.draft.lint import lint
    from eagle3_data.draft.live_run import run
    from eagle3_data.draft.paired import walk_all
    from eagle3_data.draft.target import open_target

    opened = open_target(target)
    inspected = lint(draft, target)
    broken: ValueError | None = None
    try:
        reference(draft, opened, VLLM)
    except ValueError as error:
        broken = error  # an engine may die of it, which one request shows
        asked = replace(asked, limit=1)
    with counting(not quiet) as told:
        live = asyncio.run(run(asked, open_prompts(prompts), told=told))
    kind = asked.engine or live.server.kind
    name = {Kind.SGLANG: SGLANG, Kind.LLAMACPP: LLAMACPP}.get(kind, VLLM)
    about = {"engine": _engine(live), "paired": True}
    if live.died:
        found = replace(judging.dead(live.died, inspected), about=about)
        return found, "\n".join([*_head(live), "", *verdict(found)])
    if broken is not None:
        raise broken
    if live.counted is None:
        found = replace(judging.off(live.warnings), about=about)
        return found, "\n".join([*_head(live), "", *verdict(found)])
    of = reference(draft, opened, name)
    counted = len(live.counted.p) if live.counted.p else None
    if counted is None and drafts is None:
        live.warnings.append("the engine does not tell how many tokens it drafts, 3 assumed")
    if drafts is not None and counted not in (None, drafts):
        raise UsageFault(
            f"--drafts {drafts}: the engine drafts {counted} tokens a step, and lengths over"
            " different numbers can not be compared; leave the option out"
        )
    if not quiet:
        console.note(f"loading {target}")
    forward = load_target(str(target), **load)
    with counting(not quiet) as told:
        walks = walk_all(
            emulations(of, opened),
            live.said,
            forward,
            opened,
            drafts=drafts or counted or 3,
            bf16=bf16,
            told=told,
        )
    found = judging.judge(live.counted, walks, guessed=of.guessed, warnings=live.warnings)
    found = replace(found, about=about | _described(live, walks, of))
    return found, "\n".join([*_head(live), "", *table(live, walks, of, found)])


def _engine(live: Run) -> dict[str, Any]:
    server = live.server
    return {
        "kind": server.kind.value,
        "version": server.version,
        "base_url": server.base_url,
        "model": server.model,
        "answers": len(live.said),
        "sampled_tokens": sum(len(one.sampled) for one in live.said),
    }


def _head(live: Run) -> list[str]:
    server = live.server
    sampled = sum(len(one.sampled) for one in live.said)
    return [
        f"{server.kind} {server.version or ''} at {server.base_url}, model {server.model}:"
        f" {len(live.said):,} answers, {sampled:,} sampled tokens"
    ]


def _described(live: Run, walks: list[Walked], of: Reference) -> dict[str, Any]:
    written = walks[0]
    return {
        "live": None if live.counted is None else live.counted.to_dict(),
        "walk": written.counts.to_dict(),
        "all_positions_too_high": written.every.to_dict(),
        "causes_of_rejection": {name: round(v, 6) for name, v in written.causes.items()},
        "position": {name: c.to_dict() for name, c in written.positions.items()},
        "walks": {one.emulation.name: one.counts.to_dict() for one in walks},
        "config": of.facts,
    }


def table(live: Run, walks: list[Walked], of: Reference, found: Judgement) -> list[str]:
    """The measurement for people."""
    assert live.counted is not None
    written = walks[0]
    ks = range(1, len(written.counts.p) + 1)
    lines = [
        f"{'':<52}{'steps':>8}  {'length':>6}  " + "  ".join(f"{f'P_{k}':>5}" for k in ks),
        _row(
            f"engine: {live.counted.source}",
            live.counted.drafts,
            live.counted.length,
            live.counted.p or [],
        ),
        _counts("walk on the same ids, as written", written.counts),
        _counts("all positions: too high", written.every),
        "",
        "walks with a fault, nearest to the engine first",
    ]
    by_name = {one.emulation.name: one.counts for one in walks}
    lines += [
        _counts(f"  {name}", by_name[name])
        for name, _, _ in found.ranked
        if name != written.emulation.name
    ]
    lines += ["", "what stopped a step first"]
    lines += [f"  {name:<40}{share:>7.1%}" for name, share in written.causes.items()]
    lines += ["", "config"]
    lines += [f"  {name}: {'not set' if v is None else v}" for name, v in of.facts.items()]
    return [*lines, "", *verdict(found)]


def verdict(found: Judgement) -> list[str]:
    """The verdict for people."""
    head = f"verdict: {found.verdict}" + (f": {found.cause}" if found.cause else "")
    lines = [head, f"  {found.why}"]
    lines += [f"  fact: {fact}" for fact in found.facts]
    return [*lines, *(f"warning: {text}" for text in found.warnings)]


def _counts(name: str, counts: Any) -> str:
    return _row(name, counts.steps, counts.length, counts.p)


def _row(name: str, steps: float, length: float, p: list[float]) -> str:
    shown = name if len(name) <= 51 else name[:50] + "…"
    return f"{shown:<52}{steps:>8,.0f}  {length:>6.3f}  " + "  ".join(f"{v:.3f}" for v in p)
