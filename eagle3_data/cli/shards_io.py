"""`export` and `import`: shards into the files of trainers, and their rows of ids back into shards.

What enters: a folder of shards, or files of rows. What leaves: files or shards, counts on stdout,
and on stderr what the format can not hold or which rows were refused. It promises exit code 1 when
rows were refused.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from eagle3_data.cli import console, options
from eagle3_data.cli.faults import Exit, UsageFault


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
    """Write shards as files that a trainer or a fine-tuning service reads.

    Example: eagle3-data export shards --to specforge -o for_specforge
    """
    from eagle3_data.shards.export import export as write
    from eagle3_data.shards.reader import open_shards
    from eagle3_data.shards.targets import FORMATS

    token_freq = None
    if with_token_freq:
        from eagle3_data.draft.token_freq import torch_bytes

        token_freq = torch_bytes
    opened = open_shards(directory)
    if split is not None:
        there = sorted(opened.lazy().select("split").unique().collect()["split"])
        if split not in there:
            raise UsageFault(
                f"{directory} has no sample of the split {split!r}: its splits are"
                f" {', '.join(there) or 'none'}"
            )
    shards = opened.where(split=split, min_grade=min_grade, max_length=max_length)
    made = write(shards, to, out, overwrite=overwrite, token_freq=token_freq)
    form = FORMATS[made.target]
    if not quiet:
        console.note(f"note: {form.title}")
        console.note(f"  mask: {form.mask}")
        for lost in form.lost:
            console.note(f"  not held: {lost}")
    for name, reasons in made.left_out.items():
        for reason, count in reasons.items():
            console.note(f"warning: {name}: {count:,} samples left out: {reason}")
    for name, losses in made.lost.items():
        for loss, count in losses.items():
            console.note(f"warning: {name}: {count:,} messages: {loss}")
    if json:
        console.data(made.to_dict())
        return
    told = [f"{made.samples:,} samples, {made.supervised_tokens:,} supervised tokens"]
    told += [f"  {count:>9,}  {out / name}" for name, count in made.written.items()]
    console.result(console.visible("\n".join(told)))


def import_(
    files: Annotated[
        list[str],
        typer.Argument(
            metavar="FILES", help="JSONL, Parquet, or the folder of a saved data set (speculators)."
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
    """Turn rows of input_ids and loss_mask (speculators, SpecForge) into shards of grade D.

    Example: eagle3-data import rows.jsonl -o shards --tokenizer ./target --profile qwen3-hybrid
    """
    from eagle3_data.shards.importing import import_rows

    made = import_rows(files, out, tokenizer=tokenizer, profile=profile, overwrite=overwrite)
    if not quiet:
        for text in made.notes:
            console.note(f"note: {text}")
        console.note(
            "note: grade D: rows of ids do not prove that the model sampled them; only a capture"
            " with the server's ids does"
        )
    for reason, count in made.refused.items():
        console.note(f"warning: {count:,} rows refused: {reason}")
    for file, line, reason, detail in made.examples:
        console.note(f"  {file}:{line}: {reason}{f' ({detail})' if detail else ''}")
    if json:
        console.data(made.to_dict())
    else:
        console.result(
            f"{made.rows:,} rows in = {made.kept:,} kept + {made.rows - made.kept:,} refused"
        )
    raise typer.Exit(Exit.FINDINGS if made.rows > made.kept else Exit.CLEAN)
