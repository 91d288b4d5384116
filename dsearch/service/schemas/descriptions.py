"""Descriptions and examples for the API's description, where declarations have none.

A field is described where it is declared, if more than its name is to be said. What remains, such as the
stamp of every answer, is said here once, by the field's name. `Shape.field` is that field of one shape only.
"""

from __future__ import annotations

import dataclasses
import inspect
from typing import Any

from dsearch import results, types
from dsearch.service.schemas import answers
from dsearch.service.schemas.declared import described

_LEFT_OUT = {"Hit": ("explain", "highlights", "passage", "duplicates"), "DeleteResult": ("missing",)}
"""Members of results that an answer leaves out where they say nothing."""


def describe(schemas: dict[str, Any]) -> None:
    """Complete the schemas of results and answers: fields by their docstrings, an example, `required`."""
    shapes: list[Any] = [
        *vars(types).values(),
        *vars(results).values(),
        *vars(answers).values(),
    ]
    answered: list[str] = []
    for shape in filter(inspect.isclass, shapes):
        schema = schemas.get(shape.__name__)
        if schema is None or not dataclasses.is_dataclass(shape):
            continue
        answered.append(shape.__name__)
        schema["description"], about = described(shape)
        for name, text in about.items():
            schema["properties"][name]["description"] = text
        if shape.__module__ != answers.__name__:
            left_out = _LEFT_OUT.get(shape.__name__, ())
            schema["required"] = [name for name in schema["properties"] if name not in left_out]
    for name, schema in schemas.items():
        if name in EXAMPLES:
            schema["examples"] = EXAMPLES[name]
        for field, about in schema.get("properties", {}).items():
            _complete(schemas, name, field, about)
    for name in answered:
        if "examples" not in schemas[name]:  # made of those of its fields
            schemas[name]["examples"] = [_by_type(schemas, {"$ref": f"#/components/schemas/{name}"})]


def describe_parameter(parameter: dict[str, Any]) -> None:
    """Give a parameter of a URL, or of a header, its description and an example."""
    name, schema = parameter["name"], parameter["schema"]
    if "description" not in parameter and name in DESCRIPTIONS:
        parameter["description"] = DESCRIPTIONS[name]
    value = _example_of({}, "", name, schema)
    if "examples" not in schema and value is not _NONE:
        schema["examples"] = [value]


def _complete(schemas: dict[str, Any], shape: str, field: str, about: dict[str, Any]) -> None:
    """Give a field what it lacks: a description, an example."""
    for name in (field, f"{shape}.{field}"):  # that of the shape goes before
        if name in DESCRIPTIONS and ("description" not in about or name != field):
            about["description"] = DESCRIPTIONS[name]
    if "examples" not in about and (value := _example_of(schemas, shape, field, about)) is not _NONE:
        about["examples"] = [value]


_NONE: Any = object()  # null is an example


def _example_of(schemas: dict[str, Any], shape: str, field: str, about: dict[str, Any]) -> Any:
    """An example of a field: of its shape's own, by its name, or else of its type."""
    if about.get("examples"):
        return about["examples"][0]
    for example in schemas.get(shape, {}).get("examples", ()):
        if example.get(field) is not None:
            return example[field]
    for name in (f"{shape}.{field}", field):
        if name in FIELD_EXAMPLES and _may_be(FIELD_EXAMPLES[name], about):
            return FIELD_EXAMPLES[name]
    return _by_type(schemas, about)


def _by_type(schemas: dict[str, Any], about: dict[str, Any]) -> Any:
    if "const" in about or "enum" in about:
        return about["const"] if "const" in about else about["enum"][0]
    if about.get("default") is not None:
        return about["default"]
    if "$ref" in about:
        name = about["$ref"].rpartition("/")[2]
        schema = schemas[name]
        if schema.get("examples"):
            return schema["examples"][0]
        parts = {
            field: _example_of(schemas, name, field, of) for field, of in schema.get("properties", {}).items()
        }
        return {field: value for field, value in parts.items() if value is not _NONE}
    for kind in (*about.get("anyOf", ()), *about.get("allOf", ())):
        if kind.get("type") != "null":
            return _by_type(schemas, kind)
    match about.get("type"):
        case "array":
            item = _by_type(schemas, about["items"]) if isinstance(about.get("items"), dict) else _NONE
            return _NONE if item is _NONE else [item]
        case "boolean":
            return True
        case "integer":
            return max(1, about.get("minimum", 0))
        case "number":
            return about.get("maximum", 0.5) / 2
        case _:
            return _NONE


