"""Rank files: Moonshot's tiktoken.model (Kimi) and bare .tiktoken files, read by the `tiktoken`
library.

What enters: a rank file, its split pattern and its control tokens. What leaves: a `Tokenizer`. It
promises the ids of Kimi's own tokenizer class without running it: 256 slots follow the base ranks,
a slot that tokenizer_config.json does not name is called `<|reserved_token_{id}|>`, and text is cut
as that class cuts it before it is encoded.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from eagle3_data.tokens.encoding import clean, decode_known, ragged
from eagle3_data.tokens.model_files import (
    CONFIG,
    ModelFiles,
    OfFiles,
    TokenizerError,
    find,
    text_of,
)
from eagle3_data.tokens.ragged import Ragged

if TYPE_CHECKING:
    import tiktoken

SLOTS = 256
"""Slots after the base ranks in Moonshot's vocabularies: 163584 + 256 = 163840."""

CUT_CHARS = 400_000
CUT_RUN = 25_000
"""Moonshot's class hands tiktoken at most so many characters, and at most so many (non-)whitespace
characters in a row.
"""

_UPPER, _LOWER = r"\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}", r"\p{Ll}\p{Lm}\p{Lo}\p{M}"
_NOT_HAN, _LEAD, _CLITIC = r"&&[^\p{Han}]", r"[^\r\n\p{L}\p{N}]?", r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
MOONSHOT_PATTERN = "|".join(
    (
        r"[\p{Han}]+",
        f"{_LEAD}[{_UPPER}{_NOT_HAN}]*[{_LOWER}{_NOT_HAN}]+{_CLITIC}",
        f"{_LEAD}[{_UPPER}{_NOT_HAN}]+[{_LOWER}{_NOT_HAN}]*{_CLITIC}",
        r"\p{N}{1,3}",
        r" ?[^\s\p{L}\p{N}]+[\r\n]*",
        r"\s*[\r\n]+",
        r"\s+(?!\S)",
        r"\s+",
    )
)
"""How Kimi's tokenizer splits text: Han runs alone, then the words of OpenAI's o200k pattern
without Han.

Read in nine public copies and ports of `tokenization_kimi.py` (Kimi-Linear, K2.6 and K3 among
them), all alike.
"""

# Anchored at the start of a run: unanchored, each character of a run just under the limit starts a
# try of its own.
_LONG_RUN = re.compile(rf"(?<!\s)\s{{{CUT_RUN + 1},}}|(?<!\S)\S{{{CUT_RUN + 1},}}")


def cut(text: str) -> Iterator[str]:
    """The pieces that Moonshot's class encodes one by one. Their seams are token boundaries, so
    they can't be left out.
    """
    if len(text) <= CUT_RUN:
        yield text
        return
    for at in range(0, len(text), CUT_CHARS):
        chunk = text[at : at + CUT_CHARS]
        start = 0
        for run in _LONG_RUN.finditer(chunk):
            for end in range(run.start() + CUT_RUN, run.end(), CUT_RUN):
                yield chunk[start:end]
                start = end
        yield chunk[start:]


@dataclass(frozen=True)
class RanksTokenizer(OfFiles):
    """A rank file behind the `Tokenizer` interface. `slots`: control text → id; all of them are
    parsed in a rendered prompt.
    """

    files: ModelFiles
    ranks: Mapping[bytes, int] = field(repr=False)
    pattern: str = field(repr=False)
    slots: Mapping[str, int] = field(repr=False)
    special: frozenset[int] = field(repr=False)
    note: str = ""
    backend: str = "tiktoken"

    @property
    def control(self) -> tuple[str, ...]:
        """Texts that `encode` never turns into their id."""
        return tuple(self.slots)

    @cached_property
    def bos_id(self) -> int | None:
        return self.slots.get(self.files.named.get("bos_token", ""))

    @cached_property
    def vocab_size(self) -> int:
        return max(max(self.ranks.values(), default=-1), max(self.slots.values(), default=-1)) + 1

    @cached_property
    def known(self) -> NDArray[np.bool_]:
        known = np.zeros(self.vocab_size, dtype=np.bool_)
        known[[*self.ranks.values(), *self.slots.values()]] = True
        return known

    @cached_property
    def encoding(self) -> tiktoken.Encoding:
        import tiktoken

        return tiktoken.Encoding(
            self.name,
            pat_str=self.pattern,
            mergeable_ranks=dict(self.ranks),
            special_tokens=dict(self.slots),
        )

    def encode(self, texts: Sequence[str]) -> Ragged:
        return self._encode(texts, set())

    def encode_marked(self, texts: Sequence[str]) -> Ragged:
        return self._encode(texts, set(self.slots))

    def _encode(self, texts: Sequence[str], allowed: set[str]) -> Ragged:
        encode = self.encoding.encode_to_numpy
        out: list[NDArray[np.int32]] = []
        for text in clean(texts):
            found = [encode(p, allowed_special=allowed, disallowed_special=()) for p in cut(text)]
            whole = found[0] if len(found) == 1 else np.concatenate(found)
            out.append(whole.astype(np.int32))
        return ragged(out)

    def decode(self, ids: Sequence[Sequence[int]]) -> list[str]:
        def decode(run: list[int]) -> str:
            return self.encoding.decode(run, errors="replace")

        return [decode_known(sequence, self.known, decode) for sequence in ids]

    def token_id(self, text: str) -> int | None:
        if not text or clean([text]) != [text]:
            return None
        slot = self.slots.get(text)
        return slot if slot is not None else self.ranks.get(text.encode())

    def is_special(self, token: int) -> bool:
        return token in self.special


