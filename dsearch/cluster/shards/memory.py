"""Query memories on a shard: which of its documents were judged, and what the others borrow.

A memory travels to a shard once, with the embeddings of all judged documents, since a document borrows from
those of other shards too. Requests bring the past queries that theirs attend to, so that every shard gives a
document the score that one machine gives it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Float32, Int64

from dsearch.attention.arrays import Array, numbers_of
from dsearch.attention.memory_rows import FixedMemory, Recalled
from dsearch.cluster.messages import MemoryContent, PastQueries
from dsearch.engine.models.memory import fixed_memory
from dsearch.engine.ranking.memory import SnapshotMemory
from dsearch.engine.snapshot import NONE, Snapshot
from dsearch.errors import NotInCluster
from dsearch.lru_cache import LruCache

MOST = 4  # memories: live versions, before and after insertions


class RecalledHere:
    """Past queries of a request, over the documents of a state.

    Args:
        memory: of the state.
        past: past queries that the queries attend to.
    """

    def __init__(self, memory: SnapshotMemory, past: PastQueries):
        self._memory, self._borrowers = memory, past.borrowers
        rows: Any = past.rows
        weights: Any = past.weights
        self._recalled = Recalled(rows, weights, memory.memory.relevance(rows, weights))

    def best(self, count: int) -> Int64[np.ndarray, "batch found"]:
        """Positions of the documents with the largest M."""
        return self._memory.best(self._recalled, count, borrowers=self._borrowers)

    def scores(
        self, positions: Int64[np.ndarray, "batch candidates"]
    ) -> Float32[np.ndarray, "batch candidates"]:
        """γ M of candidates, 0 at −1."""
        return numbers_of(self._memory.scores(self._recalled, positions))

    def proposable(
        self, positions: Int64[np.ndarray, "batch candidates"]
    ) -> Bool[np.ndarray, "batch candidates"]:
        """Candidates that one machine would propose by M, if it were large enough."""
        return positions != NONE if self._borrowers else self._memory.is_judged(positions)

    def of_all(self) -> Float[Array, "batch positions"]:
        """γ M of every position."""
        return self._memory.of_all(self._recalled)


class ShardMemories:
    """The memories that a shard knows; for many threads.

    Args:
        state: documents of the shard.
        rows: row of each in the home; None in a release of before query memories.
    """

    def __init__(self, state: Snapshot, rows: Int64[np.ndarray, " documents"] | None):
        self._state, self._rows = state, rows
        self._memories = LruCache[str, FixedMemory](MOST)
        self._over: SnapshotMemory | None = None

    def learn(self, shipped: MemoryContent) -> None:
        """Take a memory, whose documents are named by rows of the home.

        Raises:
            NotInCluster: the release does not tell these rows.
        """
        if self._rows is None:
            raise NotInCluster(
                "this release is older than query memories, so its shards cannot serve one; publish the "
                "collection again, or ask with another model"
            )
        memory = fixed_memory(shipped.content)
        judged = numbers_of(memory.rows)
        at = np.minimum(np.searchsorted(self._rows, judged), max(len(self._rows) - 1, 0))
        here = self._rows[at] == judged if len(self._rows) else np.zeros(len(judged), bool)
        own = np.where(here, self._state.rows(np.where(here, at, NONE)), NONE)
        memory = FixedMemory.of_parts({**memory.parts(), "rows": own}, memory.texts, memory.setting)
        self._memories.put(shipped.name, memory)

    def of(self, past: PastQueries, state: Snapshot) -> RecalledHere | None:
        """Return past queries over the documents of a state; None if the memory is unknown."""
        memory = self._memories.get(past.name)
        if memory is None:
            return None
        over = self._over
        if over is None or over.memory is not memory or over.snapshot is not state:
            over = self._over = SnapshotMemory(memory, state)
        return RecalledHere(over, past)
