"""Listwise cross-entropy over the whole corpus, the default objective.

    loss = −Σ_d p_d log Σ_h m_h softmax(l_h)_d        p: shares of the grades, over the relevant documents

With one head it is T Z − Σ_d p_d l_d, where Z is the log partition and T = Σ_d p_d, and with residuals
g = T softmax(l) − p

    ∂/∂q = Σ_d g_d e_d / t        ∂/∂w = Σ_d g_d b_d / t        ∂/∂t = −Σ_d g_d l_d / t

So value and gradient take two products with the corpus, and nothing is gathered for each positive: with
hundreds of positives a query, their embeddings were most of the memory and of the time of a step.
"""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float, Int64
from torch import Tensor
from torch.autograd.function import once_differentiable

from dsearch.attention.arrays import keyword_part
from dsearch.attention.retrieval.head import Head
from dsearch.products import product
from dsearch.training.losses import partition
from dsearch.training.losses.passages import FurtherPassages


def listwise_cross_entropy(
    head: Head,
    states: Float[Tensor, "batch encoder_dim"],
    keyword: Float[Tensor, "batch documents"] | None,
    corpus: Float[Tensor, "documents encoder_dim"],
    relevant: Int64[Tensor, "batch positives"],
    target: Float[Tensor, "batch positives"],
    further: FurtherPassages | None = None,
) -> Float[Tensor, ""]:
    """Mean over the batch of −Σ_d p_d log Σ_h m_h softmax(l_h)_d; exact over the corpus.

    Args:
        head: head to train.
        states: query embeddings.
        keyword: b(q, d) for every document, or None for a dense search.
        corpus: the stored embeddings.
        relevant: positions of each query's positives; padding may point anywhere.
        target: p_d, rows summing to 1; 0 at padding.
        further: the further passages of long documents, which are scored by the best one.
    """
    folded = head.fold(head.queries(states))
    if _in_one_pass(head, folded, keyword, corpus, further):
        weight = None if keyword is None else head.keyword_weight
        losses = _OneHead.apply(  # pyright: ignore
            folded, head.temperature, weight, keyword, corpus, relevant, target, further
        )
        return losses.mean()
    if further is not None:
        log_heads = _log_heads_of_best(head, folded, keyword, corpus, relevant, further)
        log_weights = (head.mixture_of(folded).log()[..., None] + log_heads).logsumexp(1)
        return -(target * log_weights).sum(-1).mean()
    logits = torch.einsum("bhd,bpd->bhp", folded, corpus[relevant].to(folded))
    if keyword is not None:
        logits = logits + keyword_part(head.keyword_weight, keyword.gather(1, relevant))
    whole = partition.whole_partition(folded, corpus, head.temperature, keyword, head.keyword_weight)
    log_heads = logits / head.temperature - whole.unsqueeze(-1)
    log_weights = (head.mixture_of(folded).log()[..., None] + log_heads).logsumexp(1)
    return -(target * log_weights).sum(-1).mean()


def _in_one_pass(
    head: Head,
    folded: Float[Tensor, "batch heads encoder_dim"],
    keyword: Float[Tensor, "batch documents"] | None,
    corpus: Float[Tensor, "documents encoder_dim"],
    further: FurtherPassages | None,
) -> bool:
    """One head on a CPU, over a frozen corpus that one block of logits can hold."""
    passages = len(corpus) + (0 if further is None else len(further.owners))
    frozen = not (corpus.requires_grad or (keyword is not None and keyword.requires_grad))
    return (
        head.heads == 1
        and frozen
        and corpus.device.type == "cpu"
        and partition.in_one_block(folded, passages)
    )


class _OneHead(torch.autograd.Function):
    """The equations at the top of this file; the best passage of a long document counts for it."""

    @staticmethod
    def forward(
        ctx: Any,
        folded: Tensor,
        temperature: Tensor,
        keyword_weight: Tensor | None,
        keyword: Tensor | None,
        corpus: Tensor,
        relevant: Tensor,
        target: Tensor,
        further: FurtherPassages | None,
    ) -> Tensor:
        scores = product(folded, corpus)
        best = None
        if further is not None:
            scores, best = further.taken(folded, scores)
        logits = scores[:, 0]
        if keyword is not None and keyword_weight is not None:
            logits = torch.addcmul(logits, keyword, keyword_weight)
        logits = logits / temperature
        normalised = logits.log_softmax(-1)
        losses = -(target * normalised.gather(1, relevant)).sum(-1)
        if any(ctx.needs_input_grad[:3]):
            residual = normalised.exp_().mul_(target.sum(-1, keepdim=True))
            residual.scatter_add_(1, relevant, -target)
            of_weight = None if keyword is None else (residual * keyword).sum(-1)
            of_temperature = (residual * logits).sum(-1)
            embeddings = corpus
            if further is not None and best is not None:
                embeddings = further.beside(corpus)
                residual = residual.new_zeros(len(residual), len(embeddings)).scatter_(
                    1, best[:, 0], residual
                )
            context = product(residual, embeddings.T)
            ctx.save_for_backward(temperature, context, of_weight, of_temperature)
        return losses

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore
        temperature, context, of_weight, of_temperature = ctx.saved_tensors
        of_queries = (gradient[:, None] * context / temperature)[:, None]
        weight = None if of_weight is None else ((gradient * of_weight).sum() / temperature)[None]
        return (
            of_queries,
            -(gradient * of_temperature).sum() / temperature,
            weight,
            None,
            None,
            None,
            None,
            None,
        )


def _log_heads_of_best(
    head: Head,
    folded: Float[Tensor, "batch heads encoder_dim"],
    keyword: Float[Tensor, "batch documents"] | None,
    corpus: Float[Tensor, "documents encoder_dim"],
    relevant: Int64[Tensor, "batch positives"],
    further: FurtherPassages,
) -> Float[Tensor, "batch heads positives"]:
    """log softmax(l_h) at the positives, over documents of which the best passage counts.

    The partition is that over all passages with every one but its document's best at −∞: exact, and in blocks
    where the logits are too many to be kept.
    """
    batch, heads, _ = folded.shape
    passages, owners = further.beside(corpus), further.numbered(len(corpus))
    with torch.no_grad():
        _, best = further.taken(folded, product(folded, corpus))
        bias = folded.new_full((batch, heads, len(passages)), -torch.inf).scatter_(2, best, 0.0)
    if keyword is not None:
        weighted = keyword_part(head.keyword_weight, keyword) / head.temperature
        bias = bias + weighted[..., owners]
    at = best.gather(2, relevant[:, None].expand(-1, heads, -1))
    logits = torch.einsum("bhd,bhpd->bhp", folded, passages[at].to(folded)) / head.temperature
    logits = logits + bias.gather(2, at)
    whole = partition.biased_partition(folded, passages, bias, head.temperature)
    return logits - whole.unsqueeze(-1)
