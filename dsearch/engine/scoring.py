"""What candidates score by meaning: each head's score of each document's best key.

Keys come from the stored embeddings, with a model's changes to single documents, or from an encoder in the
graph. Every passage of a long document is a key of its own, and the best one counts (MaxP, see
`dsearch.attention.maxp`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int64
from torch import Tensor

from dsearch.attention import Score, mix, pool
from dsearch.attention.head import Head
from dsearch.attention.maxp import best_passages
from dsearch.engine.overlaid import Overlaid
from dsearch.engine.passages_beside import PassagesBeside, passages_beside
from dsearch.engine.proposals import Legs
from dsearch.engine.rescoring import ranks_by_inner_product
from dsearch.engine.snapshot import NONE, Snapshot
from dsearch.engine.weighing import Weighed

EmbedRows = Callable[[Int64[np.ndarray, "batch candidates"]], Float[Tensor, "batch candidates encoder_dim"]]


class Scored(NamedTuple):
    """The scores of candidates, and what they were computed from.

    Attributes:
        dense: each head's, of the best passage.
        embeddings: of the candidates, and behind them of their further passages; None where none was read.
        beside: whose those are; None: every candidate has one key.
        taken: the column of each best passage in `embeddings`; None as `beside`.
    """

    dense: Float[Tensor, "batch heads candidates"]
    embeddings: Float[Tensor, "batch passages encoder_dim"] | None = None
    beside: PassagesBeside | None = None
    taken: Int64[Tensor, "batch heads candidates"] | None = None

    def keys(
        self, positions: Int64[np.ndarray, "batch candidates"]
    ) -> Int64[np.ndarray, "batch heads candidates"] | None:
        """The keys that were taken of candidates at these positions; None where each has but one."""
        if self.beside is None or self.taken is None:
            return None
        return self.beside.keys(positions, self.taken.cpu().numpy())

    def pooled(self, weighed: Weighed, head: Head) -> Float[Tensor, "batch encoder_dim"]:
        """Σ w e over the candidates; each head pools the passages that it took."""
        assert self.embeddings is not None
        shares = weighed.mixed
        if self.taken is not None:
            every = weighed.by_head.new_zeros(*self.dense.shape[:2], self.embeddings.shape[1])
            shares = mix(every.scatter(2, self.taken, weighed.by_head), head.mixture)
        return pool(shares.unsqueeze(1), self.embeddings).squeeze(1)


class Scoring(NamedTuple):
    """How the candidates of a search are scored.

    Attributes:
        snapshot: the documents.
        head: whose keys they have.
        score: of queries and keys; None: keywords alone rank, and every document scores 0.
        overlaid: the model's changes to single documents; None where there are none.
        embed: gives embeddings in the graph in place of the stored ones; what it gives is all there is of a
            document: no passages, no changes.
    """

    snapshot: Snapshot
    head: Head
    score: Score | None
    overlaid: Overlaid | None = None
    embed: EmbedRows | None = None

    def known(
        self,
        folded: Float[Tensor, "batch heads encoder_dim"],
        legs: Legs,
        positions: Int64[np.ndarray, "batch candidates"],
    ) -> Scored | None:
        """The scores where finding the candidates told them, so that no embedding is read; else None."""
        if self.score is None:
            return Scored(folded.new_zeros(*folded.shape[:2], positions.shape[1]))
        every = legs.dense_of_all
        if every is None or self.overlaid is not None or not ranks_by_inner_product(self.score):
            return None
        if every.shape[2] == 0:
            return None
        dense = np.take_along_axis(every, positions[:, None], 2)
        dense[np.broadcast_to((positions == NONE)[:, None], dense.shape)] = 0.0
        return Scored(torch.as_tensor(dense).to(folded))

    def best_keys(
        self,
        folded: Float[Tensor, "batch heads encoder_dim"],
        positions: Int64[np.ndarray, "batch candidates"],
    ) -> Int64[np.ndarray, "batch heads candidates"] | None:
        """The keys that `known` took of candidates, as `Scored.keys` names them."""
        beside = None if self.score is None else passages_beside(self.snapshot, positions, folded)
        if beside is None:
            return None
        # They were scored where they lie, so by inner products, and no key of theirs is changed.
        every = torch.cat([self._embeddings(positions, folded), beside.embeddings], dim=1)
        taken = best_passages(folded @ every.mT, beside.owners, positions.shape[1])
        return beside.keys(positions, taken.cpu().numpy())

    def scored(
        self,
        queries: Float[Tensor, "batch heads key_dim"],
        folded: Float[Tensor, "batch heads encoder_dim"],
        positions: Int64[np.ndarray, "batch candidates"],
    ) -> Scored:
        """The scores by the candidates' embeddings, which gradients reach.

        Args:
            queries: in the space of keys.
            folded: the same in the space of embeddings: folded · e = queries · W_K e.
            positions: of the candidates; −1 = none.
        """
        embeddings, beside = self._embeddings(positions, queries), None
        if self.embed is None and self.score is not None:
            beside = passages_beside(self.snapshot, positions, queries)
        owned = positions
        if beside is not None:
            embeddings = torch.cat([embeddings, beside.embeddings], dim=1)
            owned = beside.owned(positions)
        dense = self._dense(queries, folded, self._changed(embeddings, owned))
        if beside is None:
            return Scored(dense, embeddings)
        taken = best_passages(dense, beside.owners, positions.shape[1])
        return Scored(dense.gather(2, taken), embeddings, beside, taken)

    def keys(
        self, positions: Int64[np.ndarray, "batch candidates"], like: Tensor
    ) -> Float[Tensor, "batch candidates key_dim"]:
        """The first keys of documents, with the type and device of `like`."""
        return self.head.keys(self._changed(self._embeddings(positions, like), positions))

    def keys_taken(
        self,
        keys: Int64[np.ndarray, "batch heads candidates"],
        positions: Int64[np.ndarray, "batch candidates"],
        like: Tensor,
    ) -> Float[Tensor, "batch heads candidates key_dim"]:
        """The keys that each head took of the documents at these positions, as `Scored.keys` names them."""
        taken = torch.as_tensor(self.snapshot.key_embeddings(keys)).to(like)
        return self.head.keys(self._changed(taken, positions[:, None]))

    def _dense(
        self,
        queries: Float[Tensor, "batch heads key_dim"],
        folded: Float[Tensor, "batch heads encoder_dim"],
        embeddings: Float[Tensor, "batch candidates encoder_dim"],
    ) -> Float[Tensor, "batch heads candidates"]:
        if self.score is None:
            return folded.new_zeros(*folded.shape[:2], embeddings.shape[1])
        if ranks_by_inner_product(self.score):
            return folded @ embeddings.mT
        return self.score(queries, self.head.keys(embeddings))

    def _changed(
        self, embeddings: Float[Tensor, "*shape encoder_dim"], positions: Int64[np.ndarray, ...]
    ) -> Float[Tensor, "*shape encoder_dim"]:
        """What keys are computed from: embeddings, with the model's changes to single documents."""
        if self.overlaid is None or self.embed is not None:
            return embeddings
        return embeddings + self.overlaid.at(positions, embeddings)

    def _embeddings(
        self, positions: Int64[np.ndarray, "batch candidates"], like: Tensor
    ) -> Float[Tensor, "batch candidates encoder_dim"]:
        if self.embed is not None:
            return self.embed(positions).to(like)
        return torch.as_tensor(self.snapshot.embeddings(positions)).to(like)
