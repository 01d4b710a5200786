"""Acceptance: the live engine against the walk on its own ids, and who is to blame.

What enters: what an engine counted, the walks of the drafter as written and with every known fault.
What leaves: a `Judgement`: a verdict, its cause, the facts behind it. It promises one rule: on the
same ids engine and walk agree within 0.03 in acceptance length and 0.02 in each P_k; so what is
low in both is a matter of data or training, and what differs is one of engine or checkpoint.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from eagle3_data.draft.live import Counted, LiveError, between, scrape

if TYPE_CHECKING:
    from eagle3_data.draft.findings import Inspection
    from eagle3_data.draft.paired import Walked
    from eagle3_data.draft.walk import Counts

LENGTH, PLACE = 0.03, 0.02
"""How far engine and walk may lie apart: acceptance length, each P_k."""
TIE = 0.01
"""Two faults whose P lie so close to each other can not be told apart by numbers."""
BETTER = 0.05
"""A changed checkpoint that is accepted so much longer makes the written one wrong."""
BETTER_BY_CONFIG = 0.01
"""The same where the config speaks for the change: on the same ids a rope theta that is not the
target's cost 0.034 of 1.74 (measured, a drafter of minutes' training).
"""
FEW = 200
"""Steps; below, one answer that ended early moves the numbers."""


class Verdict(StrEnum):
    """Who is to blame."""

    AGREE = "engine and checkpoint are right"
    DIFFER = "engine or checkpoint, not data"
    DEAD = "dead engine"
    OFF = "speculation is off"
    INSIDE = "inside the sampling interval"
    OUTSIDE = "outside the sampling interval"


SOUND = frozenset({Verdict.AGREE, Verdict.INSIDE})


@dataclass(frozen=True, slots=True)
class Judgement:
    """`cause`: the fault by name, "" when there is none or none fits; `why`: in words, for people.
    `ranked`: (name, acceptance length, largest distance in P) of each emulation, nearest first.
    """

    verdict: Verdict
    why: str
    cause: str = ""
    facts: tuple[str, ...] = ()
    ranked: tuple[tuple[str, float, float], ...] = ()
    warnings: tuple[str, ...] = ()
    about: Mapping[str, Any] = field(default_factory=dict)

    @property
    def sound(self) -> bool:
        """Nothing speaks against engine and checkpoint."""
        return self.verdict in SOUND

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "verdict": self.verdict.value,
            "sound": self.sound,
            "cause": self.cause or None,
            "why": self.why,
            "facts": list(self.facts),
            "emulations": [
                {"name": n, "acceptance_length": round(a, 6), "distance": round(d, 6)}
                for n, a, d in self.ranked
            ],
            "warnings": list(self.warnings),
            **self.about,
        }


def apart(live: Counted, walk: Counts) -> float:
    """The largest distance in P_k; in acceptance length for an engine that tells no P_k."""
    if live.p is None:
        return abs(live.length - walk.length)
    return max(abs(a - b) for a, b in zip(live.p, walk.p, strict=False))


def agrees(live: Counted, walk: Counts) -> bool:
    """Whether engine and walk are the same but for what always differs."""
    near = abs(live.length - walk.length) <= LENGTH
    return near and (live.p is None or apart(live, walk) <= PLACE)


def judge(
    live: Counted,
    walks: Sequence[Walked],
    *,
    guessed: str = "",
    warnings: Sequence[str] = (),
) -> Judgement:
    """The verdict of a paired measurement. `walks`: the checkpoint as written first. `guessed`: why
    its mapping is not its own.
    """
    written, others = walks[0], walks[1:]
    told = [*warnings, *_warned(live, written)]
    near = sorted(others, key=lambda one: apart(live, one.counts))
    ranked = tuple(
        (one.emulation.name, one.counts.length, apart(live, one.counts)) for one in [written, *near]
    )
    fitting = [one for one in near if agrees(live, one.counts)]
    if agrees(live, written.counts):
        return _agreed(written, others, fitting, guessed, tuple(told), ranked)
    gap = f"engine {live.length:.3f}, walk on the same ids {written.counts.length:.3f}"
    if not fitting:
        nearest = f"; nearest is {near[0].emulation.name}, {ranked[1][2]:.3f} away" if near else ""
        return Judgement(
            Verdict.DIFFER,
            f"{gap}, and no known fault gives the engine's numbers{nearest}: does it serve this"
            " very checkpoint and target, quantised or sharded otherwise? Run `lint`",
            facts=(guessed,) if guessed else (),
            ranked=ranked,
            warnings=tuple(told),
        )
    found = _decided(live, fitting)
    same = [
        one.emulation.name
        for one in fitting
        if one is not found and apart(live, one.counts) <= apart(live, found.counts) + TIE
    ]
    why = f"{gap}; with {found.emulation.name} the walk gives {found.counts.length:.3f}"
    if same:
        why += f" ({', '.join(same)} can not be told from it by numbers"
        why += "; the config decides)" if found.emulation.facts else ")"
    return Judgement(
        Verdict.DIFFER,
        why,
        found.emulation.name,
        (*found.emulation.facts, *((guessed,) if guessed else ())),
        ranked,
        tuple(told),
    )


def _agreed(
    written: Walked,
    others: Sequence[Walked],
    fitting: Sequence[Walked],
    guessed: str,
    warnings: tuple[str, ...],
    ranked: tuple[tuple[str, float, float], ...],
) -> Judgement:
    """Engine and walk agree: unless the checkpoint itself is not what was trained, all is well."""
    if guessed:
        return Judgement(
            Verdict.DIFFER,
            f"the engine drafts as a checkpoint with this mapping does: {guessed}",
            "the mapping of the checkpoint",
            (),
            ranked,
            warnings,
        )
    better = [
        one
        for one in others
        if one.emulation.undone
        and one.counts.length
        > written.counts.length + (BETTER_BY_CONFIG if one.emulation.facts else BETTER)
    ]
    if better:
        best = max(better, key=lambda one: (bool(one.emulation.facts), one.counts.length))
        return Judgement(
            Verdict.DIFFER,
            "the engine does what the checkpoint says, and the checkpoint does not say what was"
            f" trained: changed, it would be accepted {best.counts.length:.3f} in place of"
            f" {written.counts.length:.3f}",
            best.emulation.undone,
            best.emulation.facts,
            ranked,
            warnings,
        )
    sure = next((one for one in fitting if one.emulation.sure), None)
    if sure is not None:
        return Judgement(
            Verdict.DIFFER,
            "the numbers can not tell the two apart with this drafter, the config does: with"
            f" {sure.emulation.name} the walk gives {sure.counts.length:.3f}, as trained"
            f" {written.counts.length:.3f}",
            sure.emulation.name,
            sure.emulation.facts,
            ranked,
            warnings,
        )
    mild = f"; too mild here to be seen: {', '.join(f.emulation.name for f in fitting)}"
    return Judgement(
        Verdict.AGREE,
        "a low number is a matter of data or drafter: see what stopped steps, and the splits of"
        f" `evaluate`{mild if fitting else ''}",
        "",
        (),
        ranked,
        warnings,
    )


def _decided(live: Counted, fitting: Sequence[Walked]) -> Walked:
    """The nearest; among those as near, one that the config speaks for."""
    limit = apart(live, fitting[0].counts) + TIE
    close = [one for one in fitting if apart(live, one.counts) <= limit]
    return next((one for one in close if one.emulation.facts), close[0])


def _warned(live: Counted, written: Walked) -> list[str]:
    told = []
    if live.length == 1.0:
        told.append(
            "acceptance is exactly 1.00, no draft was ever accepted: states that do not reach the"
            " drafter, or the method EAGLE in place of EAGLE3"
        )
    if written.counts.steps < FEW:
        told.append(f"only {written.counts.steps:.0f} steps: send more prompts or more tokens")
    if live.p is None:
        told.append("the engine tells no P_k, so acceptance lengths alone are compared")
    return told


def off(warnings: Sequence[str] = ()) -> Judgement:
    """The engine answered and drafted nothing."""
    return Judgement(
        Verdict.OFF,
        "the engine answered and counted no draft: start it with its drafter, and with its metrics"
        " where they are off (llama.cpp: --metrics)",
        warnings=tuple(warnings),
    )


def dead(died: str, lint: Inspection) -> Judgement:
    """The engine failed. `lint` names what it found in the files."""
    wrong = [f for f in lint.findings if f.error]
    wrong.sort(key=lambda finding: not finding.code.startswith("VOC"))  # the usual killer first
    cause = f"{wrong[0].code}: {wrong[0].rule.name}" if wrong else ""
    why = died + (
        ""
        if wrong
        else "; lint finds no error in the checkpoint: read the engine's log, and run it without"
        " its drafter"
    )
    facts = tuple(f"{f.code} {f.at or f.rule.at}: {f.detail}" for f in wrong)
    return Judgement(Verdict.DEAD, why, cause, facts)


def unpaired(evaluation: Mapping[str, Any], pages: Sequence[str]) -> Judgement:
    """Saved scrapes against what `evaluate --json` printed: other text on both sides, so only the
    sampling interval can be used. `pages`: before and after, or one since the engine's start.
    Raises LiveError.
    """
    walk = evaluation.get("walk")
    if not isinstance(walk, dict) or not {"p", "acceptance_length"} <= walk.keys():
        raise LiveError("--offline: this is not what `evaluate --json` prints: run it again")
    scrapes = [scrape(page) for page in pages]
    warnings = []
    if len(scrapes) == 1:
        scrapes.insert(0, type(scrapes[0])())
        warnings.append("one scrape: everything since the engine was started is in it")
    live = between(scrapes[0], scrapes[-1])
    if live is None and scrapes[-1].length is not None:
        live = Counted("a mean that the engine tells", 0, 0, None, scrapes[-1].length)
        warnings.append("a mean that the engine tells by itself, other requests included")
    if live is None:
        return off(warnings)
    low, high = walk.get("acceptance_length_interval") or (None, None)
    if low is None or high is None:
        raise LiveError("--offline: no interval in it: evaluate more than one conversation")
    if live.length == 1.0:
        warnings.append("acceptance is exactly 1.00, no draft was ever accepted")
    inside = low <= live.length <= high
    if live.p is not None:
        for place, (value, pair) in enumerate(
            zip(live.p, walk.get("p_interval") or [], strict=False), 1
        ):
            if not pair[0] <= value <= pair[1]:
                inside = False
                warnings.append(f"P_{place} {value:.3f} is outside {pair[0]:.3f}-{pair[1]:.3f}")
    span = f"engine {live.length:.3f}, interval of the walk {low:.3f}-{high:.3f}"
    why = (
        f"{span}: the two saw other text, so a fault smaller than the interval (layer ids one off"
        " is) stays unseen; measure paired, with --base-url"
        if inside
        else f"{span}: other text than the evaluation's, or a fault of engine or checkpoint;"
        " measure paired, with --base-url, to tell which"
    )
    return Judgement(
        Verdict.INSIDE if inside else Verdict.OUTSIDE,
        why,
        warnings=tuple(warnings),
        about={"live": live.to_dict(), "walk": walk, "paired": False},
    )
