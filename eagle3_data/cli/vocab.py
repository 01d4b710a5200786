"""`vocab`: the draft vocabulary of shards; `vocab check`: is a mapping sound?

What enters: a folder of shards, or a mapping. What leaves: the mapping's files, a table of what it
covers, findings, an exit code. It promises that `vocab SHARDS` is `vocab build SHARDS`: the word
may be left out.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from eagle3_data.cli import console, options
from eagle3_data.cli.faults import UsageFault

if TYPE_CHECKING:
    from eagle3_data.draft.vocab import Built

BAR = 30


class DefaultBuild(TyperGroup):
    """A group whose first word may be left out: `vocab SHARDS` is `vocab build SHARDS`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if args and args[0] not in self.commands and args[0] not in ("-h", "--help"):
            args = ["build", *args]
        return super().parse_args(ctx, args)


def build(
    shards: Annotated[
        Path, typer.Argument(metavar="SHARDS", help="Folder of shards that convert wrote.")
    ],
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", metavar="DIR", help="Folder for the mapping; only shown else."),
    ] = None,
    size: Annotated[
        int | None,
        typer.Option("--size", min=1, metavar="N", help="Draft tokens (32,000 unless set)."),
    ] = None,
    inherit: Annotated[
        Path | None,
        typer.Option(
            metavar="DRAFT", help="Keep the mapping of this drafter: what training on needs."
        ),
    ] = None,
    target: Annotated[
        Path | None,
        typer.Option(metavar="MODEL", help="Target model: its folder or config.json."),
    ] = None,
    vocab_size: Annotated[
        int | None,
        typer.Option("--vocab-size", min=1, metavar="N", help="Rows of the target's head."),
    ] = None,
    split: Annotated[
        str | None, typer.Option("--split", metavar="NAME", help="Only samples of this split.")
    ] = None,
    min_grade: Annotated[
        str | None,
        typer.Option("--min-grade", metavar="GRADE", help="Only samples of this grade or better."),
    ] = None,
    profile: options.Profile = None,
    tokenizer: options.Tokenizer = None,
    overwrite: options.Overwrite = False,
    json: options.Json = False,
    quiet: options.Quiet = False,
    verbose: options.Verbose = False,
) -> None:
    """Choose the draft vocabulary of shards, or say what an existing one covers.

    \b
    Examples:
      eagle3-data vocab shards/ -o mapping/ --size 32000
      eagle3-data vocab shards/ -o mapping/ --inherit ./drafter
      eagle3-data vocab shards/                                  only shows the coverage
    """
    from eagle3_data.draft import vocab
    from eagle3_data.shards.reader import open_shards
    from eagle3_data.tokens.tokenizer import open_tokenizer

    if out is not None:
        vocab.refuse(out, overwrite=overwrite)
    opened = open_shards(shards).where(split=split, min_grade=min_grade)
    with console.progress(not quiet) as progress:
        built = vocab.build(
            opened,
            size,
            inherit=inherit,
            vocab_size=_rows(target, vocab_size),
            profile=profile,
            tokenizer=None if tokenizer is None else open_tokenizer(tokenizer),
            progress=progress,
        )
    written = [] if out is None else vocab.write(built, out, overwrite=overwrite)
    if not quiet:
        for text in built.notes:
            console.note(f"note: {text}")
    if json:
        console.data(built.to_dict())
    else:
        console.result(console.visible(_told(built)))
    if not quiet:
        for path in written:
            console.note(f"wrote {path}")


