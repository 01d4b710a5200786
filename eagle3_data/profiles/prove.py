"""Proof of a profile against a tokenizer: is each marker one token, and is it the token stated?

What enters: a profile and an open tokenizer. What leaves: one `MarkerProof` a marker, in the
profile's order. It promises to change nothing and to hide nothing: what differs is told with both
ids.
"""

from __future__ import annotations

from collections.abc import Sequence, Sized
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from eagle3_data.profiles.profile import Marker, Profile


class Encoded(Protocol):
    """Token sequences; the first one's length is all that is asked."""

    def __getitem__(self, i: int, /) -> Sized: ...


class Lookup(Protocol):
    """What a proof needs of a `tokens.tokenizer.Tokenizer`: this room knows no tokenizers."""

    def token_id(self, text: str) -> int | None: ...

    def is_special(self, token: int) -> bool: ...

    def encode_marked(self, texts: Sequence[str]) -> Encoded: ...


class ProofStatus(StrEnum):
    """How a marker stands."""

    OK = "ok"
    """The id stated is the id found, and so is the special flag if the profile states one."""
    DIFFERS = "differs"
    """The tokenizer has the marker under another id, or with another special flag."""
    MISSING = "missing"
    """The profile states an id, and the tokenizer does not have the marker as one token."""
    SEVERAL_TOKENS = "several-tokens"
    """No id is stated, and the marker is several tokens here: it is handled as text."""
    UNSTATED = "unstated"
    """No id is stated; the one found is used."""


@dataclass(frozen=True, slots=True)
class MarkerProof:
    """`stated`/`found`: ids. `tokens`: how many tokens the marker is. `special`: the flag found."""

    marker: str
    stated: int | None
    found: int | None
    tokens: int
    special_stated: bool | None
    special: bool | None
    status: ProofStatus

    @property
    def failed(self) -> bool:
        """Whether profile and tokenizer contradict each other."""
        return self.status in (ProofStatus.DIFFERS, ProofStatus.MISSING)

    @property
    def reason(self) -> str:
        """One sentence for people."""
        match self.status:
            case ProofStatus.OK:
                return f"id {self.found}, as stated"
            case ProofStatus.DIFFERS if self.stated is not None and self.stated != self.found:
                return f"the profile states id {self.stated}, the tokenizer has {self.found}"
            case ProofStatus.DIFFERS:
                return (
                    f"id {self.found}, but the profile states special={_flag(self.special_stated)} "
                    f"and the tokenizer has special={_flag(self.special)}"
                )
            case ProofStatus.MISSING:
                return (
                    f"the profile states id {self.stated}, but here it is {self.tokens} tokens of "
                    "ordinary text"
                )
            case ProofStatus.SEVERAL_TOKENS:
                return f"{self.tokens} tokens of ordinary text, handled as text"
            case ProofStatus.UNSTATED:
                return f"id {self.found}, taken from the tokenizer (the profile states none)"


def prove(profile: Profile, tokenizer: Lookup) -> list[MarkerProof]:
    """Look every marker of `profile` up in `tokenizer`."""
    return [_prove(marker, tokenizer) for marker in profile.markers]


def _prove(marker: Marker, tokenizer: Lookup) -> MarkerProof:
    found = tokenizer.token_id(marker.text)
    tokens = 1 if found is not None else len(tokenizer.encode_marked([marker.text])[0])
    special = None if found is None else tokenizer.is_special(found)
    flag_differs = None not in (marker.special, special) and marker.special != special
    if found is None:
        status = ProofStatus.SEVERAL_TOKENS if marker.id is None else ProofStatus.MISSING
    elif marker.id not in (None, found) or flag_differs:
        status = ProofStatus.DIFFERS
    else:
        status = ProofStatus.UNSTATED if marker.id is None else ProofStatus.OK
    return MarkerProof(marker.text, marker.id, found, tokens, marker.special, special, status)


def _flag(value: bool | None) -> str:
    return "?" if value is None else str(value).lower()
