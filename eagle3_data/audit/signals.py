"""Signals: what the rules compare, measured once for a whole batch.

What enters: a frame of record and sample columns, and the profile. What leaves: the same frame +
`SIGNAL_COLUMNS` + the text signals of `loops.py`, one row for one row in the same order.
It promises two stages over the text: cheap tests on all of it (literals, lengths, first and last
characters), and a close look at the few rows that hold a control string or whose counts do not fit.
A missing text measures as none.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import TYPE_CHECKING

import polars as pl

from eagle3_data.audit.loops import text_signals
from eagle3_data.audit.markers import (
    CONTROL_AT_END,
    MAY_QUOTE,
    QUOTED,
    Watched,
    cut_at_end,
    cut_at_start,
    one_of,
    watched,
)
from eagle3_data.profiles.profile import Profile
from eagle3_data.profiles.thinking import thinking_on
from eagle3_data.records.table import Note, Status

if TYPE_CHECKING:
    from eagle3_data.audit.thresholds import Thresholds

CHEAP_COLUMNS: dict[str, pl.DataType] = {
    "answered": pl.Boolean(),  # a record with an answer of a model, no error body or foreign shape
    "thinking_on": pl.Boolean(),  # should this answer hold a thought; null where not answered
    "thinking_shown": pl.Boolean(),  # other records of the run hold thoughts
    "expects_open": pl.Boolean(),  # the model samples the opening marker; null = profile silent
    "open_in_prompt": pl.Boolean(),  # the prompt ends in the opening marker, by the profile
    "wrapper_tokens": pl.Int32(),  # control ids sampled around thought and answer
    "reasoning_chars": pl.Int64(),
    "content_chars": pl.Int64(),
    "reasoning_blank": pl.Boolean(),  # text that is only whitespace
    "content_blank": pl.Boolean(),
    "has_reasoning": pl.Boolean(),  # a thought in its own field with at least one visible character
    "has_content": pl.Boolean(),  # an answer text with at least one visible character
    "has_answer": pl.Boolean(),  # has_content or tool calls
    "ids_captured": pl.Boolean(),
    "stored_bytes": pl.Int64(),  # UTF-8 bytes of reasoning, content and tool calls
    "bytes_per_token": pl.Float64(),  # stored_bytes / completion_tokens; null without usage
    "nul_chars": pl.Int64(),  # U+0000 in both fields
    "cut_marker": pl.String(),  # half of a marker at the border of a field; null otherwise
    "near_copy": pl.Boolean(),  # both fields begin with the same characters
}
"""Measured on every row."""

CLOSE_COLUMNS: dict[str, pl.DataType] = {
    "reasoning_order": pl.String(),  # own unquoted markers in order: o(pening), c(losing)
    "content_order": pl.String(),
    "reasoning_leads": pl.String(),  # own opening marker that the text begins with
    "content_leads": pl.String(),
    "reasoning_trails": pl.String(),  # own closing marker that the reasoning ends in
    "content_closes": pl.Int64(),  # own closing markers in content, quoted ones counted too
    "empty_block": pl.Boolean(),  # content begins with a thought that holds nothing
    "doubled_marker": pl.String(),  # the same own marker twice with at most whitespace between
    "strange_marker": pl.String(),  # opening marker of another family at the start of a field
    "control_inside": pl.String(),  # first control string in the middle of a field
    "control_at_end": pl.String(),  # control string at the end of a field
    "asked_about_markers": pl.Boolean(),  # the user's own text spells a control string or U+FFFD
    "replaced_inside": pl.Int64(),  # U+FFFD in both fields, those at the very end left out
    "replaced_at_end": pl.Boolean(),  # the last text ends in U+FFFD
}
"""Looked at only where a control string, a marker or U+FFFD stands in a text; "", 0, false or null
elsewhere."""

_CLOSE_DEFAULTS: dict[str, object] = {
    "reasoning_order": "",
    "content_order": "",
    "content_closes": 0,
    "empty_block": False,
    "asked_about_markers": False,
    "replaced_inside": 0,
    "replaced_at_end": False,
}

SUSPECT_COLUMNS: dict[str, pl.DataType] = {
    "token_ceiling": pl.Int64(),  # most tokens the stored text can have; null where usage fits
    "copied": pl.String(),  # equal, reasoning-begins-content, content-begins-reasoning
}
"""Measured where `bytes_per_token` is low or `near_copy` is true."""

SIGNAL_COLUMNS: dict[str, pl.DataType] = CHEAP_COLUMNS | CLOSE_COLUMNS | SUSPECT_COLUMNS

_TAIL_CHARS = 256
"""Characters in which control strings at the end of a text are searched."""

_LOW_BYTES_PER_TOKEN = 2.5
"""Below it the text is looked at closely: the ceiling saves at most two of three bytes. English has
4 to 5 bytes a token."""


def with_signals(
    frame: pl.DataFrame, profile: Profile, *, thinking_shown: bool, thresholds: Thresholds
) -> pl.DataFrame:
    """`frame` (record table + sample columns) + SIGNAL_COLUMNS + the columns of `loops.py`.

    `thinking_shown`: some record of the run holds a thought (what decides for profiles that do not
    know).
    """
    words = watched(profile)
    row = pl.int_range(pl.len(), dtype=pl.Int64).alias("row")
    measured = frame.with_columns(row).with_columns(_cheap(profile, words, thinking_shown))
    measured = measured.with_columns(
        bytes_per_token=pl.col("stored_bytes")
        / pl.when(pl.col("completion_tokens") > 0).then("completion_tokens"),
        has_answer=pl.col("has_content") | (pl.col("n_tool_calls").fill_null(0) > 0),
        thinking_on=pl.when("answered").then(pl.col("thinking_on")),
    )
    measured = _joined(measured, pl.col("marked"), CLOSE_COLUMNS, _close(words), _unquoted(words))
    low = (pl.col("bytes_per_token") < _LOW_BYTES_PER_TOKEN) | pl.col("near_copy")
    measured = _joined(measured, low, SUSPECT_COLUMNS, _suspect(thresholds))
    measured = measured.with_columns(
        pl.col(name).fill_null(pl.lit(value, dtype=CLOSE_COLUMNS[name]))
        for name, value in _CLOSE_DEFAULTS.items()
    )
    signals = measured.select(pl.col(n).cast(t) for n, t in SIGNAL_COLUMNS.items())
    return text_signals(frame.hstack(signals), thresholds, profile)


def _joined(
    frame: pl.DataFrame,
    where: pl.Expr,
    schema: dict[str, pl.DataType],
    stages: tuple[list[pl.Expr], ...],
    prepare: Callable[[pl.DataFrame], pl.DataFrame] | None = None,
) -> pl.DataFrame:
    """`frame` with the columns of `schema`, evaluated on the rows of `where` only and null
    elsewhere."""
    rows = frame.filter(where)
    if rows.is_empty():
        return frame.with_columns(pl.lit(None, dtype=t).alias(n) for n, t in schema.items())
    if prepare is not None:
        rows = prepare(rows)
    for stage in stages:
        rows = rows.with_columns(stage)
    return frame.join(rows.select("row", *schema), on="row", how="left", maintain_order="left")


def _cheap(profile: Profile, words: Watched, thinking_shown: bool) -> list[pl.Expr]:
    no_answer = Note.NO_ANSWER | Note.ERROR_BODY | Note.EMPTY_CHOICES | Note.LAST_NOT_ASSISTANT
    answered = (pl.col("status") == Status.RECORD.value) & (
        (pl.col("notes") & pl.lit(int(no_answer), dtype=pl.UInt64)) == 0
    )
    samples_open = None if profile.open_in_prompt is None else not profile.open_in_prompt
    wrappers = int(samples_open or False) + (profile.think_close is not None)
    wrappers += bool(profile.end_of_turn)
    return [
        answered.alias("answered"),
        thinking_on(profile, shown=thinking_shown).alias("thinking_on"),
        pl.lit(thinking_shown).alias("thinking_shown"),
        pl.lit(samples_open, dtype=pl.Boolean).alias("expects_open"),
        pl.lit(profile.open_in_prompt, dtype=pl.Boolean).alias("open_in_prompt"),
        pl.lit(wrappers, dtype=pl.Int32).alias("wrapper_tokens"),
        *_measures(words),
    ]


@lru_cache(maxsize=8)
def _measures(words: Watched) -> tuple[pl.Expr, ...]:
    """The cheap columns that the texts alone decide. Kept, as the stages below are: building
    expressions holds the interpreter lock, 2 ms a batch for all of them.
    """
    reasoning, content = pl.col("reasoning"), pl.col("content")
    return (
        reasoning.str.len_chars().fill_null(0).alias("reasoning_chars"),
        content.str.len_chars().fill_null(0).alias("content_chars"),
        _blank(reasoning).alias("reasoning_blank"),
        _blank(content).alias("content_blank"),
        reasoning.str.contains(r"\S").fill_null(False).alias("has_reasoning"),
        content.str.contains(r"\S").fill_null(False).alias("has_content"),
        pl.col("completion_ids").is_not_null().alias("ids_captured"),
        pl.sum_horizontal(
            pl.col("reasoning", "content", "tool_calls_json").str.len_bytes().cast(pl.Int64)
        ).alias("stored_bytes"),
        _counted("\0", reasoning, content).alias("nul_chars"),
        pl.coalesce(
            reasoning.str.tail(24).str.extract(cut_at_end(words.ends)),
            content.str.head(24).str.extract(cut_at_start(words.ends)),
            content.str.tail(24).str.extract(cut_at_end(words.ends)),
            reasoning.str.head(24).str.extract(cut_at_start(words.ends)),
        ).alias("cut_marker"),
        (_opening(reasoning) == _opening(content)).fill_null(False).alias("near_copy"),
        pl.any_horizontal(
            text.str.contains(words.everything).fill_null(False) for text in (reasoning, content)
        ).alias("marked"),  # 5 GB/s: the regex engine searches an alternation of literals with SIMD
    )


def _blank(text: pl.Expr) -> pl.Expr:
    return ((text.str.len_bytes() > 0) & ~text.str.contains(r"\S")).fill_null(False)


def _counted(char: str, *texts: pl.Expr) -> pl.Expr:
    """How often `char` stands in the texts."""
    counts = (text.str.count_matches(char, literal=True).cast(pl.Int64) for text in texts)
    return pl.sum_horizontal(counts)


def _opening(text: pl.Expr) -> pl.Expr:
    """The first 24 visible-led characters; null for an empty text, so that two empty ones are no
    copy."""
    head = text.str.head(64).str.strip_chars_start().str.head(24)
    return pl.when(head.str.len_bytes() > 0).then(head)


@lru_cache(maxsize=8)
def _unquoted(words: Watched) -> Callable[[pl.DataFrame], pl.DataFrame]:
    """Adds `clean_reasoning` and `clean_content`: the texts without code and quoted markers.

    Only texts that may hold a quote are rewritten: the replacement costs 3 ns a byte, the test 0.2.
    """
    quoted = QUOTED.format(
        one_of(*words.opens, *words.closes, *words.strange, *words.control, *CONTROL_AT_END)
    )

    def clean(text: pl.Series) -> pl.Series:
        text = text.fill_null("")
        rows = text.str.contains(MAY_QUOTE).arg_true()
        return text.scatter(rows, text.gather(rows).str.replace_all(quoted, ""))

    def prepare(frame: pl.DataFrame) -> pl.DataFrame:
        return frame.with_columns(
            clean(frame[name]).alias(f"clean_{name}") for name in ("reasoning", "content")
        )

    return prepare


@lru_cache(maxsize=8)
def _close(words: Watched) -> tuple[list[pl.Expr], ...]:
    """Stages over the rows in which some control string stands."""
    opens, closes = one_of(*words.opens), one_of(*words.closes)
    letters = {**dict.fromkeys(words.opens, "o"), **dict.fromkeys(words.closes, "c")}
    ends = rf"((?:{one_of(*words.control, *CONTROL_AT_END)}))\s*$"
    tail = rf"(?:\s*(?:{one_of(*words.control, *CONTROL_AT_END)}|\x{{fffd}}))+\s*$"
    twice = "|".join(rf"{one}\s*{one}" for one in map(one_of, (*words.opens, *words.closes)))

    def order(name: str) -> pl.Expr:
        found = pl.col(name).str.extract_all(f"{opens}|{closes}").list.join("")
        return found.str.replace_many(letters) if letters else found

    both = ("reasoning", "content")
    tails = [  # only the last characters: a regex with $ is tried from every start of a text
        pl.col(f"clean_{name}").str.tail(_TAIL_CHARS).str.extract(f"({tail})").alias(f"tail_{name}")
        for name in both
    ]
    bodies = [
        pl.col(f"clean_{name}")
        .str.strip_suffix(pl.col(f"tail_{name}").fill_null(""))
        .alias(f"body_{name}")
        for name in both
    ]
    fffd = "\N{REPLACEMENT CHARACTER}"
    last = pl.when(pl.col("content").str.len_bytes() > 0).then("content").otherwise("reasoning")
    return (
        tails,
        bodies,
        [
            order("clean_reasoning").alias("reasoning_order"),
            order("clean_content").alias("content_order"),
            pl.col("reasoning").str.extract(rf"^\s*({opens})").alias("reasoning_leads"),
            pl.col("content").str.extract(rf"^\s*({opens})").alias("content_leads"),
            pl.col("reasoning")
            .str.tail(_TAIL_CHARS)
            .str.extract(rf"({closes})\s*$")
            .alias("reasoning_trails"),
            pl.col("content").str.count_matches(closes).cast(pl.Int64).alias("content_closes"),
            pl.col("content").str.contains(rf"^\s*(?:{opens})\s*(?:{closes})").alias("empty_block"),
            pl.coalesce(pl.col(f"clean_{name}").str.extract(f"({twice})") for name in both).alias(
                "doubled_marker"
            ),
            pl.coalesce(
                pl.col(name).str.extract(rf"^\s*({one_of(*words.strange)})") for name in both
            ).alias("strange_marker"),
            pl.coalesce(
                pl.col(f"body_{name}").str.extract(f"({one_of(*words.control)})") for name in both
            ).alias("control_inside"),
            pl.coalesce(pl.col(f"tail_{name}").str.extract(ends) for name in both).alias(
                "control_at_end"
            ),
            pl.col("user_text").str.contains(words.everything).alias("asked_about_markers"),
            _counted(fffd, *(pl.col(name).str.strip_chars_end(fffd) for name in both)).alias(
                "replaced_inside"
            ),
            last.str.ends_with(fffd).alias("replaced_at_end"),
        ],
    )


@lru_cache(maxsize=8)
def _suspect(t: Thresholds) -> tuple[list[pl.Expr], ...]:
    """Stages over rows whose counts or openings are odd."""
    reasoning = pl.col("reasoning").str.strip_chars()
    content = pl.col("content").str.strip_chars()
    shorter = pl.min_horizontal(reasoning.str.len_chars(), content.str.len_chars())
    calls = pl.col("n_tool_calls").fill_null(0).cast(pl.Int64)
    return (
        [
            (
                pl.col("stored_bytes")
                - _saved(pl.col("reasoning"))
                - _saved(pl.col("content"))
                + calls * t.tool_call_tokens
                + t.unseen_tokens
            ).alias("token_ceiling"),
            pl.when((reasoning == content) & (shorter >= t.copied_equal_chars))
            .then(pl.lit("equal"))
            .when(shorter < t.copied_prefix_chars)
            .then(None)
            .when(content.str.starts_with(reasoning))
            .then(pl.lit("reasoning-begins-content"))
            .when(reasoning.str.starts_with(content))
            .then(pl.lit("content-begins-reasoning"))
            .alias("copied"),
        ],
    )


def _saved(text: pl.Expr) -> pl.Expr:
    """Bytes of a text that can not be tokens of their own.

    One of five small letters; the space before a letter; six around a commonest English word, which
    only stands in prose. Digits, base64, CJK and random letters save next to nothing. Over SmolLM2,
    Qwen and DeepSeek vocabularies the ceiling built from it was never below the true count
    (tests/audit/test_signals.py).
    """
    runs = text.str.count_matches(r"[a-z]{5}")
    words = text.str.count_matches(r" [A-Za-z]")
    common = text.str.count_matches(r" (?:the|of|and|to|in|is|that) ") * 6
    return (runs + words + common).cast(pl.Int64).fill_null(0)
