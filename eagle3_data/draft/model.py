"""The drafter: one Llama-style layer over fused states of the target, unrolled as it is trained.

What enters: auxiliary states and token ids of packed samples. What leaves: for each draft step the
normed state that the head reads. Row i holds the state of token i and the embedding of token i + 1,
and predicts token i + 2. It promises that no row ever sees another sample, and the names, shapes
and arithmetic of the plain EAGLE-3 checkpoint (`midlayer.*`, `fc`, `norm`, `lm_head`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from eagle3_data.draft.config import ConfigError

BLOCK = 1024
"""Query rows attended at once. A longer sample goes block by block, its scores made again in the
backward pass: memory grows with the length, not with its square."""

Bounds = Sequence[tuple[int, int]]
"""Half-open row ranges of the samples of a packed batch."""


@dataclass(frozen=True, slots=True)
class Shape:
    """What the tensors and the arithmetic of a drafter follow from. `aux`: auxiliary states of a
    token; `rope`: `rope_parameters` as transformers writes them.
    """

    hidden_size: int
    intermediate_size: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab_size: int
    draft_vocab_size: int
    eps: float
    max_positions: int
    rope: Mapping[str, Any]
    aux: int = 3
    attention_bias: bool = False
    norm_before_residual: bool = False
    norm_before_fc: bool = False
    fc_norm: bool = False
    norm_output: bool = False


class Norm(nn.Module):
    """RMSNorm in float32, whatever enters."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        wide = x.float()
        return wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.eps) * self.weight


class Attention(nn.Module):
    """Grouped-query attention over the embedding and the state side by side."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        wide, size, bias = 2 * shape.hidden_size, shape.head_dim, shape.attention_bias
        self.heads, self.kv_heads, self.size = shape.heads, shape.kv_heads, size
        self.q_proj = nn.Linear(wide, shape.heads * size, bias=bias)
        self.k_proj = nn.Linear(wide, shape.kv_heads * size, bias=bias)
        self.v_proj = nn.Linear(wide, shape.kv_heads * size, bias=bias)
        self.o_proj = nn.Linear(shape.heads * size, shape.hidden_size, bias=bias)

    def forward(
        self,
        x: Tensor,
        turn: tuple[Tensor, Tensor],
        keys: list[Tensor],
        values: list[Tensor],
        bounds: Bounds,
    ) -> Tensor:
        """Appends this step's keys and values to those of the steps before."""
        rows = len(x)
        value = self.v_proj(x).view(rows, self.kv_heads, 1, self.size)
        query = rotate(self.q_proj(x).view(rows, self.heads, self.size), turn).to(value.dtype)
        key = rotate(self.k_proj(x).view(rows, self.kv_heads, self.size), turn).to(value.dtype)
        # [kv heads, queries of a kv head, rows, size]
        query = query.view(rows, self.kv_heads, -1, self.size).permute(1, 2, 0, 3)
        keys.append(key.unsqueeze(2).permute(1, 2, 0, 3))
        values.append(value.permute(1, 2, 0, 3))
        out = attend(query, keys, values, bounds)
        return self.o_proj(out.permute(2, 0, 1, 3).reshape(rows, -1))  # type: ignore[no-any-return]


def attend(q: Tensor, keys: Sequence[Tensor], values: Sequence[Tensor], bounds: Bounds) -> Tensor:
    """Attention of test-time training: causal over the keys of step 0 within a sample, and of each
    later step the row's own key alone. That is what an engine's cache holds at that draft step.
    """
    out = []
    for start, end in bounds:
        for first in range(start, end, BLOCK):
            last = min(first + BLOCK, end)
            seen, own = slice(start, last), slice(first, last)
            parts = (
                q[:, :, own],
                keys[0][:, :, seen],
                values[0][:, :, seen],
                [key[:, :, own] for key in keys[1:]],
                [value[:, :, own] for value in values[1:]],
            )
            long = end - start > BLOCK and torch.is_grad_enabled()
            out.append(checkpoint(_block, *parts, use_reentrant=False) if long else _block(*parts))
    return torch.cat(out, dim=2)


def _block(
    q: Tensor, key: Tensor, value: Tensor, own_keys: list[Tensor], own_values: list[Tensor]
) -> Tensor:
    """The last rows of a sample, `q` [kv heads, group, n, size], over its first m rows."""
    kv_heads, group, n, size = q.shape
    m = key.shape[2]
    scores = (q.reshape(kv_heads, group * n, size) @ key[:, 0].transpose(1, 2)).float()
    scores = scores.view(kv_heads, group, n, m)
    later = torch.ones(n, m, dtype=torch.bool, device=q.device).triu(m - n + 1)
    scores = scores.masked_fill(later, float("-inf"))
    own = [(q.float() * one.float()).sum(-1, keepdim=True) for one in own_keys]
    weights = torch.softmax(torch.cat([scores, *own], -1) * size**-0.5, -1).to(value.dtype)
    out = weights[..., :m].reshape(kv_heads, group * n, m) @ value[:, 0]
    out = out.view(kv_heads, group, n, size)
    for place, one in enumerate(own_values):
        out = out + weights[..., m + place, None] * one
    return out


