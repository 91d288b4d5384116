"""How a layer searches: the options that `SearchLayer`, `Collection` and the HTTP routes share."""

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
