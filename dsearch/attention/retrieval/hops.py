"""Hops: refine the query with the keys it attends to, and search again.

    c = Σ_d a(q, d) k_d            q ← |q| · unit( unit(q) + g · unit(c) )

This is pseudo-relevance feedback (Rocchio, 1971) with attention weights in place of "the first ten are
relevant", and therefore differentiable. As g → ∞ one hop is the update of a modern Hopfield network,
ξ ← X softmax(β Xᵀ ξ), up to length (Ramsauer et al., 2020, arXiv:2008.02217, eq. 3); several hops are those
of an end-to-end memory network (Sukhbaatar et al., 2015, arXiv:1503.08895). The query keeps its length, so
the temperature keeps its meaning.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from jaxtyping import Bool, Float

from dsearch.attention.arrays import Array, length, unit
from dsearch.errors import InvalidRequest

if TYPE_CHECKING:
    from dsearch.attention.pooling import AttentionResult
    from dsearch.attention.scores import Score


def refine(
    queries: Float[Array, "*batch heads key_dim"],
    weights: Float[Array, "*batch heads candidates"],
    keys: Float[Array, "*#batch candidates key_dim"],
    strength: float | Float[Array, ...],
) -> Float[Array, "*batch heads key_dim"]:
    """Turn each query towards the keys that it attends to.

    Args:
        queries: one query per head, in key space.
        weights: the attention weights of each head over the candidates; zero weights leave the query alone.
        keys: the candidates' keys, shared by the heads.
        strength: g, a number or a tensor that broadcasts to `[..., heads, 1]`.

    Returns:
        Queries of the same length in a new direction. With g = 0 they equal the inputs exactly, and the
        gradient with respect to g still exists, so hops can be learned from g = 0.
    """
    return turned(queries, weights @ keys, strength)


def turned(
    queries: Float[Array, "*batch key_dim"],
    pooled: Float[Array, "*batch key_dim"],
    strength: float | Float[Array, ...],
) -> Float[Array, "*batch key_dim"]:
    """Turn each query towards its pooled key c; see `refine`."""
    direction = unit(queries)
    turn = unit(towards(direction, unit(pooled), strength)) - unit(direction)
    # |q| unit(unit q) is q, so adding the turn is the formula above. Written so, g = 0 subtracts equal
    # numbers and gives q back bit for bit, which |q| · unit(·) would miss by a rounding error.
    return queries + length(queries) * turn


def towards(
    queries: Float[Array, ...], pooled: Float[Array, ...], strength: float | Float[Array, ...]
) -> Float[Array, ...]:
    """unit(q) + g · unit(c), given both at length 1.

    It is linear, so the same sum of two queries' scores is the score of the sum: of a query turned by any
    strength, by one product with the keys more.
    """
    return queries + strength * pooled


def attend_in_hops(
    queries: Float[Array, "*batch heads key_dim"],
    keys: Float[Array, "*#batch candidates key_dim"],
    values: Float[Array, "*#batch candidates value_dim"] | None = None,
    *,
    hops: int = 2,
    strength: float | Float[Array, ...] = 0.0,
    score: str | Score = "dot",
    mask: Bool[Array, ...] | None = None,
    temperature: float | Float[Array, ...] = 1.0,
) -> AttentionResult:
    """Attend, refine and attend again over fixed keys, `hops` times in all.

    One hop is `attend` with the same score: here q · k by default, by which collections rank, where `attend`
    divides it by √d.

    Raises:
        InvalidRequest: `hops` is below 1.
    """
    from dsearch.attention.pooling import attend

    if hops < 1:
        raise InvalidRequest(f"hops={hops}; use 1 for plain attention, 2 or more for refinement")
    for _ in range(hops - 1):
        _, weights = attend(queries, keys, score=score, mask=mask, temperature=temperature)
        queries = refine(queries, weights, keys, strength)
    return attend(queries, keys, values, score=score, mask=mask, temperature=temperature)
