"""Losses on logits, which compare a ranking of given documents with a target. Each cites its source.

Two tables name those that are training objectives; objectives.py makes an objective of every entry.

All take log weights over documents: logits up to a constant for each query, which no loss here depends on.
The target p is above 0 exactly on the relevant documents and sums to 1 for each query.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor


def cross_entropy(
    log_weights: Float[Tensor, "batch documents"], target: Float[Tensor, "batch documents"]
) -> Float[Tensor, ""]:
    """−Σ_d p_d log softmax(l)_d, graded: least where the softmax is p.

    Cao et al. 2007, "Learning to Rank: From Pairwise Approach to Listwise Approach", eq. 4 with top-one
    probabilities; the grades' shares in place of the softmax of the grades.
    """
    return -(target * log_weights.log_softmax(-1)).sum(-1).mean()


def info_nce(
    log_weights: Float[Tensor, "batch documents"], target: Float[Tensor, "batch documents"]
) -> Float[Tensor, ""]:
    """−Σ_d p_d log( exp l_d / (exp l_d + Σ_{n not relevant} exp l_n) ): positives do not compete.

    van den Oord et al. 2018 (arXiv:1807.03748), eq. 4, with the batch's other documents as negatives, less
    those that are known to be relevant (false negatives). Each positive has a denominator of its own, so it
    tends to 0 as all positives leave all negatives behind, while `cross_entropy` tends to the entropy of p.
    """
    relevant = target > 0
    # A large finite number in place of −∞: a query without any negative has loss 0 and gradient 0, not NaN.
    negatives = log_weights.masked_fill(relevant, -1e30).logsumexp(-1, keepdim=True)
    return (target * (torch.logaddexp(log_weights, negatives) - log_weights)).sum(-1).mean()


def marginal_likelihood(
    log_weights: Float[Tensor, "batch documents"], target: Float[Tensor, "batch documents"]
) -> Float[Tensor, ""]:
    """−log Σ_{d relevant} softmax(l)_d: one relevant document is enough, whichever.

    Lee et al. 2019 (arXiv:1906.00300), eq. of section 5 (P(a | q) marginalised over evidence); Karpukhin et
    al. 2020 (arXiv:2004.04906) compare it. 0 when all weight is on the relevant documents, however divided.
    """
    log_shares = log_weights.log_softmax(-1).masked_fill(target == 0, -1e30)
    return -log_shares.logsumexp(-1).mean()


def teacher_divergence(
    log_weights: Float[Tensor, "batch scored"],
    teacher: Float[Tensor, "batch scored"],
    mask: Bool[Tensor, "batch scored"],
) -> Float[Tensor, ""]:
    """KL(softmax(teacher) ‖ softmax(l)) over the documents that the teacher scored; 0 where they are equal.

    Hinton et al. 2015 (arXiv:1503.02531), eq. 1–2, listwise; the same for retrieval: Izacard et al. 2022
    (arXiv:2208.03299), section 2.2. Depends on differences of logits and of teacher scores alone.
    """
    wanted = teacher.masked_fill(~mask, -1e30).log_softmax(-1)
    student = log_weights.masked_fill(~mask, -1e30).log_softmax(-1)
    return (wanted.exp() * (wanted - student)).masked_fill(~mask, 0.0).sum(-1).mean()


def margin_mse(
    log_weights: Float[Tensor, "batch scored"],
    teacher: Float[Tensor, "batch scored"],
    mask: Bool[Tensor, "batch scored"],
) -> Float[Tensor, ""]:
    """Mean over pairs of ((l_i − l_j) − (s_i − s_j))²: 0 where logits are the teacher's up to a constant.

    Hofstätter et al. 2020 (arXiv:2010.02666), eq. 3, over all pairs of scored documents instead of one pair.
    Over all pairs it is twice the variance of l − s, which needs no pairs.
    """
    count = mask.sum(-1, keepdim=True).clamp_min(1)
    apart = (log_weights - teacher).masked_fill(~mask, 0.0)
    centred = (apart - apart.sum(-1, keepdim=True) / count).masked_fill(~mask, 0.0)
    return (2 * centred.square().sum(-1) / count[:, 0]).mean()


def approx_ndcg(
    log_weights: Float[Tensor, "batch documents"],
    target: Float[Tensor, "batch documents"],
    *,
    smoothness: float = 1.0,
) -> Float[Tensor, ""]:
    """1 − nDCG with ranks made smooth: rank_i = 1 + Σ_{j≠i} sigmoid((s_j − s_i) / smoothness).

    Qin, Liu and Li 2010, "A General Approximation Framework for Direct Optimization of Information Retrieval
    Measures", eq. 10–13; `smoothness` is the inverse of their α. The gain is the grade, as in `evaluation`.
    Tends to 1 − nDCG as smoothness falls to 0, and to 0 as the order becomes that of the grades.
    """
    positives = int((target > 0).sum(-1).max())
    gains, at = target.topk(positives, dim=-1)
    own = log_weights.gather(-1, at)
    ahead = ((log_weights[:, None] - own[..., None]) / smoothness).sigmoid().sum(-1)
    rank = 1 + ahead - 0.5  # a document is not ahead of itself: sigmoid(0)
    ideal = gains / torch.arange(2, positives + 2, device=gains.device).log2()
    return (1 - (gains / (1 + rank).log2()).sum(-1) / ideal.sum(-1)).mean()


class TargetLoss(NamedTuple):
    """Loss of (log weights, target) as a training objective, and the documents in its softmax.

    Attributes:
        pool: "whole" for the corpus, "judged" for the judged documents of all training queries, "batch" for
            the relevant documents of the batch.
        loss: the loss.
    """

    pool: Literal["whole", "judged", "batch"]
    loss: Callable[[Tensor, Tensor], Tensor]


TARGET_LOSSES: dict[str, TargetLoss] = {
    "judged": TargetLoss("judged", cross_entropy),
    "in-batch": TargetLoss("batch", info_nce),
    "marginal": TargetLoss("whole", marginal_likelihood),
    "approx-ndcg": TargetLoss("whole", approx_ndcg),
}
# Losses of (log weights, teacher scores, mask), over the documents that a teacher scored.
TEACHER_LOSSES: dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]] = {
    "teacher": teacher_divergence,
    "margin": margin_mse,
}
