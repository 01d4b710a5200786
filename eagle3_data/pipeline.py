"""The road: files in, one `Report` out.

What enters: paths and options. What leaves: a `Report` with exact counts, findings and one row a
record. It promises that a batch passes every station once and in one direction, that batches come
back in the order of the file whatever the number of workers, and that memory does not grow with the
text (only the light records are kept).
"""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from threading import Event, Lock
from typing import TYPE_CHECKING, Protocol, TypeVar

import polars as pl

if TYPE_CHECKING:
    from eagle3_data.audit.holdout import Holdout
    from eagle3_data.audit.judge import Judged, Outcome
    from eagle3_data.audit.report import Report
    from eagle3_data.audit.rules import Choice as Rules
    from eagle3_data.audit.rules.registry import Rule
    from eagle3_data.audit.thresholds import Thresholds
    from eagle3_data.profiles.choose import Choice
    from eagle3_data.profiles.profile import Profile
    from eagle3_data.records.lines import LineBatch, Source
    from eagle3_data.records.shapes import Turns
    from eagle3_data.tokens.assemble import Assembler
    from eagle3_data.tokens.tokenizer import Tokenizer

Item = TypeVar("Item")
Progress = Callable[[int, int], None]
"""Called with (bytes of the inputs consumed so far, bytes in all)."""


class Road(Protocol):
    """What a batch passes on a worker."""

    def run(self, records: pl.DataFrame) -> Judged:
        """One batch, from record table to judged batch."""


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
        return self.judged(self.measured(records))

    def judged(self, frame: pl.DataFrame) -> Judged:
        """The record rules over a measured batch."""
        from eagle3_data.audit.judge import judge

        return judge(frame, self.rules, self.thresholds)

    def measured(self, records: pl.DataFrame) -> pl.DataFrame:
        """The record table with sample columns, signals and corpus keys."""
        from eagle3_data.audit.corpus import keys
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
        return keys(frame, self.thresholds, self.holdout)


@dataclass(frozen=True, slots=True)
class Parsing:
    """How lines become records. `repair`: marker pairs to split inline thoughts with, None = repair
    nothing. `hashed`: add the column `line_hash`, which a sample is known by.
    """

    turns: Turns
    repair: Sequence[tuple[str, str]] | None = None
    hashed: bool = False

    def table(self, batch: LineBatch) -> pl.DataFrame:
        """The record table of one batch of lines. Pure."""
        from eagle3_data.records.shapes import table_from

        table = table_from(batch, turns=self.turns, repair=self.repair)
        if not self.hashed:
            return table
        from eagle3_data.shards.rows import with_line_hashes

        return with_line_hashes(table, batch.numbers, batch.lines)


@dataclass(slots=True)
class Reading:
    """The source side of the road."""

    sources: Sequence[Source]
    progress: Progress | None = None
    cancel: Event | None = None
    cut: bool = False
    """True when `cancel` stopped the reading before the end."""
    lines: int = 0
    """Non-blank lines handed over: the ledger's own count, taken before any parsing."""
    left: int = field(init=False)
    """Bytes of the inputs, on disk, that were not handed over yet."""

    def __post_init__(self) -> None:
        self.left = sum(source.size for source in self.sources)

    def batches(self) -> Iterator[LineBatch]:
        """The lines of all inputs, in their order."""
        from eagle3_data.records.lines import read_batches

        total, done = self.left, 0
        for number, source in enumerate(self.sources):
            for batch in read_batches(source, number):
                if self.cancel is not None and self.cancel.is_set():
                    self.cut = True
                    return
                self.lines += len(batch.lines)
                self.lines += sum(fault.number is not None for fault in batch.faults)
                self.left = total - done - batch.bytes_read
                yield batch
                if self.progress is not None:
                    self.progress(done + batch.bytes_read, total)
            done += source.size


