"""Shared data types: plain, frozen, free of torch and faiss."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from dsearch.errors import Command

if TYPE_CHECKING:
    pass

Mode = Literal["hybrid", "dense", "keyword"]
Verdict = Literal["likely", "possible", "unlikely", "nothing fits"]
TaskState = Literal["queued", "running", "done", "failed", "cancelled", "interrupted"]
CLIENT = "client:"  # before a client's id where it stands for a key
FILE_FIELD = "_file"
ROOT_KEYS = (FILE_FIELD, "root")
"""Place in the metadata of the folder that a document came from: a path of the machine that indexed it.

No answer over HTTP shows it, and no field or filter names it but a deletion's.
"""


def id_text(id: object) -> object:
    """Return the id of a document as text where it is an integer of 64 bits, as it is otherwise."""
    if isinstance(id, int) and not isinstance(id, bool) and -(2**63) <= id < 2**64:
        return str(id)
    return id


@dataclass(frozen=True, slots=True)
class Document:
    """One retrievable text. `value` is an optional number or vector that attention can pool.

    With an embedding of its own (`EmbeddedDocument`) it needs neither title nor text: vectors find it, words
    never do.
    """

    id: str
    text: str = ""
    title: str = ""
    metadata: dict[str, Any] = field(default_factory=dict)
    value: float | list[float] | None = None

    @property
    def content(self) -> str:
        """Text to encode and index: title and text, joined by a space."""
        return f"{self.title} {self.text}".strip()


@dataclass(frozen=True, slots=True)
class EmbeddedDocument(Document):
    """A document with an embedding of the caller's own; see `SearchEngine.create(dimension=…)`.

    It is scaled to length 1. None keeps the one that is stored, while title and text stay.
    """

    embedding: Sequence[float] | None = None


def document_members(content: Mapping[str, Any]) -> dict[str, Any]:
    """Return the members of a document, with those of other names in its metadata.

    Raises:
        ValueError: one of these is in the metadata too.
    """
    names = EmbeddedDocument.__dataclass_fields__
    flat = {name: value for name, value in content.items() if name not in names}
    if not flat:
        return dict(content)
    metadata = content.get("metadata") or {}
    if not isinstance(metadata, Mapping):
        return dict(content)  # refused as what it is
    if twice := [name for name in flat if name in metadata]:
        raise ValueError(f"{twice[0][:80]!r} stands in the metadata and beside them; give it once")
    own = {name: value for name, value in content.items() if name in names}
    return {**own, "metadata": {**metadata, **flat}}


@dataclass(frozen=True, slots=True)
class Query:
    """A query of a test collection."""

    id: str
    text: str


def query_name(text: str) -> str:
    """Normalise a query: queries that differ only in case and spaces get the same name."""
    return " ".join(text.casefold().split())


@dataclass(frozen=True, slots=True)
class Stamp:
    """Versions of the data behind an answer. Equal stamps give equal answers."""

    generation: int
    model: str
    sequence: int


@dataclass(frozen=True, slots=True)
class PastQuery:
    """A judged query of the model's memory that raised a hit.

    Attributes:
        query: its text; None if it is not stored.
        part: its part of the score.
    """

    query: str | None
    part: float


@dataclass(frozen=True, slots=True)
class Explanation:
    """The parts of one hit's score.

    `score = Σ_h shares_h (dense_h + keyword_h) + memory + second_stage + reranker + mixing`.

    With one head the share is 1 and `mixing` 0: the parts simply add up to the score.

    Attributes:
        dense: similarity by each head.
        keyword: keyword part of each head, already multiplied by its learned weight.
        head_weights: the weight of the document by each head.
        terms: for each (stemmed) query term that the document holds its part of `keyword`, by head: the
            terms' parts of a head add up to that head's keyword part.
        shares: share of the document's weight by each head; they sum to 1.
        mixing: term of the score from the comparison of several heads.
        memory: part from judged queries that are like this one; 0 without a query memory.
        past_queries: the queries behind it, the largest part first.
        second_stage: part from the tokens of query and document; 0 without a second stage. Of a document
            that it did not look at, what keeps it below all those that it did.
        reranker: part from the second stage's reranker; 0 without one, and outside the reranked documents.
    """

    dense: list[float]
    keyword: list[float]
    head_weights: list[float]
    terms: dict[str, list[float]] = field(default_factory=dict)
    shares: list[float] = field(default_factory=lambda: [1.0])
    mixing: float = 0.0
    memory: float = 0.0
    past_queries: list[PastQuery] = field(default_factory=list["PastQuery"])
    second_stage: float = 0.0
    reranker: float = 0.0


@dataclass(frozen=True, slots=True)
class Highlight:
    """Piece of a document that matches terms of the query.

    All offsets count characters (code points) of the field as it is stored.

    Attributes:
        field: field that contains it.
        start: offset of its first character.
        text: text of the piece.
        spans: [start, end) of each term of the query in it; by meaning, of each word that matches one.
        by: "words" of the query, or the "meaning" that the second stage matches.
    """

    field: Literal["title", "text"]
    start: int
    text: str
    spans: list[tuple[int, int]]
    by: Literal["words", "meaning"] = "words"


@dataclass(frozen=True, slots=True)
class Passage:
    """The part of a long document that its similarity to the query comes from: the best of its passages.

    Attributes:
        ordinal: number of the passage in the document, from 0.
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
    """One returned document.

    Attributes:
        rank: position in the ranking, from 1.
        weight: its share of the attention, the same for every limit (guide `attention`).
        score: hits are ordered by it; higher is better.
        explain: parts of the score, if requested.
        highlights: pieces of the document that match the query, if requested.
        passage: of a long document the passage that its similarity comes from.
        duplicates: number of further candidates with the same text, which collapse leaves out.
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
    duplicates: int = 0

    def to_dict(self) -> dict[str, Any]:
        """The members as JSON names them, without those that were not requested; values as they are."""
        always = ("rank", "id", "weight", "score", "title", "text", "metadata")
        members: dict[str, Any] = {name: getattr(self, name) for name in always}
        for name in ("explain", "highlights", "passage"):
            if (part := getattr(self, name)) is not None:
                members[name] = part
        if self.duplicates:
            members["duplicates"] = self.duplicates
        return members


@dataclass(frozen=True, slots=True)
class AttentionSummary:
    """Summary of the attention of one query.

    Attributes:
        candidates: number of documents that share the attention, the same for every limit.
        entropy: entropy of the weights in nats; its exponential is an effective number of documents.
        covered_mass: share of the exact softmax over all documents that the candidates hold; null: not
            computed.
    """

    candidates: int
    entropy: float
    covered_mass: float | None = None


@dataclass(frozen=True, slots=True)
class Confidence:
    """Estimate of whether the first hit is right. It is no share of attention, which divides among hits.

    Attributes:
        verdict: "likely", "possible" or "unlikely" to be right; "nothing fits" where the query is like those
            that no document answers.
        probability: of the first hit being right, calibrated on judgements; null: there were too few.
        fitted_on: "judgements", or "documents" where queries were made from them.
        queries: number of queries that the estimate was fitted on.
        floor: hits of a lower score are less likely to be right.
    """

    verdict: Verdict
    probability: float | None
    fitted_on: Literal["judgements", "documents"]
    queries: int
    floor: float


@dataclass(frozen=True, slots=True)
class PendingDocuments:
    """Documents that no search finds yet, since indexing them was interrupted.

    Attributes:
        documents: number of them.
        hint: command that makes them searchable.
    """

    documents: int
    hint: Command


@dataclass(frozen=True, slots=True)
class SearchResult:
    """Answer to one query; `next_cursor` is the cursor of the next page of the same ranking.

    `query_id` identifies the answer of a server in feedback. `missing` is the share of the collection's
    documents that were not searched because their shards were down and a partial answer was allowed.
    `waiting` names documents that no search finds yet; None if there are none. `confidence` estimates whether
    the first hit is right; None for other than hybrid searches, for sorted ones, and without a calibration.
    """

    query: str
    hits: list[Hit]
    stamp: Stamp
    attention: AttentionSummary
    took_ms: float
    next_cursor: str | None = None
    query_id: str | None = None
    missing: float = 0.0
    waiting: PendingDocuments | None = None
    confidence: Confidence | None = None


@dataclass(frozen=True, slots=True)
class Progress:
    """A step of long work: `done` of `total` units after `elapsed_s` seconds."""

    stage: str
    done: int
    total: int
    elapsed_s: float
    share: float | None = None  # of the work that is done, where units differ in cost

    @property
    def seconds_left(self) -> float | None:
        """Estimate of the remaining time; None while nothing is done or the total is unknown."""
        share = self.share
        if share is None:
            share = self.done / self.total if self.total else 0.0
        return self.elapsed_s * (1 - share) / share if share > 0 else None


@dataclass(frozen=True, slots=True)
class FeedbackResult:
    """Acknowledged events of feedback: they are durable.

    Attributes:
        events: number of new ones.
        repeated: number of those sent before, which count once.
    """

    events: int
    repeated: int


@dataclass(frozen=True, slots=True)
class OwnJudgements:
    """Opinions of one person on documents, as training takes them.

    Attributes:
        queries: query id → text.
        judgements: query id → document id → grade.
        answered: number of these queries with a document that fits.
        missing: number of further ones until a training can be told from chance.
    """

    queries: dict[str, str]
    judgements: dict[str, dict[str, float]]
    answered: int
    missing: int


@dataclass(frozen=True, slots=True)
class QueryToJudge:
    """A query, and how much two versions differ on it: from 0 to 1.

    Attributes:
        logged: true if somebody asked it; false if it was made from a document.
    """

    query: str
    difference: float
    logged: bool


@dataclass(frozen=True, slots=True)
class QueriesToJudge:
    """Queries whose judgement would tell two versions apart, the most telling first.

    Attributes:
        model: the live version.
        against: the version that it is compared with; in words if there is no other.
    """

    model: str
    against: str
    queries: list[QueryToJudge]
