"""Probability that judgements mean nothing: dealt at random, made up, or of another collection.

A head that the defaults train on honest judgements usually helps; what must be feared is judgements that name
documents which have nothing to do with their queries. These show themselves before anything is trained: the
live search ranks the documents that were judged for a query no higher than those judged for another one.

    p = share of permutations π of the queries with  mean_q AP(ranking of q, judgements of π(q))
        at least as high as  mean_q AP(ranking of q, judgements of q)
    e = κ p^(κ − 1)                                         an e-value: its mean is 1 if nothing is meant
    P(noise) = π₀ / (π₀ + (1 − π₀) e)

The calibrator of p-values with κ is that of Vovk and Wang 2021, "E-values: calibration, combination and
applications" (Annals of Statistics 49:1736), eq. 1.
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Float, Int64

from dsearch.attention.retrieval.head import Head
from dsearch.training.data.examples import Examples
from dsearch.training.ranking import Ranking
from dsearch.training.relevant import EVIDENCE_DEPTH, Relevant

PRIOR_OF_NOISE = 0.2
_CALIBRATION = 0.1  # κ
_MOST_QUERIES = 200  # that are permuted: more say nothing new
_PERMUTATIONS = 9_999


def probability_of_noise(examples: Examples, live: Head, *, keywords: bool = True, seed: int = 0) -> float:
    """The probability that judgements mean nothing, by the live search's ranking of the judged documents.

    Args:
        examples: judged queries; of many, some are drawn.
        live: head of the live version, or the untrained one.
        keywords: True to include the keyword score in the ranking.
        seed: random seed of the draw and of the permutations.
    """
    generator = np.random.default_rng([seed, 7])
    if len(examples) > _MOST_QUERIES:
        drawn = np.sort(generator.choice(len(examples), _MOST_QUERIES, replace=False))
        examples = examples.subset(drawn.tolist())
    ranking = Ranking(examples, keywords=keywords)
    top = ranking.top(live, EVIDENCE_DEPTH, hop_strength=live.hop_strength.item())
    p_value = permutation_p_value(_precisions(top, examples), generator)
    evidence = _CALIBRATION * p_value ** (_CALIBRATION - 1)
    return PRIOR_OF_NOISE / (PRIOR_OF_NOISE + (1 - PRIOR_OF_NOISE) * evidence)


def permutation_p_value(
    precisions: Float[np.ndarray, "queries queries"], generator: np.random.Generator
) -> float:
    """Share of permutations of the judgements that the rankings fit as well as the given ones.

    Args:
        precisions: average precision of each query's ranking by the judgements of each query.
        generator: random numbers.
    """
    rows = np.arange(len(precisions))
    observed = precisions.diagonal().mean()
    drawn = (precisions[rows, generator.permutation(len(rows))].mean() for _ in range(_PERMUTATIONS))
    as_high = sum(bool(mean >= observed - 1e-12) for mean in drawn)
    return (as_high + 1) / (_PERMUTATIONS + 1)


def _precisions(
    top: Int64[np.ndarray, "queries depth"], examples: Examples
) -> Float[np.ndarray, "queries queries"]:
    """Average precision of each query's ranking (rows) by the judgements of each query (columns)."""
    columns = [Relevant([judgements] * len(top)).average_precision(top) for judgements in examples.relevant]
    return np.stack(columns, axis=1)
