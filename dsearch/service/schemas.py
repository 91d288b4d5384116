"""Requests and answers as the OpenAPI document shows them.

Requests are checked with these; answers are written from plain objects (that is the quicker way) and tests
hold every answer against its model.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from dsearch.service.fields import Given, allowed
from dsearch.types import Document, Mode

MAX_LIMIT = 1000
MAX_OFFSET = 10_000
MAX_QUERY_CHARACTERS = 8192
MAX_QUERIES = 256
MAX_BATCH_HITS = 25_600
MAX_HOPS = 4

_STAMP = {"generation": 3, "model": "v1", "sequence": 120}
_HIT = {
    "rank": 1,
    "id": "q-mc2",
    "weight": 0.61,
    "score": 0.87,
    "title": "Queries, keys, values",
    "text": "Attention pools values by how well their keys agree with a query.",
    "metadata": {"year": 2017},
}
_ATTENTION = {"candidates": 182, "entropy": 1.35, "covered_mass": 0.998}
_SEARCH_ANSWER = {
    "query_id": "0d9f1f6ab8f14bb0a1b1a7a3d1a4c0de",
    **_STAMP,
    "took_ms": 9.4,
    "hits": [_HIT],
    "attention": _ATTENTION,
}
_COLLECTION = {
    "name": "papers",
    "documents": 5183,
    "pending": 0,
    **_STAMP,
    "encoder": {"name": "all-MiniLM-L6-v2", "dimension": 384},
}


def _example(example: Any, *others: Any) -> ConfigDict:
    return ConfigDict(json_schema_extra={"examples": [example, *others]})


def _words(text: str) -> str:
    if not text.strip():
        raise ValueError("empty")
    text.encode()  # a lone surrogate is no text, and its error is a ValueError
    return text


QueryText = Annotated[
    str,
    Field(min_length=1, max_length=MAX_QUERY_CHARACTERS),
    AfterValidator(_words),
    allowed(f"1 to {MAX_QUERY_CHARACTERS} characters, at least one word"),
]
Limit = Annotated[int, Field(ge=1, le=MAX_LIMIT), allowed(f"an integer from 1 to {MAX_LIMIT}")]
Offset = Annotated[int, Field(ge=0, le=MAX_OFFSET), allowed(f"an integer from 0 to {MAX_OFFSET}")]
SearchMode = Annotated[Mode, allowed("hybrid, dense or keyword")]
Version = Annotated[
    str, Field(pattern=r"^v[0-9]{1,9}$"), allowed("a registered version such as v1; v0 is untrained")
]
Hops = Annotated[int, Field(ge=1, le=MAX_HOPS), allowed(f"an integer from 1 to {MAX_HOPS}")]
HopStrength = Annotated[float, Field(ge=0, le=10), allowed("a number from 0 to 10")]
Number = Annotated[float, Field(allow_inf_nan=False)]
# Checked by pydantic alone: a Python call for each number would hold up the event loop.
Vector = Annotated[list[Number], Field(min_length=1, max_length=16_384)]


# ---- search


class SearchOptions(Given):
    """How to search."""

    limit: Limit = Field(10, description="hits wanted; fewer come when there are fewer documents")
    offset: Offset = Field(0, description="hits left out before the first")
    mode: SearchMode = Field("hybrid", description="by meaning and words, by meaning, or by words alone")
    model: Version | None = Field(None, description="a version; the live one when it is not given")
    explain: Annotated[bool, allowed("true or false")] = Field(
        False, description="whether hits carry the parts of their scores"
    )
    hops: Hops = Field(1, description="rounds of search; each refines the query by what the one before found")
    hop_strength: HopStrength | None = Field(
        None, description="g of the later rounds; the model's own if not given"
    )


class SearchRequest(SearchOptions):
    """One query."""

    model_config = ConfigDict(
        strict=True,
        json_schema_extra={
            "examples": [{"query": "how does attention pool values?", "limit": 10, "mode": "hybrid"}]
        },
    )

    query: QueryText


class SearchParameters(SearchOptions):
    """One query in the URL."""

    query: QueryText = Field(alias="q", description="the words to search for", examples=["attention pooling"])


class BatchRequest(SearchOptions):
    """Many queries with the same options."""

    model_config = ConfigDict(
        strict=True,
        json_schema_extra={"examples": [{"queries": ["what is a key?", "what is a value?"], "limit": 5}]},
    )

    queries: Annotated[list[QueryText], Field(min_length=1, max_length=MAX_QUERIES)]

    @model_validator(mode="after")
    def _bounded(self) -> Self:
        hits = len(self.queries) * (self.limit + self.offset)
        if hits > MAX_BATCH_HITS:
            raise ValueError(
                f"{len(self.queries)} queries of limit + offset {self.limit + self.offset} are {hits} hits; "
                f"use at most {MAX_BATCH_HITS} in one request"
            )
        return self


class Explanation(BaseModel):
    """The parts of a score, one number per head; with one head they sum to it."""

    dense: list[float]
    keyword: list[float]
    head_weights: list[float]


class Hit(BaseModel):
    """One found document."""

    model_config = _example(_HIT)

    rank: int = Field(description="counted from 1")
    id: str
    weight: float = Field(description="its share of the attention")
    score: float = Field(description="what hits are ordered by; higher is better")
    title: str
    text: str
    metadata: dict[str, Any]
    explain: Explanation | None = Field(None, description="when it was asked for")


class Attention(BaseModel):
    """How the attention was spread."""

    candidates: int = Field(description="documents that were weighed")
    entropy: float = Field(
        description="of the weights, in nats; its exponential is the number of documents in question"
    )
    covered_mass: float | None = Field(
        description="share of the exact softmax over all documents that they hold; null: not computed"
    )


class Stamped(BaseModel):
    """What an answer was computed from; equal stamps give equal answers."""

    generation: int
    model: str
    sequence: int


class SearchAnswer(Stamped):
    """The hits of one query."""

    model_config = _example(_SEARCH_ANSWER)

    query_id: str = Field(description="names this answer in feedback")
    took_ms: float = Field(description="from the parsed request to the answer, waiting included")
    hits: list[Hit]
    attention: Attention


class BatchAnswer(BaseModel):
    """One answer for each query, in their order, from one state."""

    model_config = _example({"took_ms": 11.2, "results": [_SEARCH_ANSWER]})

    took_ms: float
    results: list[SearchAnswer]


# ---- attend


class AttendRequest(Given):
    """Texts or vectors that attend to the documents."""

    model_config = ConfigDict(
        strict=True,
        json_schema_extra={
            "examples": [{"queries": ["what is a key?"], "candidates": 20, "include": ["values"]}]
        },
    )

    queries: Annotated[list[QueryText], Field(min_length=1, max_length=64)] | None = Field(
        None, description="texts; give these or vectors"
    )
    vectors: Annotated[list[Vector], Field(min_length=1, max_length=64)] | None = Field(
        None,
        description="query states [n, dimension], in place of what the encoder gives; they search densely",
    )
    mode: SearchMode = "hybrid"
    model: Version | None = None
    candidates: Annotated[int, Field(ge=1, le=MAX_LIMIT), allowed(f"an integer from 1 to {MAX_LIMIT}")] = (
        Field(100, description="documents that each leg proposes for each head")
    )
    hops: Hops = 1
    hop_strength: HopStrength | None = None
    include: list[Annotated[Literal["keys", "values"], allowed("keys, values or both")]] = Field(
        [], description="what to answer of each candidate besides id, weight and score"
    )

    @model_validator(mode="after")
    def _one_kind(self) -> Self:
        if (self.queries is None) == (self.vectors is None):
            given = "neither queries nor vectors" if self.queries is None else "queries and vectors"
            raise ValueError(f"{given}; give one of the two")
        return self


class AttendedQuery(BaseModel):
    """Attention of one query. Lists of candidates are in the same order, best first."""

    ids: list[str]
    weights: list[float]
    scores: list[float]
    context: list[float] = Field(description="Σ weight · value")
    keys: list[list[float]] | None = Field(None, description="W_K e of each candidate, when asked for")
    values: list[list[float]] | None = Field(None, description="W_V e of each candidate, when asked for")


class AttendAnswer(Stamped):
    """Attention of each query."""

    model_config = _example(
        {
            **_STAMP,
            "took_ms": 8.8,
            "results": [
                {
                    "ids": ["q-mc2", "a-17"],
                    "weights": [0.7, 0.3],
                    "scores": [0.87, 0.83],
                    "context": [0.11, -0.04],
                }
            ],
        }
    )

    took_ms: float
    results: list[AttendedQuery]


# ---- documents


class DocumentGiven(Given):
    """A document to store."""

    model_config = ConfigDict(
        strict=True,
        json_schema_extra={
            "examples": [
                {
                    "id": "q-mc2",
                    "title": "Queries, keys, values",
                    "text": "Attention pools …",
                    "metadata": {"year": 2017},
                }
            ]
        },
    )

    id: Annotated[str, Field(min_length=1), allowed("a string of 1 to 512 bytes")]
    text: Annotated[str, allowed("a string of at most 1 MiB")] = ""
    title: Annotated[str, allowed("a string of at most 64 KiB")] = ""
    metadata: Annotated[dict[str, Any], allowed("an object of JSON values")] = Field(
        {}, description="any JSON object"
    )
    value: Annotated[Number | list[Number] | None, allowed("a finite number or a list of them")] = Field(
        None, description="what attention can pool"
    )

    def document(self) -> Document:
        """As the engine takes it."""
        return Document(self.id, self.text, self.title, self.metadata, self.value)


class DocumentStored(BaseModel):
    """A stored document."""

    model_config = _example({**{k: _HIT[k] for k in ("id", "title", "text", "metadata")}, "value": None})

    id: str
    title: str
    text: str
    metadata: dict[str, Any]
    value: float | list[float] | None


class DocumentPage(BaseModel):
    """Documents by id, and where to go on."""

    model_config = _example(
        {
            "documents": [{**{k: _HIT[k] for k in ("id", "title", "text", "metadata")}, "value": None}],
            "next": "cS1tYzI",
        }
    )

    documents: list[DocumentStored]
    next: str | None = Field(description="the cursor of the next page; null: this was the last")


class LineProblem(BaseModel):
    """A line of a stream that was not stored."""

    line: int = Field(description="counted from 1")
    code: str
    detail: str


class Written(BaseModel):
    """An acknowledged write: it is durable, and found by every later search."""

    model_config = _example(
        {"sequence": 121, "inserted": 2, "updated": 0, "unchanged": 1, "problems": [], "refused": 0}
    )

    sequence: int
    inserted: int
    updated: int
    unchanged: int
    refused: int = Field(description="lines of a stream that were not stored")
    problems: list[LineProblem] = Field(description="the first hundred of them")


class Deleted(BaseModel):
    """An acknowledged deletion."""

    model_config = _example({"sequence": 122, "deleted": 1})

    sequence: int
    deleted: int


# ---- collections and models


class CollectionDescribed(Stamped):
    """What a collection is and holds."""

    model_config = _example(_COLLECTION)

    name: str
    documents: int
    pending: int = Field(description="documents without an embedding yet: not searchable")
    encoder: dict[str, Any]


class CollectionDamaged(BaseModel):
    """A collection that cannot be opened."""

    name: str
    problem: dict[str, str]


class CollectionList(BaseModel):
    """Every collection."""

    model_config = _example({"collections": [_COLLECTION]})

    collections: list[CollectionDescribed | CollectionDamaged]


class ModelDescribed(BaseModel):
    """One version."""

    version: str
    parent: str | None = Field(description="the version that it was trained from")
    live: bool = Field(description="whether it answers when no version is asked for")
    record: dict[str, Any] = Field(description="scores on the gate, training data, seed")


class ModelList(BaseModel):
    """The versions of a collection; v0 is the untrained one."""

    model_config = _example(
        {"live": "v1", "models": [{"version": "v0", "parent": None, "live": False, "record": {}}]}
    )

    live: str
    models: list[ModelDescribed]


class Promoted(BaseModel):
    """The version that answers from now on, and the one that did."""

    model_config = _example({"model": "v2", "previous": "v1", "sequence": 130})

    model: str
    previous: str
    sequence: int


class Health(BaseModel):
    """Whether the process lives, or is ready."""

    model_config = _example({"status": "ok"})

    status: Literal["ok", "ready"]
