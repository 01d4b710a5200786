"""The questions of a probe: what is asked, with how many tokens, and with which vendor options.

What enters: a profile and what was learnt so far. What leaves: `Question`s. It promises small
requests (a dozen, and some more while the answers leave a verdict open), one vendor option at a
time, and texts that talk about neither markers nor thinking.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from eagle3_data.profiles.profile import Profile, Switch, Thinking

Json = dict[str, Any]

WARM = 0.7
"""Temperature of the open questions. Greedy answers of one model repeat one habit: the small target
of our fixtures never closes a thought at 0, because two tokens tie."""
BUDGETS = (384, 1024, 1024)
"""Most tokens of an answer in each round of open questions: a round is only asked while no answer
shows where thought and answer part."""
CUT = 8
SHORT = 64
PLAIN = (
    ("system+user", "You are a careful assistant.", "What is 7 plus 5? Answer with one number."),
    ("user", None, "Name the capital of France."),
    ("user", None, "Which is heavier, a stone or a feather?"),
    ("user", None, "Give the three colours of a traffic light."),
)
LONG = "Explain in three sentences why ice floats on water."
THOUGHT = "The user wants a colour. Red is a colour that everyone knows, so I say red."
USUAL_SWITCHES = (Switch(key="enable_thinking"), Switch(key="thinking"))
"""Tried where the profile knows none."""


@dataclass(frozen=True, slots=True)
class Question:
    """`name` groups the answers. `extra`: fields beside the usual ones of a chat request."""

    name: str
    messages: tuple[Mapping[str, Any], ...] = field(hash=False)
    max_tokens: int
    temperature: float = 0.0
    seed: int = 0
    extra: Mapping[str, Any] = field(default_factory=dict, hash=False)

    def body(self, model: str) -> Json:
        """The request."""
        return {
            "model": model,
            "messages": [dict(message) for message in self.messages],
            "max_tokens": self.max_tokens,
            "temperature": self.temperature,
            "seed": self.seed,
            **self.extra,
        }


def _user(text: str, system: str | None = None) -> tuple[Json, ...]:
    user = {"role": "user", "content": text}
    return (user,) if system is None else ({"role": "system", "content": system}, user)


def ids_question(extra: Mapping[str, Any]) -> Question:
    """Whether `extra` makes ids arrive."""
    return Question("ids", _user(PLAIN[1][2]), CUT, extra=extra)


def open_questions(round_no: int, extra: Mapping[str, Any]) -> list[Question]:
    """One round: the same texts with other seeds, and room for longer thoughts."""
    return [
        Question("open", _user(text, system), BUDGETS[round_no], WARM, 1 + round_no, extra)
        for _, system, text in PLAIN
    ]


def cut_questions(extra: Mapping[str, Any]) -> list[Question]:
    """A thought that is cut after a few tokens."""
    return [
        Question("cut", _user(LONG), CUT, extra=extra),
        Question("cut", _user(LONG), CUT, WARM, 1, extra),
    ]


def switches(profile: Profile) -> tuple[Switch, ...]:
    """The switches worth a try."""
    if profile.switch is not None:
        return (profile.switch,)
    return USUAL_SWITCHES if profile.thinking is Thinking.SHOWN else ()


def switch_questions(switch: Switch, extra: Mapping[str, Any]) -> list[Question]:
    """The same texts with thinking on and off."""
    return [
        Question(
            f"{switch.key}={'on' if on else 'off'}",
            _user(text),
            SHORT,
            temperature,
            1,
            {**extra, "chat_template_kwargs": {switch.key: switch.on if on else switch.off}},
        )
        for on in (True, False)
        for text, temperature in ((PLAIN[1][2], 0.0), (LONG, WARM))
    ]


def history_questions(extra: Mapping[str, Any]) -> list[Question]:
    """A second turn whose first answer has no thought, or one under each name."""
    return [
        Question(f"history:{name}", _dialogue(name), 1, extra=extra)
        for name in ("none", "reasoning", "reasoning_content")
    ]


def _dialogue(name: str) -> tuple[Json, ...]:
    answer = {"role": "assistant", "content": "Red."}
    if name != "none":
        answer[name] = THOUGHT
    return (*_user("Name one colour."), answer, *_user("And another one."))


def again(question: Question, max_tokens: int) -> Question:
    """The same question with an exact number of tokens."""
    return Question(
        "again", question.messages, max_tokens, question.temperature, question.seed, question.extra
    )


def greedy_questions(extra: Mapping[str, Any]) -> list[Question]:
    """Answers that can be repeated, for counting their tokens."""
    return [
        Question("greedy", _user(text, system), SHORT * 2, extra=extra)
        for _, system, text in PLAIN[1:3]
    ]


def raw_question(extra: Mapping[str, Any]) -> Question:
    """An open question whose special tokens the server is asked to keep in the text."""
    return Question("raw", _user(PLAIN[1][2]), BUDGETS[0], WARM, 1, {**extra, **KEEP_SPECIAL})


KEEP_SPECIAL: Json = {"skip_special_tokens": False}
