"""Evaluate a drafter whose every draft is known, and what it refuses."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("torch")

import numpy as np
import polars as pl
import torch

from eagle3_data.draft.checkpoint import Checkpoint
from eagle3_data.draft.evaluate import EvaluateError, evaluate, marks
from eagle3_data.draft.mapping import Mapping
from eagle3_data.draft.model import Drafter, Shape
from eagle3_data.draft.train import Teacher
from eagle3_data.draft.walk import Cause

torch.set_num_threads(1)

SIZE = 16
SHAPE = Shape(
    hidden_size=SIZE, intermediate_size=4, heads=2, kv_heads=1, head_dim=8, vocab_size=60,
    draft_vocab_size=SIZE, eps=1e-6, max_positions=64, aux=1,
    rope={"rope_type": "default", "rope_theta": 100.0},
)  # fmt: skip
MAPPING = Mapping(np.arange(10, 10 + SIZE), 60)
TARGET: Any = SimpleNamespace(
    head=torch.eye(60, SIZE), normed=lambda final, _norm: final, vocab_size=60
)


def parrot() -> Checkpoint:
    """Says at every step the one token that the row's state names: all other parts are zero."""
    drafter = Drafter(SHAPE, torch.zeros(60, SIZE))
    with torch.no_grad():
        for parameter in drafter.parameters():
            parameter.zero_()
        drafter.fc.weight.copy_(torch.eye(SIZE))
        drafter.norm.weight.fill_(1)
        # the named token first, then its neighbours one by one
        drafter.lm_head.weight.copy_(
            torch.tensor([[10.0 - min(abs(i - j), 9) for j in range(SIZE)] for i in range(SIZE)])
        )
    return Checkpoint(drafter, MAPPING)


def states(samples: list[tuple[str, list[int], int, dict[int, int]]]) -> Any:
    """(conversation, ids, prompt, row → token that the drafter says there)."""
    made, rows = [], []
    for number, (conversation, ids, prompt, says) in enumerate(samples):
        aux = torch.zeros(len(ids), SIZE)
        for row, token in says.items():
            aux[row, token - 10] = 1
        spans = [
            {"kind": "prompt", "start": 0, "end": prompt},
            {"kind": "reasoning", "start": prompt, "end": prompt + 3},
            {"kind": "content", "start": prompt + 3, "end": len(ids)},
        ]
        made.append(
            SimpleNamespace(
                sample_id=str(number),
                input_ids=torch.tensor(ids),
                loss_mask=torch.arange(len(ids)) >= prompt,
                aux=aux,
                final=torch.randn(len(ids), SIZE, generator=torch.Generator().manual_seed(number)),
                spans=spans,
            )
        )
        rows.append(
            {
                "sample_id": str(number),
                "conversation_id": conversation,
                "file": f"{conversation}.jsonl",
                "split": "val",
                "grade": "A",
                "seq_len": len(ids),
            }
        )
    manifest = SimpleNamespace(
        layers=SimpleNamespace(output_of=[1]),
        facts=SimpleNamespace(tokenizer_hash="bb"),
        final_norm="post",
    )

    class Fake(SimpleNamespace):
        def __len__(self) -> int:
            return len(made)

        def sample(self, i: int) -> Any:
            return made[i]

    return Fake(index=pl.DataFrame(rows), manifest=manifest)


FIRST = (
    "a",
    [1, 1, 1, 10, 11, 11, 11, 50, 12, 13, 13],
    3,
    {2: 11, 3: 11, 4: 11, 5: 11, 6: 12, 7: 13, 8: 13},
)
"""Row 2 drafts 11 11 11: tokens 4 to 6, all right; 50 is the target's. Row 6 drafts 12 12 12: 12 is
right, then 13 was said. Row 8 drafts 13: right, and the end.
"""
SECOND = ("b", [1, 1, 10, 50, 11, 12], 2, {1: 11, 2: 11, 3: 12})
"""Row 1 drafts 11: 50 was said, which is outside the draft vocabulary. Row 2 drafts 11: right, then
12 was said. No token is left.
"""


