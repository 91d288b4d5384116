"""Prediction of a metadata field for a query: the values of the documents, pooled by attention.

    numbers, vectors     mean = Σ a_d v_d        spread² = Σ a_d (v_d − mean)²
    strings, booleans    p(label) = Σ a_d [v_d = label]

a_d are the query's weights among the candidates that have the field. The other candidates are removed before
the weights are computed, so the weights sum to 1; their number is reported. With over="all" every document
is a candidate (predict_whole.py). With a kernel score the mean is
Nadaraya–Watson regression.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int64
from torch import Tensor

from dsearch.attention import normalise
from dsearch.attention import predict as mean_and_spread
from dsearch.engine.options import LayerOptions
from dsearch.engine.ranking.layer import SearchLayer
from dsearch.engine.search.attend import Queries, coverage_note, resolve_inputs
from dsearch.engine.search.field_values import Kind, kind_of_all
from dsearch.engine.search.learned_values import LearnedValues
from dsearch.engine.search.predict_whole import PooledField, predicted_from_all
from dsearch.engine.snapshot.snapshot import NONE
from dsearch.engine.state.fields import VALUE, fields_of
from dsearch.engine.state.state import CollectionState
from dsearch.errors import InvalidRequest
from dsearch.results import Evidence, FieldPrediction, Predictions
from dsearch.store.filters.field_names import refuse_misspelt
from dsearch.store.filters.parse import parse_field


def predict(
    collection: CollectionState,
    queries: Queries,
    *,
    field: str,
    evidence: int,
    model: str | None,
    filter: object | None,
    options: LayerOptions,
) -> Predictions:
    """See `Collection.predict`."""
    if evidence < 0:
        raise InvalidRequest(f"evidence={evidence}; use 0 or more documents")
    with torch.inference_mode():
        layer, stamp, states, texts = resolve_inputs(collection, queries, model, filter, options)
        learned = LearnedValues.of(collection, stamp, layer.head, field)
        if layer.over == "all":
            pooled = _from_all(collection, layer, states, texts, field, evidence, learned)
            _refuse_misspelt(collection, field, pooled)
            return Predictions(stamp, pooled)
        output = layer(states, texts)
        values = _values(collection, layer, output.positions, field, learned)
        has = torch.tensor([[value is not None for value in line] for line in values], dtype=torch.bool)
        weighing = layer.weighing_of(output.folded)
        weights = weighing.weighed(output.raw, has.reshape(output.positions.shape)).mixed
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
    return Predictions(stamp, predictions, coverage_note(layer, output))


def _refuse_misspelt(collection: CollectionState, field: str, predictions: Sequence[FieldPrediction]) -> None:
    """Refuse a field that no document has if one of a similar name exists.

    Raises:
        InvalidRequest: with the field that may have been meant.
    """
    if field != VALUE and all(prediction.kind is None for prediction in predictions):
        refuse_misspelt(collection.store, [parse_field(field)], "field")


def _values(
    collection: CollectionState,
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
    collection: CollectionState,
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
        values = collection.kept_fields.of(snapshot.rows(at), field)
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
