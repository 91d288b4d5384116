"""Exact attention over a whole corpus, in blocks, without a [batch, documents] matrix, forward or backward.

    l_bj = q_b · k_j / t + bias_bj    p = softmax_j(l)    context_b = Σ_j p_bj v_j    Z_b = Σ_j exp(l_bj)

**Forward.** Blocks of documents are read one after another and merged as `PartialAttention` triples. Nothing
of size N is kept: the backward reads the corpus again and needs only the triple (Dao et al., 2022,
arXiv:2205.14135, algorithm 4, there over tiles of fast memory and from log Z alone).

**Backward.** With G the gradient of the context and z that of log Z:

    p_bj  = exp(l_bj − max_b) / sum_b         not exp(l_bj − log Z_b), which at logits of 1e4 is off by 1e-3
    ∂l_bj = p_bj (G_b · v_j − δ_b)            δ_b = G_b · context_b − z_b
    ∂q_b  = Σ_j ∂l_bj k_j / t                 ∂k_j = Σ_b ∂l_bj q_b / t
    ∂v_j  = Σ_b p_bj G_b                      ∂bias_bj = ∂l_bj           ∂t = −Σ_b q_b · ∂q_b / t

**Fused.** Our own kernels (`card.py`) or a fused operator of torch (`fused.py`) compute a block's
triple and its part of the gradient where they support the device and are faster.

Memory beyond the corpus is O(batch · (block_size + dim)) and one block, and a gradient of the shape of each
input that asks for one. Inputs of half precision are accumulated in float32.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd.function import once_differentiable

from dsearch.attention.blockwise.blocks import (
    Corpus,
    CorpusGradients,
    ExactAttention,
    LearnedBias,
    PartialAttention,
    merge,
)
from dsearch.attention.blockwise.card import (
    attend_on_card,
    attend_on_card_backward,
    block_size_on_card,
)
from dsearch.attention.blockwise.fused import (
    FusedPasses,
    attend_fused,
    attend_fused_backward,
    choose_fused,
)
from dsearch.errors import DimensionMismatch, InvalidRequest, amount

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
    block_size: int | None = None,
    fused: bool | None = None,
) -> ExactAttention:
    """Softmax attention of every query over every document.

    Args:
        queries: one row per query; fold several heads into the batch.
        keys: a tensor on any device, or an array that need not fit into memory (`numpy.memmap`).
        values: likewise; None pools the keys. Several fields go side by side.
        bias: logits to add, after the division by temperature; −inf leaves a document out. A tensor
            `[batch, documents]` (a batch of 1 is shared), or, so that no such matrix need exist, a function
            `bias(start, stop, *bias_parameters) -> [batch, stop - start]`, called for each block, and again
            in the backward.
        bias_parameters: tensors that the function depends on and that want gradients. Tensors it only closes
            over get none.
        temperature: one for all, or one per row of the batch.
        block_size: documents at a time; it changes speed and memory, not the result. None is 8,192, on CUDA
            65,536, and more where our own kernels serve few queries.
        fused: True uses kernels of our own or torch's fused operators wherever there is one for the types and
            sizes, False never does, None does where that is faster: for bfloat16 on CUDA (of torch's the
            forward alone), and on a CPU for a forward whose values are as wide as its keys. bfloat16 on CUDA
            then stays bfloat16 up to float32 sums: weights are rounded to it, by torch's operators each
            block's context as well. Otherwise half precision becomes float32 first.

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
        raise DimensionMismatch(
            f"{values.shape[0]} values for {amount(documents, 'key')}; give one value per key"
        )
    if isinstance(bias, Tensor) and bias.shape not in ((len(queries), documents), (1, documents)):
        raise DimensionMismatch(
            f"bias of shape {tuple(bias.shape)}; use {(len(queries), documents)} or {(1, documents)}"
        )
    if block_size is None:
        block_size = (fused is not False and block_size_on_card(queries, keys)) or (
            65_536 if queries.device.type == "cuda" else 8192
        )
    if block_size < 1:
        raise InvalidRequest(f"block_size={block_size}; use 1 or more, such as 8192")
    if isinstance(temperature, float | int) and not temperature > 0:
        raise InvalidRequest(f"temperature={temperature}; use a number above 0")
    accumulate = torch.float64 if queries.dtype == torch.float64 else torch.float32
    corpus = Corpus(
        keys=keys,
        values=values,
        bias=bias,
        block_size=block_size,
        dtype=accumulate,
        device=queries.device,
    )
    use = choose_fused(
        fused,
        queries.device,
        same_width=corpus.value_dim == keys.shape[1],
        halves=queries.dtype == torch.bfloat16,
    )
    result: tuple[Tensor, Tensor] = _ExactAttention.apply(  # pyright: ignore
        corpus,
        use,
        queries,
        torch.as_tensor(temperature, dtype=accumulate, device=queries.device),
        bias if isinstance(bias, Tensor) else None,
        keys if isinstance(keys, Tensor) else None,
        values if isinstance(values, Tensor) else None,
        *bias_parameters,
    )
    return ExactAttention(*result)


