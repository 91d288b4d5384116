"""How a layer and a collection search: the options that modules and HTTP routes share."""

from __future__ import annotations

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
