"""The fast twin of a reference tokenizer: `fastokens`, used only where it is proven on the file at
hand.

What enters: a reference tokenizer and a sample of texts. What leaves: a twin that encodes with
fastokens and asks the reference for the rest, or the reference itself with a note. It promises
never to choose speed over ids: the twin must agree on the sample and on every control marker, as
free text and as a rendered prompt.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from eagle3_data.tokens.encoding import clean
from eagle3_data.tokens.json_file import JsonTokenizer
from eagle3_data.tokens.ragged import Ragged
from eagle3_data.tokens.tiktoken_file import RanksTokenizer, cut

if TYPE_CHECKING:
    import fastokens  # type: ignore[import-untyped]

    from eagle3_data.tokens.tokenizer import Tokenizer

SAMPLE_CHARS = 200_000
"""Characters of the sample that are compared, each text with its share: 0.25 s of `tokenizers` at
its slowest measured speed (1.6 MB/s, twice).
"""

MARKER_PROBES = 256
"""Control markers that are compared; DeepSeek has 1,283, most of them numbered placeholders."""


@dataclass(frozen=True, slots=True)
class FastTokenizer:
    """`reference` with the two encoders replaced. `whole`: control texts flagged special, so one
    switch tells free from marked.
    """

    reference: JsonTokenizer | RanksTokenizer
    whole: fastokens.Tokenizer = field(repr=False)
    backend: str = "fastokens"
    note: str = ""

    def __reduce__(
        self,
    ) -> tuple[Callable[[JsonTokenizer | RanksTokenizer], FastTokenizer], tuple[object]]:
        """Travels to another process as its reference; it was proven in this one."""
        return _proven, (self.reference,)

    @property
    def name(self) -> str:
        return self.reference.name

    @property
    def path(self) -> str:
        return self.reference.path

    @property
    def fingerprint(self) -> str:
        return self.reference.fingerprint

    @property
    def vocab_size(self) -> int:
        return self.reference.vocab_size

    @property
    def bos_id(self) -> int | None:
        return self.reference.bos_id

    @property
    def chat_template(self) -> str | None:
        return self.reference.chat_template

    @property
    def template_globals(self) -> Mapping[str, str]:
        return self.reference.template_globals

    def encode(self, texts: Sequence[str]) -> Ragged:
        return self._encode(texts, free=True)

    def encode_marked(self, texts: Sequence[str]) -> Ragged:
        return self._encode(texts, free=False)

    def decode(self, ids: Sequence[Sequence[int]]) -> list[str]:
        return self.reference.decode(ids)

    def token_id(self, text: str) -> int | None:
        return self.reference.token_id(text)

    def is_special(self, token: int) -> bool:
        return self.reference.is_special(token)

    def _encode(self, texts: Sequence[str], *, free: bool) -> Ragged:
        if isinstance(self.reference, RanksTokenizer):
            return self._encode_cut(texts, free=free)
        try:
            return self._flat(list(texts), free=free)
        except UnicodeEncodeError:
            return self._flat(clean(texts), free=free)

    def _encode_cut(self, texts: Sequence[str], *, free: bool) -> Ragged:
        pieces: list[str] = []
        ends = np.zeros(len(texts) + 1, dtype=np.int64)
        for i, text in enumerate(clean(texts)):
            pieces.extend(cut(text))
            ends[i + 1] = len(pieces)
        flat = self._flat(pieces, free=free)
        return Ragged(flat.ids, flat.offsets[ends])

    def _flat(self, texts: list[str], *, free: bool) -> Ragged:
        ids, offsets = self.whole.encode_batch_flat(texts, split_special_tokens=free)
        return Ragged(np.frombuffer(ids, np.int32), np.frombuffer(offsets, np.int64))


def twin(reference: Tokenizer, sample: Sequence[str], prompts: Sequence[str] = ()) -> Tokenizer:
    """The proven fast twin of `reference`, or `reference` with a note (see `tokenizer.faster`)."""
    if not isinstance(reference, JsonTokenizer | RanksTokenizer):
        return reference
    try:
        fast = _proven(reference)
    except ImportError:
        return _stay(reference, "fastokens is not installed (pip install '.[fast]')")
    except (
        Exception
    ) as error:  # a Rust panic arrives as BaseException and is not meant to be caught
        return _stay(reference, f"fastokens cannot load this vocabulary ({error})")
    texts = [*_capped(sample), *_probes(reference.control)]
    proofs = {"encode": texts, "encode_marked": [*texts, *_capped(prompts)]}
    for way, proof in proofs.items():
        try:
            difference = _difference(getattr(reference, way)(proof), getattr(fast, way)(proof))
        except Exception as error:
            return _stay(reference, f"fastokens fails on a text of this file ({error})")
        if difference:
            return _stay(
                reference,
                f"fastokens gives other ids than {reference.backend} ({way}: {difference})",
            )
    return fast


def _proven(reference: JsonTokenizer | RanksTokenizer) -> FastTokenizer:
    """The twin without its proof."""
    return FastTokenizer(reference, _load(reference), note=reference.note)


def _load(reference: JsonTokenizer | RanksTokenizer) -> fastokens.Tokenizer:
    import fastokens

    if isinstance(reference, RanksTokenizer):
        return fastokens.Tokenizer.from_tiktoken(
            str(reference.files.vocabulary),
            pattern=reference.pattern,
            special_tokens=dict(reference.slots),
        )
    import tokenizers

    whole = fastokens.Tokenizer.from_file(str(reference.files.vocabulary))
    whole.no_truncation()
    whole.no_padding()
    flags = {str(t["content"]): t for t in whole.added_tokens()}
    whole.add_tokens(
        [
            tokenizers.AddedToken(
                text,
                single_word=flags[text]["single_word"],
                lstrip=flags[text]["lstrip"],
                rstrip=flags[text]["rstrip"],
                normalized=flags[text]["normalized"],
                special=True,
            )
            for text in reference.control
            if not flags[text]["special"]
        ]
    )
    return whole


def _capped(sample: Sequence[str]) -> list[str]:
    """The beginning and the end of each text, so that a few long thoughts leave room for the
    others.
    """
    half = SAMPLE_CHARS // max(len(sample), 1) // 2
    return [
        piece
        for text in sample
        for piece in (
            (text,) if len(text) <= 2 * half else (text[:half], text[-half:] if half else "")
        )
    ]


def _probes(control: Sequence[str]) -> list[str]:
    """Each control marker inside a sentence, at its start and twice in a row."""
    step = max(1, len(control) // MARKER_PROBES)
    return [f"{m} a\n\n{m}{m}b {m}" for m in control[::step]]


def _difference(wanted: Ragged, found: Ragged) -> str:
    """Where two encodings of the same texts part, "" when they agree."""
    for i in range(len(wanted)):
        a, b = wanted[i], found[i]
        if not np.array_equal(a, b):
            n = min(len(a), len(b))
            apart = np.flatnonzero(a[:n] != b[:n])
            at = int(apart[0]) if len(apart) else n
            return f"text {i} of the sample, token {at}"
    return ""


def _stay(reference: JsonTokenizer | RanksTokenizer, why: str) -> Tokenizer:
    note = f"{why}: the slower {reference.backend} is used, the ids are the same"
    return replace(reference, note=f"{reference.note}; {note}" if reference.note else note)