def log_partition(
    queries: Float[Tensor, "batch dim"],
    keys: Float[Tensor, "documents dim"] | Float[np.ndarray, "documents dim"],
    *,
    bias: Bias | None = None,
    bias_parameters: Sequence[Tensor] = (),
    temperature: Temperature = 1.0,
    block_size: int | None = None,
    fused: bool | None = None,
) -> Float[Tensor, " batch"]:
    """Log Σ_j exp(l_j) over the whole corpus; a logit minus it is an exact log probability.

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
        fused=fused,
    ).log_partition


class _ExactAttention(torch.autograd.Function):
    """Autograd function of the equations at the top of this file.

    Keys, values and bias are passed beside `corpus`, which holds them too, so that autograd knows of them.
    """

    @staticmethod
    def forward(
        ctx: Any,
        corpus: Corpus,
        use: FusedPasses,
        queries: Tensor,
        temperature: Tensor,
        bias: Tensor | None,
        keys: Tensor | None,
        values: Tensor | None,
        *parameters: Tensor,
    ) -> tuple[Tensor, Tensor]:
        with torch.autocast(queries.device.type, enabled=False):
            total = attend_on_card(corpus, queries, temperature, parameters) if use.native else None
            ctx.on_card = total is not None
            if total is None and use.forward:
                total = attend_fused(corpus, queries, temperature, parameters, use)
            ctx.use = use._replace(backward=ctx.on_card or (use.backward and total is not None))
            if total is None:
                total = _attend(corpus, queries, temperature, parameters)
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
        corpus: Corpus = ctx.corpus
        queries, temperature, context, maximum, mass, bias, keys, values, *parameters = ctx.saved_tensors
        need_bias, need_keys, need_values = ctx.needs_input_grad[4:7]
        learned = LearnedBias(corpus, parameters, ctx.needs_input_grad[7:])
        gradients = CorpusGradients(
            queries=queries.new_zeros(queries.shape, dtype=corpus.dtype),
            keys=torch.zeros_like(keys) if need_keys else None,
            values=torch.zeros_like(values) if need_values else None,
            bias=torch.zeros_like(bias) if need_bias else None,
        )
        grad = ExactAttention(grad_context, grad_log_partition)
        with torch.autocast(queries.device.type, enabled=False):
            served = False
            total = PartialAttention(maximum, mass, context)
            if ctx.use.backward and ctx.on_card and not need_bias and not learned.wanted:
                attend_on_card_backward(corpus, queries, temperature, parameters, total, grad, gradients)
                served = True
            elif ctx.use.backward and not ctx.on_card and not need_bias and not learned.wanted:
                result = ExactAttention(context, maximum + mass.log())
                served = attend_fused_backward(
                    corpus, queries, temperature, parameters, ctx.use, result, grad, gradients
                )
            if not served:
                gradients.queries.zero_()
                _attend_backward(corpus, queries, temperature, parameters, total, grad, gradients, learned)
            per_query = -(queries * gradients.queries).sum(-1) / temperature
            grad_temperature = per_query.sum_to_size(temperature.shape)
        return (
            None,
            None,
            gradients.queries.to(queries),
            grad_temperature,
            gradients.bias,
            gradients.keys,
            gradients.values,
            *learned.grads,
        )


def _attend(
    corpus: Corpus, queries: Tensor, temperature: Tensor, parameters: Sequence[Tensor]
) -> PartialAttention:
    """The forward, written out: the logits of one block at a time."""
    scaled = queries.to(corpus.dtype) / temperature.reshape(-1, 1)
    total = PartialAttention(
        max=scaled.new_full((len(queries),), -math.inf),
        sum=scaled.new_zeros(len(queries)),
        context=scaled.new_zeros(len(queries), corpus.value_dim),
    )
    for rows, key_block, value_block in corpus.blocks():
        logits = corpus.logits(scaled, key_block, rows, parameters)
        total = merge([total, PartialAttention.of(logits, value_block)])
    return total


def _attend_backward(
    corpus: Corpus,
    queries: Tensor,
    temperature: Tensor,
    parameters: Sequence[Tensor],
    total: PartialAttention,
    grad: ExactAttention,
    gradients: CorpusGradients,
    learned: LearnedBias,
) -> None:
    """The backward, written out; here `total.context` is the finished one."""
    scaled = queries.to(corpus.dtype) / temperature.reshape(-1, 1)
    maximum, mass = total.max.unsqueeze(-1), total.sum.unsqueeze(-1)
    delta = ((grad.context * total.context).sum(-1) - grad.log_partition).unsqueeze(-1)
    for rows, key_block, value_block in corpus.blocks():
        weights = corpus.logits(scaled, key_block, rows, parameters).sub_(maximum).exp_().div_(mass)
        grad_logits = torch.addmm(-delta, grad.context, value_block.T).mul_(weights)
        gradients.queries.addmm_(grad_logits, key_block)
        if gradients.keys is not None:
            grad_block = grad_logits.T @ scaled
            if corpus.values is None:
                grad_block.addmm_(weights.T, grad.context)
            gradients.keys[rows] = grad_block.to(gradients.keys)
        if gradients.values is not None:
            gradients.values[rows] = (weights.T @ grad.context).to(gradients.values)
        if gradients.bias is not None:
            gradients.bias[:, rows] = grad_logits.sum_to_size(len(gradients.bias), grad_logits.shape[1])
        learned.add(rows, grad_logits)
    gradients.queries.div_(temperature.reshape(-1, 1))
