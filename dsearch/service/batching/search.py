"""Work of the search worker: micro-batches of searches, and predictions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from dsearch.engine import Collection
from dsearch.engine import SearchOptions as EngineOptions
from dsearch.errors import DimensionMismatch
from dsearch.service.collections import Catalogue
from dsearch.service.schemas.answers import prediction_answer
from dsearch.service.schemas.search import AttendFields, PredictRequest, SearchFields
from dsearch.service.wire.json import stamped
from dsearch.types import SearchResult

LARGEST_BATCH = 64
LARGEST_BATCH_CANDIDATES = 16_384  # bounds a batch's embeddings: 25 MB a leg and head at 384 numbers
_CANDIDATES = 100  # of a leg, at least; see the engine's SearchLayer


class Searches:
    """Searches of one collection with the same options; the items are queries.

    Equal ones are one batch: one call of the encoder, one of FAISS.
    """

    def __init__(self, catalogue: Catalogue, collection: str, options: EngineOptions):
        self.catalogue, self.collection, self.options = catalogue, collection, options

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Searches)
            and self.catalogue is other.catalogue
            and self.collection == other.collection
            and self.options == other.options
            # And as written: 1 and true are equal in Python, in a filter they are not.
            and (self._filter is None or repr(self._filter) == repr(other._filter))
        )

    __hash__ = None  # pyright: ignore[reportAssignmentType]

    @property
    def _filter(self) -> Any:
        return self.options.get("filter")

    @classmethod
    def of(cls, catalogue: Catalogue, collection: str, asked: SearchFields) -> Searches:
        """The searches that a request asks for.

        Raises:
            InvalidRequest: not a filter.
        """
        return cls(catalogue, collection, engine_options(asked))

    @property
    def largest_batch(self) -> int:
        """Fewer queries at once when each has many candidates; a cursor belongs to one query."""
        if self.options.get("cursor") is not None:
            return 1
        candidates = max(_CANDIDATES, self.options.get("limit", 0) + self.options.get("offset", 0))
        return max(1, min(LARGEST_BATCH, LARGEST_BATCH_CANDIDATES // candidates))

    def __call__(self, items: Sequence[str]) -> list[SearchResult]:
        """One result for each query, all from one state."""
        encoder = self.options.get("mode") != "keyword"
        with self.catalogue.using(self.collection, encoder=encoder) as collection:
            return collection.search_batch(items, **self.options)


def engine_options(asked: SearchFields) -> EngineOptions:
    """The options of a request as the engine takes them.

    Raises:
        InvalidRequest: not a filter.
    """
    return EngineOptions(
        limit=asked.limit,
        offset=asked.offset,
        cursor=asked.cursor,
        mode=asked.mode,
        model=asked.model,
        hops=asked.hops,
        hop_strength=asked.hop_strength,
        filter=asked.tree(),
        operators=asked.operators,
        score_threshold=asked.score_threshold,
        weight_threshold=asked.weight_threshold,
        explain=asked.explain,
        highlight=asked.highlight,
        coverage=None,
        partial=asked.partial,
    )


def predict(catalogue: Catalogue, name: str, asked: PredictRequest) -> dict[str, Any]:
    """The answer to a `predict` request, less what the route adds.

    Raises:
        DimensionMismatch: vectors of another length than the collection's embeddings.
        InvalidRequest: a field that cannot be pooled, a width for a score that has none.
    """
    with catalogue.using(name, encoder=asked.queries is not None and asked.mode != "keyword") as collection:
        predicted = collection.predict(
            _queries(asked, collection),
            field=asked.field,
            evidence=asked.evidence,
            filter=asked.tree(),
            **_options(asked),
        )
    return {**stamped(predicted.stamp), "results": [prediction_answer(one) for one in predicted.predictions]}


def _options(asked: AttendFields) -> dict[str, Any]:
    shared = (
        "model",
        "mode",
        "candidates",
        "hops",
        "hop_strength",
        "score",
        "pooling",
        "width",
        "temperature",
    )
    return {name: getattr(asked, name) for name in shared}


def _queries(asked: AttendFields, collection: Collection) -> list[str] | torch.Tensor:
    return asked.queries if asked.queries is not None else _states(asked.vectors or [], collection)


def _states(vectors: Sequence[Sequence[float]], collection: Collection) -> torch.Tensor:
    dimension = collection.store.dimension
    for position, vector in enumerate(vectors):
        if len(vector) != dimension:
            raise DimensionMismatch(
                f"vectors.{position} has {len(vector)} numbers; this collection's embeddings have {dimension}"
            )
    return torch.tensor(vectors, dtype=torch.float32)
