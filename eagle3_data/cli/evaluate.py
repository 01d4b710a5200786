"""`evaluate`: what an engine would accept of a drafter, measured offline on held-out samples.

What enters: a drafter, a folder of states, options. What leaves: a table or JSON on stdout, an exit
code. It promises the engine's own way of counting, and to name the trainers' way beside it for what
it is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from eagle3_data.cli import console, options
from eagle3_data.cli.finetune import Device, Dtype, Target, chosen

if TYPE_CHECKING:
    import polars as pl

    from eagle3_data.draft.evaluate import Evaluation
    from eagle3_data.draft.walk import Counts

TITLES = {"kind": "drafted first", "bucket": "position", "file": "source"}


def evaluate(
    draft: Annotated[Path, typer.Argument(metavar="DRAFT", help="Folder of the drafter.")],
    states: Annotated[
        Path, typer.Argument(metavar="STATES", help="Folder of states that extract wrote.")
    ],
    target: Target = None,
    drafts: Annotated[
        int, typer.Option(min=1, metavar="K", help="Tokens drafted in each step.")
    ] = 3,
    temperature: Annotated[
        float | None,
        typer.Option(
            min=0.01,
            help="Drafts are drawn at this temperature, as the text was; first choices unless set.",
        ),
    ] = None,
    split: Annotated[
        str, typer.Option(metavar="NAME", help="Samples of this split; all for every one.")
    ] = "val",
    min_grade: Annotated[
        str | None, typer.Option(metavar="GRADE", help="Only samples of this grade or better.")
    ] = None,
    max_length: Annotated[
        int | None, typer.Option(min=3, metavar="N", help="Only samples of at most N tokens.")
    ] = None,
    by: Annotated[
        list[str] | None,
        typer.Option(metavar="COLUMN", help="Split by a column of the index too (repeatable)."),
    ] = None,
    shards: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="The shards, for --by a column the states lack."),
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of the intervals.")] = 0,
    compute: Annotated[Dtype, typer.Option(help="Numbers of the matrix products.")] = Dtype.BF16,
    device: Annotated[Device, typer.Option(help="Where to compute.")] = Device.AUTO,
    json: options.Json = False,
    quiet: options.Quiet = False,
    verbose: options.Verbose = False,
) -> None:
    """Walk held-out samples as an engine does, and count what it would accept.

    \b
    Examples:
      eagle3-data evaluate drafter/ states/
      eagle3-data evaluate drafter/ states/ --drafts 5 --by model --json
    """
    from eagle3_data.draft.needs import need_torch

    need_torch("evaluate")
    from eagle3_data.draft.checkpoint import load
    from eagle3_data.draft.evaluate import evaluate as walk
    from eagle3_data.draft.states import open_states
    from eagle3_data.draft.target import target_of

    opened = open_states(states)
    model = target_of(opened.identity, target)
    drafter, picked = load(draft, model), chosen(opened, split, min_grade, max_length)
    with counting(not quiet) as told:
        found = walk(
            drafter,
            picked,
            model,
            drafts=drafts,
            temperature=temperature,
            by=by or (),
            extra=None if shards is None else _columns(shards, by or []),
            device=device.value,
            bf16=compute is Dtype.BF16,
            seed=seed,
            told=told,
        )
    if not quiet:
        trained = drafter.facts.get("samples", {}).get("splits")
        for text in warned(found, set(picked.index["split"]), trained):
            console.note(f"note: {text}")
    if json:
        console.data(found.to_dict())
    else:
        console.result(console.visible(table(found)))


def warned(found: Evaluation, splits: set[str], trained: list[str] | None) -> Iterator[str]:
    """What makes the numbers worth less than they look. `splits`: of the samples; `trained`: of
    those that the drafter says it was trained on, None when it does not say.
    """
    seen = sorted(splits & ({"train"} if trained is None else set(trained)))
    if seen:
        known = "probably trained" if trained is None else "trained"
        yield (
            f"the drafter was {known} on samples of the split {', '.join(seen)}: it does better on"
            " those than on anything else"
        )
    if found.walk.length_interval is None:
        yield "one conversation gives no interval: evaluate more of them"
    if not sum(found.walk.p):
        yield (
            "no draft was accepted: these states do not reach the drafter, or it was never"
            " trained; `lint` reads its files"
        )


@contextmanager
def counting(wanted: bool) -> Iterator[Callable[[int, int], None]]:
    """Takes (done, total); shown on a terminal alone."""
    text = ""

    def told(done: int, total: int) -> None:
        nonlocal text
        text = f"{done:,} of {total:,} samples"

    if wanted and console.moving():
        with console.refreshing(lambda: text):
            yield told
    else:
        yield told


def _columns(shards: Path, names: list[str]) -> pl.DataFrame:
    from eagle3_data.shards.reader import NAMES, open_shards

    return open_shards(shards).frame(["sample_id", *(name for name in names if name in NAMES)])


def table(found: Evaluation) -> str:
    """The evaluation for people."""
    ks = range(1, found.drafts + 1)
    lines = [
        f"{found.samples:,} samples, {found.tokens:,} sampled tokens, {found.drafts} drafted a step"
        + (
            ", first choices"
            if found.temperature is None
            else f", drawn at temperature {found.temperature:g}"
        ),
        "",
        f"{'':<34}{'steps':>9}  {'length':>6}  " + "  ".join(f"{f'P_{k}':>5}" for k in ks),
        _row("walk, as an engine counts", found.walk),
    ]
    if found.walk.p_interval is not None and found.walk.length_interval is not None:
        pairs = [found.walk.length_interval, *found.walk.p_interval]
        said = "  ".join(f"{low:.3f}-{high:.3f}" for low, high in pairs)
        lines.append(f"  95 % by conversation: length, P_k  {said}")
    lines.append(_row("all positions: too high", found.every))
    lines.append(_row("first step after prefill", found.after_prefill))
    for name, parts in found.splits.items():
        lines += ["", f"by {TITLES.get(name, name)}"]
        lines += [_row(f"  {value}", counts) for value, counts in parts.items()]
    lines += ["", "what stopped a step first"]
    lines += [f"  {name:<40}{share:>7.1%}" for name, share in found.causes.items()]
    return "\n".join(lines)


def _row(name: str, counts: Counts) -> str:
    shown = name if len(name) <= 33 else name[:15] + "…" + name[-17:]
    p = "  ".join(f"{value:.3f}" for value in counts.p)
    return f"{shown:<34}{counts.steps:>9,.0f}  {counts.length:>6.3f}  {p}"
