"""Attention of queries over a collection: ids, weights, and context, of values of the caller's choice.

    context = Σ_d weight(q, d) v_d          v_d: W_V e, a field of the metadata, `value`, or a function's row

Of candidates only their own values are read; over all documents a field is read as a whole.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np
import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from dsearch.attention import pool
from dsearch.attention_options import COVERED_ENOUGH
from dsearch.engine.indexing.own_vectors import query_vectors
from dsearch.engine.options import LayerOptions
from dsearch.engine.ranking.layer import SearchLayer
from dsearch.engine.ranking.output import SearchOutput
from dsearch.engine.snapshot import NONE, Snapshot
from dsearch.engine.state.caches import VALUE
from dsearch.engine.state.state import State
from dsearch.errors import InvalidRequest, amount
from dsearch.products import in_full_precision
from dsearch.search_options import COVERAGE_DOCUMENTS
from dsearch.store.filters import parse_field
from dsearch.store.reader import refuse_misspelt
from dsearch.types import Stamp

Queries = Sequence[str] | Float[Tensor, "batch encoder_dim"]
Kind = Literal["number", "vector", "label"]
ValuesOfIds: TypeAlias = Callable[[list[list[str]]], Tensor]
"""Values of the candidates of each query, [batch, candidates, value_dim]; padding does not count."""
Values: TypeAlias = "Float[Tensor, 'positions value_dim'] | str | ValuesOfIds"


@dataclass(frozen=True, slots=True)
class AttendResult:
    """Result of `attend`, with the candidates' ids in the same order; "" where there is none.

    `note` says so if a query has no document in reach, or if the candidates hold too little of the attention
    over all documents (`output.covered_mass`).
    """

    output: SearchOutput
    ids: list[list[str]]
    stamp: Stamp
    note: str | None = None


def attend(
    collection: State,
    queries: Queries,
    *,
    model: str | None,
    filter: object | None,
    options: LayerOptions,
) -> AttendResult:
    """See `Collection.attend`."""
    with torch.inference_mode():
        layer, stamp, states, texts = resolve_inputs(collection, queries, model, filter, options)
        output = layer(states, texts)
    ids = collection.ids_at(layer.snapshot, output.positions)
    return AttendResult(output, ids, stamp, attention_note(layer, output))


def attention_note(layer: SearchLayer, output: SearchOutput) -> str | None:
    """Say what to know of an answer: queries without a match, and how little the candidates hold; or None."""
    unmatched = None if output.documents is None else int((output.documents == 0).sum())
    notes = (unmatched_note(unmatched or 0, "their weights and context are 0"), coverage_note(layer, output))
    return "; ".join(note for note in notes if note is not None) or None


def unmatched_note(queries: int, result: str) -> str | None:
    """Say that some queries have no document in reach, and what their result is; None for 0 of them."""
    if not queries:
        return None
    return f"no document is in reach of {amount(queries, 'query')} (candidates: 0): {result}"


def coverage_note(layer: SearchLayer, output: SearchOutput) -> str | None:
    """Say how little of the attention the candidates hold, where it is less than `COVERED_ENOUGH`."""
    if output.covered_mass is None or not len(output.covered_mass):
        return None
    least = float(output.covered_mass.min())
    if least >= COVERED_ENOUGH:
        return None
    documents = layer.snapshot.documents
    about = "about " if documents > COVERAGE_DOCUMENTS else ""
    return (
        f"the candidates hold {about}{least:.1%} of the attention over all {documents} documents; "
        "use over='all' for all of it, or more candidates"
    )


def resolve_inputs(
    collection: State,
    queries: Queries,
    model: str | None,
    filter: object | None,
    options: LayerOptions,
) -> tuple[SearchLayer, Stamp, Float[Tensor, "batch encoder_dim"], Sequence[str] | None]:
    """Return the layer that answers, its stamp, and its input: states, and the texts if there are any."""
    mode = options.get("mode", "hybrid")
    if isinstance(queries, Tensor):
        queries = query_vectors(queries, collection.store.dimension).float()
        mode = "dense" if mode == "hybrid" else mode
    else:
        require_field(options)
    layer, stamp = collection.layer_and_stamp(model=model, filter=filter, **{**options, "mode": mode})
    if isinstance(queries, Tensor):
        return layer, stamp, queries, None
    mode = mode if layer.match is None else "keyword"  # texts are compared, not embeddings
    return layer, stamp, collection.query_states(queries, mode, stamp.model), queries


def require_field(options: LayerOptions) -> None:
    """Refuse an exact match of texts without a field: equal embeddings are no equal texts.

    Raises:
        InvalidRequest: naming the option.
    """
    if options.get("score") == "exact_match" and options.get("match_field") is None:
        raise InvalidRequest(
            "score='exact_match' of texts compares a field; give match_field: id, title, text or one of the "
            "metadata. Without one it compares vectors, so give vectors"
        )


def with_field(
    collection: State,
    layer: SearchLayer,
    field: str,
    attend: Callable[[Tensor | None], SearchOutput],
) -> SearchOutput:
    """Return what `attend` gives, its context pooled from a field.

    Args:
        collection: that has the field.
        layer: that attends.
        field: dotted path of the metadata, or "value".
        attend: the layer's answer for these values, a row for each position; W_V e for None.

    Raises:
        InvalidRequest: not a field, labels, or a document without it.
    """
    if layer.over == "all":
        every = np.arange(layer.snapshot.positions)
        visible = np.zeros(len(every), bool)
        visible[layer.snapshot.visible()] = True
        every = np.where(visible, every, NONE)
        rows = field_rows(collection, layer.snapshot, field, every[None])
        return attend(rows[0].to(next(layer.head.parameters())))
    output = attend(None)
    return pooled_rows(output, field_rows(collection, layer.snapshot, field, output.positions))


def field_rows(
    collection: State,
    snapshot: Snapshot,
    field: str,
    positions: Int64[np.ndarray, "batch candidates"],
) -> Float[Tensor, "batch candidates value_dim"]:
    """Return the values of a field at positions, zeros at −1; true is 1.

    Raises:
        InvalidRequest: not a field, labels, several kinds, or a document without it.
    """
    rows = snapshot.rows(positions)
    distinct = np.unique(rows[rows != NONE])
    values = collection.field_cache.of(distinct, field)

    def id_of(row: int) -> str:
        return collection.store.ids([row])[0]

    missing = next((row for row, value in zip(distinct.tolist(), values, strict=True) if value is None), None)
    if missing is not None:
        if field != VALUE:
            refuse_misspelt(collection.store, [parse_field(field)], "field")
            _refuse_list(collection, missing, field)
        raise InvalidRequest(
            f"field {field!r}: document {id_of(missing)[:80]!r} has none; restrict the documents to those "
            f'that have it, with filter={{"{field}": {{"exists": true}}}}'
        )
    numbers = [float(value) if isinstance(value, bool) else value for value in values]
    triples = ((id_of, row, value) for row, value in zip(distinct.tolist(), numbers, strict=True))
    if kind_of_all(triples, field) == "label":
        raise InvalidRequest(
            f"values={field!r}: text cannot be pooled; use predict, or give numbers for the ids"
        )
    array = np.array(numbers, np.float64).reshape(len(distinct), -1) if len(distinct) else np.zeros((0, 1))
    table = np.concatenate([array, np.zeros((1, array.shape[1]))])
    at = np.searchsorted(distinct, rows) if len(distinct) else np.zeros(rows.shape, np.int64)
    return torch.as_tensor(table[np.where(rows == NONE, len(distinct), at)])


def _refuse_list(collection: State, row: int, field: str) -> None:
    """Say what a list or an object of the metadata is not; None of it is pooled.

    Raises:
        InvalidRequest: the row's field is one.
    """
    value: Any = collection.store.documents([row])[0].metadata
    for key in parse_field(field):
        value = value.get(key) if isinstance(value, dict) else None  # pyright: ignore
    if isinstance(value, list | dict):
        kind = "a list" if isinstance(value, list) else "an object"
        raise InvalidRequest(
            f"field {field!r} of document {collection.store.ids([row])[0][:80]!r} is {kind}; use a number, "
            "or keep a vector in `value` of the document, and pool value"
        )


def pooled_rows(output: SearchOutput, rows: Float[Tensor, "batch candidates value_dim"]) -> SearchOutput:
    """Return the output with the candidates' rows pooled by its weights.

    Raises:
        InvalidRequest: not a row for each candidate.
    """
    rows = rows_of_candidates(rows, torch.as_tensor(output.positions != NONE)).to(output.weights)
    with in_full_precision(rows.device.type):
        context = pool(output.weights.unsqueeze(1), rows).squeeze(1)
    return output._replace(context=context, output=None)


def rows_of_candidates(
    rows: Float[Tensor, ...], present: Bool[Tensor, "batch candidates"]
) -> Float[Tensor, "batch candidates value_dim"]:
    """Return the caller's rows, [batch, listed, value_dim], as wide as the candidates; zeros at padding.

    Raises:
        InvalidRequest: not a row for each candidate of each query.
    """
    batch, candidates = present.shape
    longest = int(present.sum(1).max()) if present.numel() else 0
    if rows.ndim != 3 or len(rows) != batch or rows.shape[1] < longest:
        raise InvalidRequest(
            f"values of shape {list(rows.shape)}; use [{batch}, {longest}, value_dim], a row for each "
            "candidate of each query, padded to the longest"
        )
    rows = rows[:, :candidates]
    rows = torch.nn.functional.pad(rows, (0, 0, 0, candidates - rows.shape[1]))
    return rows.masked_fill(~present.to(rows.device).unsqueeze(-1), 0.0)


def texts_at(
    collection: State, snapshot: Snapshot, positions: Int64[np.ndarray, "batch candidates"]
) -> list[list[str]]:
    """Return title and text of each query's candidates."""
    rows = snapshot.rows(positions)
    wanted = np.unique(rows[rows != NONE])
    contents = dict(zip(wanted.tolist(), collection.store.contents(wanted), strict=True))
    return [[contents[row] for row in line if row != NONE] for line in rows.tolist()]


