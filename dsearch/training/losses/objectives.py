"""Training objectives of a head: `OBJECTIVES` by name, each a function of a `Batch`, and retention.

The documents in the denominator determine the effect on unjudged documents:

    listwise      graded cross-entropy over the whole corpus: the largest gain for judged documents
    judged        the same over the judged documents of all training queries: hardly changes the others
    marginal      marginal likelihood over the whole corpus: one relevant document is enough
    teacher       listwise divergence from a teacher's scores, over the documents that it scored
    reinforce     grades of documents drawn from the attention over the whole corpus (hard attention)

judged, marginal and teacher are losses on log weights over a pool of documents, logits up to a constant for
each query; the target p is above 0 exactly on the relevant documents and sums to 1. No negatives are sampled.
For the whole corpus, with l the logits, Z = log Σ_d exp(l_d), and p the target distribution:

    listwise cross-entropy     −Σ_d p_d log softmax(l)_d = Z − Σ_d p_d l_d         p_d = grade_d / Σ grades
    retention                  KL(π₀ ‖ π) = Σ_d π₀_d (log π₀_d − log π_d)          π₀ frozen, π trained

Cao et al. 2007, "Learning to Rank: From Pairwise Approach to Listwise Approach", with graded targets in place
of their permutation model. A full softmax also pushes down every unjudged document; the retention term, with
stored documents as queries, preserves their ranking (distillation from the untrained model: Hinton et al.
2015, arXiv:1503.02531; against forgetting: Li and Hoiem 2016, arXiv:1606.09282).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal, NamedTuple

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from dsearch.attention import ExactAttention, exact_attention, reinforce_loss, sample
from dsearch.attention.arrays import keyword_part
from dsearch.attention.retrieval.head import START_TEMPERATURE, Head
from dsearch.attention.retrieval.kernel import log_mix, raw_scores
from dsearch.training.losses.listwise import in_full, listwise_cross_entropy, scores_of, whole_partition
from dsearch.training.losses.passages import FurtherPassages


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


_FROZEN_AT_A_TIME = 512
REWARD_SAMPLES = 32  # documents drawn for a query and step; the noise falls like their number


@dataclass(frozen=True, slots=True)
class Batch:
    """Batch of training queries, the input of every objective.

    Attributes:
        head: head to train.
        states: query embeddings.
        keyword: b(q, d) for every document, or None for a dense search.
        corpus: the stored embeddings.
        relevant: positions of each query's positives; padding may point anywhere.
        target: shares of the grades, rows summing to 1; 0 at padding.
        judged: all documents that are relevant to some training query, or were seen and left, ascending.
        scored: positions of the documents that a teacher scored; padding may point anywhere.
        teacher: scores of the teacher.
        mask: True for teacher scores, False for padding.
        further: further passages of long documents; None if no document is long.
        generator: random generator of the documents shown.
    """

    head: Head
    states: Float[Tensor, "batch encoder_dim"]
    keyword: Float[Tensor, "batch documents"] | None
    corpus: Float[Tensor, "documents encoder_dim"]
    relevant: Int64[Tensor, "batch positives"]
    target: Float[Tensor, "batch positives"]
    judged: Int64[Tensor, " judged"]
    scored: Int64[Tensor, "batch scored"]
    teacher: Float[Tensor, "batch scored"]
    mask: Bool[Tensor, "batch scored"]
    further: FurtherPassages | None = None
    generator: torch.Generator | None = None

    def log_weights(self, pool: Int64[Tensor, " pool"]) -> Float[Tensor, "batch pool"]:
        """log Σ_h m_h softmax(l_h) of every query over the same documents."""
        keyword = None if self.keyword is None else self.keyword[:, pool]
        folded = self.head.fold(self.head.queries(self.states))
        scores = scores_of(folded, self.corpus[pool])
        if self.further is not None:
            scores, _ = self.further.among(pool).taken(folded, scores)
        return self._mixed(folded, scores, keyword)

    def log_weights_of_scored(self) -> Float[Tensor, "batch scored"]:
        """The same for the documents that the teacher scored, each query's own."""
        keyword = None if self.keyword is None else self.keyword.gather(1, self.scored)
        folded = self.head.fold(self.head.queries(self.states))
        if self.further is None:
            scores = torch.einsum("bhd,bsd->bhs", folded, self.corpus[self.scored].to(folded))
        else:
            every, _ = self.further.taken(folded, scores_of(folded, self.corpus))
            scores = every.gather(2, self.scored[:, None].expand(-1, folded.shape[1], -1))
        return self._mixed(folded, scores, keyword, self.mask)

    def target_over(self, pool: Int64[Tensor, " pool"]) -> Float[Tensor, "batch pool"]:
        """The targets as a matrix over documents that hold all positives, ascending."""
        at = torch.searchsorted(pool, self.relevant).clamp_max(len(pool) - 1)
        return self.target.new_zeros(len(self.target), len(pool)).scatter_add_(1, at, self.target)

    def whole(self) -> Int64[Tensor, " documents"]:
        """Every document."""
        return torch.arange(len(self.corpus), device=self.corpus.device)

    def grades_of(self, sampled: Int64[Tensor, "batch samples"]) -> Float[Tensor, "batch samples"]:
        """The share of the grades at each of these positions."""
        same = sampled[:, :, None] == self.relevant[:, None, :]
        return (same * self.target[:, None, :]).sum(-1)

    def _mixed(
        self,
        folded: Float[Tensor, "batch heads encoder_dim"],
        scores: Float[Tensor, "batch heads pool"],
        keyword: Float[Tensor, "batch pool"] | None,
        mask: Bool[Tensor, "batch pool"] | None = None,
    ) -> Float[Tensor, "batch pool"]:
        part = None if keyword is None else keyword_part(self.head.keyword_weight, keyword)
        logits = raw_scores(scores, part) / self.head.temperature
        if mask is not None:
            logits = logits.masked_fill(~mask[:, None], -1e30)
        return log_mix(logits.log_softmax(-1), self.head.mixture_of(folded))