def check(
    mapping: Annotated[
        Path,
        typer.Argument(metavar="MAPPING", help="Mapping's folder or file, or a drafter's folder."),
    ],
    inherit: Annotated[
        Path | None,
        typer.Option(metavar="DRAFT", help="Drafter to be trained on: the mapping must be its."),
    ] = None,
    target: Annotated[
        Path | None,
        typer.Option(metavar="MODEL", help="Target model: its folder or config.json."),
    ] = None,
    vocab_size: Annotated[
        int | None,
        typer.Option("--vocab-size", min=1, metavar="N", help="Rows of the target's head."),
    ] = None,
    profile: options.Profile = None,
    tokenizer: options.Tokenizer = None,
    output: options.Output = None,
    overwrite: options.Overwrite = False,
    json: options.Json = False,
    exit_zero: options.ExitZero = False,
    quiet: options.Quiet = False,
    verbose: options.Verbose = False,
) -> None:
    """Check a draft vocabulary. Exit 0: sound, 1: errors found, 2: the call can not be answered.

    \b
    Examples:
      eagle3-data vocab check mapping/ --target ./Kimi-K2-Thinking
      eagle3-data vocab check mapping/ --inherit ./drafter
      eagle3-data vocab check d2t.npy --profile kimi-k2-thinking --tokenizer ./Kimi-K2-Thinking
    """
    from eagle3_data.cli.findings import conclude
    from eagle3_data.draft.control import control_of
    from eagle3_data.draft.mapping_check import checked
    from eagle3_data.profiles.load import load
    from eagle3_data.tokens.tokenizer import open_tokenizer

    opened = None if tokenizer is None else open_tokenizer(tokenizer)
    if opened is not None and profile is None:
        raise UsageFault("--tokenizer finds the markers of a profile: pass --profile as well")
    known = None if profile is None else control_of(load(profile), opened)
    found = checked(
        mapping,
        vocab_size=_rows(target, vocab_size),
        control={} if known is None else known.ids,
        inherit=inherit,
    )
    if known is not None and known.unknown and not quiet:
        console.note(
            f"note: no id is known of {', '.join(known.unknown)}: pass --tokenizer to check them"
        )
    conclude(found, output, json=json, overwrite=overwrite, exit_zero=exit_zero, quiet=quiet)


def _rows(target: Path | None, vocab_size: int | None) -> int | None:
    """Rows of the target's head, as one of the two options says."""
    from eagle3_data.draft.config import read

    if target is None:
        return vocab_size
    stated = read(target).needed("vocab_size")
    if vocab_size not in (None, stated):
        raise UsageFault(f"--vocab-size {vocab_size} is not what {target} says ({stated})")
    return stated


def _told(built: Built) -> str:
    """The result for a person: what it is, what it covers, what other sizes would."""
    mapping, counts = built.mapping, built.counts
    how = f"kept from {built.inherited}" if built.inherited else "the most frequent ones"
    lines = [
        f"draft vocabulary of {mapping.size:,} of {mapping.vocab_size:,} tokens, {how}",
        f"{counts.tokens:,} supervised tokens of {counts.samples:,} samples,"
        f" {counts.distinct:,} distinct;"
        f" {len(built.control.ids) - len(built.control_missing)} control tokens are in",
        "",
        f"{'':<34}{'tokens':>14}{'covered':>11}{'left out':>12}",
    ]
    for group in built.coverage:
        name = group.name if group.kind == "all" else f"{group.kind} {group.name}"
        lines.append(
            f"{_cut(name, 33):<34}{group.tokens:>14,}{_share(group.share):>11}"
            f"{group.tokens - group.covered:>12,}"
        )
    phases = list(built.sweep[-1].by_phase)
    lines += ["", f"{'size':>9}{'covered':>11}" + "".join(f"{name:>11}" for name in phases)]
    worst = max((1 - step.coverage for step in built.sweep), default=0.0) or 1.0
    for step in built.sweep:
        cells = "".join(f"{_share(step.by_phase[name]):>11}" for name in phases)
        bar = "█" * round(BAR * (1 - step.coverage) / worst)
        mark = " <" if step.size == mapping.size else "  "
        lines.append(f"{step.size:>9,}{_share(step.coverage):>11}{cells}{mark} {bar}".rstrip())
    lines.append("bars: share left out, which no training can win back")
    return "\n".join(lines)


def _share(value: float) -> str:
    """Per cent with two places, never rounded to all."""
    return ">99.99 %" if 0.9999 < value < 1 else f"{value:.2%}".replace("%", " %")


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else "…" + text[-width + 1 :]


vocab = typer.Typer(
    cls=DefaultBuild,
    help="Choose a draft vocabulary: vocab SHARDS -o DIR. Check one: vocab check MAPPING.",
    no_args_is_help=True,
)
vocab.command("build")(build)
vocab.command("check")(check)
