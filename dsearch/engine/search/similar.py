"""Search by example: more like these documents, less like those, by Rocchio's formula on query states.

    q = unit(α e_q + β · mean of the liked embeddings − γ · mean of the unliked ones)

(Rocchio, "Relevance feedback in information retrieval", 1971; in Manning, Raghavan and Schütze, "Introduction
to Information Retrieval", equation 9.3, from which α = 1, β = 0.75, γ = 0.15 are taken.) Documents and
queries are embedded in one space, so the result is an ordinary query state: the model's query projection,
heads and hops apply to it. A vector can take the place of e_q. Without a query, the α term and the keywords
are left out.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from jaxtyping import Float, Int64
from torch import Tensor

from dsearch.attention.arrays import length, unit
from dsearch.engine.indexing.own_vectors import search_vectors
from dsearch.engine.search.hits import PageRequest
from dsearch.engine.search.queries import layer_options, resolve_queries
from dsearch.engine.search.search import search_group
from dsearch.engine.snapshot import NONE, Snapshot
from dsearch.engine.state.state import State
from dsearch.errors import DocumentNotFound, InvalidRequest
from dsearch.fields import MAX_EXAMPLES
from dsearch.search_options import SearchOptions
from dsearch.store import Store, filter_of
from dsearch.types import SearchResult

ALPHA, BETA, GAMMA = 1.0, 0.75, 0.15

_SMALLEST = 1e-6  # below, what is left of the embeddings is rounding


def similar(
    collection: State,
    like: Sequence[str],
    *,
    unlike: Sequence[str] = (),
    query: str | None = None,
    vector: Sequence[float] | None = None,
    chosen: SearchOptions,
) -> SearchResult:
    """See `Collection.similar`."""
    started = time.perf_counter()
    if chosen.mode == "keyword":
        raise InvalidRequest("mode='keyword'; likeness is of meaning: use hybrid or dense")
    if chosen.stages == 2:
        raise InvalidRequest("stages=2; examples have no tokens of a query: leave it out, or search by text")
    if query is not None and not query.strip():
        raise InvalidRequest("query is empty; give at least one word, or leave it out")
    chosen.check([query or ""], vectors=query is None or vector is not None)
    _check_examples(like, unlike)
    own = None
    if vector is not None:
        own = torch.as_tensor(search_vectors([vector], collection.store.dimension, "vector"))
    tree = filter_of(chosen.filter)
    rules = chosen.ranking(tree)
    question: tuple[object, ...] = (collection.name, (*like,), (*unlike,), query, rules)
    if own is not None:
        question = (*question, own.numpy().tobytes())
    place = PageRequest.of(
        chosen.cursor,
        limit=chosen.limit,
        offset=chosen.offset,
        question=question,
        candidates=chosen.candidates,
    )
    examples = _Examples(collection.store, like, unlike)
    groups, stamp = resolve_queries(
        collection,
        (torch.zeros(1, collection.store.dimension) if own is None else own) if query is None else [query],
        layer_options(chosen, place),
        model=chosen.model,
        filter=tree,
        operators=chosen.operators,
        pinned=place.pinned,
        narrow=examples.left_out_of,
        turn=examples.turn,
        vectors=own,
        typos=chosen.typos,
    )
    queries = ["" if query is None else query]
    result = search_group(collection, groups[0], stamp, chosen, places=[place], queries=queries, turned=True)[
        0
    ]
    took_ms = (time.perf_counter() - started) * 1000
    return replace(result, took_ms=took_ms, waiting=collection.waiting)


class _Examples:
    """Liked and unliked documents of one state: what they make of a query, and the state without them."""

    def __init__(self, store: Store, like: Sequence[str], unlike: Sequence[str]):
        rows = store.rows_of([*like, *unlike])
        missing = [id for id in (*like, *unlike) if id not in rows]
        if missing:
            raise DocumentNotFound(
                f"no document {missing[0][:80]!r} in collection {store.name!r}; ids are exact"
            )
        self._ids = [*dict.fromkeys(like)], [*dict.fromkeys(unlike)]
        self._rows = rows
        self._means: list[Float[np.ndarray, " encoder_dim"]] = []

    def left_out_of(self, state: Snapshot) -> Snapshot:
        """`state` in which the examples are not found; remembers their embeddings."""
        for ids in self._ids:
            positions = state.positions_of(np.array([self._rows[id] for id in ids], np.int64))
            if (positions == NONE).any():
                id = ids[int(np.argmax(positions == NONE))]
                raise DocumentNotFound(
                    f"document {id[:80]!r} is not in the state that is searched: it has no embedding yet, or "
                    "was written after the first page; ask again, without a cursor"
                )
            self._means.append(_whole(state, positions).sum(0) / max(len(ids), 1))
        return state.excluding(np.array([*self._rows.values()], np.int64), state.sequence)

    def turn(self, states: Float[Tensor, "one encoder_dim"]) -> Float[Tensor, "one encoder_dim"]:
        """Rocchio's query; `states` are zeros where there is none."""
        liked, unliked = (torch.as_tensor(mean).to(states) for mean in self._means)
        turned = ALPHA * states + BETA * liked - GAMMA * unliked
        if float(length(turned)) < _SMALLEST:
            raise InvalidRequest("like and unlike cancel out; leave some of the documents out")
        return unit(turned)


def _whole(
    state: Snapshot, positions: Int64[np.ndarray, " documents"]
) -> Float[np.ndarray, "documents encoder_dim"]:
    """One embedding a document: of a long one the mean of its passages', at length 1 like the others."""
    embeddings = state.embeddings(positions)
    single: Int64[np.ndarray, "one documents"] = positions.reshape(1, -1)
    beside = None if state.passages is None else state.passages.beside(single)
    if state.passages is None or beside is None:
        return embeddings
    owners, further = beside
    np.add.at(embeddings, owners[0], state.passages.embeddings(further[0]))
    lengths = np.linalg.norm(embeddings, axis=1, keepdims=True)
    return np.divide(embeddings, lengths, out=np.zeros_like(embeddings), where=lengths > 0)


def _check_examples(like: Sequence[str], unlike: Sequence[str]) -> None:
    if not like:
        raise InvalidRequest("like is empty; give the id of at least one document")
    for name, ids in (("like", like), ("unlike", unlike)):
        if len(ids) > MAX_EXAMPLES:
            raise InvalidRequest(f"{len(ids)} ids in {name}; use at most {MAX_EXAMPLES}")
    both = sorted({*like} & {*unlike})
    if both:
        raise InvalidRequest(f"document {both[0][:80]!r} is in like and in unlike; leave it in one of them")
