"""What one answer looks like: where its thought went, and whether the model closed it.

What enters: an answer and the markers of the family. What leaves: a `Look`. It promises to tell
what the text shows apart from what the ids prove: without ids nothing is proven.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from eagle3_data.audit.markers import THINK_PAIRS
from eagle3_data.capture.probe_answers import Answer
from eagle3_data.records.ends import CUT_BY_LENGTH

if TYPE_CHECKING:
    from eagle3_data.profiles.profile import Profile
    from eagle3_data.tokens.tokenizer import Tokenizer


TAIL = 8
"""Tokens at the end of a prompt that may open or close a thought."""


WHOLE = 16
"""Characters from which a thought that stands in the content, too, is no coincidence."""


class Place(StrEnum):
    """Where the text of an answer stands."""

    SPLIT = "thought and answer apart"
    BOTH = "the thought in both fields"
    THOUGHT_ONLY = "all of it in the thought"
    MARKED_CONTENT = "markers in content, no thought"
    MARKED_THOUGHT = "closing marker inside the thought"
    PLAIN = "content without thought or markers"
    EMPTY = "nothing"


PARTED = (Place.SPLIT, Place.BOTH, Place.MARKED_CONTENT, Place.MARKED_THOUGHT)
"""Such an answer shows what the server does with a closed thought."""


@dataclass(frozen=True, slots=True)
class Marks:
    """The think markers as text, and as ids where a tokenizer has them as one token."""

    opens: tuple[str, ...]
    closes: tuple[str, ...]
    open_id: int | None = None
    close_id: int | None = None


@dataclass(frozen=True, slots=True)
class Look:
    """`closed`: whether the model sampled the closing marker with text after it, None without ids.
    `opened`: whether the prompt ended inside a thought (True) or behind one (False), None where it
    ends otherwise or is not told. `stray`: a marker that the parser left in the content of a split
    answer.
    """

    answer: Answer
    place: Place
    ended: bool
    cut: bool
    closed: bool | None
    opened: bool | None
    stray: bool


def marks(profile: Profile, tokenizer: Tokenizer | None) -> Marks:
    """The markers of the family; of all families where the profile knows none."""
    if profile.think_open is None and profile.think_close is None:
        # "<|end|>" and such close other things too
        pairs = [pair for pair in THINK_PAIRS if "think" in pair[1].lower()]
        return Marks(tuple(o for o, _ in pairs), tuple(c for _, c in pairs))
    opening, closing = profile.think_open, profile.think_close

    def token(text: str) -> int | None:
        return None if tokenizer is None else tokenizer.token_id(text)

    return Marks(
        () if opening is None else (opening.text,),
        () if closing is None else (closing.text,),
        None if opening is None else token(opening.text),
        None if closing is None else token(closing.text),
    )


def look(answer: Answer, known: Marks) -> Look:
    """Classify one answer."""
    content, thought = answer.content, answer.reasoning
    in_content = any(text in content for text in (*known.opens, *known.closes))
    in_thought = any(text in thought for text in known.closes)
    if thought.strip():
        place = Place.SPLIT if content.strip() else Place.THOUGHT_ONLY
        if in_thought:
            place = Place.MARKED_THOUGHT
        elif len(thought.strip()) >= WHOLE and thought.strip() in content:
            place = Place.BOTH
    elif in_content:
        place = Place.MARKED_CONTENT
    else:
        place = Place.PLAIN if content.strip() else Place.EMPTY
    return Look(
        answer,
        place,
        ended=answer.finish == "stop",
        cut=answer.finish in CUT_BY_LENGTH,
        closed=_closed(answer.completion_ids, known),
        opened=_opened(answer, known),
        stray=in_content and place is not Place.MARKED_CONTENT,
    )


def _closed(ids: Sequence[int] | None, known: Marks) -> bool | None:
    if ids is None or known.close_id is None:
        return None
    # one id after it may be the end of turn
    return known.close_id in ids[:-2]


def _opened(answer: Answer, known: Marks) -> bool | None:
    ids = answer.prompt_ids
    if ids is not None:
        for token in reversed(ids[-TAIL:]):
            if token in (known.open_id, known.close_id):
                return token == known.open_id
        return None
    at = [
        max((answer.prompt_text.rfind(text) for text in side), default=-1)
        for side in (known.opens, known.closes)
    ]
    if max(at) < len(answer.prompt_text) - 4 * TAIL or at[0] == at[1]:
        return None
    return at[0] > at[1]


def decided(looks: Sequence[Look], *, expected: bool) -> bool:
    """Whether the answers show where thought and answer part, so that no more need be asked."""
    for one in looks:
        if one.closed or one.place in PARTED:
            return True
    plain = sum(one.place is Place.PLAIN and one.ended for one in looks)
    thoughts = sum(one.place is Place.THOUGHT_ONLY for one in looks)
    return not thoughts and plain >= (6 if expected else 3)
