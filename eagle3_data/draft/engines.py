"""What engines make of a drafter: layers they read, faults they refuse or do not notice.

What enters: hits of the rules, each with its effect on each engine, and the layers that each engine
reads. What leaves: one line an engine. It promises to name the version whose source a verdict rests
on, and to say "unknown" where nobody looked.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from eagle3_data.draft.drafter_files import Files
from eagle3_data.draft.findings import EngineLine

VLLM, SGLANG, LLAMACPP = "vLLM", "SGLang", "llama.cpp"
ALL = (VLLM, SGLANG, LLAMACPP)

READ_AT: Final = {
    VLLM: "0.32.0",
    SGLANG: "03d5a77 (llama_eagle3.py), pull request 25454 (layer ids)",
    LLAMACPP: "build 11434",
}
"""The sources that the rules were read in. Engines change: `acceptance` measures."""

DEEPSEEK = ("deepseek", "kimi_k2", "kimi_k25")
"""Beginnings of the model types whose SGLang class adds one to layer ids only when the first is 1
(its pull request 25454, deepseek_v2.py, May 2026)."""


class Effect(StrEnum):
    """What a fault does in an engine."""

    NONE = "none"
    REFUSED = "refused"
    WRONG = "wrong"
    """It loads, and drafts wrong."""
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Hit:
    """A rule that fired. `effects`: engine → effect, none where it is not named. `change`: what to
    do, "" when the rule says it; `mend`: what `--fix` does.
    """

    code: str
    detail: str
    effects: Mapping[str, Effect]
    at: str = ""
    change: str = ""
    mend: str = ""


@dataclass(frozen=True, slots=True)
class Reading:
    """Which layers an engine reads: `outputs` of these layers; -1 is the embedding. `why`: from
    where. `also`: what another version of the engine reads, None when all agree.
    """

    outputs: list[int] | None
    why: str
    also: list[int] | None = None


def readings(files: Files, layers: int | None, model_type: str | None) -> dict[str, Reading]:
    """Engine → the layers it reads. `layers`: of the target; `model_type`: as its config says."""
    top, nested = files.ids(nested=False), files.ids(nested=True)
    default = None if layers is None else [1, layers // 2 - 1, layers - 4]
    fallback = "its default, N layers of the target: 1, N/2-1, N-4"
    vllm = top or nested
    out = {
        VLLM: Reading(default, fallback)
        if vllm is None
        else Reading([k - 1 for k in sorted(set(vllm))], "ids mean what enters a layer"),
        LLAMACPP: Reading(default, fallback)
        if top is None
        else Reading([k - 1 for k in top], "ids mean what enters a layer"),
    }
    if nested is None:
        out[SGLANG] = Reading(default, fallback)
        return out
    added, plain = list(nested), [k - 1 for k in nested]
    if nested[0] == 1:
        out[SGLANG] = Reading(added, "it adds one to each id")
    elif model_type is None:
        out[SGLANG] = Reading(
            added, "it adds one to each id; not for DeepSeek and Kimi targets since May 2026", plain
        )
    elif model_type.startswith(DEEPSEEK):
        out[SGLANG] = Reading(
            plain,
            "it adds nothing since May 2026, as the first id is not 1; before one",
            added,
        )
    else:
        out[SGLANG] = Reading(added, "it adds one to each id")
    return out


def shown(outputs: Sequence[int] | None) -> str:
    """Layers for people: `1, 14, 26`."""
    if outputs is None:
        return "1, N/2-1, N-4"
    return ", ".join("embedding" if k == -1 else str(k) for k in outputs)


def lines(
    hits: Sequence[Hit], read: Mapping[str, Reading], trained: list[int] | None
) -> tuple[EngineLine, ...]:
    """One line an engine."""
    return tuple(_line(engine, hits, read[engine], trained) for engine in ALL)


def _line(
    engine: str, hits: Sequence[Hit], reading: Reading, trained: list[int] | None
) -> EngineLine:
    struck = [(hit, hit.effects.get(engine, Effect.NONE)) for hit in hits]
    refused = [hit for hit, effect in struck if effect is Effect.REFUSED]
    wrong = [hit for hit, effect in struck if effect is Effect.WRONG]
    unknown = [hit for hit, effect in struck if effect is Effect.UNKNOWN]
    why = [f"refused: {_codes(refused)}"] if refused else []
    why += [f"loads, and drafts wrong: {_codes(wrong)}"] if wrong else []
    why += [f"nobody looked: {_codes(unknown)}"] if unknown else []
    layers, told, change = _layers(reading, trained)
    why.append(told)
    changes = dict.fromkeys([*(hit.change for hit, e in struck if e is not Effect.NONE), change])
    right = "no" if refused or wrong or layers == "no" else "unknown" if unknown else layers
    loads = "no" if refused else "unknown" if unknown else "yes"
    return EngineLine(
        engine, loads, right, "; ".join(why), ", ".join(c for c in changes if c), READ_AT[engine]
    )


def _layers(reading: Reading, trained: list[int] | None) -> tuple[str, str, str]:
    """Whether the layers are right, in words, and what to change."""
    what = f"reads outputs of layers {shown(reading.outputs)} ({reading.why})"
    if trained is None:
        return "depends", f"{what}: right if it was trained on those", ""
    if reading.outputs == trained:
        return "yes", f"{what}, as trained", ""
    return (
        "no" if reading.outputs is not None else "depends",
        f"{what}, trained on {shown(trained)}",
        "write ids for this engine" if reading.outputs is not None else "name the target",
    )


def _codes(hits: Sequence[Hit]) -> str:
    return ", ".join(dict.fromkeys(hit.code for hit in hits))
