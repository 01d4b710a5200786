"""Checks of the thought: does it arrive, in which field, is it split from the answer, where does a
cut one go.

What enters: `Evidence`. What leaves: `Check`s. It promises that the four states of a server (the
right parser, none, a wrong one, thinking off) are told apart by several answers, and by ids where
they are to be had; what the answers do not decide is called unclear.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from eagle3_data.capture import probe_mend as mend
from eagle3_data.capture.probe_check import Check, Evidence, Verdict, counted, quote
from eagle3_data.capture.probe_looks import Look, Place, look
from eagle3_data.capture.server import Kind
from eagle3_data.tokens.servers import holds

ENOUGH = 6
"""Finished answers from which a habit is taken for one of the server, not of the model."""


def field_of(known: Evidence) -> str | None:
    """The field that carries the thought, the usual one when there are several."""
    keys = Counter(one.answer.reasoning_key for one in known.looks if one.answer.reasoning)
    return keys.most_common(1)[0][0] if keys else None


def arrives(known: Evidence) -> Check:
    """Which field carries the thought, and does one arrive."""
    looks = known.looks
    keys = [one.answer.reasoning_key for one in looks if one.answer.reasoning.strip()]
    name, share = "thought", f"{len(keys)} of {len(looks)} answers hold one"
    if not looks:
        return Check(name, Verdict.UNCLEAR, "no open question was answered", "nothing is known")
    if keys:
        if known.mode is False and known.expected is not False:
            return _off_by_default(
                known,
                f"{share}; the prompts are those of thinking off",
                "thinking is off by default, and the answer is taken for a thought",
            )
        where = ", ".join(str(key) for key, _ in Counter(keys).most_common())
        seen = f"{share}, in the field {where}"
        if known.expected is False:
            return Check(
                name,
                Verdict.BAD,
                seen,
                "thinking should be off, and text stands in the field of the thought",
                mend.unswitched(known.server.kind),
            )
        other = "reasoning_content" if keys[0] == "reasoning" else "reasoning"
        return Check(
            name,
            Verdict.OK,
            seen,
            f"a client that reads only `{other}` would store rows without a thought",
        )
    if known.expected is False and known.mode is not True:
        return Check(name, Verdict.OK, share, "thinking is off")
    spelled = sum(one.place is Place.MARKED_CONTENT for one in looks)
    if known.mode is False:
        return _absent(known, looks, share)
    if spelled or any(one.closed for one in looks):
        return Check(
            name,
            Verdict.BAD,
            f"{share}; the model thinks, inside content",
            "every row would be stored without its thought",
            mend.parser(known.server.kind, known.profile),
        )
    return _absent(known, looks, share)


def _absent(known: Evidence, looks: Sequence[Look], share: str) -> Check:
    """No sign of a thought anywhere."""
    name = "thought"
    switched = [
        one
        for one in _switched(known, on=True)
        if one.place in (Place.SPLIT, Place.THOUGHT_ONLY, Place.MARKED_CONTENT)
    ]
    if switched or known.mode is False:
        why = "the prompts are those of thinking off"
        if known.mode is not False:
            why = "a thought arrives when the request turns thinking on"
        return _off_by_default(
            known, f"{share}; {why}", "thinking is off by default: a capture would hold no thought"
        )
    if known.expected is None:
        return Check(
            name,
            Verdict.NOTE,
            share,
            "whether this model thinks is not known: name its family with --profile",
        )
    finished = sum(one.ended for one in looks)
    if finished >= ENOUGH:
        opened = any(one.opened for one in looks)
        return Check(
            name,
            Verdict.BAD,
            f"{share}, {finished} of them finished",
            "the prompt opens a thought, and no answer closes it: the thought is stored as the"
            " answer"
            if opened
            else "thinking is off, or the markers are hidden and nothing splits",
            mend.parser(known.server.kind, known.profile)
            if opened
            else mend.thinking_on(known.server.kind, known.profile.switch),
        )
    return Check(name, Verdict.UNCLEAR, share, f"only {finished} answers finished")


def _off_by_default(known: Evidence, seen: str, means: str) -> Check:
    verdict = Verdict.BAD if known.expected else Verdict.NOTE
    flag = mend.thinking_on(known.server.kind, known.profile.switch)
    return Check("thought", verdict, seen, means, flag)


def _switched(known: Evidence, *, on: bool) -> list[Look]:
    state = "on" if on else "off"
    return [
        look(answer, known.marks)
        for answer in known.answers
        if answer.ok and answer.question.name.endswith(f"={state}")
    ]


def parser(known: Evidence) -> Check:
    """Is a reasoning parser at work, and is it the right one."""
    looks, name = known.looks, "parser"
    if not looks:
        return Check(name, Verdict.UNCLEAR, "no open question was answered")
    places = [one.place for one in looks]
    seen = counted(places)
    says = _told(known)
    if says:
        seen += f"; {says}"
    flag = mend.parser(known.server.kind, known.profile)
    count = Counter(places)
    thoughts = sum(bool(one.answer.reasoning.strip()) for one in looks)
    if count[Place.BOTH] > count[Place.SPLIT]:
        return Check(
            name, Verdict.BAD, seen,
            "the parser copies the thought and leaves it in content, too (streams of llama.cpp with"
            " deepseek-legacy do)", flag,
        )  # fmt: skip
    if known.mode is False and thoughts * 2 > len(looks):
        return Check(
            name, Verdict.BAD, f"{seen}; the prompts are those of thinking off",
            "this parser takes every text for a thought, the answer too",
            mend.unswitched(known.server.kind),
        )  # fmt: skip
    if known.mode is False and not thoughts:
        return Check(name, Verdict.OK, seen, "nothing to part: thinking is off")
    # a model may spell the marker twice: one such answer beside good ones is its own doing
    if count[Place.MARKED_THOUGHT] > count[Place.SPLIT]:
        return Check(
            name, Verdict.BAD, seen,
            "wrong parser: it leaves the closing marker and the answer inside the thought", flag,
        )  # fmt: skip
    if count[Place.MARKED_CONTENT] > thoughts:
        opens = sum(any(o in one.answer.content for o in known.marks.opens) for one in looks)
        handed_on = known.profile.open_in_prompt and opens * 2 > len(looks)
        if handed_on and known.server.kind is Kind.LLAMACPP:
            what = (
                "no parser: llama-server hands on all that it sampled, behind the prompt's marker"
            )
        elif handed_on:
            what = (
                "wrong parser: it hands on the opening marker, which stands in the prompt and is"
                " not sampled, and parts nothing"
            )
        elif known.told.parser or known.reasoning_counted:
            what = "wrong parser: one is at work and does not see this model's markers"
        elif known.told.parser == "":
            what = "no parser: the server says that it runs none"
        elif known.reasoning_counted is False and holds(">=0.32", known.server.version):
            what = "no parser: this vLLM counts reasoning tokens whenever it runs one"
        else:
            what = "no parser, or one that does not see this model's markers"
        return Check(name, Verdict.BAD, seen, f"{what}; the thought stands in content", flag)
    if count[Place.SPLIT]:
        stray = sum(one.stray for one in looks) + count[Place.MARKED_CONTENT]
        note = f" (a marker is spelled again in {stray})" if stray else ""
        return Check(name, Verdict.OK, seen, f"right parser: it parts thought and answer{note}")
    if thoughts:
        return _unsplit(known, looks, seen, flag)
    if any(one.closed for one in looks):
        return Check(
            name, Verdict.BAD, seen,
            "no parser, and the markers are dropped from the text (special tokens): thought and"
            " answer run together; the ids show the closing marker", flag,
        )  # fmt: skip
    if known.expected and known.mode is not False:
        return Check(name, Verdict.UNCLEAR, seen, "no thought was seen, so nothing was parted")
    return Check(name, Verdict.OK, seen, "nothing to part")


def _unsplit(known: Evidence, looks: Sequence[Look], seen: str, flag: str) -> Check:
    """Thoughts arrive, and no answer beside them."""
    name = "parser"
    swallowed = sum(one.closed is True for one in looks)
    ended = sum(one.ended and one.place is Place.THOUGHT_ONLY for one in looks)
    if swallowed:
        return Check(
            name, Verdict.BAD, f"{seen}; by ids {swallowed} of them close the thought",
            "wrong parser: it takes the answer for thought too", flag,
        )  # fmt: skip
    if any(one.closed is False for one in looks):
        return Check(
            name, Verdict.UNCLEAR, f"{seen}; the ids show no closed thought",
            "no thought was closed, so that no answer could be parted from one: ask a larger model,"
            " or look at a longer answer",
        )  # fmt: skip
    if ended >= ENOUGH:
        return Check(
            name, Verdict.BAD, f"{seen}; {ended} of them finished",
            "wrong parser: everything is taken for thought, the answer too", flag,
        )  # fmt: skip
    return Check(
        name, Verdict.UNCLEAR, seen, "every answer was cut inside its thought, or nearly so"
    )


def _told(known: Evidence) -> str:
    if known.told.parser is not None:
        return f"the server names {quote(known.told.parser) if known.told.parser else 'none'}"
    if known.reasoning_counted is not None:
        does = "counts" if known.reasoning_counted else "does not count"
        return f"usage {does} reasoning tokens"
    return ""


def markers(known: Evidence) -> Check:
    """Control strings of the family that were left in the texts."""
    name, found, held = "markers", Counter[str](), Counter[str]()
    think = (*known.marks.opens, *known.marks.closes)
    texts = [m.text for m in known.profile.markers] or think
    answers = known.named("open")
    for answer in answers:
        for where, text in (("content", answer.content), ("thought", answer.reasoning)):
            for marker in texts:
                if marker in text:
                    found[f"{quote(marker)} in {where}"] += 1
        held.update({m for m in texts if m in answer.text and m not in think})
    if not answers:
        return Check(name, Verdict.UNCLEAR, "no open question was answered")
    if not found:
        return Check(name, Verdict.OK, f"none in {len(answers)} answers")
    seen = "; ".join(f"{what} in {n} of {len(answers)}" for what, n in found.most_common(4))
    if held and max(held.values()) * 2 > len(answers):
        return Check(
            name, Verdict.BAD, seen,
            "control tokens are written out: rows would hold text that was never meant as such",
            "leave skip_special_tokens at true; if it is, the parser keeps them: see its options",
        )  # fmt: skip
    verdict = parser(known)
    if verdict.verdict is Verdict.BAD and known.mode is not False:
        return Check(name, Verdict.BAD, seen, "see: parser", verdict.mend)
    return Check(
        name, Verdict.NOTE, seen,
        "the model spells markers where none belong; check puts such rows aside",
    )  # fmt: skip


def cut(known: Evidence) -> Check:
    """Where a thought goes that max_tokens cuts."""
    name, answers = "cut thought", [a for a in known.named("cut") if a.finish != "stop"]
    looks = [look(answer, known.marks) for answer in answers]
    if not looks:
        return Check(name, Verdict.UNCLEAR, "no answer was cut", "the model ended before the limit")
    reasons = counted([str(one.answer.finish) for one in looks])
    seen = f"{counted([one.place for one in looks])}; finish_reason {reasons}"
    if not all(one.cut for one in looks):
        return Check(
            name, Verdict.NOTE, seen,
            "a cut answer does not say `length`: cut rows can not be told from whole ones",
        )  # fmt: skip
    if known.mode is False or known.expected is False:
        return Check(name, Verdict.OK, seen, "thinking is off: there is no thought to be cut")
    both = [a for a in answers if a.reasoning and a.reasoning.strip() == a.content.strip()]
    if both:
        return Check(name, Verdict.NOTE, seen, "a cut thought stands in both fields", _longer())
    in_content = sum(one.place in (Place.PLAIN, Place.MARKED_CONTENT) for one in looks)
    if in_content and (field_of(known) or known.expected):
        bare = any(one.place is Place.PLAIN for one in looks)
        how = ", without a marker: such rows look like answers" if bare else ""
        return Check(
            name, Verdict.NOTE, seen, f"a cut thought is stored as content{how}", _longer()
        )
    return Check(name, Verdict.OK, seen, "a cut thought stays in its field")


def _longer() -> str:
    return "generate with a larger --max-tokens and --retry-cut; check puts cut rows aside"