def open_moonshot(files: ModelFiles) -> RanksTokenizer:
    """Open the tiktoken.model of a Kimi model, with the slot names of its tokenizer_config.json.
    Raises TokenizerError.
    """
    if files.config.get("tokenizer_class") != "TikTokenTokenizer":
        raise TokenizerError(
            f"{files.vocabulary}: a rank file holds neither its split pattern nor its control "
            f"tokens, and {CONFIG} beside it does not name TikTokenTokenizer (Kimi), the only "
            "family whose pattern is known: give a tokenizer.json instead"
        )
    ranks = read_ranks(files.vocabulary)
    named, flagged = _slots(files.config)
    base = max(ranks.values()) + 1
    slots = {named.get(i, f"<|reserved_token_{i}|>"): i for i in range(base, base + SLOTS)}
    flagged |= {slots[t] for t in files.named.values() if t in slots}
    flagged |= {
        slots[t] for t in _texts(files.config.get("additional_special_tokens")) if t in slots
    }
    return RanksTokenizer(files, ranks, MOONSHOT_PATTERN, slots, frozenset(flagged))


def open_ranks(
    path: str | Path, *, pattern: str, special_tokens: Mapping[str, int]
) -> RanksTokenizer:
    """Open a bare .tiktoken file whose pattern and control tokens the caller knows. Raises
    TokenizerError.
    """
    files = find(path)
    ranks = read_ranks(files.vocabulary)
    return RanksTokenizer(files, ranks, pattern, special_tokens, frozenset(special_tokens.values()))


def read_ranks(file: Path) -> dict[bytes, int]:
    """Read `base64 rank` lines. Raises TokenizerError with the line, or when `tiktoken` is not
    installed.
    """
    try:
        import tiktoken  # noqa: F401
    except ImportError as error:
        raise TokenizerError(
            f"{file}: rank files need the `tiktoken` extra: pip install '.[tiktoken]'"
        ) from error
    ranks: dict[bytes, int] = {}
    for number, line in enumerate(file.read_bytes().splitlines(), 1):
        if not line:
            continue
        try:
            token, rank = line.split()
            ranks[base64.b64decode(token, validate=True)] = int(rank)
        except (ValueError, binascii.Error) as error:
            raise TokenizerError(
                f"{file}:{number}: not a `base64 rank` line ({error}): fetch the file again"
            ) from error
    if not ranks:
        raise TokenizerError(f"{file}: holds no ranks: fetch the file again")
    return ranks


def _slots(config: Mapping[str, Any]) -> tuple[dict[int, str], set[int]]:
    """Names of the slots, and those flagged special, from `added_tokens_decoder`."""
    named: dict[int, str] = {}
    flagged: set[int] = set()
    table = config.get("added_tokens_decoder")
    for key, entry in (table if isinstance(table, Mapping) else {}).items():
        text = text_of(entry)
        if text is not None and str(key).isdecimal():
            named[int(key)] = text
            if isinstance(entry, Mapping) and entry.get("special") is True:
                flagged.add(int(key))
    return named, flagged


def _texts(value: object) -> list[str]:
    return [t for t in map(text_of, value if isinstance(value, list) else ()) if t is not None]
