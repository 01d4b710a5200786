"""One completion and its inverse: parts of a turn → sampled ids, sampled ids → parts of a turn.

What enters: the texts of a turn, or its ids. What leaves: the other one.
It promises `split(build(parts)) == parts` for text that decodes as it was encoded, and
`build(split(ids)) == ids` for ids that are the tokenizer's own reading of their text. Whitespace
around markers belongs to the texts and is never added.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from eagle3_data.tokens.grammar import Grammar, Slot, grammar, write
from eagle3_data.tokens.markers import Stream, resolve
from eagle3_data.tokens.spans import Cutter

if TYPE_CHECKING:
    from eagle3_data.profiles.profile import Profile
    from eagle3_data.tokens.tokenizer import Tokenizer

Ids = NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class Parts:
    """The texts of one turn. None: never begun; "": begun and empty.

    With thinking on, `content=None` is a thought that was not closed, and `content=""` a closed one
    with nothing after.
    `tools` is the whole tool section as text, its markers written out.
    """

    reasoning: str | None
    content: str | None
    tools: str | None = None
    ended: bool = True


class Turn:
    """Builds and splits completions of one profile with one tokenizer. Raises MarkerMismatch
    when they do not fit.
    """

    def __init__(self, profile: Profile, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self.grammar: Grammar = grammar(profile, resolve(profile, tokenizer))
        self._cutter = Cutter(self.grammar, tokenizer)

    def stream(self, parts: Parts, *, thinking: bool, end_id: int | None = None) -> Stream:
        """The token stream of `parts` before encoding. `end_id`: another end of turn than the
        profile's usual one.

        Raises ValueError for parts that this grammar has no way to write.
        """
        g = self.grammar
        forms = g.on if thinking else g.off
        fields: dict[Slot, Stream] = {
            Slot.REASONING: (parts.reasoning,) if parts.reasoning else (),
            Slot.CONTENT: (parts.content,) if parts.content else (),
            Slot.TOOLS: g.markers.split(parts.tools) if parts.tools else (),
        }
        if not (thinking and forms.thought):
            if parts.reasoning is not None:
                raise ValueError("a turn without thinking holds no reasoning")
            way = forms.full
        elif parts.reasoning is None:
            if not forms.lead:
                raise ValueError(
                    "the prompt opens the thought: a turn begins with reasoning, empty or not"
                )
            way = forms.bare
        elif parts.content is None:
            way = forms.implicit if parts.tools else forms.thought
        else:
            way = forms.full
        end = None
        if parts.ended:
            end = end_id if end_id is not None else next(iter(g.markers.ends), None)
            if end is None:
                raise ValueError("neither the profile nor the tokenizer knows an end of turn")
            if way is not forms.thought and way is not forms.implicit:
                way = (*way, *forms.tail)
        return write(way, fields, end)

    def build(self, parts: Parts, *, thinking: bool, end_id: int | None = None) -> Ids:
        """The ids of `parts`, int32 [n]. Markers go in by id; text that spells a marker stays
        text.
        """
        stream = self.stream(parts, thinking=thinking, end_id=end_id)
        texts = [piece for piece in stream if isinstance(piece, str)]
        ragged = self._tokenizer.encode(texts)
        encoded = iter(range(len(texts)))
        pieces = [
            ragged[next(encoded)] if isinstance(piece, str) else np.array([piece], dtype=np.int32)
            for piece in stream
        ]
        return np.concatenate(pieces).astype(np.int32) if pieces else np.empty(0, dtype=np.int32)

    def split(self, ids: Ids, *, thinking: bool) -> Parts:
        """The parts of sampled ids. A control id inside a text is written out there."""
        cut = self._cutter.cut(ids, self._cutter.positions(ids).tolist(), thinking)
        ranges = [cut.reasoning, cut.content, cut.tools]
        texts = self._tokenizer.decode([ids[slice(*r)].tolist() for r in ranges if r is not None])
        found = iter(texts)
        reasoning, content, tools = (None if r is None else next(found) for r in ranges)
        return Parts(reasoning, content, tools, cut.ended)


def build_completion(
    parts: Parts, profile: Profile, tokenizer: Tokenizer, *, thinking_on: bool
) -> Ids:
    """`Turn.build` for one turn."""
    return Turn(profile, tokenizer).build(parts, thinking=thinking_on)


def split_completion(ids: Ids, profile: Profile, tokenizer: Tokenizer, thinking_on: bool) -> Parts:
    """`Turn.split` for one turn."""
    return Turn(profile, tokenizer).split(ids, thinking=thinking_on)
