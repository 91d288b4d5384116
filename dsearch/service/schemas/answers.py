"""Answers as the OpenAPI document shows them.

A result of a call is a dataclass of `dsearch.types` or `dsearch.results`: orjson writes it, and its docstring
describes it here too. The answers below differ from what Python gets: the members of the stamp stand beside
the others, and lists take the place of arrays. They are written from plain objects, which is faster; tests
compare every answer with its shape.
"""

from __future__ import annotations

import dataclasses
import inspect
from dataclasses import dataclass
from typing import Any, Literal

from dsearch import results, types
from dsearch.engine.feedback import Drawn
from dsearch.results import CollectionDamaged, CollectionInfo, FieldPrediction, Proof
from dsearch.service.wire.json import new_id, stamped
from dsearch.types import AttentionSummary, Confidence, Hit, SearchResult, Stamp, Waiting


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
    explored: Drawn | None
    attention: AttentionSummary
    partial: bool = False
    missing: float = 0.0
    waiting: Waiting | None = None
    confidence: Confidence | None = None


def search_answer(
    result: SearchResult, took_ms: float, query_id: str | None = None, drawn: Drawn | None = None
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
        "hits": [hit.to_dict() for hit in result.hits],
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
        null_weight: weight of "nothing fits", if the model has a slot for it.
        memory: part from past queries, if the model has a query memory; with `parts`.
        certificate: if it was requested.
        candidates: number of documents that share the attention; over all documents more than are listed.
        covered_mass: share of the attention over all documents that they hold; an estimate above 20,000.
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
    null_weight: float | None = None
    memory: list[float] | None = None
    certificate: Proof | None = None
    candidates: int | None = None
    covered_mass: float | None = None
    output: list[float] | None = None


@dataclass(frozen=True, kw_only=True)
class AttendAnswer(Stamp):
    """Attention of each query. As safetensors: an array for all queries, zeros behind the last candidate.

    Attributes:
        hops: rounds of search.
        temperature: divisor of the scores.
        mixture: the share of each head.
        note: what to do where the candidates hold too little of the attention; or null.
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
    """Gradients of a loss with respect to the query states and the head.

    Attributes:
        states: a gradient for each query, if included.
        head: a gradient for each tensor of the head, of its shape, if included.
    """

    took_ms: float
    states: list[list[float]] | None = None
    head: dict[str, Any] | None = None


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
        note: what to do where the candidates hold too little of the attention; or null.
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
    """Liveness or readiness of the process.

    Attributes:
        damaged: number of open collections whose index is damaged; of GET /readyz.
    """

    status: Literal["ok", "ready"]
    damaged: int | None = None


@dataclass(frozen=True)
class Delta:
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
        encoder: its name, the back end that runs it now, and why that is torch, if it is; null while none is
            loaded.
        keys: how the live generation keeps its keys, with recall, speed and size as measured.
        bytes: of all files.
        rebuild: the share from which on the index is rebuilt by itself, whether a build runs, how far it is,
            and why the last one failed.
        verification: whether the index is what was written: unopened, running, proven or damaged; why not.
    """

    name: str
    documents: int
    pending: int
    deleted: int
    sequence: int
    model: str
    model_problem: str | None
    models: int
    delta: Delta
    encoder: dict[str, Any] | None
    keys: dict[str, Any] | None
    generations: list[GenerationInfo]
    bytes: int
    bytes_per_document: float | None
    rebuild: dict[str, Any]
    verification: dict[str, Any]


_LEFT_OUT = {"Hit": ("explain", "highlights", "passage"), "Deleted": ("missing",)}
"""Members of results that an answer leaves out where they say nothing."""


def describe(schemas: dict[str, Any]) -> None:
    """Complete the schemas of results and answers: fields by their docstrings, an example, `required`."""
    shapes: list[Any] = [*vars(types).values(), *vars(results).values(), *globals().values()]
    for shape in filter(inspect.isclass, shapes):
        schema = schemas.get(shape.__name__)
        if schema is None or not dataclasses.is_dataclass(shape):
            continue
        schema["description"], about = described(shape)
        for name, text in about.items():
            schema["properties"][name]["description"] = text
        if shape.__module__ != __name__:
            left_out = _LEFT_OUT.get(shape.__name__, ())
            schema["required"] = [name for name in schema["properties"] if name not in left_out]
        if shape.__name__ in EXAMPLES:
            schema["examples"] = [EXAMPLES[shape.__name__]]


def described(shape: type) -> tuple[str, dict[str, str]]:
    """The description of a dataclass, and that of each field under `Attributes:` of it and of its base."""
    text, about, names = "", dict[str, str](), list[str]()
    for one in reversed(shape.__mro__[:-1]):
        text, _, attributes = (inspect.getdoc(one) or "").partition("\n\nAttributes:\n")
        for line in attributes.splitlines():
            if line.startswith(" " * 8):
                about |= {name: f"{about[name]} {line.strip()}" for name in names}
            else:
                listed, _, said = line.strip().partition(": ")
                names = listed.split(", ")
                about |= dict.fromkeys(names, said)
    return text, about


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
_DOCUMENT = {**{name: _HIT[name] for name in ("id", "title", "text", "metadata")}, "value": None}
_KEYS = {
    "kind": "IVFPQ",
    "asked": "auto",
    "recall_target": 0.99,
    "memory_bytes": None,
    "parameters": {"nprobe": 24, "k_factor": 4},
    "recall_at_10": 0.991,
    "queries_per_s": 1450.0,
    "bytes_per_document": 496.2,
}
_SEARCH = {
    "query_id": "0d9f1f6ab8f14bb0a1b1a7a3d1a4c0de",
    **_STAMP,
    "took_ms": 9.4,
    "hits": [_HIT],
    "next_cursor": "WzEsMywidjEiLDEyMCwxMCwxMDAsIjFmYTQ5ZWQ1MDNmYTJkYzEiXQ",
    "explored": None,
    "attention": {"candidates": 182, "entropy": 1.35, "covered_mass": 0.998, "null_weight": None},
}
_PREDICTION = {
    "kind": "number",
    "mean": 2016.4,
    "spread": 1.2,
    "labels": None,
    "evidence": [{"id": "q-mc2", "weight": 0.7, "value": 2017}],
    "candidates": 2,
    "without_field": 1,
}
_COLLECTION = {
    "name": "papers",
    "documents": 5183,
    "pending": 0,
    **_STAMP,
    "predict_model": "v2",
    "model_problem": None,
    "encoder": {"name": "all-MiniLM-L6-v2", "dimension": 384},
    "language": "english",
    "passages": {"tokens": 256, "overlap": 32},
    "keys": _KEYS,
}
_TASK = {
    "id": "5f0d1c9a0f4b4f7e8f3f5d6c7b8a9012",
    "kind": "train",
    "collection": "papers",
    "state": "running",
    "created": "2025-01-31T12:00:00.000+00:00",
    "started": "2025-01-31T12:00:00.100+00:00",
    "ended": None,
    "attempts": 1,
    "progress": {"stage": "train", "done": 12, "total": 30, "elapsed_s": 3.1, "eta_s": 4.65},
    "result": None,
    "problem": None,
}
EXAMPLES: dict[str, Any] = {
    "Hit": _HIT,
    "SearchAnswer": _SEARCH,
    "BatchAnswer": {"took_ms": 11.2, "results": [_SEARCH]},
    "AttendAnswer": {
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
    },
    "VjpAnswer": {
        **_STAMP,
        "took_ms": 12.1,
        "states": [[0.01, -0.02]],
        "head": {"keyword_weight": [0.1], "log_temperature": -0.4},
    },
    "PredictAnswer": {**_STAMP, "took_ms": 8.8, "results": [_PREDICTION]},
    "CollectionInfo": _COLLECTION,
    "CollectionList": {"collections": [_COLLECTION]},
    "AliasList": {"aliases": {"papers": "papers-v2"}},
    "AliasSet": {"alias": "papers", "collection": "papers-v2", "previous": "papers-v1"},
    "Models": {
        "live": "v1",
        "models": [{"version": "v0", "parent": None, "live": False, "problem": None, "record": {}}],
        "predict": "v2",
    },
    "ModelAdded": {"model": "v3", "parent": "v2", "sequence": 131},
    "DraftAdded": {"draft": "5f0d1c9a0f4b4f7e8f3f5d6c", "parent": "v2", "size_bytes": 9, "expires_s": 600.0},
    "Promoted": {"model": "v2", "previous": "v1", "sequence": 130, "purpose": "search"},
    "Remembered": {
        "model": "v3",
        "previous": "v2",
        "queries": 2,
        "judgements": 3,
        "left_out": {"unknown documents": 1},
        "sequence": 131,
    },
    "Health": {"status": "ok"},
    "StatisticsAnswer": {
        "name": "papers",
        "documents": 5183,
        "pending": 0,
        "deleted": 12,
        "sequence": 120,
        "model": "v1",
        "model_problem": None,
        "models": 2,
        "delta": {"documents": 31, "share": 0.006},
        "encoder": {"name": "all-MiniLM-L6-v2", "runs_by": "openvino bfloat16", "note": None},
        "keys": _KEYS,
        "generations": [{"number": 3, "live": True, "documents": 5164, "sequence": 96, "bytes": 21000000}],
        "bytes": 42000000,
        "bytes_per_document": 8103.4,
        "rebuild": {"share": 0.05, "running": False, "progress": None, "problem": None},
        "verification": {"state": "proven", "problem": None},
    },
    "Document": _DOCUMENT,
    "DocumentPage": {"documents": [_DOCUMENT], "next": "cS1tYzI"},
    "Written": {"sequence": 121, "inserted": 2, "updated": 0, "unchanged": 1, "problems": [], "refused": 0},
    "Deleted": {"sequence": 122, "deleted": 2, "missing": 1},
    "Changed": {"sequence": 123, "id": "q-mc2", "metadata": {"year": 2018}},
    "Facets": {
        "documents": 3,
        "facets": {"year": [{"value": 2017, "documents": 2}, {"value": 2018, "documents": 1}]},
    },
    "Recorded": {"events": 2, "repeated": 0},
    "Task": _TASK,
    "TaskPage": {"tasks": [_TASK], "next": None},
}
"""An example of each answer, by the name of its shape."""
