"""Attention over part of a corpus, and the merge of parts into the whole.

    M = max_j l_j        S = Σ_j exp(l_j − M)        C = Σ_j exp(l_j − M) v_j

The triple (M, S, C) of any part is enough: two of them merge into that of their union, in any order and
grouping, and C / S and M + log S are then exact attention and its log partition function over everything.
This is the online softmax (Milakov & Gimelshein, 2018, arXiv:1805.02867) that FlashAttention keeps between
the tiles of a GPU (Dao et al., 2022, arXiv:2205.14135, section 3.1); here it is kept between the blocks of a
corpus and between the shards of a cluster.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from dsearch.errors import InvalidRequest


class ExactAttention(NamedTuple):
    """Attention over a whole corpus: `context [..., value_dim]` and `log_partition [...]` = log Σ exp(l)."""

    context: Tensor
    log_partition: Tensor


@dataclass(frozen=True, slots=True)
class PartialAttention:
    """The (max, sum, context) triple of one block or shard; of an empty one it is (−∞, 0, 0).

    `context` is not yet divided by `sum`. A loss on merged shards reaches the inputs of every shard.
    """

    max: Float[Tensor, "*batch"]
    sum: Float[Tensor, "*batch"]
    context: Float[Tensor, "*batch value_dim"]

    @classmethod
    def of(
        cls, logits: Float[Tensor, "*batch documents"], values: Float[Tensor, "documents value_dim"]
    ) -> PartialAttention:
        """The triple of these logits and values; −inf logits contribute nothing."""
        if logits.shape[-1] == 0:
            maximum = torch.full(logits.shape[:-1], -math.inf, dtype=logits.dtype, device=logits.device)
        else:
            maximum = logits.detach().amax(-1)
        share = torch.exp(logits - _finite(maximum).unsqueeze(-1))
        return cls(maximum, share.sum(-1), share @ values)

    @classmethod
    def of_result(
        cls, context: Float[Tensor, "*batch value_dim"], log_partition: Float[Tensor, "*batch"]
    ) -> PartialAttention:
        """Triple of a finished result, with gradients; a shard that ran `exact_attention` passes it on.

        Float32 holds a log Z of 1e4 to 1e-3 only; below 100 it is good to 1e-5.
        """
        return cls(log_partition, (log_partition != -math.inf).to(context.dtype), context)

    def finish(self) -> ExactAttention:
        """Context and log partition function; zero and −∞ where nothing was attended."""
        empty = self.sum == 0
        total = self.sum.masked_fill(empty, 1.0)
        log_partition = (_finite(self.max) + total.log()).masked_fill(empty, -math.inf)
        return ExactAttention(self.context / total.unsqueeze(-1), log_partition)


def merge(partials: Sequence[PartialAttention]) -> PartialAttention:
    """Merge disjoint parts into the triple of their union; associative and commutative up to rounding.

    Args:
        partials: at least one, all of the same batch and value dimension; empty shards are welcome.

    Raises:
        InvalidRequest: there are none, so batch and value dimension would be unknown.
    """
    if not partials:
        raise InvalidRequest("partials=[]; give at least one, an empty shard's if need be")
    return merge_stacked(
        PartialAttention(
            torch.stack([part.max for part in partials]),
            torch.stack([part.sum for part in partials]),
            torch.stack([part.context for part in partials]),
        )
    )


def merge_stacked(parts: PartialAttention) -> PartialAttention:
    """The same for parts that lie along the first dimension of one triple, at least one."""
    # The reference that exponents are taken from cancels out of the result, so it carries no gradient.
    maximum = parts.max.detach().amax(0)
    scale = torch.exp(parts.max - _finite(maximum))
    return PartialAttention(maximum, (parts.sum * scale).sum(0), (parts.context * scale.unsqueeze(-1)).sum(0))


def _finite(maximum: Tensor) -> Tensor:
    """The maximum, or 0 where it is −∞ and exp(−∞ − (−∞)) would be NaN."""
    return maximum.masked_fill(maximum == -math.inf, 0.0)
