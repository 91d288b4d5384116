"""Query memory over pools of documents, each query answered as if its own row had never been stored.

Leaving the row out of the attention is not enough: a document that no other query judged would count as
judged, and borrow nothing. Without the row it borrows from its neighbours, as every document without a
judgement does. Where few queries share documents, that hid most of what a memory brings.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Float32, Int64
from torch import Tensor

from dsearch.attention.arrays import unit
from dsearch.attention.recall import LENDING, LENDING_LEVEL, NEIGHBOURS
from dsearch.attention.retrieval.memory import ALIKE, QueryMemory
from dsearch.engine import Snapshot
from dsearch.engine.ranking.memory import nearest_judged
from dsearch.products import product

_NEAREST = 64  # judged documents kept for each of a pool: some are hidden, or judged by one query alone
_AT_A_TIME = 8192  # documents of a pool


class PoolLending:
    """The judged documents that documents of some pools may borrow from.

    Args:
        memory: past queries; a memory that is asked about later has a part of its judged documents.
        snapshot: the documents.
        pool: positions of each query's documents, −1 = none.
    """

    def __init__(self, memory: QueryMemory, snapshot: Snapshot, pool: Int64[np.ndarray, "queries pool"]):
        self._snapshot, self._pool = snapshot, pool
        self._documents, self._places = np.unique(np.maximum(pool, 0), return_inverse=True)
        self._places = self._places.reshape(pool.shape)
        judged_at = snapshot.positions_of(memory.rows.numpy())
        near: list[np.ndarray] = []
        similar: list[np.ndarray] = []
        for start in range(0, len(self._documents), _AT_A_TIME):
            part = self._documents[start : start + _AT_A_TIME]
            numbers, cosines = nearest_judged(memory, snapshot.embeddings(part[None])[0], _NEAREST)
            near.append(judged_at[numbers])
            similar.append(cosines)
        self._near = np.concatenate(near)
        self._lending = np.exp((np.concatenate(similar) - LENDING_LEVEL) / LENDING)

    def without_own(
        self, memory: QueryMemory, states: Float[Tensor, "queries encoder_dim"]
    ) -> LendingWeights:
        """Lending in `memory` to each pool, without the rows that are nearly the query of the pool."""
        number = np.full(self._snapshot.positions, -1, np.int64)
        judged_at = self._snapshot.positions_of(memory.rows.numpy())
        number[judged_at[judged_at >= 0]] = np.flatnonzero(judged_at >= 0)
        of_near, of_own = number[self._near], number[self._documents]
        neighbours = np.zeros((*self._pool.shape, NEIGHBOURS), np.int64)
        weights = np.zeros((*self._pool.shape, NEIGHBOURS), np.float32)
        judged = np.zeros(self._pool.shape, bool)
        for query, alone in enumerate(_judged_alone(memory, states)):
            places = self._places[query]
            lenders, own = of_near[places], of_own[places]
            allowed = (lenders >= 0) & ~alone[lenders]
            order = allowed.cumsum(1)
            line, column = np.nonzero(allowed & (order <= NEIGHBOURS))
            slot = order[line, column] - 1
            neighbours[query, line, slot] = lenders[line, column]
            weights[query, line, slot] = self._lending[places[line], column]
            weights[query] /= 1.0 + weights[query].sum(1, keepdims=True)
            judged[query] = (own >= 0) & ~alone[own]
            at = judged[query]
            neighbours[query, at, 0], weights[query, at] = own[at], np.eye(1, NEIGHBOURS)
        weights *= (self._pool >= 0)[..., None]
        return LendingWeights(*map(torch.as_tensor, (neighbours, weights, judged)))


class LendingWeights(NamedTuple):
    """Judged documents that those of a pool borrow from, weights with λ = 1, and which ones are judged."""

    neighbours: Int64[Tensor, "queries pool near"]
    weights: Float32[Tensor, "queries pool near"]
    judged: Bool[Tensor, "queries pool"]

    def scores(
        self, memory: QueryMemory, states: Float[Tensor, "queries encoder_dim"]
    ) -> Float[Tensor, "queries pool"]:
        """γ M of the pool, by rows that are not nearly its query."""
        relevance = memory(states, above=ALIKE).relevance
        of_near = relevance.gather(1, self.neighbours.flatten(1)).view(self.neighbours.shape)
        return self.lent((of_near * self.weights).sum(-1), memory.lending)

    def lent(self, scores: Float[Tensor, "queries pool"], lending: float) -> Float[Tensor, "queries pool"]:
        """Scores with λ = `lending` from those with λ = 1."""
        return scores if lending == 1.0 else torch.where(self.judged, scores, lending * scores)


def _judged_alone(
    memory: QueryMemory, states: Float[Tensor, "queries encoder_dim"]
) -> list[Bool[np.ndarray, " documents"]]:
    """For each query the documents that no other row judged."""
    starts, documents = memory.starts.numpy(), memory.of_document.numpy()
    times = np.bincount(documents, minlength=memory.documents)
    alike = (product(unit(states), memory.states) >= ALIKE).numpy()
    alone: list[Bool[np.ndarray, " documents"]] = []
    for line in alike:
        own = [documents[starts[row] : starts[row + 1]] for row in np.flatnonzero(line)]
        counts = np.bincount(np.concatenate(own), minlength=memory.documents) if own else np.zeros_like(times)
        alone.append((counts == times) & (counts > 0))
    return alone
