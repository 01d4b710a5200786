"""VOC: what `vocab check` and `lint` find in a draft vocabulary. Every code with its documentation.

What enters: nothing. What leaves: `VOCAB_RULES`, code → `Rule`. They are not in the registry of the
audit: their conditions are no expressions over records, `mapping_check` decides when they fire.
"""

from __future__ import annotations

from typing import Final

import polars as pl

from eagle3_data.audit.rules.registry import Columns, Rule, Scope, Severity

VOCAB_RULES: Final[dict[str, Rule]] = {}


def _never(_: Columns) -> pl.Expr:
    return pl.lit(False)


def _voc(
    number: int, name: str, docs: str, *, at: str = "d2t", severity: Severity = Severity.ERROR
) -> str:
    code = f"VOC{number:03d}"
    VOCAB_RULES[code] = Rule(code, name, severity, at, _never, docs, Scope.CORPUS)
    return code


WRONG_TYPE = _voc(
    1,
    "mapping-wrong-type",
    """\
`d2t` is not one row of int64, or `t2d` not one row of Booleans.

Why it matters: engines add `d2t` to draft ids and index with the sum; what another type becomes
there is up to each. `t2d` as integers selects columns 0 and 1 instead of a mask.
What to do: write `d2t` as int64 and `t2d` as bool; `lint --fix` does.""",
)

HOLDS_IDS = _voc(
    2,
    "mapping-holds-ids",
    """\
`d2t` holds target ids, where engines expect offsets (target id - draft id).

Why it matters: every engine adds the draft id once more, so drafted tokens are others, or lie
outside the vocabulary. Seen in vLLM: the server starts, says that it is healthy, and dies at the
first request.
What to do: subtract 0, 1, 2, … from it; `lint --fix` does.""",
)

OUT_OF_RANGE = _voc(
    3,
    "mapping-out-of-range",
    """\
A draft id leads to a target id below 0, or not below the size of the target's vocabulary.

Why it matters: the engine writes outside its logits: it fails, or accepts nothing there.
What to do: build the mapping anew for this target, or restore the drafter's own.""",
)

REPEATED = _voc(
    4,
    "mapping-repeated",
    """\
Two draft ids lead to one target id. A `d2t` of zeros only is the identity, and not meant here.

Why it matters: one of the two rows of the head is never used, and what it stood for is missing.
What to do: build the mapping anew, or restore the drafter's own.""",
)

T2D_DIFFERS = _voc(
    5,
    "t2d-differs",
    """\
`t2d` does not mark exactly the target ids that `d2t` leads to.

Why it matters: training takes its targets by `t2d`, engines propose by `d2t`: the head's rows
belong to other tokens than those that are proposed.
What to do: one of the two is of another run; restore the pair. `lint --fix` makes `t2d` out of
`d2t`, which is right when only `t2d` is wrong.""",
    at="t2d",
)

UNSORTED = _voc(
    6,
    "mapping-unsorted",
    """\
The target ids are not in ascending order.

Why it matters: engines do not mind. Training that takes the target's logits by mask
(`logits[..., t2d]`: EAGLE, SpecForge) gets them in ascending order, so its targets are permuted
against the head.
What to do: nothing for serving. For training sort the ids, and the rows of the head with them.""",
    severity=Severity.WARN,
)

T2D_MISSING = _voc(
    7,
    "t2d-missing",
    """\
There is a `d2t`, but no `t2d`.

Why it matters: vLLM, SGLang and llama.cpp do not read it; trainers do.
What to do: nothing for serving; `lint --fix` writes it where the target's size is known.""",
    at="t2d",
    severity=Severity.WARN,
)

SIZE_DIFFERS = _voc(
    8,
    "vocabulary-size-differs",
    """\
`t2d` has another length than the target's vocabulary has entries.

Why it matters: as a mask over the target's logits it fails. The rows of the target's head count
(`vocab_size` of its config.json), not the tokens of the tokenizer; they can be more.
What to do: build the mapping with --vocab-size, or --target, of the model that is served.""",
    at="t2d",
)

CONTROL_MISSING = _voc(
    9,
    "control-token-missing",
    """\
An end of turn, a think marker or a tool marker of the profile has no draft id.

Why it matters: the drafter can never propose it: each occurrence ends an accepted run.
What to do: build the vocabulary with `vocab`, which always has them. A drafter that is trained on
must keep its own mapping: then this is the price.""",
    severity=Severity.WARN,
)

NOT_THE_DRAFTERS = _voc(
    10,
    "mapping-not-the-drafters",
    """\
The mapping is not that of the drafter whose weights are to be trained on.

Why it matters: row i of its head was trained for another token. With a rebuilt mapping the rows
are permuted in silence, and training starts from less than nothing.
What to do: take the drafter's own: `vocab SHARDS -o DIR --inherit DRAFT`.""",
)
