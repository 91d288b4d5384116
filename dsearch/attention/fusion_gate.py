"""`FusionGate`: how much keywords count for a query, by what its words say of it.

    g_h(q) = 2 σ(u_h · gelu(V φ(q) + c))        in (0, 2)
    w_h(q) = w_h g_h(q)                         weight of the keyword score b(q, d) for head h

φ(q) are features of the query's words (`dsearch.index.keyword.query_terms`), no embedding: they are the
same on every shard, and no gradient goes through them to a query state. u starts at 0, so that g is 1,
exactly: an untrained gate is the constant weight w_h. V is random and c = 0. A network of the input that
weighs experts is that of Jacobs, Jordan, Nowlan and Hinton 1991, "Adaptive Mixtures of
Local Experts"; here the experts are
the legs of a search, and the gate is bounded.
"""

from __future__ import annotations

import math

import torch
from jaxtyping import Float
from torch import Tensor, nn

FEATURES = 7  # as `dsearch.index.keyword.query_terms` gives; attention and index do not see each other
WIDTH = 16


class FusionGate(nn.Module):
    """The factor that a query has for the keyword weight of each head.

    Args:
        heads: query heads, each with a factor of its own.
        seed: of the random V.
    """

    def __init__(self, heads: int, *, seed: int = 0):
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        inner = torch.randn(WIDTH, FEATURES, generator=generator) / math.sqrt(FEATURES)
        self.inner = nn.Parameter(inner)
        self.bias = nn.Parameter(torch.zeros(WIDTH))
        self.outer = nn.Parameter(torch.zeros(heads, WIDTH))

    def forward(self, features: Float[Tensor, "batch features"]) -> Float[Tensor, "batch heads"]:
        """g_h(q); 1 for a query one of whose features is not finite, as those without terms are."""
        finite = features.isfinite().all(-1, keepdim=True)
        hidden = nn.functional.gelu(features.masked_fill(~finite, 0.0) @ self.inner.mT + self.bias)
        return (2 * torch.sigmoid(hidden @ self.outer.mT)).masked_fill(~finite, 1.0)

    def distance_from_constant(self) -> Float[Tensor, ""]:
        """Σ_h Σ_r u_hr² (|V_r|² + c_r²): 0 where g is 1 for every query, and what decay pulls to 0."""
        of_units = self.inner.square().sum(-1) + self.bias.square()
        return (self.outer.square() * of_units).sum()


def keyword_part(
    weights: Float[Tensor, "batch heads"], scores: Float[Tensor, "batch documents"]
) -> Float[Tensor, "batch heads documents"]:
    """w_h(q) b(q, d): what keywords add to the score of each head; weights are `Head.keyword_weights`."""
    return weights[:, :, None] * scores[:, None]
