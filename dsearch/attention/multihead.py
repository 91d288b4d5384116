"""Multi-head attention (Vaswani et al., 2017, arXiv:1706.03762, section 3.2.2), from one source or from two.

    head_h = softmax( (Q W_Q,h)(K W_K,h)ᵀ / (t_h √head_dim) ) V W_V,h    output = [head_1 … head_H] W_O

t_h is 1 unless a caller gives temperatures, one for all heads or one for each; so is the mask.

Self-attention is queries, keys and values from one source; cross-attention takes queries from one and keys
and values from another: a decoder looking at a sentence, a target item looking at a user's history.
Retrieval is cross-attention too, with a corpus for the second source; there the heads share their keys
(multi-query attention, Shazeer, 2019, arXiv:1911.02150), while here every head has keys of its own.
"""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from dsearch.attention.pooling import AttentionResult, attend
from dsearch.errors import InvalidRequest


class MultiHeadAttention(nn.Module):
    """Separate query, key and value projections per head, a mask, and an output projection.

    Args:
        dim: size of the projected queries and of the output.
        heads: must divide `dim`; each head works in `dim / heads` dimensions.
        key_dim: size of the keys; None is `dim`.
        value_dim: size of the values; None is the size of the keys.
        query_dim: size of the queries; None is `dim`. With `key_dim` None the size of the keys too: so
            self-attention may map inputs of one size to outputs of another.
        bias: True to give the four projections a bias.

    Raises:
        InvalidRequest: `heads` does not divide `dim`.
    """

    def __init__(
        self,
        dim: int,
        heads: int,
        *,
        key_dim: int | None = None,
        value_dim: int | None = None,
        query_dim: int | None = None,
        bias: bool = True,
    ):
        super().__init__()
        if heads < 1 or dim % heads:
            divisors = [str(n) for n in range(1, dim + 1) if dim % n == 0]
            raise InvalidRequest(f"heads={heads} does not divide dim={dim}; use one of {', '.join(divisors)}")
        query_dim = query_dim or dim
        key_dim = key_dim or query_dim
        self.heads = heads
        self.query = nn.Linear(query_dim, dim, bias=bias)
        self.key = nn.Linear(key_dim, dim, bias=bias)
        self.value = nn.Linear(value_dim or key_dim, dim, bias=bias)
        self.out = nn.Linear(dim, dim, bias=bias)

    def forward(
        self,
        queries: Float[Tensor, "*batch queries query_dim"],
        keys: Float[Tensor, "*batch keys key_dim"] | None = None,
        values: Float[Tensor, "*batch keys value_dim"] | None = None,
        mask: Bool[Tensor, ...] | None = None,
        *,
        temperature: float | Float[Tensor, ""] | Float[Tensor, " heads"] = 1.0,
    ) -> AttentionResult:
        """Attend; `keys` None is self-attention, `values` None takes the keys.

        Args:
            queries: positions that attend.
            keys: positions attended to.
            values: values of those positions, pooled into the context.
            mask: True where attention is allowed; broadcastable to `[*batch, heads, queries, keys]`, so
                that `[heads, queries, keys]` is a mask for each head.
            temperature: t_h above 0, a number for all heads or `[heads]`; a divisor beyond √head_dim.

        Returns:
            `context [*batch, queries, dim]` and `weights [*batch, heads, queries, keys]`.

        Raises:
            InvalidRequest: temperatures for another number of heads.
        """
        keys = queries if keys is None else keys
        values = keys if values is None else values
        context, weights = attend(
            self._split(self.query(queries)),
            self._split(self.key(keys)),
            self._split(self.value(values)),
            mask=mask,
            temperature=self._temperatures(temperature),
        )
        return AttentionResult(self.out(context.transpose(-3, -2).flatten(-2)), weights)

    @classmethod
    def from_torch(cls, module: nn.MultiheadAttention) -> MultiHeadAttention:
        """A copy of torch's module; the two then agree to rounding, without its dropout.

        Raises:
            InvalidRequest: the module uses `add_bias_kv` or `add_zero_attn`, which have no counterpart here.
        """
        if module.bias_k is not None or module.add_zero_attn:
            raise InvalidRequest("add_bias_kv or add_zero_attn is set; build the module without them")
        # torch keeps one stacked weight when all sizes are equal, three apart when they differ.
        stacked: Tensor | None = module.in_proj_weight
        weights = (
            (module.q_proj_weight, module.k_proj_weight, module.v_proj_weight)
            if stacked is None  # pyright: ignore[reportUnnecessaryComparison]
            else stacked.chunk(3)
        )
        offsets: Tensor | None = module.in_proj_bias
        query, key, value = weights
        copy = cls(
            query.shape[0],
            module.num_heads,  # pyright: ignore[reportUnknownArgumentType]
            key_dim=key.shape[1],
            value_dim=value.shape[1],
            bias=offsets is not None,  # pyright: ignore[reportUnnecessaryComparison]
        ).to(module.out_proj.weight)
        with torch.no_grad():
            copy.query.weight.copy_(query)
            copy.key.weight.copy_(key)
            copy.value.weight.copy_(value)
            copy.out.weight.copy_(module.out_proj.weight)
            if offsets is not None:  # pyright: ignore[reportUnnecessaryComparison]
                for linear, offset in zip((copy.query, copy.key, copy.value), offsets.chunk(3), strict=True):
                    linear.bias.copy_(offset)
                copy.out.bias.copy_(module.out_proj.bias)
        return copy

    def _temperatures(self, temperature: float | Tensor) -> float | Tensor:
        """Temperatures that broadcast to `[..., heads, queries, keys]`."""
        if not isinstance(temperature, Tensor) or not temperature.ndim:
            return temperature
        if temperature.shape != (self.heads,):
            raise InvalidRequest(
                f"temperature of shape {list(temperature.shape)}; use a number, or [{self.heads}], one a head"
            )
        return temperature[:, None, None]

    def _split(self, projected: Tensor) -> Tensor:
        """`[..., n, dim]` to `[..., heads, n, head_dim]`."""
        return projected.view(*projected.shape[:-1], self.heads, -1).transpose(-3, -2)


def causal_mask(size: int, device: torch.device | None = None) -> Bool[Tensor, "{size} {size}"]:
    """True on and below the diagonal: each position attends to itself and to what came before it."""
    return torch.ones(size, size, dtype=torch.bool, device=device).tril()
