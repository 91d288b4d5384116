"""Estimators of the corpus softmax from candidates and a sample: bias, variance and cost.

Split the partition function at the candidates T: Z = Z_T + Z_rest. With m rows s_1 … s_m drawn uniformly
from the R documents that are no candidates,

    Ẑ = Σ_{d∈T} exp(l_d) + R/m Σ_i exp(l_{s_i})          E[Ẑ] = Z

so each sampled row enters the softmax with log(R/m) added to its logit (importance correction; Bengio &
Senécal, 2003). Ẑ is unbiased; its logarithm is not, E[log Ẑ] ≈ log Z − Var(Ẑ) / 2Z², which falls like 1/m
and vanishes with Z_rest. Taking the top exactly and sampling only the rest keeps Var(Ẑ) small: the sum
there is over logits that the search has shown to be small.

| choice | value and gradient | cost |
|---|---|---|
| (a) `exact_attention` | exact | reads the corpus |
| (b) `sampled_attention`, m > 0 | bias O(1/m), consistent | k + m rows |
| (c) m = 0, bare top-k | those of a corpus that ends after k: outsiders are never pushed away | k rows |
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from dsearch.attention.arrays import masked_softmax
from dsearch.attention.pooling import pool

Rest = int | Int[Tensor, "*#batch"]


class AttentionSample(NamedTuple):
    """Attention over candidates and sample; `weights` are of both, candidates first, and sum to 1."""

    context: Float[Tensor, "*batch value_dim"]
    log_partition: Float[Tensor, "*batch"]
    weights: Float[Tensor, "*batch candidates_and_samples"]


def sampled_log_partition(
    candidate_logits: Float[Tensor, "*batch candidates"],
    sampled_logits: Float[Tensor, "*batch samples"],
    rest: Rest,
) -> Float[Tensor, "*batch"]:
    """log Ẑ: the logarithm of an unbiased estimate of the partition function.

    Args:
        candidate_logits: −inf where a candidate is missing.
        sampled_logits: of rows drawn uniformly, with replacement, from the rest (`sample_rest`); −inf where
            there is no rest. No samples at all is the bare top-k.
        rest: R, the number of documents that are no candidates.
    """
    logits = _corrected(candidate_logits, sampled_logits, rest)
    empty = (logits == -math.inf).all(-1, keepdim=True)
    return logits.masked_fill(empty, 0.0).logsumexp(-1).masked_fill(empty.squeeze(-1), -math.inf)


def sampled_attention(
    candidate_logits: Float[Tensor, "*batch candidates"],
    candidate_values: Float[Tensor, "*batch candidates value_dim"],
    sampled_logits: Float[Tensor, "*batch samples"],
    sampled_values: Float[Tensor, "*batch samples value_dim"],
    rest: Rest,
) -> AttentionSample:
    """Attention over the corpus, from its candidates and an importance-corrected sample of the rest.

    Arguments as in `sampled_log_partition`. The context is a ratio of two unbiased estimates
    (self-normalised importance sampling): biased by O(1/m), and the exact one as m grows.
    """
    logits = _corrected(candidate_logits, sampled_logits, rest)
    weights = masked_softmax(logits)
    context = pool(weights.unsqueeze(-2), torch.cat([candidate_values, sampled_values], -2)).squeeze(-2)
    return AttentionSample(context, sampled_log_partition(candidate_logits, sampled_logits, rest), weights)


def _corrected(candidate_logits: Tensor, sampled_logits: Tensor, rest: Rest) -> Tensor:
    samples = sampled_logits.shape[-1]
    size = torch.as_tensor(rest, dtype=sampled_logits.dtype, device=sampled_logits.device)
    each_stands_for = (size / max(samples, 1)).log().unsqueeze(-1)
    return torch.cat([candidate_logits, sampled_logits + each_stands_for], -1)
