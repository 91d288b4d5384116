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
class Lesson:
    """A training query that moved a hit; see `engine/lessons.py`.

    Attributes:
        query: its words; None where they are not kept: of clicks, and of sentences of the documents.
        grade: of this very document in its judgements; None: others were judged.
        share: of what all training queries did to this hit's score at the first step of training, by absolute
            amounts; above 0 where it lifted the hit.
    """

    query: str | None
    grade: float | None
    share: float


@dataclass(frozen=True, slots=True)
class Learned:
    """What training changed about a hit: its parent model's view of the same candidates, and who pulled.

    Attributes:
        parent: the version that training started from.
        score: by the parent. Scores of models with several heads are comparable within one answer alone.
        weight: by the parent.
        rank: by the parent, from 1.
        dense: what the dense part of the score has gained since; with several heads their parts count by
            their shares. With one head `score + dense + keyword` is the hit's score.
        keyword: what the keyword part has gained.
        lessons: the training queries that moved it most; None where the model keeps none.
    """

    parent: str
    score: float
    weight: float
    rank: int
    dense: float
    keyword: float
    lessons: list[Lesson] | None = None


@dataclass(frozen=True, slots=True)
class Explanation:
    """The parts of one hit's score: `score = Σ_h shares_h (dense_h + keyword_h) + mixing`.

    With one head the share is 1 and `mixing` 0: the parts simply add up to the score.

    Attributes:
        dense: similarity by each head.
        keyword: keyword part of each head, already multiplied by its learned weight.
        head_weights: the weight of the document by each head.
        terms: for each (stemmed) query term that the document holds its part of `keyword`, by head: the
            terms' parts of a head add up to that head's keyword part.
        shares: how much of the document's weight comes from each head; they sum to 1.
        mixing: what comparing several heads adds to the score; see `engine/explaining.py`.
        null_weight: that of "nothing fits", which all documents leave; None where the model has no slot.
        learned: what training changed; None for the untrained model, and where it cannot be told (models
            with documents of their own, shards).
    """

    dense: list[float]
    keyword: list[float]
    head_weights: list[float]
    terms: dict[str, list[float]] = field(default_factory=dict)
    shares: list[float] = field(default_factory=lambda: [1.0])
    mixing: float = 0.0
    null_weight: float | None = None
    learned: Learned | None = None


@dataclass(frozen=True, slots=True)
class Highlight:
    """A piece of a document that shows what the query asked for.

    All offsets count characters (code points) of the field as it is stored.

    Attributes:
        field: where it stands.
        start: its first character.
        text: the piece itself.
        spans: [start, end) of each term of the query in it.
    """

    field: Literal["title", "text"]
    start: int
    text: str
    spans: list[tuple[int, int]]


@dataclass(frozen=True, slots=True)
class Passage:
    """The part of a long document that its similarity to the query comes from: the best of its passages.

    Attributes:
        ordinal: which of the document's passages, from 0.
        start: its first character in the document's text; offsets count characters (code points).
        end: the one behind its last.
        text: `document.text[start:end]`.
    """

    ordinal: int
    start: int
    end: int
    text: str


@dataclass(frozen=True, slots=True)
class Hit:
    """One returned document: `weight` is its share of the attention; hits are ordered by `score`.

    `passage` is there when the document is long and similarity had a part in the search.
    """

    rank: int
    id: str
    weight: float
    score: float
    title: str
    text: str
    metadata: dict[str, Any] = field(default_factory=dict)
    explain: Explanation | None = None
    highlights: list[Highlight] | None = None
    passage: Passage | None = None


@dataclass(frozen=True, slots=True)
class AttentionSummary:
    """How the attention was spread: candidates seen, entropy in nats, share of the exact softmax they hold.

    `covered_mass` is 1 when the candidates are the whole corpus and None when it was not computed;
    `null_weight` is that of "nothing fits", which the documents leave, and None where the model has no slot.
    """

    candidates: int
    entropy: float
    covered_mass: float | None = None
    null_weight: float | None = None


@dataclass(frozen=True, slots=True)
class SearchResult:
    """The answer to one query; `next_cursor` asks for the hits behind these, in the same ranking.

    `query_id` names the answer of a server in feedback. `missing` is the share of the collection's documents
    that could not be asked: shards of a cluster that were down, where a partial answer was wanted.
    """

    query: str
    hits: list[Hit]
    stamp: Stamp
    attention: AttentionSummary
    took_ms: float
    next_cursor: str | None = None
    query_id: str | None = None
    missing: float = 0.0


@dataclass(frozen=True, slots=True)
class Progress:
    """A step of long work: `done` of `total` units after `elapsed_s` seconds."""

    stage: str
    done: int
    total: int
    elapsed_s: float
