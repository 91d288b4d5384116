# pyright: basic, reportMissingImports=false, reportIndexIssue=false
# pyright: reportUnknownParameterType=false, reportMissingParameterType=false
"""Triton kernels of exact attention: the steps between its matrix products, in the registers of the first.

With l the logits of one block of documents, r the reference that exponents are taken from:

    weigh     weights = exp(l − r) in half precision, and their sums
    slope     p = exp(l − r) / mass, and p (G · v − δ) / t in half precision      see exact.py

The weighted sums of values and keys are plain matrix products, which torch's library does best. Exponents are
to base 2: `factors` are log₂ e / t, `references` r · log₂ e. Launched by card.py.
"""

from __future__ import annotations

from typing import NamedTuple, no_type_check

import torch
import triton
import triton.language as tl
from torch import Tensor

from dsearch.attention.blockwise.triton_search import DIMS, described, processors

LOG2_E = tl.constexpr(1.4426950408889634)
KEYS, STAGES, WARPS, AT_ONCE = 128, 3, 4, 2
NO_BIAS, SHARED, EACH = 0, 1, 2  # one row of logits to add, or a row for each query


@triton.jit
@no_type_check
def _exponents(
    logits, factor, reference, bias, rows, real, start, documents, bias_stride, BIAS: tl.constexpr
):
    """(l + bias − r) log₂ e of some columns from `start` on, −∞ beyond the last document."""
    columns = start + tl.arange(0, logits.shape[1])
    inside = (columns < documents)[None, :]
    exponents = logits * factor[:, None] - reference[:, None]
    if BIAS == 1:
        added = tl.load(bias + columns, mask=columns < documents, other=0.0).to(tl.float32)
        exponents += added[None, :] * LOG2_E
    if BIAS == 2:
        at = rows[:, None].to(tl.int64) * bias_stride + columns[None, :]
        added = tl.load(bias + at, mask=real[:, None] & inside, other=0.0).to(tl.float32)
        exponents += added * LOG2_E
    return tl.where(inside, exponents, float("-inf"))


@triton.jit
@no_type_check
def _weigh(
    query_tiles,
    key_tiles,
    weight_tiles,
    factors,
    references,
    bias,
    sums,
    rounded_sums,
    most,
    batch,
    documents,
    row_tiles,
    tiles_each,
    bias_stride,
    ROWS: tl.constexpr,
    KEYS: tl.constexpr,
    DIMS: tl.constexpr,
    CHUNKS: tl.constexpr,
    BIAS: tl.constexpr,
):
    """Write weights, add what they sum to, and with a bias keep the largest logit (times log₂ e)."""
    program = tl.program_id(0)
    row = (program % row_tiles) * ROWS
    part = program // row_tiles
    last = tl.minimum((part + 1) * tiles_each, tl.cdiv(documents, KEYS))
    rows = row + tl.arange(0, ROWS)
    real = rows < batch
    factor = tl.load(factors + rows, mask=real, other=0.0)
    reference = tl.load(references + rows, mask=real, other=0.0)
    # A place for each program: block after block the same one adds to it.
    sums += part * batch + rows
    rounded_sums += part * batch + rows
    most += part * batch + rows
    total = tl.load(sums, mask=real, other=0.0)
    rounded_total = tl.load(rounded_sums, mask=real, other=0.0)
    largest = tl.load(most, mask=real, other=0.0)
    HALF: tl.constexpr = KEYS // 2
    for tile in tl.range(part * tiles_each, last, flatten=True):
        logits = tl.zeros([ROWS, KEYS], tl.float32)
        for chunk in tl.range(0, CHUNKS):
            queries = query_tiles.load([row, chunk * DIMS])
            keys = key_tiles.load([tile * KEYS, chunk * DIMS])
            logits = tl.dot(queries, keys.T, logits, input_precision="ieee")
        # By halves: all at once would need more registers than there are.
        left, right = tl.split(tl.permute(tl.reshape(logits, [ROWS, 2, HALF]), [0, 2, 1]))
        start = tile * KEYS
        left = _exponents(left, factor, reference, bias, rows, real, start, documents, bias_stride, BIAS)
        if BIAS > 0:
            largest = tl.maximum(largest, tl.max(left, axis=1) + reference)
        left = tl.exp2(left)
        rounded = left.to(weight_tiles.dtype)
        weight_tiles.store([row, start], rounded)
        total += tl.sum(left, axis=1)
        rounded_total += tl.sum(rounded.to(tl.float32), axis=1)
        start += HALF
        right = _exponents(right, factor, reference, bias, rows, real, start, documents, bias_stride, BIAS)
        if BIAS > 0:
            largest = tl.maximum(largest, tl.max(right, axis=1) + reference)
        right = tl.exp2(right)
        rounded = right.to(weight_tiles.dtype)
        weight_tiles.store([row, start], rounded)
        total += tl.sum(right, axis=1)
        rounded_total += tl.sum(rounded.to(tl.float32), axis=1)
    tl.store(sums, total, mask=real)
    tl.store(rounded_sums, rounded_total, mask=real)
    if BIAS > 0:
        tl.store(most, largest, mask=real)