def test_the_walk_of_a_drafter_that_is_known() -> None:
    found = evaluate(parrot(), states([FIRST, SECOND]), TARGET, bf16=False)
    assert (found.samples, found.tokens) == (2, 12)
    assert found.walk.steps == 5
    assert found.walk.p == pytest.approx([4 / 5, 1 / 5, 1 / 5])
    assert found.walk.length == pytest.approx(2.2)
    # all positions: 10 rows have a token to draft, 8 a second one, 6 a third
    assert found.every.p == pytest.approx([8 / 10, 3 / 8, 1 / 6])
    assert found.every.steps == 10
    assert found.after_prefill.p == pytest.approx([1 / 2, 1 / 2, 1 / 2])
    assert found.causes == pytest.approx(
        {Cause.OUTSIDE: 1 / 4, Cause.NEAR: 2 / 4, Cause.END: 1 / 4}
    )
    by_source = found.splits["file"]
    assert by_source["a.jsonl"].p == pytest.approx([1, 1 / 3, 1 / 3])
    assert by_source["b.jsonl"].p == pytest.approx([1 / 2, 0, 0])
    kinds = found.splits["kind"]
    assert {name: counts.steps for name, counts in kinds.items()} == {"reasoning": 3, "content": 2}
    assert found.splits["bucket"]["1-31"].p == found.walk.p


def test_one_at_a_time_is_all_at_once_and_drafts_are_a_prefix() -> None:
    whole = evaluate(parrot(), states([FIRST, SECOND]), TARGET, bf16=False)
    apart = evaluate(parrot(), states([FIRST, SECOND]), TARGET, bf16=False, batch_tokens=1)
    assert apart == whole
    one = evaluate(parrot(), states([FIRST, SECOND]), TARGET, bf16=False, drafts=1)
    # rows 2, 4, 6, 8 and 1, 2: the steps are others when one token is drafted
    assert one.walk.steps == 6
    assert one.walk.p == pytest.approx([5 / 6])


def test_chances_when_drafts_are_drawn() -> None:
    """min(1, q / p), p over the whole vocabulary of the target, q zero outside the draft's."""
    made, data = parrot(), states([FIRST, SECOND])
    teacher = Teacher(TARGET, MAPPING, "post", torch.device("cpu"), False)
    samples = [data.sample(0), data.sample(1)]
    with torch.no_grad():
        found = marks(made, samples, 2, teacher, 0.7)
        for sample, (accept, _) in zip(samples, found, strict=True):
            for i in range(len(sample.input_ids) - 2):
                state = sample.aux[i] / sample.aux[i].square().mean().add(1e-6).sqrt()
                drafted = torch.softmax(made.drafter.lm_head(state) / 0.7, -1)
                for k in range(2):
                    if i + 2 + k >= len(sample.input_ids):
                        continue
                    token = int(sample.input_ids[i + 2 + k])
                    said = torch.softmax(TARGET.head @ sample.final[i + 1 + k] / 0.7, -1)[token]
                    q = float(drafted[token - 10]) if 10 <= token < 26 else 0.0
                    assert accept[k, i] == pytest.approx(min(1.0, q / float(said)), rel=1e-4)
    sampled = evaluate(made, data, TARGET, bf16=False, temperature=0.7)
    assert 0 < sampled.walk.p[2] < sampled.walk.p[1] < sampled.walk.p[0] < 1


def test_columns_to_split_by() -> None:
    extra = pl.DataFrame({"sample_id": ["0", "1"], "topic": ["maths", None]})
    found = evaluate(
        parrot(), states([FIRST, SECOND]), TARGET, bf16=False, by=["topic", "grade"], extra=extra
    )
    assert found.splits["topic"]["maths"].steps == 3
    assert found.splits["topic"]["None"].steps == 2
    assert found.splits["grade"]["A"].steps == 5
    told = found.to_dict()
    assert told["all_positions_too_high"]["p"][0] == 0.8
    assert set(told["splits"]) == {"kind", "bucket", "file", "topic", "grade"}


@pytest.mark.parametrize(
    ("facts", "options", "message"),
    [
        ({"layers_output_of": [2]}, {}, "trained on outputs of layers"),
        ({"tokenizer_hash": "cc"}, {}, "another tokenizer"),
        ({}, {"by": ["nothing"]}, "no column nothing: there are sample_id"),
    ],
    ids=["layers", "tokenizer", "column"],
)
def test_what_does_not_belong_together_is_refused(facts, options, message) -> None:
    made = parrot()
    with pytest.raises(EvaluateError, match=message):
        evaluate(Checkpoint(made.drafter, MAPPING, facts=facts), states([FIRST]), TARGET, **options)


def test_no_sample_with_a_token_to_draft_is_refused() -> None:
    with pytest.raises(EvaluateError, match="no sample"):
        evaluate(parrot(), states([("a", [1, 1, 1, 10], 3, {})]), TARGET)