@dataclass(slots=True)
class Run:
    """A run that is ready to start: everything is chosen, nothing is judged yet. See `begin`."""

    sources: Sequence[Source]
    rules: Rules
    thresholds: Thresholds
    chosen: Choice
    encoder: Tokenizer | None
    stations: Stations
    reading: Reading
    parsing: Parsing
    head: Sequence[pl.DataFrame]
    """Record tables of the lines that the choices were made on."""
    rest: Iterator[LineBatch]
    """The lines behind the head."""
    started: float
    told: list[str] = field(default_factory=list)
    """What happened on the road that the user must know."""

    def finish(self, judged: Judged, more: pl.DataFrame | None = None) -> Outcome:
        """Corpus rules, verdicts and ledger of the judged batches. `more`: further findings."""
        from eagle3_data.audit.corpus import corpus_findings
        from eagle3_data.audit.judge import finish

        found = corpus_findings(judged.light, self.thresholds, self.rules.run, judged.findings)
        if more is not None:
            found = pl.concat([found, more])
        return finish(judged, found, lines=self.reading.lines)

    def report(
        self, outcome: Outcome, *, rules: Sequence[Rule] = (), notes: Sequence[str] = ()
    ) -> Report:
        """The report of the run. `rules`: those that ran besides the audit's."""
        from eagle3_data import plan
        from eagle3_data.audit.diagnose import diagnose
        from eagle3_data.audit.report import write_up

        paths = [source.path for source in self.sources]
        profile = self.chosen.profile
        return write_up(
            outcome,
            paths=paths,
            sizes=[source.size for source in self.sources],
            profile=plan.profile_facts(self.chosen),
            tokenizer=plan.tokenizer_facts(self.encoder, self.stations.assembler),
            rules_run=(*self.rules.run, *rules),
            rules_not_run=self.rules.left,
            diagnoses=diagnose(outcome.records, outcome.findings, profile, paths=paths),
            notes=[*([self.chosen.note] if self.chosen.note else []), *self.told, *notes],
            partial=self.reading.cut,
            seconds=time.perf_counter() - self.started,
            versions=plan.versions(*plan.engines(self.encoder, self.stations.assembler)),
        )


def begin(
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
    progress: Progress | None = None,
    cancel: Event | None = None,
    samples: bool = False,
) -> Run:
    """Make every choice of a run and read its first records. Options as in `check`; `samples`:
    assemble token ids too, and hash the lines. Raises as `check` does.
    """
    from eagle3_data import plan
    from eagle3_data.audit.rules import Scope, choose_rules
    from eagle3_data.audit.thresholds import Thresholds
    from eagle3_data.records.shapes import Turns

    started = time.perf_counter()
    limits = thresholds or Thresholds()
    rules = choose_rules(select, ignore, error=error, warn=warn, with_tokens=tokenizer is not None)
    sources = plan.sources(paths)
    held_out = plan.holdout(holdout, limits)
    reading = Reading(sources, progress=progress, cancel=cancel)
    parsing = Parsing(Turns(turns), hashed=samples)
    rest = reading.batches()
    head = list(plan.head(map(parsing.table, rest)))
    known = plan.evidence(head)
    chosen = plan.profile(profile, known)
    encoder = plan.tokenizer(tokenizer)
    chosen = plan.fitting(chosen, encoder, profile)
    if encoder is not tokenizer:  # a tokenizer that came open is used as it is
        size = sum(source.size for source in sources)
        encoder = plan.quicker(encoder, known, size, chosen.profile, chat_template)
    stations = Stations(
        profile=chosen.profile,
        thinking_shown=plan.thinking_shown(known, chosen.profile, sources, parsing.turns),
        assembler=plan.assembler(chosen.profile, encoder, chat_template, want_ids=samples),
        rules=[rule for rule in rules.run if rule.scope is Scope.RECORD],
        thresholds=limits,
        holdout=held_out,
    )
    if repair:  # the marker pair is only known now: read the head again
        parsing = replace(parsing, repair=plan.marker_pairs(chosen.profile))
        reading = Reading(sources, progress=progress, cancel=cancel)
        head, rest = [], reading.batches()
    return Run(
        sources, rules, limits, chosen, encoder, stations, reading, parsing, head, rest, started,
        plan.unread_holdout(held_out, rules),
    )  # fmt: skip


