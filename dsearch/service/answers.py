"""What clients get, as the OpenAPI document shows it.

Answers are written from plain objects (that is the quicker way); tests hold every answer against its model.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

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
    "next_cursor": "WzEsMywidjEiLDEyMCwxMCwxMDAsIjFmYTQ5ZWQ1MDNmYTJkYzEiXQ",
    "explored": None,
    "attention": _ATTENTION,
}
_COLLECTION = {
    "name": "papers",
    "documents": 5183,
    "pending": 0,
    **_STAMP,
    "encoder": {"name": "all-MiniLM-L6-v2", "dimension": 384},
    "language": "english",
    "passages": {"tokens": 256, "overlap": 32},
    "keys": {
        "kind": "IVFPQ",
        "asked": "auto",
        "recall_target": 0.99,
        "memory_bytes": None,
        "parameters": {"nprobe": 24, "k_factor": 4},
        "recall_at_10": 0.991,
        "queries_per_s": 1450.0,
        "bytes_per_document": 496.2,
    },
}


def _example(example: Any, *others: Any) -> ConfigDict:
    return ConfigDict(json_schema_extra={"examples": [example, *others]})


class Explanation(BaseModel):
    """The parts of a score: Σ shares · (dense + keyword) over the heads, plus mixing: 0 with one head."""

    dense: list[float] = Field(description="similarity, by head")
    keyword: list[float] = Field(description="words, by head, times the learned weight")
    head_weights: list[float] = Field(description="weight of the document, by head")
    terms: dict[str, list[float]] = Field(
        description="each query term's part of keyword, by head; terms are stemmed, and sum to it"
    )
    shares: list[float] = Field(description="how much of the weight comes from each head")
    mixing: float = Field(description="what comparing several heads adds")


class Highlight(BaseModel):
    """A piece of a document around the query's words; offsets count characters (code points) of the field."""

    field: Literal["title", "text"]
    start: int = Field(description="the piece's first character")
    text: str = Field(description="the piece")
    spans: list[tuple[int, int]] = Field(description="[start, end) of each word of the query")


class Passage(BaseModel):
    """A part of a long document; offsets count characters (code points) of its text."""

    ordinal: int = Field(description="which of the document's passages, from 0")
    start: int = Field(description="its first character")
    end: int = Field(description="the one behind its last")
    text: str


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
    highlights: list[Highlight] | None = Field(None, description="when they were asked for")
    passage: Passage | None = Field(
        None, description="of a long document the part that its similarity comes from; left out for others"
    )


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


class Explored(BaseModel):
    """Two positions of a page that were left to a coin."""

    pair: list[int] = Field(description="counted from 1")
    swapped: bool = Field(description="whether the documents there changed places")


class SearchAnswer(Stamped):
    """The hits of one query."""

    model_config = _example(_SEARCH_ANSWER)

    query_id: str = Field(description="names this answer in feedback")
    took_ms: float = Field(description="from the parsed request to the answer, waiting included")
    hits: list[Hit]
    next_cursor: str | None = Field(
        description="asks for the hits behind these in the same ranking; null: these were the last"
    )
    explored: Explored | None = Field(description="positions that were left to a coin; null: none")
    attention: Attention


class BatchAnswer(BaseModel):
    """One answer for each query, in their order, from one state."""

    model_config = _example({"took_ms": 11.2, "results": [_SEARCH_ANSWER]})

    took_ms: float
    results: list[SearchAnswer]


class Certificate(BaseModel):
    """Whether the first places are provably those that scoring every document would give."""

    proved: bool
    reason: str = Field(description="what the proof rests on, or what it lacks")