Objective = Callable[[Batch], Float[Tensor, ""]]


class FrozenAttention:
    """Untrained attention π₀ of stored documents over the corpus: contexts and log partitions.

    Args:
        corpus: stored embeddings.
        draws: number of documents to be requested; from the size of the corpus on, results are cached.
    """

    def __init__(self, corpus: Float[Tensor, "documents encoder_dim"], draws: int):
        self._corpus = corpus
        self._exact: ExactAttention | None = None
        if draws >= len(corpus):
            parts = [self._of(documents) for documents in corpus.split(_FROZEN_AT_A_TIME)]
            self._exact = ExactAttention(*(torch.cat(column) for column in zip(*parts, strict=True)))

    def __call__(self, drawn: Int64[Tensor, " batch"]) -> ExactAttention:
        """Context and log partition of the documents at these positions."""
        if self._exact is None:
            return self._of(self._corpus[drawn])
        return ExactAttention(self._exact.context[drawn], self._exact.log_partition[drawn])

    @torch.no_grad()
    def _of(self, documents: Float[Tensor, "batch encoder_dim"]) -> ExactAttention:
        return exact_attention(in_full(documents), self._corpus, temperature=START_TEMPERATURE)


def retention(
    head: Head,
    documents: Float[Tensor, "batch encoder_dim"],
    corpus: Float[Tensor, "documents encoder_dim"],
    frozen: ExactAttention | None = None,
) -> Float[Tensor, ""]:
    """Mean KL(π₀ ‖ π_h) over stored documents as queries, and over heads; dense, at the first temperature.

    No [batch, documents] matrix is kept: logits are linear in the stored embeddings, so Σ_d π₀_d l_d is the
    product of the folded query with the context of the frozen attention. That one may be given.
    """
    documents = in_full(documents)
    if frozen is None:
        with torch.no_grad():
            frozen = exact_attention(documents, corpus, temperature=START_TEMPERATURE)
    context = frozen.context
    expected_frozen = (documents * context).sum(-1) / START_TEMPERATURE
    folded = head.fold(head.queries(documents))
    trained = whole_partition(folded, corpus, folded.new_tensor(START_TEMPERATURE))
    expected = torch.einsum("bhd,bd->bh", folded, context) / START_TEMPERATURE
    return ((expected_frozen - frozen.log_partition)[:, None] - (expected - trained)).mean()


_POOLS: dict[str, Callable[[Batch], Int64[Tensor, " pool"]]] = {
    "whole": Batch.whole,
    "judged": lambda batch: batch.judged,
}


def _over(
    pool: Callable[[Batch], Int64[Tensor, " pool"]], loss: Callable[[Tensor, Tensor], Tensor]
) -> Objective:
    def objective(batch: Batch) -> Float[Tensor, ""]:
        documents = pool(batch)
        return loss(batch.log_weights(documents), batch.target_over(documents))

    return objective


def _by_teacher(batch: Batch) -> Float[Tensor, ""]:
    return teacher_divergence(batch.log_weights_of_scored(), batch.teacher, batch.mask)


def by_rewards(batch: Batch) -> Float[Tensor, ""]:
    """−E[reward] of showing a document drawn from the attention; its gradient alone means something.

    Williams 1992 (REINFORCE) with the leave-one-out baseline of Kool et al. 2019, see
    attention/hard_attention.py. The rewards are the grades' shares; `marginal` is the exact form, with far
    less noise.
    """
    log_weights = batch.log_weights(batch.whole())
    sampled = sample(log_weights.exp(), REWARD_SAMPLES, batch.generator)
    return reinforce_loss(log_weights, sampled, batch.grades_of(sampled).to(log_weights)).mean()


DEFAULT_OBJECTIVE, TEACHER = "listwise", "teacher"
OBJECTIVES: MappingProxyType[str, Objective] = MappingProxyType(
    {
        DEFAULT_OBJECTIVE: lambda batch: listwise_cross_entropy(
            batch.head,
            batch.states,
            batch.keyword,
            batch.corpus,
            batch.relevant,
            batch.target,
            batch.further,
        ),
        **{name: _over(_POOLS[entry.pool], entry.loss) for name, entry in TARGET_LOSSES.items()},
        TEACHER: _by_teacher,
        "reinforce": by_rewards,
    }
)
