"""Attention and its gradients on the search worker, and the encoding of both answers."""

from __future__ import annotations

from typing import Any

import numpy as np

from dsearch.engine import Collection, attention_parts
from dsearch.engine import vjp as vjp_of
from dsearch.results import Attention, Gradients
from dsearch.service.collections import Catalogue
from dsearch.service.schemas.attend import (
    AttendRequest,
    Differentiable,
    VjpRequest,
    matrix,
)
from dsearch.service.wire.json import stamped

MAX_JSON_VECTOR_BYTES = 16 * 1024 * 1024
MAX_TENSOR_BYTES = 128 * 1024 * 1024
_BY_HEAD = ("dense", "keyword", "head_weights", "slopes")
_BY_QUERY = (
    "mixtures",
    "context",
    "output",
    "weights",
    "scores",
    "keys",
    "values",
    *_BY_HEAD,
    "covered_mass",
    "memory",
    "positions",
)


def attend(
    catalogue: Catalogue, name: str, request: AttendRequest, owner: str, largest_bytes: int
) -> Attention:
    """Attention of the queries, with what was asked for.

    Raises:
        DimensionMismatch: vectors of another length than the collection's embeddings.
        InvalidRequest: mode "keyword" with vectors alone, an answer above `largest_bytes`.
        ModelNotFound, Gone, Conflict.
    """
    with catalogue.whole(name, encoder=_encodes(request)) as collection:
        return attention_parts(
            collection,
            request.to_query(collection.store.dimension, owner),
            include=set(request.include),
            largest_bytes=largest_bytes,
        )


def vjp(catalogue: Catalogue, name: str, request: VjpRequest, owner: str) -> Gradients:
    """Gradients with respect to the query states and the head.

    Raises:
        As `attend`; and for gradients that do not fit what was asked.
    """
    with catalogue.whole(name, encoder=_encodes(request)) as collection:
        return vjp_of(
            collection,
            request.to_query(collection.store.dimension, owner),
            context=_context(collection, request),
            weights=request.grad_weights,
            scores=request.grad_scores,
        )


def attended_arrays(attention: Attention) -> dict[str, np.ndarray]:
    """The arrays of an answer, each for all queries, zeros behind a query's last candidate."""
    arrays = {name: getattr(attention, name) for name in (*_BY_QUERY, "mixture")}
    return {name: array for name, array in arrays.items() if array is not None}


def attended_facts(attention: Attention) -> dict[str, Any]:
    """Return the fields of an answer that are not arrays."""
    facts: dict[str, Any] = {
        **stamped(attention.stamp),
        "hops": attention.hops,
        "temperature": attention.temperature,
        "ids": attention.ids,
        "candidates": attention.candidates,
        "note": attention.note,
        "draft": attention.draft,
    }
    if attention.texts is not None:
        facts["texts"] = attention.texts
    return facts


def attended_json(attention: Attention) -> dict[str, Any]:
    """An answer in JSON: a result for each query, its lists as long as it has candidates."""
    return {
        **stamped(attention.stamp),
        "hops": attention.hops,
        "temperature": attention.temperature,
        "mixture": attention.mixture,
        "note": attention.note,
        "draft": attention.draft,
        "results": [_result(attention, query) for query in range(len(attention.ids))],
    }


def _result(attention: Attention, query: int) -> dict[str, Any]:
    ids = attention.ids[query]
    result: dict[str, Any] = {"ids": ids}
    for name in _BY_QUERY:
        array = getattr(attention, name)
        if array is None:
            continue
        row = array[query]
        if name == "covered_mass":
            result[name] = float(row)
            continue
        if name in _BY_HEAD or row.ndim == 3:  # keys and values, too, where heads took different passages
            row = row[:, : len(ids)]
        elif name not in ("context", "output", "mixtures"):
            row = row[: len(ids)]
        result[name] = np.ascontiguousarray(row)
    if attention.candidates is not None:
        result["candidates"] = attention.candidates[query]
    if attention.texts is not None:
        result["texts"] = attention.texts[query]
    return result


def _context(collection: Collection, request: VjpRequest) -> np.ndarray | None:
    if request.grad_context is None:
        return None
    own = request.field is None and request.table is None
    width = collection.store.dimension if own else len(request.grad_context[0])
    return matrix("grad_context", request.grad_context, width)


def _encodes(request: Differentiable) -> bool:
    return (
        request.queries is not None
        and request.vectors is None
        and request.mode != "keyword"
        and request.match_field is None
    )
