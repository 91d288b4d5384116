"""Descriptions and examples of results and answers, for the API's description."""

from __future__ import annotations

import dataclasses
import inspect
from typing import Any

from dsearch import results, types
from dsearch.service.schemas import answers, field_texts

_LEFT_OUT = {"Hit": ("explain", "highlights", "passage", "duplicates"), "DeleteResult": ("missing",)}
"""Members of results that an answer leaves out where they say nothing."""


def describe(schemas: dict[str, Any]) -> None:
    """Complete the schemas of results and answers: fields by their docstrings, an example, `required`."""
    shapes: list[Any] = [
        *vars(types).values(),
        *vars(results).values(),
        *vars(answers).values(),
    ]
    for shape in filter(inspect.isclass, shapes):
        schema = schemas.get(shape.__name__)
        if schema is None or not dataclasses.is_dataclass(shape):
            continue
        schema["description"], about = described(shape)
        for name, text in about.items():
            schema["properties"][name]["description"] = text
        if shape.__module__ != answers.__name__:
            left_out = _LEFT_OUT.get(shape.__name__, ())
            schema["required"] = [name for name in schema["properties"] if name not in left_out]
        if shape.__name__ in EXAMPLES:
            schema["examples"] = [EXAMPLES[shape.__name__]]
    for name, schema in schemas.items():
        for field, about in schema.get("properties", {}).items():
            _complete(schemas, name, field, about)


def describe_parameter(parameter: dict[str, Any]) -> None:
    """Give a parameter of a URL, or of a header, its description and an example."""
    name, schema = parameter["name"], parameter["schema"]
    if "description" not in parameter and name in field_texts.DESCRIPTIONS:
        parameter["description"] = field_texts.DESCRIPTIONS[name]
    value = _example_of({}, "", name, schema)
    if "examples" not in schema and value is not _NONE:
        schema["examples"] = [value]


def _complete(schemas: dict[str, Any], shape: str, field: str, about: dict[str, Any]) -> None:
    """Give a field what it lacks: a description, an example."""
    texts = field_texts.DESCRIPTIONS
    for name in (field, f"{shape}.{field}"):  # that of the shape goes before
        if name in texts and ("description" not in about or name != field):
            about["description"] = texts[name]
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
        if name in field_texts.EXAMPLES and _may_be(field_texts.EXAMPLES[name], about):
            return field_texts.EXAMPLES[name]
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


def described(shape: type) -> tuple[str, dict[str, str]]:
    """The description of a dataclass, and that of each field under `Attributes:` of it and of its base."""
    text, about, names = "", dict[str, str](), list[str]()
    for base in reversed(shape.__mro__[:-1]):
        text, _, attributes = (inspect.getdoc(base) or "").partition("\n\nAttributes:\n")
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
    "attention": {"candidates": 182, "entropy": 1.35, "covered_mass": 0.998},
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
    "second_stage": False,
    "search_fields": ["authors"],
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
        "models": [
            {
                "version": "v0",
                "parent": None,
                "live": False,
                "problem": None,
                "record": {},
            }
        ],
    },
    "ModelAdded": {"model": "v3", "parent": "v2", "sequence": 131},
    "DraftAdded": {"draft": "5f0d1c9a0f4b4f7e8f3f5d6c", "parent": "v2", "size_bytes": 9, "expires_s": 600.0},
    "PromotionResult": {"model": "v2", "previous": "v1", "sequence": 130},
    "MemoryResult": {
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
        "encoder": {
            "name": "all-MiniLM-L6-v2",
            "runs_by": "openvino bfloat16",
            "note": None,
            "prompts": None,
        },
        "keys": _KEYS,
        "generations": [{"number": 3, "live": True, "documents": 5164, "sequence": 96, "bytes": 21000000}],
        "bytes": 42000000,
        "bytes_per_document": 8103.4,
        "rebuild": {"share": 0.05, "running": False, "progress": None, "problem": None},
    },
    "Document": _DOCUMENT,
    "DocumentPage": {"documents": [_DOCUMENT], "next": "cS1tYzI"},
    "WriteResult": {
        "sequence": 121,
        "inserted": 2,
        "updated": 0,
        "unchanged": 1,
        "problems": [],
        "refused": 0,
    },
    "DeleteResult": {"sequence": 122, "deleted": 2, "missing": 1, "note": None},
    "MetadataResult": {"sequence": 123, "id": "q-mc2", "metadata": {"year": 2018}},
    "Facets": {
        "documents": 3,
        "facets": {"year": [{"value": 2017, "documents": 2}, {"value": 2018, "documents": 1}]},
    },
    "FeedbackResult": {"events": 2, "repeated": 0},
    "OwnJudgements": {
        "queries": {"q1": "what pools values"},
        "judgements": {"q1": {"q-mc2": 1.0}},
        "answered": 1,
        "missing": 49,
    },
    "QueriesToJudge": {
        "model": "v1",
        "against": "v2",
        "queries": [{"query": "what pools values", "difference": 0.8, "logged": True}],
    },
    "RowsDropped": {"dropped": 2, "remaining": 5, "sequence": 131},
    "Task": _TASK,
    "TaskPage": {"tasks": [_TASK], "next": None},
}
"""An example of each answer, by the name of its shape."""
