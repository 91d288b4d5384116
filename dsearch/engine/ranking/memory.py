"""Query memory over the documents of a snapshot: which of them were judged, and what the others borrow.

A document's judged neighbours follow from embeddings that never change, so they are computed once for each
generation, when a document is first a candidate, and kept as long as memory and generation are. Fresh rows
are few; each snapshot computes its own.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import numpy as np
from jaxtyping import Bool, Float, Float32, Int32, Int64

from dsearch.attention.arrays import (
    Array,
    as_like,
    gather,
    is_array,
    numbers_of,
    on_device_of,
    places_of_largest,
    softmax,
    zeros,
)
from dsearch.attention.memory_rows import LENDING, LENDING_LEVEL, NEIGHBOURS, MemoryRows, Recalled
from dsearch.engine.snapshot import NONE, Snapshot
from dsearch.index import Generation
from dsearch.index.exact import best_above
from dsearch.search_options import COVERAGE_DOCUMENTS

_Compute = Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]
SPREAD_BELOW = 8  # queries up to which only the judged documents that they recall are looked at
_LOOKED_AT = 4  # times the judged documents that an index finds, for one that counts
AT_ONCE = 1 << 22  # similarities of documents and judged documents that are in memory together


class SnapshotMemory:
    """M(q, d) over the positions of a snapshot.

    Args:
        memory: past queries.
        snapshot: the documents.
    """

    def __init__(self, memory: MemoryRows, snapshot: Snapshot):
        self.memory, self.snapshot = memory, snapshot
        positions = snapshot.positions_of(numbers_of(memory.rows))
        self._judged_at: Int64[np.ndarray, " documents"] = positions
        self._judged = np.full(snapshot.positions, NONE, np.int32)
        present = positions != NONE
        self._judged[positions[present]] = np.flatnonzero(present)
        self._built = _built_lending(memory, snapshot.generation)
        self._fresh = _Lending.empty(snapshot.positions - snapshot.built)
        self._whole: tuple[Recalled, Array] | None = None
        self._matrix: Array | None = None
        self._borrowers: _Borrowers | None = None

    def same_rows(self, memory: MemoryRows) -> bool:
        """True if `memory` has these past queries and grades and this λ, whatever its γ, τ and c are."""
        own = self.memory
        alike = memory.rows is own.rows and memory.of_query is own.of_query
        return alike and memory.lending == own.lending

    def scores(
        self, recalled: Recalled, positions: Int64[np.ndarray, "batch candidates"]
    ) -> Float[Array, "batch candidates"]:
        """γ M of each candidate, 0 at −1.

        Args:
            recalled: past queries, as a memory gives them.
            positions: of the candidates; −1 = none.
        """
        relevance, present = recalled.relevance, positions != NONE
        if not self.memory.documents:
            return zeros(positions.shape, relevance)
        before = self._whole
        if before is not None and before[0] is recalled:  # the proposals were taken from M of all
            of_candidates = gather(before[1], on_device_of(np.where(present, positions, 0), relevance), 1)
            return of_candidates if present.all() else of_candidates * as_like(present, of_candidates)
        neighbours, weights = self._lent(np.where(present, positions, 0))
        weights = weights * present[..., None]
        flat = on_device_of(neighbours.reshape(len(positions), -1).astype(np.int64), relevance)
        lent = gather(relevance, flat, 1).reshape(neighbours.shape)
        return (lent * as_like(weights, relevance)).sum(-1)

    def of_all(self, recalled: Recalled) -> Float[Array, "batch positions"]:
        """γ M of every position, deleted ones included."""
        before = self._whole
        if before is not None and before[0] is recalled:
            return before[1]
        relevance = recalled.relevance
        if not self.memory.documents:
            return zeros((len(relevance), self.snapshot.positions), relevance)
        learns = not is_array(relevance) and relevance.requires_grad
        if is_array(relevance) or not (learns or len(relevance) > SPREAD_BELOW or relevance.is_cuda):
            total = self._spread(relevance)
        else:
            total = (self._lending_like(relevance) @ relevance.mT).mT
        if not learns and len(relevance) == 1:  # covered mass wants it again
            self._whole = recalled, total
        return total

    def best(
        self, recalled: Recalled, count: int, *, borrowers: bool | None = None
    ) -> Int64[np.ndarray, "batch found"]:
        """Positions of the visible documents with the largest M above 0, ties by position, −1 behind.

        In a large collection these are judged documents alone: who borrows from them is like them, and is
        proposed by the dense leg. `borrowers` says which, for a part of a collection.
        """
        scores, excluded = numbers_of(recalled.relevance), self.snapshot.excluded
        if self._few(len(scores)) if borrowers is None else borrowers:
            return self._best_of_all(numbers_of(self.of_all(recalled)), count)
        positions = self._judged_at
        best = np.full((len(scores), min(count, scores.shape[1])), NONE, np.int64)
        for row, line in zip(best, scores, strict=True):
            raised = np.flatnonzero(line > 0)
            at = positions[raised]
            visible = at != NONE if excluded is None else (at != NONE) & ~excluded[at]
            at, gains = at[visible], line[raised[visible]]
            if len(at) > len(row) > 0:  # only these are sorted; ties are cut by position
                enough = gains >= np.partition(gains, -len(row))[-len(row)]
                at, gains = at[enough], gains[enough]
            order = np.lexsort((at, -gains))[: len(row)]
            row[: len(order)] = at[order]
        return best

    def _best_of_all(
        self, scores: Float[np.ndarray, "batch positions"], count: int
    ) -> Int64[np.ndarray, "batch found"]:
        """Positions of the largest scores above 0, ties by position, −1 behind."""
        excluded = self.snapshot.excluded
        best = np.full((len(scores), min(count, scores.shape[1])), NONE, np.int64)
        for row, line in zip(best, scores, strict=True):
            at = best_above(line if excluded is None else np.where(excluded, 0, line), len(row) or 1)
            row[: len(at)] = at[: len(row)]
        return best

    def is_judged(self, positions: Int64[np.ndarray, "*shape"]) -> Bool[np.ndarray, "*shape"]:
        """True for documents that have grades of their own."""
        return (self._judged[np.maximum(positions, 0)] != NONE) & (positions != NONE)

    def sources(
        self, recalled: Recalled, query: int, position: int
    ) -> tuple[Int64[np.ndarray, " near"], Float32[np.ndarray, " near"]]:
        """Past queries, and the part of γ M(q, d) that comes from each; the parts sum to it.

        Args:
            recalled: past queries that the queries attend to.
            query: number of the query.
            position: of the document.
        """
        memory = self.memory
        neighbours, weights = self._lent(np.array([[position]], np.int64))
        of_documents = np.zeros(memory.documents, np.float32)
        np.add.at(of_documents, neighbours[0, 0], weights[0, 0])
        rows = numbers_of(recalled.rows[query])
        attention = numbers_of(recalled.weights[query]).astype(np.float32)
        grades = numbers_of(memory.grades).astype(np.float32)
        of_rows = np.zeros(len(memory), np.float32)
        np.add.at(of_rows, numbers_of(memory.of_query), of_documents[numbers_of(memory.of_document)] * grades)
        return rows, attention * of_rows[rows]

    def _lending_like(self, like: Array) -> Float[Array, "positions documents"]:
        """Share of each judged document in each position, sparse by rows; of tensors."""
        import torch

        matrix = self._matrix
        if matrix is None or matrix.dtype != like.dtype or matrix.device != like.device:
            positions = self.snapshot.positions
            neighbours, weights = self._lent(np.arange(positions)[None])
            with torch.inference_mode(False), warnings.catch_warnings():
                warnings.filterwarnings("ignore", "Sparse")
                sparse = torch.sparse_csr_tensor(  # pyright: ignore[reportUnknownMemberType]
                    torch.arange(0, positions * NEIGHBOURS + 1, NEIGHBOURS, dtype=torch.int32),
                    torch.as_tensor(neighbours.reshape(-1)),
                    torch.as_tensor(weights.reshape(-1)),
                    (positions, self.memory.documents),
                )
                matrix = self._matrix = sparse.to(like)
        return matrix

    def _spread(self, relevance: Float[Array, "batch documents"]) -> Float[Array, "batch positions"]:
        """Spread r of the judged documents over those that borrow from them, one query at a time."""
        borrowers = self._borrowers
        if borrowers is None:
            lent = self._lent(np.arange(self.snapshot.positions)[None])
            borrowers = _Borrowers.of(lent[0][0], lent[1][0], self.memory.documents)
            self._borrowers = borrowers
        lines = [borrowers.spread(line, self.snapshot.positions) for line in numbers_of(relevance)]
        return on_device_of(lines[0][None] if len(lines) == 1 else np.stack(lines), relevance)

    def _few(self, batch: int) -> bool:
        return self.snapshot.positions <= COVERAGE_DOCUMENTS and batch * self.snapshot.positions <= AT_ONCE

    def _lent(
        self, positions: Int64[np.ndarray, "batch candidates"]
    ) -> tuple[Int32[np.ndarray, "batch candidates near"], Float32[np.ndarray, "batch candidates near"]]:
        """Judged neighbours of documents and the weights of borrowing; a judged one has its own alone."""
        built = self.snapshot.built
        fresh = positions >= built
        if not fresh.any():
            return self._built.of(positions, self._compute)
        if fresh.all():
            return self._fresh.of(positions - built, lambda at: self._compute(at + built))
        neighbours, weights = self._built.of(np.where(fresh, 0, positions), self._compute)
        other = self._fresh.of(np.where(fresh, positions - built, 0), lambda at: self._compute(at + built))
        return np.where(fresh[..., None], other[0], neighbours), np.where(fresh[..., None], other[1], weights)

    def _compute(
        self, positions: Int64[np.ndarray, " documents"]
    ) -> tuple[Int32[np.ndarray, "documents near"], Float32[np.ndarray, "documents near"]]:
        neighbours = np.zeros((len(positions), NEIGHBOURS), np.int32)
        weights = np.zeros((len(positions), NEIGHBOURS), np.float32)
        judged = self._judged[positions]
        own = judged != NONE
        neighbours[own, 0], weights[own, 0] = judged[own], 1.0
        others = np.flatnonzero(~own)
        if len(others) and self.memory.documents:
            stored = self.snapshot.embeddings(positions[others][None])[0]
            near, shares = borrowed(self.memory, stored)
            neighbours[others, : near.shape[1]], weights[others, : near.shape[1]] = near, shares
        return neighbours, weights


def borrowed(
    memory: MemoryRows, embeddings: Float32[np.ndarray, "documents encoder_dim"]
) -> tuple[Int64[np.ndarray, "documents near"], Float32[np.ndarray, "documents near"]]:
    """The nearest judged documents of others, and the weights of borrowing from them."""
    near, similar = nearest_judged(memory, embeddings, NEIGHBOURS)
    null = np.full((len(similar), 1), LENDING_LEVEL, np.float32)
    logits: Any = np.concatenate([similar, null], 1) / np.float32(LENDING)
    shares = numbers_of(softmax(logits, -1))[:, :-1]
    return near, (memory.lending * shares).astype(np.float32, copy=False)


def nearest_judged(
    memory: MemoryRows, embeddings: Float32[np.ndarray, "documents encoder_dim"], count: int
) -> tuple[Int64[np.ndarray, "documents near"], Float32[np.ndarray, "documents near"]]:
    """Numbers of the nearest judged documents of others, nearest first, and their products."""
    codes, scales = numbers_of(memory.codes), numbers_of(memory.scales).astype(np.float32, copy=False)
    start = 0 if memory.lenders is None else len(memory.lenders)
    beside = (codes[start:].astype(np.float32) * scales[start:, None]).T
    width = max(beside.shape[1], 1 if memory.lenders is None else _LOOKED_AT * count * codes.shape[1])
    numbers: list[np.ndarray] = []
    similar: list[np.ndarray] = []
    for part in _split(embeddings, max(1, AT_ONCE // width)):
        products: Any = part @ beside
        near = numbers_of(places_of_largest(products, count))
        products, near = np.take_along_axis(products, near, 1), near + start
        if memory.lenders is not None:
            some = memory.lenders.nearest(part, _LOOKED_AT * count)
            at = np.maximum(some, 0)
            of_some = (codes[at].astype(np.float32) @ part[..., None])[..., 0] * scales[at]
            of_some[some < 0] = -np.inf
            near, products = np.concatenate([at, near], 1), np.concatenate([of_some, products], 1)
        best = numbers_of(places_of_largest(products, count))
        numbers.append(np.take_along_axis(near, best, 1))
        similar.append(np.take_along_axis(products, best, 1))
    return np.concatenate(numbers), np.concatenate(similar)


def _split(rows: np.ndarray, step: int) -> Iterator[np.ndarray]:
    return (rows[start : start + step] for start in range(0, max(len(rows), 1), step))


class _Lending(NamedTuple):
    """Neighbours and weights of the documents that were asked for so far."""

    neighbours: Int32[np.ndarray, "documents near"]
    weights: Float32[np.ndarray, "documents near"]
    computed: Bool[np.ndarray, " documents"]
    lock: threading.Lock

    @classmethod
    def empty(cls, documents: int) -> _Lending:
        shape = documents, NEIGHBOURS
        return cls(
            np.zeros(shape, np.int32),
            np.zeros(shape, np.float32),
            np.zeros(documents, bool),
            threading.Lock(),
        )

    def of(
        self, at: Int64[np.ndarray, "batch candidates"], compute: _Compute
    ) -> tuple[np.ndarray, np.ndarray]:
        if not self.computed[at].all():
            with self.lock:
                missing = np.unique(at[~self.computed[at]])
                if len(missing):
                    self.neighbours[missing], self.weights[missing] = compute(missing)
                    self.computed[missing] = True  # last: readers hold no lock
        return self.neighbours[at], self.weights[at]


class _Borrowers(NamedTuple):
    """The documents that borrow from each judged document, those of one in a row.

    Attributes:
        starts: where the borrowers of each begin, and the end.
        positions, weights: theirs.
    """

    starts: Int64[np.ndarray, " ends"]
    positions: Int64[np.ndarray, " pairs"]
    weights: Float32[np.ndarray, " pairs"]

    @classmethod
    def of(
        cls,
        neighbours: Int32[np.ndarray, "positions near"],
        weights: Float32[np.ndarray, "positions near"],
        documents: int,
    ) -> _Borrowers:
        """Turn the neighbours of each document around."""
        owners, places = np.nonzero(weights)
        lenders = neighbours[owners, places]
        order = np.argsort(lenders, kind="stable")
        starts = np.searchsorted(lenders[order], np.arange(documents + 1))
        return cls(starts, owners[order], weights[owners, places][order])

    def spread(
        self, relevance: Float[np.ndarray, " documents"], positions: int
    ) -> Float[np.ndarray, " positions"]:
        """Σ_n w_dn r(n) of every position d."""
        lenders = np.flatnonzero(relevance != 0)  # of numbers it takes seven times as long
        first = self.starts[lenders]
        counts = self.starts[lenders + 1] - first
        pairs = np.arange(int(counts.sum())) + np.repeat(first - (counts.cumsum() - counts), counts)
        parts = np.repeat(relevance[lenders], counts) * self.weights[pairs]
        return np.bincount(self.positions[pairs], parts, positions).astype(relevance.dtype)


_lendings: WeakKeyDictionary[Generation, WeakKeyDictionary[MemoryRows, _Lending]] = WeakKeyDictionary()
_keeping = threading.Lock()


def _built_lending(memory: MemoryRows, generation: Generation) -> _Lending:
    with _keeping:
        of_generation = _lendings.setdefault(generation, WeakKeyDictionary())
        if memory not in of_generation:
            of_generation[memory] = _Lending.empty(len(generation))
        return of_generation[memory]
