"""Dense scores of candidates: each head scores each document's best key.

Keys come from the stored embeddings, with a model's changes to single documents, or from an encoder in the
graph. Every passage of a long document is a key of its own, and the best one counts (MaxP, see
`dsearch.attention.retrieval.maxp`). The first passage of a document stands at its position; the further ones
follow behind all candidates, with owners that name their documents.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import numpy as np
from jaxtyping import Float, Float32, Int64

from dsearch.attention.arrays import (
    Array,
    as_like,
    broadcast,
    concat,
    fill,
    gather,
    numbers_of,
    on_device_of,
    scatter,
    zeros,
)
from dsearch.attention.retrieval.fixed_head import HeadFormulas
from dsearch.attention.retrieval.kernel import CandidateWeights, mix
from dsearch.attention.retrieval.maxp import best_passages
from dsearch.engine.ranking.candidates import SearchLegs
from dsearch.engine.ranking.scores import ranks_by_inner_product
from dsearch.engine.snapshot import NONE, Snapshot

if TYPE_CHECKING:
    from dsearch.attention import Score
    from dsearch.engine.ranking.resident import ResidentEmbeddings

Input = TypeVar("Input")
Result = TypeVar("Result")
EmbedRows = Callable[[Int64[np.ndarray, "batch candidates"]], Float[Array, "batch candidates encoder_dim"]]


class CandidateScores(NamedTuple):
    """The scores of candidates, and what they were computed from.

    Attributes:
        dense: each head's, of the best passage.
        embeddings: of the candidates, and behind them of their further passages; None where none was read.
        beside: whose those are; None: every candidate has one key.
        taken: the column of each best passage in `embeddings`; None as `beside`.
    """

    dense: Float[Array, "batch heads candidates"]
    embeddings: Float[Array, "batch passages encoder_dim"] | None = None
    beside: PassagesBeside | None = None
    taken: Int64[Array, "batch heads candidates"] | None = None

    def keys(
        self, positions: Int64[np.ndarray, "batch candidates"]
    ) -> Int64[np.ndarray, "batch heads candidates"] | None:
        """The keys that were taken of candidates at these positions; None where each has but one."""
        if self.beside is None or self.taken is None:
            return None
        return self.beside.keys(positions, numbers_of(self.taken))

    def pooled(self, weighed: CandidateWeights) -> Float[Array, "batch encoder_dim"]:
        """Σ w e over the candidates; each head pools the passages that it took."""
        assert self.embeddings is not None
        shares = weighed.mixed
        if self.taken is not None:
            every = scatter(weighed.by_head, self.taken, self.embeddings.shape[1])
            shares = mix(every, weighed.mixture)
        return (shares[:, None] @ self.embeddings)[:, 0]


class Scoring(NamedTuple):
    """Scoring of the candidates of a search.

    Attributes:
        snapshot: the documents.
        head: head that projects their keys.
        score: score of queries and keys; None: only keywords rank, and every document has the dense score 0.
        embed: returns embeddings in the graph that replace the stored ones; documents then have no passages.
        matches: the dense score of each query at every position, where a field is compared (field_match.py).
        bias: a number for each position, added to the dense score; None for none.
        resident: the embeddings on the layer's device; None: they are read on the host.
    """

    snapshot: Snapshot
    head: HeadFormulas
    score: Score | None
    embed: EmbedRows | None = None
    matches: Float32[np.ndarray, "batch positions"] | None = None
    bias: Float[Array, " positions"] | None = None
    resident: ResidentEmbeddings | None = None

    def scores_of_legs(
        self,
        folded: Float[Array, "batch heads encoder_dim"],
        legs: SearchLegs,
        positions: Int64[np.ndarray, "batch candidates"],
    ) -> CandidateScores | None:
        """The scores where finding the candidates told them, so that no embedding is read; else None."""
        if self.bias is not None:
            return None
        if self.score is None:
            return CandidateScores(zeros((*folded.shape[:2], positions.shape[1]), folded))
        every = legs.dense_of_all
        if every is None or not ranks_by_inner_product(self.score):
            return None
        if every.shape[2] == 0:
            return None
        dense = np.take_along_axis(every, positions[:, None], 2)
        if (absent := positions == NONE).any():
            dense[np.broadcast_to(absent[:, None], dense.shape)] = 0.0
        return CandidateScores(as_like(dense, folded))

    def best_keys(
        self,
        folded: Float[Array, "batch heads encoder_dim"],
        positions: Int64[np.ndarray, "batch candidates"],
    ) -> Int64[np.ndarray, "batch heads candidates"] | None:
        """The keys that `scores_of_legs` took of candidates, as `CandidateScores.keys` names them."""
        further = (
            None if self.score is None else passages_beside(self.snapshot, positions, folded, self.resident)
        )
        if further is None:
            return None
        # They were scored where they lie, so by inner products.
        every = concat([self._embeddings(positions, folded), further.embeddings], 1)
        best = best_passages(folded @ every.mT, further.owners, positions.shape[1])
        return further.keys(positions, numbers_of(best))

    def scored(
        self,
        queries: Float[Array, "batch heads key_dim"],
        folded: Float[Array, "batch heads encoder_dim"],
        positions: Int64[np.ndarray, "batch candidates"],
    ) -> CandidateScores:
        """The scores by the candidates' embeddings, which gradients reach.

        Args:
            queries: in the space of keys.
            folded: the same in the space of embeddings: folded · e = queries · W_K e.
            positions: of the candidates; −1 = none.
        """
        embeddings, further = self._embeddings(positions, queries), None
        if self.matches is not None:
            return CandidateScores(self._biased(self._matched(positions, queries), positions), embeddings)
        if self.embed is None and self.score is not None:
            further = passages_beside(self.snapshot, positions, queries, self.resident)
        if further is not None:
            embeddings = concat([embeddings, further.embeddings], 1)
        dense = self._dense(queries, folded, embeddings)
        if further is None:
            return CandidateScores(self._biased(dense, positions), embeddings)
        best = best_passages(dense, further.owners, positions.shape[1])
        return CandidateScores(self._biased(gather(dense, best, 2), positions), embeddings, further, best)

    def keys(
        self, positions: Int64[np.ndarray, "batch candidates"], like: Array
    ) -> Float[Array, "batch candidates key_dim"]:
        """The first keys of documents, with the type and device of `like`."""
        return self.head.keys(self._embeddings(positions, like))

    def keys_taken(
        self,
        keys: Int64[np.ndarray, "batch heads candidates"],
        like: Array,
    ) -> Float[Array, "batch heads candidates key_dim"]:
        """The keys that each head took, by their places as in `CandidateScores.keys`."""
        if self.resident is not None:
            return self.head.keys(self.resident.keys(keys, like))
        return self.head.keys(as_like(self.snapshot.key_embeddings(keys), like))

    def _biased(
        self, dense: Float[Array, "batch heads candidates"], positions: Int64[np.ndarray, "batch candidates"]
    ) -> Float[Array, "batch heads candidates"]:
        if self.bias is None:
            return dense
        at = on_device_of(np.maximum(positions, 0), self.bias)
        rows = fill(self.bias[at], on_device_of(positions == NONE, self.bias), 0.0)
        return dense + rows.to(dense).unsqueeze(1)

    def _dense(
        self,
        queries: Float[Array, "batch heads key_dim"],
        folded: Float[Array, "batch heads encoder_dim"],
        embeddings: Float[Array, "batch candidates encoder_dim"],
    ) -> Float[Array, "batch heads candidates"]:
        if self.score is None:
            return zeros((*folded.shape[:2], embeddings.shape[1]), folded)
        if ranks_by_inner_product(self.score):
            return folded @ embeddings.mT
        return self.score(queries, self.head.keys(embeddings))

    def _matched(
        self, positions: Int64[np.ndarray, "batch candidates"], queries: Float[Array, "batch heads key_dim"]
    ) -> Float[Array, "batch heads candidates"]:
        """Scores of the field, the same for all heads; of one row of positions for every query."""
        assert self.matches is not None
        if len(positions) == 1:
            matches = self.matches[:, np.maximum(positions[0], 0)]
            heads = queries.shape[0] * queries.shape[1] // max(len(matches), 1)
            by_head = as_like(matches, queries)[:, None]
            by_head = broadcast(by_head, (len(matches), heads, matches.shape[1]))
            return by_head.reshape(*queries.shape[:2], positions.shape[1])
        matches = np.take_along_axis(self.matches, np.maximum(positions, 0), 1)
        by_head = as_like(matches, queries)[:, None]
        return broadcast(by_head, (len(matches), queries.shape[1], matches.shape[1]))

    def _embeddings(
        self, positions: Int64[np.ndarray, "batch candidates"], like: Array
    ) -> Float[Array, "batch candidates encoder_dim"]:
        if self.embed is not None:
            return self.embed(positions).to(like)
        if self.resident is not None:
            return self.resident.rows(positions, like)
        return as_like(self.snapshot.embeddings(positions), like)


def passages_beside(
    snapshot: Snapshot,
    positions: Int64[np.ndarray, "batch candidates"],
    like: Array,
    resident: ResidentEmbeddings | None = None,
) -> PassagesBeside | None:
    """The further passages of these candidates, with the type and device of `like`; None: there are none."""
    if snapshot.passages is None or (passages := snapshot.passages.beside(positions)) is None:
        return None
    columns, further = passages
    if resident is None:
        embeddings = as_like(snapshot.passages.embeddings(further), like)
    else:
        embeddings = resident.passages(further, like)
    first = np.broadcast_to(np.arange(positions.shape[1], dtype=np.int64), positions.shape)
    owners = np.concatenate([first, columns], axis=1)[:, None]
    return PassagesBeside(embeddings, on_device_of(owners, like), further + snapshot.positions)


class PassagesBeside(NamedTuple):
    """Further passages of the candidates of each query.

    Attributes:
        embeddings: of them, zeros at padding.
        owners: the candidate of each first passage, which is itself, and of each further one.
        further: their keys.
    """

    embeddings: Float[Array, "batch extra encoder_dim"]
    owners: Int64[Array, "batch one passages"]
    further: Int64[np.ndarray, "batch extra"]

    def keys(
        self,
        positions: Int64[np.ndarray, "batch candidates"],
        taken: Int64[np.ndarray, "batch heads candidates"],
    ) -> Int64[np.ndarray, "batch heads candidates"]:
        """The keys of the passages that were taken, −1 at −1."""
        every = np.concatenate([positions, self.further], axis=1)[:, None]
        keys = np.take_along_axis(np.broadcast_to(every, (*taken.shape[:2], every.shape[2])), taken, 2)
        return np.where(positions[:, None] == NONE, NONE, keys)


def under_autocast_of_now(function: Callable[[Input], Result], kind: str) -> Callable[[Input], Result]:
    """A function of the caller's, such as an encoder, keeps the precision that the caller chose for it."""
    import torch

    enabled, dtype = torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind)

    def as_now(inputs: Input) -> Result:
        with torch.autocast(kind, dtype=dtype, enabled=enabled):
            return function(inputs)

    return as_now


def rows_at(
    values: Float[Array, "positions value_dim"], positions: Int64[np.ndarray, "batch candidates"]
) -> Float[Array, "batch candidates value_dim"]:
    """The value at each position; zeros at −1, whatever the values are."""
    if len(values) == 0:
        return zeros((*positions.shape, values.shape[1]), values)
    rows = values[on_device_of(np.maximum(positions, 0), values)]
    return fill(rows, on_device_of(positions == NONE, values)[..., None], 0.0)
