"""Prediction by attention pooling: a number at a query, from the numbers of its neighbours.

    f(q) = Σ_i K(|q − k_i| / width) v_i / Σ_j K(|q − k_j| / width)

(Nadaraya, 1964; Watson, 1964.) It is softmax attention over a kernel's logarithm. With the keys of a
collection and a number stored in each document it predicts that number for a text, and shows the documents
it came from.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from dsearch.attention.pooling import AttentionResult, attend, pool
from dsearch.attention.scores import KernelScore


class Prediction(NamedTuple):
    """A pooled number, and how far the numbers it was pooled from lie around it (standard deviation)."""

    mean: Float[Tensor, "*batch queries value_dim"]
    spread: Float[Tensor, "*batch queries value_dim"]


def predict(
    weights: Float[Tensor, "*batch queries keys"], values: Float[Tensor, "*#batch keys value_dim"]
) -> Prediction:
    """Mean and spread of the values under attention weights that sum to 1 (or are all 0: both are 0).

    mean = Σ a_i v_i, spread² = Σ a_i (v_i − mean)²: around the mean, because Σ a_i v_i² − mean² cancels.
    """
    mean = pool(weights, values)
    variance = (weights.unsqueeze(-1) * (values.unsqueeze(-3) - mean.unsqueeze(-2)).square()).sum(-2)
    certain = variance == 0
    return Prediction(mean, variance.masked_fill(certain, 1.0).sqrt().masked_fill(certain, 0.0))


class NadarayaWatson(nn.Module):
    """Kernel regression with a learned width.

    Args:
        kernel: gaussian, epanechnikov or boxcar (whose width cannot be learned by gradient).
        width: at the start, in units of the keys.

    Far from every key a kernel of bounded support is 0 everywhere. The prediction is then the mean of all
    values, the limit of every kernel as its width grows: average pooling.
    """

    def __init__(self, kernel: str = "gaussian", width: float = 1.0):
        super().__init__()
        self.score = KernelScore(kernel, width)

    def forward(
        self,
        queries: Float[Tensor, "*#batch queries dim"],
        keys: Float[Tensor, "*#batch keys dim"],
        values: Float[Tensor, "*#batch keys value_dim"],
        mask: Bool[Tensor, ...] | None = None,
    ) -> AttentionResult:
        """Predicted values `[..., queries, value_dim]` and the weights of the evidence."""
        centre = values.mean(-2, keepdim=True)
        context, weights = attend(queries, keys, values - centre, score=self.score, mask=mask)
        return AttentionResult(centre + context, weights)

    def leave_one_out_loss(
        self, keys: Float[Tensor, "keys dim"], values: Float[Tensor, "keys value_dim"]
    ) -> Float[Tensor, ""]:
        """Mean squared error of predicting each value from all the others: the loss to learn the width by.

        If points were not left out, each point would predict itself best, at width 0.
        """
        others = ~torch.eye(len(keys), dtype=torch.bool, device=keys.device)
        return (self(keys, keys, values, others).context - values).square().mean()
