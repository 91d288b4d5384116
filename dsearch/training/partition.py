"""log Σ_d exp(l_d) over the whole corpus with its gradient, worked out in the same pass as the value.

    l_d = q · e_d / t + (w / t) b_d      p = softmax(l)      c = Σ_d p_d e_d      m = Σ_d p_d b_d

    ∂Z/∂q = c / t        ∂Z/∂w = m / t        ∂Z/∂t = −(q · c + w m) / t²

The gradient needs c and m alone, so nothing of the size of the corpus outlives the forward pass: one buffer
holds logits, then weights. Left to autograd, the same numbers took half as long again, in passes over
matrices that each say one thing of them.
"""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd.function import once_differentiable

from dsearch.attention import log_partition

# Up to this many logits one matrix is faster than blocks: keeping it costs less than computing it twice.
_PLAIN_LOGITS = 1 << 25


def whole_partition(
    queries: Float[Tensor, "batch heads dim"],
    corpus: Float[Tensor, "documents dim"],
    temperature: Float[Tensor, ""],
    keyword: Float[Tensor, "batch documents"] | None = None,
    keyword_weight: Float[Tensor, " heads"] | None = None,
) -> Float[Tensor, "batch heads"]:
    """Z for each query and head, exact; in blocks where the logits are too many to be kept.

    Args:
        queries: folded, so that stored embeddings are their keys.
        corpus: the stored embeddings.
        temperature: t.
        keyword: b of each query for every document; None for a dense search.
        keyword_weight: w of each head, where `keyword` is given.

    Gradients reach queries, temperature and keyword weights, once; stored embeddings and keyword scores that
    want some have them from autograd, at its price.
    """
    frozen = not (corpus.requires_grad or (keyword is not None and keyword.requires_grad))
    if frozen and queries.shape[:2].numel() * len(corpus) <= _PLAIN_LOGITS:
        return _WholePartition.apply(queries, corpus, temperature, keyword, keyword_weight)  # pyright: ignore
    bias = None
    if keyword is not None and keyword_weight is not None:
        bias = keyword_weight[:, None] * keyword[:, None] / temperature
    return biased_partition(queries, corpus, bias, temperature)


def biased_partition(
    queries: Float[Tensor, "batch heads dim"],
    corpus: Float[Tensor, "documents dim"],
    bias: Float[Tensor, "batch heads documents"] | None,
    temperature: Float[Tensor, ""],
) -> Float[Tensor, "batch heads"]:
    """The same with any logits to add, −∞ among them; gradients reach those too."""
    if queries.shape[:2].numel() * len(corpus) <= _PLAIN_LOGITS:
        logits = queries @ corpus.T / temperature
        return (logits if bias is None else logits + bias).logsumexp(-1)
    flat = None if bias is None else bias.flatten(0, 1)
    whole = log_partition(queries.flatten(0, 1), corpus, bias=flat, temperature=temperature)
    return whole.unflatten(0, queries.shape[:2])


class _WholePartition(torch.autograd.Function):
    """The equations at the top of this file."""

    @staticmethod
    def forward(
        ctx: Any,
        queries: Tensor,
        corpus: Tensor,
        temperature: Tensor,
        keyword: Tensor | None,
        keyword_weight: Tensor | None,
    ) -> Tensor:
        weights = (queries / temperature) @ corpus.T
        if keyword is not None and keyword_weight is not None:
            weights.addcmul_(keyword[:, None], (keyword_weight / temperature)[:, None])
        most = weights.amax(-1, keepdim=True)
        mass = weights.sub_(most).exp_().sum(-1, keepdim=True)
        if any(ctx.needs_input_grad):
            context = (weights @ corpus).div_(mass)
            shared = None
            if keyword is not None:
                shared = (weights @ keyword[:, :, None]).div_(mass).squeeze(-1)
            ctx.save_for_backward(queries, temperature, keyword_weight, context, shared)
        return (most + mass.log()).squeeze(-1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore
        queries, temperature, keyword_weight, context, shared = ctx.saved_tensors
        along = (queries * context).sum(-1)
        of_weight = None
        if shared is not None:
            along = along + keyword_weight * shared
            of_weight = (gradient * shared).sum(0) / temperature
        of_temperature = -(gradient * along).sum() / temperature.square()
        return gradient[..., None] * context / temperature, None, of_temperature, None, of_weight
