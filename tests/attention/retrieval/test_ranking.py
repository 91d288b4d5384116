"""Partitions of heads and the score that ranks, written out, for NumPy arrays and for tensors."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from dsearch.attention.arrays import numbers_of
from dsearch.attention.retrieval.ranking import partition_by_head, ranking_score

RAW = [[[0.3, -0.2, 1.0], [2.0, 0.0, -1.0]], [[0.1, 0.2, 0.3], [-math.inf, -math.inf, 5.0]]]
MASK = [[True, True, False], [True, True, False]]
T = 0.5


@pytest.mark.parametrize("kind", [np.array, torch.tensor])
def test_a_partition_is_over_the_candidates_that_a_head_reaches(kind: object) -> None:
    make = kind  # type: ignore[assignment]
    partition = numbers_of(partition_by_head(make(RAW), make(MASK), T))  # type: ignore[operator]
    expected = [
        [
            math.log(sum(math.exp(raw / T) for raw in head[:2] if raw > -math.inf))
            if head[0] > -math.inf
            else 0.0
            for head in query
        ]
        for query in RAW
    ]
    np.testing.assert_allclose(partition, expected, rtol=1e-6)
    assert partition[1, 1] == 0.0  # a head that reaches none


@pytest.mark.parametrize("kind", [np.array, torch.tensor])
def test_the_score_is_the_log_of_the_mixed_weights(kind: object) -> None:
    make = kind  # type: ignore[assignment]
    mixture = make([[0.25, 0.75], [0.25, 0.75]])  # type: ignore[operator]
    partition = make([[0.5, 0.25], [0.0, 1.0]])  # type: ignore[operator]
    scores = numbers_of(ranking_score(make(RAW), partition, T, mixture))  # type: ignore[operator]
    for query in range(2):
        z = partition[query].tolist()
        middle = 0.25 * z[0] + 0.75 * z[1]
        for column in range(3):
            mixed = 0.25 * math.exp(RAW[query][0][column] / T - z[0]) + 0.75 * math.exp(
                RAW[query][1][column] / T - z[1]
            )
            assert scores[query, column] == pytest.approx(T * (math.log(mixed) + middle), rel=1e-5)
    one = make([[[0.3, -0.2]]])  # type: ignore[operator]
    alone = ranking_score(one, partition[:1, :1], T, mixture[:1, :1])
    np.testing.assert_allclose(numbers_of(alone), [[0.3, -0.2]], rtol=1e-6)
