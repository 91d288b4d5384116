"""Exact attention on a Hopper card, in bfloat16: two passes per block. Logits are never stored.

    weights = exp(l − r)                 our kernel: logits stay in registers, r from the blocks before
    context = weights · values           torch's matrix product, summed in float32

The backward pass starts from the triple of the whole corpus. Our kernel computes
`slopes = p (G · v − δ) / t`; matrix products with keys, queries and G follow. Gradients of keys and values
are computed only if they are required. Between the two passes of a block its weights are stored as bfloat16,
`[batch, block_size]`: moving them takes less time than the products, whatever the dimension.

**The reference r** need not be the largest logit, only within some ninety of it: bfloat16 and float32 round
relatively, and hold e^±87. It is log Z of the first documents, plus `HEADROOM` for larger logits to come, and
0 for a query that attends to none of those. If a sum overflows all the same, or all logits of such a query
are far below 0, the result is None and exact.py falls back to its unfused path.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from dsearch.attention.blockwise.blocks import Corpus, CorpusGradients, ExactAttention, PartialAttention
from dsearch.attention.blockwise.card import ALIGNMENT_BYTES, kernels_for

HEADROOM = 40.0
_HELD = 60.0  # maximum distance of the largest logit below the reference
_FIRST = 1024  # documents that determine the reference
_BIAS_STEP = 16  # alignment of a bias's rows for vectorised reads
_LOGITS = 1 << 28  # logits of a block; below, launches dominate
_LOG2_E = math.log2(math.e)


def block_size_on_card(queries: Tensor, keys: Any) -> int | None:
    """Return the number of documents at a time; None if the card does not support these types."""
    halves = isinstance(keys, Tensor) and keys.dtype == queries.dtype == torch.bfloat16 and len(queries)
    if not halves or kernels_for("attention", _wide(queries)) is None:
        return None
    return min(max(_LOGITS // len(queries), 1 << 16), 1 << 20)


def attend_on_card(
    corpus: Corpus, queries: Tensor, temperature: Tensor, parameters: Sequence[Tensor]
) -> PartialAttention | None:
    """Compute the triple of the whole corpus; None if the card does not support it or a sum overflows."""
    halves, wide = _halves(corpus, queries), _wide(queries)
    kernels = None if halves is None else kernels_for("attention", wide)
    if halves is None or kernels is None:
        return None
    return attend(kernels, halves, wide, temperature, parameters)


def attend(
    kernels: Any, corpus: Corpus, queries: Tensor, temperature: Tensor, parameters: Sequence[Tensor]
) -> PartialAttention | None:
    """Compute it with these kernels, for a corpus of the queries' type."""
    factors = (_LOG2_E / temperature).expand(len(queries)).contiguous()
    sums = reference = context = unknown = None
    for rows, keys, values in corpus.blocks():
        bias = _bias(corpus, rows, parameters)
        wide = _wide(keys)
        if sums is None or reference is None or context is None:
            reference, unknown = _reference(wide[:_FIRST], queries, factors, bias)
            sums = kernels.AttentionSums.room(queries, bias)
            context = reference.new_zeros(len(queries), corpus.value_dim)
        weights = kernels.weigh(queries, wide, factors, reference * _LOG2_E, bias, sums)
        context += _product(weights, values)
    if sums is None or reference is None or context is None or unknown is None:
        return None  # no documents
    mass, rounded = sums.weights.sum(0), sums.rounded.sum(0)
    # Divided by the rounded weights, so that a single document has a weight of exactly 1.
    context *= (mass / rounded.masked_fill(rounded == 0, 1.0)).unsqueeze(1)
    highest = sums.most.amax(0) / _LOG2_E
    far = unknown & (highest != -math.inf) & (highest < -_HELD)
    finite = mass.isfinite().all() & context.isfinite().all() & ~far.any()
    return PartialAttention(reference, mass, context) if bool(finite) else None


def attend_on_card_backward(
    corpus: Corpus,
    queries: Tensor,
    temperature: Tensor,
    parameters: Sequence[Tensor],
    total: PartialAttention,
    grad: ExactAttention,
    gradients: CorpusGradients,
) -> None:
    """Compute `gradients` except the bias's, after `attend_on_card`; `total.context` is finished."""
    halves = _halves(corpus, queries)
    kernels = kernels_for("attention", _wide(queries))
    assert halves is not None
    assert kernels is not None
    attend_backward(kernels, halves, queries, temperature, parameters, total, grad, gradients)


