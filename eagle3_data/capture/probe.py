"""The probe: a dozen small requests before a capture, and what they say about it.

What enters: a client, its server, a profile, a tokenizer where there is one. What leaves: a
`Probe`, the verdict table. It promises that every verdict rests on answers which it holds, that
vendor options are sent one at a time and a refusal of them is no fault, and that nothing is asked
twice which one answer settles.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import orjson

from eagle3_data.capture import probe_habits, probe_thought, probe_tokens
from eagle3_data.capture import probe_questions as questions
from eagle3_data.capture.ids import Way, ways
from eagle3_data.capture.probe_answers import Answer, Asker
from eagle3_data.capture.probe_check import Check, Evidence, Verdict
from eagle3_data.capture.probe_facts import told
from eagle3_data.capture.probe_looks import decided, look, marks
from eagle3_data.capture.probe_tokens import Rebuilt, Tokens
from eagle3_data.capture.server import Server, ServerFault
from eagle3_data.capture.thinking import switch

if TYPE_CHECKING:
    import polars as pl
    from openai import AsyncOpenAI

    from eagle3_data.profiles.profile import Profile
    from eagle3_data.tokens.assemble import Assembler
    from eagle3_data.tokens.tokenizer import Tokenizer

__all__ = ["Check", "Probe", "Verdict", "probe"]


@dataclass(frozen=True, slots=True)
class Probe:
    """`checks`: the table, in the order of a capture. `ids_body`: fields that make ids arrive, {}
    when none do. `thought_field`: where the thought stands, None when none arrived.
    """

    server: Server
    profile: str
    checks: tuple[Check, ...]
    thought_field: str | None
    ids_body: dict[str, Any]
    answers: tuple[Answer, ...]

    @property
    def faulty(self) -> bool:
        """Whether a capture from this server, as it is, would be faulty."""
        return any(check.verdict is Verdict.BAD for check in self.checks)

    def check(self, name: str) -> Check:
        """The row of that name."""
        return next(check for check in self.checks if check.name == name)

    def as_json(self) -> dict[str, Any]:
        """The table for machines."""
        return {
            "server": asdict(self.server),
            "profile": self.profile,
            "faulty": self.faulty,
            "thought_field": self.thought_field,
            "ids_body": self.ids_body,
            "requests": len(self.answers),
            "checks": [asdict(check) for check in self.checks],
        }


async def probe(
    client: AsyncOpenAI,
    server: Server,
    *,
    profile: Profile,
    tokenizer: Tokenizer | None = None,
    chat_template: str | None = None,
    thinking: bool | None = None,
) -> Probe:
    """Ask the server, and judge. `thinking`: the switch that the capture will send.

    Raises ServerFault when the server answers no question at all, MarkerMismatch when profile and
    tokenizer do not belong together.
    """
    assembler = None
    if tokenizer is not None:
        from eagle3_data.tokens.assemble import Assembler

        assembler = Assembler(profile, tokenizer, chat_template=chat_template)
    asker = Asker(client, server)
    known_marks = marks(profile, tokenizer)
    tries, ids_body = await _ids(asker, server)
    usual = {**ids_body, **switch(profile, thinking)}
    expected = profile.thinking_default if thinking is None else thinking
    for round_no in range(len(questions.BUDGETS)):
        found = await asker.ask_all(questions.open_questions(round_no, usual))
        if round_no == 0 and not any(answer.ok for answer in found):
            raise ServerFault(
                f"{server.base_url}: no question was answered ({found[0].fault}): is"
                f" {server.model!r} a chat model?"
            )
        looks = [look(a, known_marks) for a in asker.answers if a.ok and a.question.name == "open"]
        if decided(looks, expected=expected is not False):
            break
    await asker.ask_all(questions.cut_questions(usual))
    for one in questions.switches(profile):
        await asker.ask_all(questions.switch_questions(one, ids_body))
    await asker.ask_all(questions.history_questions({}))
    if not any(a.completion_ids for a in asker.answers if a.finish == "stop"):
        await _repeat(asker, usual)
    facts = await told(client, server)  # last: its counters then hold what the questions drafted
    known = Evidence(
        server, facts, profile, tokenizer, known_marks, thinking, tuple(asker.answers), tries,
        ids_body,
    )  # fmt: skip
    tokens = (
        None if assembler is None or tokenizer is None else _tokens(known, assembler, tokenizer)
    )
    return Probe(
        server=server,
        profile=profile.name,
        checks=(
            probe_habits.server(known),
            probe_habits.model(known),
            probe_thought.arrives(known),
            probe_thought.parser(known),
            probe_thought.markers(known),
            probe_thought.cut(known),
            probe_tokens.ids(known),
            probe_tokens.grades(known, tokens),
            probe_tokens.prompt(known, tokens),
            probe_tokens.stop_token(known, tokens),
            probe_habits.thinking(known),
            probe_habits.history(known),
            probe_habits.speculation(known),
            *probe_habits.failures(known),
        ),
        thought_field=probe_thought.field_of(known),
        ids_body=ids_body,
        answers=tuple(asker.answers),
    )


async def _ids(asker: Asker, server: Server) -> tuple[list[tuple[Way, Answer]], dict[str, Any]]:
    """The ways that were tried, and the first that makes ids arrive."""
    tries: list[tuple[Way, Answer]] = []
    for way in ways(server.kind):
        answer = await asker.ask(questions.ids_question(way.body))
        tries.append((way, answer))
        if answer.completion_ids:
            return tries, dict(way.body)
    return tries, {}


async def _repeat(asker: Asker, usual: dict[str, Any]) -> None:
    """Ask greedy questions, and those that ended again with one token less."""
    first = await asker.ask_all(questions.greedy_questions(usual))
    await asker.ask_all(
        questions.again(answer.question, answer.completion_tokens - 1)
        for answer in first
        if answer.finish == "stop" and answer.completion_tokens and answer.completion_tokens > 2
    )


def _tokens(known: Evidence, assembler: Assembler, tokenizer: Tokenizer) -> Tokens:
    """The answers as `check` would rebuild them."""
    from eagle3_data.tokens.answers import thinks
    from eagle3_data.tokens.markers import resolve

    held = [a for a in known.answers if a.ok and a.question.name != "ids"]
    records = _records(known, held)
    samples = assembler.assemble(records)
    prompts = assembler.prompts.build(records, thinks(records, known.profile), [None] * len(held))
    grades = samples.select("grade", "grade_reason").rows()
    rebuilt = [
        Rebuilt(
            answer,
            None if grade is None else str(grade),
            reason or "",
            None if prompt.ids is None else [int(i) for i in prompt.ids],
            prompt.reason or "",
        )
        for answer, (grade, reason), prompt in zip(held, grades, prompts, strict=True)
    ]
    template = tokenizer.chat_template or ""
    return Tokens(
        tokenizer, resolve(known.profile, tokenizer).stops, "strftime_now" in template, rebuilt
    )


def _records(known: Evidence, answers: Sequence[Answer]) -> pl.DataFrame:
    """The answers in the form that `generate` stores, read as `check` reads them."""
    from eagle3_data.records.lines import LineBatch
    from eagle3_data.records.shapes import table_from

    lines = [
        orjson.dumps(
            {
                "request": answer.question.body(known.server.model),
                "response": answer.body,
                "server": known.server.kind.value,
                "server_version": known.server.version,
            }
        )
        for answer in answers
    ]
    return table_from(LineBatch(0, lines, list(range(1, len(lines) + 1)), [0] * len(lines)))
