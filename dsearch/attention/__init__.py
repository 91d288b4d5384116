"""Attention as retrieval: scores, softmax, pooling, top-k, hard attention. Depends on torch alone.

Names are loaded when they are first used: the formulas that a search needs do without torch (arrays.py).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dsearch.lazy_names import lazy_names

if TYPE_CHECKING:
    from dsearch.attention.arrays import entropy, masked_log_softmax, masked_softmax, temper
    from dsearch.attention.blockwise.blocks import ExactAttention, PartialAttention, merge
    from dsearch.attention.blockwise.exact import exact_attention, log_partition
    from dsearch.attention.database import Answer, Database
    from dsearch.attention.excitation import GatedValues, SqueezeExcite
    from dsearch.attention.hard_attention import HardSample, SampledHardAttention, reinforce_loss, sample
    from dsearch.attention.multihead import MultiHeadAttention, causal_mask
    from dsearch.attention.pooling import (
        POOLINGS,
        AttentionResult,
        attend,
        cone,
        hard,
        normalise,
        pool,
        soft,
        uniform,
        with_zero_gradient,
    )
    from dsearch.attention.regression import NadarayaWatson, Prediction, predict
    from dsearch.attention.retrieval.coverage import covered_mass
    from dsearch.attention.retrieval.hops import attend_in_hops, refine
    from dsearch.attention.retrieval.kernel import mix
    from dsearch.attention.retrieval.topk import TopK, TopKAttention, top_k, top_k_attention
    from dsearch.attention.scores import (
        SCORES,
        AdditiveScore,
        GeneralScore,
        KernelScore,
        Score,
        additive,
        boxcar,
        cosine,
        dot,
        epanechnikov,
        exact_match,
        gaussian,
        general,
        scaled_dot_product,
        score_named,
        unit,
    )
    from dsearch.attention.string_kernels import string_kernel

_NAMES = {
    "pooling": (
        "POOLINGS",
        "AttentionResult",
        "attend",
        "cone",
        "hard",
        "normalise",
        "pool",
        "soft",
        "uniform",
        "with_zero_gradient",
    ),
    "scores": (
        "SCORES",
        "AdditiveScore",
        "GeneralScore",
        "KernelScore",
        "Score",
        "additive",
        "boxcar",
        "cosine",
        "dot",
        "epanechnikov",
        "exact_match",
        "gaussian",
        "general",
        "scaled_dot_product",
        "score_named",
        "unit",
    ),
    "database": ("Answer", "Database"),
    "string_kernels": ("string_kernel",),
    "retrieval.coverage": ("covered_mass",),
    "blockwise.blocks": ("ExactAttention", "PartialAttention", "merge"),
    "excitation": ("GatedValues", "SqueezeExcite"),
    "hard_attention": ("HardSample", "SampledHardAttention", "reinforce_loss", "sample"),
    "multihead": ("MultiHeadAttention", "causal_mask"),
    "regression": ("NadarayaWatson", "Prediction", "predict"),
    "retrieval.topk": ("TopK", "TopKAttention", "top_k", "top_k_attention"),
    "retrieval.hops": ("attend_in_hops", "refine"),
    "arrays": ("entropy", "masked_log_softmax", "masked_softmax", "temper"),
    "blockwise.exact": ("exact_attention", "log_partition"),
    "retrieval.kernel": ("mix",),
}
_HOMES = {name: f"dsearch.attention.{module}" for module, names in _NAMES.items() for name in names}

__all__ = [
    "POOLINGS",
    "SCORES",
    "AdditiveScore",
    "Answer",
    "AttentionResult",
    "Database",
    "ExactAttention",
    "GatedValues",
    "GeneralScore",
    "HardSample",
    "KernelScore",
    "MultiHeadAttention",
    "NadarayaWatson",
    "PartialAttention",
    "Prediction",
    "SampledHardAttention",
    "Score",
    "SqueezeExcite",
    "TopK",
    "TopKAttention",
    "additive",
    "attend",
    "attend_in_hops",
    "boxcar",
    "causal_mask",
    "cone",
    "cosine",
    "covered_mass",
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
    "predict",
    "refine",
    "reinforce_loss",
    "sample",
    "scaled_dot_product",
    "score_named",
    "soft",
    "string_kernel",
    "temper",
    "top_k",
    "top_k_attention",
    "uniform",
    "unit",
    "with_zero_gradient",
]

__getattr__, __dir__ = lazy_names(__name__, _HOMES, __all__)