def _may_be(value: Any, about: dict[str, Any]) -> bool:
    """True if a value is of a type that a field may have."""
    kinds = [about, *about.get("anyOf", ())]
    types = {kind["type"] for kind in kinds if "type" in kind} | (
        {"object"} if "$ref" in str(kinds) else set()
    )
    names = {str: "string", bool: "boolean", list: "array", dict: "object", type(None): "null"}
    own = names.get(type(value), "number")
    return not types or own in types or (own == "number" and "integer" in types and isinstance(value, int))


DESCRIPTIONS: dict[str, str] = {
    "action_name": "kind of the event",
    "alias": "other name of the collection",
    "aliases": "alias → collection",
    "bytes": "of its files",
    "bytes_per_document": "bytes of all files for each document; null without documents",
    "code": "short name of the problem",
    "collection": "name or alias of a collection",
    "collections": "all of them, by name",
    "data": "the entries, in order",
    "deleted": "number of documents that were deleted",
    "delta": "what was written since the live generation was built",
    "detail": "what is wrong, what is allowed and what to do",
    "difference": "how much the versions differ on it, 0 to 1",
    "document": "the document, if it was requested",
    "documents": "number of documents",
    "draft": "id of a draft head",
    "embedding": "its vector, or the bytes of its 32-bit numbers in base64",
    "event_attributes": "position of the document, and the like",
    "generation": "number of the index's build that answered",
    "generations": "builds of the index that are kept",
    "id": "identifies it: unique and exact",
    "index": "place in the request, from 0",
    "inserted": "number of new documents",
    "label": "value of the field",
    "line": "line of the request, from 1",
    "live": "whether it answers searches",
    "meta": "version of the API",
    "metadata": "fields of the document, any JSON",
    "model": "version of the model that answered",
    "models": "versions of the model",
    "name": "of the collection",
    "number": "counted from 1",
    "object": "kind of this object",
    "object_id": "id of the document",
    "owned_by": "always dsearch",
    "parent": "version that it was made from",
    "previous": "what it was before; null: nothing",
    "problem": "what is wrong with it",
    "prompt_tokens": "tokens of the input",
    "queries": "texts of the queries",
    "query": "words of the query",
    "results": "one for each query, in their order",
    "sequence": "number of the last operation on the documents that the answer knows",
    "share": "from 0 to 1",
    "status": "state of it",
    "tasks": "of this page, newest first",
    "text": "of the document",
    "title": "of the document; may be empty",
    "took_ms": "milliseconds from the parsed request to the answer",
    "total_tokens": "tokens of the request",
    "unchanged": "number of documents that were there already, as they are",
    "updated": "number of documents that were replaced",
    "usage": "tokens of the request",
    "value": "number or vector that attention can pool",
    "version": "of the model",
    "AttendAnswer.results": "attention of each query, in their order",
    "DocumentPage.documents": "of this page, in the order of their ids",
    "Evidence.value": "of the field in this document",
    "FacetValue.value": "a value of the field",
    "ModelObject.id": "name of a model, to be used in requests",
    "PredictionAnswer.kind": "number, vector or label",
    "Problem.status": "HTTP status",
    "QueriesToJudge.queries": "the most telling first",
    "RerankAnswer.id": "identifies the answer",
    "RerankResult.document": "the document, if return_documents was set",
    "StatisticsAnswer.models": "number of registered versions",
}

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
FIELD_EXAMPLES: dict[str, Any] = {
    "against": "v2",
    "alias": "papers",
    "aliases": {"papers": "papers-v2"},
    "application": "intranet",
    "arguments": ["-c", "papers"],
    "candidates": 100,
    "client_id": "laptop",
    "code": "invalid_request",
    "collection": "papers",
    "confidence": {
        "verdict": "likely",
        "probability": 0.82,
        "fitted_on": "judgements",
        "queries": 320,
        "floor": 0.61,
    },
    "context": [0.11, -0.04],
    "covered_mass": 0.998,
    "cursor": "173",
    "dense": [0.71],
    "detail": "limit=0; use an integer from 1 to 1000",
    "difference": 0.8,
    "dimensions": 384,
    "draft": "5f0d1c9a0f4b4f7e8f3f5d6c",
    "documents": 5183,
    "embedding": [0.11, -0.04],
    "encoder": {"name": "all-MiniLM-L6-v2", "dimension": 384},
    "entropy": 1.35,
    "episode": "task-17",
    "event_id": "a3f1c2",
    "exclude": ["a-17"],
    "facets": {"year": [{"value": 2017, "documents": 2}, {"value": 2018, "documents": 1}]},
    "field": "year",
    "fields": ["year"],
    "filter": {"year": {"gte": 2017}},
    "generation": 3,
    "group_by": "author.name",
    "head": {"keyword_weight": [0.1], "log_temperature": -0.4},
    "head_weights": [0.61],
    "hop_strength": 0.5,
    "hops": 2,
    "id": "q-mc2",
    "ids": ["q-mc2"],
    "among": ["q-mc2", "a-17"],
    "index": 0,
    "keyword": [0.16],
    "judgements": {"q1": {"q-mc2": 1.0}},
    "keys": [[0.12, -0.05]],
    "label": "transformer",
    "last-event-id": "12",
    "left_out": {"unknown documents": 1},
    "line": 7,
    "live": "v1",
    "match_field": "title",
    "max_chunks_per_doc": 10,
    "max_tokens_per_doc": 4096,
    "mean": 2016.4,
    "memory": 0.0,
    "memory_bytes": 1000000000,
    "metadata": {"year": 2017},
    "missing": 0.25,
    "model": "v1",
    "model_problem": "v3 has an overlay, which this release does not know; v2 answers",
    "name": "papers",
    "next": "173",
    "next_cursor": "WzEsMywidjEiLDEyMCwxMCwxMDAsIjFmYTQ5ZWQ1MDNmYTJkYzEiXQ",
    "none": True,
    "note": "the candidates hold .82 of the attention; raise candidates",
    "ordinal": 2,
    "output": [0.3, 0.7],
    "pair": [2, 3],
    "passages": {"tokens": 256, "overlap": 32},
    "parent": "v0",
    "part": 0.04,
    "partial": True,
    "position": 3,
    "previous": "v1",
    "priority": 0,
    "probability": 0.82,
    "problem": "a file is missing",
    "progress": {"stage": "train", "done": 12, "total": 30, "elapsed_s": 3.1, "eta_s": 4.65},
    "queries": ["what is a key?"],
    "query": "what is a key?",
    "query_id": "0d9f1f6ab8f14bb0a1b1a7a3d1a4c0de",
    "rank_fields": ["text"],
    "rebuild": {"share": 0.05, "running": False, "progress": None, "problem": None},
    "record": {"scope": "head"},
    "relevance_score": 0.87,
    "request_id": "6c0f3f1e2d4b4a1f",
    "return_documents": False,
    "reranker": "cross-encoder/ms-marco-MiniLM-L6-v2",
    "score": 0.87,
    "score_threshold": 0.5,
    "scores": [0.87, 0.83],
    "search_fields": ["authors"],
    "sequence": 120,
    "session_id": "s-42",
    "share": 0.3,
    "shares": [1.0],
    "slopes": [[[0.1, -0.2]]],
    "spans": [[0, 9]],
    "spread": 1.2,
    "teacher": {"q1": {"q-mc2": 0.9, "a-17": 0.1}},
    "temperature": 0.05,
    "terms": {"attent": [0.16]},
    "text": "Attention pools values by how well their keys agree with a query.",
    "texts": ["Keys are compared with queries."],
    "title": "Queries, keys, values",
    "trusted_keys": ["editors"],
    "user": "someone",
    "value": 2017,
    "values": [[0.3, 0.1]],
    "vectors": [[0.11, -0.04]],
    "version": "v1",
    "weight": 0.61,
    "weight_threshold": 0.05,
    "weights": [0.7, 0.3],
    "width": 0.5,
    "CollectionInfo.keys": _KEYS,
    "StatisticsAnswer.keys": _KEYS,
    "StatisticsAnswer.models": 2,
    "Command.name": "refresh",
    "Document.value": None,
    "Explanation.memory": 0.0,
    "AttendedQuery.memory": [0.0, 0.04],
    "VjpAnswer.bias": [0.02, -0.02, 0.0],
    "VjpAnswer.table": [[0.6], [0.3], [0.1]],
    "PastQuery.query": "what pools values",
    "TrainRequest.exclude": {"q1": ["a-17"]},
    "EvaluateRequest.training": {"q1": {"q-mc2": 1}},
    "AttendedQuery.dense": [[0.71, 0.69]],
    "AttendedQuery.keyword": [[0.16, 0.14]],
    "AttendedQuery.head_weights": [[0.7, 0.3]],
    "DifferentiateRequest.grad_context": [[1.0, 0.0]],
    "DifferentiateRequest.grad_scores": [[1.0, 0.0]],
    "RefreshRequest.queries": ["what is a key?"],
    "RerankResult.document": {"text": "Keys are compared with queries."},
    "CollectionDamaged.problem": {"code": "corrupt_data", "detail": "documents.db is damaged"},
    "Highlight.field": "text",
    "Problem.written": {"sequence": 121, "inserted": 2},
    "Task.ended": "2025-01-31T12:03:00.000+00:00",
    "Task.problem": {"code": "conflict", "detail": "the collection was deleted meanwhile"},
    "Task.result": {"model": "v2", "live": True},
    "OwnJudgements.queries": {"q1": "what pools values"},
    "QueriesToJudge.queries": [{"query": "what pools values", "difference": 0.8, "logged": True}],
    "TrainRequest.encoder_learning_rate": 0.0001,
    "bias": [0.5, 0.0, -0.5],
    "table": [[1.0], [0.0], [2.5]],
    "with_head": {"query_delta": [[0.01, -0.02], [0.0, 0.03]]},
}

