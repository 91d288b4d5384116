"""Query memory over the documents of a snapshot: which of them were judged, and what the others borrow.

A document's judged neighbours follow from embeddings that never change, so they are computed once for each
generation, when a document is first a candidate, and kept as long as memory and generation are. Fresh rows
are few; each snapshot computes its own.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import NamedTuple
from weakref import WeakKeyDictionary

import numpy as np
import torch
from jaxtyping import Bool, Float, Float32, Int64
from torch import Tensor

from dsearch.attention.retrieval.memory import LENDING, LENDING_LEVEL, NEIGHBOURS, QueryMemory
from dsearch.engine.snapshot.snapshot import NONE, Snapshot
from dsearch.index import Generation
from dsearch.products import product
from dsearch.search_options import COVERAGE_DOCUMENTS

_Compute = Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]
_AT_ONCE = 1 << 22  # similarities of documents and judged documents that are in memory together


class SnapshotMemory:
    """M(q, d) over the positions of a snapshot.

    Args:
        memory: past queries.
        snapshot: the documents.
    """

    def __init__(self, memory: QueryMemory, snapshot: Snapshot):
        self.memory, self.snapshot = memory, snapshot
        positions = snapshot.positions_of(memory.rows.cpu().numpy())
        self._judged_at: Int64[np.ndarray, " documents"] = positions
        self._judged = np.full(snapshot.positions, NONE, np.int64)
        present = positions != NONE
        self._judged[positions[present]] = np.flatnonzero(present)
        self._built = _built_lending(memory, snapshot.generation)
        self._fresh = _Lending.empty(snapshot.positions - snapshot.built)

    def same_rows(self, memory: QueryMemory) -> bool:
        """True if `memory` has these past queries and grades, whatever its γ, τ and c are."""
        return memory.rows is self.memory.rows and memory.of_query is self.memory.of_query

    def scores(
        self,
        recalled: Float[Tensor, "batch queries"],
        positions: Int64[np.ndarray, "batch candidates"],
    ) -> Float[Tensor, "batch candidates"]:
        """γ M of each candidate, 0 at −1.

        Args:
            recalled: γ a of each past query, as `QueryMemory` gives it.
            positions: of the candidates; −1 = none.
        """
        relevance, present = self.memory.relevance(recalled), positions != NONE
        at = np.where(present, positions, 0)
        neighbours, weights = self._lent(at)
        judged = self._judged[at]
        own = relevance.gather(1, torch.as_tensor(np.maximum(judged, 0)).to(relevance.device))
        flat = torch.as_tensor(neighbours.reshape(len(at), -1)).to(relevance.device)
        lent = relevance.gather(1, flat).reshape(neighbours.shape) * torch.as_tensor(weights).to(relevance)
        scores = torch.where(torch.as_tensor(judged >= 0).to(relevance.device), own, lent.sum(-1))
        return scores * torch.as_tensor(present).to(scores)

    def of_all(self, recalled: Float[Tensor, "batch queries"]) -> Float[Tensor, "batch positions"]:
        """γ M of every position, deleted ones included."""
        relevance = self.memory.relevance(recalled)
        every = np.arange(self.snapshot.positions)
        neighbours, weights = self._lent(every[None])
        judged = self._judged
        own = relevance[:, torch.as_tensor(np.maximum(judged, 0)).to(relevance.device)]
        lent = torch.zeros_like(own)
        for column in range(NEIGHBOURS):
            borrowed = relevance[:, torch.as_tensor(neighbours[0, :, column]).to(relevance.device)]
            lent = lent + borrowed * torch.as_tensor(weights[0, :, column]).to(relevance)
        return torch.where(torch.as_tensor(judged >= 0).to(relevance.device), own, lent)

    def most(self, recalled: Float[Tensor, "batch queries"]) -> Float[Tensor, " batch"]:
        """A bound on γ M of any document: none has more than the judged document with the most."""
        return self.memory.relevance(recalled).amax(1).clamp_min(0.0)

    def best(self, recalled: Float[Tensor, "batch queries"], count: int) -> Int64[np.ndarray, "batch found"]:
        """Positions of the visible documents with the largest M above 0, −1 behind.

        In a large collection these are judged documents alone: who borrows from them is like them, and is
        proposed by the dense leg.
        """
        numbers = recalled.detach()
        if self._few(len(numbers)):
            scores = self.of_all(numbers).cpu().numpy()
            if self.snapshot.excluded is not None:
                scores[:, self.snapshot.excluded] = 0.0
            return _largest(scores, np.arange(scores.shape[1], dtype=np.int64), count)
        visible = self._judged_at != NONE
        if self.snapshot.excluded is not None:
            visible &= ~self.snapshot.excluded[np.maximum(self._judged_at, 0)]
        scores = self.memory.relevance(numbers).cpu().numpy()[:, visible]
        return _largest(scores, self._judged_at[visible], count)

    def sources(
        self, recalled: Float32[np.ndarray, " queries"], position: int
    ) -> Float32[np.ndarray, " queries"]:
        """The part of γ M(q, d) that comes from each past query; they sum to it.

        Args:
            recalled: γ a of one query.
            position: of the document.
        """
        memory = self.memory
        neighbours, weights = self._lent(np.array([[position]], np.int64))
        shares = np.zeros(memory.documents, np.float32)
        judged = int(self._judged[position])
        if judged >= 0:
            shares[judged] = 1.0
        else:
            np.add.at(shares, neighbours[0, 0], weights[0, 0])
        of_grades = shares[memory.of_document.cpu().numpy()] * memory.grades.cpu().numpy()
        parts = np.zeros(len(memory), np.float32)
        np.add.at(parts, memory.of_query.cpu().numpy(), of_grades)
        return parts * recalled

    def _few(self, batch: int) -> bool:
        return self.snapshot.positions <= COVERAGE_DOCUMENTS and batch * self.snapshot.positions <= _AT_ONCE

    def _lent(
        self, positions: Int64[np.ndarray, "batch candidates"]
    ) -> tuple[Int64[np.ndarray, "batch candidates near"], Float32[np.ndarray, "batch candidates near"]]:
        """Judged neighbours of documents and the weights of borrowing from them."""
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
    ) -> tuple[Int64[np.ndarray, "documents near"], Float32[np.ndarray, "documents near"]]:
        judged = self.memory.embeddings.float().cpu()
        neighbours = np.zeros((len(positions), NEIGHBOURS), np.int64)
        weights = np.zeros((len(positions), NEIGHBOURS), np.float32)
        most = min(NEIGHBOURS, len(judged))
        step = max(1, _AT_ONCE // len(judged))
        for start in range(0, len(positions), step):
            part = positions[start : start + step]
            stored = torch.as_tensor(self.snapshot.embeddings(part[None])[0])
            similar = product(stored, judged)
            best = similar.topk(most, dim=1)
            null = best.values.new_full((len(part), 1), LENDING_LEVEL)
            shares = (torch.cat([best.values, null], dim=1) / LENDING).softmax(-1)[:, :-1]
            neighbours[start : start + len(part), :most] = best.indices.numpy()
            weights[start : start + len(part), :most] = shares.numpy()
        return neighbours, weights


class _Lending(NamedTuple):
    """Neighbours and weights of the documents that were asked for so far."""

    neighbours: Int64[np.ndarray, "documents near"]
    weights: Float32[np.ndarray, "documents near"]
    computed: Bool[np.ndarray, " documents"]
    lock: threading.Lock

    @classmethod
    def empty(cls, documents: int) -> _Lending:
        shape = documents, NEIGHBOURS
        return cls(
            np.zeros(shape, np.int64),
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


_lendings: WeakKeyDictionary[Generation, WeakKeyDictionary[QueryMemory, _Lending]] = WeakKeyDictionary()
_keeping = threading.Lock()


def _built_lending(memory: QueryMemory, generation: Generation) -> _Lending:
    with _keeping:
        of_generation = _lendings.setdefault(generation, WeakKeyDictionary())
        if memory not in of_generation:
            of_generation[memory] = _Lending.empty(len(generation))
        return of_generation[memory]


def _largest(
    scores: Float[np.ndarray, "batch documents"], positions: Int64[np.ndarray, " documents"], count: int
) -> Int64[np.ndarray, "batch found"]:
    most = min(count, scores.shape[1])
    if most == 0:
        return np.empty((len(scores), 0), np.int64)
    columns = np.argpartition(-scores, most - 1, axis=1)[:, :most]
    positive = np.take_along_axis(scores, columns, 1) > 0
    return np.where(positive, positions[columns], NONE)
