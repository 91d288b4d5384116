"""How a layer and a collection search: the options that modules and HTTP routes share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypedDict

from dsearch.attention import Score
from dsearch.types import Mode

CANDIDATES = 100  # proposed by each leg for each head


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
