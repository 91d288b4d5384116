"""Prediction of a metadata field from every document that has it, block by block.

    mean = Σ_d a_d v_d / A        spread² = Σ_d a_d (v_d − mean)² / A        A = Σ_d a_d

a_d are the exact weights among all documents with the field; sums are of float64, around the mean of all
values, so that nothing cancels.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from dsearch.engine.ranking.whole import Whole
from dsearch.engine.search.field_values import Kind, kind_of_all
from dsearch.results import Evidence, FieldPrediction

MAX_LABELS = 1000  # the largest of an answer


@dataclass(frozen=True, slots=True)
class PooledField:
    """A field of every document.

    Attributes:
        kind: of the values; None if no document has the field.
        has: which positions have it.
        numbers: the values of numbers and vectors, 0 elsewhere; of labels the place in `labels`.
        labels: distinct labels.
    """

    kind: Kind | None
    has: Bool[np.ndarray, " positions"]
    numbers: Float[np.ndarray, "positions dim"]
    labels: list[str | bool]

    @classmethod
    def of(
        cls,
        values: Sequence[Any],
        at: Int64[np.ndarray, " visible"],
        positions: int,
        named: Callable[[int], str],
        field: str,
    ) -> PooledField:
        """Gather the values of the documents at some positions.

        Args:
            values: None where a document lacks the field.
            at: their positions.
            positions: number of all positions.
            named: returns the id of a position.
            field: its name.

        Raises:
            InvalidRequest: values of different kinds.
        """
        pairs = [(int(place), value) for place, value in zip(at, values, strict=True) if value is not None]
        kind = kind_of_all(((named, place, value) for place, value in pairs), field)
        has = np.zeros(positions, bool)
        rows = np.array([place for place, _ in pairs], np.int64)
        has[rows] = True
        labels: dict[tuple[bool, str | bool], int] = {}
        entries = [value for _, value in pairs]
        if kind == "label":  # True is no text, and neither equals 1
            entries = [labels.setdefault((isinstance(value, bool), value), len(labels)) for value in entries]
        table = np.array(entries, np.float64).reshape(len(entries), -1) if entries else np.zeros((0, 1))
        numbers = np.zeros((positions, table.shape[1]))
        numbers[rows] = table
        return cls(kind, has, numbers, [label for _, label in labels])


def predicted_from_all(
    whole: Whole, column: PooledField, visible: int, evidence: int, ids: Callable[[np.ndarray], list[str]]
) -> list[FieldPrediction]:
    """Pool a field over every document that has it.

    Args:
        whole: attention over all documents.
        column: the field.
        visible: number of all documents.
        evidence: documents of largest weight to show.
        ids: returns the ids of positions.
    """
    sums = _Sums(column, evidence)
    for rows, weights, reached in whole.weights(column.has):
        sums.add(rows, weights.double(), reached)
    missing = visible - int(column.has.sum())
    return [sums.prediction(query, missing, ids) for query in range(whole.queries)]


class _Sums:
    """Sums over blocks, from which predictions follow."""

    def __init__(self, column: PooledField, evidence: int):
        self._column, self._evidence = column, evidence
        present = column.numbers[column.has]
        self._centre = present.mean(0) if len(present) else np.zeros(column.numbers.shape[1])
        self._parts: tuple[Tensor, ...] | None = None
        self._best: tuple[Tensor, Tensor] | None = None

    def add(
        self,
        rows: Int64[np.ndarray, " rows"],
        weights: Float[Tensor, "batch rows"],
        reached: Int64[Tensor, " batch"],
    ) -> None:
        column, values = self._column, self._column.numbers[rows]
        if column.kind == "label":
            first = weights.new_zeros(len(weights), len(column.labels))
            first.index_add_(1, torch.as_tensor(values[:, 0]).long(), weights)
            second = first[:, :0]
        else:
            away = torch.as_tensor(values - self._centre)
            first, second = weights @ away, weights @ away.square()
        parts = (weights.sum(1), first, second, reached)
        old = self._parts
        self._parts = (
            parts if old is None else tuple(part + other for part, other in zip(old, parts, strict=True))
        )
        at = torch.as_tensor(rows).expand(weights.shape)
        if self._best is not None:
            weights = torch.cat([self._best[0], weights], 1)
            at = torch.cat([self._best[1], at], 1)
        order = weights.sort(dim=1, descending=True, stable=True).indices[:, : self._evidence]
        self._best = weights.gather(1, order), at.gather(1, order)

    def prediction(self, query: int, missing: int, ids: Callable[[np.ndarray], list[str]]) -> FieldPrediction:
        column, reached = self._column, 0
        mean = spread = None
        labels: dict[str | bool, float] | None = None
        largest: list[Evidence] = []
        if self._parts is not None and self._best is not None:
            total, first, second = (part[query].numpy() for part in self._parts[:3])
            reached = int(self._parts[3][query])
            if reached and total > 0:
                shares, at = (part[query].numpy() for part in self._best)
                shares, at = shares[shares > 0] / total, at[shares > 0]
                largest = [
                    Evidence(id, float(share), self._value(int(place)))
                    for id, share, place in zip(ids(at), shares, at, strict=True)
                ]
                if column.kind == "label":
                    order: list[int] = np.argsort(-first, kind="stable")[:MAX_LABELS].tolist()
                    labels = {
                        column.labels[place]: float(first[place] / total) for place in order if first[place]
                    }
                else:
                    away = first / total
                    centre, variance = self._centre + away, np.maximum(second / total - away**2, 0)
                    mean, spread = centre.tolist(), np.sqrt(variance).tolist()
                    if column.kind == "number":
                        mean, spread = mean[0], spread[0]
        return FieldPrediction(
            kind=column.kind if reached else None,
            mean=mean,
            spread=spread,
            labels=labels,
            evidence=largest,
            candidates=reached,
            without_field=missing,
        )

    def _value(self, position: int) -> Any:
        row = self._column.numbers[position]
        if self._column.kind == "label":
            return self._column.labels[int(row[0])]
        return row.tolist() if self._column.kind == "vector" else float(row[0])
