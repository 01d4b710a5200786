"""What a cause may look at, and what it gives back.

What enters: the light records of a run with their codes, the profile, the rules that fired. What
leaves: a `Diagnosis` and the rows that it explains. It promises that a row explained by one cause
is not told again by another.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

import polars as pl

from eagle3_data.audit.inert import inert
from eagle3_data.profiles.profile import Profile
from eagle3_data.tokens.samples import Grade

EXACT = pl.col("grade").cast(pl.String) == Grade.A.value
"""The ids were captured: what they hold is what was sampled."""
NEARLY_ALL = 0.9
SOME = 3
"""Records from which a pattern is worth a word when it does not fill the file."""
ENOUGH = 10
"""Records from which a statistic (a mode, a spike) means anything."""


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """One cause that explains many findings.

    `share` is of all records; `codes` are the rules that follow from it.
    """

    name: str
    title: str
    evidence: tuple[str, ...]
    next_step: str
    codes: tuple[str, ...]
    records: int
    share: float


@dataclass(frozen=True, slots=True, eq=False)
class Found:
    """A diagnosis, and the `row` numbers that later causes need not explain."""

    diagnosis: Diagnosis
    explained: pl.Series


@dataclass(frozen=True, slots=True, eq=False)
class Case:
    """What there is to explain.

    `everything`: the readable records in the order of the inputs, their number in `row`;
    `records`: those not yet explained. `names`: rule name → code, for the rules that fired.
    `paths`: inputs by file_no.
    """

    records: pl.DataFrame
    everything: pl.DataFrame
    profile: Profile
    names: Mapping[str, str]
    paths: Sequence[str]

    @property
    def total(self) -> int:
        return self.everything.height

    def fired(self, names: Sequence[str]) -> pl.Expr:
        """True where one of these rules fired."""
        codes = [self.names[name] for name in names if name in self.names]
        if not codes:
            return pl.lit(False)
        return pl.any_horizontal(pl.col("codes").list.contains(code) for code in codes)

    def many(self, rows: pl.DataFrame) -> bool:
        """Enough rows to speak of one cause."""
        return rows.height >= SOME or 0 < self.total <= 2 * rows.height

    def found(
        self,
        name: str,
        title: str,
        evidence: Sequence[str],
        next_step: str,
        rows: pl.DataFrame,
        *,
        families: Sequence[str] = (),
        rules: Sequence[str] = (),
        claims: bool = True,
    ) -> Found:
        """The diagnosis of `rows`. It explains the rules named, and rules of `families` that fired
        nearly only there.
        """
        named = {self.names[rule] for rule in rules if rule in self.names}
        codes = named | _mostly_in(rows, self.everything, families)
        diagnosis = Diagnosis(
            name,
            title,
            tuple(evidence),
            next_step,
            tuple(sorted(codes)),
            rows.height,
            rows.height / max(self.total, 1),
        )
        return Found(diagnosis, rows["row"] if claims else rows["row"].clear())

    def where(self, rows: pl.DataFrame) -> list[str]:
        """What sets these rows apart when they are only a part: one stretch of lines, server
        version, or time.
        """
        others = self.everything.join(rows.select("row"), on="row", how="anti")
        if not rows.height or rows.height >= NEARLY_ALL * self.total:
            return []
        said = [self._stretch(rows), _version(rows, others), _window(rows, others)]
        return [text for text in said if text]

    def place(self, file_no: int, line: int | None) -> str:
        """`file:line`, inert."""
        path = (
            inert(self.paths[file_no]) if 0 <= file_no < len(self.paths) else f"input {file_no + 1}"
        )
        return path if line is None else f"{path}:{line}"

    def _stretch(self, rows: pl.DataFrame) -> str:
        first, last = rows["row"].min(), rows["row"].max()
        assert isinstance(first, int) and isinstance(last, int)
        start, end = self.everything.row(first, named=True), self.everything.row(last, named=True)
        span = last - first + 1
        if rows.height == span:
            return (
                f"they are one unbroken stretch, from {self.place(start['file_no'], start['line'])}"
                f" to {self.place(end['file_no'], end['line'])}"
            )
        return (
            f"they are {rows.height / span:.0%} of the records between"
            f" {self.place(start['file_no'], start['line'])} and"
            f" {self.place(end['file_no'], end['line'])}, not one stretch"
        )


def several(values: pl.Series, most: int = 3) -> str:
    """The commonest values with their counts, inert: `stop (9,612), length (388)`."""
    counts = values.drop_nulls().value_counts(sort=True).head(most).iter_rows()
    return ", ".join(f"{inert(str(value), 60)} ({count:,})" for value, count in counts)


def median(values: pl.Series) -> float:
    """The median as a float, 0 when there is none."""
    middle = values.median()
    return float(middle) if isinstance(middle, int | float) else 0.0


def _mostly_in(rows: pl.DataFrame, everything: pl.DataFrame, families: Sequence[str]) -> set[str]:
    if not families:
        return set()
    here = rows["codes"].explode().drop_nulls().value_counts(name="here")
    anywhere = everything["codes"].explode().drop_nulls().value_counts(name="anywhere")
    fits = here.join(anywhere, on="codes").filter(
        pl.col("codes").str.head(3).is_in(list(families))
        & (pl.col("here") >= NEARLY_ALL * pl.col("anywhere"))
        & (2 * pl.col("here") >= rows.height)
    )
    return set(fits["codes"].to_list())


def _version(rows: pl.DataFrame, others: pl.DataFrame) -> str:
    label = pl.concat_str("server", "server_version", separator=" ", ignore_nulls=True)
    here = rows.select(label).to_series().replace("", None).drop_nulls()
    there = others.select(label).to_series().replace("", None).drop_nulls()
    if (
        here.n_unique() != 1
        or here.len() != rows.height
        or there.is_in(here.unique().implode()).any()
    ):
        return ""
    rest = f", the others of {several(there)}" if there.len() else ""
    return f"all of them are of one server, {inert(here[0], 60)}{rest}"


def _window(rows: pl.DataFrame, others: pl.DataFrame) -> str:
    times = rows["created"].drop_nulls()
    if times.len() != rows.height or not others["created"].drop_nulls().len():
        return ""
    first, last = times.min(), times.max()
    assert isinstance(first, int) and isinstance(last, int)
    if others["created"].is_between(first, last).any():
        return ""
    return f"they were made between {_clock(first)} and {_clock(last)}, and no other record was"


def _clock(seconds: int) -> str:
    try:
        return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M:%S} UTC"
    except (OverflowError, ValueError, OSError):
        return f"second {seconds}"
