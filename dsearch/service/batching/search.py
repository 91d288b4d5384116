"""Work of the search worker: micro-batches of searches, and predictions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from dsearch.attention_options import CANDIDATES
from dsearch.engine import Collection
from dsearch.engine.indexing.own_vectors import query_vectors
from dsearch.results import Predictions
from dsearch.search_options import SearchOptions
from dsearch.service.collections import Catalogue
from dsearch.service.schemas.answers import prediction_answer
from dsearch.service.schemas.search import AttendFields, PredictRequest
from dsearch.service.wire.json import stamped
from dsearch.types import SearchResult

LARGEST_BATCH = 64
LARGEST_BATCH_CANDIDATES = 16_384  # bounds a batch's embeddings: 25 MB a leg and head at 384 numbers


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


def predict(catalogue: Catalogue, name: str, request: PredictRequest) -> dict[str, Any]:
    """The answer to a `predict` request, less what the route adds.

    Raises:
        DimensionMismatch: vectors of another length than the collection's embeddings.
        InvalidRequest: a field that cannot be pooled, a width for a score that has none.
    """
    with catalogue.whole(name, encoder=_encodes(request)) as collection:
        predicted = collection.predict(
            _queries(request, collection),
            field=request.field,
            evidence=request.evidence,
            filter=request.tree(),
            **request.attention_options(),
        )
    return predicted_json(predicted)


def predicted_json(predicted: Predictions) -> dict[str, Any]:
    """An answer in JSON: a result for each query."""
    answers = [prediction_answer(prediction) for prediction in predicted.predictions]
    return {**stamped(predicted.stamp), "note": predicted.note, "results": answers}


def _encodes(request: PredictRequest) -> bool:
    return request.queries is not None and request.mode != "keyword" and request.match_field is None


def _queries(request: AttendFields, collection: Collection) -> list[str] | torch.Tensor:
    if request.ids is not None:
        return collection.states_of(request.ids)
    if request.queries is not None:
        return request.queries
    return query_vectors(request.vectors or [], collection.store.dimension).float()
