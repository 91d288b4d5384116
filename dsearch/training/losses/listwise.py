"""Listwise cross-entropy over the whole corpus, the default objective.

    loss = −Σ_d p_d log Σ_h m_h softmax(l_h)_d        p: shares of the grades, over the relevant documents

With one head it is T Z − Σ_d p_d l_d, where Z is the log partition and T = Σ_d p_d, and with residuals
g = T softmax(l) − p

    ∂/∂q = Σ_d g_d e_d / t        ∂/∂w = Σ_d g_d b_d / t        ∂/∂t = −Σ_d g_d l_d / t

So value and gradient take two products with the corpus, and nothing is gathered for each positive: with
hundreds of positives a query, their embeddings were most of the memory and of the time of a step.

The partition over the whole corpus, Z = log Σ_d exp(l_d), is computed with its gradient in the same pass.

    l_d = q · e_d / t + (w / t) b_d      p = softmax(l)      c = Σ_d p_d e_d      m = Σ_d p_d b_d

    ∂Z/∂q = c / t        ∂Z/∂w = m / t        ∂Z/∂t = −(q · c + w m) / t²

The gradient needs only c and m, so nothing of the size of the corpus outlives the forward pass: one buffer
holds logits, then weights. With autograd, the same numbers took half as long again, because it makes a
separate pass over the matrices for each operation. If the logits are too many for one buffer, sums over parts
of the corpus are merged, each relative to its largest logit, as in flash attention (Dao et al. 2022,
algorithm 1); but nothing is recomputed for the gradient.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int64
from torch import Tensor
from torch.autograd.function import once_differentiable

from dsearch.attention import log_partition
from dsearch.attention.arrays import keyword_part
from dsearch.attention.retrieval.head import Head
from dsearch.attention.retrieval.kernel import log_mix, raw_scores
from dsearch.products import product
from dsearch.training.losses.passages import FurtherPassages

# Up to this many logits one matrix is faster than blocks where autograd keeps them: keeping costs less than
# computing twice.
_PLAIN_LOGITS = 1 << 25
_BLOCK_LOGITS = 1 << 22  # and where nothing is kept, blocks of so many: a CPU's caches hold them
_CARD_LOGITS = 1 << 27  # and on a card: with fewer, launches take longer than their work


def whole_partition(
    queries: Float[Tensor, "batch heads dim"],
    corpus: Float[Tensor, "documents dim"],
    temperature: Float[Tensor, ""],
    keyword: Float[Tensor, "batch documents"] | None = None,
    keyword_weight: Float[Tensor, " heads"] | None = None,
) -> Float[Tensor, "batch heads"]:
    """Z for each query and head, exact; in blocks where the logits are too many to be held.

    Args:
        queries: folded, so that stored embeddings are their keys.
        corpus: the stored embeddings.
        temperature: t.
        keyword: b of each query for every document; None for a dense search.
        keyword_weight: w of each head, where `keyword` is given.

    Gradients reach queries, temperature and keyword weight, once; stored embeddings and keyword scores that
    want some have them from autograd, at its price.
    """
    if _frozen(corpus, keyword):
        return _WholePartition.apply(queries, corpus, temperature, keyword, keyword_weight)  # pyright: ignore
    bias = None
    if keyword is not None and keyword_weight is not None:
        bias = keyword_part(keyword_weight, keyword) / temperature
    return biased_partition(queries, corpus, bias, temperature)


def biased_partition(
    queries: Float[Tensor, "batch heads dim"],
    corpus: Float[Tensor, "documents dim"],
    bias: Float[Tensor, "batch heads documents"] | None,
    temperature: Float[Tensor, ""],
) -> Float[Tensor, "batch heads"]:
    """The same with any logits to add, −∞ among them; gradients reach those too."""
    if _fit(queries, corpus):
        logits = scores_of(queries, corpus) / temperature
        return (logits if bias is None else logits + bias).logsumexp(-1)
    flat = None if bias is None else bias.flatten(0, 1)
    whole = log_partition(queries.flatten(0, 1), corpus, bias=flat, temperature=temperature)
    return whole.unflatten(0, queries.shape[:2])


def scores_of(
    queries: Float[Tensor, "batch heads dim"], corpus: Float[Tensor, "documents dim"]
) -> Float[Tensor, "batch heads documents"]:
    """Inner products with stored embeddings, which may be in bfloat16."""
    return queries @ corpus.T if corpus.dtype == queries.dtype else product(queries, corpus)


def in_full(documents: Float[Tensor, "batch dim"]) -> Float[Tensor, "batch dim"]:
    """Stored embeddings as queries: in float32 where they are stored in bfloat16."""
    return documents.float() if documents.dtype == torch.bfloat16 else documents


def _frozen(corpus: Tensor, keyword: Tensor | None) -> bool:
    """True if neither documents nor keyword scores learn."""
    return not (corpus.requires_grad or (keyword is not None and keyword.requires_grad))


def in_one_block(queries: Float[Tensor, "batch heads dim"], rows: int) -> bool:
    """True if the logits of these queries over so many rows are one block."""
    return queries.shape[:2].numel() * rows <= min(_BLOCK_LOGITS, _PLAIN_LOGITS)


def _fit(queries: Float[Tensor, "batch heads dim"], corpus: Float[Tensor, "documents dim"]) -> bool:
    return queries.shape[:2].numel() * len(corpus) <= _PLAIN_LOGITS


class _Sums(NamedTuple):
    """Over some documents, of w_d = exp(l_d − most): Σ w_d, Σ w_d e_d, Σ w_d b_d; the last two if asked."""

    most: Float[Tensor, "batch heads 1"]
    mass: Float[Tensor, "batch heads 1"]
    context: Float[Tensor, "batch heads dim"] | None
    shared: Float[Tensor, "batch heads 1"] | None

    @classmethod
    def over(
        cls,
        queries: Float[Tensor, "batch heads dim"],
        corpus: Float[Tensor, "documents dim"],
        keyword: Float[Tensor, "batch documents"] | None,
        keyword_weight: Float[Tensor, " heads"] | None,
        *,
        pooled: bool,
    ) -> _Sums:
        """Queries and the keyword weight are divided by the temperature already."""
        weights = product(queries, corpus)
        if keyword is not None and keyword_weight is not None:
            weights.addcmul_(keyword[:, None], keyword_weight[:, None])
        most = weights.amax(-1, keepdim=True)
        mass = weights.sub_(most).exp_().sum(-1, keepdim=True)
        if not pooled:
            return cls(most, mass, None, None)
        context = product(weights, corpus.T)
        return cls(most, mass, context, None if keyword is None else weights @ keyword[:, :, None])

    def with_(self, other: _Sums) -> _Sums:
        """The sums over the documents of both."""
        most = torch.maximum(self.most, other.most)
        mine, theirs = (self.most - most).exp(), (other.most - most).exp()

        def both(first: Tensor | None, another: Tensor | None) -> Tensor | None:
            return None if first is None or another is None else first * mine + another * theirs

        mass = self.mass * mine + other.mass * theirs
        return _Sums(most, mass, both(self.context, other.context), both(self.shared, other.shared))


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
        scaled, weight = queries / temperature, None
        if keyword_weight is not None:
            weight = keyword_weight / temperature
        pooled = any(ctx.needs_input_grad)
        most = _BLOCK_LOGITS if queries.device.type == "cpu" else _CARD_LOGITS
        at_once = max(most // queries.shape[:2].numel(), 1)
        sums: _Sums | None = None
        for start in range(0, len(corpus), at_once):
            part = slice(start, start + at_once)
            of_part = None if keyword is None else keyword[:, part]
            more = _Sums.over(scaled, corpus[part], of_part, weight, pooled=pooled)
            sums = more if sums is None else sums.with_(more)
        assert sums is not None  # there is a document
        if sums.context is not None:
            shared = None if sums.shared is None else (sums.shared / sums.mass).squeeze(-1)
            ctx.save_for_backward(queries, temperature, keyword_weight, sums.context / sums.mass, shared)
        return (sums.most + sums.mass.log()).squeeze(-1)

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
        return -(target * log_mix(log_heads, head.mixture_of(folded))).sum(-1).mean()
    dense, part = torch.einsum("bhd,bpd->bhp", folded, corpus[relevant].to(folded)), None
    if keyword is not None:
        part = keyword_part(head.keyword_weight, keyword.gather(1, relevant))
    whole = whole_partition(folded, corpus, head.temperature, keyword, head.keyword_weight)
    log_heads = raw_scores(dense, part) / head.temperature - whole.unsqueeze(-1)
    return -(target * log_mix(log_heads, head.mixture_of(folded))).sum(-1).mean()


def _in_one_pass(
    head: Head,
    folded: Float[Tensor, "batch heads encoder_dim"],
    keyword: Float[Tensor, "batch documents"] | None,
    corpus: Float[Tensor, "documents encoder_dim"],
    further: FurtherPassages | None,
) -> bool:
    """One head on a CPU, over a frozen corpus that one block of logits can hold."""
    passages = len(corpus) + (0 if further is None else len(further.owners))
    frozen = _frozen(corpus, keyword)
    return head.heads == 1 and frozen and corpus.device.type == "cpu" and in_one_block(folded, passages)


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
    whole = biased_partition(folded, passages, bias, head.temperature)
    return logits - whole.unsqueeze(-1)
