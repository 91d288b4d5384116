"""A field of the documents, pooled by attention: what the collection says about a query.

    numbers, vectors     mean = Σ a_d v_d        spread² = Σ a_d (v_d − mean)²
    strings, booleans    p(label) = Σ a_d [v_d = label]

a_d are the query's weights among those candidates that have the field; the others are left out before the
weights are, so these sum to 1, and counted. With a kernel score the mean is Nadaraya–Watson regression.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, cast

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from dsearch.attention import normalise
from dsearch.attention import predict as mean_and_spread
from dsearch.engine.attending import Queries, asked
from dsearch.engine.options import LayerOptions
from dsearch.engine.snapshot import NONE
from dsearch.errors import InvalidRequest
from dsearch.types import Document, Stamp

if TYPE_CHECKING:
    from dsearch.engine.collection import Collection

EVIDENCE = 10
VALUE = "value"  # the field that is no metadata: `Document.value`

Kind = Literal["number", "vector", "label"]


@dataclass(frozen=True, slots=True)
class Evidence:
    """A document that a prediction came from: its share of the weight, and its field."""

    id: str
    weight: float
    value: Any


@dataclass(frozen=True, slots=True)
class FieldPrediction:
    """What one query predicts.

    Attributes:
        kind: "number", "vector" or "label"; None, and no prediction, when no candidate has the field.
        mean: of numbers, or of each entry of vectors.
        spread: the standard deviation around it.
        labels: the share of each label, largest first; they sum to 1.
        evidence: the documents of largest weight, largest first.
        candidates: how many documents were pooled.
        without_field: how many were left out because they lack the field.
    """

    kind: Kind | None
    mean: float | list[float] | None
    spread: float | list[float] | None
    labels: dict[str | bool, float] | None
    evidence: list[Evidence]
    candidates: int
    without_field: int


@dataclass(frozen=True, slots=True)
class Predicted:
    """One prediction a query, and what they were computed from."""

    predictions: list[FieldPrediction]
    stamp: Stamp


def predict(
    collection: Collection,
    queries: Queries,
    *,
    field: str,
    evidence: int,
    model: str | None,
    options: LayerOptions,
) -> Predicted:
    """See `Collection.predict`."""
    if not field:
        raise InvalidRequest('field=""; use a key of the metadata, or "value" for the documents\' value')
    if evidence < 0:
        raise InvalidRequest(f"evidence={evidence}; use 0 or more documents")
    with torch.inference_mode():
        layer, stamp, states, texts = asked(collection, queries, model, options)
        found = layer(states, texts)
        rows = layer.snapshot.rows(found.positions)
        wanted = np.unique(rows[rows != NONE])
        documents = dict(zip(wanted.tolist(), collection.store.documents(wanted), strict=True))
        lines = [[documents.get(row) for row in line] for line in rows.tolist()]
        values = [[None if d is None else field_of(d, field) for d in line] for line in lines]
        has = torch.tensor([[value is not None for value in line] for line in values], dtype=torch.bool)
        _, weights = layer.weigh(found.dense + found.keyword, has.reshape(found.positions.shape))
        weights = normalise(weights)  # a head without a document in reach gives its share to the others
    return Predicted(
        [_predicted(*query, field, evidence) for query in zip(lines, values, weights, strict=True)], stamp
    )


def fields_of(documents: Sequence[Document], field: str) -> list[Any]:
    """`field_of` each."""
    return [field_of(document, field) for document in documents]


def field_of(document: Document, field: str) -> Any:
    """The document's `value`, or the entry of its metadata; None where there is none."""
    return document.value if field == VALUE else document.metadata.get(field)


def _predicted(
    documents: Sequence[Document | None],
    values: Sequence[Any],
    weights: Float[Tensor, " candidates"],
    field: str,
    shown: int,
) -> FieldPrediction:
    pooled = [
        Evidence(document.id, float(share), value)
        for document, value, share in zip(documents, values, weights.numpy(), strict=True)
        if document is not None and value is not None
    ]
    kind = _kind(pooled, field)
    mean, spread = _mean_and_spread(pooled, kind) if kind in ("number", "vector") else (None, None)
    return FieldPrediction(
        kind=kind,
        mean=mean,
        spread=spread,
        labels=_labels(pooled) if kind == "label" else None,
        evidence=sorted(pooled, key=lambda one: -one.weight)[:shown],
        candidates=len(pooled),
        without_field=sum(document is not None for document in documents) - len(pooled),
    )


def _mean_and_spread(
    pooled: Sequence[Evidence], kind: Kind | None
) -> tuple[float | list[float], float | list[float]]:
    weights = torch.tensor([[one.weight for one in pooled]], dtype=torch.float64)
    numbers = torch.tensor([one.value for one in pooled], dtype=torch.float64).reshape(len(pooled), -1)
    predicted = mean_and_spread(normalise(weights), numbers)
    mean, spread = (part[0].numpy().tolist() for part in predicted)
    return (mean, spread) if kind == "vector" else (mean[0], spread[0])


def _labels(pooled: Sequence[Evidence]) -> dict[str | bool, float]:
    shares: dict[str | bool, float] = {}
    for one in pooled:
        shares[one.value] = shares.get(one.value, 0.0) + one.weight
    return dict(sorted(shares.items(), key=lambda share: -share[1]))


def _kind(pooled: Sequence[Evidence], field: str) -> Kind | None:
    """The one kind of all values; raises InvalidRequest for several, and for what cannot be pooled."""
    kinds: dict[tuple[Kind, int], str] = {}
    for one in pooled:
        kinds.setdefault(_kind_of(one, field), one.id)
    if len(kinds) > 1:
        (one, here), (other, there), *_ = kinds.items()
        what = f"a {one[0]} in document {here!r} and a {other[0]} in {there!r}"
        if one[0] == other[0]:
            what = f"a vector of {one[1]} numbers in document {here!r} and of {other[1]} in {there!r}"
        raise InvalidRequest(f"field {field!r} is {what}; make it of one kind to pool it")
    return next(iter(kinds))[0] if kinds else None


def _kind_of(one: Evidence, field: str) -> tuple[Kind, int]:
    """The kind of a value, and the length of a vector."""
    value = one.value
    if isinstance(value, str | bool):
        return "label", 0
    if _is_number(value):
        return "number", 0
    numbers = cast(list[Any], value) if isinstance(value, list) else []
    if numbers and all(map(_is_number, numbers)):
        return "vector", len(numbers)
    given = type(one.value).__name__
    raise InvalidRequest(
        f"field {field!r} of document {one.id!r} is of type {given}; numbers, vectors of "
        "numbers, strings and booleans can be pooled"
    )


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
