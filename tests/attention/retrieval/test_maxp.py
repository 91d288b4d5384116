"""The best passage of each document, of tensors and of arrays."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from dsearch.attention.retrieval.maxp import best_passages

KINDS = pytest.mark.parametrize("kind", [torch.tensor, np.array])


@KINDS
def test_the_best_passage_by_hand(kind: Callable[[Any], Any]) -> None:
    """The first of equal ones counts."""
    scores = kind([[[0.1, 0.5, 0.9, 0.5, 0.2]], [[0.3, -1.0, -2.0, 7.0, 7.0]]])
    owners = kind([[[0, 1, 0, 1, 2]], [[0, 1, 1, 2, 2]]])  # 2 is padding
    assert best_passages(scores, owners, 2).tolist() == [[[2, 1]], [[0, 1]]]


@KINDS
def test_a_score_of_nan_or_nothing_takes_the_first_passage(kind: Callable[[Any], Any]) -> None:
    nan, inf = float("nan"), float("inf")
    scores = kind([[nan, 0.5, nan], [-inf, 1.0, -inf]])
    assert best_passages(scores, kind([0, 1, 0]), 2).tolist() == [[0, 1], [0, 1]]
