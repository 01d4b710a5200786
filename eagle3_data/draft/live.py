"""What an engine counts while it speculates: scrapes of /metrics, SGLang's facts of an answer.

What enters: texts of /metrics before and after, bodies of answers. What leaves: a `Counted`: steps,
accepted drafts, P_k where the engine tells it. It promises that engines are summed, that `_created`
series tell a restart and are never counted, that only the difference of two scrapes is called a
measurement, and that what an engine does not tell is None.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson

_SERIES = re.compile(
    r"^(?:vllm|llamacpp):spec_decode_num_(drafts|draft_tokens|accepted_tokens(?:_per_pos)?)"
    r'(?:_total)?(?:\{((?:[^"}]|"(?:[^"\\]|\\.)*")*)\})?\s+(\S+)',
    re.MULTILINE,
)
_MADE = re.compile(
    r"^(?:vllm:generation_tokens_total|llamacpp:tokens_predicted_total)"
    r'(?:\{(?:[^"}]|"(?:[^"\\]|\\.)*")*\})?\s+(\S+)',
    re.MULTILINE,
)
_CREATED = re.compile(
    r'^vllm:spec_decode_num_drafts_created(?:\{((?:[^"}]|"(?:[^"\\]|\\.)*")*)\})?\s+(\S+)',
    re.MULTILINE,
)
_GAUGE = re.compile(r"^sglang:spec_accept_length(?:\{[^}]*\})?\s+(\S+)", re.MULTILINE)
_POSITION = re.compile(r'(?:^|,)\s*position="(\d+)"')


class LiveError(ValueError):
    """Counters that can not be read or compared; the message names the next step."""


@dataclass(frozen=True, slots=True)
class Scrape:
    """Counters at one moment, all engines together. `positions`: accepted drafts at each place;
    `made`: generated tokens, None where the engine does not count them. `length`: a mean acceptance
    length that an engine tells by itself, since it was started or of its last interval. `created`:
    labels of an engine → when it began to count, empty where it does not say.
    """

    found: bool = False
    drafts: float = 0.0
    drafted: float = 0.0
    accepted: float = 0.0
    positions: Mapping[int, float] = field(default_factory=dict)
    made: float | None = None
    length: float | None = None
    created: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Counted:
    """What an engine counted. `drafts`: verification steps, 0 when they are not told; `p`: P_1 …
    P_K, None when they are not told. `told_length`: used where there are no counts.
    """

    source: str
    drafts: float
    accepted: float
    p: list[float] | None
    told_length: float | None = None

    @property
    def length(self) -> float:
        """Acceptance length: tokens of a step, the target's own included."""
        if self.told_length is not None:
            return self.told_length
        return 1 + self.accepted / self.drafts

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "source": self.source,
            "steps": self.drafts or None,
            "acceptance_length": round(self.length, 6),
            "p": None if self.p is None else [round(value, 6) for value in self.p],
        }


def scrape(text: str) -> Scrape:
    """Read a page of /metrics, or SGLang's server_info as JSON."""
    if text.lstrip().startswith("{"):
        return Scrape(length=told_length(text))
    sums = {"drafts": 0.0, "draft_tokens": 0.0, "accepted_tokens": 0.0}
    positions: dict[int, float] = {}
    found = False
    for name, labels, value in _SERIES.findall(text):
        if name != "accepted_tokens_per_pos":
            sums[name] += _number(value)
            found = found or name == "drafts"
        elif place := _POSITION.search(labels):
            at = int(place[1])
            positions[at] = positions.get(at, 0.0) + _number(value)
    made = [_number(value) for value in _MADE.findall(text)]
    gauges = [_number(value) for value in _GAUGE.findall(text)]
    return Scrape(
        found,
        sums["drafts"],
        sums["draft_tokens"],
        sums["accepted_tokens"],
        dict(sorted(positions.items())),
        sum(made) if made else None,
        sum(gauges) / len(gauges) if gauges else None,
        {labels: _number(value) for labels, value in _CREATED.findall(text)},
    )


def told_length(text: str) -> float | None:
    """SGLang's mean since its start, out of server_info."""
    try:
        body = orjson.loads(text)
    except orjson.JSONDecodeError:
        return None
    states = body.get("internal_states") if isinstance(body, dict) else None
    values = [
        one["avg_spec_accept_length"]
        for one in (states if isinstance(states, list) else [])
        if isinstance(one, dict) and isinstance(one.get("avg_spec_accept_length"), int | float)
    ]
    return sum(values) / len(values) if values else None


def between(before: Scrape, after: Scrape, source: str = "counters of /metrics") -> Counted | None:
    """The difference of two scrapes, None when nothing was drafted. Raises LiveError."""
    drafts, accepted = after.drafts - before.drafts, after.accepted - before.accepted
    again = "measure once more, or swap the files when they are in the wrong order"
    if drafts < 0 or accepted < 0:
        raise LiveError(
            f"the counters went down between the two scrapes: the engine was started again; {again}"
        )
    if any(after.created.get(labels, at) != at for labels, at in before.created.items()):
        raise LiveError(
            "an engine began to count between the two scrapes (its `_created` is another): it was"
            f" started again; {again}"
        )
    if not drafts:
        return None
    p = None
    if after.positions:
        p = [
            (value - before.positions.get(at, 0.0)) / drafts
            for at, value in sorted(after.positions.items())
        ]
    return Counted(source, drafts, accepted, p)


def of_answers(bodies: Sequence[Mapping[str, Any]]) -> Counted | None:
    """What answers tell of their own steps, summed: SGLang's meta_info, llama.cpp's timings. None
    when one of them tells nothing.
    """
    steps = accepted = 0.0
    histogram: list[float] = []
    source = ""
    for body in bodies:
        meta = _meta(body)
        told = _whole(meta, "spec_verify_ct")
        right = _whole(
            meta, "spec_num_correct_drafts", "spec_accepted_drafts", "spec_accept_token_num"
        )
        if told is not None and right is not None:
            source = "meta_info of the answers"
            rows = meta.get("spec_correct_drafts_histogram") or meta.get("spec_accept_histogram")
            rows = rows if isinstance(rows, list) else []
            histogram += [0.0] * (len(rows) - len(histogram))
            for accepted_drafts, count in enumerate(rows):
                histogram[accepted_drafts] += float(count)
        else:
            timings = body.get("timings")
            right = _whole(timings, "draft_n_accepted")
            made = _whole(timings, "predicted_n")
            if right is None or made is None:
                return None
            source = "timings of the answers"
            # the first token comes from the prompt, and each step says one of its own
            told = max(made - 1 - right, 0)
        steps += told
        accepted += right
    if not steps:
        return None
    p = None
    if len(histogram) > 1 and sum(histogram) == steps:
        p = [sum(histogram[k:]) / steps for k in range(1, len(histogram))]
    return Counted(source, steps, accepted, p)


def _meta(body: Mapping[str, Any]) -> Mapping[str, Any]:
    choices = body.get("choices")
    first = choices[0] if isinstance(choices, list) and choices else {}
    for place in (first, body):
        found = place.get("meta_info") if isinstance(place, dict) else None
        if isinstance(found, dict):
            return found
    return {}


def _whole(place: object, *names: str) -> int | None:
    if not isinstance(place, Mapping):
        return None
    found: Iterable[Any] = (place.get(name) for name in names)
    return next((v for v in found if isinstance(v, int) and not isinstance(v, bool)), None)


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise LiveError(
            f"a counter is {text[:40]!r}, not a number: scrape /metrics again"
        ) from None
