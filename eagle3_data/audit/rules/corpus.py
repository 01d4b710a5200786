"""SET: the corpus as a whole. Each rule searches the light records of a run, `row` being their
place.

Columns: the light records and `KEY_COLUMNS` of `audit/corpus.py`. A finding with a null `row` is
about a whole file.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from eagle3_data.audit.rules.registry import Severity, corpus_rule
from eagle3_data.audit.shift import shifts
from eagle3_data.records.ends import CUT_BY_LENGTH, STOPPED

if TYPE_CHECKING:
    from eagle3_data.audit.thresholds import Thresholds

_NOTHING = pl.DataFrame(schema={"row": pl.UInt32, "file_no": pl.Int32, "detail": pl.String})
_TEXT = pl.col("reasoning_chars").fill_null(0) + pl.col("content_chars").fill_null(0)


def _told(records: pl.DataFrame, detail: pl.Expr) -> pl.DataFrame:
    """Findings on these rows."""
    # pl.format of polars 2.1 panics on a column with an empty chunk, which a filter may leave
    return records.rechunk().select("row", "file_no", detail.alias("detail"))


def _of_files(files: pl.DataFrame, detail: pl.Expr) -> pl.DataFrame:
    """One finding on each whole file."""
    nowhere = pl.lit(None, dtype=pl.UInt32).alias("row")
    return files.rechunk().select(nowhere, "file_no", detail.alias("detail"))


def _place(name: str) -> pl.Expr:
    """First value of a group, as a column."""
    return pl.col(name).first()


def _later(records: pl.DataFrame, *keys: str) -> pl.DataFrame:
    """Rows that repeat `keys` of an earlier LINE, with `first_file` and `first_line`.

    Choices and turns of one line are never repetitions of each other: a server that was asked for n
    samples may give the same text twice.
    """
    firsts = records.group_by(keys, maintain_order=True).agg(
        _place("row").alias("first_row"),
        _place("file_no").alias("first_file"),
        _place("line").alias("first_line"),
        pl.len(),
    )
    other = (pl.col("file_no") != pl.col("first_file")) | (pl.col("line") != pl.col("first_line"))
    return (
        records.join(firsts.filter(pl.col("len") > 1), on=keys, how="inner", maintain_order="left")
        .filter((pl.col("row") > pl.col("first_row")) & other)
        .drop("len", "first_row")
    )


def _sound_first(records: pl.DataFrame) -> pl.DataFrame:
    """Rows of lines without an error before the others: of equal records one that is kept comes
    first.
    """
    return records.sort("wrong", maintain_order=True)


def _earlier() -> pl.Expr:
    """ "line 7", with the number of the file where that is another one."""
    line = pl.format("line {}", "first_line")
    other = pl.format("line {} of input {}", "first_line", pl.col("first_file") + 1)
    return pl.when(pl.col("first_file") == pl.col("file_no")).then(line).otherwise(other)


@corpus_rule("SET001", "duplicate-record", severity=Severity.ERROR)
def duplicate_record(records: pl.DataFrame, t: Thresholds) -> pl.DataFrame:
    """The same record once more: prompt, answer, id, times and usage are equal.

    Why it matters: a resumed run wrote it again; it counts double in training and leaks between
    train and test.
    What to do: keep the first one without another error (`--quarantine` does).
    Not flagged: equal choices of one line.
    """
    later = _later(_sound_first(records), "key_record").sort("row")
    return _told(later, pl.format("same as {}", _earlier()))


@corpus_rule("SET002", "duplicate-sample", severity=Severity.ERROR)
def duplicate_sample(records: pl.DataFrame, t: Thresholds) -> pl.DataFrame:
    """The same prompt with the same answer, captured twice.

    Why it matters: at any temperature above zero a long answer does not repeat by chance; at zero
    it adds nothing.
    What to do: keep the first one without another error (`--quarantine` does).
    Not flagged: short answers, choices of one line, records that SET001 names.
    """
    once = _sound_first(records).unique("key_record", keep="first", maintain_order=True)
    long = once.filter(pl.col("key_prompt").is_not_null() & (t.same_answer_chars <= _TEXT))
    later = _later(long, "key_prompt", "key_answer").sort("row")
    return _told(later, pl.format("prompt and answer of {}", _earlier()))


@corpus_rule("SET003", "id-collision", severity=Severity.ERROR, at="/id")
def id_collision(records: pl.DataFrame, t: Thresholds) -> pl.DataFrame:
    """One id on two lines of a file with different prompts.

    Why it matters: a resumed run took a prefix of its output for a prefix of its input; whatever
    joins on the id is wrong.
    What to do: capture the prompts of both lines again under ids of their own.
    Not flagged: several samples of one prompt, turns and choices of one line, equal ids in
    different files.
    """
    named = records.filter(pl.col("record_id").is_not_null() & pl.col("key_prompt").is_not_null())
    firsts = named.group_by("file_no", "record_id", maintain_order=True).agg(
        _place("line").alias("first_line"), _place("key_prompt").alias("first_prompt"), pl.len()
    )
    later = named.join(
        firsts.filter(pl.col("len") > 1),
        on=["file_no", "record_id"],
        how="inner",
        maintain_order="left",
    ).filter(
        (pl.col("line") != pl.col("first_line")) & (pl.col("key_prompt") != pl.col("first_prompt"))
    )
    return _told(later, pl.format("id of line {}, which has another prompt", "first_line"))


@corpus_rule("SET004", "prompt-answered-again", severity=Severity.WARN, at="/messages")
def prompt_answered_again(records: pl.DataFrame, t: Thresholds) -> pl.DataFrame:
    """A prompt has several answers on different lines.

    Why it matters: wanted when the run asked for several samples; else a resumed run started over.
    Keep all samples of a
    prompt on one side of a train/test split.
    What to do: compare with what the run asked for.
    """
    asked = records.filter(pl.col("key_prompt").is_not_null())
    later = _later(asked, "key_prompt").join(
        _later(asked, "key_prompt", "key_answer").select("row"), on="row", how="anti"
    )
    return _told(later, pl.format("prompt of {}, another answer", _earlier()))


@corpus_rule("SET005", "one-answer-for-many-prompts", severity=Severity.WARN, at="/response")
def one_answer_for_many_prompts(records: pl.DataFrame, t: Thresholds) -> pl.DataFrame:
    """The same answer stands under many different prompts.

    Why it matters: canned text or a cache that ignores the prompt.
    What to do: look at the first ones; switch off caches and capture again.
    Not flagged: short answers ("yes"), answers of fewer prompts than the limit.
    """
    long = records.filter((t.same_answer_chars <= _TEXT) & pl.col("key_prompt").is_not_null())
    groups = (
        long.group_by("key_answer")
        .agg(
            pl.col("key_prompt").n_unique().alias("prompts"),
            pl.col("file_no").first().alias("first_file"),
            pl.col("line").first().alias("first_line"),
        )
        .filter(pl.col("prompts") >= t.same_answer_prompts)
    )
    rows = long.join(groups, on="key_answer", how="inner", maintain_order="left")
    return _told(rows, pl.format("one answer for {} prompts, first in {}", "prompts", _earlier()))


@corpus_rule("SET006", "mixed-models", severity=Severity.ERROR, at="/response/model")
def mixed_models(records: pl.DataFrame, t: Thresholds) -> pl.DataFrame:
    """The record is of another model than most of the run.

    Why it matters: a drafter learns one target; answers of another model lower the acceptance.
    What to do: split the files by model and audit each with its profile.
    Not flagged: names that differ only in the path before the last `/` or in case, records without
    a model.
    """
    name = pl.col("model").str.to_lowercase().str.split("/").list.last()
    named = records.with_columns(name.alias("name")).filter(pl.col("name").is_not_null())
    counts = named["name"].value_counts().sort(["count", "name"], descending=[True, False])
    if counts.height < 2:
        return _NOTHING
    main, rows = counts.row(0)
    others = named.filter(pl.col("name") != main)
    most = pl.lit(f"but {rows} of {named.height} records are of {main}")
    return _told(others, pl.format("{}, {}", "model", most))


@corpus_rule("SET007", "mixed-servers", severity=Severity.WARN, at="/response")
def mixed_servers(records: pl.DataFrame, t: Thresholds) -> pl.DataFrame:
    """A file holds answers of several servers or server versions.

    Why it matters: versions strip text differently, so that grades and repairs are of one version
    only.
    What to do: nothing when ids were captured; else audit the parts apart.
    """
    server = pl.concat_str("server", "server_version", separator=" ", ignore_nulls=True)
    known = records.with_columns(server.alias("by")).filter(pl.col("server").is_not_null())
    counts = known.group_by("file_no", "by", maintain_order=True).len("rows")
    files = (
        counts.sort("rows", descending=True, maintain_order=True)
        .group_by("file_no", maintain_order=True)
        .agg(pl.format("{}: {}", "by", "rows").alias("said"), pl.len().alias("servers"))
        .filter(pl.col("servers") > 1)
    )
    return _of_files(
        files.sort("file_no"), pl.format("records by server: {}", pl.col("said").list.join(", "))
    )


@corpus_rule("SET008", "latency-spike", severity=Severity.WARN, at="/latency_s")
def latency_spike(records: pl.DataFrame, t: Thresholds) -> pl.DataFrame:
    """Many records took the same longest time, to a tenth of a second.

    Why it matters: a timeout of client or proxy ended them; their text is cut, whatever
    finish_reason says.
    What to do: raise the timeout and capture these rows again.
    Not flagged: answers cut by length (a batch reaches its limit together), few rows, times below
    five seconds.
    """
    cut = pl.col("finish_reason").is_in(CUT_BY_LENGTH).fill_null(False)
    timed = records.filter((pl.col("latency_s") >= 5) & ~cut)
    if timed.height < t.latency_rows:
        return _NOTHING
    top = timed["latency_s"].quantile(0.999, "lower")
    spike = timed.filter((pl.col("latency_s") - top).abs() <= 0.05)
    enough = max(t.latency_rows, t.latency_share * timed.height)
    if spike.height < enough:
        return _NOTHING
    said = pl.format("{} s, as {} other records", "latency_s", pl.lit(spike.height - 1))
    return _told(spike, said)


@corpus_rule("SET009", "many-cut", severity=Severity.WARN, at="/response/finish_reason")
def many_cut(records: pl.DataFrame, t: Thresholds) -> pl.DataFrame:
    """A large share of the answers in a file was cut by the token limit.

    Why it matters: the drafter sees beginnings and hardly an end; the counters of capture scripts
    missed this before.
    What to do: capture again with a larger max_tokens.
    """
    files = records.group_by("file_no", maintain_order=True).agg(
        pl.len().alias("all"),
        pl.col("finish_reason").is_in(CUT_BY_LENGTH).sum().alias("cut"),
        pl.col("max_tokens").mode().min().alias("limit"),
    )
    many = files.filter((pl.col("cut") >= 2) & (pl.col("cut") > t.cut_share * pl.col("all")))
    return _of_files(
        many,
        pl.format(
            "{} of {} answers are cut; max_tokens is mostly {}",
            "cut",
            "all",
            pl.col("limit").cast(pl.String).fill_null("not said"),
        ),
    )


@corpus_rule("SET010", "thought-missing-in-some", severity=Severity.WARN, at="/response/reasoning")
def thought_missing_in_some(records: pl.DataFrame, t: Thresholds) -> pl.DataFrame:
    """Most thinking records of a file have a thought, some have none.

    Why it matters: the parser lost it in those rows, or the model skipped thinking; both are other
    data than the rest.
    What to do: see what these rows share (server, tools, previous role, length).
    """
    thinking = records.filter(pl.col("thinking_on"))
    files = thinking.group_by("file_no", maintain_order=True).agg(
        pl.len().alias("all"),
        (pl.col("reasoning_chars") == 0).sum().alias("none"),
        pl.col("line").filter(pl.col("reasoning_chars") == 0).first().alias("line"),
    )
    some = files.filter(
        (pl.col("none") > 0) & (pl.col("none") < (1 - t.thought_share) * pl.col("all"))
    )
    return _of_files(
        some,
        pl.format(
            "{} of {} thinking records have no thought, first in line {}", "none", "all", "line"
        ),
    )


@corpus_rule("SET011", "reasoning-key-changes", severity=Severity.WARN, at="/response")
def reasoning_key_changes(records: pl.DataFrame, t: Thresholds) -> pl.DataFrame:
    """The key that holds the thought changes inside a file.

    Why it matters: the server was updated or a second producer wrote; a reader that knows one key
    loses half of the thoughts.
    What to do: nothing for this toolkit, which reads both; check the server version of both parts.
    """
    keyed = records.filter(pl.col("reasoning_key").is_not_null())
    changed = keyed.with_columns(
        pl.col("reasoning_key").shift(1).over("file_no").alias("before")
    ).filter(pl.col("before") != pl.col("reasoning_key"))
    first = changed.unique("file_no", keep="first", maintain_order=True)
    return _told(first, pl.format("from here on {}, before {}", "reasoning_key", "before"))


@corpus_rule("SET012", "forced-opening", severity=Severity.WARN, at="/response/content")
def forced_opening(records: pl.DataFrame, t: Thresholds) -> pl.DataFrame:
    """Many answers begin with the same 60 characters.

    Why it matters: a thinking budget injects such a sentence when it runs out; the model did not
    sample it.
    What to do: look at one; if the server wrote it, capture again without the budget.
    Not flagged: short openings ("Sure!"), openings of few records.
    """
    opened = records.filter(pl.col("key_opening").is_not_null())
    groups = opened.group_by("key_opening").agg(
        pl.len().alias("same"),
        pl.col("key_answer").n_unique().alias("answers"),
        pl.col("file_no").first().alias("first_file"),
        pl.col("line").first().alias("first_line"),
    )
    enough = max(t.same_opening_rows, t.same_opening_share * records.height)
    many = groups.filter((pl.col("same") >= enough) & (pl.col("answers") * 2 > pl.col("same")))
    rows = opened.join(many, on="key_opening", how="inner", maintain_order="left")
    return _told(rows, pl.format("opening of {} answers, first in {}", "same", _earlier()))


@corpus_rule("SET013", "answers-shifted", severity=Severity.ERROR, at="/response")
def answers_shifted(records: pl.DataFrame, t: Thresholds) -> pl.DataFrame:
    """From some line on, each answer belongs to the prompt of the line before or after.

    Why it matters: prompts and answers were joined by position after one row was lost; every pair
    is wrong.
    What to do: join by id, or capture again from that line.
    Not flagged: short answers and prompts without rare words. Lines between sampled blocks are
    judged with their blocks.
    """
    parts: list[pl.DataFrame] = []
    for shift in shifts(records, t):
        hit = records.filter(
            (pl.col("file_no") == shift.file_no)
            & pl.col("line").is_between(shift.first, shift.last)
        )
        side = "after" if shift.by > 0 else "before"
        said = (
            f"lines {shift.first} to {shift.last}: the answer of the line {side} fits better"
            f" ({shift.fitting} sampled rows against {shift.own})"
        )
        parts.append(_told(hit, pl.lit(said)))
    return pl.concat(parts) if parts else _NOTHING


@corpus_rule("SET014", "holdout-prompt", severity=Severity.ERROR, at="/messages")
def holdout_prompt(records: pl.DataFrame, t: Thresholds) -> pl.DataFrame:
    """The prompt is one of the held-out set, or contains one.

    Why it matters: acceptance measured on that set afterwards is too good to be true.
    What to do: drop the record.
    Not flagged: a held-out prompt of fewer than 8 words inside a longer text.
    """
    hit = records.filter(pl.col("key_holdout").is_not_null())
    return _told(hit, pl.format("held-out prompt {}", pl.col("key_holdout") + 1))


@corpus_rule("SET015", "answer-format-deviant", severity=Severity.WARN, at="/response/content")
def answer_format_deviant(records: pl.DataFrame, t: Thresholds) -> pl.DataFrame:
    """Nearly all finished answers of a file end in one closing tag, this one does not.

    Why it matters: small generators stop early; the missing tag is the part that a parser waits
    for.
    What to do: drop the deviants, or capture them again.
    Not flagged: answers that were cut, answers with tool calls.
    """
    whole = records.filter(
        pl.col("finish_reason").is_in(STOPPED)
        & (pl.col("n_tool_calls").fill_null(0) == 0)
        & (pl.col("content_chars") > 0)
    )
    tags = (
        whole.filter(pl.col("key_tag").is_not_null())
        .group_by("file_no", "key_tag")
        .len("tagged")
        .join(whole.group_by("file_no").len("all"), on="file_no")
        .filter(
            (pl.col("tagged") >= t.format_rows)
            & (pl.col("tagged") >= t.format_share * pl.col("all"))
        )
        .rename({"key_tag": "tag"})
    )
    odd = whole.join(tags, on="file_no", how="inner", maintain_order="left").filter(
        pl.col("key_tag").ne_missing(pl.col("tag"))
    )
    return _told(odd, pl.format("{} of {} answers end in </{}>", "tagged", "all", "tag"))
