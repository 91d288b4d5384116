"""`ValueExamples`: documents with their values, each of which is predicted from the others."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float32, Int64

from dsearch.engine import UNTRAINED, Collection, Snapshot
from dsearch.engine.home import is_given
from dsearch.engine.state.caches import fields_of
from dsearch.errors import InvalidRequest, amount
from dsearch.training.values.context import ValueKind

MIN_DOCUMENTS = 10  # with fewer there are no neighbours to speak of
MAX_LABELS = 1000
_READ_AT_A_TIME = 8192


@dataclass(frozen=True, slots=True)
class ValueExamples:
    """Documents with the values that are learned for them.

    Attributes:
        snapshot: the collection's state, with the embeddings of a version.
        field: name of the field.
        kind: number, vector or label.
        positions: documents that have the field, ascending.
        values: their values, in units of their standard deviation around their mean, or one-hot.
        labels: labels of the columns of one-hot values; empty for numbers.
        scale: standard deviation of each number, in the field's own units; empty for labels.
        centre: mean of each number; empty for labels.
        texts: their texts; empty if the collection stores given embeddings without texts.
        left_out: number of unusable documents, by reason.
        digest: SHA-256 of field and values, to identify the training data.
    """

    snapshot: Snapshot
    field: str
    kind: ValueKind
    positions: Int64[np.ndarray, " documents"]
    values: Float32[np.ndarray, "documents value_dim"]
    labels: tuple[str | bool, ...]
    scale: Float32[np.ndarray, " numbers"]
    centre: Float32[np.ndarray, " numbers"]
    texts: list[str]
    left_out: dict[str, int]
    digest: str

    def __len__(self) -> int:
        return len(self.positions)


def value_examples(collection: Collection, field: str, model: str = UNTRAINED) -> ValueExamples:
    """Documents of a collection that have a field, each with its own embedding as query.

    Args:
        collection: collection of the documents.
        field: metadata by a dotted path, or "value" for `Document.value`.
        model: version whose embeddings of the documents are used.

    Raises:
        InvalidRequest: too few documents with the field, values of several kinds, a single label, more
            labels than are sensible.
    """
    snapshot = collection.snapshot_for(model)
    visible = snapshot.visible()
    collected: list[Any] = []
    for start in range(0, len(visible), _READ_AT_A_TIME):
        rows = snapshot.rows(visible[start : start + _READ_AT_A_TIME])
        collected += list(fields_of(collection.store, rows, field))
    has = np.array([value is not None for value in collected], bool)
    present = [value for value in collected if value is not None]
    if len(present) < MIN_DOCUMENTS:
        raise InvalidRequest(
            f"the field {field!r} is in {amount(len(present), 'document')} of collection "
            f"{collection.name!r}; "
            f"at least {MIN_DOCUMENTS} are needed to learn from"
        )
    kind = _kind(present, field)
    positions = visible[has].astype(np.int64)
    labels: tuple[str | bool, ...] = ()
    scale = centre = np.zeros(0, np.float32)
    if kind == "label":
        labels = _labels(present, field)
        values = _one_hot(present, labels)
    else:
        numbers = np.array(present, np.float64).reshape(len(present), -1)
        # Of equal numbers the mean may be off by its rounding, and the deviation from it is then not 0.
        spread = np.where(numbers.min(0) == numbers.max(0), 0.0, numbers.std(0))
        if not spread.any():
            raise InvalidRequest(f"every document has the same {field!r}; there is nothing to tell apart")
        spread[spread == 0] = 1.0
        centre = numbers.mean(0).astype(np.float32)
        values, scale = ((numbers - numbers.mean(0)) / spread).astype(np.float32), spread.astype(np.float32)
    texts = [] if is_given(collection.store) else _texts(collection, snapshot.rows(positions))
    content = json.dumps([field, collection.store.ids(snapshot.rows(positions)), present])
    left_out = {"documents without the field": int((~has).sum())} if not has.all() else {}
    return ValueExamples(
        snapshot=snapshot,
        field=field,
        kind=kind,
        positions=positions,
        values=values,
        labels=labels,
        scale=scale,
        centre=centre,
        texts=texts,
        left_out=left_out,
        digest=hashlib.sha256(content.encode()).hexdigest(),
    )


def _texts(collection: Collection, rows: Int64[np.ndarray, " documents"]) -> list[str]:
    texts: list[str] = []
    for start in range(0, len(rows), _READ_AT_A_TIME):
        texts += collection.store.contents(rows[start : start + _READ_AT_A_TIME])
    return texts


def _kind(values: Sequence[Any], field: str) -> ValueKind:
    """The one kind of all values."""
    kinds: dict[tuple[ValueKind, int], Any] = {}
    for value in values:
        if isinstance(value, str | bool):
            kinds.setdefault(("label", 0), value)
        elif isinstance(value, int | float):
            kinds.setdefault(("number", 0), value)
        else:
            kinds.setdefault(("vector", len(value)), value)
    if len(kinds) > 1:
        first, other, *_ = (repr(value)[:60] for value in kinds.values())
        raise InvalidRequest(f"field {field!r} is {first} here and {other} there; make it of one kind")
    return next(iter(kinds))[0]


def _labels(values: Sequence[str | bool], field: str) -> tuple[str | bool, ...]:
    labels = tuple(sorted(set(values), key=str))
    if len(labels) < 2:
        raise InvalidRequest(f"every document has the same {field!r}; there is nothing to tell apart")
    if len(labels) > min(MAX_LABELS, len(values) // 2):
        raise InvalidRequest(
            f"{len(labels)} different {field!r} in {amount(len(values), 'document')}; a label that is to "
            "be learned "
            f"stands for several documents, and there are at most {MAX_LABELS}"
        )
    return labels


def _one_hot(
    values: Sequence[str | bool], labels: Sequence[str | bool]
) -> Float32[np.ndarray, "documents labels"]:
    column = {label: number for number, label in enumerate(labels)}
    matrix = np.zeros((len(values), len(labels)), np.float32)
    matrix[np.arange(len(values)), [column[value] for value in values]] = 1
    return matrix


def described(examples: ValueExamples) -> Mapping[str, Any]:
    """Description of the training data, for the record."""
    return {
        "field": examples.field,
        "kind": examples.kind,
        "examples": len(examples),
        "labels": len(examples.labels) or None,
        "left_out": examples.left_out,
        "data_sha256": examples.digest,
    }