@triton.jit
@no_type_check
def _slope(
    query_tiles,
    grad_tiles,
    key_tiles,
    value_tiles,
    weight_tiles,
    slope_tiles,
    factors,
    references,
    bias,
    inverse_masses,
    deltas,
    inverse_temperatures,
    batch,
    documents,
    row_tiles,
    tiles_each,
    bias_stride,
    ROWS: tl.constexpr,
    KEYS: tl.constexpr,
    DIMS: tl.constexpr,
    CHUNKS: tl.constexpr,
    VALUE_CHUNKS: tl.constexpr,
    BIAS: tl.constexpr,
    POOLED: tl.constexpr,
    WEIGHTS: tl.constexpr,
):
    """Write the gradients of the products q · k and, optionally, the weights.

    POOLED: the values are the keys, so that a tile of them serves both products.
    """
    program = tl.program_id(0)
    row = (program % row_tiles) * ROWS
    part = program // row_tiles
    last = tl.minimum((part + 1) * tiles_each, tl.cdiv(documents, KEYS))
    rows = row + tl.arange(0, ROWS)
    real = rows < batch
    factor = tl.load(factors + rows, mask=real, other=0.0)
    reference = tl.load(references + rows, mask=real, other=0.0)
    inverse_mass = tl.load(inverse_masses + rows, mask=real, other=0.0)
    delta = tl.load(deltas + rows, mask=real, other=0.0)
    inverse_temperature = tl.load(inverse_temperatures + rows, mask=real, other=0.0)
    for tile in tl.range(part * tiles_each, last, flatten=POOLED):
        start = tile * KEYS
        logits = tl.zeros([ROWS, KEYS], tl.float32)
        slopes = tl.zeros([ROWS, KEYS], tl.float32)
        for chunk in tl.range(0, CHUNKS):
            keys = key_tiles.load([start, chunk * DIMS])
            queries = query_tiles.load([row, chunk * DIMS])
            logits = tl.dot(queries, keys.T, logits, input_precision="ieee")
            if POOLED:
                grads = grad_tiles.load([row, chunk * DIMS])
                slopes = tl.dot(grads, keys.T, slopes, input_precision="ieee")
        if not POOLED:
            for chunk in tl.range(0, VALUE_CHUNKS):
                values = value_tiles.load([start, chunk * DIMS])
                grads = grad_tiles.load([row, chunk * DIMS])
                slopes = tl.dot(grads, values.T, slopes, input_precision="ieee")
        exponents = _exponents(
            logits, factor, reference, bias, rows, real, start, documents, bias_stride, BIAS
        )
        weights = tl.exp2(exponents) * inverse_mass[:, None]
        if WEIGHTS:
            weight_tiles.store([row, start], weights.to(weight_tiles.dtype))
        slopes = weights * (slopes - delta[:, None]) * inverse_temperature[:, None]
        slope_tiles.store([row, start], slopes.to(slope_tiles.dtype))


class AttentionSums(NamedTuple):
    """Sums that `weigh` adds to, `[parts, batch]` each.

    Attributes:
        weights: Σ exp(l − r).
        rounded: the same of the weights as they are multiplied with values.
        most: with a bias, the largest logit so far, times log₂ e.
    """

    weights: Tensor
    rounded: Tensor
    most: Tensor

    @classmethod
    def room(cls, queries: Tensor, bias: Tensor | None) -> AttentionSums:
        """Those of no documents, for a bias of this kind."""
        _, parts = _programs(len(queries), _rows(len(queries), bias), queries.device)
        none = torch.zeros(parts, len(queries), dtype=torch.float32, device=queries.device)
        return cls(none, none.clone(), torch.full_like(none, float("-inf")))


