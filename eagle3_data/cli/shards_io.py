"""`export` and `import`: shards into the files of trainers, and their rows of ids back into shards.

What enters: a folder of shards, or files of rows. What leaves: files or shards, counts on stdout,
and on stderr which samples were left out or which rows were refused. It promises exit code 1 when
nothing was written or rows were refused, a warning where one file holds several splits, and that
what the options took away is counted.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from eagle3_data.cli import console, options
from eagle3_data.cli.faults import Exit, UsageFault

if TYPE_CHECKING:
    from eagle3_data.shards.exported import Exported


def export(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="The shards.")],
    to: Annotated[
        str,
        typer.Option("--to", metavar="TARGET", help="speculators, specforge, messages or openai."),
    ],
    out: Annotated[
        Path,
        typer.Option("--out", "-o", metavar="OUT", help="Folder for the files, made if need be."),
    ],
    split: Annotated[
        str | None, typer.Option("--split", metavar="NAME", help="Only samples of this split.")
    ] = None,
    min_grade: Annotated[
        str | None,
        typer.Option("--min-grade", metavar="GRADE", help="Only samples of this grade or better."),
    ] = None,
    max_length: Annotated[
        int | None,
        typer.Option("--max-length", min=1, metavar="N", help="Only samples of at most N tokens."),
    ] = None,
    with_token_freq: Annotated[
        bool,
        typer.Option("--with-token-freq", help="Add token_freq.pt for speculators; needs torch."),
    ] = False,
    overwrite: options.Overwrite = False,
    json: options.Json = False,
    quiet: options.Quiet = False,
    verbose: options.Verbose = False,
) -> None:
    """Write shards as files that a trainer or a fine-tuning service reads. Exit 0: written,
    1: there was nothing to write, 2: the call or the program failed.

    \b
    Examples:
      eagle3-data export shards/ --to specforge -o for_specforge --split train
      eagle3-data export shards/ --to messages -o for_tuning --min-grade B
    """
    from eagle3_data.shards.export import export as write
    from eagle3_data.shards.reader import open_shards
    from eagle3_data.shards.targets import NOTE

    token_freq = None
    if with_token_freq:
        from eagle3_data.draft.token_freq import torch_bytes

        token_freq = torch_bytes
    opened = open_shards(directory)
    if split is not None:
        there = opened.splits()  # an import's manifest does not list them
        if split not in there:
            raise UsageFault(
                f"{directory} has no sample of the split {split!r}: its splits are"
                f" {', '.join(there) or 'none'}"
            )
    shards = opened.where(split=split, min_grade=min_grade, max_length=max_length)
    made = write(shards, to, out, overwrite=overwrite, token_freq=token_freq)
    if not quiet:
        # one line: what is the same at each call must not drown what is not
        listed = len(made.not_held) + sum(map(len, made.lost.values()))
        console.note(
            f"note: {listed} things this format can not hold are listed in {made.directory / NOTE}"
        )
    limits = {"--split": split, "--min-grade": min_grade, "--max-length": max_length}
    given = " ".join(f"{option} {value}" for option, value in limits.items() if value is not None)
    for text in _warnings(made, given):
        console.note(f"warning: {text}")
    if json:
        console.data(made.to_dict())
    else:
        console.result(console.visible(_counts(made, given)))
    raise typer.Exit(Exit.CLEAN if made.samples_written else Exit.FINDINGS)


def _warnings(made: Exported, limits: str) -> Iterator[str]:
    """What the files do not hold, and what they should not. `limits`: the options that narrow."""
    from eagle3_data.audit.formats.text import count_of

    for name, reasons in made.left_out.items():
        for reason, count in reasons.items():
            yield f"{name}: {count_of(count, 'sample')} left out: {reason}"
    for name, losses in made.lost.items():
        for loss, count in losses.items():
            yield f"{name}: {count_of(count, 'message')}: {loss}"
    if made.mixed:
        yield made.mixed
    if made.samples and not made.samples_written:
        yield (
            "nothing was written: all samples were left out, for the reasons above: their ids are"
            " never left out, export them with --to speculators or specforge"
        )
    elif not made.samples:
        why = f"that passes {limits}: give wider limits" if limits else "at all: convert more data"
        yield f"nothing was written: the shards hold no sample {why}"


def _counts(made: Exported, limits: str) -> str:
    """What was written, first of all, of all that the shards hold: samples were read that no file
    holds, and others were not. `limits`: the options that narrow.
    """
    from eagle3_data.audit.formats.text import count_of

    told = [
        f"{made.samples_written:,} of {count_of(made.samples_held, 'sample')},"
        f" {count_of(made.supervised_tokens_written, 'supervised token')}"
        + (f"; {made.narrowed_away:,} narrowed away by {limits}" if limits else "")
    ]
    told += [f"  {count:>9,}  {made.directory / name}" for name, count in made.written.items()]
    return "\n".join(told)


def import_(
    files: Annotated[
        list[str],
        typer.Argument(
            metavar="FILES", help="JSONL, Parquet, or a folder (saved data set, our own export)."
        ),
    ],
    out: Annotated[Path, typer.Option("--out", "-o", metavar="DIR", help="Folder for the shards.")],
    tokenizer: Annotated[
        str, typer.Option(metavar="DIR", help="Tokenizer that the ids belong to.")
    ],
    profile: Annotated[
        str, typer.Option(metavar="NAME|FILE", help="Model family that the ids belong to.")
    ],
    overwrite: options.Overwrite = False,
    json: options.Json = False,
    quiet: options.Quiet = False,
    verbose: options.Verbose = False,
) -> None:
    """Turn rows of input_ids and loss_mask (speculators, SpecForge) into shards of grade D. Exit 0:
    all rows are kept, 1: rows were refused, 2: the call or the program failed.

    \b
    Examples:
      eagle3-data import rows.jsonl -o shards/ --tokenizer ./Qwen3-8B --profile qwen3-hybrid
      eagle3-data import prepared/ -o shards/ --tokenizer ./target --profile ./mine.toml
    """
    from eagle3_data.audit.formats.text import count_of
    from eagle3_data.shards.importing import import_rows

    made = import_rows(files, out, tokenizer=tokenizer, profile=profile, overwrite=overwrite)
    refused = made.rows - made.kept
    if not quiet:
        for text in made.notes:
            console.note(f"note: {text}")
        console.note(
            "note: grade D: rows of ids do not prove that the model sampled them; only a capture"
            " with the server's ids does"
        )
    for reason, count in made.refused.items():
        console.note(f"warning: {count_of(count, 'row')} refused: {reason}")
    for file, line, reason, detail in made.examples:
        console.note(f"  {file}:{line}: {reason}{f' ({detail})' if detail else ''}")
    if json:
        console.data(made.to_dict())
    else:
        rows = count_of(made.rows, "row")
        console.result(f"{rows} in = {made.kept:,} kept + {refused:,} refused")
    raise typer.Exit(Exit.FINDINGS if refused else Exit.CLEAN)
