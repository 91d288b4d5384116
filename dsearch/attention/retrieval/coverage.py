"""Covered mass: the share of the exact softmax that the candidates of a top-k search hold.

    covered = Σ_{d ∈ candidates} exp(l_d) / Z          Z over the whole corpus

At 1 the top-k answer is the exact one; what is missing bounds how far the pooled context can be off, by
(1 − covered) times the distance between the values inside and outside.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from dsearch.errors import InvalidRequest


class CoveredMass(NamedTuple):
    """An estimated share in [0, 1] and the standard error of the estimate."""

    estimate: Float[Tensor, "*batch"]
    standard_error: Float[Tensor, "*batch"]


def covered_mass(
    candidate_logits: Float[Tensor, "*batch candidates"], log_partition: Float[Tensor, "*batch"]
) -> Float[Tensor, "*batch"]:
    """Exact covered share, given log Z from `log_partition`; 1 for an empty corpus.

    Args:
        candidate_logits: logits of distinct candidates, −inf where one is missing.
        log_partition: log Z of the same logits over the whole corpus.
    """
    nothing = log_partition == -math.inf
    relative = candidate_logits - log_partition.masked_fill(nothing, 0.0).unsqueeze(-1)
    return relative.exp().sum(-1).clamp(max=1.0).masked_fill(nothing, 1.0)


def estimate_covered_mass(
    candidate_logits: Float[Tensor, "*batch candidates"],
    sampled_logits: Float[Tensor, "*batch samples"],
    rest: int | Int[Tensor, "*#batch"],
) -> CoveredMass:
    """Estimate the covered share from a uniform sample of the documents that are no candidates.

    Args:
        candidate_logits: logits of the candidates, −inf where one is missing.
        sampled_logits: logits of rows that `sample_rest` drew, at least 2 a query.
        rest: number of documents that are no candidates.

    Returns:
        T / (T + R̂) with T the candidates' sum and R̂ = rest · mean of the sampled exp(l); and its standard
        error by the delta method, T / (T + R̂)² · rest · s / √m with s the sample's standard deviation. A
        softmax is heavy-tailed: a document that outweighs the rest and was not drawn is not in the error
        either, so draw more when the search may have missed (an approximate index) than when it cannot
        have.

    Raises:
        InvalidRequest: fewer than 2 samples, which have no standard deviation.
    """
    samples = sampled_logits.shape[-1]
    if samples < 2:
        raise InvalidRequest(f"{samples} sample(s); a standard error needs 2 or more")
    rest = torch.as_tensor(rest, dtype=sampled_logits.dtype, device=sampled_logits.device)
    highest = torch.cat([candidate_logits, sampled_logits], -1).amax(-1, keepdim=True)
    highest = highest.masked_fill(highest == -math.inf, 0.0)
    inside = (candidate_logits - highest).exp().sum(-1)
    drawn = (sampled_logits - highest).exp()
    outside = rest * drawn.mean(-1)
    total = inside + outside
    nothing = total == 0
    total = total.masked_fill(nothing, 1.0)
    error = inside / total.square() * rest * drawn.std(-1) / math.sqrt(samples)
    return CoveredMass((inside / total).masked_fill(nothing, 1.0), error)


def sample_rest(
    candidates: Int[Tensor, "*batch candidates"],
    documents: int,
    samples: int,
    generator: torch.Generator | None = None,
) -> tuple[Int[Tensor, "*batch {samples}"], Int[Tensor, "*batch"]]:
    """Draw rows uniformly, with replacement, from those that are no candidates; also return their number.

    Args:
        candidates: distinct rows in [0, documents), in any order; −1 marks an empty place.
        documents: rows of the corpus.
        samples: draws per query.
        generator: source of randomness.

    Returns:
        Rows, −1 where every document is a candidate; and `rest`, the number of documents left.

    The r-th row that is no candidate is r plus the number of candidates before it, so no array of the
    corpus's size is allocated.
    """
    missing = candidates < 0
    rest = documents - (~missing).sum(-1)
    ordered = candidates.masked_fill(missing, documents).sort(-1).values
    before = ordered - torch.arange(ordered.shape[-1], device=ordered.device)
    # Empty places sort last, at `documents`; behind every possible draw they shift none.
    before = before.masked_fill(ordered == documents, documents)
    at = candidates.device if generator is None else generator.device  # a generator draws on no other device
    shape = (*candidates.shape[:-1], samples)
    uniform = torch.rand(shape, dtype=torch.float64, device=at, generator=generator).to(candidates.device)
    drawn = (uniform * rest.unsqueeze(-1)).long()
    rows = drawn + torch.searchsorted(before.contiguous(), drawn, right=True)
    return rows.masked_fill(rest.unsqueeze(-1) == 0, -1), rest
