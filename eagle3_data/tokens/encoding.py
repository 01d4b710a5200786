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


def known_only(ids: Sequence[int], known: NDArray[np.bool_]) -> NDArray[np.int64]:
    """`ids` as int64, with -1 for every id that no token has. `known`: bool [vocabulary]."""
    try:
        given = np.asarray(ids, dtype=np.int64)
    except OverflowError:
        given = np.array([i if 0 <= i < len(known) else -1 for i in ids], dtype=np.int64)
    inside = (given >= 0) & (given < len(known))
    return np.where(inside & known[np.where(inside, given, 0)], given, -1)


def decode_known(
    ids: Sequence[int], known: NDArray[np.bool_], decode: Callable[[list[int]], str]
) -> str:
    """Decode, with U+FFFD for every id that no token has: padding rows of the embedding, damage.

    Backends skip such ids, or raise.
    """
    if len(ids) == 0:
        return ""
    given = known_only(ids, known)
    if given.min() >= 0:
        return decode(given.tolist())
    out: list[str] = []
    for good, run in groupby(given.tolist(), lambda i: i >= 0):
        part = list(run)
        out.append(decode(part) if good else REPLACEMENT * len(part))
    return "".join(out)


def byte_alphabet() -> dict[int, str]:
    """Byte-level vocabularies spell each byte as one printable character (GPT-2's rule).

    Translation table for `str.translate`: character → chr(byte). Other characters below U+0100
    become U+FFFF, so that Latin-1 can encode exactly the texts that are spelled in the alphabet.
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    rest = [b for b in range(0x100) if b not in printable]
    table = dict.fromkeys(rest, "\uffff")
    table.update({0x100 + n: chr(b) for n, b in enumerate(rest)})
    return table
