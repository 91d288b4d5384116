"""Null slot: attention weight for "no document fits", which documents have to outweigh.

    a(∅) = σ(n − s · Z)         Z = Σ_h m_h log Σ_{d among the ten best} exp(l_h(d))
    a(d) = (1 − a(∅)) · Σ_h m_h softmax(l_h)_d

With s = 1, one head and no more than ten candidates this is a further key in the softmax whose logit is n
(the learned null, or sentinel, of attention: Lu et al. 2017, "Knowing When to Look", eq. 11 to 13). The slope
s makes it calibrated: (n, s) are Platt's two numbers (Platt 1999, "Probabilistic Outputs for Support Vector
Machines", eq. 1), with the evidence Z in place of a margin.

**Why the ten best.** With all candidates a(∅) would depend on the number of candidates, and fall as a
collection grows. The ten best are the same for every page, for 10 or 1,000 candidates, and for shards.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from jaxtyping import Bool, Float

from dsearch.attention.arrays import Array, fill, largest, sigmoid
from dsearch.attention.retrieval.ranking import partition_by_head

if TYPE_CHECKING:
    from torch import Tensor

SLOT_CANDIDATES = 10


def slot_evidence(
    raw: Float[Array, "batch heads candidates"],
    mask: Bool[Array, "batch candidates"],
    temperature: float | Float[Array, ""],
    mixture: Float[Array, "*#batch heads"],
) -> Float[Array, " batch"]:
    """Z of each query; 0 where there is no candidate.

    Args:
        raw: scores, t · l_h(d).
        mask: True for candidates, False for padding.
        temperature: t.
        mixture: m_h.
    """
    count = min(SLOT_CANDIDATES, raw.shape[-1])
    best = largest(fill(raw, ~mask[:, None], -math.inf), count)
    # Heads may have different ten best; where one has fewer, its row ends in −∞.
    rows = best.reshape(raw.shape[0] * raw.shape[1], count)
    partition = partition_by_head(rows[:, None], rows != -math.inf, temperature)
    return (partition.reshape(raw.shape[:2]) * mixture).sum(-1)


def null_weights(
    slot: Float[Array, 2],
    raw: Float[Array, "batch heads candidates"],
    mask: Bool[Array, "batch candidates"],
    temperature: float | Float[Array, ""],
    mixture: Float[Array, "*#batch heads"],
) -> Float[Array, " batch"]:
    """a(∅) of each query; 1 where there is no candidate.

    Args:
        slot: (n, s).
        raw: scores, t · l_h(d).
        mask: True for candidates, False for padding.
        temperature: t.
        mixture: m_h.
    """
    weight = sigmoid(slot[0] - slot[1] * slot_evidence(raw, mask, temperature, mixture))
    return fill(weight, ~mask.any(-1), 1.0)


def fit_null_slot(
    evidence: Float[Array, " queries"], unanswerable: Bool[Array, " queries"], *, steps: int = 50
) -> tuple[float, float]:
    """Fit (n, s) by maximum likelihood: logistic regression of "no document fits" on −Z, by Newton's method.

    Targets are Platt's, (N₊ + 1) / (N₊ + 2) and 1 / (N₋ + 2), so that the slope stays finite for queries that
    Z separates perfectly.

    Args:
        evidence: Z of queries that the head was not trained on.
        unanswerable: True for queries that no document answers.
        steps: largest number of Newton steps; each is halved until the likelihood rises.
    """
    import torch

    wrong = unanswerable.double()
    positives, negatives = wrong.sum(), (1 - wrong).sum()
    target = torch.where(unanswerable, (positives + 1) / (positives + 2), 1 / (negatives + 2))
    # Around its mean and in its own spread, so that the two numbers are of a size and hardly correlated.
    centre, spread = evidence.double().mean(), evidence.double().std().clamp_min(1e-6)
    design = torch.stack([torch.ones_like(target), -(evidence.double() - centre) / spread], dim=1)

    def loss(slot: Tensor) -> Tensor:
        return torch.nn.functional.binary_cross_entropy_with_logits(design @ slot, target, reduction="sum")

    slot = torch.stack([torch.logit(target.mean()), torch.zeros((), dtype=torch.float64)])
    for _ in range(steps):
        share = torch.sigmoid(design @ slot)
        gradient = design.T @ (share - target)
        curvature = (design * (share * (1 - share))[:, None]).T @ design + 1e-9 * torch.eye(2).double()
        (a, b), (_, d) = curvature  # 2 × 2: solved by its determinant
        step = torch.stack([d * gradient[0] - b * gradient[1], a * gradient[1] - b * gradient[0]])
        step = step / (a * d - b * b)
        size = 1.0
        while loss(slot - size * step) > loss(slot) and size > 1e-6:
            size /= 2
        slot = slot - size * step
        if step.abs().max() < 1e-10:
            break
    slope = slot[1] / spread
    return float(slot[0] + slope * centre), float(slope)
