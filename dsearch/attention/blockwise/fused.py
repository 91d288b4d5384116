"""Exact attention by torch's fused operators: one block, and the passes over the blocks of a corpus.

There is no matrix of logits even within a block.

A fused operator gives a block's context and log Z, which are its triple (`PartialAttention.of_result`), so
the running merge is that of the written-out path. Backward, given the context and log Z of the *whole* corpus
and their gradients G and z, it recomputes p_bj = exp(l_bj − log Z_b), this block's share of the global
softmax, and δ_b = G_b · context_b. The wanted δ_b is G_b · context_b − z_b; a column of 1 beside G, of 0
beside the values and of −z beside the context has this effect, and adds nothing to any required gradient.

| device | operator | float types | bias |
|---|---|---|---|
| CUDA | flash attention 2, forward only, up to 256 dimensions | bfloat16 | no |
| CUDA | memory-efficient attention | bfloat16, float32 | in the type of the queries |
| CPU | flash attention for CPU | bfloat16, float32, float64 | in the type of the queries |

They are `torch.ops.aten` operators, which autograd itself calls for `scaled_dot_product_attention`; that
function is no use here because it does not return log Z.

The operators share out tiles of queries, so few queries would leave most of a card idle: the documents of a
block are split into parts along the operator's batch dimension, and the triples of the parts are merged (Dao
et al., 2023, "Flash-Decoding for long-context inference").
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional

from dsearch.attention.blockwise.blocks import (
    Corpus,
    CorpusGradients,
    ExactAttention,
    PartialAttention,
    merge,
    merge_stacked,
)

# What the operators for CUDA take: widths and rows of a bias that are multiples of these, and such addresses.
WIDTH, BIAS_WIDTH, ALIGNMENT_BYTES = 8, 16, 16
# Where |log Z| is larger, float32 holds it to worse than 1e-5, and with it every weight exp(l − log Z).
LARGEST_LOG_PARTITION = 100.0


class BlockGradients(NamedTuple):
    """Contribution of one block to the gradient of the queries, and the gradients of its keys and values."""

    queries: Float[Tensor, "batch dim"]
    keys: Float[Tensor, "documents dim"]
    values: Float[Tensor, "documents value_dim"]


def fused_block(
    queries: Float[Tensor, "batch dim"],
    keys: Float[Tensor, "documents dim"],
    values: Float[Tensor, "documents value_dim"],
    bias: Float[Tensor, "#batch documents"] | None = None,
    scale: float = 1.0,
) -> PartialAttention | None:
    """Triple of one block, or None if no fused operator supports its device, types or sizes.

    Args:
        queries: queries, of the same type as keys, values and bias.
        keys: keys of one block.
        values: values of one block; the keys themselves if those are pooled.
        bias: logits to add; −inf leaves a document out.
        scale: factor of q·k, 1 / temperature.

    The triple is float32 (float64 for float64). The operator rounds its context to the type of the queries:
    for bfloat16 by 2⁻⁹ relative, once a block.
    """
    laid = _lay_out(
        queries, keys, values, bias, value_columns=values.shape[1], operators=("flash", "efficient")
    )
    if laid is None:
        return None
    context, log_partition = _forward(laid, scale)
    accumulate = torch.float64 if queries.dtype == torch.float64 else torch.float32
    # [parts, 1, batch, width] and [parts, 1, batch or more]: CUDA pads log Z to multiples of 32
    context = context[:, 0, :, : values.shape[1]].to(accumulate)
    log_partition = log_partition[:, 0, : len(queries)].to(accumulate)
    if bias is not None:
        # Nothing attended: the operators differ, and some say NaN. Only then is log Z as low as the floor.
        nothing = log_partition < _floor(queries.dtype) / 2
        log_partition = log_partition.masked_fill(nothing, -torch.inf)
        context = context.masked_fill(nothing.unsqueeze(-1), 0.0)
    return merge_stacked(PartialAttention.of_result(context, log_partition))


def fused_block_backward(
    queries: Float[Tensor, "batch dim"],
    keys: Float[Tensor, "documents dim"],
    values: Float[Tensor, "documents value_dim"],
    bias: Float[Tensor, "#batch documents"] | None,
    scale: float,
    result: ExactAttention,
    gradient: ExactAttention,
) -> BlockGradients | None:
    """Compute one block's part of the gradient, or None if no fused operator supports it.

    Args:
        queries: this and the next four as in `fused_block`; the bias itself gets no gradient here.
        keys: of one block.
        values: of one block.
        bias: logits to add.
        scale: 1 / temperature.
        result: context and log Z over the **whole** corpus.
        gradient: gradient of the loss with respect to those two.
    """
    columns = values.shape[1]
    laid = _lay_out(queries, keys, values, bias, value_columns=columns + 1, operators=("efficient",))
    if laid is None:
        return None
    width = laid.values.shape[-1]
    parts = len(laid.queries)

    def beside(left: Tensor, last: Tensor) -> Tensor:
        both = torch.cat([left, last.unsqueeze(-1)], -1).to(queries.dtype)
        return _widened(both, width).expand(parts, 1, -1, -1)

    grad = beside(gradient.context, torch.ones_like(gradient.log_partition))
    context = beside(result.context, -gradient.log_partition)
    # exp(−inf − 0) is the weight of what a query that attends to nothing attends to
    log_partition = result.log_partition.masked_fill(result.log_partition == -torch.inf, 0.0)
    grad_queries, grad_keys, grad_values = _backward(laid, scale, grad, context, log_partition)
    return BlockGradients(
        grad_queries.sum((0, 1), dtype=result.context.dtype)[:, : queries.shape[1]],
        grad_keys.flatten(0, 2)[:, : keys.shape[1]],
        grad_values.flatten(0, 2)[:, :columns],
    )


class _Laid(NamedTuple):
    """Block in the layout of the operators: `[parts, heads = 1, rows, width]`."""

    operator: str
    queries: Tensor
    keys: Tensor
    values: Tensor
    bias: Tensor | None


def _lay_out(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    bias: Tensor | None,
    *,
    value_columns: int,
    operators: tuple[str, ...],
) -> _Laid | None:
    """Padded and parted views (copies where padding is needed), or None where no operator takes them.

    Columns of zeros change no product. `value_columns` is how many the values must at least have; `operators`
    are those for CUDA that would do, fastest first.
    """
    same_type = queries.dtype == keys.dtype == values.dtype and (bias is None or bias.dtype == queries.dtype)
    # Over no documents the operator for CPU divides by zero, in C++.
    if not same_type or queries.dtype == torch.float16 or not len(queries) or not len(keys):
        return None
    device = _device_type(queries)
    if device not in ("cpu", "cuda"):
        return None
    on_cpu = device == "cpu"
    key_width, value_width = (max(-(-n // WIDTH) * WIDTH, WIDTH) for n in (keys.shape[1], value_columns))
    if on_cpu:
        key_width = value_width = max(keys.shape[1], value_columns, 1)
    parts = _parts(queries, len(keys))
    key_block = _widened(keys, key_width)
    pooled_keys = values is keys and value_width == key_width
    value_block = key_block if pooled_keys else _widened(values, value_width)
    laid = (
        _widened(queries, key_width).expand(parts, 1, -1, -1),
        key_block.view(parts, 1, -1, key_width),
        value_block.view(parts, 1, -1, value_width),
        None if bias is None else _lay_out_bias(bias, len(queries), parts),
    )
    operator = "cpu" if on_cpu else _cuda_operator(operators, *laid)
    return None if operator is None else _Laid(operator, *laid)


def _lay_out_bias(bias: Tensor, batch: int, parts: int) -> Tensor:
    """`[parts, 1, batch, rows]`, finite: a tile of −inf alone can be a NaN within an operator."""
    documents = bias.shape[1]
    finite: Tensor = bias.clamp_min(_floor(bias.dtype))
    if documents % BIAS_WIDTH:
        finite = functional.pad(finite, (0, -documents % BIAS_WIDTH))[:, :documents]
    # The stride of a part is no multiple of BIAS_WIDTH unless its length is; `_parts` sees to it.
    by_part = finite.view(len(finite), parts, -1).transpose(0, 1)
    return by_part.unsqueeze(1).expand(-1, 1, batch, -1)


def _floor(dtype: torch.dtype) -> float:
    """A logit whose weight is 0 beside any other, with room for q·k and the change of base below it."""
    return torch.finfo(dtype).min / 4


def _widened(matrix: Tensor, width: int) -> Tensor:
    """With columns of zeros up to `width`, rows one after another, and an address that CUDA takes."""
    missing = width - matrix.shape[1]
    rows = functional.pad(matrix, (0, missing)) if missing else matrix.contiguous()
    return rows if rows.data_ptr() % ALIGNMENT_BYTES == 0 else rows.clone()


def _parts(queries: Tensor, documents: int) -> int:
    """Number of equal parts that keep every processor busy: a power of two that divides the documents."""
    if _device_type(queries) == "cuda":
        card: Any = torch.cuda.get_device_properties(queries.device)  # pyright: ignore
        processors, tile = 4 * int(card.multi_processor_count), 64  # pyright: ignore
    else:
        processors, tile = torch.get_num_threads(), 32
    wanted = processors // -(-len(queries) // tile)
    parts = 1
    while 2 * parts <= wanted and documents % (2 * parts * BIAS_WIDTH) == 0 and documents // parts >= 1024:
        parts *= 2
    return parts


def _device_type(queries: Tensor) -> str:
    return queries.device.type


def _cuda_operator(
    operators: tuple[str, ...], queries: Tensor, keys: Tensor, values: Tensor, bias: Tensor | None
) -> str | None:
    """The first that torch says it can run on these tensors (and that the user has not switched off)."""
    parameters = torch.backends.cuda.SDPAParams(queries, keys, values, bias, 0.0, False, False)
    can_use = {
        "flash": torch.backends.cuda.can_use_flash_attention,
        "efficient": torch.backends.cuda.can_use_efficient_attention,
    }
    return next((name for name in operators if can_use[name](parameters)), None)


def _forward(laid: _Laid, scale: float) -> tuple[Tensor, Tensor]:
    """Context and log Z of every part."""
    operator, queries, keys, values, bias = laid
    aten = torch.ops.aten
    if operator == "cpu":
        outputs = aten._scaled_dot_product_flash_attention_for_cpu(
            queries, keys, values, attn_mask=bias, scale=scale
        )
    elif operator == "flash":
        outputs = aten._scaled_dot_product_flash_attention(queries, keys, values, scale=scale)
    else:
        outputs = aten._scaled_dot_product_efficient_attention(queries, keys, values, bias, True, scale=scale)
    return outputs[0], outputs[1]


def _backward(
    laid: _Laid, scale: float, grad: Tensor, context: Tensor, log_partition: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of queries, keys and values, each laid out like them."""
    operator, queries, keys, values, bias = laid
    aten = torch.ops.aten
    parts = len(queries)
    if operator == "cpu":
        log_partition = log_partition.expand(parts, 1, -1)
        gradients = aten._scaled_dot_product_flash_attention_for_cpu_backward(
            grad, queries, keys, values, context, log_partition, 0.0, False, attn_mask=bias, scale=scale
        )
    else:
        # As its forward pads log Z, and with what makes the weights of the rows that are not there 0.
        padded = functional.pad(log_partition, (0, -len(log_partition) % 32), value=torch.inf)
        seed = torch.zeros((), dtype=torch.int64, device=queries.device)  # of dropout, of which there is none
        gradients = aten._scaled_dot_product_efficient_attention_backward(
            grad.contiguous(),
            queries,
            keys,
            values,
            bias,
            context.contiguous(),
            padded.expand(parts, 1, -1).contiguous(),
            seed,
            seed,
            0.0,
            [True, True, True, False],
            scale=scale,
        )
    return gradients[0], gradients[1], gradients[2]


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
