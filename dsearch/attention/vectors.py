"""Vectors and parts of scores that search computes for tensors and for NumPy arrays."""

from __future__ import annotations

from jaxtyping import Float

from dsearch.attention.arrays import Array, fill, length
from dsearch.attention.softmax import known_all


def unit(vectors: Float[Array, "*shape dim"]) -> Float[Array, "*shape dim"]:
    """Normalise each vector to length 1; zero vectors stay zero and pass no gradient."""
    norm = length(vectors)
    something = norm != 0
    if known_all(something):
        return vectors / norm
    return fill(vectors / fill(norm, ~something, 1.0), ~something, 0.0)


def keyword_part(
    weight: Float[Array, " heads"], scores: Float[Array, "batch documents"]
) -> Float[Array, "batch heads documents"]:
    """Compute w_h b(q, d), the keyword part of each head's score."""
    return weight[:, None] * scores[:, None]