def attend_backward(
    kernels: Any,
    corpus: Corpus,
    queries: Tensor,
    temperature: Tensor,
    parameters: Sequence[Tensor],
    total: PartialAttention,
    grad: ExactAttention,
    gradients: CorpusGradients,
) -> None:
    """Compute them with these kernels."""
    factors = (_LOG2_E / temperature).expand(len(queries)).contiguous()
    wide_queries = _wide(queries)
    grads = _wide(grad.context.to(queries.dtype))
    # δ from the rounded G; otherwise Σ ∂l would not be the gradient of log Z.
    deltas = (grads[:, : total.context.shape[1]] * total.context).sum(-1) - grad.log_partition
    per_query = (
        total.max * _LOG2_E,
        1 / total.sum,
        deltas,
        (1 / temperature).expand(len(queries)).contiguous(),
    )
    pooled = corpus.values is None
    want_weights = gradients.values is not None or (pooled and gradients.keys is not None)
    for rows, keys, values in corpus.blocks():
        wide = _wide(keys)
        slopes, weights = kernels.slope(
            wide_queries,
            grads,
            wide,
            wide if pooled else _wide(values),
            factors,
            per_query[0],
            _bias(corpus, rows, parameters),
            *per_query[1:],
            want_weights=want_weights,
        )
        gradients.queries.add_(_product(slopes, keys))
        if gradients.keys is not None:
            product = _product(slopes.T, queries)
            if pooled and weights is not None:
                product += _product(weights.T, grads[:, : keys.shape[1]])
            gradients.keys[rows] = product.to(gradients.keys)
        if gradients.values is not None and weights is not None:
            product = _product(weights.T, grads[:, : values.shape[1]])
            gradients.values[rows] = product.to(gradients.values)


def _halves(corpus: Corpus, queries: Tensor) -> Corpus | None:
    """Return the corpus in bfloat16 if it and the queries have that type; a bias may have any."""
    tensors = (queries, corpus.keys, corpus.values)
    halves = all(
        isinstance(part, Tensor) and part.dtype == torch.bfloat16 for part in tensors if part is not None
    )
    return replace(corpus, dtype=torch.bfloat16) if halves and len(queries) else None


def _wide(matrix: Tensor) -> Tensor:
    """Lay out a matrix for the copy engine: contiguous rows of a multiple of 16 bytes."""
    missing = -matrix.shape[1] % (ALIGNMENT_BYTES // matrix.element_size())
    rows = functional.pad(matrix, (0, missing)) if missing else matrix.contiguous()
    return rows if rows.data_ptr() % ALIGNMENT_BYTES == 0 else rows.clone()


def _bias(corpus: Corpus, rows: slice, parameters: Sequence[Tensor]) -> Tensor | None:
    bias = corpus.block_bias(rows, parameters)
    if bias is None:
        return None
    columns = rows.stop - rows.start
    bias = bias.detach().to(corpus.device)
    bias = bias.expand(bias.shape[0] if bias.dim() > 1 else 1, columns)
    if bias.stride(1) == 1 and bias.stride(0) % _BIAS_STEP == 0 and bias.data_ptr() % ALIGNMENT_BYTES == 0:
        return bias
    return functional.pad(bias, (0, -columns % _BIAS_STEP))[:, :columns]


def _reference(keys: Tensor, queries: Tensor, factors: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor]:
    """Compute r from the first keys; also mark queries that attend to none of them, whose r is 0."""
    logits = _product(queries, keys.T) * (factors / _LOG2_E).unsqueeze(1)
    if bias is not None:
        logits += bias[:, : len(keys)]
    log_sums = logits.logsumexp(1)
    unknown = log_sums == -math.inf
    return (log_sums + HEADROOM).masked_fill(unknown, 0.0), unknown


def _product(left: Tensor, right: Tensor) -> Tensor:
    """`left @ right` of halves, summed in float32."""
    if left.dtype == torch.float32:  # interpreted kernels in tests
        return left @ right
    return torch.ops.aten.mm.dtype(left, right, torch.float32)
