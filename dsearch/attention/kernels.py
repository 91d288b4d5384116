"""Kernels of the distance between query and key, as scores: each returns the **logarithm** of its kernel.

    u = |q − k| / width          softmax_i(log K(u_i)) = K(u_i) / Σ_j K(u_j)

So soft attention at temperature 1 over these scores is Nadaraya–Watson regression exactly (Nadaraya, 1964;
Watson, 1964), and a kernel of bounded support masks what lies outside with −inf. A temperature t raises the
kernel to the power 1/t. Constant factors of the textbook kernels cancel and are left out.
"""

from __future__ import annotations

import math

import torch
from jaxtyping import Float
from torch import Tensor

from dsearch.errors import DimensionMismatch

Queries = Float[Tensor, "*#batch queries dim"]
Keys = Float[Tensor, "*#batch keys dim"]
Scores = Float[Tensor, "*batch queries keys"]
Width = float | Float[Tensor, ""]


def gaussian(queries: Queries, keys: Keys, width: Width = 1.0) -> Scores:
    """Gaussian kernel, log K(u) = −u²/2. For unit vectors this is (q·k − 1) / width²: cosine, scaled."""
    return -0.5 * squared_distance(queries, keys) / width**2


def epanechnikov(queries: Queries, keys: Keys, width: Width = 1.0) -> Scores:
    """Epanechnikov kernel, K(u) = 1 − u² for u < 1, else 0 (Epanechnikov, 1969).

    Some textbooks print the triangular 1 − |u| under this name; this is the original parabola.
    """
    parabola = 1.0 - squared_distance(queries, keys) / width**2
    outside = parabola <= 0
    return parabola.masked_fill(outside, 1.0).log().masked_fill(outside, -math.inf)


def boxcar(queries: Queries, keys: Keys, width: Width = 1.0) -> Scores:
    """Boxcar kernel, K(u) = 1 for u < 1, else 0: the plain average of the neighbours within `width`.

    It is flat on both sides of its edge, so it has no gradient to learn from, neither in place nor in width.
    """
    distance = squared_distance(queries, keys).detach()
    return torch.zeros_like(distance).masked_fill(distance >= width**2, -math.inf)


def squared_distance(queries: Queries, keys: Keys) -> Scores:
    """|q − k|², from differences; equal vectors are at 0 exactly, with gradient 0.

    The faster |q|² + |k|² − 2 q·k cancels: near duplicates come out at a distance of rounding errors,
    sometimes negative, which a narrow kernel then magnifies.

    Raises:
        DimensionMismatch: queries and keys differ in dimension.
    """
    check_dimensions(queries, keys)
    return torch.cdist(queries, keys, compute_mode="donot_use_mm_for_euclid_dist").square()


def check_dimensions(queries: Tensor, keys: Tensor) -> None:
    """Raise `DimensionMismatch` unless queries and keys have equally many entries."""
    if queries.shape[-1] != keys.shape[-1]:
        raise DimensionMismatch(
            f"queries of dimension {queries.shape[-1]}, keys of {keys.shape[-1]}; here they must be equal: "
            "project one side, or use GeneralScore or AdditiveScore"
        )
