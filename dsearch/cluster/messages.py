"""Requests to shards and their replies: plain records of arrays, sent packed (packing.py).

Shards that do not respond raise an exception, before a caller decides how to proceed.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np
from jaxtyping import Bool, Float32, Int64

from dsearch.store.filters import Filter
from dsearch.types import Document, Highlight, Mode, Passage


class ShardsLost(Exception):  # caught within this package, never shown
    """Some shards of a release do not answer."""

    def __init__(self, numbers: Iterable[int]):
        super().__init__(f"shards {sorted(numbers)} do not answer")
        self.numbers = frozenset(numbers)


class NotOpen(Exception):  # caught within this package
    """A copy runs, but could not open its shard yet."""


@dataclass(frozen=True, slots=True)
class QueryText:
    """A query as the second stage takes it: its words, and the states of its tokens.

    Attributes:
        text: words.
        states: of the tokens, as the encoder gives them.
        spans: [start, end) of each in characters of the text.
    """

    text: str
    states: Float32[np.ndarray, "tokens encoder_dim"]
    spans: Int64[np.ndarray, "tokens 2"]


@dataclass(frozen=True, slots=True)
class MeaningRequest:
    """Request to highlight words by meaning.

    Attributes:
        queries: queries of a batch.
        numbers: of the query of each hit.
    """

    queries: list[QueryText]
    numbers: list[int]


@dataclass(frozen=True, slots=True)
class RescoreRequest:
    """Request to match queries with the documents of reranked candidates.

    Attributes:
        queries: queries of the batch.
        positions: candidates of each, in the whole generation, −1 for none.
        embeddings: whether to return the embeddings.
    """

    queries: list[QueryText]
    positions: Int64[np.ndarray, "batch reranked"]
    embeddings: bool


@dataclass(frozen=True, slots=True)
class RescoreResult:
    """Matches of queries with documents, in the order of the request.

    Attributes:
        matches: sharp, sum and lead of each (`Matches`).
        counts: tokens of each.
        present: False where tokens are not known.
        embeddings: of each document; None if they were not requested.
    """

    matches: Float32[np.ndarray, "batch reranked 3"]
    counts: Int64[np.ndarray, "batch reranked"]
    present: Bool[np.ndarray, "batch reranked"]
    embeddings: Float32[np.ndarray, "batch reranked encoder_dim"] | None


@dataclass(frozen=True, slots=True)
class HitRequest:
    """Request for documents of hits of one shard, each with its query.

    Attributes:
        positions: positions in the whole generation.
        keys: the shard's number of the key that found each hit; None if documents have only one.
        queries: words of the query, for each hit; None without.
        explain: whether to return the contribution of each word.
        highlight: whether to return the fragments that contain the words.
        weighting: (k1, b) of the explained score; None for those of the generation.
        meaning: highlights by meaning in place of those by words; None without.
    """

    positions: list[int]
    keys: list[int] | None
    queries: list[str] | None
    explain: bool
    highlight: bool
    weighting: tuple[float, float] | None = None
    meaning: MeaningRequest | None = None


@dataclass(frozen=True, slots=True)
class ShardHit:
    """A document of a hit, with its passage, explanation and highlights."""

    document: Document
    passage: Passage | None
    terms: dict[str, float]
    highlights: list[Highlight] | None


@dataclass(frozen=True, slots=True)
class HitPreview:
    """Request for documents of the best candidates together with the proposal, to avoid a second request.

    Attributes:
        most: maximum number of documents.
        words: words of the query to explain or highlight; None without.
        explain: as of `HitRequest`.
        highlight: as of `HitRequest`.
    """

    most: int
    words: str | None
    explain: bool
    highlight: bool


@dataclass(frozen=True, slots=True)
class MemoryContent:
    """A query memory on its way to a shard: its name, and the bytes of its file."""

    name: str
    content: bytes


@dataclass(frozen=True, slots=True)
class PastQueries:
    """Past queries that the queries of a request attend to.

    Attributes:
        name: of the memory; a shard that does not know it answers so, and gets it.
        rows: numbers of past queries.
        weights: γ a of each.
        borrowers: whether documents that borrow are proposed, too, as in a small collection.
    """

    name: str
    rows: Int64[np.ndarray, "batch near"]
    weights: Float32[np.ndarray, "batch near"]
    borrowers: bool


@dataclass(frozen=True, slots=True)
class ProposalRequest:
    """Queries after projection and folding: a shard needs no model to answer them.

    Attributes:
        folded: queries of all heads, folded to compare with stored embeddings.
        texts: words of each query; None omits the keyword leg.
        mode: legs of the search.
        candidates: number that each leg proposes for each head.
        filter: condition on documents; None for all.
        required: phrases that documents must contain.
        excluded: phrases that documents must not contain.
        partition: whether to compute the partition function over all documents.
        keyword_weight: w_h; None without keywords.
        temperature: t, for the partition function.
        weighting: (k1, b) of the keyword score; None for those of the generation.
        preview: documents to return at once, for a single query of a single head.
        past: past queries of the memory; None without one.
        collapse: whether to name the candidates' texts.
        depth: number that each leg proposes for each head to be listed behind the candidates; None for none.
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
    preview: HitPreview | None = None
    past: PastQueries | None = None
    collapse: bool = False
    depth: int | None = None


