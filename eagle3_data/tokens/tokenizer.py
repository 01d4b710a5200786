"""One small interface over the tokenizers of all families: tokenizer.json, tiktoken ranks, and a
fast twin of both.

What enters: a path. What leaves: a `Tokenizer`. It promises that free text never becomes a control
id (a quoted `</think>` stays ordinary text), that a rendered prompt is read as a server reads it,
and that the fast twin is used only after it gave the same ids as the reference on texts of the very
file at hand.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

from eagle3_data.tokens.model_files import TokenizerError, Vocabulary, find
from eagle3_data.tokens.ragged import Ragged

__all__ = [
    "FAST_FROM_BYTES",
    "Tokenizer",
    "TokenizerError",
    "faster",
    "open_tokenizer",
    "worth_faster",
]

FAST_FROM_BYTES = 1_000_000
"""Text from which the fast twin pays. Measured with DeepSeek's vocabulary: fastokens loads in 1.4 s
and encodes 130-220 MB/s, `tokenizers` loads in 0.3 s and encodes 1.6 MB/s, so the two meet at about
1.8 MB (one thread) and earlier for small vocabularies.
"""


class Tokenizer(Protocol):
    """What the token room needs of a tokenizer. All ids are int32, all texts Python strings."""

    @property
    def name(self) -> str:
        """Name for people: the directory's name."""

    @property
    def path(self) -> str:
        """As the caller gave it."""

    @property
    def fingerprint(self) -> str:
        """sha256 (hex) over the vocabulary file and tokenizer_config.json."""

    @property
    def vocab_size(self) -> int:
        """One more than the largest id a token has."""

    @property
    def backend(self) -> str:
        """`tokenizers`, `tiktoken` or `fastokens`."""

    @property
    def note(self) -> str:
        """What the user must be told about this tokenizer, "" when nothing."""

    @property
    def bos_id(self) -> int | None:
        """Id of the configured bos_token."""

    @property
    def chat_template(self) -> str | None:
        """The chat template that lies beside the vocabulary (Jinja source)."""

    @property
    def template_globals(self) -> Mapping[str, str]:
        """bos_token, eos_token, unk_token, pad_token as text, those that are set."""

    def encode(self, texts: Sequence[str]) -> Ragged:
        """Free text: no control marker is parsed, no BOS is added."""

    def encode_marked(self, texts: Sequence[str]) -> Ragged:
        """A rendered prompt: added tokens are parsed as a server parses them, no BOS is added."""

    def decode(self, ids: Sequence[Sequence[int]]) -> list[str]:
        """Text of each sequence. Nothing is skipped; bad UTF-8 and ids that no token has become
        U+FFFD.
        """

    def token_id(self, text: str) -> int | None:
        """The one id of `text` (an added token, or a whole vocabulary entry), else None."""

    def is_special(self, token: int) -> bool:
        """Whether the tokenizer's files flag this id as special (a server then hides it from the
        text).
        """


def open_tokenizer(path: str | Path) -> Tokenizer:
    """Open the reference tokenizer at `path`: a directory, a tokenizer.json or a tiktoken.model.
    Raises TokenizerError.
    """
    files = find(path)
    if files.kind is Vocabulary.RANKS:
        from eagle3_data.tokens.tiktoken_file import open_moonshot

        return open_moonshot(files)
    from eagle3_data.tokens.json_file import open_json

    return open_json(files)


def worth_faster(text_bytes: int) -> bool:
    """Whether so much text is worth the load time of the fast twin."""
    return text_bytes >= FAST_FROM_BYTES


def faster(reference: Tokenizer, sample: Sequence[str], prompts: Sequence[str] = ()) -> Tokenizer:
    """The fast twin of `reference` if it gives the same ids on `sample` (free and marked), else
    `reference` with a note.

    `sample`: some texts of the file at hand, reasoning and content alike; `prompts`: some rendered
    prompts, compared as marked text. A few dozen are enough.
    """
    from eagle3_data.tokens.fast import twin

    return twin(reference, sample, prompts)
