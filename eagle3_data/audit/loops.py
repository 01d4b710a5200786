"""Text that repeats itself: loops at the tail or anywhere, with changing counters, in any script.

What enters: a frame with `reasoning`, `content`, `finish_reason`, `user_text`. What leaves: the
same frame with
`LOOP_COLUMNS` and the other text signals of `answers.py`. It promises two stages: a cheap test that
every text passes
(short probes looked up a little further on, and the last bytes counted in the tail), and a close
look at the few
suspects, which alone decides. Tables, lists, poems, logs and repeated code lines stay: what counts
is how much of the
text repeats, whether it runs to the very end, and whether the model stopped by itself.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

import polars as pl

from eagle3_data.audit.answers import answers
from eagle3_data.audit.language import languages
from eagle3_data.records.ends import FINISHED

if TYPE_CHECKING:
    from eagle3_data.audit.thresholds import Thresholds
    from eagle3_data.profiles.profile import Profile

LOOP_COLUMNS: dict[str, pl.DataType] = {
    "loop_field": pl.String(),  # "reasoning" or "content"; null = no loop
    "loop_unit": pl.String(),  # the repeated text, at most 80 characters
    "loop_repeats": pl.Int64(),
    "loop_bytes": pl.Int64(),  # bytes of the field that the loop covers
    "loop_share": pl.Float64(),  # loop_bytes / bytes of the field
    "loop_to_end": pl.Boolean(),
}


_PROBE, _WINDOW = 16, 2048
_TAIL, _NEEDLE = 640, 20
_CLOSE_LOOK = 1 << 14
"""Bytes of the tail in which counters are evened out; a loop that matters shows there."""
_LONGEST = 1 << 13
"""Bytes of the longest period."""
_BLOCK = 1 << 9
"""Bytes that are compared at a time, to find the first ones that differ."""
_DIGITS_ALIKE = bytes(48 if 48 <= i < 58 else i for i in range(256))
_WORD = re.compile(rb"[A-Za-z]{2,}")
_NUMBER = re.compile(rb"\d+")
_SENTENCE_END = re.compile(rb"(?<=[.!?;])\s+|\n+|(?<=\xe3\x80\x82)")


@dataclass(frozen=True, slots=True)
class Loop:
    """A stretch that repeats. `unit`: bytes of one period; `start`: byte offset of the stretch."""

    unit: bytes
    repeats: int
    size: int
    to_end: bool
    exact: bool

    @property
    def shown(self) -> str:
        """The unit, turned so that it begins at a line, sentence or word; at most 80 characters."""
        unit = self.unit
        for border in (rb"\n\s*", rb"[.!?]\s+", rb"\s+"):
            found = re.search(border, unit)
            if found:
                unit = unit[found.end() :] + unit[: found.end()]
                break
        return unit.decode(errors="ignore").strip()[:80] or repr(self.unit[:8])[2:-1]

    @property
    def words(self) -> int:
        """Words of the unit; two characters outside ASCII count as one."""
        return len(_WORD.findall(self.unit)) + sum(b > 127 for b in self.unit) // 6


def text_signals(
    frame: pl.DataFrame, thresholds: Thresholds, profile: Profile | None = None
) -> pl.DataFrame:
    """`frame` + LOOP_COLUMNS + LANGUAGE_COLUMNS + ANSWER_COLUMNS.

    `profile` fills the `profile_*` columns; without it they are null and the rules that read them
    stay silent.
    """
    return (
        frame.hstack(loops(frame, thresholds))
        .hstack(languages(frame))
        .hstack(answers(frame, profile))
    )


def loops(frame: pl.DataFrame, thresholds: Thresholds) -> pl.DataFrame:
    """LOOP_COLUMNS of a frame, one row for one row."""
    rows: list[int] = []
    found: list[tuple[str, str, int, int, float, bool]] = []
    suspects = _suspects(frame)
    columns = ("reasoning", "content", "finish_reason", "user_text")
    texts = frame.select(pl.col(columns).gather(suspects)).iter_rows()
    for row, (reasoning, content, finish, asked) in zip(suspects, texts, strict=True):
        open_end = finish not in FINISHED
        for field, text, cut in (
            ("content", content, open_end),
            ("reasoning", reasoning, open_end and not content),
        ):
            if not text:
                continue
            raw = text.encode(errors="replace")
            loop = loop_of(raw, thresholds, cut=cut, asked=(asked or "").encode(errors="replace"))
            if loop is not None:
                share = loop.size / len(raw)
                found.append((field, loop.shown, loop.repeats, loop.size, share, loop.to_end))
                rows.append(row)
                break
    columns_found = pl.DataFrame(found, schema=LOOP_COLUMNS, orient="row")
    out = pl.DataFrame(schema=LOOP_COLUMNS).clear(frame.height)
    return out.with_columns(
        one.scatter(rows, columns_found[one.name]) for one in (out.iter_columns() if rows else ())
    )


def _suspects(frame: pl.DataFrame) -> list[int]:
    """Rows worth a close look: half of the probes recur soon, or the last bytes of the record do.

    Last bytes that hold a digit say nothing by themselves: those tails are counted with all digits
    alike, which costs ten times as much (1.8 ns a byte).
    """
    tests, tail = _tests()
    measured = frame.select(tests)
    rows = set(measured["probed"].fill_null(False).arg_true().to_list())
    near = measured.select((pl.col("digits") | pl.col("again")).fill_null(False)).to_series()
    places = near.arg_true()
    for row, text in zip(
        places.to_list(), frame.select(tail.gather(places)).to_series().to_list(), strict=True
    ):
        alike = text.translate(_DIGITS_ALIKE)
        if alike.count(alike[-_NEEDLE:]) >= 3:
            rows.add(row)
    return sorted(rows)


@cache
def _tests() -> tuple[tuple[pl.Expr, ...], pl.Expr]:
    """(the columns probed, digits and again; the last bytes of a record). Kept: building them holds
    the interpreter lock for a millisecond.
    """
    last = pl.when(pl.col("content").str.len_bytes() > 0).then("content").otherwise("reasoning")
    tail = last.cast(pl.Binary).bin.slice(-_TAIL, _TAIL)
    end = last.cast(pl.Binary).bin.slice(-_NEEDLE, _NEEDLE)
    tests = (
        ((_recurring("reasoning", 4) >= 2) | (_recurring("content", 2) >= 2)).alias("probed"),
        last.str.tail(_NEEDLE).str.contains("[0-9]").alias("digits"),
        tail.bin.slice(0, tail.bin.size() - 1).bin.contains(end).alias("again"),
    )
    return tests, tail


def _recurring(name: str, probes: int) -> pl.Expr:
    """How many of `probes` evenly spread pieces of the text stand again within the next 2 KB."""
    raw = pl.col(name).cast(pl.Binary)
    size = pl.col(name).str.len_bytes().cast(pl.Int64)
    hits: list[pl.Expr] = []
    for k in range(probes):
        at = size * (2 * k + 1) // (2 * probes)
        piece, after = raw.bin.slice(at, _PROBE), raw.bin.slice(at + 1, _WINDOW)
        hits.append(after.bin.contains(piece))
    return pl.when(size > 128).then(pl.sum_horizontal(hits)).otherwise(0)


def loop_of(raw: bytes, t: Thresholds, *, cut: bool, asked: bytes = b"") -> Loop | None:
    """The loop in a text that makes it useless, or None.

    `cut`: the text ends where generation was ended from outside (token limit, abort). `asked`: the
    prompt; a unit
    that stands in it was perhaps asked for ("write hello fifty times"), so that a text which ended
    by itself stays.
    """
    blank = len(raw) - len(raw.rstrip())
    if blank >= t.loop_bare_bytes:
        return Loop(raw[-1:], blank, blank, True, True)
    body = raw.rstrip()
    exact = _tail_run(body, exact=True)
    if exact is not None and _grave(exact, len(body), t, cut=cut, asked=asked):
        return exact
    near = _near_run(body)
    if near is not None and _grave(near, len(body), t, cut=cut, asked=asked):
        return near
    if cut:
        return _few_sentences(body, t)
    middle = _middle_run(body)
    if middle is not None and _grave(middle, len(body), t, cut=False, asked=asked):
        return middle
    return None


def _grave(loop: Loop, size: int, t: Thresholds, *, cut: bool, asked: bytes) -> bool:
    """Whether a reader would throw the text away."""
    bare = loop.words == 0  # rules, digits, brackets: legal in tables and data
    if loop.to_end and cut:
        enough = max(t.loop_cut_bytes, min(size // 10, 4 * t.loop_cut_bytes))
        return (
            loop.repeats >= t.loop_cut_repeats
            and loop.size >= (t.loop_bare_bytes if bare else enough)
            and (loop.exact or loop.words >= t.loop_counter_words)
        )
    if loop.unit.strip() and loop.unit.strip() in asked:
        return False
    times = 1 if loop.exact else 3  # counters that change: a legal list has that too
    return (
        loop.repeats >= times * t.loop_stop_repeats
        and loop.size >= times * t.loop_stop_bytes
        and loop.size >= t.loop_stop_share * size
        and not bare
        and (loop.exact or loop.words >= t.loop_counter_words)
    )


def _near_run(body: bytes) -> Loop | None:
    """The stretch at the end that repeats when every number counts as 0."""
    alike = body[-_TAIL:].translate(_DIGITS_ALIKE)
    if b"0" not in alike or alike.count(alike[-_NEEDLE:]) < 2:
        return None  # evening out the width of numbers costs 25 ns a byte
    return _tail_run(_NUMBER.sub(b"0", body[-_CLOSE_LOOK:]), exact=False)


def _tail_run(body: bytes, *, exact: bool) -> Loop | None:
    """The longest stretch that ends at the end and equals itself one period earlier."""
    size = len(body)
    best: Loop | None = None
    needle, at = body[-24:], size - 24
    for _ in range(3):
        at = body.rfind(needle, max(0, size - _LONGEST), at + 23)
        if at < 0:
            break
        period = size - 24 - at
        run = _run_before_end(body, period)
        if run >= 2 * period and (best is None or run > best.size):
            best = Loop(body[size - run : size - run + period], run // period, run, True, exact)
        if best is not None and best.size * 2 >= size:
            break
    return best


def _run_before_end(body: bytes, period: int) -> int:
    """Bytes at the end, the first period included, for which body[i] == body[i - period]."""
    return _alike_before_end(body[:-period], body[period:]) + period


def _alike_from_start(one: bytes, other: bytes) -> int:
    """Length of the common beginning of two texts of one length. Not by numpy: it takes as long,
    and its import a tenth of a second of every small capture with one suspect text.
    """
    for at in range(0, len(one), _BLOCK):
        left, right = one[at : at + _BLOCK], other[at : at + _BLOCK]
        if left != right:
            differing = int.from_bytes(left, "big") ^ int.from_bytes(right, "big")
            return at + len(left) - (differing.bit_length() + 7) // 8
    return len(one)


def _alike_before_end(one: bytes, other: bytes) -> int:
    """Length of the common ending of two texts of one length."""
    return _alike_from_start(one[::-1], other[::-1])


def _middle_run(body: bytes) -> Loop | None:
    """A long exact stretch that the text left again."""
    best: Loop | None = None
    for k in range(1, 6):
        at = len(body) * k // 6
        again = body.find(body[at : at + _PROBE], at + 1, at + _WINDOW)
        if again < 0:
            continue
        period = again - at
        first = at - _alike_before_end(body[:at], body[period : at + period])
        size = again + _alike_from_start(body[at:-period], body[again:]) - first
        if best is None or size > best.size:
            best = Loop(body[first : first + period], size // period, size, False, True)
    return best


def _few_sentences(body: bytes, t: Thresholds) -> Loop | None:
    """The second half of a cut text, when it only shuffles a few sentences; the unit is the
    commonest one."""
    half = body[len(body) // 2 :]
    units = [u.strip() for u in _SENTENCE_END.split(half)[1:-1]]
    units = [u for u in units if len(u) >= 6]
    if len(units) < t.loop_sentences or len(set(units)) > t.loop_distinct_share * len(units):
        return None
    top = max(dict.fromkeys(units), key=units.count)  # of equals the first: a set has no order
    loop = Loop(top, units.count(top), sum(map(len, units)), True, True)
    return loop if loop.words >= 2 and loop.repeats >= t.loop_cut_repeats else None
