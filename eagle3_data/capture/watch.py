"""Watch: rows as they land go through the stations of `check`, and the counts of what they show.

What enters: batches of lines. What leaves: each batch judged, and a running `Tally`. It promises
the same stations, rules and severities as `check`, without the corpus rules, which need the whole
file; and a profile that, once chosen, stays.

Whether a model that no profile knows thinks is read off the data, so rows before its first thought
are judged as rows of a model that does not think; `thinking_came` says that this happened.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

import polars as pl

from eagle3_data.capture.stop import StopOn
from eagle3_data.records.table import Status

if TYPE_CHECKING:
    from eagle3_data.audit.holdout import Holdout
    from eagle3_data.audit.judge import Judged, RuleFault
    from eagle3_data.audit.rules import Choice as Rules
    from eagle3_data.audit.thresholds import Thresholds
    from eagle3_data.pipeline import Stations
    from eagle3_data.plan import Evidence
    from eagle3_data.profiles.choose import Choice
    from eagle3_data.profiles.profile import Profile
    from eagle3_data.records.lines import LineBatch
    from eagle3_data.records.shapes import Turns
    from eagle3_data.tokens.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class Tally:
    """What the rows so far show. `rows`: records and unreadable lines, as in the report."""

    rows: int = 0
    records: int = 0
    with_reasoning: int = 0
    """Records with a thought in its own field."""
    cut: int = 0
    """Records whose answer ended at the token limit."""
    tokens: int = 0
    """Completion tokens by the server's own count."""
    graded: int = 0
    exact: int = 0
    """Records of grade A among the graded ones."""
    faulty: int = 0
    """Rows that an error rule fired on."""
    codes: Mapping[str, int] = field(default_factory=dict)
    """Code -> rows that it fired on."""
    faults: tuple[RuleFault, ...] = ()
    unjudged: int = 0
    """Rows that were stored but passed by here, because judging fell too far behind."""

    def share(self, part: int) -> float | None:
        """`part` of the records, None before the first."""
        return part / self.records if self.records else None


