"""Exact attention over a whole corpus, in blocks: no [batch, documents] matrix, forward or backward.

    l_bj = q_b · k_j / t + bias_bj    p = softmax_j(l)    context_b = Σ_j p_bj v_j    Z_b = Σ_j exp(l_bj)

**Forward.** Blocks of documents are read one after another and merged as `Partial` triples. Nothing of size N
is kept: the backward reads the corpus again and needs only the triple (Dao et al., 2022, arXiv:2205.14135,
algorithm 4, there over tiles of fast memory and from log Z alone).

**Backward.** With G the gradient of the context and z that of log Z:

    p_bj  = exp(l_bj − max_b) / sum_b         not exp(l_bj − log Z_b), which at logits of 1e4 is off by 1e-3
    ∂l_bj = p_bj (G_b · v_j − δ_b)            δ_b = G_b · context_b − z_b
    ∂q_b  = Σ_j ∂l_bj k_j / t                 ∂k_j = Σ_b ∂l_bj q_b / t
    ∂v_j  = Σ_b p_bj G_b                      ∂bias_bj = ∂l_bj           ∂t = −Σ_b q_b · ∂q_b / t

Memory beyond the corpus is O(batch · (block_size + dim)) and one block, and a gradient of the shape of each
input that asks for one. Inputs of half precision are accumulated in float32.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd.function import once_differentiable

from dsearch.attention.partial import Exact, Partial, merge
from dsearch.errors import DimensionMismatch, InvalidRequest

Array = Tensor | np.ndarray
Bias = Float[Tensor, "#batch documents"] | Callable[..., Tensor]
Temperature = float | Float[Tensor, ""] | Float[Tensor, " batch"]


def exact_attention(
    queries: Float[Tensor, "batch dim"],
    keys: Float[Tensor, "documents dim"] | Float[np.ndarray, "documents dim"],
    values: Float[Tensor, "documents value_dim"] | Float[np.ndarray, "documents value_dim"] | None = None,
    *,
    bias: Bias | None = None,
    bias_parameters: Sequence[Tensor] = (),
    temperature: Temperature = 1.0,
    block_size: int = 8192,
) -> Exact:
    """Softmax attention of every query over every document.

    Args:
        queries: one row a query; fold several heads into the batch.
        keys: a tensor on any device, or an array that need not fit into memory (`numpy.memmap`).
        values: likewise; None pools the keys. Several fields go side by side.
        bias: logits to add, after the division by temperature; −inf leaves a document out. A tensor
            `[batch, documents]` (a batch of 1 is shared), or, so that no such matrix need exist, a function
            `bias(start, stop, *bias_parameters) -> [batch, stop - start]`, called for each block, and again
            in the backward.
        bias_parameters: tensors that the function depends on and that want gradients. Tensors it only closes
            over get none.
        temperature: one for all, or one per row of the batch.
        block_size: documents at a time; it changes speed and memory, not the result.

    Returns:
        `context [batch, value_dim]` and `log_partition [batch]`, float32 (float64 for float64 queries).
        Over no documents they are 0 and −inf. Gradients reach queries, temperature, bias, keys and values,
        once (the backward itself is not differentiable).

    Raises:
        DimensionMismatch: keys, values or bias do not fit each other or the queries.
        InvalidRequest: block_size below 1, or a temperature that is not positive.
    """
    documents = keys.shape[0]
    if keys.shape[1] != queries.shape[1]:
        raise DimensionMismatch(
            f"queries of dimension {queries.shape[1]}, keys of {keys.shape[1]}; project one side first"
        )
    if values is not None and values.shape[0] != documents:
        raise DimensionMismatch(f"{values.shape[0]} values for {documents} keys; give one value per key")
    if isinstance(bias, Tensor) and bias.shape not in ((len(queries), documents), (1, documents)):
        raise DimensionMismatch(
            f"bias of shape {tuple(bias.shape)}; use {(len(queries), documents)} or {(1, documents)}"
        )
    if block_size < 1:
        raise InvalidRequest(f"block_size={block_size}; use 1 or more, such as 8192")
    if isinstance(temperature, float | int) and not temperature > 0:
        raise InvalidRequest(f"temperature={temperature}; use a number above 0")
    accumulate = torch.float64 if queries.dtype == torch.float64 else torch.float32
    corpus = _Corpus(
        keys=keys,
        values=values,
        bias=bias,
        block_size=block_size,
        dtype=accumulate,
        device=queries.device,
    )
    result: tuple[Tensor, Tensor] = _ExactAttention.apply(  # pyright: ignore
        corpus,
        queries,
        torch.as_tensor(temperature, dtype=accumulate, device=queries.device),
        bias if isinstance(bias, Tensor) else None,
        keys if isinstance(keys, Tensor) else None,
        values if isinstance(values, Tensor) else None,
        *bias_parameters,
    )
    return Exact(*result)


def log_partition(
    queries: Float[Tensor, "batch dim"],
    keys: Float[Tensor, "documents dim"] | Float[np.ndarray, "documents dim"],
    *,
    bias: Bias | None = None,
    bias_parameters: Sequence[Tensor] = (),
    temperature: Temperature = 1.0,
    block_size: int = 8192,
) -> Float[Tensor, " batch"]:
    """Log Σ_j exp(l_j) over the whole corpus: what turns a few logits into exact log probabilities.

    Arguments and errors as in `exact_attention`. A full-corpus softmax loss is `log_partition − logit` of the
    relevant documents; its gradient needs no sampled negatives.
    """
    nothing = torch.empty(keys.shape[0], 0, dtype=queries.dtype, device=queries.device)
    return exact_attention(
        queries,
        keys,
        nothing,
        bias=bias,
        bias_parameters=bias_parameters,
        temperature=temperature,
        block_size=block_size,
    ).log_partition


@dataclass(frozen=True, slots=True)
class _Corpus:
    """Everything that blocks are made from, read in the same way by forward and backward."""

    keys: Array
    values: Array | None
    bias: Tensor | Callable[..., Tensor] | None
    block_size: int
    dtype: torch.dtype
    device: torch.device

    def blocks(self) -> Iterator[tuple[slice, Tensor, Tensor]]:
        """Slices of the documents with their keys and values."""
        documents = self.keys.shape[0]
        for start in range(0, documents, self.block_size):
            rows = slice(start, min(start + self.block_size, documents))
            keys = self._read(self.keys, rows)
            yield rows, keys, keys if self.values is None else self._read(self.values, rows)

    def logits(
        self, scaled_queries: Tensor, keys: Tensor, rows: slice, parameters: Sequence[Tensor]
    ) -> Tensor:
        """Logits of one block, `[batch, rows]`."""
        logits = scaled_queries @ keys.T
        if isinstance(self.bias, Tensor):
            logits += self.bias[:, rows]
        elif self.bias is not None:
            logits += self.bias(rows.start, rows.stop, *parameters)
        return logits

    @property
    def value_dim(self) -> int:
        return (self.keys if self.values is None else self.values).shape[1]

    def _read(self, source: Array, rows: slice) -> Tensor:
        # A copy of one block: torch would warn of, and could write through, a read-only memory map.
        block = source[rows] if isinstance(source, Tensor) else torch.as_tensor(np.array(source[rows]))
        return block.detach().to(device=self.device, dtype=self.dtype)


class _ExactAttention(torch.autograd.Function):
    """The equations at the top of this file.

    Keys, values and bias are passed beside `corpus`, which holds them too, so that autograd knows of them.
    """

    @staticmethod
    def forward(
        ctx: Any,
        corpus: _Corpus,
        queries: Tensor,
        temperature: Tensor,
        bias: Tensor | None,
        keys: Tensor | None,
        values: Tensor | None,
        *parameters: Tensor,
    ) -> tuple[Tensor, Tensor]:
        with torch.autocast(queries.device.type, enabled=False):
            scaled = queries.to(corpus.dtype) / temperature.reshape(-1, 1)
            total = Partial(
                max=scaled.new_full((len(queries),), -math.inf),
                sum=scaled.new_zeros(len(queries)),
                context=scaled.new_zeros(len(queries), corpus.value_dim),
            )
            for rows, key_block, value_block in corpus.blocks():
                logits = corpus.logits(scaled, key_block, rows, parameters)
                total = merge([total, Partial.of(logits, value_block)])
            context, log_partition = total.finish()
        ctx.corpus = corpus
        # Where nothing was attended every exp(−inf − 0) is 0, and 0 / 1 says so without a NaN.
        maximum = total.max.masked_fill(total.max == -math.inf, 0.0)
        mass = total.sum.masked_fill(total.sum == 0, 1.0)
        ctx.save_for_backward(queries, temperature, context, maximum, mass, bias, keys, values, *parameters)
        return context, log_partition

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_context: Tensor, grad_log_partition: Tensor) -> tuple[Any, ...]:  # pyright: ignore
        corpus: _Corpus = ctx.corpus
        queries, temperature, context, maximum, mass, bias, keys, values, *parameters = ctx.saved_tensors
        need_bias, need_keys, need_values = ctx.needs_input_grad[3:6]
        grad_bias = torch.zeros_like(bias) if need_bias else None
        grad_keys = torch.zeros_like(keys) if need_keys else None
        grad_values = torch.zeros_like(values) if need_values else None
        learned = _LearnedBias(corpus, parameters, ctx.needs_input_grad[6:])

        with torch.autocast(queries.device.type, enabled=False):
            scaled = queries.to(corpus.dtype) / temperature.reshape(-1, 1)
            maximum, mass = maximum.unsqueeze(-1), mass.unsqueeze(-1)
            delta = ((grad_context * context).sum(-1) - grad_log_partition).unsqueeze(-1)
            grad_scaled = torch.zeros_like(scaled)
            for rows, key_block, value_block in corpus.blocks():
                weights = corpus.logits(scaled, key_block, rows, parameters).sub_(maximum).exp_().div_(mass)
                grad_logits = torch.addmm(-delta, grad_context, value_block.T).mul_(weights)
                grad_scaled.addmm_(grad_logits, key_block)
                if grad_keys is not None:
                    grad_block = grad_logits.T @ scaled
                    if corpus.values is None:
                        grad_block.addmm_(weights.T, grad_context)
                    grad_keys[rows] = grad_block.to(grad_keys)
                if grad_values is not None:
                    grad_values[rows] = (weights.T @ grad_context).to(grad_values)
                if grad_bias is not None:
                    grad_bias[:, rows] = grad_logits.sum_to_size(len(grad_bias), grad_logits.shape[1])
                learned.add(rows, grad_logits)
            grad_queries = grad_scaled / temperature.reshape(-1, 1)
            per_query = -(queries * grad_queries).sum(-1) / temperature
            grad_temperature = per_query.sum_to_size(temperature.shape)
        return (
            None,
            grad_queries.to(queries),
            grad_temperature,
            grad_bias,
            grad_keys,
            grad_values,
            *learned.grads,
        )


class _LearnedBias:
    """Gradients of a bias function's parameters, by calling it again for each block with gradients on."""

    def __init__(self, corpus: _Corpus, parameters: Sequence[Tensor], wanted: Sequence[bool]):
        self._bias = corpus.bias
        self._parameters = [
            parameter.detach().requires_grad_(want)
            for parameter, want in zip(parameters, wanted, strict=True)
        ]
        self.grads = [torch.zeros_like(p) if p.requires_grad else None for p in self._parameters]

    def add(self, rows: slice, grad_logits: Tensor) -> None:
        """Add what one block contributes."""
        places = [place for place, parameter in enumerate(self._parameters) if parameter.requires_grad]
        if not places or isinstance(self._bias, Tensor) or self._bias is None:
            return
        with torch.enable_grad():
            bias = self._bias(rows.start, rows.stop, *self._parameters)
        if not bias.requires_grad:
            return
        found = torch.autograd.grad(
            bias,
            [self._parameters[place] for place in places],
            grad_logits.sum_to_size(bias.shape).to(bias.dtype),
            materialize_grads=True,
        )
        for place, gradient in zip(places, found, strict=True):
            total = self.grads[place]
            if total is not None:
                total += gradient
