"""`convert`: captured responses become shards that a drafter is trained on.

What enters: files, options and a folder. What leaves: shards in the folder, the report of the audit
on stdout, an exit code; with `--quarantine` a folder with the lines split. It promises that what
can not be written is refused before the work, and that the same command after a kill ends as if
nothing had happened.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from eagle3_data.cli import console, options
from eagle3_data.cli.choices import gathered, interruptible
from eagle3_data.cli.faults import UsageFault
from eagle3_data.cli.reports import call, deliver, exit_code, shape

if TYPE_CHECKING:
    from eagle3_data.audit.report import Report
    from eagle3_data.records.lines import Source
    from eagle3_data.shards.manifest import Manifest


class LeastGrade(StrEnum):
    """Grades that can be the least of a conversion."""

    A = "A"
    B = "B"
    C = "C"
    D = "D"


class TooLong(StrEnum):
    """What becomes of samples longer than --max-length."""

    QUARANTINE = "quarantine"
    DROP_TAIL = "drop-tail"


def convert(
    files: options.Files,
    out: Annotated[Path, typer.Option("--out", "-o", metavar="DIR", help="Folder for the shards.")],
    min_grade: Annotated[
        LeastGrade, typer.Option(help="Least grade that becomes a sample; E never does.")
    ] = LeastGrade.D,
    max_length: Annotated[
        int | None, typer.Option(min=2, metavar="N", help="Most tokens of a sample.")
    ] = None,
    on_too_long: Annotated[
        TooLong, typer.Option(help="Keep longer samples out, or cut their tails (told, counted).")
    ] = TooLong.QUARANTINE,
    split: Annotated[
        str, typer.Option(metavar="SHARES", help="train=0.98,val=0.02: by conversation.")
    ] = "train=1",
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
    output: options.Reports = None,
    overwrite: options.Overwrite = False,
    format: options.Format = None,
    json: options.Json = False,
    show: options.Show = None,
    statistics: options.Statistics = False,
    exit_zero: options.ExitZero = False,
    config: options.Config = None,
    workers: options.Workers = None,
    quiet: options.Quiet = False,
    verbose: options.Verbose = False,
) -> None:
    """Audit captured responses and write the good ones as shards. Exit codes as of check.

    \b
    Examples:
      eagle3-data convert raw_responses.jsonl -o shards/ --tokenizer ./Kimi-K2-Thinking
      eagle3-data convert data/ -o shards/ --tokenizer DIR --split train=0.98,val=0.02
      eagle3-data convert data/ -o shards/ --tokenizer DIR --quarantine split/
      eagle3-data convert data/ -o shards/ --tokenizer DIR --max-length 8192 --on-too-long drop-tail
    """
    from eagle3_data import convert as station
    from eagle3_data import plan
    from eagle3_data.audit.formats import FORMATS
    from eagle3_data.cli.config import Settings, located, read
    from eagle3_data.cli.outputs import parse
    from eagle3_data.records.sources import expand
    from eagle3_data.shards.splits import Splits

    wanted = shape(FORMATS, format, json=json, statistics=statistics)
    file = located(config)
    fixed = read(file) if file else Settings()
    asked = gathered(
        fixed, profile=profile, tokenizer=tokenizer, chat_template=chat_template, turns=turns,
        select=select, ignore=ignore, error=error, warn=warn, holdout=holdout, repair=repair,
    )  # fmt: skip
    if asked["tokenizer"] is None:
        raise UsageFault(
            "convert needs the tokenizer of the target model, samples are its ids: pass"
            " --tokenizer DIR, or set `tokenizer` in the settings file"
        )
    samples = {
        "min_grade": min_grade.value,
        "max_length": max_length,
        "on_too_long": on_too_long.value,
        "split": str(Splits.parse(split)),
    }
    plan.refuse_shards(files)
    sources = expand(files)
    outputs = parse(output or [], FORMATS, overwrite=overwrite, inputs=[s.real for s in sources])
    for one in outputs:
        if one.path is not None and _within(one.path, out):
            raise UsageFault(f"{one.path} is in {out}, which is for shards: choose another place")
    apart = None
    if quarantine is not None:
        apart = Apart(quarantine, sources, asked | samples, overwrite)
        apart.refuse_occupied(out)
    if verbose:
        console.note(f"settings: {file or 'none, defaults in force'}")
    with interruptible() as cancel, console.progress(not quiet) as progress:
        report, manifest = station(
            sources,
            out,
            **{**asked, **samples, "thresholds": fixed.limits()},
            overwrite=overwrite,
            workers=workers or fixed.workers,
            progress=progress,
            cancel=cancel,
        )
    shown = show if show is not None else fixed.show or 0
    if quarantine is not None:  # then the next step is not to give one
        report = replace(report, call=call("convert", files, out=out, quarantine=quarantine))
    deliver(
        report, wanted, outputs, show=shown, statistics=statistics, overwrite=overwrite, quiet=quiet
    )
    if manifest is None:
        broken = ", ".join(fault.code for fault in report.faults)
        why = "the run was interrupted" if report.partial else f"a rule broke: --ignore {broken}"
        console.note(f"{out}: not finished, because {why}; the same command goes on")
    else:
        _warn_of_empty_splits(manifest, out)
    if apart is not None and manifest is not None:
        apart.write(report, quiet=quiet)
    raise typer.Exit(exit_code(report, exit_zero=exit_zero))


def _warn_of_empty_splits(manifest: Manifest, out: Path) -> None:
    """A share is of conversations, and a small one may get none."""
    splits = manifest.ledger["splits"]
    assert isinstance(splits, dict)
    for name, count in splits.items():
        if not count and manifest.rows:
            console.note(f"warning: {out}: no sample fell into the split {name}: give it more")


class Apart:
    """The quarantine of a conversion. It appears whole: a run killed in between is started again
    and finds none, or its own.
    """

    def __init__(
        self,
        directory: Path,
        sources: Sequence[Source],
        asked: Mapping[str, Any],
        overwrite: bool,
    ) -> None:
        self.directory, self.sources = directory, sources
        self.asked, self.overwrite = asked, overwrite
        self.done = False

    def refuse_occupied(self, shards: Path) -> None:
        """Raise before the work when the folder can not take the split."""
        from eagle3_data.quarantine import refuse_occupied

        if _within(self.directory, shards):
            raise UsageFault(
                f"--quarantine {self.directory} is in {shards}, where readers would take its lines"
                " for samples: choose a folder beside it"
            )
        self.done = self._mine()
        if not self.done:
            refuse_occupied(self.directory, self.sources, overwrite=self.overwrite)

    def write(self, report: Report, *, quiet: bool) -> None:
        """Split the lines, unless the same run did."""
        from eagle3_data import plan
        from eagle3_data.profiles.load import load
        from eagle3_data.quarantine import write_quarantine

        if not self.done:
            fresh = not self.directory.exists() or not any(self.directory.iterdir())
            into = self._beside() if fresh else self.directory
            write_quarantine(
                report,
                self.sources,
                into,
                overwrite=self.overwrite or fresh,
                repair=plan.marker_pairs(load(self.asked["profile"] or report.profile.name)),
                every_turn=self.asked["turns"] == "all",
                options=self.asked,
            )
            if fresh:
                into.replace(self.directory)
        if not quiet:
            bad = report.ledger.quarantined + report.ledger.unreadable
            console.note(f"{self.directory}: {report.ledger.kept} lines clean, {bad} in quarantine")

    def _beside(self) -> Path:
        """The folder that is renamed at the end; what a dead run left in it is removed."""
        path = self.directory.absolute()
        beside = path.parent / f".{path.name}.quarantine.part"
        if beside.is_dir() and not beside.is_symlink():
            shutil.rmtree(beside)
        return beside

    def _mine(self) -> bool:
        """The folder holds the split of this very run: same inputs, same options."""
        import orjson

        from eagle3_data.quarantine import MANIFEST

        try:
            found = orjson.loads((self.directory / MANIFEST).read_bytes())
            if found["options"] != orjson.loads(orjson.dumps(dict(self.asked))):
                return False
            told = [(entry["path"], entry["sha256"]) for entry in found["inputs"]]
        except (OSError, ValueError, LookupError, TypeError):
            return False
        from eagle3_data.shards.journal import digest

        return told == [(source.path, digest(source.real)) for source in self.sources]


def _within(path: Path, folder: Path) -> bool:
    return path.resolve().is_relative_to(folder.resolve())
