"""The control tokens of one profile in one tokenizer: which texts are one id, and where they stand
in a text.

What enters: a profile and a tokenizer. What leaves: a `Markers` table.
It promises that an id stated by the profile is the id of the tokenizer (else `MarkerMismatch`), and
that a marker which is not one token here (granite's English phrases, hunyuan's tags) is treated as
plain text everywhere.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from eagle3_data.profiles.profile import Marker, Profile
    from eagle3_data.tokens.tokenizer import Tokenizer

Stream = tuple[int | str, ...]
"""A token sequence before encoding: an int is one control id, a str is free text that is encoded by
itself.

Two strings never stand side by side, because a real tokenizer would merge across the seam.
"""


class MarkerMismatch(ValueError):
    """The profile states an id for a marker that the tokenizer does not give it."""


@dataclass(frozen=True, slots=True)
class Markers:
    """`ids`: marker text → id, longest text first. `ends`: end-of-turn ids, the usual one first."""

    ids: dict[str, int]
    pattern: re.Pattern[str] | None
    open: int | None
    close: int | None
    ends: tuple[int, ...]
    stops: frozenset[int]
    think_texts: tuple[str, ...]

    def split(self, text: str) -> Stream:
        """`text` with every spelled marker read as its control id."""
        if self.pattern is None:
            return (text,) if text else ()
        return tuple(self.ids.get(piece, piece) for piece in self.pattern.split(text) if piece)

    def spelled(self, text: str) -> bool:
        """Whether `text` spells a marker."""
        return self.pattern is not None and self.pattern.search(text) is not None


def resolve(profile: Profile, tokenizer: Tokenizer) -> Markers:
    """Look every marker of `profile` up in `tokenizer`. Raises MarkerMismatch."""
    found: dict[str, int] = {}
    for marker in profile.markers:
        token = tokenizer.token_id(marker.text)
        if marker.id is not None and token != marker.id:
            has = "does not have it as one token" if token is None else f"has it as {token}"
            raise MarkerMismatch(
                f"profile {profile.name} states that {marker.text!r} is id {marker.id}, but the "
                f"tokenizer {tokenizer.path} {has}: give the tokenizer of this model, or another "
                "profile"
            )
        if token is not None:
            found[marker.text] = token
    # Generic profiles know no end of turn: there it is the tokenizer's own end token.
    ends = _known(profile.end_of_turn, found)
    if not profile.end_of_turn:
        eos = tokenizer.template_globals.get("eos_token", "")
        token = tokenizer.token_id(eos) if eos else None
        if token is not None:
            found[eos], ends = token, (token,)
    ids = {text: found[text] for text in sorted(found, key=len, reverse=True)}
    think = tuple(m.text for m in (profile.think_open, profile.think_close) if m is not None)
    return Markers(
        ids=ids,
        pattern=re.compile("(" + "|".join(map(re.escape, ids)) + ")") if ids else None,
        open=_id(profile.think_open, found),
        close=_id(profile.think_close, found),
        ends=ends,
        stops=frozenset(ends) | frozenset(_known(profile.stop, found)),
        think_texts=tuple(text for text in think if text in found),
    )


def _id(marker: Marker | None, found: dict[str, int]) -> int | None:
    return None if marker is None else found.get(marker.text)


def _known(markers: tuple[Marker, ...], found: dict[str, int]) -> tuple[int, ...]:
    return tuple(found[m.text] for m in markers if m.text in found)