_STAMP = {"generation": 3, "model": "v1", "sequence": 120}
_JUDGED = {
    "queries": {"q1": "what is a key?", "q2": "what is a value?"},
    "judgements": {"q1": {"a": 1}, "q2": {"b": 2, "a": 0}},
}
_HIT = {
    "rank": 1,
    "id": "q-mc2",
    "weight": 0.61,
    "score": 0.87,
    "title": "Queries, keys, values",
    "text": "Attention pools values by how well their keys agree with a query.",
    "metadata": {"year": 2017},
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
    "progress": FIELD_EXAMPLES["progress"],
    "result": None,
    "problem": None,
}
EXAMPLES: dict[str, list[Any]] = {
    "Hit": [_HIT],
    "SearchAnswer": [
        {
            "query_id": "0d9f1f6ab8f14bb0a1b1a7a3d1a4c0de",
            **_STAMP,
            "took_ms": 9.4,
            "hits": [_HIT],
            "next_cursor": FIELD_EXAMPLES["next_cursor"],
            "explored": None,
            "attention": {"candidates": 182, "entropy": 1.35, "covered_mass": 0.998},
        }
    ],
    "Task": [_TASK],
    "TaskPage": [{"tasks": [_TASK], "next": None}],
    "SearchRequest": [
        {"query": "how does attention pool values?", "limit": 10, "mode": "hybrid"},
        {
            "query": 'pooling "attention weights" -convolution',
            "filter": {"year": {"gte": 2017}},
            "highlight": True,
        },
    ],
    "SearchBatchRequest": [{"queries": ["what is a key?", "what is a value?"], "limit": 5}],
    "FindSimilarRequest": [
        {"like": ["q-mc2"], "limit": 5},
        {
            "like": ["q-mc2", "a-17"],
            "unlike": ["b-3"],
            "query": "pooling",
            "filter": {"year": {"gte": 2017}},
        },
    ],
    "PredictRequest": [{"queries": ["what is a key?"], "field": "year"}],
    "AttendRequest": [
        {"queries": ["what is a key?"], "candidates": 20, "include": ["values"]},
        {"queries": ["what is a key?"], "mode": "dense", "score": "gaussian", "width": 0.3},
    ],
    "DifferentiateRequest": [{"queries": ["what is a key?"], "stamp": _STAMP, "grad_weights": [[1.0, -1.0]]}],
    "ReportOutcomeRequest": [{"episode": "task-17", "useful_ids": ["d000"], "success": True}],
    "DocumentGiven": [
        {
            "id": "q-mc2",
            "title": "Queries, keys, values",
            "text": "Attention pools …",
            "metadata": {"year": 2017},
        }
    ],
    "CountFacetsRequest": [{"fields": ["year", "author.name"], "filter": {"year": {"gte": 2017}}}],
    "DeleteDocumentsRequest": [{"ids": ["q-mc2", "a-17"]}, {"filter": {"draft": {"eq": True}}}],
    "UpdateMetadataRequest": [{"metadata": {"year": 2018, "draft": None}}],
    "CutRequest": [{"tokens": 128, "overlap": 16}],
    "CreateCollectionRequest": [
        {"language": "german"},
        {"passages": {"tokens": 128, "overlap": 16}, "kind": "auto"},
        {"dimension": 512},
    ],
    "SetAliasRequest": [{"collection": "papers-v2"}],
    "TrainRequest": [
        _JUDGED,
        {"self_supervised": True},
        {"from": "feedback"},
        {"objective": "context", "field": "price"},
    ],
    "TuneRequest": [_JUDGED, {**_JUDGED, "exclude": {"q1": ["a"]}}],
    "RememberRequest": [_JUDGED],
    "RollbackRowsRequest": [{"sequence": 1}],
    "JudgeModelRequest": [{"before": [0.1, 0.4, 0.2], "after": [0.3, 0.5, 0.2], "measure": "log-likelihood"}],
    "RefreshRequest": [{"kind": "HNSW", "recall_target": 0.95}, {}],
    "MigrateRequest": [{"encoder": "all-mpnet-base-v2"}],
    "EvaluateRequest": [_JUDGED, {**_JUDGED, "systems": [{"model": "v0"}, {"model": "v0", "mode": "dense"}]}],
}
"""Examples of each request, and of some answers, by the name of their shape."""
