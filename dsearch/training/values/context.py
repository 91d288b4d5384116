"""Objectives on the pooled context, by which the values W_V and the output projection W_O learn.

    c(q) = Σ_{d ≠ q} a(q, d) W_V e_d        o(q) = W_O c(q) + b

    regression        |y_q − o(q)|² / value_dim, of values in units of their standard deviation
    classification    −log p̃(y_q), p = softmax(o(q)), smoothed as in losses.py
    contrastive       −log softmax_j(cos(o(q), y_j) / τ) at j = q, over the batch; τ = .07

The last is InfoNCE (van den Oord, Li and Vinyals 2018, arXiv:1807.03748, eq. 4) with cosine similarity.

W_O starts as the ridge regression of the values on the contexts of the untrained head, whose penalty is
chosen by the exact leave-one-out error: row i of Y − Ŷ divided by 1 − H_ii (Allen 1974, PRESS).
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor, nn

CONTRAST_TEMPERATURE = 0.07
_PENALTIES = tuple(10.0**power for power in range(-4, 4))
_SCALES = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0)  # of one-hot values as logits


def start_output(
    output: nn.Linear,
    contexts: Float[Tensor, "examples value_dim"],
    targets: Float[Tensor, "examples output_dim"],
    *,
    labels: bool,
) -> None:
    """Set an output projection to the ridge regression of the targets on the contexts.

    Args:
        output: the projection.
        contexts: of the untrained head.
        targets: values, one-hot for labels.
        labels: True if the output is logits: their scale is chosen by the log loss of left-out examples.
    """
    x, y = contexts.double(), targets.double()
    centre, middle = x.mean(0), y.mean(0)
    u, s, v = torch.linalg.svd(x - centre, full_matrices=False)
    projected = u.T @ (y - middle)
    best: tuple[float, Tensor, Tensor] | None = None
    for penalty in _PENALTIES:
        shrunk = s.square() / (s.square() + penalty)
        leverage = (u.square() * shrunk).sum(1) + 1 / len(x)
        fitted = middle + u @ (shrunk[:, None] * projected)
        left_out = y - (y - fitted) / (1 - leverage).clamp_min(1e-6)[:, None]
        error = (y - left_out).square().mean().item()
        if best is None or error < best[0]:
            weight = (v.T * (s / (s.square() + penalty))) @ projected
            best = error, weight.T, left_out
    assert best is not None
    _, weight, left_out = best
    scale = 1.0
    if labels:
        target = targets.argmax(1)
        losses = [nn.functional.cross_entropy(left_out * factor, target).item() for factor in _SCALES]
        scale = _SCALES[losses.index(min(losses))]
    with torch.no_grad():
        output.weight.copy_(scale * weight)
        output.bias.copy_(scale * (middle - weight @ centre))


def contrastive_loss(
    predicted: Float[Tensor, "batch value_dim"], wanted: Float[Tensor, "batch value_dim"]
) -> Float[Tensor, " batch"]:
    """−log of the softmax at each one's own vector among those of the batch; equal ones count together."""
    near = nn.functional.normalize(predicted, dim=-1) @ nn.functional.normalize(wanted, dim=-1).T
    logits = near / CONTRAST_TEMPERATURE
    same = (wanted[:, None] == wanted[None]).all(-1)
    return logits.logsumexp(-1) - logits.masked_fill(~same, -torch.inf).logsumexp(-1)
