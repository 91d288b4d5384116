"""What shards are asked and what they answer: plain records of arrays, which travel packed (packing.py)."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from jaxtyping import Float32, Int64

from dsearch.store.filters.parse import Filter
from dsearch.types import Document, Highlight, Mode, Passage


@dataclass(frozen=True, slots=True)
class Showing:
    """Hits of one shard to be shown, each with its query.

    Attributes:
        positions: in the whole generation.
        keys: the shard's number of the key that each was found by; None where documents have but one.
        queries: for each hit the words of its query; None without.
        explain: whether the share of each word is wanted.
        highlight: whether the pieces that show the words are.
        weighting: (k1, b) of what is explained; None for those of the generation.
    """

    positions: list[int]
    keys: list[int] | None
    queries: list[str] | None
    explain: bool
    highlight: bool
    weighting: tuple[float, float] | None = None


@dataclass(frozen=True, slots=True)
class Shown:
    """A document as its shard shows it."""

    document: Document
    passage: Passage | None
    terms: dict[str, float]
    highlights: list[Highlight] | None


@dataclass(frozen=True, slots=True)
class Foremost:
    """What a shard shows at once of the candidates that it finds best, so that it is seldom asked again.

    Attributes:
        most: how many.
        words: those of the query that are explained or highlighted; None without.
        explain: as of `Showing`.
        highlight: as of `Showing`.
    """

    most: int
    words: str | None
    explain: bool
    highlight: bool


@dataclass(frozen=True, slots=True)
class Question:
    """Queries after projection and folding: a shard needs no model to answer them.

    Attributes:
        folded: the queries of all heads, against stored embeddings.
        texts: the words of each query; None leaves the keyword leg out.
        mode: the legs.
        candidates: how many each leg proposes for each head.
        filter: what documents must meet; None for all.
        required: phrases that documents must hold.
        excluded: phrases that they must not hold.
        partition: whether the partition function over all documents is wanted.
        keyword_weight: w_h; None where keywords have no part.
        temperature: t, for that.
        weighting: (k1, b) of the keyword score; None for those of the generation.
        foremost: what is shown at once, of a single query of a single head.
    """

    folded: Float32[np.ndarray, "batch heads encoder_dim"]
    texts: list[str] | None
    mode: Mode
    candidates: int
    filter: Filter | None
    required: tuple[str, ...]
    excluded: tuple[str, ...]
    partition: bool
    keyword_weight: Float32[np.ndarray, " heads"] | None
    temperature: float
    weighting: tuple[float, float] | None = None
    foremost: Foremost | None = None


@dataclass(frozen=True, slots=True)
class Proposal:
    """The candidates of one shard.

    Attributes:
        documents: how many the question lets through, proposed or not.
        positions: in the whole generation, ascending, −1 behind them.
        dense: folded query · embedding, of long documents that of the best passage.
        keyword: b(q, d).
        keys: the shard's number of the key that each head took; None where every document has but one.
        partition: log Σ exp(logit) over all that the question lets through; None where it was not asked for.
        shown: what was wanted at once, by position.
    """

    documents: int
    positions: Int64[np.ndarray, "batch candidates"]
    dense: Float32[np.ndarray, "batch heads candidates"]
    keyword: Float32[np.ndarray, "batch candidates"]
    keys: Int64[np.ndarray, "batch heads candidates"] | None
    partition: Float32[np.ndarray, "batch heads"] | None
    shown: dict[int, Shown] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Pooling:
    """Candidates of one shard whose embeddings are to be pooled.

    Attributes:
        keys: the shard's numbers of the keys that heads took, −1 for none.
        logits: −inf where there is none.
    """

    keys: Int64[np.ndarray, "batch heads candidates"]
    logits: Float32[np.ndarray, "batch heads candidates"]


@dataclass(frozen=True, slots=True)
class Pooled:
    """The (max, sum, context) triple of one shard's candidates; `context` is a sum of embeddings."""

    max: Float32[np.ndarray, "batch heads"]
    sum: Float32[np.ndarray, "batch heads"]
    context: Float32[np.ndarray, "batch heads encoder_dim"]


@dataclass(frozen=True, slots=True)
class Attending:
    """Attention over every document of a shard; fields as of `Question`."""

    folded: Float32[np.ndarray, "batch heads encoder_dim"]
    texts: list[str] | None
    keyword_weight: Float32[np.ndarray, " heads"]
    temperature: float
    weighting: tuple[float, float] | None


@dataclass(frozen=True, slots=True)
class Part:
    """What it gives: context and log partition function of this shard alone, 0 and −inf of an empty one."""

    context: Float32[np.ndarray, "batch heads encoder_dim"]
    log_partition: Float32[np.ndarray, "batch heads"]


@dataclass(frozen=True, slots=True)
class Upstream:
    """The gradients of a loss with respect to what a shard gave."""

    asked: Attending
    context: Float32[np.ndarray, "batch heads encoder_dim"]
    log_partition: Float32[np.ndarray, "batch heads"]


@dataclass(frozen=True, slots=True)
class Gathering:
    """Documents of a shard by their positions in the whole generation, −1 for none, and words by row.

    `weighting` is (k1, b) of the keyword score; None for those of the generation.
    """

    positions: Int64[np.ndarray, "batch documents"]
    texts: list[str] | None
    weighting: tuple[float, float] | None = None


@dataclass(frozen=True, slots=True)
class Gathered:
    """Their embeddings and keyword scores, zeros at −1."""

    embeddings: Float32[np.ndarray, "batch documents encoder_dim"]
    keyword: Float32[np.ndarray, "batch documents"]
