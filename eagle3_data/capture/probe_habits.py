"""Checks of the server itself: who it is, its switches, what it does with history, speculation.

What enters: `Evidence`. What leaves: `Check`s. It promises that a switch counts as acting only when
prompts or answers change with it.
"""

from __future__ import annotations

from collections.abc import Sequence

from eagle3_data.audit.inert import inert
from eagle3_data.capture import probe_mend as mend
from eagle3_data.capture.probe_answers import Answer
from eagle3_data.capture.probe_check import Check, Evidence, Verdict, quote
from eagle3_data.capture.probe_looks import Place, look
from eagle3_data.capture.probe_questions import switches
from eagle3_data.capture.server import Kind
from eagle3_data.profiles.profile import HistoryMode, Switch, Thinking


def server(known: Evidence) -> Check:
    """Which server, which version."""
    kind, version = known.server.kind, known.server.version
    seen = f"{kind.value} {version or '(version not told)'}"
    if kind is Kind.UNKNOWN:
        return Check(
            "server", Verdict.NOTE, seen,
            "what it strips from its texts is not known: rows without ids prove less",
        )  # fmt: skip
    if version is None:
        return Check(
            "server", Verdict.NOTE, seen,
            "what a server strips depends on its version: write it down beside the capture",
        )  # fmt: skip
    return Check("server", Verdict.OK, seen, "stored with every row")


def model(known: Evidence) -> Check:
    """Whether the answers come from the model that was asked."""
    asked = known.server.model
    echoed = {str(a.body["model"]) for a in known.answers if a.ok and a.body.get("model")}
    others = sorted(echoed - {asked})
    if others:
        return Check(
            "model", Verdict.BAD, f"asked {quote(asked)}, answered by {quote(others[0])}",
            "the answers may come from another model than the drafter's target",
            "pass the served name with --model, or ask the server itself and not a router",
        )  # fmt: skip
    return Check("model", Verdict.OK, inert(asked, 120), "" if echoed else "answers name no model")


def failures(known: Evidence) -> list[Check]:
    """A row when questions got no answer; those about options that a server may refuse aside."""
    failed = [answer for answer in known.answers if not answer.ok and not answer.refused]
    if not failed:
        return []
    most = 2 * len(failed) > len(known.answers)
    seen = f"{len(failed)} of {len(known.answers)} requests failed, the last: {failed[-1].fault}"
    return [
        Check(
            "answers", Verdict.BAD if most else Verdict.NOTE, seen,
            "the rows above rest on the answers that came; generate would ask again and again",
            "look at the server's log, and probe again when it answers",
        )
    ]  # fmt: skip


def thinking(known: Evidence) -> Check:
    """Whether the switches of thinking act."""
    name, tried = "switch", switches(known.profile)
    if not tried:
        why = {
            Thinking.ALWAYS: "this family always thinks",
            Thinking.NEVER: "this family never thinks",
        }.get(known.profile.thinking, "the profile knows no switch")
        return Check(name, Verdict.OK, "none asked", why)
    checks = [_switch(known, one) for one in tried]
    acting = [one for one in checks if one.verdict is not Verdict.UNCLEAR]
    best = next((one for one in acting if one.verdict is Verdict.OK), None)
    return best or (acting or checks)[0]


def _switch(known: Evidence, one: Switch) -> Check:
    name = "switch"
    on, off = (known.named(f"{one.key}={state}") for state in ("on", "off"))
    if not on or not off:
        refused = next(
            (a.fault for a in known.answers if a.question.name.startswith(f"{one.key}=")), ""
        )
        return Check(
            name, Verdict.UNCLEAR, f"{one.key}: {refused or 'no answer'}",
            "the server refuses chat_template_kwargs: thinking can not be switched by request",
        )  # fmt: skip
    fed = [_fed(on), _fed(off)]
    looks = [[look(answer, known.marks) for answer in side] for side in (on, off)]
    held = [sum(bool(o.answer.reasoning.strip()) for o in side) for side in looks]
    signs = [sum(o.place is Place.MARKED_CONTENT for o in side) for side in looks]
    seen = (
        f"{one.key}: prompt tokens {fed[0]} on, {fed[1]} off; a thought in {held[0]} of"
        f" {len(on)} on, in {held[1]} of {len(off)} off"
    )
    moved = fed[0] != fed[1] and None not in (*fed[0], *fed[1])
    if held[1] and moved:
        bad = known.thinking is False
        return Check(
            name, Verdict.BAD if bad else Verdict.NOTE, seen,
            "the prompt changes, but with thinking off the answer stands in the thought's field:"
            " the parser does not know of the switch",
            mend.unswitched(known.server.kind),
        )  # fmt: skip
    if moved or held[0] + signs[0] > held[1] + signs[1]:
        return Check(name, Verdict.OK, seen, "the switch acts")
    if None in (*fed[0], *fed[1]):
        return Check(name, Verdict.UNCLEAR, seen, "the server counts no prompt tokens")
    bad = known.thinking is False and known.profile.switch is not None
    return Check(
        name, Verdict.BAD if bad else Verdict.NOTE, seen,
        "the switch changes nothing: the template does not read it, or the server drops it",
        "name another --profile, or leave --thinking out",
    )  # fmt: skip


