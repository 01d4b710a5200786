"""Small steps that every tokenizer backend takes: clean texts, portions, the way to Ragged, ids
that no token has.

What enters and leaves: lists of texts, arrays of ids. It promises that no text and no id, however
damaged, makes a backend raise: a lone surrogate becomes U+FFFD before it is encoded, an unknown id
becomes U+FFFD when decoded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import groupby

import numpy as np
from numpy.typing import NDArray

from eagle3_data.tokens.ragged import Ragged

REPLACEMENT = "\ufffd"

PORTION_CHARS = 1_000_000
"""Characters handed to a backend at once: `tokenizers` keeps about 100 bytes a token alive until
the portion is read.
"""


def clean(texts: Sequence[str]) -> list[str]:
    """Lone surrogates (JSON may spell them) become U+FFFD, pairs are joined: no Rust string can
    hold them.
    """
    return [
        t if t.isascii() else t.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
        for t in texts
    ]


def portions(texts: Sequence[str]) -> Iterator[list[str]]:
    """`texts` in order, in lists of about PORTION_CHARS."""
    portion: list[str] = []
    size = 0
    for text in texts:
        portion.append(text)
        size += len(text)
        if size >= PORTION_CHARS:
            yield portion
            portion, size = [], 0
    if portion:
        yield portion


def ragged(pieces: Sequence[NDArray[np.int32]]) -> Ragged:
    """One array for many."""
    offsets = np.zeros(len(pieces) + 1, dtype=np.int64)
    np.cumsum([len(p) for p in pieces], out=offsets[1:])
    ids = np.concatenate(pieces).astype(np.int32, copy=False) if pieces else np.empty(0, np.int32)
    return Ragged(ids, offsets)


def decode_known(
    ids: Sequence[int], known: NDArray[np.bool_], decode: Callable[[list[int]], str]
) -> str:
    """Decode, with U+FFFD for every id that no token has (padding rows of the embedding, damaged
    captures).

    `known`: bool [vocabulary]. Backends skip such ids, or raise.
    """
    if not len(ids):
        return ""
    whole = [int(i) for i in ids]
    if min(whole) >= 0 and max(whole) < len(known) and known[whole].all():
        return decode(whole)
    out: list[str] = []
    for good, run in groupby(whole, lambda i: 0 <= i < len(known) and bool(known[i])):
        part = list(run)
        out.append(decode(part) if good else REPLACEMENT * len(part))
    return "".join(out)
