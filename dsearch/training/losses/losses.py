"""Losses on logits, which compare a ranking of given documents with a target. Each cites its source.

`TARGET_LOSSES` names those that are training objectives; objectives.py makes an objective of every entry.

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


class TargetLoss(NamedTuple):
    """Loss of (log weights, target) as a training objective, and the documents in its softmax.

    Attributes:
        pool: "whole" for the corpus, "judged" for the judged documents of all training queries.
        loss: the loss.
    """

    pool: Literal["whole", "judged"]
    loss: Callable[[Tensor, Tensor], Tensor]


TARGET_LOSSES: dict[str, TargetLoss] = {
    "judged": TargetLoss("judged", cross_entropy),
    "marginal": TargetLoss("whole", marginal_likelihood),
}
