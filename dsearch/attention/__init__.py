"""Attention as retrieval: every way that queries, keys and values meet. Torch only; no index here."""

from __future__ import annotations

from dsearch.attention.exact import exact_attention, log_partition
from dsearch.attention.hops import attend_in_hops, refine
from dsearch.attention.kernels import boxcar, epanechnikov, gaussian
from dsearch.attention.mixture import mix
from dsearch.attention.partial import Exact, Partial, merge
from dsearch.attention.pooling import POOLINGS, Attended, attend, hard, normalise, pool, soft, uniform
from dsearch.attention.scores import (
    SCORES,
    AdditiveScore,
    GeneralScore,
    KernelScore,
    Score,
    additive,
    cosine,
    dot,
    exact_match,
    general,
    scaled_dot_product,
    score_named,
    unit,
)
from dsearch.attention.softmax import entropy, masked_log_softmax, masked_softmax

__all__ = [
    "POOLINGS",
    "SCORES",
    "AdditiveScore",
    "Attended",
    "Exact",
    "GeneralScore",
    "KernelScore",
    "Partial",
    "Score",
    "additive",
    "attend",
    "attend_in_hops",
    "boxcar",
    "cosine",
    "dot",
    "entropy",
    "epanechnikov",
    "exact_attention",
    "exact_match",
    "gaussian",
    "general",
    "hard",
    "log_partition",
    "masked_log_softmax",
    "masked_softmax",
    "merge",
    "mix",
    "normalise",
    "pool",
    "refine",
    "scaled_dot_product",
    "score_named",
    "soft",
    "uniform",
    "unit",
]
