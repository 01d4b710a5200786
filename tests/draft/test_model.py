"""The drafter against a plain reading of EAGLE-3: logits, gradients, no leak between samples."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("torch")

import plain_drafter
import torch

from eagle3_data.draft import model
from eagle3_data.draft.batches import order, pack, predicted, rows_of
from eagle3_data.draft.mapping import Mapping
from eagle3_data.draft.model import Drafter, Shape, rope_of
from eagle3_data.draft.train import losses

torch.set_num_threads(1)

SHAPE = Shape(
    hidden_size=12,
    intermediate_size=20,
    heads=4,
    kv_heads=2,
    head_dim=6,
    vocab_size=30,
    draft_vocab_size=11,
    eps=1e-5,
    max_positions=64,
    rope={"rope_type": "default", "rope_theta": 100.0},
    aux=3,
)
STEPS = 3
FLAGS: list[dict[str, Any]] = [
    {},
    {"norm_before_residual": True},
    {"norm_before_fc": True},
    {"fc_norm": True},
    {"norm_output": True},
    {"fc_norm": True, "norm_output": True, "norm_before_residual": True},
]


def drafter(shape: Shape = SHAPE, seed: int = 0) -> Drafter:
    torch.manual_seed(seed)
    made = Drafter(shape, torch.randn(shape.vocab_size, shape.hidden_size))
    with torch.no_grad():
        for name, parameter in made.named_parameters():
            if "norm" in name:
                parameter.uniform_(0.5, 1.5)
    return made


def sample(length: int, prompt: int, seed: int, shape: Shape = SHAPE) -> Any:
    random = torch.Generator().manual_seed(seed)
    ids = torch.randint(0, shape.vocab_size, (length,), generator=random)
    return SimpleNamespace(
        sample_id=str(seed),
        input_ids=ids,
        loss_mask=torch.arange(length) >= prompt,
        aux=torch.randn(length, shape.aux * shape.hidden_size, generator=random),
        final=torch.randn(length, shape.hidden_size, generator=random),
    )


SAMPLES = [sample(9, 4, 1), sample(3, 1, 2), sample(14, 6, 3), sample(5, 5, 4)]
HEAD = torch.randn(30, 12, generator=torch.Generator().manual_seed(9))
TARGETS = [0, 2, 3, 7, 8, 11, 15, 16, 20, 25, 29]
MAPPING = Mapping(torch.tensor(TARGETS).numpy(), 30)


def known(one: Any) -> torch.Tensor:
    best = (one.final[predicted(one)] @ HEAD.T).argmax(-1)
    return torch.isin(best, torch.tensor(TARGETS))


def product_loss(made: Drafter, samples: list[Any], decay: float) -> torch.Tensor:
    batch = pack(samples, [known(one) for one in samples], STEPS)
    wanted = torch.softmax(batch.final @ HEAD[TARGETS].T, -1)
    total = torch.zeros(())
    for k, (part, _) in enumerate(losses(made, wanted, batch)):
        total = total + decay**k * part / max(len(batch.pairs[k][0]), 1)
    return total


@pytest.mark.parametrize("flags", FLAGS, ids=lambda f: "+".join(f) or "plain")
def test_logits_are_those_of_the_plain_reading(flags: dict[str, bool]) -> None:
    shape = replace(SHAPE, **flags)
    made = drafter(shape)
    batch = pack(SAMPLES, [known(one) for one in SAMPLES], STEPS)
    with torch.no_grad():
        ours = [
            made.lm_head(state)
            for state in made.unroll(batch.aux, batch.tokens, batch.positions, batch.bounds)
        ]
        weights = made.state_dict()
        for one, (start, _) in zip(SAMPLES, batch.bounds, strict=True):
            plain = plain_drafter.logits(
                weights, shape, made.embedding, one.aux, one.input_ids.tolist(), STEPS
            )
            for step in range(STEPS):
                assert sorted(plain[step]) == list(range(max(len(one.input_ids) - 2 - step, 0)))
                for i, logits in plain[step].items():
                    torch.testing.assert_close(ours[step][start + i], logits, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("flags", FLAGS, ids=lambda f: "+".join(f) or "plain")
def test_loss_and_gradients_are_those_of_the_plain_reading(flags: dict[str, bool]) -> None:
    shape = replace(SHAPE, **flags)
    made = drafter(shape)
    ours = product_loss(made, SAMPLES, 0.8)
    ours.backward()
    copies = {n: t.detach().clone().requires_grad_() for n, t in made.named_parameters()}
    plain = plain_drafter.loss(copies, shape, made.embedding, HEAD, TARGETS, SAMPLES, STEPS, 0.8)
    plain.backward()
    torch.testing.assert_close(ours.detach(), plain.detach(), rtol=1e-5, atol=1e-6)
    for name, parameter in made.named_parameters():
        wanted = copies[name].grad
        assert wanted is not None and wanted.abs().max() > 0, name
        torch.testing.assert_close(parameter.grad, wanted, rtol=1e-3, atol=1e-5)


def test_a_sample_among_others_is_the_sample_alone() -> None:
    made = drafter()
    together = pack(SAMPLES, [known(one) for one in SAMPLES], STEPS)
    with torch.no_grad():
        packed = list(
            made.unroll(together.aux, together.tokens, together.positions, together.bounds)
        )
        for one, (start, end) in zip(SAMPLES, together.bounds, strict=True):
            lone = pack([one], [known(one)], STEPS)
            alone = made.unroll(lone.aux, lone.tokens, lone.positions, lone.bounds)
            for ours, own in zip(packed, alone, strict=True):
                torch.testing.assert_close(ours[start:end], own, rtol=1e-5, atol=1e-6)


def test_no_row_sees_another_sample_or_what_comes_after_it() -> None:
    made = drafter()
    changed = sample(14, 6, 5)
    other = [SAMPLES[0], SAMPLES[1], changed, SAMPLES[3]]
    late = SimpleNamespace(**vars(SAMPLES[2]))
    late.aux, late.final = SAMPLES[2].aux.clone(), SAMPLES[2].final
    late.aux[8:] += 1
    with torch.no_grad():
        states = []
        for samples in (SAMPLES, other, [*SAMPLES[:2], late, SAMPLES[3]]):
            batch = pack(samples, [known(one) for one in samples], STEPS)
            states.append(
                torch.stack(
                    list(made.unroll(batch.aux, batch.tokens, batch.positions, batch.bounds))
                )
            )
    start, end = batch.bounds[2]
    assert torch.equal(states[0][:, :start], states[1][:, :start])
    assert torch.equal(states[0][:, end:], states[1][:, end:])
    assert not torch.equal(states[0][:, start:end], states[1][:, start:end])
    torch.testing.assert_close(states[0][:, start : start + 8], states[2][:, start : start + 8])
    assert not torch.allclose(states[0][:, start + 8 : end], states[2][:, start + 8 : end])


def test_a_sample_in_blocks_is_the_sample_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    grads = []
    for block in (1024, 4):
        monkeypatch.setattr(model, "BLOCK", block)
        made = drafter()
        loss = product_loss(made, SAMPLES, 0.8)
        loss.backward()
        grads.append((loss.detach(), {n: p.grad for n, p in made.named_parameters()}))
    torch.testing.assert_close(grads[0], grads[1])


def test_the_mask_is_that_of_the_predicted_token() -> None:
    """Ten tokens, the target sampled 6, 7, 8, 9 and everything is in the vocabulary: rows 4 to 7
    count at step 0, one row less far at each step.
    """
    one = sample(10, 6, 1)
    batch = pack([one], [torch.ones(4, dtype=torch.bool)], STEPS)
    rows = [pair[0].tolist() for pair in batch.pairs]
    assert rows == [[4, 5, 6, 7], [3, 4, 5, 6], [2, 3, 4, 5]]
    assert torch.equal(batch.final, one.final[5:9])
    tokens, positions = rows_of(one, STEPS)
    assert positions.tolist() == list(range(8))
    assert tokens[0].tolist() == one.input_ids[1:9].tolist()
    assert tokens[2].tolist() == [*one.input_ids[3:10].tolist(), int(one.input_ids[9])]


def test_rows_whose_target_is_outside_the_vocabulary_do_not_count() -> None:
    one = sample(10, 6, 1)
    batch = pack([one], [torch.tensor([True, False, True, False])], STEPS)
    assert [pair[0].tolist() for pair in batch.pairs] == [[4, 6], [3, 5], [2, 4]]
    assert batch.supervised == [4, 4, 4]
    assert torch.equal(batch.final, one.final[[5, 7]])


def test_a_sample_that_is_sampled_from_its_start_has_rows_before_none() -> None:
    one = sample(5, 0, 1)
    assert predicted(one).tolist() == [1, 2, 3]  # token 1 has no row: no state before it is left
    batch = pack([one], [torch.ones(3, dtype=torch.bool)], STEPS)
    assert [pair[0].tolist() for pair in batch.pairs] == [[0, 1, 2], [0, 1], [0]]


def test_packs_hold_every_sample_once_within_the_budget() -> None:
    lengths = [5, 9, 2, 40, 7, 7, 3, 12, 1, 30]
    for epoch in range(3):
        packs = order(lengths, 20, 1, epoch)
        assert sorted(i for one in packs for i in one) == [0, 1, 3, 4, 5, 6, 7, 9]
        assert all(len(one) == 1 or sum(lengths[i] for i in one) <= 20 for one in packs)
    assert order(lengths, 20, 1, 0) == order(lengths, 20, 1, 0)
    assert order(lengths, 20, 1, 0) != order(lengths, 20, 1, 1)


@pytest.mark.parametrize(
    "rope",
    [
        {"rope_type": "default", "rope_theta": 5e4},
        {
            "rope_type": "yarn",
            "rope_theta": 5e4,
            "factor": 8.0,
            "original_max_position_embeddings": 16,
            "beta_fast": 32.0,
            "beta_slow": 1.0,
        },
        {
            "rope_type": "llama3",
            "rope_theta": 5e4,
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 16,
        },
    ],
    ids=lambda rope: rope["rope_type"],
)
def test_rope_is_that_of_transformers(rope: dict[str, Any]) -> None:
    from transformers import LlamaConfig
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding, apply_rotary_pos_emb

    shape = replace(SHAPE, rope=rope, head_dim=8)
    config = LlamaConfig(
        head_dim=8, max_position_embeddings=64, num_attention_heads=4, rope_parameters=dict(rope)
    )
    frequencies, scale = rope_of(shape)
    theirs = LlamaRotaryEmbedding(config)
    torch.testing.assert_close(frequencies, theirs.inv_freq)
    assert scale == theirs.attention_scaling
    x = torch.randn(1, 4, 20, 8)
    cos, sin = theirs(x, torch.arange(20)[None])
    wanted, _ = apply_rotary_pos_emb(x, x, cos, sin)
    made = Drafter(shape, torch.zeros(30, 12))
    turned = model.rotate(x[0].transpose(0, 1), made._turn(torch.arange(20)))
    torch.testing.assert_close(turned.transpose(0, 1)[None], wanted)
