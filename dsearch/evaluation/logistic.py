"""Logistic regression with a ridge on its weights, of standardised evidence."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float

from dsearch.errors import InvalidRequest

_RIDGE = 1.0
_STEPS = 50

Rows = Float[np.ndarray, "queries evidence"]


class Logistic(NamedTuple):
    """σ(w · x + c) of standardised evidence."""

    mean: list[float]
    scale: list[float]
    weights: list[float]
    constant: float

    def __call__(self, rows: Rows) -> Float[np.ndarray, " queries"]:
        """Probability of each row."""
        rows = rows[:, : len(self.weights)]
        logits = (rows - np.array(self.mean)) / np.array(self.scale) @ np.array(self.weights) + self.constant
        return 1 / (1 + np.exp(-np.clip(logits, -30, 30)))


def fit_logistic(rows: Rows, positive: Bool[np.ndarray, " queries"]) -> Logistic:
    """Fit by Newton steps on the penalised log likelihood, which has one optimum.

    Raises:
        InvalidRequest: no query of one of the two kinds.
    """
    if not positive.any() or positive.all():
        raise InvalidRequest(
            f"{int(positive.sum())} of {len(positive)} queries are right; give some of both kinds"
        )
    mean, scale = rows.mean(0), rows.std(0)
    scale = np.where(scale > 1e-6, scale, 1.0)
    design = np.column_stack([(rows - mean) / scale, np.ones(len(rows))])
    penalty = np.diag([_RIDGE] * rows.shape[1] + [1e-6])
    weights = np.zeros(design.shape[1])
    for _ in range(_STEPS):
        likely = 1 / (1 + np.exp(-np.clip(design @ weights, -30, 30)))
        slope = design.T @ (positive - likely) - penalty @ weights
        curve = (design * (likely * (1 - likely))[:, None]).T @ design + penalty
        step = np.linalg.solve(curve, slope)
        weights += np.clip(step, -5, 5)
        if np.abs(step).max() < 1e-6:
            break
    return Logistic(mean.tolist(), scale.tolist(), weights[:-1].tolist(), float(weights[-1]))
