"""Answers as the OpenAPI document shows them.

A result of a call is a dataclass of `dsearch.types` or `dsearch.results`: orjson writes it, and its docstring
describes it here too. The answers below differ from what Python gets: the members of the stamp stand beside
the others, and lists take the place of arrays. They are written from plain objects, which is faster; tests
compare every answer with its shape.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, replace
from typing import Any, Literal

from dsearch.engine.feedback import RandomPair
from dsearch.results import CollectionDamaged, CollectionInfo, FieldPrediction
from dsearch.service.wire.json import new_id, stamped
from dsearch.types import (
    ROOT_KEYS,
    AttentionSummary,
    Confidence,
    Document,
    Hit,
    PendingDocuments,
    SearchResult,
    Stamp,
)

_FIELD, _ROOT = ROOT_KEYS


@dataclass(frozen=True, kw_only=True)
class SearchAnswer(Stamp):
    """The hits of one query.

    Attributes:
        query_id: identifies this answer in feedback.
        took_ms: from the parsed request to the answer, waiting included.
        hits: best first.
        next_cursor: cursor of the next page of the same ranking; null: these were the last hits.
        explored: positions that were left to a coin; null: none.
        attention: summary of the attention.
        partial: true if shards of a cluster were down; left out otherwise.
        missing: the share of the documents that could not be searched then.
        waiting: documents that no search finds yet; left out if there are none.
        confidence: whether the first hit is right; left out for a model without a calibration, and for other
            than hybrid searches.
    """

    query_id: str
    took_ms: float
    hits: list[Hit]
    next_cursor: str | None
    explored: RandomPair | None
    attention: AttentionSummary
    partial: bool = False
    missing: float = 0.0
    waiting: PendingDocuments | None = None
    confidence: Confidence | None = None


def search_answer(
    result: SearchResult, took_ms: float, query_id: str | None = None, drawn: RandomPair | None = None
) -> dict[str, Any]:
    """`SearchAnswer`, as it is written.

    Args:
        result: the hits, as they are shown.
        took_ms: duration of the whole request.
        query_id: where the page is remembered for feedback; a new one when None.
        drawn: positions that were left to a coin.
    """
    return {
        "query_id": query_id or new_id(),
        **stamped(result.stamp),
        "took_ms": took_ms,
        "hits": [hit.to_dict() | {"metadata": public_metadata(hit.metadata)} for hit in result.hits],
        "next_cursor": result.next_cursor,
        "explored": drawn,
        **({"partial": True, "missing": result.missing} if result.missing else {}),
        **({"waiting": result.waiting} if result.waiting else {}),
        **({"confidence": result.confidence} if result.confidence else {}),
        "attention": result.attention,
    }


@dataclass(frozen=True)
class BatchAnswer:
    """One answer for each query, in their order, from one state."""

    took_ms: float
    results: list[SearchAnswer]


@dataclass(frozen=True)
class AttendedQuery:
    """Attention of one query. Lists of candidates are in the same order, best first.

    Attributes:
        ids: of the candidates.
        weights: of the candidates.
        scores: of the candidates.
        context: Σ weight · value.
        output: W_O context + b, if the model has an output projection.
        keys: W_K e of each candidate, if included; by head where several heads may take different passages of
            long documents.
        values: W_V e of each candidate, likewise.
        dense: of each head and candidate; with `parts`.
        keyword: times its learned weight; with `parts`.
        head_weights: each head's softmax; with `parts`.
        slopes: ∂ dense / ∂ query state of each head and candidate, if included; null with hops.
        memory: part from past queries, if the model has a query memory; with `parts`.
        candidates: number of documents that share the attention; over all documents more than are listed.
        covered_mass: share of the attention over all documents that they hold; an estimate above 20,000.
        positions: of each candidate in the state that answered, if included.
        texts: title and text of each candidate, if included.
        mixtures: share of each head for this query, if the model re-weights its heads by the query.
    """

    ids: list[str]
    weights: list[float]
    scores: list[float]
    context: list[float]
    keys: list[list[float]] | list[list[list[float]]] | None = None
    values: list[list[float]] | list[list[list[float]]] | None = None
    dense: list[list[float]] | None = None
    keyword: list[list[float]] | None = None
    head_weights: list[list[float]] | None = None
    slopes: list[list[list[float]]] | None = None
    memory: list[float] | None = None
    candidates: int | None = None
    covered_mass: float | None = None
    output: list[float] | None = None
    positions: list[int] | None = None
    texts: list[str] | None = None
    mixtures: list[float] | None = None


@dataclass(frozen=True, kw_only=True)
class AttendAnswer(Stamp):
    """Attention of each query. As safetensors: an array for all queries, zeros behind the last candidate.

    Attributes:
        hops: rounds of search.
        temperature: divisor of the scores.
        mixture: the share of each head.
        note: what to know of the answer: queries without a document in reach, candidates that hold too little
            of the attention; or null.
        draft: draft head that answered, made from the model; or null.
    """

    hops: int
    temperature: float
    mixture: list[float]
    took_ms: float
    results: list[AttendedQuery]
    note: str | None = None
    draft: str | None = None


@dataclass(frozen=True, kw_only=True)
class VjpAnswer(Stamp):
    """Gradients of a loss with respect to the query states, the head, the bias and the table.

    Attributes:
        states: a gradient for each query, if included.
        head: a gradient for each tensor of the head, of its shape, if included.
        bias: a gradient for each position, if there is a bias and it is included.
        table: a gradient for each row, if there is a table and it is included.
    """

    took_ms: float
    states: list[list[float]] | None = None
    head: dict[str, Any] | None = None
    bias: list[float] | None = None
    table: list[list[float]] | None = None


@dataclass(frozen=True)
class LabelShare:
    """One label and its share of the weight."""

    label: str | bool
    share: float


@dataclass(frozen=True, slots=True)
class PredictionAnswer(FieldPrediction):
    """Prediction for one query; labels, largest share first, are a list: true is not "true"."""

    labels: list[LabelShare] | None  # pyright: ignore[reportIncompatibleVariableOverride]


def prediction_answer(prediction: FieldPrediction) -> PredictionAnswer:
    """`PredictionAnswer` of a prediction."""
    parts = {field.name: getattr(prediction, field.name) for field in dataclasses.fields(prediction)}
    if prediction.labels is not None:
        parts["labels"] = [LabelShare(label, share) for label, share in prediction.labels.items()]
    return PredictionAnswer(**parts)


@dataclass(frozen=True, kw_only=True)
class PredictAnswer(Stamp):
    """A prediction for each query.

    Attributes:
        note: what to know of the answer: queries without a document in reach, candidates that hold too little
            of the attention; or null.
    """

    took_ms: float
    results: list[PredictionAnswer]
    note: str | None = None


@dataclass(frozen=True)
class CollectionList:
    """Every collection."""

    collections: list[CollectionInfo | CollectionDamaged]


@dataclass(frozen=True)
class AliasList:
    """Every alias with its collection."""

    aliases: dict[str, str]


@dataclass(frozen=True)
class Health:
    """Liveness or readiness of the process."""

    status: Literal["ok", "ready"]


@dataclass(frozen=True)
class IndexDelta:
    """Documents written or deleted since the index was built, and their share of those it was built of."""

    documents: int
    share: float


@dataclass(frozen=True)
class GenerationInfo:
    """A generation of the index; `sequence` is the last operation that it contains."""

    number: int
    live: bool
    documents: int
    sequence: int
    bytes: int


@dataclass(frozen=True)
class StatisticsAnswer:
    """Statistics of a collection: contents and costs.

    Attributes:
        pending: documents without an embedding yet: not searchable.
        deleted: documents that are gone but whose bytes are not, until the files are compacted.
        model_problem: why the promoted version does not answer, and which one does; or null.
        encoder: its name, the back end that runs it now, why that is torch, if it is, and its prompts that
            are not used; null while none is loaded.
        keys: how the live generation keeps its keys, with recall, speed and size as measured.
        bytes: of all files.
        rebuild: the share from which on the index is rebuilt by itself, whether a build runs, how far it is,
            and why the last one failed.
    """

    name: str
    documents: int
    pending: int
    deleted: int
    sequence: int
    model: str
    model_problem: str | None
    models: int
    delta: IndexDelta
    encoder: dict[str, Any] | None
    keys: dict[str, Any] | None
    generations: list[GenerationInfo]
    bytes: int
    bytes_per_document: float | None
    rebuild: dict[str, Any]


def public_metadata(metadata: dict[str, Any]) -> dict[str, Any]:
    """Return the metadata without the folder of this machine that a document came from.

    The engine needs the folder to tell which documents are gone with their files. Clients learn a document's
    place in the folder (`path`), not where the folder lies: that tells names of users and of disks.

    Returns the same object if there is no folder.
    """
    own = metadata.get(_FIELD)
    if not isinstance(own, dict) or _ROOT not in own:
        return metadata
    return {**metadata, _FIELD: {name: value for name, value in own.items() if name != _ROOT}}


def public_document(document: Document) -> Document:
    """Return the document without the folder; the same object if it has none."""
    metadata = public_metadata(document.metadata)
    return document if metadata is document.metadata else replace(document, metadata=metadata)
