"""Attention and its gradients on the search worker, and the encoding of both answers."""

from __future__ import annotations

from typing import Any

import numpy as np

from dsearch.engine import Collection, attention_parts
from dsearch.engine import vjp as vjp_of
from dsearch.results import Attention, Gradients
from dsearch.service.collections import Catalogue
from dsearch.service.schemas.attend import AttendRequest, Differentiable, VjpRequest, matrix
from dsearch.service.wire.json import stamped

MAX_JSON_VECTOR_BYTES = 16 * 1024 * 1024
MAX_TENSOR_BYTES = 128 * 1024 * 1024
_BY_HEAD = ("dense", "keyword", "head_weights", "slopes")
_NUMBERS = ("null_weight", "covered_mass")  # one a query
_BY_QUERY = (
    "context",
    "output",
    "weights",
    "scores",
    "keys",
    "values",
    *_BY_HEAD,
    *_NUMBERS,
    "memory",
    "positions",
)


def attend(
    catalogue: Catalogue, name: str, asked: AttendRequest, owner: str, largest_bytes: int
) -> Attention:
    """Attention of the queries, with what was asked for.

    Raises:
        DimensionMismatch: vectors of another length than the collection's embeddings.
        InvalidRequest: mode "keyword" with vectors alone, an answer above `largest_bytes`.
        ModelNotFound, Gone, Conflict.
    """
    with catalogue.whole(name, encoder=_encodes(asked)) as collection:
        return attention_parts(
            collection,
            asked.asked(collection.store.dimension, owner),
            include=set(asked.include),
            certify=asked.certify,
            largest_bytes=largest_bytes,
        )


def vjp(catalogue: Catalogue, name: str, asked: VjpRequest, owner: str) -> Gradients:
    """Gradients with respect to the query states and the head.

    Raises:
        As `attend`; and for gradients that do not fit what was asked.
    """
    with catalogue.whole(name, encoder=_encodes(asked)) as collection:
        return vjp_of(
            collection,
            asked.asked(collection.store.dimension, owner),
            context=_context(collection, asked),
            weights=asked.grad_weights,
            scores=asked.grad_scores,
        )


def attended_arrays(found: Attention) -> dict[str, np.ndarray]:
    """The arrays of an answer, each for all queries, zeros behind a query's last candidate."""
    arrays = {name: getattr(found, name) for name in (*_BY_QUERY, "mixture")}
    return {name: array for name, array in arrays.items() if array is not None}


def attended_facts(found: Attention) -> dict[str, Any]:
    """Return the fields of an answer that are not arrays."""
    facts: dict[str, Any] = {
        **stamped(found.stamp),
        "hops": found.hops,
        "temperature": found.temperature,
        "ids": found.ids,
        "candidates": found.candidates,
        "note": found.note,
        "draft": found.draft,
    }
    if found.texts is not None:
        facts["texts"] = found.texts
    return facts if found.certificates is None else facts | {"certificates": found.certificates}


def attended_json(found: Attention) -> dict[str, Any]:
    """An answer in JSON: a result for each query, its lists as long as it has candidates."""
    return {
        **stamped(found.stamp),
        "hops": found.hops,
        "temperature": found.temperature,
        "mixture": found.mixture,
        "note": found.note,
        "draft": found.draft,
        "results": [_result(found, query) for query in range(len(found.ids))],
    }


def _result(found: Attention, query: int) -> dict[str, Any]:
    ids = found.ids[query]
    result: dict[str, Any] = {"ids": ids}
    for name in _BY_QUERY:
        array = getattr(found, name)
        if array is None:
            continue
        row = array[query]
        if name in _NUMBERS:
            result[name] = float(row)
            continue
        if name in _BY_HEAD or row.ndim == 3:  # keys and values, too, where heads took different passages
            row = row[:, : len(ids)]
        elif name not in ("context", "output"):
            row = row[: len(ids)]
        result[name] = np.ascontiguousarray(row)
    if found.candidates is not None:
        result["candidates"] = found.candidates[query]
    if found.texts is not None:
        result["texts"] = found.texts[query]
    if found.certificates is not None:
        result["certificate"] = found.certificates[query]
    return result


def _context(collection: Collection, asked: VjpRequest) -> np.ndarray | None:
    if asked.grad_context is None:
        return None
    width = collection.store.dimension if asked.field is None else len(asked.grad_context[0])
    return matrix("grad_context", asked.grad_context, width)


def _encodes(asked: Differentiable) -> bool:
    return (
        asked.queries is not None
        and asked.vectors is None
        and asked.mode != "keyword"
        and asked.match_field is None
    )
