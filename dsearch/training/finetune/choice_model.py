"""Fit a linear choice among candidates to judgements: weights with a ridge, and a steepness without one.

    minimise  −Σ_q Σ_d y(q, d) log softmax_d e^θ (s(q, d) + w · x(q, d)) / queries + λ |w|²   over (w, θ)

θ is free of the ridge: with a temperature of its own, no feature has to stand in for another one. The loss
is not convex in (w, θ) together, so Newton steps go down along directions of negative curvature too
(saddle-free Newton: Dauphin et al., NeurIPS 2014). torch.optim.LBFGS ends in the same minimum after several
times as long, and loads torch's compiler first, for seconds.
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Bool, Float

_STEPS = 40
_SLOPE, _FALL = 1e-7, 1e-9  # the largest slope of a minimum, and the least fall of a further step
_NO_LOSS = 1e-6  # judgements without an error have no minimum: w goes to 0 as θ to infinity
_LEAST_CURVATURE = 1e-10
_LONGEST_STEP = 2.0
_HALVINGS = 30

Point = Float[np.ndarray, " terms_and_1"]


def fit_choice(
    scores: Float[np.ndarray, "queries candidates"],
    inputs: Float[np.ndarray, "queries candidates terms"],
    present: Bool[np.ndarray, "queries candidates"],
    target: Float[np.ndarray, "queries candidates"],
    ridge: float,
) -> Float[np.ndarray, " terms"]:
    """w, from zero weights and a steepness of 1.

    Args:
        scores: s, of weight 1.
        inputs: x; finite for absent candidates too.
        present: which candidates a query has.
        target: y, of sum 1 for each query; 0 for absent candidates.
        ridge: λ, above 0.
    """
    model = _Choice(scores, inputs, present, target, ridge)
    point = np.zeros(inputs.shape[2] + 1)
    loss = model.loss(point)
    for _ in range(_STEPS):
        slope, curvature = model.derivatives(point)
        if np.abs(slope).max() < _SLOPE:
            break
        values, vectors = np.linalg.eigh(curvature)
        size = np.maximum(np.abs(values), _LEAST_CURVATURE)
        step = -vectors @ (vectors.T @ slope / size)
        step *= min(1.0, _LONGEST_STEP / np.linalg.norm(step))
        for _ in range(_HALVINGS):
            lower = model.loss(point + step)
            if lower <= loss + 1e-4 * float(slope @ step):
                break
            step /= 2
        else:
            break  # as low as numbers go
        point, fall, loss = point + step, loss - lower, lower
        if fall < _FALL or loss < _NO_LOSS:
            break
    return point[:-1]


class _Choice:
    """The loss and its derivatives at a point (w, θ); arguments as those of `fit_choice`."""

    def __init__(
        self,
        scores: Float[np.ndarray, "queries candidates"],
        inputs: Float[np.ndarray, "queries candidates terms"],
        present: Bool[np.ndarray, "queries candidates"],
        target: Float[np.ndarray, "queries candidates"],
        ridge: float,
    ):
        self._scores, self._inputs, self._target, self._ridge = scores, inputs, target, ridge
        self._barred = np.where(present, 0.0, -np.inf)

    def loss(self, point: Point) -> float:
        logits = self._logits(point) + self._barred
        logits -= logits.max(1, keepdims=True)
        log_share = logits - np.log(np.exp(logits).sum(1, keepdims=True))
        chosen = self._target > 0
        lost = -(self._target[chosen] * log_share[chosen]).sum() / len(logits)
        return float(lost + self._ridge * (point[:-1] ** 2).sum())

    def derivatives(self, point: Point) -> tuple[Point, Float[np.ndarray, "terms_and_1 terms_and_1"]]:
        """Slope and curvature."""
        terms, queries = len(point), len(self._scores)
        logits = self._logits(point)
        share = np.exp(logits + self._barred - (logits + self._barred).max(1, keepdims=True))
        share /= share.sum(1, keepdims=True)
        # Of each logit z: ∂z/∂w = e^θ x, ∂z/∂θ = z, and ∂²z/∂w∂θ = e^θ x, ∂²z/∂θ² = z.
        of_logits = np.concatenate([np.exp(point[-1]) * self._inputs, logits[..., None]], axis=2)
        slope = ((share - self._target) / queries).ravel() @ of_logits.reshape(-1, terms)
        of_logits -= np.einsum("qd,qdt->qt", share, of_logits)[:, None]
        weighted = (of_logits * (share / queries)[..., None]).reshape(-1, terms)
        curvature = weighted.T @ of_logits.reshape(-1, terms)
        curvature[-1, :-1] += slope[:-1]
        curvature[:-1, -1] += slope[:-1]
        curvature[-1, -1] += slope[-1]
        pulled = np.arange(terms - 1)
        curvature[pulled, pulled] += 2 * self._ridge
        slope[:-1] += 2 * self._ridge * point[:-1]
        return slope, curvature

    def _logits(self, point: Point) -> Float[np.ndarray, "queries candidates"]:
        return np.exp(point[-1]) * (self._scores + self._inputs @ point[:-1])
