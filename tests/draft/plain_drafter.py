"""EAGLE-3 training as a plain, slow reading of its definition: one sample, one row, one step at a
time, no packing, no shared code with the product. Numbers are taken from a state dict.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor


def norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return x / torch.sqrt((x * x).mean() + eps) * weight


def turned(x: Tensor, position: int, theta: float) -> Tensor:
    """One head turned by its position, pair by pair."""
    half = len(x) // 2
    out = x.clone()
    for pair in range(half):
        angle = position / theta ** (2 * pair / len(x))
        c, s = math.cos(angle), math.sin(angle)
        out[pair] = x[pair] * c - x[pair + half] * s
        out[pair + half] = x[pair + half] * c + x[pair] * s
    return out


Rows = list[dict[int, Tensor]]


def logits(
    w: dict[str, Tensor], cfg: Any, embedding: Tensor, aux: Tensor, ids: list[int], steps: int
) -> Rows:
    """[step][row] → logits. Row i has the state of token i and embeds token i + 1 + step; it exists
    while token i + 2 + step does.
    """
    eps, theta, size = cfg.eps, cfg.rope["rope_theta"], cfg.head_dim
    group = cfg.heads // cfg.kv_heads
    layer = "midlayer."
    first_keys: dict[tuple[int, int], Tensor] = {}
    first_values: dict[tuple[int, int], Tensor] = {}
    own: dict[int, list[tuple[list[Tensor], list[Tensor]]]] = {}
    hidden: dict[int, Tensor] = {}
    for i in range(len(ids) - 2):
        x = aux[i]
        if cfg.norm_before_fc:
            x = norm(x, w["input_norm.weight"], eps)
        if cfg.fc_norm:
            parts = x.view(cfg.aux, -1)
            x = torch.cat([norm(parts[j], w[f"fc_norm.{j}.weight"], eps) for j in range(cfg.aux)])
        hidden[i] = w["fc.weight"] @ x
    found: list[dict[int, Tensor]] = []
    for step in range(steps):
        out: dict[int, Tensor] = {}
        for i in range(len(ids) - 2 - step):
            h = hidden[i]
            normed = norm(h, w[layer + "hidden_norm.weight"], eps)
            e = norm(embedding[ids[i + 1 + step]], w[layer + "input_layernorm.weight"], eps)
            both = torch.cat([e, normed])
            q = (w[layer + "self_attn.q_proj.weight"] @ both).view(cfg.heads, size)
            k = (w[layer + "self_attn.k_proj.weight"] @ both).view(cfg.kv_heads, size)
            v = (w[layer + "self_attn.v_proj.weight"] @ both).view(cfg.kv_heads, size)
            if step == 0:
                for g in range(cfg.kv_heads):
                    first_keys[g, i], first_values[g, i] = turned(k[g], i, theta), v[g]
            else:
                keys = [turned(k[g], i + step, theta) for g in range(cfg.kv_heads)]
                own.setdefault(i, []).append((keys, list(v)))
            heads = []
            for a in range(cfg.heads):
                g = a // group
                query = turned(q[a], i + step, theta)
                keys = [first_keys[g, j] for j in range(i + 1)]
                values = [first_values[g, j] for j in range(i + 1)]
                for later_keys, later_values in own.get(i, []):
                    keys.append(later_keys[g])
                    values.append(later_values[g])
                scores = torch.stack([query @ key for key in keys]) / math.sqrt(size)
                share = torch.exp(scores - scores.max())
                share = share / share.sum()
                heads.append(sum(s * value for s, value in zip(share, values, strict=True)))
            attended = w[layer + "self_attn.o_proj.weight"] @ torch.cat(heads)
            x = (normed if cfg.norm_before_residual else h) + attended
            y = norm(x, w[layer + "post_attention_layernorm.weight"], eps)
            gate = w[layer + "mlp.gate_proj.weight"] @ y
            up = w[layer + "mlp.up_proj.weight"] @ y
            x = x + w[layer + "mlp.down_proj.weight"] @ (gate * torch.sigmoid(gate) * up)
            last = norm(x, w["norm.weight"], eps)
            out[i] = w["lm_head.weight"] @ last
            hidden[i] = last if cfg.norm_output else x
        found.append(out)
    return found


def loss(
    w: dict[str, Tensor],
    cfg: Any,
    embedding: Tensor,
    head: Tensor,
    targets: list[int],
    samples: list[Any],
    steps: int,
    decay: float,
) -> Tensor:
    """Σ_k decay^k · mean over the rows of all samples that count at step k of −Σ p log q. `head`:
    the target's own; `samples`: with input_ids, loss_mask, aux, final (after the norm).
    """
    sums, counts = [torch.zeros(()) for _ in range(steps)], [0] * steps
    for sample in samples:
        ids = sample.input_ids.tolist()
        made = logits(w, cfg, embedding, sample.aux.float(), ids, steps)
        for step in range(steps):
            for i, drafted in made[step].items():
                told = head @ sample.final[i + 1 + step].float()
                if not sample.loss_mask[i + 2 + step] or int(told.argmax()) not in targets:
                    continue
                p = torch.softmax(told[targets], 0)
                sums[step] = sums[step] - (p * torch.log_softmax(drafted, 0)).sum()
                counts[step] += 1
    return sum(
        (decay**k * sums[k] / max(counts[k], 1) for k in range(steps)), start=torch.zeros(())
    )
