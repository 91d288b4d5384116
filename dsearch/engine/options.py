"""How a layer and a collection search: the options that modules and HTTP routes share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypedDict

from dsearch.attention import Score
from dsearch.errors import InvalidRequest
from dsearch.types import Mode

CANDIDATES = 100  # proposed by each leg for each head
# Hits of one call that can be explained or highlighted: each costs a look at its text.
MAX_DETAILED = 1000
# Up to this many documents the exact softmax costs less than the encoder: it is computed without being asked.
COVERAGE_DOCUMENTS = 20_000


class LayerOptions(TypedDict, total=False):
    """Described by `SearchLayer`, whose defaults hold for those left out."""

    mode: Mode
    candidates: int
    hops: int | None
    hop_strength: float | None
    score: str | Score
    pooling: str
    width: float | None
    temperature: float | None


class SearchOptions(TypedDict, total=False):
    """Described by `Collection.search`, whose defaults hold for those left out."""

    limit: int
    offset: int
    cursor: str | None
    mode: Mode
    model: str | None
    hops: int | None
    hop_strength: float | None
    filter: object | None
    operators: bool
    score_threshold: float | None
    weight_threshold: float | None
    explain: bool
    highlight: bool
    coverage: bool | None
    partial: bool


@dataclass(frozen=True, slots=True)
class SearchChoices:
    """`SearchOptions`, with the defaults of those left out."""

    limit: int = 10
    offset: int = 0
    cursor: str | None = None
    mode: Mode = "hybrid"
    model: str | None = None
    hops: int | None = None
    hop_strength: float | None = None
    filter: object | None = None
    operators: bool = True
    score_threshold: float | None = None
    weight_threshold: float | None = None
    explain: bool = False
    highlight: bool = False
    coverage: bool | None = None
    partial: bool = False  # in a cluster: whether an answer without lost shards is wanted

    def check(self, queries: Sequence[str]) -> None:
        """Refuse what cannot be asked together.

        Raises:
            InvalidRequest: an empty query, a cursor with several, too many hits to be explained.
        """
        blank = next((i for i, query in enumerate(queries) if not query.strip()), None)
        if blank is not None:
            raise InvalidRequest(f"query {blank} is empty; give at least one word")
        if self.cursor is not None and len(queries) != 1:
            raise InvalidRequest(f"cursor and {len(queries)} queries; it goes on with one: ask that alone")
        if (self.explain or self.highlight) and len(queries) * self.limit > MAX_DETAILED:
            raise InvalidRequest(
                f"explain or highlight of {len(queries)} times {self.limit} hits; "
                f"use at most {MAX_DETAILED} in all"
            )

    def covers(self, documents: int) -> bool:
        """Whether the share of the exact softmax over so many documents is wanted."""
        return documents <= COVERAGE_DOCUMENTS if self.coverage is None else self.coverage

    def ranking(self, filter: object) -> tuple[object, ...]:
        """What, beside the query, decides which hits come in which order; `filter` is the parsed one."""
        return (
            filter,
            self.operators,
            self.mode,
            self.model,
            self.hops,
            self.hop_strength,
            self.score_threshold,
            self.weight_threshold,
        )

    def layer(self, candidates: int) -> LayerOptions:
        """What the layer is asked with."""
        return {
            "mode": self.mode,
            "hops": self.hops,
            "hop_strength": self.hop_strength,
            "candidates": candidates,
        }
