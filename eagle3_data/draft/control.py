"""The control tokens that a drafter must be able to propose, whatever their counts.

What enters: a profile, the facts of shards, a tokenizer where there is one. What leaves: text → id,
and the texts whose id nobody states. It promises only what the model samples: end of turn, think
and tool markers; role and media markers stand in prompts and need no place in a draft vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from eagle3_data.draft.mapping import VocabError
from eagle3_data.profiles.load import ProfileError, fingerprint, load

if TYPE_CHECKING:
    from eagle3_data.profiles.profile import Marker, Profile
    from eagle3_data.shards.schema import ShardFacts
    from eagle3_data.tokens.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class Control:
    """`ids`: marker text → id, in the order of the profile. `unknown`: markers without an id.
    `notes`: what a person must be told about them.
    """

    ids: dict[str, int]
    unknown: tuple[str, ...]
    notes: tuple[str, ...] = ()


def control_tokens(
    facts: ShardFacts, *, profile: str | None = None, tokenizer: Tokenizer | None = None
) -> Control:
    """The control tokens of shards. `profile`: in place of the one that the shards name.

    Raises VocabError when the tokenizer is not the shards' own, or the profile is not to be had.
    """
    if tokenizer is not None and tokenizer.fingerprint != facts.tokenizer_hash:
        raise VocabError(
            f"the shards were made with the tokenizer {facts.tokenizer}"
            f" ({facts.tokenizer_hash[:12]}), {tokenizer.path} is another one"
            f" ({tokenizer.fingerprint[:12]}): pass the one of the capture"
        )
    try:
        known = load(profile or facts.profile)
    except ProfileError as error:
        if profile is not None:
            raise
        raise VocabError(
            f"the shards name the profile {facts.profile!r}, which is not shipped: pass its file"
            " with --profile"
        ) from error
    found = control_of(known, tokenizer)
    notes = [] if fingerprint(known) == facts.profile_hash else [_other_profile(known, facts)]
    if found.unknown:
        notes.append(
            f"no id is known of {', '.join(found.unknown)}: these are in by their counts only;"
            " pass --tokenizer to have them in always"
        )
    ends = {
        f"end of turn {token}": token
        for token in facts.end_of_turn
        if token not in found.ids.values()
    }
    return Control(found.ids | ends, found.unknown, tuple(notes))


def control_of(profile: Profile, tokenizer: Tokenizer | None = None) -> Control:
    """The control tokens of a profile: ids as it states them, the others from the tokenizer.

    A marker that is not one token there is plain text, and no control token.
    """
    ids: dict[str, int] = {}
    unknown: list[str] = []
    for marker in sampled_markers(profile):
        token = tokenizer.token_id(marker.text) if tokenizer is not None else marker.id
        if token is not None:
            ids[marker.text] = token
        elif tokenizer is None:
            unknown.append(marker.text)
    return Control(ids, tuple(unknown))


def sampled_markers(profile: Profile) -> Iterator[Marker]:
    """Markers that the model can sample: those that end a turn, frame a thought, or stand in the
    completion and tool grammar.
    """
    always = {
        marker.text
        for marker in (
            profile.think_open,
            profile.think_close,
            *profile.end_of_turn,
            *profile.stop,
        )
        if marker is not None
    }
    written = [profile.completion.thinking_on or "", profile.completion.thinking_off]
    if profile.tools is not None:
        tools = profile.tools
        written += [tools.call, tools.section_begin, tools.section_end, tools.separator]
    for marker in profile.markers:
        if marker.text in always or any(marker.text in text for text in written):
            yield marker


def _other_profile(profile: Profile, facts: ShardFacts) -> str:
    return (
        f"profile {profile.name} is not word for word the one that made the shards"
        f" ({facts.profile}): check that its markers are the model's"
    )