def without_padding(ids: Sequence[Sequence[str]]) -> list[list[str]]:
    """Return the ids of each query's candidates alone."""
    return [[id for id in line if id] for line in ids]


def kind_of_all(values: Iterable[tuple[Callable[[Any], str], Any, Any]], field: str) -> Kind | None:
    """Return the one kind of all values, None without any.

    Args:
        values: for each a function, what it makes the document's id from, and the value.
        field: its name.

    Raises:
        InvalidRequest: there are several kinds.
    """
    kinds: dict[tuple[Kind, int], tuple[Callable[[Any], str], Any]] = {}
    for named, place, value in values:
        kinds.setdefault(_kind_of(value), (named, place))
    if len(kinds) > 1:
        (kind, first), (other, second), *_ = kinds.items()
        names = [named(place) for named, place in (first, second)]
        what = f"a {kind[0]} in document {names[0]!r} and a {other[0]} in {names[1]!r}"
        if kind[0] == other[0]:
            what = (
                f"a vector of {amount(kind[1], 'number')} in document {names[0]!r} and of {other[1]} in "
                f"{names[1]!r}"
            )
        raise InvalidRequest(f"field {field!r} is {what}; make it of one kind to pool it")
    return next(iter(kinds))[0] if kinds else None


def _kind_of(value: Any) -> tuple[Kind, int]:
    """The kind, and the length of a vector."""
    if isinstance(value, str | bool):
        return "label", 0
    return ("number", 0) if isinstance(value, int | float) else ("vector", len(value))
