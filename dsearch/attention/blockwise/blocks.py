"""Read a corpus block by block, and merge attention over its parts into the whole.

    M = max_j l_j        S = Σ_j exp(l_j − M)        C = Σ_j exp(l_j − M) v_j

The triple (M, S, C) of any part is enough: two of them merge into that of their union, in any order and
grouping, and C / S and M + log S are then exact attention and its log partition function over everything.
This is the online softmax (Milakov & Gimelshein, 2018, arXiv:1805.02867) that FlashAttention keeps between
the tiles of a GPU (Dao et al., 2022, arXiv:2205.14135, section 3.1); here it is kept between the blocks of a
corpus and between the shards of a cluster.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from dsearch.errors import InvalidRequest
from dsearch.products import product

Array = Tensor | np.ndarray


@dataclass(frozen=True, slots=True)
class Corpus:
    """Inputs of all blocks: keys, values and bias. Forward and backward read them in the same way."""

    keys: Array
    values: Array | None
    bias: Tensor | Callable[..., Tensor] | None
    block_size: int
    dtype: torch.dtype
    device: torch.device

    def blocks(self) -> Iterator[tuple[slice, Tensor, Tensor]]:
        """Yield slices of the documents with their keys and values."""
        documents = self.keys.shape[0]
        for start in range(0, documents, self.block_size):
            rows = slice(start, min(start + self.block_size, documents))
            keys = self._read(self.keys, rows)
            yield rows, keys, keys if self.values is None else self._read(self.values, rows)

    def logits(
        self, scaled_queries: Tensor, keys: Tensor, rows: slice, parameters: Sequence[Tensor]
    ) -> Tensor:
        """Logits of one block, `[batch, rows]`."""
        logits = product(scaled_queries, keys)
        bias = self.block_bias(rows, parameters)
        if bias is not None:
            logits += bias
        return logits

    def block_bias(self, rows: slice, parameters: Sequence[Tensor]) -> Tensor | None:
        """Bias added to the logits of one block; broadcasts to `[batch, rows]`."""
        if isinstance(self.bias, Tensor):
            return self.bias[:, rows]
        return None if self.bias is None else self.bias(rows.start, rows.stop, *parameters)

    @property
    def value_dim(self) -> int:
        """Columns of the pooled values."""
        return (self.keys if self.values is None else self.values).shape[1]

    def _read(self, source: Array, rows: slice) -> Tensor:
        # Copied, because torch could write to a read-only memory map.
        block = source[rows] if isinstance(source, Tensor) else torch.as_tensor(np.array(source[rows]))
        return block.detach().to(device=self.device, dtype=self.dtype)


@dataclass(frozen=True, slots=True)
class CorpusGradients:
    """Accumulated gradients, each of the shape of its input; None for inputs that require no gradient."""

    queries: Tensor
    keys: Tensor | None
    values: Tensor | None
    bias: Tensor | None


class LearnedBias:
    """Gradients of a bias function's parameters, by calling it again for each block with gradients on."""

    def __init__(self, corpus: Corpus, parameters: Sequence[Tensor], wanted: Sequence[bool]):
        self._bias = corpus.bias
        self._parameters = [
            parameter.detach().requires_grad_(want)
            for parameter, want in zip(parameters, wanted, strict=True)
        ]
        self.grads = [torch.zeros_like(p) if p.requires_grad else None for p in self._parameters]

    @property
    def wanted(self) -> bool:
        """True if any parameter requires a gradient."""
        return any(gradient is not None for gradient in self.grads)

    def add(self, rows: slice, grad_logits: Tensor) -> None:
        """Add the gradients of one block."""
        places = [place for place, parameter in enumerate(self._parameters) if parameter.requires_grad]
        if not places or isinstance(self._bias, Tensor) or self._bias is None:
            return
        with torch.enable_grad():
            bias = self._bias(rows.start, rows.stop, *self._parameters)
        if not bias.requires_grad:
            return
        gradients = torch.autograd.grad(
            bias,
            [self._parameters[place] for place in places],
            grad_logits.sum_to_size(bias.shape).to(bias.dtype),
            materialize_grads=True,
        )
        for place, gradient in zip(places, gradients, strict=True):
            total = self.grads[place]
            if total is not None:
                total += gradient


class ExactAttention(NamedTuple):
    """Attention over a whole corpus: `context [..., value_dim]` and `log_partition [...]` = log Σ exp(l)."""

    context: Tensor
    log_partition: Tensor


@dataclass(frozen=True, slots=True)
class PartialAttention:
    """The (max, sum, context) triple of one block or shard; of an empty one it is (−∞, 0, 0).

    `context` is not yet divided by `sum`. A loss on merged shards reaches the inputs of every shard.
    """

    max: Float[Tensor, "*batch"]
    sum: Float[Tensor, "*batch"]
    context: Float[Tensor, "*batch value_dim"]

    @classmethod
    def of(
        cls, logits: Float[Tensor, "*batch documents"], values: Float[Tensor, "documents value_dim"]
    ) -> PartialAttention:
        """The triple of these logits and values; −inf logits contribute nothing."""
        if logits.shape[-1] == 0:
            maximum = torch.full(logits.shape[:-1], -math.inf, dtype=logits.dtype, device=logits.device)
        else:
            maximum = logits.detach().amax(-1)
        share = torch.exp(logits - _finite(maximum).unsqueeze(-1))
        return cls(maximum, share.sum(-1), share @ values)

    @classmethod
    def of_result(
        cls, context: Float[Tensor, "*batch value_dim"], log_partition: Float[Tensor, "*batch"]
    ) -> PartialAttention:
        """Triple of a finished result, with gradients; a shard that ran `exact_attention` passes it on.

        Float32 holds a log Z of 1e4 to 1e-3 only; below 100 it is good to 1e-5.
        """
        return cls(log_partition, (log_partition != -math.inf).to(context.dtype), context)

    def finish(self) -> ExactAttention:
        """Context and log partition function; zero and −∞ where nothing was attended."""
        empty = self.sum == 0
        total = self.sum.masked_fill(empty, 1.0)
        log_partition = (_finite(self.max) + total.log()).masked_fill(empty, -math.inf)
        return ExactAttention(self.context / total.unsqueeze(-1), log_partition)


def merge(partials: Sequence[PartialAttention]) -> PartialAttention:
    """Merge disjoint parts into the triple of their union; associative and commutative up to rounding.

    Args:
        partials: at least one, all of the same batch and value dimension; empty shards are welcome.

    Raises:
        InvalidRequest: there are none, so batch and value dimension would be unknown.
    """
    if not partials:
        raise InvalidRequest("partials=[]; give at least one, an empty shard's if need be")
    return merge_stacked(
        PartialAttention(
            torch.stack([part.max for part in partials]),
            torch.stack([part.sum for part in partials]),
            torch.stack([part.context for part in partials]),
        )
    )


def merge_stacked(parts: PartialAttention) -> PartialAttention:
    """The same for parts that lie along the first dimension of one triple, at least one."""
    # The reference that exponents are taken from cancels out of the result, so it carries no gradient.
    maximum = parts.max.detach().amax(0)
    scale = torch.exp(parts.max - _finite(maximum))
    return PartialAttention(maximum, (parts.sum * scale).sum(0), (parts.context * scale.unsqueeze(-1)).sum(0))


def _finite(maximum: Tensor) -> Tensor:
    """The maximum, or 0 where it is −∞ and exp(−∞ − (−∞)) would be NaN."""
    return maximum.masked_fill(maximum == -math.inf, 0.0)
