"""Which profile a file is read with.

What enters: the user's wish, the model names of the records, some of their texts. What leaves: a
`Choice`, with one sentence that says why. It promises an order that can be told in that sentence:
the wish, else the model name, else a marker that only one family has, else `generic`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from eagle3_data.profiles.load import available, load
from eagle3_data.profiles.profile import Profile

GENERIC = "generic"

OWN_MARKER_SHARE = 0.1
"""Share of the sampled texts that must hold a marker which only one family has. One text that talks
about another family's markers must not decide for a whole file; a capture without a reasoning
parser shows them in nearly every text."""


@dataclass(frozen=True, slots=True)
class Choice:
    """`why`: one sentence for the report. `note`: what must be told loudly, "" when nothing.
    `misfit`: the profile that the data asks for and the tokenizer does not fit, "" when none.
    """

    profile: Profile
    why: str
    note: str = ""
    misfit: str = ""


def choose(option: str | None, models: Iterable[str | None], texts: Sequence[str] = ()) -> Choice:
    """Choose the profile of a file. Raises ProfileError when `option` names none.

    `option`: `--profile` (a name or a .toml file). `models`: the model names of the records, each
    row's or the distinct ones. `texts`: some answers as stored, contents and reasoning.
    """
    if option is not None:
        return Choice(load(option), f"asked for with --profile {option}")
    return _by_model(models) or _by_marker(texts) or _fallback(models)


def match(model: str) -> Profile | None:
    """The profile whose longest pattern fits `model`: the whole name first, then its parts from
    the last to the first (served names are often paths, or lie in a hub cache)."""
    parts = [model, *_parts(model)]
    for part in parts:
        fits = [
            (len(pattern), profile.name, profile)
            for profile in available()
            for pattern in profile.models
            if fnmatchcase(part.lower(), pattern.lower())
        ]
        if fits:
            return max(fits, key=lambda fit: fit[:2])[2]
    return None


def _parts(model: str) -> list[str]:
    parts = model.replace("\\", "/").replace("--", "/").split("/")
    return [part for part in reversed(parts) if part]


def _by_model(models: Iterable[str | None]) -> Choice | None:
    counted = Counter(name for name in models if name)
    found = {name: match(name) for name in counted}
    votes: Counter[str] = Counter()
    for name, profile in found.items():
        if profile is not None:
            votes[profile.name] += counted[name]
    if not votes:
        return None
    winner = max(votes, key=lambda name: (votes[name], name))
    name, profile = next((n, p) for n, p in found.items() if p is not None and p.name == winner)
    why = f"the records name the model {name}"
    others = [n for n, p in found.items() if p is None or p.name != winner]
    if others:
        why += f" (and {len(others)} that it does not fit, {others[0]} among them)"
    return Choice(profile, why)


def _by_marker(texts: Sequence[str]) -> Choice | None:
    owners: dict[str, list[Profile]] = {}
    for profile in available():
        for text in _grammar_markers(profile):
            owners.setdefault(text, []).append(profile)
    own = {text: who[0] for text, who in owners.items() if len(who) == 1}
    seen: Counter[str] = Counter()
    example: dict[str, str] = {}
    for text in texts:
        for marker, profile in own.items():
            if marker in text:
                seen[profile.name] += 1
                example.setdefault(profile.name, marker)
                break
    if len(seen) != 1:
        return None
    ((name, count),) = seen.items()
    if count < OWN_MARKER_SHARE * len(texts):
        return None
    return Choice(
        load(name), f"no model name fits, and {example[name]} is a marker that only {name} has"
    )


def _grammar_markers(profile: Profile) -> Iterator[str]:
    """Markers of thought and tools. Ends of turn are left out: `</s>` is also an HTML tag."""
    tools = profile.tools
    grammar = (profile.completion.thinking_on or "") + profile.completion.thinking_off
    if tools is not None:
        grammar += tools.section_begin + tools.call + tools.section_end
    ends = {marker.text for marker in (*profile.end_of_turn, *profile.stop)}
    yield from (m.text for m in profile.markers if m.text in grammar and m.text not in ends)


def _fallback(models: Iterable[str | None]) -> Choice:
    named = next((name for name in models if name), None)
    reason = "the records name no model" if named is None else f"no profile fits the model {named}"
    return Choice(load(GENERIC), f"{reason}: give --profile to have the family's own checks")
