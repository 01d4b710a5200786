"""Acceptance as an engine counts it: walk a sequence step by step, jump over what was accepted.

What enters: for every row of a sample how likely each draft is accepted. What leaves: a frame of
rows with how often a step starts there, and from it P_k, acceptance length, intervals, causes. It
promises the engine's arithmetic: the first step starts behind the prefill token, a step that
accepts `a` drafts emits `a + 1` tokens, P_k is the share of all steps whose first k drafts were
accepted, and acceptance length is 1 + ΣP_k. No torch is needed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

Floats = NDArray[np.float64]


class Cause(StrEnum):
    """Why the first draft that was not accepted was not."""

    OUTSIDE = "outside the draft vocabulary"
    NEAR = "second to fifth choice"
    FAR = "further down"
    UNLIKELY = "first choice, not drawn"  # when sampling: less likely to the target than drafted
    END = "end of the answer"


CAUSES = tuple(Cause)
DRAWS, SHARE = 2000, 0.95
DRAWN_AT_ONCE = 4_000_000
"""Counts in memory: all 2,000 draws of 100,000 conversations would take 1.6 GB."""
BUCKETS = (1, 32, 128, 512, 2048)
"""Starts of the ranges of positions in an answer."""


def runs(mask: NDArray[np.bool_]) -> list[tuple[int, int]]:
    """Half-open ranges of sampled tokens: each is one generation after one prefill."""
    edges = np.flatnonzero(np.diff(np.r_[False, mask, False]))
    return list(zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True))


def walk(accept: Floats, start: int, end: int) -> tuple[NDArray[np.int64], Floats, Floats]:
    """(rows, visits, prefix) of one generation, tokens `start` to `end` of a sample.

    `accept` [drafts, rows of the sample]: how likely draft k of a step that starts at row i, the
    prediction of token i + 2 + k, is accepted given that those before it were; 0 or 1 for greedy
    decoding. `visits` [rows]: how often a step starts there, on average over all courses that end
    in this very text (given the text, acceptances are independent, so this is exact). `prefix`
    [drafts + 1, rows]: how likely at least k drafts are accepted.
    """
    drafts = len(accept)
    rows = np.arange(max(start - 1, 0), end - 2)
    told = accept[:, rows]
    inside = rows + 2 + np.arange(drafts)[:, None] < end
    prefix = np.vstack([np.ones(len(rows)), np.cumprod(np.where(inside, told, 0.0), axis=0)])
    exactly = (prefix - np.vstack([prefix[1:], np.zeros(len(rows))])).T.tolist()
    visits = [0.0] * (len(rows) + drafts + 1)
    visits[0] = 1.0
    for place, chances in enumerate(exactly):
        weight = visits[place]
        if weight:
            for accepted, chance in enumerate(chances):
                if chance:
                    visits[place + accepted + 1] += weight * chance
    return rows, np.array(visits[: len(rows)]), prefix


def frame_of(
    accept: Floats,
    cause: NDArray[np.int8],
    mask: NDArray[np.bool_],
    spans: Sequence[dict[str, Any]],
    meta: dict[str, Any],
) -> pl.DataFrame:
    """Every row of a sample from which a step can start: `visits`, `p1` … `pK`, whether token k is
    there (`has1` …), the mass of each cause, what kind of token comes first, and `meta`.

    `cause` [drafts, rows]: index in CAUSES of why that draft would fail.
    """
    drafts = len(accept)
    kinds = np.empty(len(mask), dtype=object)
    for span in spans:
        kinds[span["start"] : span["end"]] = span["kind"]
    parts = []
    for start, end in runs(mask):
        rows, visits, prefix = walk(accept, start, end)
        if not len(rows):
            continue
        columns: dict[str, Any] = {
            "visits": visits,
            "kind": pl.Series(kinds[rows + 2].tolist(), dtype=pl.String),
            "position": rows + 2 - start,
            "after_prefill": rows == max(start - 1, 0),
        }
        lost = prefix[:-1] - prefix[1:]
        why = np.where(
            rows + 2 + np.arange(drafts)[:, None] < end, cause[:, rows], CAUSES.index(Cause.END)
        )
        for k in range(drafts):
            columns[f"p{k + 1}"] = prefix[k + 1]
            columns[f"has{k + 1}"] = rows + 2 + k < end
        for number, name in enumerate(CAUSES):
            columns[name] = np.where(why == number, lost, 0.0).sum(axis=0)
        parts.append(pl.DataFrame(columns).with_columns(bucket=_bucket()))
    if not parts:
        return pl.DataFrame()
    return pl.concat(parts).with_columns(
        **{name: pl.lit(value, dtype=_type(value)) for name, value in meta.items()}
    )


@dataclass(frozen=True, slots=True)
class Counts:
    """Acceptance over steps. `p`: P_1 … P_K; `steps`: verification steps (a sum of chances when
    sampling); intervals hold 95 % of draws of conversations, None where there is but one.
    """

    steps: float
    p: list[float]
    p_interval: list[tuple[float, float]] | None = None
    length_interval: tuple[float, float] | None = None

    @property
    def length(self) -> float:
        """Acceptance length: tokens of a step, the target's own included."""
        return 1 + sum(self.p)

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        told: dict[str, Any] = {
            "steps": round(self.steps, 3),
            "p": [round(value, 6) for value in self.p],
            "acceptance_length": round(self.length, 6),
        }
        if self.p_interval is not None and self.length_interval is not None:
            told["p_interval"] = [[round(v, 6) for v in pair] for pair in self.p_interval]
            told["acceptance_length_interval"] = [round(v, 6) for v in self.length_interval]
        return told


