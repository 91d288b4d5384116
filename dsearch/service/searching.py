"""What the search worker computes: micro-batches of searches, and predictions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch

from dsearch.engine import Collection
from dsearch.errors import DimensionMismatch
from dsearch.service.catalogue import Catalogue
from dsearch.service.requests import Attending, PredictRequest
from dsearch.service.respond import stamped
from dsearch.types import Mode, SearchResult

LARGEST_BATCH = 64
LARGEST_BATCH_CANDIDATES = 16_384  # bounds a batch's embeddings: 25 MB a leg and head at 384 numbers
_CANDIDATES = 100  # of a leg, at least; see the engine's SearchLayer


@dataclass(frozen=True, slots=True)
class Searches:
    """Searches of one collection with the same options; the items are queries.

    Equal ones are one batch: one call of the encoder, one of FAISS.
    """

    catalogue: Catalogue
    collection: str
    limit: int
    offset: int
    mode: Mode
    model: str | None
    explain: bool
    hops: int | None
    hop_strength: float | None

    @property
    def largest_batch(self) -> int:
        """Fewer queries at once when each has many candidates."""
        candidates = max(_CANDIDATES, self.limit + self.offset)
        return max(1, min(LARGEST_BATCH, LARGEST_BATCH_CANDIDATES // candidates))

    def __call__(self, items: Sequence[str]) -> list[SearchResult]:
        """One result for each query, all from one state."""
        with self.catalogue.using(self.collection, encoder=self.mode != "keyword") as collection:
            return collection.search_batch(
                items,
                limit=self.limit,
                offset=self.offset,
                mode=self.mode,
                model=self.model,
                hops=self.hops,
                hop_strength=self.hop_strength,
                explain=self.explain,
                coverage=None,
            )


def predict(catalogue: Catalogue, name: str, asked: PredictRequest) -> dict[str, Any]:
    """The answer to a `predict` request, less what the route adds.

    Raises:
        DimensionMismatch: vectors of another length than the collection's embeddings.
        InvalidRequest: a field that cannot be pooled, a width for a score that has none.
    """
    with catalogue.using(name, encoder=asked.queries is not None and asked.mode != "keyword") as collection:
        predicted = collection.predict(
            _queries(asked, collection), field=asked.field, evidence=asked.evidence, **_options(asked)
        )
    results = [asdict(prediction) for prediction in predicted.predictions]
    for result in results:
        if result["labels"] is not None:  # JSON has no key but text, and true is not "true"
            result["labels"] = [{"label": label, "share": share} for label, share in result["labels"].items()]
    return {**stamped(predicted.stamp), "results": results}


def _options(asked: Attending) -> dict[str, Any]:
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


def _queries(asked: Attending, collection: Collection) -> list[str] | torch.Tensor:
    return asked.queries if asked.queries is not None else _states(asked.vectors or [], collection)


def _states(vectors: Sequence[Sequence[float]], collection: Collection) -> torch.Tensor:
    dimension = collection.store.dimension
    for position, vector in enumerate(vectors):
        if len(vector) != dimension:
            raise DimensionMismatch(
                f"vectors.{position} has {len(vector)} numbers; this collection's embeddings have {dimension}"
            )
    return torch.tensor(vectors, dtype=torch.float32)
