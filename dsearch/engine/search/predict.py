"""Prediction of a metadata field for a query: the values of the documents, pooled by attention.

    numbers, vectors     mean = Σ a_d v_d        spread² = Σ a_d (v_d − mean)²
    strings, booleans    p(label) = Σ a_d [v_d = label]

a_d are the query's weights among the candidates that have the field. The other candidates are removed before
the weights are computed, so the weights sum to 1; their number is reported. With a kernel score the mean is
Nadaraya–Watson regression.

With over="all" every document is a candidate, and weights come block by block:

    mean = Σ_d a_d v_d / A        spread² = Σ_d a_d (v_d − mean)² / A        A = Σ_d a_d

Sums are of float64, around the mean of all values, so that nothing cancels.

A version may have learned values of a field, which its record names (`readout`): v = W_O W_V e + b of every
document, in place of stored ones. Since the weights of a query sum to 1, the pooled values are the output
projection of its context. Labels are the softmax of the pooled values.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np
import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from dsearch.attention import normalise
from dsearch.attention import predict as mean_and_spread
from dsearch.attention.retrieval.head import Head
from dsearch.attention_options import CONE_NAMES
from dsearch.engine.models.files import READOUT
from dsearch.engine.options import LayerOptions
from dsearch.engine.ranking.layer import SearchLayer
from dsearch.engine.ranking.whole import Whole
from dsearch.engine.search.attend import (
    Kind,
    Queries,
    coverage_note,
    kind_of_all,
    resolve_inputs,
    unmatched_note,
)
from dsearch.engine.snapshot import NONE, Snapshot
from dsearch.engine.state.caches import VALUE, fields_of
from dsearch.engine.state.state import State
from dsearch.errors import InvalidRequest
from dsearch.results import Evidence, FieldPrediction, Predictions
from dsearch.store.filters import parse_field
from dsearch.store.reader import refuse_misspelt
from dsearch.types import Stamp

MAX_LABELS = 1000  # the largest of an answer
_AT_A_TIME = 8192


def predict(
    collection: State,
    queries: Queries,
    *,
    field: str,
    evidence: int,
    model: str | None,
    filter: object | None,
    options: LayerOptions,
) -> Predictions:
    """See `Collection.predict`."""
    require_mean(options)
    if evidence < 0:
        raise InvalidRequest(f"evidence={evidence}; use 0 or more documents")
    with torch.inference_mode():
        layer, stamp, states, texts = resolve_inputs(collection, queries, model, filter, options)
        learned = LearnedValues.of(collection, stamp, layer.head, field)
        if layer.over == "all":
            pooled = _from_all(collection, layer, states, texts, field, evidence, learned)
            _refuse_misspelt(collection, field, pooled)
            return Predictions(stamp, pooled, _unmatched(pooled))
        output = layer(states, texts)
        values = _values(collection, layer, output.positions, field, learned)
        has = torch.tensor([[value is not None for value in line] for line in values], dtype=torch.bool)
        weighing = layer.weighing_of(output.folded)
        weights = weighing.weights(output.raw, has.reshape(output.positions.shape)).mixed
        weights = normalise(weights)  # a head without a document in reach gives its share to the others
    ids = collection.ids_at(layer.snapshot, output.positions)
    predictions = [_predicted(*query, field, evidence) for query in zip(ids, values, weights, strict=True)]
    _refuse_misspelt(collection, field, predictions)
    if learned is not None:
        predictions = [learned.marked(prediction) for prediction in predictions]
    if output.covered_mass is not None:
        shares = output.covered_mass.tolist()
        predictions = [
            replace(prediction, covered_mass=share)
            for prediction, share in zip(predictions, shares, strict=True)
        ]
    notes = (_unmatched(predictions), coverage_note(layer, output))
    return Predictions(stamp, predictions, "; ".join(note for note in notes if note is not None) or None)


def _unmatched(predictions: Sequence[FieldPrediction]) -> str | None:
    """Say that some predictions are none."""
    queries = sum(prediction.candidates == 0 for prediction in predictions)
    return unmatched_note(queries, "none with the field, so the prediction is null")


def require_mean(options: LayerOptions) -> None:
    """Refuse a pooling without normalisation: a prediction is a mean.

    Raises:
        InvalidRequest: naming the option.
    """
    if (pooling := options.get("pooling")) in CONE_NAMES:
        raise InvalidRequest(
            f"pooling={pooling!r}: a prediction is a mean, and these weights need not sum to 1; use soft, "
            "hard or uniform, or pool the field with attend"
        )


def _refuse_misspelt(collection: State, field: str, predictions: Sequence[FieldPrediction]) -> None:
    """Refuse a field that no document has if one of a similar name exists.

    Raises:
        InvalidRequest: with the field that may have been meant.
    """
    if field != VALUE and all(prediction.kind is None for prediction in predictions):
        refuse_misspelt(collection.store, [parse_field(field)], "field")


def _values(
    collection: State,
    layer: SearchLayer,
    positions: Int64[np.ndarray, "batch candidates"],
    field: str,
    learned: LearnedValues | None,
) -> list[list[Any]]:
    """The values of the candidates, None where there is none."""
    if learned is not None:
        return [learned.at(layer.snapshot, line) for line in positions]
    rows = layer.snapshot.rows(positions)
    wanted = np.unique(rows[rows != NONE])
    fields = dict(zip(wanted.tolist(), fields_of(collection.store, wanted, field), strict=True))
    return [[fields.get(row) for row in line] for line in rows.tolist()]


def _from_all(
    collection: State,
    layer: SearchLayer,
    states: Float[Tensor, "batch encoder_dim"],
    texts: Sequence[str] | None,
    field: str,
    evidence: int,
    learned: LearnedValues | None,
) -> list[FieldPrediction]:
    snapshot = layer.snapshot

    def ids(positions: Int64[np.ndarray, " some"]) -> list[str]:
        return collection.ids_at(snapshot, positions[None])[0]

    def named(position: int) -> str:
        return ids(np.array([position]))[0]

    at = snapshot.visible()
    if learned is None:
        values = collection.field_cache.of(snapshot.rows(at), field)
    else:
        values = learned.at(snapshot, at)
    column = PooledField.of(values, at, snapshot.positions, named, field)
    predictions = predicted_from_all(layer.whole(states, texts), column, len(at), evidence, ids)
    return predictions if learned is None else [learned.marked(prediction) for prediction in predictions]


def _predicted(
    ids: Sequence[str],
    values: Sequence[Any],
    weights: Float[Tensor, " candidates"],
    field: str,
    most_shown: int,
) -> FieldPrediction:
    pooled = [
        Evidence(id, float(share), value)
        for id, value, share in zip(ids, values, weights.numpy(), strict=True)
        if value is not None
    ]
    kind = kind_of_all(((str, document.id, document.value) for document in pooled), field)
    mean, spread = _mean_and_spread(pooled, kind) if kind in ("number", "vector") else (None, None)
    return FieldPrediction(
        kind=kind,
        mean=mean,
        spread=spread,
        labels=_labels(pooled) if kind == "label" else None,
        evidence=sorted(pooled, key=lambda document: -document.weight)[:most_shown],
        candidates=len(pooled),
        without_field=sum(id != "" for id in ids) - len(pooled),
    )


def _mean_and_spread(
    pooled: Sequence[Evidence], kind: Kind | None
) -> tuple[float | list[float], float | list[float]]:
    weights = torch.tensor([[document.weight for document in pooled]], dtype=torch.float64)
    numbers = torch.tensor([document.value for document in pooled], dtype=torch.float64).reshape(
        len(pooled), -1
    )
    predicted = mean_and_spread(normalise(weights), numbers)
    mean, spread = (part[0].numpy().tolist() for part in predicted)
    return (mean, spread) if kind == "vector" else (mean[0], spread[0])


def _labels(pooled: Sequence[Evidence]) -> dict[str | bool, float]:
    shares: dict[str | bool, float] = {}
    for document in pooled:
        shares[document.value] = shares.get(document.value, 0.0) + document.weight
    return dict(sorted(shares.items(), key=lambda share: -share[1]))


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


@dataclass(frozen=True, slots=True)
class LearnedValues:
    """The learned values of a field.

    Attributes:
        head: head of the version.
        kind: number, vector or label.
        labels: of the numbers of a value, where it is a label.
    """

    head: Head
    kind: str
    labels: Sequence[str | bool]

    @classmethod
    def of(cls, collection: State, stamp: Stamp, head: Head, field: str) -> LearnedValues | None:
        """Return the learned values of a field; None if the version learned none for it."""
        record = {} if stamp.model == "v0" else collection.store.model(stamp.model).record
        readout: Mapping[str, Any] = record.get(READOUT) or {}
        if head.output is None or readout.get("field") != field:
            return None
        return cls(head, readout["kind"], readout.get("labels") or ())

    def at(self, snapshot: Snapshot, positions: Int64[np.ndarray, " some"]) -> list[Any]:
        """Return the values of documents, as `PooledField` and candidates take them; None at −1."""
        rows: list[Any] = []
        for start in range(0, len(positions), _AT_A_TIME):
            part = positions[start : start + _AT_A_TIME]
            embeddings = torch.as_tensor(snapshot.embeddings(part)).to(self.head.key_delta)
            values = self.head.outputs(self.head.values(embeddings))
            if self.kind == "number":
                values = values.squeeze(-1)
            numbers = cast("list[Any]", values.tolist())  # pyright: ignore[reportUnknownMemberType]
            rows += [None if at == NONE else row for row, at in zip(numbers, part, strict=True)]
        return rows

    def marked(self, prediction: FieldPrediction) -> FieldPrediction:
        """Mark a prediction as of learned values, and turn the numbers of labels into shares."""
        if self.kind != "label" or not isinstance(prediction.mean, list):
            return replace(prediction, values="learned", without_field=0)
        weights = np.exp(np.array(prediction.mean) - max(prediction.mean))
        shares: list[float] = (weights / weights.sum()).tolist()
        order = np.argsort(-weights, kind="stable").tolist()
        evidence = [replace(row, value=self.labels[int(np.argmax(row.value))]) for row in prediction.evidence]
        return replace(
            prediction,
            kind="label",
            mean=None,
            spread=None,
            labels={self.labels[at]: shares[at] for at in order},
            evidence=evidence,
            without_field=0,
            values="learned",
        )
