"""Answers that stand beside the wrong prompt: every answer one row too early or too late.

What enters: word hashes of prompts and answers on sampled blocks of 16 lines. What leaves: the
stretches of lines in which
answers fit the neighbouring prompt better than their own. It promises silence where texts are short
or unrelated: a row
votes only when prompt and answer share rare words.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import polars as pl

if TYPE_CHECKING:
    from eagle3_data.audit.thresholds import Thresholds

BLOCK = 16
"""Lines of a block."""
_ALL_BEFORE = 512
"""Lines up to here are all sampled, so that small files are seen whole."""
_EVERY = 16
"""After that, one block in so many."""
_WORD = r"\p{Han}|\p{N}{2,}|[\p{L}&&[^\p{Han}]]{4,}"
_PROMPT_WORDS, _ANSWER_WORDS = 24, 96
_HEAD = 320
"""Characters of prompt, thought and answer that are read; the words of a question come back
early."""


@dataclass(frozen=True, slots=True)
class Shift:
    """Lines `first` to `last` of a file hold answers of the line `by` further (−1: of the line
    before)."""

    file_no: int
    first: int
    last: int
    by: int
    fitting: int
    """Rows that fit the neighbour."""
    own: int
    """Rows of the same blocks that fit their own prompt."""


def words(frame: pl.DataFrame) -> tuple[pl.Series, pl.Series]:
    """`key_words_prompt` and `key_words_answer`: distinct word hashes (u32) on sampled rows, null
    elsewhere."""
    block = (pl.col("line") - 1) // BLOCK
    sampled = (pl.col("line") <= _ALL_BEFORE) | (block % _EVERY == 0)
    head = pl.concat_str(
        pl.col("reasoning").str.head(_HEAD),
        pl.col("content").str.head(_HEAD),
        separator=" ",
        ignore_nulls=True,
    )
    rows = frame.select(sampled.fill_null(False)).to_series().arg_true()
    some = frame.select(
        pl.col("user_text").str.head(_HEAD).gather(rows).alias("key_words_prompt"),
        head.gather(rows).alias("key_words_answer"),
    )
    found = some.select(
        _hashes("key_words_prompt", _PROMPT_WORDS), _hashes("key_words_answer", _ANSWER_WORDS)
    )
    places = pl.Series([None] * frame.height, dtype=pl.UInt32)
    places = places.scatter(rows, pl.int_range(len(rows), dtype=pl.UInt32, eager=True))
    return found["key_words_prompt"].gather(places), found["key_words_answer"].gather(places)


def _hashes(name: str, most: int) -> pl.Expr:
    found = pl.col(name).str.to_lowercase().str.extract_all(_WORD)
    hashed = (pl.element().hash(seed=0) % 2**32).cast(pl.UInt32)
    return found.list.eval(hashed).list.unique(maintain_order=True).list.head(most)


def shifts(light: pl.DataFrame, t: Thresholds) -> list[Shift]:
    """Stretches of shifted answers, in order. `light`: file_no, line and the two word columns."""
    rows = light.filter(pl.col("key_words_prompt").is_not_null()).unique(
        ["file_no", "line"], keep="first", maintain_order=True
    )
    if rows.height < BLOCK // 2:
        return []
    weight = _weights(rows)
    found: list[Shift] = []
    running = False
    doubtful: list[
        int
    ] = []  # lines behind the last row that fits its own prompt, in the block before
    for file_no, block in _blocks(rows):
        votes = list(_votes(block, weight))
        count = Counter(votes)
        by = max((1, -1), key=count.__getitem__)
        needed = min(t.shift_rows, max(3, len(block) // 2))
        if count[by] >= needed and count[by] >= t.shift_ratio * count[0]:
            first = doubtful[0] if doubtful else block[0][0]
            if running and found[-1].file_no == file_no and found[-1].by == by:
                first = found[-1].first
                count += Counter({by: found[-1].fitting, 0: found[-1].own})
                found.pop()
            found.append(Shift(file_no, first, block[-1][0], by, count[by], count[0]))
            running = True
        elif count[0] > count[by]:
            running = False
        fitting = [i for i, vote in enumerate(votes) if vote == 0]
        doubtful = [line for line, _, _ in block[fitting[-1] + 1 :]] if fitting else []
        if not any(votes[fitting[-1] + 1 :] if fitting else ()):
            doubtful = []
    return found


_Row = tuple[int, frozenset[int], frozenset[int]]


def _blocks(rows: pl.DataFrame) -> Iterator[tuple[int, list[_Row]]]:
    """Runs of sampled rows of one block, as (line, prompt words, answer words)."""
    columns = ("file_no", "line", "key_words_prompt", "key_words_answer")
    here: tuple[int, int] | None = None
    block: list[_Row] = []
    for file_no, line, prompt, answer in rows.select(columns).iter_rows():
        place = (file_no, (line - 1) // BLOCK)
        if here is not None and place != here:
            yield here[0], block
            block = []
        here = place
        block.append((line, frozenset(prompt), frozenset(answer or ())))
    if here is not None:
        yield here[0], block


def _weights(rows: pl.DataFrame) -> dict[int, float]:
    """Weight of a word: the rarer, the more; 0 for those of more than a twentieth of the
    prompts."""
    count = rows.height
    seen = rows.select(pl.col("key_words_prompt").list.explode()).to_series().value_counts()
    ceiling = max(2, count // 20)
    return {
        word: math.log(count / times) if times <= ceiling else 0.0
        for word, times in seen.iter_rows()
        if word is not None
    }


def _votes(block: list[_Row], weight: dict[int, float]) -> Iterator[int | None]:
    """For each row with both neighbours: where its prompt's rare words stand, at −1, 0 or +1; None
    = undecided."""

    def shared(prompt: frozenset[int], answer: frozenset[int]) -> float:
        return sum(weight.get(word, 0.0) for word in prompt & answer)

    floor = math.log(max(4, len(weight))) / 2
    for i, (_, prompt, answer) in enumerate(block):
        own = shared(prompt, answer)
        after = shared(prompt, block[i + 1][2]) if i + 1 < len(block) else 0.0
        before = shared(prompt, block[i - 1][2]) if i else 0.0
        best = max(own, after, before)
        if best < floor:
            yield None
        elif own == best:
            yield 0
        elif best >= 1.5 * own:
            yield 1 if after == best else -1
        else:
            yield None