@dataclass(slots=True, eq=False)
class Watch:
    """The stations, chosen from the first batch that holds a record. `profile`: a name, a file or
    a profile; None = chosen from the data.
    """

    profile: str | Path | Profile | None
    tokenizer: Tokenizer | None
    thresholds: Thresholds
    rules: Rules
    turns: Turns
    chat_template: str | Path | None = None
    holdout: Holdout | None = None
    repair: bool = False
    thinking: bool = False
    """The data is known to hold a thought somewhere."""
    stop_on: Sequence[StopOn] = ()
    tally: Tally = field(default_factory=Tally)
    chosen: Choice | None = None
    stations: Stations | None = None
    thinking_came: bool = False
    """The first thought of a model that no profile knows came after the first batch."""
    _hits: Counter[StopOn] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        """Choose a profile that was given, so that one which can not work is refused at once."""
        from eagle3_data import plan

        if self.profile is not None:
            self.chosen = self._choice(plan.evidence([]))

    def judge(self, batch: LineBatch) -> Judged:
        """One batch through the stations of `check`; the tally is new afterwards. Raises what
        `check` raises about profile, tokenizer and template.
        """
        from eagle3_data import plan
        from eagle3_data.records.shapes import table_from

        pairs = plan.marker_pairs(self.chosen.profile) if self.repair and self.chosen else None
        table = table_from(batch, turns=self.turns, repair=pairs)
        known = plan.evidence([table])
        # a batch without a record chooses nothing for those that follow
        stations = self._stations(known, keep=bool(known.models))
        if self.repair and pairs is None and self.chosen is not None:
            pairs = plan.marker_pairs(self.chosen.profile)  # only known now: read it again
            table = table_from(batch, turns=self.turns, repair=pairs)
        frame = stations.measured(table)
        judged = stations.judged(frame)
        self._count(frame, judged)
        return judged

    def settled(self) -> tuple[Choice, Stations]:
        """What was chosen; without any record what `check` chooses for an empty file."""
        from eagle3_data import plan

        if self.chosen is None or self.stations is None:
            self._stations(plan.evidence([]), keep=True)
        assert self.chosen is not None and self.stations is not None
        return self.chosen, self.stations

    def restart(self) -> None:
        """Forget the rows, knowing now that a thought is among them."""
        self.tally, self.stations = Tally(), None
        self.thinking, self.thinking_came = True, False
        self._hits.clear()

    def tripped(self) -> str | None:
        """What to say about the first stop rule that is passed, None while none is."""
        rows = self.tally.rows
        for stop in self.stop_on:
            if stop.passed(self._hits[stop], rows):
                return stop.told(self._hits[stop], rows)
        return None

    def _stations(self, known: Evidence, *, keep: bool) -> Stations:
        """The stations for a batch that shows `known`; they stay with `keep`."""
        from eagle3_data.profiles.profile import Thinking

        if self.stations is not None:
            unknown = self.stations.profile.thinking is Thinking.SHOWN
            if unknown and known.thinking and not self.stations.thinking_shown:
                self.stations = replace(self.stations, thinking_shown=True)
                self.thinking_came = True
            return self.stations
        chosen = self.chosen or self._choice(known)
        stations = self._made(chosen, known.thinking or self.thinking)
        if keep:
            self.chosen, self.stations = chosen, stations
        return stations

    def _choice(self, known: Evidence) -> Choice:
        from eagle3_data import plan
        from eagle3_data.profiles.choose import Choice
        from eagle3_data.profiles.profile import Profile

        if isinstance(self.profile, Profile):
            return Choice(self.profile, "given by the caller")
        return plan.fitting(plan.profile(self.profile, known), self.tokenizer, self.profile)

    def _made(self, chosen: Choice, thinking: bool) -> Stations:
        from eagle3_data import plan
        from eagle3_data.audit.rules import Scope
        from eagle3_data.pipeline import Stations

        return Stations(
            profile=chosen.profile,
            thinking_shown=thinking,
            assembler=plan.assembler(chosen.profile, self.tokenizer, self.chat_template),
            rules=[rule for rule in self.rules.run if rule.scope is Scope.RECORD],
            thresholds=self.thresholds,
            holdout=self.holdout,
        )

    def _count(self, frame: pl.DataFrame, judged: Judged) -> None:
        from eagle3_data.records.ends import CUT_BY_LENGTH

        record = pl.col("status") == Status.RECORD.value
        rows, records, thought, cut, tokens, graded, exact = frame.select(
            rows=(pl.col("status") != Status.FILE.value).sum(),
            records=record.sum(),
            thought=(record & pl.col("has_reasoning")).sum(),
            cut=(record & pl.col("finish_reason").is_in(CUT_BY_LENGTH)).sum(),
            tokens=pl.col("completion_tokens").sum(),
            graded=pl.col("grade").is_not_null().sum(),
            exact=(pl.col("grade") == "A").sum(),
        ).row(0)
        place = ["line", "choice", "turn"]
        found = judged.findings.filter(pl.col("line").is_not_null())
        codes = Counter(dict(self.tally.codes))
        codes.update(dict(found["code"].value_counts().iter_rows()))
        for stop in self.stop_on:
            hit = found.filter(pl.col("code").is_in(list(stop.codes)))
            self._hits[stop] += hit.select(place).n_unique()
        wrong = found.filter(pl.col("severity") == "error").select(place).n_unique()
        old = self.tally
        self.tally = replace(
            old,
            rows=old.rows + rows,
            records=old.records + records,
            with_reasoning=old.with_reasoning + thought,
            cut=old.cut + cut,
            tokens=old.tokens + tokens,
            graded=old.graded + graded,
            exact=old.exact + exact,
            faulty=old.faulty + wrong,
            codes=dict(codes.most_common()),
            faults=tuple(dict.fromkeys((*old.faults, *judged.faults))),
        )
