"""Index of documents whose embeddings change during training; they are re-encoded step by step.

Re-encoding everything at once would stop training for long, and never doing it would mine stale negatives
(ANCE, Xiong et al. 2021, arXiv:2007.00808, section 3). So every step re-encodes the next slice: after
`steps_a_round` steps no embedding is older than that. Training never waits, and a seed determines everything,
which a concurrent refresh could not guarantee.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
import torch
from jaxtyping import Float, Float32, Int64
from torch import Tensor

from dsearch.encoder import LearningEncoder
from dsearch.products import product
from dsearch.training.loop.distributed import Processes
from dsearch.training.loop.gradcache import encoded_by_all
from dsearch.types import Progress

_RENEWED_AT_A_TIME = 512

Contents = Callable[[Int64[np.ndarray, " some"]], list[str]]
"""The texts of the documents at these positions."""


class MovingIndex:
    """Exact search over embeddings of different ages.

    Args:
        embeddings: stored embedding of every position.
        visible: searchable positions, ascending.
        contents: function that returns the texts of positions.
        steps_a_round: number of steps to encode everything again; 0 keeps the stored embeddings.
        chunk: number of texts encoded at a time.
        processes: group of processes that share the encoding.
    """

    def __init__(
        self,
        embeddings: Float32[np.ndarray, "positions encoder_dim"],
        visible: Int64[np.ndarray, " documents"],
        contents: Contents,
        *,
        steps_a_round: int,
        chunk: int,
        processes: Processes,
    ):
        self.embeddings = torch.as_tensor(np.array(embeddings))
        self._visible, self._contents = visible, contents
        self._slice = -(-len(visible) // steps_a_round) if steps_a_round else 0
        self._chunk, self._processes = chunk, processes
        self._next = 0

    def step(self, encoder: LearningEncoder) -> None:
        """Encode the next slice again."""
        if self._slice:
            at = (self._next + np.arange(min(self._slice, len(self._visible)))) % len(self._visible)
            self._encode(encoder, self._visible[at])
            self._next = int((self._next + self._slice) % len(self._visible))

    def renew(self, encoder: LearningEncoder, on_progress: Callable[[Progress], None] | None = None) -> None:
        """Encode everything again: a refresh at once."""
        started = time.monotonic()
        for start in range(0, len(self._visible), _RENEWED_AT_A_TIME):
            some = self._visible[start : start + _RENEWED_AT_A_TIME]
            self._encode(encoder, some)
            if on_progress is not None:
                elapsed_s = time.monotonic() - started
                on_progress(Progress("encode", start + len(some), len(self._visible), elapsed_s))

    def nearest(
        self, queries: Float[Tensor, "batch encoder_dim"], k: int
    ) -> Int64[np.ndarray, "batch found"]:
        """The k visible positions of highest inner product for each query, best first."""
        visible = torch.as_tensor(self._visible)
        scores = product(queries.cpu().float(), self.embeddings[visible])
        best = scores.topk(min(k, len(visible)), dim=1).indices
        return self._visible[best.numpy()]

    def staleness(
        self, encoder: LearningEncoder, queries: Float[Tensor, "batch encoder_dim"], *, depth: int = 10
    ) -> float:
        """The share of the first `depth` hits that a refresh would change.

        Over-retrieved: five times as many are encoded afresh and ranked again, so what the refresh would
        bring up from below those is not seen; in a collection of up to so many documents nothing is.
        """
        before = self.nearest(queries, 5 * depth)
        pool, at = np.unique(before, return_inverse=True)
        fresh = torch.as_tensor(
            encoded_by_all(
                encoder, self._contents(pool), "document", chunk=self._chunk, processes=self._processes
            )
        )
        of_each = fresh[torch.as_tensor(at.reshape(before.shape))]
        scores = torch.einsum("bd,bkd->bk", queries.cpu().float(), of_each)
        depth = min(depth, before.shape[1])
        order = scores.topk(depth, dim=1).indices.numpy()
        after = np.take_along_axis(before, order, axis=1)
        overlap = [
            len(set(a) & set(b)) for a, b in zip(before[:, :depth].tolist(), after.tolist(), strict=True)
        ]
        return 1 - float(np.mean(overlap)) / depth

    def state(self) -> dict[str, Tensor]:
        """For a checkpoint."""
        return {"embeddings": self.embeddings, "next": torch.tensor(self._next)}

    def load_state(self, state: dict[str, Tensor]) -> None:
        """Put back what `state` gave."""
        self.embeddings, self._next = state["embeddings"].clone(), int(state["next"])

    def _encode(self, encoder: LearningEncoder, positions: Int64[np.ndarray, " some"]) -> None:
        fresh = encoded_by_all(
            encoder, self._contents(positions), "document", chunk=self._chunk, processes=self._processes
        )
        self.embeddings[torch.as_tensor(positions)] = torch.as_tensor(fresh)
