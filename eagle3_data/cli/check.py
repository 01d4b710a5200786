"""`check`: audit captured responses and say which lines may train a drafter.

What enters: files and options. What leaves: the report on stdout, more reports in files, an exit
code; with `--quarantine` a folder with the lines split. It promises that what can not be written
is refused before the work, and that an interrupted run still reports what it saw, marked as
partial. With `--follow` an interrupt is the usual end, and nothing is partial.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import typer

from eagle3_data.cli import console, options
from eagle3_data.cli.choices import gathered, interruptible
from eagle3_data.cli.faults import Exit, UsageFault
from eagle3_data.cli.reports import call, deliver, exit_code, shape


def check(
    files: options.Files,
    profile: options.Profile = None,
    tokenizer: options.Tokenizer = None,
    chat_template: options.ChatTemplate = None,
    turns: options.Turns = None,
    select: options.Select = None,
    ignore: options.Ignore = None,
    error: options.Error = None,
    warn: options.Warn = None,
    holdout: options.Holdout = None,
    repair: options.Repair = False,
    quarantine: options.Quarantine = None,
    output: options.Output = None,
    overwrite: options.Overwrite = False,
    format: options.Format = None,
    json: options.Json = False,
    show: options.Show = None,
    statistics: options.Statistics = False,
    exit_zero: options.ExitZero = False,
    follow: options.Follow = False,
    stop_on: options.StopOn = None,
    config: options.Config = None,
    workers: options.Workers = None,
    quiet: options.Quiet = False,
    verbose: options.Verbose = False,
) -> None:
    """Audit captured responses. Exit 0: clean, 1: errors found, 2: the call or the program failed.

    \b
    Examples:
      eagle3-data check raw_responses.jsonl
      eagle3-data check data/ --tokenizer ./Kimi-K2-Thinking --output html=report.html
      zstdcat day1.zst | eagle3-data check - --ignore GEN
      eagle3-data check raw_responses.jsonl --quarantine split/
      eagle3-data check raw_responses.jsonl --follow --stop-on 'CAP001>1%'
    """
    from eagle3_data import pipeline, plan
    from eagle3_data.audit.formats import FORMATS
    from eagle3_data.cli.config import Settings, located, read
    from eagle3_data.cli.follow import follow as watched
    from eagle3_data.cli.follow import refuse_unfit
    from eagle3_data.cli.outputs import parse
    from eagle3_data.records.sources import expand

    wanted = shape(FORMATS, format, json=json, statistics=statistics)
    file = located(config)
    fixed = read(file) if file else Settings()
    if follow:
        refuse_unfit(files, quarantine=quarantine is not None, workers=workers is not None)
    elif stop_on:
        raise UsageFault("--stop-on ends a capture that still runs: add --follow")
    plan.refuse_shards(files)
    sources = [] if follow else expand(files)
    inputs = [Path(name) for name in files] if follow else [source.real for source in sources]
    outputs = parse(output or [], FORMATS, overwrite=overwrite, inputs=inputs)
    if quarantine is not None:
        from eagle3_data.quarantine import refuse_occupied

        refuse_occupied(quarantine, sources, overwrite=overwrite)
    asked = gathered(
        fixed, profile=profile, tokenizer=tokenizer, chat_template=chat_template, turns=turns,
        select=select, ignore=ignore, error=error, warn=warn, holdout=holdout, repair=repair,
    )  # fmt: skip
    if verbose:
        console.note(f"settings: {file or 'none, defaults in force'}")
    shown = show if show is not None else fixed.show or 0
    least = Exit.CLEAN
    if follow:
        report, least = watched(
            files[0], asked, fixed.limits(), stop_on=stop_on or (), exit_zero=exit_zero, quiet=quiet
        )
    else:
        with interruptible() as cancel, console.progress(not quiet) as progress:
            report = pipeline.check(
                sources,
                **{**asked, "thresholds": fixed.limits()},
                workers=workers or fixed.workers,
                progress=progress,
                cancel=cancel,
            )
    said = call(
        "check", files, profile=profile, tokenizer=tokenizer, chat_template=chat_template,
        turns=turns, select=select, ignore=ignore, error=error, warn=warn, holdout=holdout,
        repair=repair, config=config, quarantine=quarantine,
    )  # fmt: skip
    report = replace(report, call=said)
    deliver(
        report, wanted, outputs, show=shown, statistics=statistics, overwrite=overwrite, quiet=quiet
    )
    if quarantine is not None and not report.partial:
        from eagle3_data.profiles.load import load
        from eagle3_data.quarantine import write_quarantine

        write_quarantine(
            report,
            sources,
            quarantine,
            overwrite=overwrite,
            repair=plan.marker_pairs(load(asked["profile"] or report.profile.name)),
            every_turn=asked["turns"] == "all",
            options=asked,
        )
        if not quiet:
            bad = report.ledger.quarantined + report.ledger.unreadable
            console.note(f"{quarantine}: {report.ledger.kept} lines clean, {bad} in quarantine")
    elif quarantine is not None:
        console.note(f"{quarantine}: nothing written, because the check was interrupted")
    raise typer.Exit(max(exit_code(report, exit_zero=exit_zero), least))
