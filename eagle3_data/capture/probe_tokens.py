"""Checks of the tokens: do ids arrive, are they those of our own encoding, what is counted.

What enters: `Evidence`, and `Tokens` where there is a tokenizer. What leaves: `Check`s. It promises
that a difference between the server's prompt and ours is shown with its text and a likely cause.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from eagle3_data.capture import probe_mend as mend
from eagle3_data.capture.probe_answers import Answer
from eagle3_data.capture.probe_check import Check, Evidence, Verdict, counted, quote
from eagle3_data.capture.server import Kind

if TYPE_CHECKING:
    from eagle3_data.tokens.tokenizer import Tokenizer

NO_TOKENIZER = "pass --tokenizer DIR"


@dataclass(frozen=True, slots=True)
class Rebuilt:
    """An answer as `check` would take it: its grade, and the prompt that we render for it."""

    answer: Answer
    grade: str | None
    reason: str
    own: list[int] | None
    why_not: str


@dataclass(frozen=True, slots=True)
class Tokens:
    """What needs a tokenizer. `stops`: ids that end a turn. `dated`: the chat template asks for the
    time.
    """

    tokenizer: Tokenizer
    stops: frozenset[int]
    dated: bool
    rebuilt: Sequence[Rebuilt]


def ids(known: Evidence) -> Check:
    """Whether ids are to be had, and how."""
    name = "token ids"
    if known.ids_body:
        found = [a for a in known.named("open") if a.completion_ids]
        both = sum(a.prompt_ids is not None for a in found)
        total = len(known.named("open"))
        seen = f"{_fields(known.ids_body)}: {len(found)} of {total} answers hold completion ids"
        seen += f", {both} prompt ids"
        if len(found) < total:
            return Check(name, Verdict.NOTE, seen, "rows without ids prove less than grade A")
        means = "rows are exact (grade A)"
        if not both:
            means += "; prompts are rendered by the chat template, which must be the server's"
        return Check(name, Verdict.OK, seen, means)
    tries = [f"{_fields(way.body)}: {answer.fault or 'no ids'}" for way, answer in known.ids_tries]
    return Check(
        name, Verdict.NOTE, "; ".join(tries) or "this server has no way to give ids",
        "rows are re-assembled from text: grade B where the count fits, C to E else",
        mend.ids(known.server.kind),
    )  # fmt: skip


def _fields(body: Mapping[str, object]) -> str:
    return "+".join(key for key in body if key != "response_fields")


def grades(known: Evidence, tokens: Tokens | None) -> Check:
    """How `check` would grade the answers, and whether ids and texts belong together."""
    name = "grade"
    if tokens is None:
        return Check(name, Verdict.NOT_MADE, "no tokenizer", mend=NO_TOKENIZER)
    rows = [r for r in tokens.rebuilt if r.answer.question.name == "open"]
    if not rows:
        return Check(name, Verdict.UNCLEAR, "no open question was answered")
    foreign = _foreign(rows, tokens.tokenizer, known.marks.opens)
    if foreign is not None:
        return Check(
            name, Verdict.BAD, foreign, "the tokenizer is not the one of the served model",
            "pass the folder of the served model with --tokenizer",
        )  # fmt: skip
    seen = counted([f"{r.grade or 'no grade'} ({r.reason})" for r in rows])
    bad = sum(r.grade in (None, "E") for r in rows)
    if bad * 2 > len(rows):
        exact = any(r.answer.completion_ids for r in rows)  # ids that contradict the server's count
        verdict = Verdict.BAD if exact else Verdict.NOTE
        return Check(name, verdict, seen, "most rows would be put aside", "see the other rows")
    worst = max((r.grade or "E") for r in rows)
    if bad or worst == "D":
        return Check(name, Verdict.NOTE, seen, "rows of grade E are put aside, D proves nothing")
    return Check(name, Verdict.OK, seen)


def _foreign(rows: Sequence[Rebuilt], tokenizer: Tokenizer, opens: Sequence[str]) -> str | None:
    """Evidence that the ids are another tokenizer's. `opens`: a server may write the marker that
    the prompt ends in before the text.
    """
    held = [r.answer for r in rows if r.answer.completion_ids]
    texts = tokenizer.decode([a.completion_ids or [] for a in held]) if held else []
    wrong = [
        (answer, text)
        for answer, text in zip(held, texts, strict=True)
        if _core(answer.content, opens) not in text or answer.reasoning.strip() not in text
    ]
    if not wrong or len(wrong) * 2 <= len(held):
        return None
    answer, text = wrong[0]
    return (
        f"{len(wrong)} of {len(held)} id lists decode to another text: {quote(text)} for"
        f" {quote(answer.text)}"
    )


def _core(text: str, opens: Sequence[str]) -> str:
    text = text.strip()
    for marker in opens:
        text = text.removeprefix(marker).strip()
    return text


def prompt(known: Evidence, tokens: Tokens | None) -> Check:
    """Whether our own encoding of the request is what the server fed."""
    name = "prompt"
    if tokens is None:
        return Check(name, Verdict.NOT_MADE, "no tokenizer", mend=NO_TOKENIZER)
    # what becomes of history is a check of its own
    rows = [r for r in tokens.rebuilt if r.own is not None and not _of_history(r)]
    if not rows:
        why = next((r.why_not for r in tokens.rebuilt if r.why_not), "no answers")
        return Check(
            name, Verdict.UNCLEAR, f"no prompt could be rendered ({why})",
            "prompts of rows without ids can not be rebuilt", "pass --chat-template FILE",
        )  # fmt: skip
    exact = sum(r.answer.prompt_ids is not None for r in rows)
    compared = [(r, _theirs(r.answer, tokens.tokenizer)) for r in rows]
    differ = [(r, theirs) for r, theirs in compared if theirs is not None and theirs != r.own]
    miscounted = [
        r
        for r in rows
        if r.answer.prompt_tokens is not None and r.answer.prompt_tokens != len(r.own or ())
    ]
    kept = bool(exact)
    if (differ or miscounted) and not kept and known.mode is False and known.expected:
        count = len({id(r) for r in (*(r for r, _ in differ), *miscounted)})
        return Check(
            name, Verdict.NOTE, f"{count} of {len(rows)} prompts differ",
            "thinking is off by default, see: thought",
        )  # fmt: skip
    if differ:
        row, theirs = min(differ, key=lambda pair: _has_system(pair[0]))
        assert theirs is not None and row.own is not None
        cause = _cause(row, theirs, tokens)
        return Check(
            name, Verdict.NOTE if kept else Verdict.BAD,
            f"{len(differ)} of {len(rows)} prompts differ: {cause}",
            "the server's own prompt ids are stored, and used"
            if kept
            else "rebuilt prompts would not be those that were fed",
            "" if kept else "pass the server's template with --chat-template FILE",
        )  # fmt: skip
    if miscounted:
        one = miscounted[0]
        return Check(
            name, Verdict.NOTE if kept else Verdict.BAD,
            f"{len(miscounted)} of {len(rows)} prompts have another length: the server counts"
            f" {one.answer.prompt_tokens}, ours has {len(one.own or ())}",
            "template, default system prompt, date or BOS differ; rebuilt prompts would be wrong",
            "pass the server's template with --chat-template FILE",
        )  # fmt: skip
    how = "ids" if exact else "texts" if any(t is not None for _, t in compared) else "lengths"
    means = "template, default system prompt and BOS are the server's"
    if tokens.dated:
        return Check(
            name, Verdict.NOTE, f"{len(rows)} prompts have the same {how}",
            f"{means}; the template writes today's date, so that prompts change from day to day",
        )  # fmt: skip
    if how == "lengths" and all(r.answer.prompt_tokens is None for r in rows):
        return Check(name, Verdict.UNCLEAR, "the server tells neither ids nor counts of prompts")
    return Check(name, Verdict.OK, f"{len(rows)} of {len(rows)} prompts have the same {how}", means)


def _theirs(answer: Answer, tokenizer: Tokenizer) -> list[int] | None:
    """The prompt that the server fed, as ids: given, or its text encoded (llama.cpp)."""
    if answer.prompt_ids is not None:
        return answer.prompt_ids
    text = answer.prompt_text
    return [int(i) for i in tokenizer.encode_marked([text])[0]] if text else None


def _of_history(row: Rebuilt) -> bool:
    return row.answer.question.name.startswith("history:")


def _has_system(row: Rebuilt) -> bool:
    return any(m.get("role") == "system" for m in row.answer.question.messages)


def _cause(row: Rebuilt, theirs: list[int], tokens: Tokens) -> str:
    """Where two prompts part, and why that may be."""
    own = row.own or []
    least = min(len(own), len(theirs))
    head = next((i for i in range(least) if own[i] != theirs[i]), least)
    tail = next((i for i in range(least - head) if own[-1 - i] != theirs[-1 - i]), least - head)
    ours = tokens.tokenizer.decode([own[head : len(own) - tail]])[0]
    told = tokens.tokenizer.decode([theirs[head : len(theirs) - tail]])[0]
    where = f"at token {head} the server has {quote(told)}, ours {quote(ours)}"
    bos = tokens.tokenizer.bos_id
    if (
        bos is not None
        and head < 2
        and {len(theirs) - len(own)} <= {-1, 1}
        and (theirs[:1] == [bos] or own[:1] == [bos])
    ):
        return f"{where} (BOS)"
    if tokens.dated and any(c.isdigit() for c in ours + told):
        return f"{where} (the date of the template)"
    if not _has_system(row) and head < 8 and tail != 0:
        return f"{where} (a default system prompt)"
    if tail == 0:
        return f"{where} (the end of the prompt: thinking is switched otherwise)"
    return f"{where} (another chat template)"


def stop_token(known: Evidence, tokens: Tokens | None) -> Check:
    """Whether completion_tokens counts the token that ends the turn."""
    name = "stop token"
    stops = {m.id for m in (*known.profile.end_of_turn, *known.profile.stop) if m.id is not None}
    stops |= set() if tokens is None else tokens.stops
    verdicts = [_counts(a, stops) for a in known.named("open") if a.finish == "stop"]
    how = "by ids"
    if not any(v is not None for v in verdicts):
        verdicts, how = _repeats(known), "asked again with one token less"
    told = Counter(v for v in verdicts if v is not None)
    if not told:
        return Check(
            name, Verdict.UNCLEAR, "no finished answer could be counted",
            "whether the stop token is counted is not known: grade B needs it",
        )  # fmt: skip
    seen = counted(["counted" if v else "not counted" for v in verdicts if v is not None])
    if len(told) > 1:
        return Check(name, Verdict.UNCLEAR, f"{seen} ({how})", "the answers contradict each other")
    counts = next(iter(told))
    stated = known.profile.counts_stop_token.get(known.server.kind.value)
    if stated is None and known.server.kind in (Kind.VLLM, Kind.LLAMACPP):
        stated = True
    if stated is not None and stated is not counts:
        return Check(
            name, Verdict.NOTE, f"{seen} ({how})",
            f"the profile says otherwise: counts_stop_token of {known.server.kind.value}",
            f'set counts_stop_token = {{ "{known.server.kind.value}" = {str(counts).lower()} }} in'
            " the profile",
        )  # fmt: skip
    means = "completion_tokens is a checksum of re-assembled rows"
    state = f'counts_stop_token = {{ "{known.server.kind.value}" = {str(counts).lower()} }}'
    flag = "" if stated is not None else f"state it in the profile, grades rise: {state}"
    return Check(name, Verdict.OK, f"{seen} ({how})", means, flag)


def _counts(answer: Answer, stops: set[int]) -> bool | None:
    found, count = answer.completion_ids, answer.completion_tokens
    if found is None or count is None:
        return None
    ended = found[-1] in stops
    if len(found) == count:
        return True if ended else None
    return False if ended and len(found) - 1 == count else None


def _repeats(known: Evidence) -> list[bool | None]:
    """The same text with one token less: the token that is missing was the end of the turn."""
    out: list[bool | None] = []
    for first in known.named("greedy"):
        n = first.completion_tokens
        if first.finish != "stop" or n is None or not first.text.strip():
            continue
        for second in known.named("again"):
            same = second.question.messages == first.question.messages
            if same and second.question.max_tokens == n - 1 and second.completion_tokens == n - 1:
                out.append(second.text == first.text)
    return out
