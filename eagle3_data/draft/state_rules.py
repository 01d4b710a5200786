"""HID: what the self-check of an extraction finds in hidden states. Every code with its
documentation.

What enters: nothing. What leaves: `STATE_RULES`, code → `Rule`. They are not in the registry of the
audit: their conditions are no expressions over records, `selfcheck` decides when they fire.
"""

from __future__ import annotations

from typing import Final

import polars as pl

from eagle3_data.audit.rules.registry import Columns, Rule, Scope, Severity

STATE_RULES: Final[dict[str, Rule]] = {}


def _never(_: Columns) -> pl.Expr:
    return pl.lit(False)


def _hid(
    number: int, name: str, docs: str, *, at: str = "final", severity: Severity = Severity.ERROR
) -> str:
    code = f"HID{number:03d}"
    STATE_RULES[code] = Rule(code, name, severity, at, _never, docs, Scope.CORPUS)
    return code


ROWS_DIFFER = _hid(
    1,
    "state-rows-differ",
    """\
A sample has another number of states than ids, or states of other ids.

Why it matters: row i would be trained as the state of another token; nothing later notices.
What to do: extract again; with an engine, switch off what leaves rows out (prefix caching).""",
    at="aux",
)

NOT_FINITE = _hid(
    2,
    "state-not-finite",
    """\
A state holds NaN or infinity.

Why it matters: one such row makes the loss of its batch NaN, and training never recovers.
What to do: extract with --dtype bf16 or fp32 (fp16 overflows at 65,504, states of large models are
larger), or look for a damaged weight file.""",
    at="aux",
)

CONSTANT = _hid(
    3,
    "state-constant",
    """\
All rows of a sample hold the same state in a layer.

Why it matters: the state says nothing about the text; typical of a buffer that was never filled.
What to do: extract again; with an engine, check that it captured the layers asked for.""",
    at="aux",
)

SHIFTED = _hid(
    4,
    "state-shifted",
    """\
A state belongs to the token before or after its own.

Why it matters: the drafter learns to predict from the wrong place: acceptance near zero, or a
drafter that sees the answer in training and fails when it serves. Measured: the head on the final
state finds 98.7 % of greedily sampled tokens, one row off 0.9 %.
What to do: look for what drops or adds the first row; extract again.""",
)

NORM_MISSING = _hid(
    5,
    "final-norm-missing",
    """\
The final state lacks the target's last norm, though the manifest says "post".

Why it matters: the head reads numbers of another scale, so the distribution that is trained is
another one. Measured: the head finds 28 % of greedily sampled tokens, with the norm 98.7 %. vLLM's
extraction gives the state before the norm, transformers and SGLang the one behind it.
What to do: apply the norm once, or write "pre" where it is left out on purpose.""",
)

NORM_TWICE = _hid(
    6,
    "final-norm-twice",
    """\
The target's last norm was applied twice to the final state.

Why it matters: the weights of the norm count double, the trained distribution is another one.
Measured: the head finds 40 % of greedily sampled tokens instead of 98.7 %.
What to do: take the state as transformers gives it, it has the norm.""",
)

FINAL_EARLY = _hid(
    7,
    "final-of-earlier-layer",
    """\
The final state is that of an earlier layer.

Why it matters: the drafter is trained towards a half-finished distribution. Measured: one layer
early the head finds 58 % of greedily sampled tokens, two layers early 53 %, instead of 98.7 %.
Engines that count layers by what enters them need the number of layers as the id of the last one.
What to do: ask for the output of the last layer.""",
)

LAYER_DIFFERS = _hid(
    8,
    "layer-differs",
    """\
An auxiliary state is the output of another layer than the manifest says.

Why it matters: neighbouring layers look alike (cosine 0.95 to 0.98), so training works; the engine
then feeds other layers than were trained. Measured on a small model: acceptance length 2.46 instead
of 2.64; on large ones acceptance of the first token fell from 45 % to 10 %.
What to do: mind that "output of layer k" is "k + 1" for vLLM and speculators.""",
    at="aux",
)

LEAK = _hid(
    9,
    "batch-leak",
    """\
A sample has other states in its batch than alone, and no layer, shift or norm explains them.

Why it matters: the target saw other samples or padding, so the states are of a text that never was.
What to do: batch without attention between samples; for a mixture of experts in bf16 some rows may
take other experts, which is why half of them must differ before this fires.""",
    at="aux",
)

NOT_ITS_TOKENS = _hid(
    10,
    "tokens-not-of-target",
    """\
The head on the final state rarely finds the tokens of the samples.

Why it matters: the answers were probably sampled by another model (or at a high temperature), so a
drafter of this target learns what the target would not say.
What to do: compare --target with the model of the capture; ignore it for data of another model on
purpose.
Not flagged: sampling at a temperature of one, which still takes the likeliest token most of the
time.""",
    severity=Severity.WARN,
)
