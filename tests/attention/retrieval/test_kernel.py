"""Weights and order that follow from scores, for NumPy arrays and for tensors."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from dsearch.attention.arrays import numbers_of
from dsearch.attention.retrieval.kernel import (
    StageTerms,
    Weighing,
    held_below,
    order_of,
    partition_by_head,
    ranking_score,
)

RAW = torch.tensor(
    [[[0.3, 0.9, 0.5, 0.1], [0.2, 0.4, 0.8, 0.3]], [[0.1, 0.2, 0.3, 0.0], [0.7, 0.1, 0.2, 0.0]]]
)
MASK = torch.tensor([[True, True, True, True], [True, True, True, False]])
SHARES = torch.tensor([0.25, 0.75])
T = 0.2


def weighing(**changes: object) -> Weighing:
    return Weighing(**{"heads": 2, "mixture": SHARES, "temperature": T, **changes})  # type: ignore[arg-type]


def softmaxes(mask: torch.Tensor | None = MASK) -> torch.Tensor:
    logits = RAW / T if mask is None else (RAW / T).masked_fill(~mask[:, None], -torch.inf)
    return logits.softmax(-1)


@pytest.mark.parametrize("mask", [None, MASK], ids=["all", "padded"])
def test_weights_are_the_mixed_softmaxes(mask: torch.Tensor | None) -> None:
    with torch.no_grad():
        found = weighing().weights(RAW, mask)
        torch.testing.assert_close(found.by_head, softmaxes(mask))
        torch.testing.assert_close(found.mixed, (found.by_head * SHARES[:, None]).sum(1))
        torch.testing.assert_close(found.mixed.sum(1), torch.ones(2))


@pytest.mark.parametrize(
    ("pooling", "expected"), [("hard", [[0, 1, 0, 0], [0, 0, 1, 0]]), ("uniform", [[0.25] * 4] * 2)]
)
def test_other_poolings(pooling: str, expected: list[list[float]]) -> None:
    found = weighing(pooling=pooling).weights(RAW, MASK)
    torch.testing.assert_close(found.by_head[0], torch.tensor(expected, dtype=torch.float32))


def test_documents_beyond_have_the_candidates_denominator_and_share_nothing() -> None:
    is_extra = torch.tensor([[False, False, True, True], [False, True, False, False]])
    found = weighing(is_extra=is_extra).weights(RAW, MASK)
    sharing = MASK & ~is_extra
    logits = RAW / T
    inside = logits.masked_fill(~sharing[:, None], -torch.inf)
    partition = inside.logsumexp(-1, keepdim=True)
    continued = (logits - partition).clamp(max=0.0).exp().masked_fill(~(is_extra & MASK)[:, None], 0.0)
    torch.testing.assert_close(found.by_head, inside.softmax(-1) + continued)


def test_scores_order_as_weights_do_and_are_raw_with_one_head() -> None:
    scores = weighing().scores(RAW, MASK)
    weights = weighing().weights(RAW, MASK).mixed
    assert torch.equal(scores.argsort(descending=True), weights.argsort(descending=True))
    assert scores[1, 3] == -torch.inf
    alone = Weighing(1, torch.ones(1), T)
    assert torch.equal(alone.scores(RAW[:, :1], None), RAW[:, 0])
    assert alone.scores(RAW[:, :1], MASK)[1].tolist() == [*RAW[1, 0, :3].tolist(), -np.inf]


@pytest.mark.parametrize("mask", [None, MASK], ids=["all", "padded"])
def test_documents_beyond_are_ordered_by_the_scale_of_the_candidates(mask: torch.Tensor | None) -> None:
    """t log Σ_h m_h exp(l_h − Z_h), Z_h of the candidates alone."""
    is_extra = torch.tensor([[False, False, True, True], [False, True, False, False]])
    present = torch.ones_like(MASK) if mask is None else mask
    inside = (RAW / T).masked_fill(~(present & ~is_extra)[:, None], -torch.inf)
    partition = inside.logsumexp(-1, keepdim=True)
    weights = (SHARES[:, None] * (RAW / T - partition).exp()).sum(1)
    expected = T * (weights.log() + (SHARES[:, None] * partition).sum(1))
    found = weighing(is_extra=is_extra).scores(RAW, mask)
    torch.testing.assert_close(found, expected.masked_fill(~present, -torch.inf))


def terms(values: list[float], inside: list[bool]) -> StageTerms:
    return StageTerms(torch.tensor([values]), np.array([inside]))


def test_of_equals_those_come_first_that_a_second_stage_looked_at() -> None:
    scores = torch.tensor([[1.0, 3.0, 1.0, 3.0, 2.0]])
    order = order_of(scores, terms([0.0] * 5, [False, False, True, True, False]))
    assert order.tolist() == [[3, 1, 4, 2, 0]]


def test_documents_beyond_are_held_below_what_was_looked_at() -> None:
    """Those that are below stay, and candidates that were not looked at have their term."""
    values, inside = [0.5, 0.25, 0.1, 0.1, 0.1], [True, True, False, False, False]
    raw = torch.tensor([[[2.0, 1.0, 9.0, 5.0, 0.5], [2.0, 1.5, 9.0, 0.0, 0.5]]])
    is_extra = torch.tensor([[False, False, False, True, True]])
    held = held_below(terms(values, inside), raw, is_extra).values
    # 1 + 0.25 is the least that a head gives to one that was looked at, and 5 + 0.1 the most to the fourth.
    assert held.tolist() == [pytest.approx([0.5, 0.25, 0.1, 0.1 - (5.1 - 1.25), 0.1])]
    assert (raw[0, :, 3] + held[0, 3]).max() <= (raw[0, :, :2] + held[0, :2]).min()


def test_equal_scores_stand_by_position() -> None:
    assert order_of(torch.tensor([[1.0, 3.0, 1.0, 3.0]]), None).tolist() == [[1, 3, 0, 2]]


REACHED = [[[0.3, -0.2, 1.0], [2.0, 0.0, -1.0]], [[0.1, 0.2, 0.3], [-math.inf, -math.inf, 5.0]]]
ALLOWED = [[True, True, False], [True, True, False]]
HALF = 0.5


@pytest.mark.parametrize("kind", [np.array, torch.tensor])
def test_a_partition_is_over_the_candidates_that_a_head_reaches(kind: object) -> None:
    make = kind  # type: ignore[assignment]
    partition = numbers_of(partition_by_head(make(REACHED) / HALF, make(ALLOWED)))  # type: ignore[operator]
    expected = [
        [
            math.log(sum(math.exp(raw / HALF) for raw in head[:2] if raw > -math.inf))
            if head[0] > -math.inf
            else 0.0
            for head in query
        ]
        for query in REACHED
    ]
    np.testing.assert_allclose(partition, expected, rtol=1e-6)
    assert partition[1, 1] == 0.0  # a head that reaches none


@pytest.mark.parametrize("kind", [np.array, torch.tensor])
def test_the_score_is_the_log_of_the_mixed_weights(kind: object) -> None:
    make = kind  # type: ignore[assignment]
    mixture = make([[0.25, 0.75], [0.25, 0.75]])  # type: ignore[operator]
    partition = make([[0.5, 0.25], [0.0, 1.0]])  # type: ignore[operator]
    scores = numbers_of(ranking_score(make(REACHED) / HALF, partition, HALF, mixture))  # type: ignore[operator]
    for query in range(2):
        z = partition[query].tolist()
        middle = 0.25 * z[0] + 0.75 * z[1]
        for column in range(3):
            mixed = 0.25 * math.exp(REACHED[query][0][column] / HALF - z[0]) + 0.75 * math.exp(
                REACHED[query][1][column] / HALF - z[1]
            )
            assert scores[query, column] == pytest.approx(HALF * (math.log(mixed) + middle), rel=1e-5)