def _fed(answers: Sequence[Answer]) -> list[int | None]:
    return [answer.prompt_tokens for answer in answers]


def history(known: Evidence) -> Check:
    """Whether the thoughts of earlier turns reach the model."""
    name = "history"
    found = {
        key: next((a.prompt_tokens for a in known.named(f"history:{key}")), None)
        for key in ("none", "reasoning", "reasoning_content")
    }
    base = found.pop("none")
    if base is None or all(n is None for n in found.values()):
        faults = [a.fault for a in known.answers if a.question.name.startswith("history:")]
        return Check(
            name, Verdict.UNCLEAR, next((f for f in faults if f), "no prompt tokens are counted"),
            "what becomes of earlier thoughts is not known; single-turn captures do not need it",
        )  # fmt: skip
    seen = f"prompt tokens {base} without a thought, " + ", ".join(
        f"{'refused' if n is None else n} with `{key}`" for key, n in found.items()
    )
    kept = [key for key, n in found.items() if n is not None and n > base]
    mode = known.profile.history
    if kept:
        return Check(
            name, Verdict.OK, seen,
            f"earlier thoughts are kept when sent as `{kept[0]}`"
            + ("" if len(kept) > 1 else ", and are lost under the other name"),
        )  # fmt: skip
    if mode is HistoryMode.KEEP_ALL:
        return Check(
            name, Verdict.NOTE, seen,
            "the family's template keeps earlier thoughts, this server drops them: in a capture of"
            " several turns the model does not see what it thought",
            mend.history(known.server.kind),
        )  # fmt: skip
    return Check(
        name, Verdict.OK, seen, "earlier thoughts are dropped, as this family's template does"
    )


def speculation(known: Evidence) -> Check:
    """Whether the server itself speculates while it is captured."""
    name, drafted = "speculation", 0
    for answer in known.answers:
        timings = answer.body.get("timings")
        n = timings.get("draft_n") if isinstance(timings, dict) else None
        drafted += n if isinstance(n, int) else 0
    counters = dict(known.told.counters)
    if drafted or any(value > 0 for value in counters.values()) or known.told.algorithm:
        seen = ", ".join(f"{key} {value:g}" for key, value in counters.items())
        seen = seen or (
            f"{drafted} drafted tokens"
            if drafted
            else f"{inert(str(known.told.algorithm), 40)} is on"
        )
        return Check(
            name, Verdict.NOTE, seen,
            "the server speculates: by design the answers stay the target's own, but a fault of the"
            " engine would be captured with them",
            mend.speculation(known.server.kind),
        )  # fmt: skip
    if counters:
        return Check(
            name,
            Verdict.NOTE,
            "configured, nothing drafted yet",
            "",
            mend.speculation(known.server.kind),
        )
    if known.told.algorithm == "":
        return Check(name, Verdict.OK, "off, says the server")
    if known.server.kind is Kind.VLLM and known.told.metrics:
        return Check(name, Verdict.OK, "off: /metrics has no counters of speculation")
    if known.server.kind is Kind.LLAMACPP:
        return Check(name, Verdict.OK, "off: no answer tells of drafted tokens")
    return Check(
        name, Verdict.UNCLEAR, "the server tells nothing of it",
        "look at its command line",
        "start SGLang with --enable-metrics" if known.server.kind is Kind.SGLANG else "",
    )  # fmt: skip
