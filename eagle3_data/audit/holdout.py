"""Held-out prompts, found again inside other prompts whatever their case, spacing, punctuation or
wrapping.

What enters: the prompts of an evaluation set, as texts (this room opens no files). What leaves: for
each prompt of the
corpus the number of the held-out prompt it contains, or null. It promises that a held-out prompt of
13 words or more is
found by its 13-grams, one of 8 to 12 words as a whole inside a longer text, a shorter one only as
the whole prompt; and
that n-grams that several held-out prompts share (instructions around a question) prove nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import polars as pl
from numpy.typing import NDArray

if TYPE_CHECKING:
    from eagle3_data.audit.thresholds import Thresholds

_WORDS = r"\p{Han}|\p{Hiragana}|\p{Katakana}|[\p{L}\p{N}\p{M}&&[^\p{Han}\p{Hiragana}\p{Katakana}]]+"
"""A word, or one character of a script that writes no spaces."""
_BASE = np.uint64(0x9E3779B97F4A7C15)
_SHARED = 3
"""Held-out prompts that an n-gram may be in before it counts as boilerplate."""


@dataclass(frozen=True, slots=True, eq=False)
class Holdout:
    """Held-out prompts as sorted hashes. `size`: prompts given; `grams[n]`: (sorted hashes, owner
    of each)."""

    size: int
    whole: dict[int, int]
    """Hash of all words → number of the prompt."""
    grams: dict[int, tuple[NDArray[np.uint64], NDArray[np.int64]]]
    totals: NDArray[np.int64]
    """Distinctive n-grams of each prompt."""
    share: float

    @classmethod
    def from_prompts(cls, prompts: Sequence[str], thresholds: Thresholds | None = None) -> Holdout:
        """Index `prompts`. Numbers in `found` are places in this list. Texts without a word are
        never found."""
        if thresholds is None:
            from eagle3_data.audit.thresholds import Thresholds as Defaults

            thresholds = Defaults()
        long, short = thresholds.holdout_words, thresholds.holdout_short_words
        words, lengths, hashes_whole = _words(pl.Series(prompts, dtype=pl.String))
        starts = np.concatenate([[0], np.cumsum(lengths)])
        whole: dict[int, int] = {}
        parts: dict[int, list[tuple[NDArray[np.uint64], int]]] = {}
        totals = np.zeros(len(prompts), np.int64)
        for number, size in enumerate(lengths.tolist()):
            own = words[starts[number] : starts[number + 1]]
            if size:
                whole.setdefault(hashes_whole[number], number)
            if size >= short:
                n = min(size, long)
                parts.setdefault(n, []).append((np.unique(_rolling(own, n)), number))
        grams: dict[int, tuple[NDArray[np.uint64], NDArray[np.int64]]] = {}
        for n, owned in parts.items():
            hashes = np.concatenate([h for h, _ in owned])
            owners = np.concatenate([np.full(len(h), number) for h, number in owned])
            order = np.argsort(hashes, kind="stable")
            hashes, owners = hashes[order], owners[order]
            _, inverse, counts = np.unique(hashes, return_inverse=True, return_counts=True)
            rare = counts[inverse] < _SHARED
            grams[n] = hashes[rare], owners[rare]
            totals += np.bincount(owners[rare], minlength=len(prompts))
        return cls(len(prompts), whole, grams, totals, thresholds.holdout_share)

    def found(self, texts: pl.Series) -> pl.Series:
        """Int32, one a text: the first held-out prompt that it is or contains; null for none."""
        words, lengths, whole = _words(texts)
        ends = np.cumsum(lengths)
        out: list[int | None] = [None] * len(texts)
        hits: list[NDArray[np.int64]] = []
        for n, (hashes, owners) in self.grams.items():
            if len(words) < n or not len(hashes):
                continue
            rolled = _rolling(words, n)
            at = np.arange(len(rolled))
            text = np.searchsorted(ends, at, side="right")
            inside = at + n <= ends[text]
            rolled, text = rolled[inside], text[inside]
            low = np.searchsorted(hashes, rolled, side="left")
            high = np.searchsorted(hashes, rolled, side="right")
            for step in range(_SHARED - 1):  # a hash has fewer than _SHARED owners
                hit = low + step < high
                pairs = np.stack([text[hit], owners[low[hit] + step], rolled[hit].view(np.int64)])
                hits.append(pairs)
        if hits:
            pairs = np.unique(np.concatenate(hits, axis=1), axis=1)  # a gram counts once a text
            both, counts = np.unique(pairs[:2], axis=1, return_counts=True)
            enough = counts >= np.maximum(1, np.ceil(self.share * self.totals[both[1]]))
            for text_no, owner in both[:, enough].T[::-1].tolist():
                out[text_no] = owner
        for number, one in enumerate(whole.to_list()):
            if out[number] is None and lengths[number]:
                out[number] = self.whole.get(one)
        return pl.Series("key_holdout", out, dtype=pl.Int32)


def _words(texts: pl.Series) -> tuple[NDArray[np.uint64], NDArray[np.int64], pl.Series]:
    """Hashes of all words, flat; the number of words of each text; one hash of each text."""
    lists = texts.fill_null("").str.normalize("NFKC").str.to_lowercase().str.extract_all(_WORDS)
    flat = lists.explode(empty_as_null=False, keep_nulls=False)
    lengths = lists.list.len().cast(pl.Int64).to_numpy()
    return flat.hash(seed=0).to_numpy(), lengths, lists.list.join(" ").hash(seed=0)


def _rolling(words: NDArray[np.uint64], n: int) -> NDArray[np.uint64]:
    """Hash of every run of `n` words: uint64 [len(words) - n + 1], wrapping on purpose."""
    total = np.zeros(len(words) - n + 1, np.uint64)
    for k in range(n):
        total = total * _BASE + words[k : k + len(total)]
    return total ^ np.uint64(n)
