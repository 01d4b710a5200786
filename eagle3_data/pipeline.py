"""The road: files in, one `Report` out.

What enters: paths and options. What leaves: a `Report` with exact counts, findings and one row a
record. It promises that a batch passes every station once and in one direction, that batches come
back in the order of the file whatever the number of workers, and that memory does not grow with the
text (only the light records are kept).
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING

import polars as pl

if TYPE_CHECKING:
    from eagle3_data.audit.holdout import Holdout
    from eagle3_data.audit.judge import Judged
    from eagle3_data.audit.report import Report
    from eagle3_data.audit.rules.registry import Rule
    from eagle3_data.audit.thresholds import Thresholds
    from eagle3_data.profiles.profile import Profile
    from eagle3_data.records.lines import Source
    from eagle3_data.records.shapes import Turns
    from eagle3_data.tokens.assemble import Assembler
    from eagle3_data.tokens.tokenizer import Tokenizer

Progress = Callable[[int, int], None]
"""Called with (bytes of the inputs consumed so far, bytes in all)."""


@dataclass(frozen=True, slots=True)
class Stations:
    """Everything a batch passes after it became a record table; the same for a whole run."""

    profile: Profile
    thinking_shown: bool
    assembler: Assembler | None
    rules: Sequence[Rule]
    thresholds: Thresholds
    holdout: Holdout | None

    def run(self, records: pl.DataFrame) -> Judged:
        """One batch through assembly, signals, corpus keys and the record rules. Pure."""
        from eagle3_data.audit.corpus import keys
        from eagle3_data.audit.judge import judge
        from eagle3_data.audit.signals import with_signals
        from eagle3_data.tokens.samples import unassembled

        samples = (
            self.assembler.assemble(records) if self.assembler else unassembled(records.height)
        )
        frame = with_signals(
            records.hstack(samples),
            self.profile,
            thinking_shown=self.thinking_shown,
            thresholds=self.thresholds,
        )
        return judge(keys(frame, self.thresholds, self.holdout), self.rules, self.thresholds)


@dataclass(slots=True)
class Reading:
    """The source side of the road. `repair`: marker pairs to split inline thoughts with, None =
    repair nothing.
    """

    sources: Sequence[Source]
    turns: Turns
    repair: Sequence[tuple[str, str]] | None = None
    progress: Progress | None = None
    cancel: Event | None = None
    cut: bool = False
    """True when `cancel` stopped the reading before the end."""
    lines: int = 0
    """Non-blank lines handed over: the ledger's own count, taken before any parsing."""

    def frames(self) -> Iterator[pl.DataFrame]:
        """Record tables, one a batch, in the order of the inputs."""
        from eagle3_data.records.lines import read_batches
        from eagle3_data.records.shapes import table_from

        total = sum(source.size for source in self.sources)
        done = 0
        for number, source in enumerate(self.sources):
            for batch in read_batches(source, number):
                if self.cancel is not None and self.cancel.is_set():
                    self.cut = True
                    return
                self.lines += len(batch.lines)
                self.lines += sum(fault.number is not None for fault in batch.faults)
                yield table_from(batch, turns=self.turns, repair=self.repair)
                if self.progress is not None:
                    self.progress(done + batch.bytes_read, total)
            done += source.size


def travel(frames: Iterator[pl.DataFrame], stations: Stations, workers: int) -> Iterator[Judged]:
    """Send frames through the stations on `workers` threads; results keep the order of the frames.

    Parsing holds the interpreter lock and stays on the calling thread; Polars and the tokenizer
    release it, so that one batch is judged while the next is parsed. At most `workers` + 1 batches
    are alive.
    """
    if workers <= 1:
        yield from map(stations.run, frames)
        return
    with ThreadPoolExecutor(workers, thread_name_prefix="eagle3-data") as pool:
        waiting: deque[Future[Judged]] = deque()
        for frame in frames:
            waiting.append(pool.submit(stations.run, frame))
            if len(waiting) > workers:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()


