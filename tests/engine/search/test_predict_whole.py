"""Sums over every document, block by block, against the formulas written out."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

from dsearch.engine.search import predict as module
from dsearch.engine.search.predict import PooledField, predicted_from_all
from dsearch.errors import InvalidRequest
from dsearch.results import Evidence, FieldPrediction

POSITIONS = 7  # of which 2 and 5 are not visible
AT = np.array([0, 1, 3, 4, 6])


def column(*values: Any) -> PooledField:
    """The field of the visible positions."""
    return PooledField.of(values, AT, POSITIONS, lambda at: f"d{at}", "x")


class Blocks:
    """Weights of all documents with the field, in blocks of two, as `Whole` gives them."""

    def __init__(self, weights: list[list[float]]):
        self._weights, self.queries = torch.tensor(weights), len(weights)

    def weights(self, among: np.ndarray) -> Iterator[tuple[np.ndarray, torch.Tensor, torch.Tensor]]:
        places = np.flatnonzero(among)
        for start in range(0, len(places), 2):
            rows = places[start : start + 2]
            of_rows = self._weights[:, rows]
            yield rows, of_rows, (of_rows > 0).sum(1)


def predicted(weights: list[list[float]], field: PooledField, evidence: int = 2) -> list[FieldPrediction]:
    def ids(positions: np.ndarray) -> list[str]:
        return [f"d{at}" for at in positions]

    return predicted_from_all(Blocks(weights), field, len(AT), evidence, ids)  # type: ignore[arg-type]


def test_mean_and_spread_of_numbers_are_weighted_by_shares() -> None:
    field = column(10.0, 20, None, 40, 50)  # at 0, 1, 4 and 6
    (one,) = predicted([[0.1, 0.2, 0, 0, 0.5, 0, 0.0]], field)
    mean = (0.1 * 10 + 0.2 * 20 + 0.5 * 40) / 0.8
    variance = (0.1 * (10 - mean) ** 2 + 0.2 * (20 - mean) ** 2 + 0.5 * (40 - mean) ** 2) / 0.8
    assert (one.kind, one.labels, one.candidates, one.without_field) == ("number", None, 3, 1)
    assert one.mean == pytest.approx(mean, rel=1e-6)
    assert one.spread == pytest.approx(math.sqrt(variance), rel=1e-6)
    assert one.evidence == [
        Evidence("d4", pytest.approx(0.625), 40.0),
        Evidence("d1", pytest.approx(0.25), 20.0),
    ]


def test_numbers_far_from_zero_and_next_to_each_other_keep_their_spread() -> None:
    (one,) = predicted([[0.5, 0.5, 0, 0, 0, 0, 0]], column(1e9, 1e9 + 2, None, None, None))
    assert (one.mean, one.spread) == (1e9 + 1, 1.0)


def test_equal_values_have_no_spread_and_never_a_negative_variance() -> None:
    """0.1 + 0.2 + 0.7 of a value away from the mean of all rounds below its square."""
    generator = np.random.default_rng(0)
    for _ in range(200):
        weights = generator.random(POSITIONS).astype(np.float32)
        weights[6] = 0.0
        value = float(generator.normal())
        (one,) = predicted([weights.tolist()], column(value, value, value, value, value + 3))
        assert one.mean == pytest.approx(value)
        assert one.spread == pytest.approx(0.0, abs=1e-6)


def test_vectors_have_a_mean_of_each_entry() -> None:
    (one,) = predicted([[0.25, 0.75, 0, 0, 0, 0, 0]], column([0.0, 4.0], [8.0, 4.0], None, None, None))
    assert one.kind == "vector"
    assert one.mean == [6.0, 4.0]
    assert one.spread == pytest.approx([math.sqrt(12), 0.0])
    assert one.evidence[0] == Evidence("d1", 0.75, [8.0, 4.0])


def test_labels_sum_their_shares_and_true_is_neither_one_nor_a_text() -> None:
    field = column("a", True, "a", "b", "True")
    (one,) = predicted([[0.1, 0.4, 0, 0.2, 0.0, 0, 0.1]], field, 9)
    assert one.kind == "label"
    assert one.labels == {True: pytest.approx(0.5), "a": pytest.approx(0.375), "True": pytest.approx(0.125)}
    assert list(one.labels) == [True, "a", "True"]  # largest first, none of weight 0
    assert [(entry.id, entry.value) for entry in one.evidence] == [
        ("d1", True),
        ("d3", "a"),
        ("d0", "a"),
        ("d6", "True"),
    ]
    assert (one.mean, one.spread) == (None, None)


def test_the_most_labels_are_the_largest_and_ties_keep_the_order_of_documents(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "MAX_LABELS", 2)
    (one,) = predicted([[0.1, 0.25, 0, 0.25, 0.25, 0, 0.0]], column("a", "b", "c", "d", "e"))
    assert list(one.labels or {}) == ["b", "c"]
    assert [entry.id for entry in one.evidence] == ["d1", "d3"]


def test_evidence_of_one_block_stays_beside_that_of_others() -> None:
    (one,) = predicted([[0.3, 0.05, 0, 0.1, 0.2, 0, 0.35]], column(1, 2, 3, 4, 5), 3)
    assert [entry.id for entry in one.evidence] == ["d6", "d0", "d4"]
    (none,) = predicted([[0.3, 0.05, 0, 0.1, 0.2, 0, 0.35]], column(1, 2, 3, 4, 5), 0)
    assert none.evidence == []
    assert none.mean == pytest.approx(0.3 + 0.1 + 0.3 + 0.8 + 1.75)


def test_each_query_has_its_own_prediction_and_one_that_reaches_nothing_has_none() -> None:
    first, second = predicted([[0, 0, 0, 0, 0, 0, 0], [1, 0, 0, 0, 0, 0, 0]], column(3, 4, None, None, None))
    assert first == FieldPrediction(None, None, None, None, [], 0, 3)
    assert (second.mean, second.candidates, second.without_field) == (3.0, 1, 3)


def test_without_a_document_that_has_the_field_nothing_is_predicted() -> None:
    assert predicted([[1, 0, 0, 0, 0, 0, 0]], column(None, None, None, None, None)) == [
        FieldPrediction(None, None, None, None, [], 0, 5)
    ]


def test_values_of_two_kinds_are_refused_with_their_documents() -> None:
    with pytest.raises(InvalidRequest, match=r"field 'x' is a number in document 'd0' and a label in 'd3'"):
        column(1, None, "a", None, None)


def test_documents_whose_weights_are_all_lost_to_rounding_predict_nothing() -> None:
    """They are in reach, and their shares would be zero by zero."""

    class Underflown(Blocks):
        def weights(self, among: np.ndarray) -> Iterator[tuple[np.ndarray, torch.Tensor, torch.Tensor]]:
            for rows, weights, _ in super().weights(among):
                yield rows, weights, torch.full((1,), len(rows))

    blocks: Any = Underflown([[0.0] * POSITIONS])
    (one,) = predicted_from_all(blocks, column(1, 2, None, 3, 4), len(AT), 2, lambda at: [str(p) for p in at])
    assert one == FieldPrediction("number", None, None, None, [], 4, 1)