class Mlp(nn.Module):
    """The gated feed-forward part of Llama."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(shape.hidden_size, shape.intermediate_size, bias=False)
        self.up_proj = nn.Linear(shape.hidden_size, shape.intermediate_size, bias=False)
        self.down_proj = nn.Linear(shape.intermediate_size, shape.hidden_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(nn.functional.silu(self.gate_proj(x)) * self.up_proj(x))  # type: ignore[no-any-return]


class Layer(nn.Module):
    """The first layer of an EAGLE-3 drafter."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.input_layernorm = Norm(shape.hidden_size, shape.eps)
        self.hidden_norm = Norm(shape.hidden_size, shape.eps)
        self.post_attention_layernorm = Norm(shape.hidden_size, shape.eps)
        self.self_attn = Attention(shape)
        self.mlp = Mlp(shape)
        self.norm_before_residual = shape.norm_before_residual

    def forward(
        self,
        embedded: Tensor,
        hidden: Tensor,
        turn: tuple[Tensor, Tensor],
        keys: list[Tensor],
        values: list[Tensor],
        bounds: Bounds,
    ) -> Tensor:
        normed = self.hidden_norm(hidden)
        residual = normed if self.norm_before_residual else hidden.float()
        both = torch.cat([self.input_layernorm(embedded), normed], -1)
        hidden = residual + self.self_attn(both, turn, keys, values, bounds)
        return hidden + self.mlp(self.post_attention_layernorm(hidden))  # type: ignore[no-any-return]


class Drafter(nn.Module):
    """A drafter. `embedding` [vocabulary, hidden] is the target's own, frozen, and no part of the
    state that is trained or exported.
    """

    frequencies: Tensor
    embedding: Tensor

    def __init__(self, shape: Shape, embedding: Tensor) -> None:
        super().__init__()
        self.shape = shape
        self.fc = nn.Linear(shape.aux * shape.hidden_size, shape.hidden_size, bias=False)
        if shape.norm_before_fc:
            self.input_norm = Norm(shape.aux * shape.hidden_size, shape.eps)
        if shape.fc_norm:
            norms = [Norm(shape.hidden_size, shape.eps) for _ in range(shape.aux)]
            self.fc_norm = nn.ModuleList(norms)
        self.midlayer = Layer(shape)
        self.norm = Norm(shape.hidden_size, shape.eps)
        self.lm_head = nn.Linear(shape.hidden_size, shape.draft_vocab_size, bias=False)
        frequencies, scale = rope_of(shape)
        self.rope_scale = scale
        self.register_buffer("frequencies", frequencies, persistent=False)
        self.register_buffer("embedding", embedding, persistent=False)

    def fuse(self, aux: Tensor) -> Tensor:
        """Auxiliary states [rows, aux × hidden] → one state [rows, hidden]."""
        aux = aux.to(self.fc.weight.dtype)
        if self.shape.norm_before_fc:
            aux = self.input_norm(aux)
        if self.shape.fc_norm:
            parts = zip(self.fc_norm, aux.chunk(self.shape.aux, -1), strict=True)
            aux = torch.cat([norm(part) for norm, part in parts], -1)
        return self.fc(aux)  # type: ignore[no-any-return]

    def unroll(
        self, aux: Tensor, tokens: Tensor, positions: Tensor, bounds: Bounds
    ) -> Iterator[Tensor]:
        """One normed state [rows, hidden] a draft step; `lm_head` of it are the logits.

        `tokens` [steps, rows]: what each row embeds at each step (its real tokens: within an
        accepted prefix they are what an engine would draft). `positions` [rows] of step 0.
        """
        hidden = self.fuse(aux)
        keys: list[Tensor] = []
        values: list[Tensor] = []
        for step, ids in enumerate(tokens):
            turn = self._turn(positions + step)
            embedded = self.embedding[ids]
            hidden = self.midlayer(embedded, hidden, turn, keys, values, bounds)
            normed = self.norm(hidden)
            yield normed
            if self.shape.norm_output:
                hidden = normed

    def _turn(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        angles = positions[:, None].float() * self.frequencies
        angles = torch.cat([angles, angles], -1)[:, None]  # the same for all heads
        return angles.cos() * self.rope_scale, angles.sin() * self.rope_scale


def rotate(x: Tensor, turn: tuple[Tensor, Tensor]) -> Tensor:
    """Rotary embedding of `x` [rows, heads, size], in float32."""
    cos, sin = turn
    wide = x.float()
    left, right = wide.chunk(2, -1)
    return wide * cos + torch.cat([-right, left], -1) * sin


def rope_of(shape: Shape) -> tuple[Tensor, float]:
    """Rotary frequencies and the factor on sine and cosine, as transformers makes them. Raises
    ConfigError for a type that it does not know, or with values that it can not take.
    """
    kind = str(shape.rope.get("rope_type", "default"))
    try:
        if kind == "default":
            exponents = torch.arange(0, shape.head_dim, 2, dtype=torch.float32) / shape.head_dim
            return 1.0 / (shape.rope["rope_theta"] ** exponents), 1.0
        from transformers import LlamaConfig
        from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

        if kind not in ROPE_INIT_FUNCTIONS:
            raise ConfigError(
                f"its rope_type {kind[:40]!r} is not known here (known: default,"
                f" {', '.join(ROPE_INIT_FUNCTIONS)}): where it is one of these under an old name"
                ' ("su" of Phi-3 is longrope), write that one into a copy of config.json; else'
                " this rope can not be trained or walked"
            )
        config = LlamaConfig(
            hidden_size=shape.hidden_size,
            num_attention_heads=shape.heads,
            head_dim=shape.head_dim,
            max_position_embeddings=shape.max_positions,
            rope_parameters=dict(shape.rope),
        )
        frequencies, scale = ROPE_INIT_FUNCTIONS[kind](config, torch.device("cpu"))
    except ConfigError:
        raise
    except (KeyError, TypeError, ValueError, ArithmeticError) as error:
        reason = " ".join(str(error).split())[:120]
        raise ConfigError(
            f"its rope of type {kind[:40]!r} lacks a value or has a wrong one ({reason}): compare"
            " rope_parameters (or rope_scaling) with the config.json that the model came with"
        ) from None
    return frequencies, float(scale)