def check(
    paths: Sequence[str | Path | Source] | str | Path,
    *,
    profile: str | Path | None = None,
    tokenizer: str | Path | Tokenizer | None = None,
    chat_template: str | Path | None = None,
    select: Sequence[str] = (),
    ignore: Sequence[str] = (),
    error: Sequence[str] = (),
    warn: Sequence[str] = (),
    holdout: Sequence[str | Path] = (),
    turns: str = "last",
    repair: bool = False,
    thresholds: Thresholds | None = None,
    workers: int | None = None,
    progress: Progress | None = None,
    cancel: Event | None = None,
) -> Report:
    """Audit captured responses: the whole of `eagle3-data check`, as a function.

    `paths`: files, folders, globs or "-". `profile`: a name or a TOML file; chosen from the data
    when None. `tokenizer`: folder or file of the target's tokenizer, or an open one; without it no
    grade is given and the rules that need token ids are listed in `report.rules_not_run`.
    `chat_template`: a Jinja file in place of the tokenizer's own. `select`, `ignore`, `error`,
    `warn`: rule codes, prefixes or names. `holdout`: files of evaluation prompts that must not be
    in the data. `turns`: "last" or "all" assistant turns of a dialogue. `repair`: mend what has one
    certain reading, each on record. `workers`: threads (the result does not depend on it).
    `progress`: called with (bytes done, bytes in all). `cancel`: when set, reading stops and the
    report is marked `partial`.

    Returns a `Report`; `report.findings` and `report.records` are Polars frames. Raises ValueError
    (InputError, ProfileError, TokenizerError, RuleError, …) with the next step in its text when the
    call can not be carried out.
    """
    from eagle3_data import plan
    from eagle3_data.audit.corpus import corpus_findings
    from eagle3_data.audit.diagnose import diagnose
    from eagle3_data.audit.judge import finish, merge
    from eagle3_data.audit.report import write_up
    from eagle3_data.audit.rules import Scope, choose_rules
    from eagle3_data.audit.thresholds import Thresholds
    from eagle3_data.records.shapes import Turns

    started = time.perf_counter()
    limits = thresholds or Thresholds()
    rules = choose_rules(select, ignore, error=error, warn=warn, with_tokens=tokenizer is not None)
    sources = plan.sources(paths)
    held_out = plan.holdout(holdout, limits)
    reading = Reading(sources, Turns(turns), progress=progress, cancel=cancel)
    frames = reading.frames()
    head = list(_until_a_record(frames))
    known = plan.evidence(head)
    chosen = plan.profile(profile, known)
    encoder = plan.tokenizer(tokenizer, known, sum(source.size for source in sources))
    stations = Stations(
        profile=chosen.profile,
        thinking_shown=known.thinking,
        assembler=plan.assembler(chosen.profile, encoder, chat_template),
        rules=[rule for rule in rules.run if rule.scope is Scope.RECORD],
        thresholds=limits,
        holdout=held_out,
    )
    if repair:  # the marker pair is only known now: read the head again
        reading = replace(reading, repair=plan.marker_pairs(chosen.profile), cut=False, lines=0)
        head, frames = [], reading.frames()
    judged = merge(travel(chain(head, frames), stations, workers or os.cpu_count() or 1))
    outcome = finish(
        judged,
        corpus_findings(judged.light, limits, rules.run),
        rules.severities,
        lines=reading.lines,
    )
    paths_given = [source.path for source in sources]
    return write_up(
        outcome,
        paths=paths_given,
        sizes=[source.size for source in sources],
        profile=plan.profile_facts(chosen),
        tokenizer=plan.tokenizer_facts(encoder),
        rules_run=rules.run,
        rules_not_run=rules.left,
        diagnoses=diagnose(outcome.records, outcome.findings, chosen.profile, paths=paths_given),
        partial=reading.cut,
        seconds=time.perf_counter() - started,
        versions=plan.versions(),
    )


def _until_a_record(frames: Iterator[pl.DataFrame]) -> Iterator[pl.DataFrame]:
    """Frames up to and with the first one that holds a record: what the choice of a profile looks
    at.
    """
    from eagle3_data.records.table import Status

    for frame in frames:
        yield frame
        if (frame["status"] == Status.RECORD.value).any():
            return
