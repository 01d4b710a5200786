"""Edges of a text where a server may have removed whitespace without changing the count.

What enters: answers whose stream met the count. What leaves: yes or no for each. It promises that
only the ends of a text are encoded: a vocabulary often has `.`, `.\\n` and `.\\n\\n` as one token
each (Kimi's, Qwen's, DeepSeek's), so that equal counts say nothing about what ended the thought.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from eagle3_data.tokens.candidates import LINE_ENDS, Answer
from eagle3_data.tokens.grammar import Grammar, Place

if TYPE_CHECKING:
    from eagle3_data.tokens.tokenizer import Tokenizer

REACH = 256
"""Characters of a text that are encoded. No token and no piece that a tokenizer cuts text into
before it merges reaches so far, save in runs of one kind of character."""

LEFT = frozenset({Place.REASONING_LEFT, Place.CONTENT_LEFT})
REASONING = frozenset({Place.REASONING_LEFT, Place.REASONING_RIGHT})


def loose(answers: Sequence[Answer], grammar: Grammar, tokenizer: Tokenizer) -> list[bool]:
    """Whether some whitespace that this server strips fits an edge without one token more."""
    wanted = [list(_edges(answer, grammar)) for answer in answers]
    texts = list(dict.fromkeys(t for row in wanted for bare, filled in row for t in (bare, filled)))
    if not texts:
        return [False] * len(answers)
    lengths = dict(zip(texts, tokenizer.encode(texts).lengths.tolist(), strict=True))
    return [any(lengths[bare] == lengths[filled] for bare, filled in row) for row in wanted]


def _edges(answer: Answer, grammar: Grammar) -> Iterator[tuple[str, str]]:
    """(end of a text, the same with whitespace) at each edge that this server strips."""
    spaces = (grammar.on if answer.thinking else grammar.off).spaces
    for place in sorted(answer.stripped):
        text = answer.reasoning if place in REASONING else answer.content
        bare = text[:REACH] if place in LEFT else text[-REACH:]
        if not bare or bare[0 if place in LEFT else -1].isspace():
            continue  # what is there was not stripped
        for space in {*LINE_ENDS, spaces.get(place, LINE_ENDS[0])}:
            yield bare, space + bare if place in LEFT else bare + space
