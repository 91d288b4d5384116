"""Exact attention over the blocks of a corpus by fused operators, forward and backward; when to use it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from dsearch.attention.blockwise.blocks import Corpus, CorpusGradients
from dsearch.attention.blockwise.fused import fused_block, fused_block_backward
from dsearch.attention.blockwise.partial import ExactAttention, PartialAttention, merge

# Where |log Z| is larger, float32 holds it to worse than 1e-5, and with it every weight exp(l − log Z).
LARGEST_LOG_PARTITION = 100.0


class FusedPasses(NamedTuple):
    """Passes that try the fused operators, and whether bfloat16 inputs stay bfloat16."""

    forward: bool
    backward: bool
    native: bool


def choose_fused(
    fused: bool | None, device: torch.device, *, same_width: bool, halves: bool = False
) -> FusedPasses:
    """Resolve the `fused` argument of `exact_attention` to the passes that use fused operators.

    None on a CPU fuses the forward alone: it takes less time than the unfused one
    (`scripts/bench/attention.py`, the line called fused: .86 of it over 300,000 keys, one thread, a busy
    machine). Values narrower than the keys lose that gain, because the CPU operator needs both equally wide.
    The backward loses it too, because the operators always compute the gradients of keys and values (5
    products the size of the logits, unfused 3). bfloat16 is not fused on a CPU because the contexts of blocks
    would be rounded. None on CUDA fuses the forward of `halves` alone: 1,024 queries over 2 million keys took
    27 ms fused and 89 unfused on an H100, with backward 266 and 232; in float32, 64 queries took 15 and 11,
    with backward 55 and 23.
    """
    # A traced graph cannot look at log Z to see whether the operator's precision was enough.
    if fused is False or torch.compiler.is_compiling():
        return FusedPasses(forward=False, backward=False, native=False)
    if fused:
        return FusedPasses(forward=True, backward=True, native=True)
    if device.type == "cuda":
        return FusedPasses(forward=halves, backward=False, native=True)
    return FusedPasses(forward=same_width and device.type == "cpu", backward=False, native=False)


def attend_fused(
    corpus: Corpus, queries: Tensor, temperature: Tensor, parameters: Sequence[Tensor], use: FusedPasses
) -> PartialAttention | None:
    """The triple of the whole corpus, or None where no operator serves or float32 does not hold its log Z."""
    fed = _feed(corpus, queries, temperature, use)
    total = None
    for rows, keys, values in fed.corpus.blocks():
        part = fused_block(fed.queries, keys, values, _bias(fed, rows, parameters), fed.scale)
        if part is None:
            return None
        if total is None and not _holds(part):  # seen at once, so that little is computed in vain
            return None
        total = part if total is None else merge([total, part])
    return total if total is not None and _holds(total) else None


def attend_fused_backward(
    corpus: Corpus,
    queries: Tensor,
    temperature: Tensor,
    parameters: Sequence[Tensor],
    use: FusedPasses,
    result: ExactAttention,
    grad: ExactAttention,
    gradients: CorpusGradients,
) -> bool:
    """Fill in `gradients`, all but the bias's; False where no operator serves, and they are not usable."""
    fed = _feed(corpus, queries, temperature, use)
    for rows, keys, values in fed.corpus.blocks():
        bias = _bias(fed, rows, parameters)
        part = fused_block_backward(fed.queries, keys, values, bias, fed.scale, result, grad)
        if part is None:
            return False
        gradients.queries.add_(part.queries)
        if gradients.keys is not None:
            pooled = part.values if corpus.values is None else 0.0
            gradients.keys[rows] = (part.keys + pooled).to(gradients.keys)
        if gradients.values is not None:
            gradients.values[rows] = part.values.to(gradients.values)
    if not fed.native:
        gradients.queries.div_(temperature.reshape(-1, 1))
    return True


class _Fed(NamedTuple):
    """Inputs of the operators: native queries and a scale, or queries that are divided already."""

    corpus: Corpus
    queries: Tensor
    scale: float
    native: bool


def _feed(corpus: Corpus, queries: Tensor, temperature: Tensor, use: FusedPasses) -> _Fed:
    """As bfloat16 where everything is that, so that no input is rounded; otherwise in float32 or 64."""
    tensors = (queries, corpus.keys, corpus.values, corpus.bias)
    halves = all(
        isinstance(part, Tensor) and part.dtype == torch.bfloat16 for part in tensors if part is not None
    )
    if use.native and halves and temperature.numel() == 1:
        return _Fed(replace(corpus, dtype=torch.bfloat16), queries, 1 / temperature.item(), True)
    return _Fed(corpus, queries.to(corpus.dtype) / temperature.reshape(-1, 1), 1.0, False)


def _bias(fed: _Fed, rows: slice, parameters: Sequence[Tensor]) -> Tensor | None:
    bias = fed.corpus.block_bias(rows, parameters)
    if bias is None:
        return None
    batch = bias.shape[0] if bias.dim() > 1 else 1
    return bias.to(fed.corpus.dtype).expand(batch, rows.stop - rows.start)


def _holds(total: PartialAttention) -> bool:
    """True if log Z is small enough for its precision; −inf (nothing attended) is exact."""
    log_partition = total.finish().log_partition
    small = log_partition.abs() <= LARGEST_LOG_PARTITION
    return bool((small | (log_partition == -torch.inf)).all())