def weigh(
    queries: Tensor,
    keys: Tensor,
    factors: Tensor,
    references: Tensor,
    bias: Tensor | None,
    sums: AttentionSums,
) -> Tensor:
    """Weights `[batch, documents]`; `sums` grow by theirs."""
    batch, documents = len(queries), len(keys)
    weights = _matrix(queries, documents)
    rows = _rows(batch, bias)
    row_tiles, parts = _programs(batch, rows, keys.device)
    kind, bias_stride = _kind(bias)
    _weigh[(row_tiles * parts,)](
        described(queries, rows, DIMS),
        described(keys, KEYS, DIMS),
        described(weights, rows, KEYS // 2),
        factors,
        references,
        factors if bias is None else bias,
        sums.weights,
        sums.rounded,
        sums.most,
        batch,
        documents,
        row_tiles,
        _tiles_each(documents, parts),
        bias_stride,
        rows,
        KEYS,
        DIMS,
        -(-keys.shape[1] // DIMS),
        kind,
        num_warps=WARPS,
        num_stages=STAGES,
    )
    return weights


def slope(
    queries: Tensor,
    grads: Tensor,
    keys: Tensor,
    values: Tensor,
    factors: Tensor,
    references: Tensor,
    bias: Tensor | None,
    inverse_masses: Tensor,
    deltas: Tensor,
    inverse_temperatures: Tensor,
    *,
    want_weights: bool,
) -> tuple[Tensor, Tensor | None]:
    """Gradients of q · k `[batch, documents]`, and where asked for the weights, likewise."""
    batch, documents = len(queries), len(keys)
    slopes = _matrix(queries, documents)
    weights = _matrix(queries, documents) if want_weights else None
    rows = 64
    row_tiles, parts = _programs(batch, rows, keys.device)
    kind, bias_stride = _kind(bias)
    widths = values.shape[1]
    query_tiles, key_tiles = described(queries, rows, DIMS), described(keys, KEYS, DIMS)
    _slope[(row_tiles * parts,)](
        query_tiles,
        described(grads, rows, DIMS) if widths else query_tiles,
        key_tiles,
        described(values, KEYS, DIMS) if widths else key_tiles,
        described(slopes if weights is None else weights, rows, KEYS),
        described(slopes, rows, KEYS),
        factors,
        references,
        factors if bias is None else bias,
        inverse_masses,
        deltas,
        inverse_temperatures,
        batch,
        documents,
        row_tiles,
        _tiles_each(documents, parts),
        bias_stride,
        rows,
        KEYS,
        DIMS,
        -(-keys.shape[1] // DIMS),
        -(-widths // DIMS),
        kind,
        values is keys,
        want_weights,
        num_warps=WARPS,
        num_stages=STAGES,
    )
    return slopes, weights


def _matrix(queries: Tensor, documents: int) -> Tensor:
    """Room for `[batch, documents]`, rows at addresses that the copy engine takes."""
    return queries.new_empty(len(queries), -(-documents // 8) * 8)[:, :documents]


def _rows(batch: int, bias: Tensor | None) -> int:
    """Queries of a tile: twice as many need too many registers beside a bias for each."""
    return 64 if batch <= 64 or _kind(bias)[0] == EACH else 128


def _programs(batch: int, rows: int, device: torch.device) -> tuple[int, int]:
    """Tiles of queries, and parts that each has the documents in: as many programs as run at once."""
    row_tiles = -(-batch // rows)
    return row_tiles, max(AT_ONCE * processors(device) // row_tiles, 1)


def _tiles_each(documents: int, parts: int) -> int:
    tiles = -(-documents // KEYS)
    return -(-tiles // parts)


def _kind(bias: Tensor | None) -> tuple[int, int]:
    if bias is None:
        return NO_BIAS, 0
    return (SHARED, 0) if len(bias) == 1 else (EACH, bias.stride(0))
