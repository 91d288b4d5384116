"""The nouns that travel between the parts: plain, frozen, free of torch and faiss."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

Mode = Literal["hybrid", "dense", "keyword"]


@dataclass(frozen=True, slots=True)
class Document:
    """One retrievable text. `value` is an optional number or vector that attention can pool."""

    id: str
    text: str
    title: str = ""
    metadata: dict[str, Any] = field(default_factory=dict)
    value: float | list[float] | None = None

    @property
    def content(self) -> str:
        """What is encoded and indexed: title and text, one space between."""
        return f"{self.title} {self.text}".strip()


@dataclass(frozen=True, slots=True)
class Query:
    """A query of a test collection."""

    id: str
    text: str


@dataclass(frozen=True, slots=True)
class Stamp:
    """What an answer was computed from. Equal stamps give equal answers."""

    generation: int
    model: str
    sequence: int


@dataclass(frozen=True, slots=True)
class Explanation:
    """The parts of one hit's score, per head: `score = Σ parts` exactly when there is one head.

    `dense` and `keyword` are already multiplied by their learned weights.
    """

    dense: list[float]
    keyword: list[float]
    head_weights: list[float]


@dataclass(frozen=True, slots=True)
class Hit:
    """One returned document: `weight` is its share of the attention; hits are ordered by `score`."""

    rank: int
    id: str
    weight: float
    score: float
    title: str
    text: str
    metadata: dict[str, Any] = field(default_factory=dict)
    explain: Explanation | None = None


@dataclass(frozen=True, slots=True)
class AttentionSummary:
    """How the attention was spread: candidates seen, entropy in nats, share of the exact softmax they hold.

    `covered_mass` is 1 when the candidates are the whole corpus and None when it was not computed.
    """

    candidates: int
    entropy: float
    covered_mass: float | None = None


@dataclass(frozen=True, slots=True)
class SearchResult:
    """The answer to one query."""

    query: str
    hits: list[Hit]
    stamp: Stamp
    attention: AttentionSummary
    took_ms: float


@dataclass(frozen=True, slots=True)
class Progress:
    """A step of long work: `done` of `total` units after `elapsed_s` seconds."""

    stage: str
    done: int
    total: int
    elapsed_s: float