class AttendedQuery(BaseModel):
    """Attention of one query. Lists of candidates are in the same order, best first."""

    ids: list[str]
    weights: list[float]
    scores: list[float]
    context: list[float] = Field(description="Σ weight · value")
    keys: list[list[float]] | list[list[list[float]]] | None = Field(
        None,
        description="W_K e of each candidate, when asked for; by head where several heads may take different "
        "passages of long documents",
    )
    values: list[list[float]] | list[list[list[float]]] | None = Field(
        None, description="W_V e of each candidate, likewise"
    )
    dense: list[list[float]] | None = Field(None, description="of each head and candidate; with `parts`")
    keyword: list[list[float]] | None = Field(None, description="times its learned weight; with `parts`")
    head_weights: list[list[float]] | None = Field(None, description="each head's softmax; with `parts`")
    slopes: list[list[list[float]]] | None = Field(
        None,
        description="∂ dense / ∂ query state of each head and candidate, when asked for; null with hops",
    )
    certificate: Certificate | None = Field(None, description="when it was asked for")


class AttendAnswer(Stamped):
    """Attention of each query. As safetensors: an array for all queries, zeros behind the last candidate."""

    model_config = _example(
        {
            **_STAMP,
            "hops": 1,
            "temperature": 0.05,
            "mixture": [1.0],
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

    hops: int = Field(description="rounds of search")
    temperature: float = Field(description="what scores were divided by")
    mixture: list[float] = Field(description="the share of each head")
    took_ms: float
    results: list[AttendedQuery]


class VjpAnswer(Stamped):
    """What a loss says to the query states and the head."""

    model_config = _example(
        {
            **_STAMP,
            "took_ms": 12.1,
            "states": [[0.01, -0.02]],
            "head": {"keyword_weight": [0.1], "log_temperature": -0.4},
        }
    )

    took_ms: float
    states: list[list[float]] | None = Field(None, description="a gradient for each query, when asked for")
    head: dict[str, Any] | None = Field(
        None, description="a gradient for each tensor of the head, of its shape, when asked for"
    )


class Evidence(BaseModel):
    """A document that a prediction came from."""

    id: str
    weight: float = Field(description="its share among the documents that have the field")
    value: Any


class LabelShare(BaseModel):
    """One label and its share of the weight."""

    label: str | bool
    share: float


class Prediction(BaseModel):
    """What one query predicts; all null when no candidate has the field."""

    kind: Literal["number", "vector", "label"] | None
    mean: float | list[float] | None
    spread: float | list[float] | None = Field(description="standard deviation around the mean")
    labels: list[LabelShare] | None = Field(description="largest first; shares sum to 1")
    evidence: list[Evidence]
    candidates: int = Field(description="documents that were pooled")
    without_field: int = Field(description="documents left out because they lack the field")


class PredictAnswer(Stamped):
    """A prediction for each query."""

    model_config = _example(
        {
            **_STAMP,
            "took_ms": 8.8,
            "results": [
                {
                    "kind": "number",
                    "mean": 2016.4,
                    "spread": 1.2,
                    "labels": None,
                    "evidence": [{"id": "q-mc2", "weight": 0.7, "value": 2017}],
                    "candidates": 2,
                    "without_field": 1,
                }
            ],
        }
    )

    took_ms: float
    results: list[Prediction]


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


class CollectionDescribed(Stamped):
    """What a collection is and holds."""

    model_config = _example(_COLLECTION)

    name: str
    documents: int
    pending: int = Field(description="documents without an embedding yet: not searchable")
    encoder: dict[str, Any]
    language: str = Field(description="how its texts are cut into words")
    passages: dict[str, Any] | None = Field(
        description="most tokens of a passage of a long document, and how many of them it shares with the "
        "one before; null: documents are not cut"
    )
    keys: dict[str, Any] | None = Field(
        description="how the index keeps its keys, what was asked for, and recall, speed and size as "
        "measured when it was built; null for an index of an older release"
    )


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


class ModelAdded(BaseModel):
    """A version that was handed in; it is not live."""

    model_config = _example({"model": "v3", "parent": "v2", "sequence": 131})

    model: str
    parent: str
    sequence: int


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
