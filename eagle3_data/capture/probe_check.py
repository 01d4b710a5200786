"""A check of a probe, and what it rests on.

What enters: everything that was asked, answered and told. What leaves: `Check`, one row of the
verdict table. It promises that model text in it is inert.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from eagle3_data.audit.inert import inert
from eagle3_data.capture.probe_answers import Answer, named
from eagle3_data.capture.probe_facts import Told
from eagle3_data.capture.probe_looks import Look, Marks, look
from eagle3_data.capture.probe_questions import switches
from eagle3_data.capture.server import Kind, Server
from eagle3_data.profiles.profile import Profile, Thinking

if TYPE_CHECKING:
    from eagle3_data.capture.ids import Way
    from eagle3_data.tokens.tokenizer import Tokenizer

QUOTED = 48
"""Characters of model text that a row shows."""


class Verdict(StrEnum):
    """How a check stands. Only BAD makes a capture faulty."""

    OK = "ok"
    NOTE = "note"
    BAD = "bad"
    UNCLEAR = "unclear"
    """The answers do not decide it; `means` says why."""
    NOT_MADE = "not made"
    """Something is missing that the check needs; `mend` says what."""


@dataclass(frozen=True, slots=True)
class Check:
    """`seen`: the evidence; `means`: what follows for the capture; `mend`: the option or flag that
    mends it, "" when nothing is to be mended.
    """

    name: str
    verdict: Verdict
    seen: str
    means: str = ""
    mend: str = ""


@dataclass(frozen=True, slots=True)
class Evidence:
    """What the checks read. `thinking`: the switch that the capture will send, None for none.
    `ids_tries`: each way that was tried and its answer.
    """

    server: Server
    told: Told
    profile: Profile
    tokenizer: Tokenizer | None
    marks: Marks
    thinking: bool | None
    answers: Sequence[Answer]
    ids_tries: Sequence[tuple[Way, Answer]] = ()
    ids_body: dict[str, Any] = field(default_factory=dict)

    def named(self, name: str) -> list[Answer]:
        """Answers to the questions of that name."""
        return named(self.answers, name)

    @property
    def looks(self) -> list[Look]:
        """The open answers, classified."""
        return [look(answer, self.marks) for answer in self.named("open")]

    @property
    def reasoning_counted(self) -> bool | None:
        """Whether usage tells reasoning tokens: vLLM 0.32 does when a parser is configured. None
        where that says nothing.
        """
        if self.server.kind is not Kind.VLLM:
            return None
        usages = [answer.body.get("usage") for answer in self.named("open")]
        key = "completion_tokens_details"
        held = [usage[key] for usage in usages if isinstance(usage, dict) and key in usage]
        return any(details is not None for details in held) if held else None

    @property
    def mode(self) -> bool | None:
        """Whether the open questions were fed with thinking on: by the end of their prompts, else
        by their length, which is that of the prompts with the switch on or off.
        """
        told = {one.opened for one in self.looks} - {None}
        if len(told) == 1:
            return told == {True}
        for one in switches(self.profile):
            sides = [
                {(a.question.messages[-1]["content"], a.prompt_tokens) for a in self.named(name)}
                for name in (f"{one.key}=on", f"{one.key}=off")
            ]
            fed = {
                (a.question.messages[-1]["content"], a.prompt_tokens) for a in self.named("open")
            }
            if sides[0] != sides[1]:
                on, off = (bool(fed & side) for side in sides)
                if on is not off:
                    return on
        return None

    @property
    def expected(self) -> bool | None:
        """Whether a thought should arrive; None where nobody knows."""
        if self.profile.thinking is Thinking.ALWAYS:
            return True
        if self.profile.thinking is Thinking.NEVER:
            return False
        return self.profile.thinking_default if self.thinking is None else self.thinking


def quote(text: str) -> str:
    """Model text, short and inert, in quotes."""
    return f'"{inert(text, QUOTED)}"'


def counted(words: Sequence[object]) -> str:
    """`3 of 4: a; 1 of 4: b`, the usual one first."""
    total = len(words)
    return "; ".join(f"{n} of {total}: {word}" for word, n in Counter(words).most_common())
