"""Work of the search worker: micro-batches of searches, predictions, attention and its gradients."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from dsearch.attention_options import CANDIDATES
from dsearch.engine import Collection, GradientQuery, LayerOptions, attention_parts
from dsearch.engine import vjp as vjp_of
from dsearch.engine.indexing.own_vectors import query_vectors
from dsearch.errors import DimensionMismatch, amount
from dsearch.operations import Attend, Differentiate, Predict
from dsearch.results import Attention, Gradients, Predictions
from dsearch.search_options import SearchOptions
from dsearch.service.collections import Catalogue
from dsearch.service.schemas.answers import prediction_answer
from dsearch.service.wire.json import stamped
from dsearch.types import SearchResult, Stamp

LARGEST_BATCH = 64
LARGEST_BATCH_CANDIDATES = 16_384  # bounds a batch's embeddings: 25 MB a leg and head at 384 numbers
MAX_JSON_VECTOR_BYTES = 16 * 1024 * 1024
MAX_TENSOR_BYTES = 128 * 1024 * 1024
_BY_HEAD = ("dense", "keyword", "head_weights", "slopes")
_BY_QUERY = (
    "mixtures",
    "context",
    "output",
    "weights",
    "scores",
    "keys",
    "values",
    *_BY_HEAD,
    "covered_mass",
    "memory",
    "positions",
)


class Searches:
    """Searches of one collection with the same options; the items are queries.

    Equal ones are one batch: one call of the encoder, one of FAISS.
    """

    def __init__(self, catalogue: Catalogue, collection: str, options: SearchOptions):
        self.catalogue, self.collection, self.options = catalogue, collection, options

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Searches)
            and self.catalogue is other.catalogue
            and self.collection == other.collection
            and self.options == other.options
            # And as written: 1 and true are equal in Python, in a filter they are not.
            and (self.options.filter is None or repr(self.options.filter) == repr(other.options.filter))
        )

    __hash__ = None  # pyright: ignore[reportAssignmentType]

    @property
    def largest_batch(self) -> int:
        """Fewer queries at once when each has many candidates; a cursor belongs to one query."""
        if self.options.cursor is not None:
            return 1
        needed = max(CANDIDATES, self.options.limit + self.options.offset)
        candidates = self.options.candidates or needed
        return max(1, min(LARGEST_BATCH, LARGEST_BATCH_CANDIDATES // candidates))

    def __call__(self, items: Sequence[str]) -> list[SearchResult]:
        """One result for each query, all from one state."""
        encoder = self.options.mode != "keyword"
        with self.catalogue.using(self.collection, encoder=encoder) as collection:
            return collection.answer(items, self.options)


def by_vectors(
    catalogue: Catalogue,
    name: str,
    texts: Sequence[str],
    vectors: Sequence[Sequence[float]],
    options: SearchOptions,
) -> list[SearchResult]:
    """Search with vectors in place of the texts' embeddings; see `Collection.answer`.

    Raises:
        DimensionMismatch: vectors of another length than the collection's embeddings.
        InvalidRequest: vectors that are zero or too large.
    """
    with catalogue.using(name) as collection:
        return collection.answer(texts, options, vectors)


def predict(catalogue: Catalogue, call: Predict) -> dict[str, Any]:
    """The answer to a call, less what the route adds.

    Raises:
        DimensionMismatch: vectors of another length than the collection's embeddings.
        InvalidRequest: a field that cannot be pooled, a width for a score that has none.
    """
    encoder = call.queries is not None and encodes(call.options)
    with catalogue.whole(call.collection, encoder=encoder) as collection:
        queries = _queries(call, collection)
        predicted = collection.predict(queries, field=call.field, evidence=call.evidence, **call.options)
    return predicted_json(predicted)


def predicted_json(predicted: Predictions) -> dict[str, Any]:
    """An answer in JSON: a result for each query."""
    answers = [prediction_answer(prediction) for prediction in predicted.predictions]
    return {**stamped(predicted.stamp), "note": predicted.note, "results": answers}


def encodes(options: Mapping[str, Any]) -> bool:
    """Return True if texts are encoded to attend by these options."""
    return options.get("mode") != "keyword" and options.get("match_field") is None


def _queries(call: Predict, collection: Collection) -> Sequence[str] | torch.Tensor:
    if call.ids is not None:
        return collection.states_of(call.ids)
    if call.queries is not None:
        return call.queries
    return query_vectors(call.vectors or [], collection.store.dimension).float()


def attend(catalogue: Catalogue, call: Attend, owner: str, largest_bytes: int) -> Attention:
    """Attention of the queries, with what was asked for.

    Raises:
        DimensionMismatch: vectors of another length than the collection's embeddings.
        InvalidRequest: mode "keyword" with vectors alone, an answer above `largest_bytes`.
        ModelNotFound, Gone, Conflict.
    """
    with catalogue.whole(call.collection, encoder=_encodes(call)) as collection:
        return attention_parts(
            collection,
            question_of(call, collection.store.dimension, owner),
            include=set(call.include),
            largest_bytes=largest_bytes,
        )


def vjp(catalogue: Catalogue, call: Differentiate, owner: str) -> Gradients:
    """Gradients with respect to the query states and the head.

    Raises:
        As `attend`; and for gradients that do not fit what was asked.
    """
    with catalogue.whole(call.collection, encoder=_encodes(call)) as collection:
        return vjp_of(
            collection,
            question_of(call, collection.store.dimension, owner),
            context=_context(collection, call),
            weights=call.weights,
            scores=call.scores,
        )


def question_of(call: Attend | Differentiate, dimension: int, owner: str = "") -> GradientQuery:
    """A call as the engine takes it, for embeddings of `dimension` numbers; drafts are those of the owner.

    Raises:
        DimensionMismatch: vectors of another length.
    """
    shared = LayerOptions.__optional_keys__
    layer: Any = {name: value for name, value in call.options.items() if name in shared}
    own: Any = {name: value for name, value in call.options.items() if name not in (*shared, "include")}
    if "stamp" in own:
        own["stamp"] = Stamp(**own["stamp"])
    states = None if call.vectors is None else query_vectors(call.vectors, dimension, padding=True)
    return GradientQuery(states=states, texts=call.queries, owner=owner, options=layer, **own)


def attended_arrays(attention: Attention) -> dict[str, np.ndarray]:
    """The arrays of an answer, each for all queries, zeros behind a query's last candidate."""
    arrays = {name: getattr(attention, name) for name in (*_BY_QUERY, "mixture")}
    return {name: array for name, array in arrays.items() if array is not None}