@dataclass(frozen=True, slots=True)
class Proposal:
    """The candidates of one shard.

    Attributes:
        documents: number of documents that the request admits, proposed or not.
        positions: positions in the whole generation, ascending, padded with −1.
        dense: folded query · embedding; of the best passage for long documents.
        keyword: b(q, d).
        keys: the shard's number of the key that each head chose; None if every document has only one.
        partition: log Σ exp(logit) over all admitted documents; None if it was not requested.
        hits: documents that `preview` requested, by position.
        memory: γ M(q, d); None without a memory.
        by_memory: candidates that its leg may propose.
        names: names of the candidates' texts, equal where these are, −1 for none; None if not requested.
        lacks_memory: True in place of candidates if the shard does not know the memory.
        has_tokens: whether the release has tokens of its documents.
        is_extra: True for documents behind the candidates, which only `depth` proposed; None without depth.
    """

    documents: int
    positions: Int64[np.ndarray, "batch candidates"]
    dense: Float32[np.ndarray, "batch heads candidates"]
    keyword: Float32[np.ndarray, "batch candidates"]
    keys: Int64[np.ndarray, "batch heads candidates"] | None
    partition: Float32[np.ndarray, "batch heads"] | None
    hits: dict[int, ShardHit] = field(default_factory=dict)
    memory: Float32[np.ndarray, "batch candidates"] | None = None
    by_memory: Bool[np.ndarray, "batch candidates"] | None = None
    names: Int64[np.ndarray, "batch candidates"] | None = None
    lacks_memory: bool = False
    has_tokens: bool = False
    is_extra: Bool[np.ndarray, "batch candidates"] | None = None


@dataclass(frozen=True, slots=True)
class PoolRequest:
    """Candidates of one shard whose embeddings are to be pooled.

    Attributes:
        keys: the shard's numbers of the keys that heads chose, −1 for none.
        logits: their logits, −inf for none.
    """

    keys: Int64[np.ndarray, "batch heads candidates"]
    logits: Float32[np.ndarray, "batch heads candidates"]


@dataclass(frozen=True, slots=True)
class PoolResult:
    """The (max, sum, context) triple of one shard's candidates; `context` is a sum of embeddings."""

    max: Float32[np.ndarray, "batch heads"]
    sum: Float32[np.ndarray, "batch heads"]
    context: Float32[np.ndarray, "batch heads encoder_dim"]


@dataclass(frozen=True, slots=True)
class ShardAttendRequest:
    """Attention over every document of a shard; fields as of `ProposalRequest`."""

    folded: Float32[np.ndarray, "batch heads encoder_dim"]
    texts: list[str] | None
    keyword_weight: Float32[np.ndarray, " heads"]
    temperature: float
    weighting: tuple[float, float] | None


@dataclass(frozen=True, slots=True)
class ShardAttention:
    """Reply to `ShardAttendRequest`: context and log partition of this shard; 0 and −inf of an empty one."""

    context: Float32[np.ndarray, "batch heads encoder_dim"]
    log_partition: Float32[np.ndarray, "batch heads"]


@dataclass(frozen=True, slots=True)
class ShardGradients:
    """The gradients of a loss with respect to a shard's `ShardAttention`."""

    request: ShardAttendRequest
    context: Float32[np.ndarray, "batch heads encoder_dim"]
    log_partition: Float32[np.ndarray, "batch heads"]


@dataclass(frozen=True, slots=True)
class GatherRequest:
    """Request for documents by positions in the whole generation, −1 for none, and the words of each row.

    `weighting` is (k1, b) of the keyword score; None for those of the generation.
    """

    positions: Int64[np.ndarray, "batch documents"]
    texts: list[str] | None
    weighting: tuple[float, float] | None = None


@dataclass(frozen=True, slots=True)
class GatherResult:
    """Embeddings and keyword scores of documents, zeros at −1."""

    embeddings: Float32[np.ndarray, "batch documents encoder_dim"]
    keyword: Float32[np.ndarray, "batch documents"]
