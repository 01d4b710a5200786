"""The script that prompt, thought and answer are written in, so that a switch of language shows.

What enters: a frame with `user_text`, `system_text`, `reasoning`, `content`. What leaves:
`LANGUAGE_COLUMNS`.
It promises that a row whose three texts are nearly all ASCII costs three length counts, and that
the others are named
by the first 600 bytes of each text, on flat byte arrays.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, cast

import polars as pl

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

LANGUAGE_COLUMNS: dict[str, pl.DataType] = {
    # a name of SCRIPTS; null when all three texts of the row are nearly ASCII
    "prompt_script": pl.String(),
    "reasoning_script": pl.String(),
    "content_script": pl.String(),
    "language_asked": pl.Boolean(),  # the prompt names a language or asks for a translation
}
SCRIPTS = (
    "none", "latin", "han", "kana", "hangul", "cyrillic", "greek", "hebrew", "arabic",
    "devanagari", "thai",
)  # fmt: skip

_TEXTS = {"prompt": "user_text", "reasoning": "reasoning", "content": "content"}
_HEAD = 600
_FOREIGN = 0.1
"""Bytes beyond one a character over all bytes: English with curly quotes 0.01, French 0.03,
Cyrillic 0.4, Chinese 0.6."""
_LATIN_LETTERS = 3
"""A Latin word has several letters where a Chinese one has one or two: three of them make one
vote."""
_NAMED = (
    "translat", "übersetz", "tradu", "翻译", "翻譯", "翻訳", "перевед", "перевод", "번역",
    " language", "chinese", "mandarin", "japanese", "korean", "russian", "ukrainian", "arabic",
    "hebrew", "hindi", "thai", "greek", "in english", "into english", "英文", "英语", "英語",
    "中文", "日语", "日本語", "на русском", "на английском", "kanji", "hiragana", "pinyin",
    "cyrillic", "alphabet", "emoji",
)  # fmt: skip


@cache
def _script_of() -> NDArray[np.uint8]:
    """Two bytes of UTF-8 → place in SCRIPTS. A continuation byte in front gives 0, so a character
    votes once."""
    import numpy as np

    table = np.zeros((256, 256), np.uint8)
    place = {name: number for number, name in enumerate(SCRIPTS)}
    for first, last, name in (
        (0x41, 0x5A, "latin"),
        (0x61, 0x7A, "latin"),
        (0xC3, 0xC9, "latin"),
        (0xCE, 0xCF, "greek"),
        (0xD0, 0xD3, "cyrillic"),
        (0xD6, 0xD7, "hebrew"),
        (0xD8, 0xDB, "arabic"),
        (0xE4, 0xE9, "han"),
        (0xEA, 0xED, "hangul"),
    ):
        table[first : last + 1] = place[name]
    table[0xE0, 0xA4:0xA6] = place["devanagari"]
    table[0xE0, 0xB8:0xBA] = place["thai"]
    table[0xE3, 0x81:0x84] = place["kana"]
    table[0xE3, 0x90:] = place["han"]
    return table.reshape(-1)


def languages(frame: pl.DataFrame) -> pl.DataFrame:
    """LANGUAGE_COLUMNS of a frame, one row for one row."""
    mixed = frame.select(
        pl.max_horizontal(_foreign(text).fill_null(0.0) for text in _TEXTS.values()) > _FOREIGN
    ).to_series()
    out: dict[str, pl.Series] = {}
    rows = mixed.arg_true()
    for name, text in _TEXTS.items():
        column = f"{name}_script"
        named = _scripts(frame.select(pl.col(text).gather(rows)).to_series()) if len(rows) else []
        out[column] = pl.Series([None] * frame.height, dtype=pl.String)
        if len(rows):
            out[column] = out[column].scatter(rows, named)
    asked = pl.lit(False)
    if len(rows):
        prompt = pl.concat_str("user_text", "system_text", separator="\n", ignore_nulls=True)
        asked = pl.when(mixed).then(prompt).str.to_lowercase().str.contains_any(list(_NAMED))
    return frame.select(
        *(series.alias(name) for name, series in out.items()),
        (asked.fill_null(False) & (pl.len() > 0)).alias("language_asked"),
    )


def _foreign(text: str) -> pl.Expr:
    """Share of bytes beyond one a character; null for no text."""
    size = pl.col(text).str.len_bytes()
    return pl.when(size > 0).then((size - pl.col(text).str.len_chars()) / size)


def _scripts(texts: pl.Series) -> list[str | None]:
    """The script with the most letters in the head of each text; None for no text."""
    import numpy as np  # here: a tenth of a second, and few small captures need it

    heads = texts.cast(pl.Binary).bin.slice(0, _HEAD).to_list()
    padded = b"".join((head or b"").ljust(_HEAD, b"\0") for head in heads)
    flat = np.frombuffer(padded, np.uint8).reshape(len(heads), _HEAD).astype(np.uint16)
    kinds = _script_of()[(flat[:, :-1] << 8) | flat[:, 1:]]
    votes = np.stack([(kinds == number).sum(axis=1) for number in range(len(SCRIPTS))], axis=1)
    votes[:, 0] = 0
    votes[:, 1] //= _LATIN_LETTERS
    kana, han = SCRIPTS.index("kana"), SCRIPTS.index("han")
    japanese = votes[:, kana] * 10 >= votes[:, han]  # Japanese mixes both: a tenth of kana names it
    votes[:, kana] += np.where(japanese & (votes[:, kana] > 0), votes[:, han], 0)
    best = cast("list[int]", votes.argmax(axis=1).tolist())
    return [
        SCRIPTS[b] if head and votes[i, b] else None
        for i, (b, head) in enumerate(zip(best, heads, strict=True))
    ]