PROCESSES_FROM_BYTES = 256 << 20
"""Inputs (on disk, all together) from which other processes pay: one needs 0.4 s until it can work,
2 s with a large vocabulary, and a single thread reads 100 MB a second, 45 with a tokenizer.
"""

MOST_WORKERS = 16
"""Without `workers`: each process needs 0.2 GB, 0.5 with a large vocabulary, and one that reads
lines can feed about so many.
"""

_SWITCH = 0.0005
"""Seconds after which a thread that waits for the interpreter lock asks for it; Python's own value
is 5 ms. A worker needs the lock at each of some 100 calls of Polars a batch. Whole run 1.45 to
1.22 s at best, in other comparisons no gain: docs/speed.md.
"""


def processors() -> int:
    """Workers of a run that names none. Polars counts what affinity and the quotas of a container
    leave; `os.cpu_count` counts the whole machine.
    """
    return min(pl.thread_pool_size(), MOST_WORKERS)


_SHORT: list[float] = []
"""One entry a run that lets threads take short turns now: the value that was found."""
_SHORT_TURN = Lock()


@contextmanager
def _short_turns() -> Iterator[None]:
    """Let threads take turns every `_SWITCH` seconds, as long as any run has it open."""
    with _SHORT_TURN:
        _SHORT.append(_SHORT[0] if _SHORT else sys.getswitchinterval())
        sys.setswitchinterval(min(_SHORT[0], _SWITCH))
    try:
        yield
    finally:
        with _SHORT_TURN:
            before = _SHORT.pop()
            if not _SHORT:
                sys.setswitchinterval(before)


def travel(run: Run, road: Road, workers: int) -> Iterator[Judged]:
    """Send all batches of a run over `road`; judged batches keep the order of the inputs.

    A large input is shared out to `workers` processes. A small one is judged on as many threads
    while the next batch is parsed: parsing holds the interpreter lock, Polars and the tokenizer
    release it. At most `workers` + 1 batches are alive.
    """
    reading = run.reading
    if workers > 1 and reading.left >= PROCESSES_FROM_BYTES and not reading.cut:
        from eagle3_data.processes import Crew, Work

        with _short_turns(), Crew(Work(run.parsing, road), workers, run.told) as crew:
            yield from map(road.run, run.head)  # while the processes start
            yield from crew.judged(run.rest)
        return
    frames = chain(run.head, map(run.parsing.table, run.rest))
    if workers <= 1:
        yield from map(road.run, frames)
        return
    with _short_turns(), ThreadPoolExecutor(workers, thread_name_prefix="eagle3-data") as pool:
        yield from in_order(pool, road.run, frames, workers)


def in_order(
    pool: ThreadPoolExecutor, run: Callable[[Item], Judged], items: Iterable[Item], ahead: int
) -> Iterator[Judged]:
    """`run` of every item on the threads of `pool`, in order; at most `ahead` + 1 are under way."""
    waiting: deque[Future[Judged]] = deque()
    for item in items:
        waiting.append(pool.submit(run, item))
        if len(waiting) > ahead:
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
    certain reading, each on record. `workers`: threads, or processes where the input is large (the
    result does not depend on it).
    `progress`: called with (bytes done, bytes in all). `cancel`: when set, reading stops and the
    report is marked `partial`.

    Returns a `Report`; `report.findings` and `report.records` are Polars frames. Raises ValueError
    (InputError, ProfileError, TokenizerError, RuleError, …) with the next step in its text when the
    call can not be carried out.
    """
    from eagle3_data.audit.judge import merge

    run = begin(
        paths, profile=profile, tokenizer=tokenizer, chat_template=chat_template, select=select,
        ignore=ignore, error=error, warn=warn, holdout=holdout, turns=turns, repair=repair,
        thresholds=thresholds, progress=progress, cancel=cancel,
    )  # fmt: skip
    judged = merge(travel(run, run.stations, workers or processors()))
    return run.report(run.finish(judged))
