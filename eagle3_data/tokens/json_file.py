"""The reference for tokenizer.json: the `tokenizers` library, the one that servers use.

What enters: `ModelFiles`. What leaves: a `Tokenizer`. It promises that `encode` makes no control id
out of text. Two instances do the work, because `encode_special_tokens` is a switch on the instance
and covers only tokens flagged special: in the free-text instance every control token is flagged so,
`<think>` included, which most families leave unflagged.

Which added tokens are control? Some vocabularies keep ordinary text among the added tokens (runs of
spaces in GPT-NeoX, HTML tags in Gemma). A model samples those ids for ordinary text, and a server
that decodes and encodes again meets them again, so free text must give them too. An added token is
control when it is flagged special or is written like a marker (it holds one of `<>[]{}|｜~`) and is
no HTML tag and no whitespace.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from eagle3_data.tokens.encoding import (
    REPLACEMENT,
    byte_alphabet,
    clean,
    decode_known,
    known_only,
    portions,
    ragged,
)
from eagle3_data.tokens.model_files import ModelFiles, OfFiles, TokenizerError
from eagle3_data.tokens.ragged import Ragged

if TYPE_CHECKING:
    import tokenizers

TABLE_FROM = 200_000
"""Tokens to decode from which the table of all spellings pays: 0.3 s to make it with a vocabulary
of 129,000, and the library alone decodes some 600,000 tokens in that time.
"""
WRITTEN_LIKE_A_MARKER = re.compile(r"[<>\[\]{}|｜~]")
HTML_TAG = re.compile(
    r"</?(a|abbr|b|blockquote|body|br|caption|code|col|colgroup|dd|del|div|dl|dt|em|figcaption|"
    r"figure|h[1-6]|head|hr|html|i|img|ins|kbd|li|ol|p|pre|q|samp|small|span|strong|sub|sup|table|"
    r"tbody|td|tfoot|th|thead|title|tr|u|ul|var)/?>"
)


def is_control(text: str, special: bool) -> bool:
    """Whether an added token is a control marker, not ordinary text (see the module's page)."""
    if special:
        return True
    if text.isspace() or HTML_TAG.fullmatch(text):
        return False
    return WRITTEN_LIKE_A_MARKER.search(text) is not None


@dataclass(frozen=True)
class JsonTokenizer(OfFiles):
    """A tokenizer.json behind the `Tokenizer` interface. Safe for threads: after opening only what
    is kept for speed changes, and two threads that make it at once make the same.

    `added`: text → id; `special`: ids flagged special in the file; `control`: texts that `encode`
    never turns into their id.
    """

    files: ModelFiles
    free: tokenizers.Tokenizer = field(repr=False)
    added: Mapping[str, int] = field(repr=False)
    special: frozenset[int] = field(repr=False)
    control: tuple[str, ...] = field(repr=False)
    vocab_size: int
    note: str = ""
    backend: str = "tokenizers"
    _decoded: list[int] = field(default_factory=lambda: [0], repr=False, compare=False)
    """Tokens decoded so far: one number."""

    @cached_property
    def bos_id(self) -> int | None:
        text = self.files.named.get("bos_token")
        return None if text is None else self.token_id(text)

    @cached_property
    def marked(self) -> tokenizers.Tokenizer:
        """The instance that parses added tokens; opened at its first use, most runs need only one
        of the two.
        """
        return _load(self.files)

    @cached_property
    def known(self) -> NDArray[np.bool_]:
        known = np.zeros(self.vocab_size, dtype=np.bool_)
        known[list(self.free.get_vocab(with_added_tokens=True).values())] = True
        return known

    def encode(self, texts: Sequence[str]) -> Ragged:
        return _encode(self.free, texts)

    def encode_marked(self, texts: Sequence[str]) -> Ragged:
        return _encode(self.marked, texts)

    @cached_property
    def spellings(self) -> list[bytes] | None:
        """Bytes of each id, and U+FFFD last; None when the decoder is not byte-level.

        The library decodes a byte-level token by its alphabet, or as UTF-8 when a character is not
        of it, and joins. A table does the same three to seven times as fast (measured: 3-12 million
        tokens a second against 1-2).
        """
        import tokenizers

        if not isinstance(self.free.decoder, tokenizers.decoders.ByteLevel):
            return None
        alphabet = byte_alphabet()
        unknown = REPLACEMENT.encode()
        table = [unknown] * (self.vocab_size + 1)
        for text, i in self.free.get_vocab(with_added_tokens=True).items():
            try:
                table[i] = text.translate(alphabet).encode("latin-1")
            except UnicodeEncodeError:
                table[i] = text.encode()
        return table

    def decode(self, ids: Sequence[Sequence[int]]) -> list[str]:
        self._decoded[0] += sum(map(len, ids))
        many = self._decoded[0] >= TABLE_FROM
        table = self.spellings if many else None
        known = self.known if many else self._known_of(ids)
        if table is not None:
            spell = table.__getitem__
            return [
                b"".join(map(spell, known_only(s, known).tolist())).decode("utf-8", "replace")
                for s in ids
            ]

        def decode(run: list[int]) -> str:
            return str(self.free.decode(run, skip_special_tokens=False))

        return [decode_known(sequence, known, decode) for sequence in ids]

    def _known_of(self, ids: Sequence[Sequence[int]]) -> NDArray[np.bool_]:
        """`known`, true at most for the tokens of `ids`."""
        asked = {i for sequence in ids for i in sequence if 0 <= i < self.vocab_size}
        found = np.zeros(self.vocab_size, dtype=np.bool_)
        found[[int(i) for i in asked if self.free.id_to_token(int(i)) is not None]] = True
        return found

    def token_id(self, text: str) -> int | None:
        if not text or clean([text]) != [text]:
            return None
        if text in self.added:
            return self.added[text]
        # The second try guards against an entry that is spelled like the text but stands for
        # another (byte alphabets).
        entry = self.free.token_to_id(text)
        if entry is not None and self.decode([[entry]]) == [text]:
            return int(entry)
        ids = self.encode([text]).ids
        return int(ids[0]) if len(ids) == 1 and self.decode([ids.tolist()]) == [text] else None

    def is_special(self, token: int) -> bool:
        return token in self.special


def open_json(files: ModelFiles) -> JsonTokenizer:
    """Open a tokenizer.json. Raises TokenizerError."""
    free = _load(files)
    flags: dict[int, Any] = free.get_added_tokens_decoder()
    added = {str(t.content): i for i, t in flags.items()}
    # Read before the next call, which sets the flag on the very objects it is given.
    special = frozenset(i for i, t in flags.items() if t.special)
    control = [t for t in flags.values() if is_control(t.content, t.special)]
    free.add_special_tokens([t for t in control if not t.special])
    free.encode_special_tokens = True
    vocab_size = max(free.get_vocab_size(with_added_tokens=True), max(flags, default=-1) + 1)
    opened = JsonTokenizer(
        files=files,
        free=free,
        added=added,
        special=special,
        control=tuple(t.content for t in control),
        vocab_size=vocab_size,
    )
    leaks = _leaks(opened)
    if leaks:
        note = (
            f"{files.vocabulary}: free text still becomes a control id for {len(leaks)} markers "
            f"({', '.join(map(repr, leaks[:3]))})"
        )
        return replace(opened, note=note)
    return opened


def _leaks(opened: JsonTokenizer) -> list[str]:
    """Control texts that free text still turns into their id: the promise is checked at every
    opening, not assumed.
    """
    found = opened.encode(opened.control)
    return [text for i, text in enumerate(opened.control) if opened.added[text] in found[i]]


def _load(files: ModelFiles) -> tokenizers.Tokenizer:
    import tokenizers

    try:
        loaded = tokenizers.Tokenizer.from_file(str(files.vocabulary))
    except Exception as error:  # the library raises bare Exception for every fault of the file
        raise TokenizerError(
            f"{files.vocabulary}: not a tokenizer.json that `tokenizers` {tokenizers.__version__} "
            f"can read ({error}): fetch the file again, or update `tokenizers`"
        ) from error
    loaded.no_truncation()
    loaded.no_padding()
    return loaded


def _encode(tokenizer: tokenizers.Tokenizer, texts: Sequence[str]) -> Ragged:
    pieces: list[NDArray[np.int32]] = []
    for portion in portions(texts):
        try:
            found = tokenizer.encode_batch_fast(portion, add_special_tokens=False)
        except TypeError:
            found = tokenizer.encode_batch_fast(clean(portion), add_special_tokens=False)
        pieces.extend(np.asarray(e.ids, dtype=np.int32) for e in found)
    return ragged(pieces)
