"""Read a corpus block by block, and accumulate the gradients of its blocks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

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
