"""`verify`: is a folder of shards what its run wrote, and sound in every sample?

What enters: a folder that `convert` wrote, and a tokenizer when texts are to be compared. What
leaves: the report in the formats of `check`, an exit code. It promises that each file that is
missing, extra, truncated, swapped or edited is named.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer

from eagle3_data.cli import console, options
from eagle3_data.cli.reports import deliver, exit_code, shape


def verify(
    directory: Annotated[
        Path, typer.Argument(metavar="DIR", help="Folder of shards that convert wrote.")
    ],
    deep: Annotated[
        bool,
        typer.Option("--deep", help="Compare ids and text of all samples, not of 64 a shard."),
    ] = False,
    tokenizer: options.Tokenizer = None,
    output: options.Output = None,
    overwrite: options.Overwrite = False,
    format: options.Format = None,
    json: options.Json = False,
    show: options.Show = None,
    statistics: options.Statistics = False,
    exit_zero: options.ExitZero = False,
    config: options.Config = None,
    quiet: options.Quiet = False,
    verbose: options.Verbose = False,
) -> None:
    """Verify shards. Exit 0: sound, 1: errors found, 2: the call or the program failed.

    \b
    Examples:
      eagle3-data verify shards/
      eagle3-data verify shards/ --deep --tokenizer ./Kimi-K2-Thinking
    """
    from eagle3_data import plan
    from eagle3_data.audit.formats import FORMATS
    from eagle3_data.cli.config import Settings, located, read
    from eagle3_data.cli.outputs import parse
    from eagle3_data.shards.verify import verify as verified

    wanted = shape(FORMATS, format, json=json, statistics=statistics)
    file = located(config)
    fixed = read(file) if file else Settings()
    outputs = parse(output or [], FORMATS, overwrite=overwrite, inputs=[])
    started = time.perf_counter()
    with console.progress(not quiet) as progress:
        found = verified(
            directory,
            deep=deep,
            tokenizer=tokenizer or fixed.tokenizer,
            progress=progress,
        )
    report = found.report(seconds=time.perf_counter() - started, versions=plan.versions())
    if verbose:
        console.note(f"settings: {file or 'none, defaults in force'}")
    deliver(
        report,
        wanted,
        outputs,
        show=show if show is not None else fixed.show or 0,
        statistics=statistics,
        overwrite=overwrite,
        quiet=quiet,
    )
    raise typer.Exit(exit_code(report, exit_zero=exit_zero))