def walked(rows: pl.DataFrame, drafts: int, *, seed: int | None = None) -> Counts:
    """What an engine would count. With a seed, intervals by conversation."""
    sums = rows.group_by("conversation_id", maintain_order=True).agg(
        pl.col("visits").sum().alias("steps"),
        *[(pl.col(f"p{k}") * pl.col("visits")).sum() for k in range(1, drafts + 1)],
    )
    each = sums.drop("conversation_id").to_numpy().astype(np.float64)
    total = each.sum(axis=0)
    if not total[0]:
        return Counts(0.0, [0.0] * drafts)
    p = (total[1:] / total[0]).tolist()
    if seed is None or len(each) < 2:
        return Counts(float(total[0]), p)
    random = np.random.default_rng(seed)
    chances = np.full(len(each), 1 / len(each))
    at_once = max(1, DRAWN_AT_ONCE // len(each))
    sizes = [min(at_once, DRAWS - first) for first in range(0, DRAWS, at_once)]
    drawn = np.concatenate(
        [random.multinomial(len(each), chances, size=size) @ each for size in sizes]
    )
    drawn = drawn[drawn[:, 0] > 0]
    shares = drawn[:, 1:] / drawn[:, :1]
    tails = [(1 - SHARE) / 2, (1 + SHARE) / 2]
    low, high = np.quantile(shares, tails, axis=0).tolist()
    lengths = np.quantile(1 + shares.sum(axis=1), tails).tolist()
    return Counts(float(total[0]), p, list(zip(low, high, strict=True)), (lengths[0], lengths[1]))


def averaged(rows: pl.DataFrame, drafts: int) -> Counts:
    """The average over all positions that trainers print: too high, because real steps start more
    often where drafting is hard.
    """
    means = [rows.filter(pl.col(f"has{k}"))[f"p{k}"].mean() for k in range(1, drafts + 1)]
    return Counts(float(rows.height), [float(mean or 0.0) for mean in means])  # type: ignore[arg-type]


def split_by(rows: pl.DataFrame, column: str, drafts: int) -> dict[str, Counts]:
    """The walk for each value of a column, by the row where a step starts; most steps first."""
    parts = rows.partition_by(column, as_dict=True, maintain_order=True)
    found = {str(key[0]): walked(part, drafts) for key, part in parts.items()}
    return dict(sorted(found.items(), key=lambda item: -item[1].steps))


def causes(rows: pl.DataFrame) -> dict[str, float]:
    """Share of the steps that did not accept everything, by what stopped them first."""
    mass = {name: float((rows[name] * rows["visits"]).sum()) for name in CAUSES}
    total = sum(mass.values())
    return {str(name): value / total for name, value in mass.items() if value} if total else {}


def _bucket() -> pl.Expr:
    out = pl.lit(f"1-{BUCKETS[1] - 1}")
    for start, stop in zip(BUCKETS[1:], [*BUCKETS[2:], None], strict=True):
        name = f"{start}-{stop - 1}" if stop else f"{start}+"
        out = pl.when(pl.col("position") >= start).then(pl.lit(name)).otherwise(out)
    return out


def _type(value: object) -> Any:
    """A column of text where values are, or may be, missing."""
    return pl.String if value is None else None
