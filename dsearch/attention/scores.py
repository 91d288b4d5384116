"""Score functions: how well each key answers each query, higher is better.

All share one interface, so index, module and HTTP route can exchange them by name:

    score(queries [..., m, d], keys [..., n, d]) -> [..., m, n]        a score over a temperature is a logit

| name | score | source |
|---|---|---|
| `dot` | q·k | Luong et al., 2015 (arXiv:1508.04025) |
| `scaled_dot_product` | q·k / √d | Vaswani et al., 2017 (arXiv:1706.03762), eq. 1 |
| `cosine` | q·k / (|q| |k|) | Graves et al., 2014 (arXiv:1410.5401), eq. 6 |
| `general` | qᵀ W k | Luong et al., 2015, section 3.1 |
| `additive` | vᵀ tanh(W q + U k) | Bahdanau et al., 2014 (arXiv:1409.0473), appendix A.1.2 |
| `gaussian`, `epanechnikov`, `boxcar` | log K(|q − k| / width) | Nadaraya, 1964; Watson, 1964 |
| `exact_match` | 0 where q = k, else −inf | a database |

A kernel of the distance between query and key, as a score, is the **logarithm** of the kernel:

    u = |q − k| / width          softmax_i(log K(u_i)) = K(u_i) / Σ_j K(u_j)

So soft attention at temperature 1 over these scores is Nadaraya–Watson regression exactly, and a kernel of
bounded support masks what lies outside with −inf. A temperature t raises the kernel to the power 1/t.
Constant factors of the textbook kernels cancel and are left out.

Where a function takes parameters, its defaults are the identity, so every name works untrained.
`GeneralScore`, `AdditiveScore` and `KernelScore` are the same formulas with learned parameters.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor, nn

from dsearch.attention.arrays import unit
from dsearch.errors import DimensionMismatch, InvalidRequest

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


Score = Callable[[Tensor, Tensor], Tensor]


def dot(queries: Queries, keys: Keys) -> Scores:
    """Inner product q·k, by which an inner-product index ranks."""
    check_dimensions(queries, keys)
    return queries @ keys.mT


def scaled_dot_product(queries: Queries, keys: Keys) -> Scores:
    """q·k / √d, of variance 1 when the entries of q and k are independent with variance 1."""
    return dot(queries, keys) / math.sqrt(max(queries.shape[-1], 1))


def cosine(queries: Queries, keys: Keys) -> Scores:
    """Cosine of the angle between query and key, in [−1, 1]; 0 where one of them is a zero vector."""
    return dot(unit(queries), unit(keys))


def general(
    queries: Float[Tensor, "*#batch queries query_dim"],
    keys: Float[Tensor, "*#batch keys key_dim"],
    weight: Float[Tensor, "query_dim key_dim"] | None = None,
) -> Scores:
    """Bilinear form qᵀ W k; `weight` None is W = I.

    Wᵀ q against k is an inner product, so W folds into the query and an inner-product index serves it.
    """
    return dot(queries if weight is None else queries @ weight, keys)


def additive(
    queries: Float[Tensor, "*#batch queries query_dim"],
    keys: Float[Tensor, "*#batch keys key_dim"],
    query_weight: Float[Tensor, "hidden query_dim"] | None = None,
    key_weight: Float[Tensor, "hidden key_dim"] | None = None,
    vector: Float[Tensor, " hidden"] | None = None,
) -> Scores:
    """vᵀ tanh(W q + U k), factored: each side is projected once, m + n products instead of m · n.

    Args:
        queries: m queries; the decoder states s of the paper.
        keys: n keys; the annotations h of the paper.
        query_weight: W; None is the identity.
        key_weight: U; None is the identity.
        vector: v; None is all ones.

    The tanh of every pair is held at once, `[..., m, n, hidden]`: score candidates with it, not a corpus.
    """
    left = queries if query_weight is None else queries @ query_weight.mT
    right = keys if key_weight is None else keys @ key_weight.mT
    check_dimensions(left, right)
    hidden = torch.tanh(left.unsqueeze(-2) + right.unsqueeze(-3))
    return hidden.sum(-1) if vector is None else hidden @ vector


def exact_match(queries: Queries, keys: Keys) -> Scores:
    """0 where key equals query in every entry, −inf elsewhere: softmax turns it into a database look-up.

    A step function of its inputs; it has no gradient.
    """
    check_dimensions(queries, keys)
    differ = (queries.unsqueeze(-2) != keys.unsqueeze(-3)).any(-1)
    return torch.zeros_like(differ, dtype=queries.dtype).masked_fill(differ, -math.inf)


SCORES: dict[str, Callable[..., Tensor]] = {
    "dot": dot,
    "scaled_dot_product": scaled_dot_product,
    "cosine": cosine,
    "general": general,
    "additive": additive,
    "gaussian": gaussian,
    "epanechnikov": epanechnikov,
    "boxcar": boxcar,
    "exact_match": exact_match,
}


def score_named(name: str) -> Callable[..., Tensor]:
    """Return the score function of this name.

    Raises:
        InvalidRequest: no such score; the message lists them.
    """
    if name not in SCORES:
        raise InvalidRequest(f"score={name!r}; use one of {', '.join(SCORES)}")
    return SCORES[name]


class GeneralScore(nn.Module):
    """Learned bilinear score qᵀ W k; W starts as the identity (cut to size where the sides differ)."""

    def __init__(self, query_dim: int, key_dim: int | None = None):
        super().__init__()
        self.weight = nn.Parameter(torch.eye(query_dim, key_dim or query_dim))

    def forward(self, queries: Tensor, keys: Tensor) -> Tensor:
        """Score `[..., m, query_dim]` against `[..., n, key_dim]`."""
        return general(queries, keys, self.weight)


class AdditiveScore(nn.Module):
    """Learned additive score vᵀ tanh(W q + U k) (Bahdanau et al., 2014).

    Args:
        query_dim: size of the queries.
        key_dim: size of the keys; unlike for other scores it may differ from the queries'.
        hidden_dim: size of the common space.
    """

    def __init__(self, query_dim: int, key_dim: int, hidden_dim: int):
        super().__init__()
        self.query_weight = nn.Parameter(torch.empty(hidden_dim, query_dim))
        self.key_weight = nn.Parameter(torch.empty(hidden_dim, key_dim))
        self.vector = nn.Parameter(torch.empty(hidden_dim))
        nn.init.xavier_uniform_(self.query_weight)
        nn.init.xavier_uniform_(self.key_weight)
        nn.init.normal_(self.vector, std=hidden_dim**-0.5)

    def forward(self, queries: Tensor, keys: Tensor) -> Tensor:
        """Score `[..., m, query_dim]` against `[..., n, key_dim]`."""
        return additive(queries, keys, self.query_weight, self.key_weight, self.vector)


class KernelScore(nn.Module):
    """A kernel with a learned width, kept positive by learning its logarithm.

    Args:
        kernel: gaussian, epanechnikov or boxcar; the width of a boxcar gets no gradient.
        width: initial width, in units of the keys.

    Raises:
        InvalidRequest: an unknown kernel, or a width that is not positive.
    """

    def __init__(self, kernel: str = "gaussian", width: float = 1.0):
        super().__init__()
        kernels = {"gaussian": gaussian, "epanechnikov": epanechnikov, "boxcar": boxcar}
        if kernel not in kernels:
            raise InvalidRequest(f"kernel={kernel!r}; use one of {', '.join(kernels)}")
        if not width > 0:
            raise InvalidRequest(f"width={width}; use a number above 0")
        self.kernel = kernel
        self._kernel = kernels[kernel]
        self.log_width = nn.Parameter(torch.tensor(math.log(width)))

    @property
    def width(self) -> Tensor:
        """The present width, a positive scalar."""
        return self.log_width.exp()

    def forward(self, queries: Tensor, keys: Tensor) -> Tensor:
        """Score `[..., m, d]` against `[..., n, d]`."""
        return self._kernel(queries, keys, self.width)
