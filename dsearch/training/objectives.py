"""What a head is trained to do, as losses over the whole corpus; no negatives are sampled.

With l the logits, Z = log Σ_d exp(l_d) over the corpus, and p the target distribution:

    listwise cross-entropy     −Σ_d p_d log softmax(l)_d = Z − Σ_d p_d l_d         p_d = grade_d / Σ grades
    retention                  KL(π₀ ‖ π) = Σ_d π₀_d (log π₀_d − log π_d)          π₀ frozen, π trained

Cao et al. 2007, "Learning to Rank: From Pairwise Approach to Listwise Approach", with graded targets in place
of their permutation model. A full softmax also pushes down every document that nobody judged; the retention
term, with stored documents as queries, holds the ranking of those in place (distillation from the untrained
model: Hinton et al. 2015, arXiv:1503.02531; to keep what was known: Li and Hoiem 2016, arXiv:1606.09282).
"""

from __future__ import annotations

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from dsearch.attention import exact_attention, log_partition
from dsearch.attention.head import START_TEMPERATURE, Head

# Up to this many logits the plain expression is faster: keeping them costs less than computing them twice.
_PLAIN_LOGITS = 1 << 25


def listwise_cross_entropy(
    head: Head,
    states: Float[Tensor, "batch encoder_dim"],
    keyword: Float[Tensor, "batch documents"] | None,
    corpus: Float[Tensor, "documents encoder_dim"],
    relevant: Int64[Tensor, "batch positives"],
    target: Float[Tensor, "batch positives"],
) -> Float[Tensor, ""]:
    """Mean over the batch of −Σ_d p_d log Σ_h m_h softmax(l_h)_d; exact over the corpus.

    Args:
        head: what is trained.
        states: query embeddings.
        keyword: b(q, d) for every document, or None for a dense search.
        corpus: the stored embeddings.
        relevant: positions of each query's positives; padding may point anywhere.
        target: p_d, rows summing to 1; 0 at padding.
    """
    folded = head.fold(head.queries(states))
    batch, heads, _ = folded.shape
    temperature = head.temperature
    logits = torch.einsum("bhd,bpd->bhp", folded, corpus[relevant]) / temperature
    bias = None
    if keyword is not None:
        weighted = head.keyword_weight[:, None] * keyword[:, None] / temperature
        bias = weighted.flatten(0, 1)
        at = relevant[:, None].expand(-1, heads, -1)
        logits = logits + weighted.gather(2, at)
    whole = _log_partition(folded.flatten(0, 1), corpus, bias, temperature)
    log_heads = logits - whole.unflatten(0, (batch, heads)).unsqueeze(-1)
    log_weights = (head.mixture.log()[:, None] + log_heads).logsumexp(1)
    return -(target * log_weights).sum(-1).mean()


def retention(
    head: Head, documents: Float[Tensor, "batch encoder_dim"], corpus: Float[Tensor, "documents encoder_dim"]
) -> Float[Tensor, ""]:
    """Mean KL(π₀ ‖ π_h) over stored documents as queries, and over heads; dense, at the first temperature.

    No [batch, documents] matrix is kept: logits are linear in the stored embeddings, so Σ_d π₀_d l_d is the
    product of the folded query with the context of the frozen attention.
    """
    with torch.no_grad():
        context, frozen = exact_attention(documents, corpus, temperature=START_TEMPERATURE)
        expected_frozen = (documents * context).sum(-1) / START_TEMPERATURE
    folded = head.fold(head.queries(documents))
    start = folded.new_tensor(START_TEMPERATURE)
    trained = _log_partition(folded.flatten(0, 1), corpus, None, start).unflatten(0, folded.shape[:2])
    expected = torch.einsum("bhd,bd->bh", folded, context) / START_TEMPERATURE
    return ((expected_frozen - frozen)[:, None] - (expected - trained)).mean()


def _log_partition(
    queries: Float[Tensor, "batch dim"],
    corpus: Float[Tensor, "documents dim"],
    bias: Float[Tensor, "batch documents"] | None,
    temperature: Float[Tensor, ""],
) -> Float[Tensor, " batch"]:
    if len(queries) * len(corpus) > _PLAIN_LOGITS:
        return log_partition(queries, corpus, bias=bias, temperature=temperature)
    logits = queries @ corpus.T / temperature
    return (logits if bias is None else logits + bias).logsumexp(-1)