def attended_facts(attention: Attention) -> dict[str, Any]:
    """Return the fields of an answer that are not arrays."""
    facts: dict[str, Any] = {
        **stamped(attention.stamp),
        "hops": attention.hops,
        "temperature": attention.temperature,
        "ids": attention.ids,
        "candidates": attention.candidates,
        "note": attention.note,
        "draft": attention.draft,
    }
    if attention.texts is not None:
        facts["texts"] = attention.texts
    return facts


def attended_json(attention: Attention) -> dict[str, Any]:
    """An answer in JSON: a result for each query, its lists as long as it has candidates."""
    return {
        **stamped(attention.stamp),
        "hops": attention.hops,
        "temperature": attention.temperature,
        "mixture": attention.mixture,
        "note": attention.note,
        "draft": attention.draft,
        "results": [_result(attention, query) for query in range(len(attention.ids))],
    }


def _result(attention: Attention, query: int) -> dict[str, Any]:
    ids = attention.ids[query]
    result: dict[str, Any] = {"ids": ids}
    for name in _BY_QUERY:
        array = getattr(attention, name)
        if array is None:
            continue
        row = array[query]
        if name == "covered_mass":
            result[name] = float(row)
            continue
        if name in _BY_HEAD or row.ndim == 3:  # keys and values, too, where heads took different passages
            row = row[:, : len(ids)]
        elif name not in ("context", "output", "mixtures"):
            row = row[: len(ids)]
        result[name] = np.ascontiguousarray(row)
    if attention.candidates is not None:
        result["candidates"] = attention.candidates[query]
    if attention.texts is not None:
        result["texts"] = attention.texts[query]
    return result


def _context(collection: Collection, call: Differentiate) -> np.ndarray | None:
    """The gradients of the contexts, of float64.

    Raises:
        DimensionMismatch: one has another length than the contexts.
    """
    rows = call.context
    if rows is None:
        return None
    own = call.options.get("field") is None and call.options.get("table") is None
    width = collection.store.dimension if own else len(rows[0])
    for position, row in enumerate(rows):
        if len(row) != width:
            raise DimensionMismatch(
                f"grad_context.{position} has {amount(len(row), 'number')}; what is pooled has {width}"
            )
    return np.array(rows, np.float64)


def _encodes(call: Attend | Differentiate) -> bool:
    return call.queries is not None and call.vectors is None and encodes(call.options)
