"""Arrangement of hits other than by scores: one for each text or value of a field, a field's order,
diversity; and the fields of a document that a hit carries.

It asks `CandidateDocuments` for what it needs of them, so that one machine and shards arrange alike.

Texts are the same if they differ in white space alone; a document without a text is compared by its title.
Duplicates are found among the candidates that reach the thresholds, so an answer does not depend on its page.

Diversity is maximal marginal relevance (Carbonell and Goldstein, SIGIR 1998): the next hit maximises

    (1 − λ) · relevance(d) − λ · max over the hits before of cos(d, hit)

over the first `POOL` candidates, where the relevance of candidates is their score, scaled to 0 … 1 in the
pool, and the cosine is that of the stored embeddings. The order does not depend on the page, so pagination
holds. Weights and scores of hits are those of the ranking.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, cast, runtime_checkable

import numpy as np
from jaxtyping import Bool, Float, Int64

from dsearch.attention.arrays import Array, fill, gather, numbers_of, on_device_of
from dsearch.engine.ranking.output import SearchOutput
from dsearch.engine.snapshot import NONE, Snapshot
from dsearch.errors import InvalidRequest, amount
from dsearch.search_options import SearchOptions
from dsearch.store.filters import Keys, meant_among, parse_field, value_at
from dsearch.types import Document, Hit

POOL = 100
OWN = ("title", "text", "metadata")

Shape = Callable[[Hit], Hit]
FieldOf = Callable[[Int64[np.ndarray, " rows"], str], list[Any]]
DocumentsOf = Callable[[Int64[np.ndarray, " rows"]], Mapping[int, Document]]
Positions = Int64[np.ndarray, " some"]
Duplicates = list[Int64[np.ndarray, " _"]]
"""For each query and hit, the number of candidates that it stands for beside itself."""


@runtime_checkable
class CandidateDocuments(Protocol):
    """The documents at positions of the state that was searched."""

    def documents(self, positions: Positions) -> list[Document]:
        """The documents."""
        ...

    def names(self, positions: Positions) -> list[int]:
        """The `text_name` of each."""
        ...

    def values(self, positions: Positions, field: str) -> list[Any]:
        """The value of a field of each, None where it is absent."""
        ...

    def embeddings(self, positions: Positions) -> Float[np.ndarray, "some encoder_dim"]:
        """The stored embeddings."""
        ...


@dataclass(frozen=True, slots=True)
class DocumentsOfState:
    """Those of a state on this machine.

    Attributes:
        snapshot: the state.
        field_of: values of a field by rows, None where it is absent.
        documents_of: documents by rows.
    """

    snapshot: Snapshot
    field_of: FieldOf
    documents_of: DocumentsOf

    def documents(self, positions: Positions) -> list[Document]:
        """See `CandidateDocuments`."""
        rows = self.snapshot.rows(positions)
        by_row = self.documents_of(rows)
        return [by_row[row] for row in rows.tolist()]

    def names(self, positions: Positions) -> list[int]:
        """See `CandidateDocuments`."""
        return [text_name(document) for document in self.documents(positions)]

    def values(self, positions: Positions, field: str) -> list[Any]:
        """See `CandidateDocuments`."""
        return self.field_of(self.snapshot.rows(positions), field)

    def embeddings(self, positions: Positions) -> Float[np.ndarray, "some encoder_dim"]:
        """See `CandidateDocuments`."""
        return self.snapshot.embeddings(positions)


def arranged(
    output: SearchOutput,
    documents: CandidateDocuments,
    reached: Int64[np.ndarray, " batch"],
    chosen: SearchOptions,
) -> tuple[SearchOutput, Duplicates | None]:
    """Return the candidates in the order of the hits; those that are no hits come last, as padding.

    Args:
        output: ranking of the candidates.
        documents: the documents at their positions.
        reached: for each query, number of candidates that reach the thresholds; these are the first ones.
        chosen: options of the search.

    Returns the duplicates of each hit, too, if the options collapse them.

    Raises:
        InvalidRequest: not a field.
    """
    if chosen.group_by is None and chosen.sort is None and not chosen.diversity and not chosen.collapse:
        return output, None
    duplicates: Duplicates = []
    orders: list[Int64[np.ndarray, " _"]] = []
    counts: list[int] = reached.tolist()
    for query, count in enumerate(counts):
        order: Int64[np.ndarray, " hits"] = np.arange(count, dtype=np.int64)
        positions = output.positions[query, :count]
        copies: Int64[np.ndarray, " hits"] = np.zeros(count, np.int64)
        if chosen.collapse:
            order, copies = collapsed(documents.names(positions))
        if chosen.group_by is not None:
            values = documents.values(positions[order], chosen.group_by)
            if len(values) and all(value is None for value in values):
                in_order = documents.documents(positions[order])
                refuse_absent(in_order, chosen.group_by, f"group_by={chosen.group_by!r}")
            order = order[first_of_each(values)]
        if chosen.diversity:
            pool: Int64[np.ndarray, " pool"] = order[:POOL]
            scores = numbers_of(output.scores[query])[pool]
            embeddings = documents.embeddings(positions[pool])
            order = np.concatenate([pool[diverse(scores, embeddings, chosen.diversity)], order[POOL:]])
        if chosen.sort is not None:
            order = order[order_by(documents.documents(positions[order]), chosen.sort)]
        orders.append(order)
        duplicates.append(copies[order])
    return rearranged(output, orders), duplicates if chosen.collapse else None


def text_name(document: Document) -> int:
    """A number that equal texts share, `NONE` of a document without words."""
    words = " ".join(document.text.split() or document.title.split())
    if not words:
        return NONE
    return int.from_bytes(hashlib.sha256(words.encode()).digest()[:7])


def collapsed(
    names: Sequence[int],
) -> tuple[Int64[np.ndarray, " hits"], Int64[np.ndarray, " candidates"]]:
    """Indices of the first of equal names, and for every candidate the number of later ones of its name."""
    order = first_of_each([None if name == NONE else name for name in names])
    times = Counter(names)
    return order, np.array([0 if name == NONE else times[name] - 1 for name in names], np.int64)


def first_of_each(values: list[Any]) -> Int64[np.ndarray, " hits"]:
    """Indices of the first of equal values, as filters compare them; without a value every one is a first."""
    seen: set[tuple[bool, Any]] = set()
    indices: list[int] = []
    for index, value in enumerate(values):
        # True is not 1, and 1 is 1.0; a list is a document's `value`.
        name = isinstance(value, bool), tuple(cast("list[Any]", value)) if isinstance(value, list) else value
        if value is None or name not in seen:
            indices.append(index)
        seen.add(name)
    return np.array(indices, np.int64)


def diverse(
    scores: Float[np.ndarray, " pool"], embeddings: Float[np.ndarray, "pool encoder_dim"], strength: float
) -> Int64[np.ndarray, " pool"]:
    """Order by maximal marginal relevance; of equals the one of the higher score comes first."""
    count = len(scores)
    if count < 2:
        return np.arange(count)
    span = float(scores.max() - scores.min())
    relevance = (scores - scores.min()) / span if span > 0 else np.ones(count)
    likeness = embeddings @ embeddings.T
    nearest = np.full(count, -np.inf)
    order: list[int] = []
    left = np.ones(count, bool)
    for _ in range(count):
        penalty = nearest if order else np.zeros(count)
        gain = np.where(left, (1 - strength) * relevance - strength * penalty, -np.inf)
        best = int(gain.argmax())
        order.append(best)
        left[best] = False
        nearest = np.maximum(nearest, likeness[best])
    return np.array(order, np.int64)


def padded(
    orders: Sequence[Int64[np.ndarray, " _"]], width: int
) -> tuple[Int64[np.ndarray, "batch width"], Bool[np.ndarray, "batch width"]]:
    """The orders as an array, and where it only fills up lines that are shorter."""
    columns = np.zeros((len(orders), width), np.int64)
    padding = np.ones((len(orders), width), bool)
    for query, order in enumerate(orders):
        columns[query, : len(order)] = order
        padding[query, : len(order)] = False
    return columns, padding


def rearranged(output: SearchOutput, orders: list[Int64[np.ndarray, " _"]]) -> SearchOutput:
    """The output with its candidates in these orders, padded to its width."""
    columns, padding = padded(orders, output.positions.shape[1])
    at, absent = (on_device_of(of, output.weights) for of in (columns, padding))

    def of(values: Array) -> Array:
        return gather(values, at if values.ndim == 2 else at[:, None], values.ndim - 1)

    positions = np.where(padding, NONE, np.take_along_axis(output.positions, columns, 1))
    keys = output.keys
    if keys is not None:
        keys = np.take_along_axis(keys, np.broadcast_to(columns[:, None], keys.shape), 2)
    is_extra = None if output.is_extra is None else np.take_along_axis(output.is_extra, columns, 1)
    return output._replace(
        positions=positions,
        weights=fill(of(output.weights), absent, 0.0),
        scores=of(output.scores),
        dense=of(output.dense),
        keyword=of(output.keyword),
        head_weights=of(output.head_weights),
        memory=None if output.memory is None else of(output.memory),
        second=None if output.second is None else of(output.second),
        reranked=None if output.reranked is None else of(output.reranked),
        keys=keys,
        is_extra=is_extra,
    )


def sharing_attention(output: SearchOutput) -> SearchOutput:
    """The output of only the candidates that share the attention, without the documents behind them."""
    if output.is_extra is None:
        return output
    alone = rearranged(output, [np.flatnonzero(row != NONE) for row in output.sharing])
    return alone._replace(is_extra=None)


def order_by(documents: Sequence[Document], sort: str) -> list[int]:
    """Indices of the documents in the order of a field: booleans, numbers, texts, then those without it.

    Args:
        documents: in any order.
        sort: dotted path of the metadata, with `-` before it for descending; equal values go by id.

    Raises:
        InvalidRequest: not a field, or none of the documents has it and they have one of a similar name.
    """
    descending = sort.startswith("-")
    keys = parse_field(sort.removeprefix("-"), "sort")
    values = [_comparable(value_at(document.metadata, keys)) for document in documents]
    if documents and all(value is None for value in values):
        refuse_absent(documents, sort.removeprefix("-"), f"sort={sort!r}")
    by_id = sorted(range(len(documents)), key=lambda index: documents[index].id)
    present = [index for index in by_id if values[index] is not None]
    present.sort(key=lambda index: cast("tuple[int, Any]", values[index]), reverse=descending)
    return present + [index for index in by_id if values[index] is None]


def _comparable(value: Any) -> tuple[int, Any] | None:
    """A value that can be compared with those of any kind; None for what has no order."""
    if isinstance(value, bool):
        return 0, value
    if isinstance(value, int | float):
        return 1, value
    return (2, value) if isinstance(value, str) else None


def refuse_absent(documents: Sequence[Document], field: str, spelt: str) -> None:
    """Refuse a field that none of the candidates has if they have one of a similar name.

    Raises:
        InvalidRequest: with the field that may have been meant.
    """
    if meant := meant_among(field, documents):
        raise InvalidRequest(
            f"{spelt}: none of the {amount(len(documents), 'candidate')} has this field{meant}; "
            "use a field of the metadata"
        )


def shaped_by(fields: str | None) -> Shape:
    """Return a function that leaves of a hit's document what `fields` names.

    Raises:
        InvalidRequest: a name is empty or not a field.
    """
    if fields is None:
        return lambda hit: hit
    names = [name.strip() for name in fields.split(",")]
    if not all(names):
        raise InvalidRequest(
            f"fields={fields[:80]!r} names nothing between commas; use names such as title,year"
        )
    title, text, whole = (name in names for name in OWN)
    paths = [parse_field(name.removeprefix("metadata."), "fields") for name in names if name not in OWN]

    def shape(hit: Hit) -> Hit:
        return replace(
            hit,
            title=hit.title if title else "",
            text=hit.text if text else "",
            passage=hit.passage if text else None,
            metadata=hit.metadata if whole else _part(hit.metadata, paths),
        )

    return shape


def absent_fields(hits: Sequence[Hit], fields: str | None) -> list[Keys]:
    """Return the metadata fields that `fields` names and none of the hits has; none without hits."""
    if fields is None or not hits:
        return []
    paths = [parse_field(name.strip().removeprefix("metadata.")) for name in fields.split(",")]
    named = [path for path in paths if path not in [(name,) for name in OWN]]
    return [path for path in named if not any(_part(hit.metadata, [path]) for hit in hits)]


def _part(metadata: dict[str, Any], paths: Sequence[Keys]) -> dict[str, Any]:
    """The values at these paths, under the objects that they stand in."""
    part: dict[str, Any] = {}
    for keys in paths:
        *outer, last = keys
        source: Any = metadata
        for key in outer:
            source = cast("dict[str, Any]", source).get(key) if isinstance(source, dict) else None
        if not isinstance(source, dict) or last not in source:
            continue
        target = part
        for key in outer:
            target = target.setdefault(key, {})
        target[last] = source[last]
    return part
