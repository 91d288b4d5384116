"""Squeeze and excitation (Hu et al., 2018, arXiv:1709.01507) over the candidates of a search.

    squeeze:  z = mean over the candidates of v_d              one number per channel
    excite:   s = 2 σ(W₂ relu(W₁ [z; q]))                      one gate per channel, in (0, 2)
              v_d ← s ⊙ v_d

**Attention over channels.** Pooling asks which *documents* matter to a query; the gate asks which
*channels* of their values do. The squeeze is average pooling, attention with equal weights, over documents;
the excitation is an attention map over channels, self-attention of the candidates' channels conditioned on
the query. It is not a softmax, since several channels may matter at once. Fields that are stored side by
side (a vector, a price, a date) are thus weighed for each query, by what the query and the candidates have in
common.

**Over heads.** `HeadExcitation` does the same for the heads of a search: the squeeze is the mean of the
heads' queries, the excitation moves the share of each head. A version may have one (`Head.open_excitation`).

    squeeze:  s = unit(mean over the heads of W_Kᵀ q_h)        one vector per query
    excite:   m_h(q) = softmax_h(μ_h + (W₂ gelu(W₁ s))_h)      one share per head
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from dsearch.attention.pooling import pool, uniform
from dsearch.attention.retrieval.fixed_head import excited_mixture


class GatedValues(NamedTuple):
    """Gated values, and the gate of each channel; a gate of 1 leaves its channel unchanged."""

    values: Float[Tensor, "*batch candidates value_dim"]
    gate: Float[Tensor, "*batch value_dim"]


class HeadExcitation(nn.Module):
    """Shares of a search's heads that depend on the query; the constant shares at start, where W₂ is zero.

    Args:
        encoder_dim: length of the folded queries.
        heads: number of heads.
        width: units of the hidden layer.
        seed: random seed of W₁.
    """

    def __init__(self, encoder_dim: int, heads: int, width: int = 16, seed: int = 0):
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        self.squeeze = nn.Parameter(torch.randn(width, encoder_dim, generator=generator))
        self.excite = nn.Parameter(torch.zeros(heads, width))

    def forward(
        self, folded: Float[Tensor, "*batch heads encoder_dim"], mixture_logits: Float[Tensor, " heads"]
    ) -> Float[Tensor, "*batch heads"]:
        """m_h(q) for queries in the space of the stored embeddings, after the last hop."""
        return excited_mixture(folded, mixture_logits, self.squeeze, self.excite)


class SqueezeExcite(nn.Module):
    """A gate per channel from the mean of the candidates' values and the query; the identity at start.

    Args:
        value_dim: channels of the values.
        query_dim: size of the query.
        reduction: the hidden layer has `value_dim / reduction` units, at least 1 (r of the paper).

    The paper's gate is σ, in (0, 1); the factor 2 puts its start, σ(0), at exactly 1.
    """

    def __init__(self, value_dim: int, query_dim: int, reduction: int = 4):
        super().__init__()
        hidden_dim = max(1, value_dim // reduction)
        self.reduce = nn.Linear(value_dim + query_dim, hidden_dim)
        self.expand = nn.Linear(hidden_dim, value_dim)
        nn.init.zeros_(self.expand.weight)
        nn.init.zeros_(self.expand.bias)

    def forward(
        self,
        queries: Float[Tensor, "*batch query_dim"],
        values: Float[Tensor, "*batch candidates value_dim"],
        mask: Bool[Tensor, "*batch candidates"] | None = None,
    ) -> GatedValues:
        """Gate the values of each query's candidates; masked candidates do not enter the squeeze."""
        equal = uniform(values.new_zeros(values.shape[:-1]), mask)
        squeezed = pool(equal.unsqueeze(-2), values).squeeze(-2)
        hidden = torch.relu(self.reduce(torch.cat([squeezed, queries], -1)))
        gate = 2.0 * torch.sigmoid(self.expand(hidden))
        return GatedValues(values * gate.unsqueeze(-2), gate)
