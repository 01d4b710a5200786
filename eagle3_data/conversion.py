"""`convert`: captured responses in, shards of typed samples out.

What enters: paths, a directory and options. What leaves: shards with a manifest, and the `Report`
of the audit. It promises the road of `check`, each line in the shards or with a reason on the
ledger, memory that does not grow with the text, and that a killed run which is started again ends
with the same bytes as one that was never disturbed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, Any, cast

import polars as pl

from eagle3_data import __version__, plan
from eagle3_data.pipeline import Progress, Run, begin, processors, travel

if TYPE_CHECKING:
    from eagle3_data.audit.judge import Outcome
    from eagle3_data.audit.report import Report
    from eagle3_data.audit.thresholds import Thresholds
    from eagle3_data.records.lines import Source
    from eagle3_data.shards.cuts import Layout
    from eagle3_data.shards.manifest import Manifest
    from eagle3_data.shards.splits import Splits
    from eagle3_data.shards.writer import ShardWriter
    from eagle3_data.spill import Spill
    from eagle3_data.tokens.tokenizer import Tokenizer

SHARDS_AT_A_TIME = 4
"""Encoded side by side at most: their rows are in memory, up to 128 MiB each."""


def convert(
    paths: Sequence[str | Path | Source] | str | Path,
    directory: str | Path,
    *,
    tokenizer: str | Path | Tokenizer,
    profile: str | Path | None = None,
    chat_template: str | Path | None = None,
    min_grade: str = "D",
    turns: str = "last",
    max_length: int | None = None,
    on_too_long: str = "quarantine",
    split: str = "train=1",
    select: Sequence[str] = (),
    ignore: Sequence[str] = (),
    error: Sequence[str] = (),
    warn: Sequence[str] = (),
    holdout: Sequence[str | Path] = (),
    repair: bool = False,
    thresholds: Thresholds | None = None,
    layout: Layout | None = None,
    overwrite: bool = False,
    workers: int | None = None,
    progress: Progress | None = None,
    cancel: Event | None = None,
) -> tuple[Report, Manifest | None]:
    """Audit captured responses and write those that pass as shards into `directory`.

    `min_grade`: A to D, the least that becomes a sample. `max_length`: tokens of a sample;
    `on_too_long`: "quarantine" keeps the line out, "drop-tail" cuts the sample and says so.
    `split`: names and shares, "train=0.98,val=0.02", by conversation. `layout`: sizes of shards and
    row groups. `overwrite`: replace the shards of another run. All other options: see `check`.

    Returns the report, with the CNV rules among its findings, and the manifest. The manifest is
    None, and the directory unfinished, when `cancel` stopped the run or a rule broke
    (`report.faults`). The same call again goes on behind the finished shards; the audit is done
    again. Raises as `check` does, and ShardError or OutputError when the directory can not be
    written.
    """
    from eagle3_data.audit.judge import merge
    from eagle3_data.shards.admission import CONVERT_RULES, Admission, OnTooLong, cut_note, refusals
    from eagle3_data.shards.manifest import SPILL
    from eagle3_data.shards.schema import ShardError
    from eagle3_data.shards.splits import Splits
    from eagle3_data.spill import Conversion, Spill
    from eagle3_data.tokens.markers import MarkerMismatch
    from eagle3_data.tokens.samples import Grade

    if min_grade not in [grade.value for grade in Grade]:
        raise ShardError(f"there is no grade {min_grade!r}: use one of A, B, C, D")
    if on_too_long not in [way.value for way in OnTooLong]:
        raise ShardError(f"there is no way {on_too_long!r}: use quarantine or drop-tail")
    admission = Admission(Grade(min_grade), max_length, OnTooLong(on_too_long))
    splits = Splits.parse(split)
    run = begin(
        paths, profile=profile, tokenizer=tokenizer, chat_template=chat_template, select=select,
        ignore=ignore, error=error, warn=warn, holdout=holdout, turns=turns, repair=repair,
        thresholds=thresholds, progress=progress, cancel=cancel, samples=True,
    )  # fmt: skip
    if run.chosen.misfit:  # what is a note of an audit would be wrong ids in every sample
        raise MarkerMismatch(
            f"{run.chosen.why}. If the tokenizer is the right one and the name says too much, pass"
            " --profile generic"
        )
    unread = plan.unread_holdout(run.stations.holdout, run.rules)
    options = {
        "min_grade": min_grade,
        "max_length": max_length,
        "on_too_long": on_too_long,
        "split": str(splits),
        "turns": turns,
        "repair": repair,
        "holdout": [] if unread else [_digest(Path(path)) for path in holdout],
    }
    threads = workers or processors()
    into = Path(directory)
    with _writer(
        run, into, chat_template, options, layout=layout, overwrite=overwrite, threads=threads
    ) as writer:
        spill = Spill(into / SPILL)
        spill.open()
        try:
            road = Conversion(
                run.stations, spill, admission, splits, [source.path for source in run.sources]
            )
            judged = merge(travel(run, road, threads))
            outcome = run.finish(judged)
            if run.reading.cut:
                return run.report(outcome), None
            refused = refusals(outcome.records, admission)
            if refused.height:
                outcome = run.finish(judged, refused)
            report = run.report(
                outcome,
                rules=tuple(CONVERT_RULES.values()),
                notes=(*writer.notes, *cut_note(outcome.records, admission)),
            )
            if report.faults:
                return report, None
            if not _write(writer, spill, outcome, cancel):
                return replace(report, partial=True), None
        finally:
            spill.clear()
        manifest = writer.finish(_ledger(outcome, splits))
        return _told(report, manifest, into), manifest


def _writer(
    run: Run,
    into: Path,
    chat_template: str | Path | None,
    options: Mapping[str, Any],
    *,
    layout: Layout | None,
    overwrite: bool,
    threads: int,
) -> ShardWriter:
    """The writer of the run: its directory is taken, and what a former start finished is known."""
    from eagle3_data.shards.facts import facts_of
    from eagle3_data.shards.manifest import SPILL
    from eagle3_data.shards.writer import ShardWriter

    assert run.encoder is not None
    facts = facts_of(
        run.chosen.profile,
        run.encoder,
        chat_template=plan.template_text(chat_template),
        rules=run.rules.run,
        thresholds=run.thresholds,
        product_version=__version__,
    )
    return ShardWriter(
        into,
        facts,
        options=options,
        inputs=[{"path": source.path, "bytes": source.size} for source in run.sources],
        layout=layout,
        overwrite=overwrite,
        beside=(SPILL,),
        threads=min(threads, SHARDS_AT_A_TIME),
    )


def _write(writer: ShardWriter, spill: Spill, outcome: Outcome, cancel: Event | None) -> bool:
    """Hand the kept rows to the writer; False when `cancel` stopped it."""
    from eagle3_data.spill import spilled

    known = spilled(outcome.records)
    for table in spill.tables(known["verdict"] == "keep", known["codes"]):
        if cancel is not None and cancel.is_set():
            return False
        writer.write(table)
    return True


def _told(report: Report, manifest: Manifest, into: Path) -> Report:
    """The report with what was written, and a word where one folder holds several splits."""
    from eagle3_data.audit.report import Written
    from eagle3_data.spill import spilled

    kept = spilled(report.records).filter(pl.col("verdict") == "keep")
    written = Written(
        str(into),
        files=len(manifest.shards),
        samples=manifest.rows,
        tokens=manifest.tokens,
        supervised_tokens=manifest.supervised_tokens,
        grades=dict(kept["grade"].cast(pl.String).value_counts().sort("grade").iter_rows()),
        splits=cast("dict[str, int]", manifest.ledger["splits"]),
    )
    notes = report.notes
    filled = [name for name, count in written.splits.items() if count]
    if len(filled) > 1:
        notes += (
            f"{into} holds the splits {', '.join(filled)}: a trainer that reads the whole"
            " folder trains on all of them; `eagle3-data export` with --split NAME writes one",
        )
    return replace(report, written=written, notes=notes)


def _ledger(outcome: Outcome, splits: Splits) -> dict[str, Any]:
    """What the manifest tells of the run: lines by verdict, why lines were left out (code → lines),
    the samples of each split, what was repaired and what was cut.
    """
    from eagle3_data.spill import reasons, spilled

    kept = outcome.records.filter(pl.col("verdict") == "keep")
    samples = dict(spilled(kept)["split"].value_counts().iter_rows())
    cut = kept.filter(pl.col("tokens_lost") > 0)
    mended = kept.filter(pl.col("repair").is_not_null()).select("file_no", "line").n_unique()
    return {
        **asdict(outcome.ledger),
        "reasons": reasons(outcome.findings),
        "splits": {name: samples.get(name, 0) for name in splits.names},
        "repaired_lines": mended,
        "truncated_samples": cut.height,
        "supervised_tokens_lost": int(cut["tokens_lost"].sum()),
    }


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
