"""`Snapshot`: an immutable state of a collection's documents, with the operations that search needs.

A state consists of a generation (built, immutable), the rows written after it (fresh, searched exactly) and
the rows deleted since (excluded). Positions 0 to n − 1 belong to the generation, n and above to the fresh
rows. A position is a document; a long one has several embeddings (passages.py). A request holds one snapshot
from beginning to end; a write makes a new one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, NoReturn

import numpy as np
from jaxtyping import Bool, Float, Float32, Int64

from dsearch.engine.snapshot.fresh import Fresh, SnapshotTokens, keyword_of
from dsearch.engine.snapshot.passages import NONE, SnapshotPassages, best_of_documents
from dsearch.errors import DimensionMismatch
from dsearch.index import Generation, KeywordIndex, ParsedQuery
from dsearch.index.exact import best_above

if TYPE_CHECKING:
    from dsearch.attention.late_interaction import RerankerIdentity

__all__ = ["NONE", "Snapshot"]  # NONE: position and row of a missing document

ScoreRows = Callable[["RerankerIdentity", str, Int64[np.ndarray, " rows"]], Float32[np.ndarray, " rows"]]


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Visible documents after operation `sequence`.

    Attributes:
        generation: the built part.
        keyword: BM25 index of the generation.
        fresh: rows written since.
        excluded: positions of the generation and of `fresh` that are deleted or replaced, or None.
        unfold: W_g⁻¹, which maps a query against embeddings (as a row) to one against the generation's keys.
            None for a generation whose keys are its embeddings.
        sequence: last operation of the store that this state contains.
        passages: further embeddings of long documents; None if no document is long.
        tokens: tokens of the documents, for the second stage; None without one.
        reranked: scores a query with the documents of rows by a reranker; None where documents are not at
            hand.
        built: number of documents in the generation, deleted ones included.
        positions: number of all positions, deleted ones included.
        documents: number of visible documents.
    """

    generation: Generation
    keyword: KeywordIndex
    fresh: Fresh
    excluded: Bool[np.ndarray, " positions"] | None
    unfold: Float32[np.ndarray, "encoder_dim key_dim"] | None
    sequence: int
    passages: SnapshotPassages | None = None
    tokens: SnapshotTokens | None = None
    reranked: ScoreRows | None = field(default=None, repr=False, compare=False)
    # Counted once: a search reads them some thirty times.
    built: int = field(init=False, repr=False, compare=False)
    positions: int = field(init=False, repr=False, compare=False)
    documents: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        gone = 0 if self.excluded is None else int(self.excluded.sum())
        object.__setattr__(self, "built", len(self.generation))
        object.__setattr__(self, "positions", self.built + len(self.fresh))
        object.__setattr__(self, "documents", self.positions - gone)

    @classmethod
    def of(
        cls, generation: Generation, fresh: Fresh, removed: Int64[np.ndarray, " rows"], sequence: int
    ) -> Snapshot:
        """Return the state with `fresh` beside `generation` and without the rows `removed`.

        Raises:
            DimensionMismatch: the generation's keys are shorter than its embeddings, so W_g has no inverse.
        """
        keyword = keyword_of(generation)
        unfold = None
        projection = generation.key_projection
        if projection is not None:
            if projection.shape[0] != projection.shape[1]:
                raise DimensionMismatch(
                    f"generation {generation.number} has keys of {projection.shape[0]} numbers for "
                    f"embeddings of {projection.shape[1]}; only square projections serve other heads"
                )
            unfold = np.linalg.inv(projection.astype(np.float64)).astype(np.float32)
        passages = _passages_of(generation, fresh)
        tokens = SnapshotTokens.of(generation.tokens, fresh.tokens, len(generation))
        state = cls(generation, keyword, fresh, None, unfold, sequence, passages, tokens)
        return state.without(removed, sequence)

    def later(self, fresh: Fresh, removed: Int64[np.ndarray, " rows"], sequence: int) -> Snapshot:
        """Return the next state, with `fresh` (this one's extended) and without `removed`."""
        generation = self.generation
        tokens = SnapshotTokens.of(generation.tokens, fresh.tokens, len(generation))
        state = replace(self, fresh=fresh, passages=_passages_of(generation, fresh), tokens=tokens)
        return state.without(removed, sequence)

    def weighed(self, weighting: tuple[float, float] | None) -> Snapshot:
        """Return this state with another (k1, b) of the keyword score, with the generation's for None."""
        keyword = self.keyword.weighed(weighting)
        return self if keyword is self.keyword else replace(self, keyword=keyword)

    def without(self, removed: Int64[np.ndarray, " rows"], sequence: int) -> Snapshot:
        """Return this state without the rows `removed`."""
        excluded = np.zeros(self.positions, bool)
        if self.excluded is not None:
            excluded[: len(self.excluded)] = self.excluded
        at = self.positions_of(removed)
        excluded[at[at != NONE]] = True
        return replace(self, excluded=excluded if excluded.any() else None, sequence=sequence)

    def narrowed(self, rows: Int64[np.ndarray, " rows"]) -> Snapshot:
        """Return this state restricted to those of `rows` that it contains; positions stay."""
        mask = np.zeros(self.positions, bool)
        at = self.positions_of(rows)
        mask[at[at != NONE]] = True
        return self.among(mask)

    def holding(self, query: ParsedQuery) -> Snapshot:
        """Return this state restricted to the documents that match the phrases of `query`."""
        built = self.keyword.matching(query)
        if built is None:
            return self
        fresh = self.keyword.matching_texts(query, self.fresh.texts)
        return self.among(built if fresh is None else np.concatenate([built, fresh]))

    def among(self, mask: Bool[np.ndarray, " positions"]) -> Snapshot:
        """Return this state restricted to the positions that are True in `mask`."""
        excluded = ~mask if self.excluded is None else self.excluded | ~mask
        return replace(self, excluded=excluded if excluded.any() else None)

    def visible(self) -> Int64[np.ndarray, " documents"]:
        """Return every visible position, ascending."""
        everything = np.arange(self.positions)
        return everything if self.excluded is None else everything[~self.excluded]

    def positions_of(self, rows: Int64[np.ndarray, " rows"]) -> Int64[np.ndarray, " rows"]:
        """Return the position of each row, −1 if it is not in this state; deleted rows have one too."""
        positions = self.generation.positions_of(rows)
        if len(self.fresh) == 0:
            return positions
        at = np.minimum(np.searchsorted(self.fresh.rows, rows), len(self.fresh) - 1)
        return np.where(self.fresh.rows[at] == rows, self.built + at, positions)

    def rows(self, positions: Int64[np.ndarray, "*shape"]) -> Int64[np.ndarray, "*shape"]:
        """Return the store's row at each position, −1 at −1."""
        flat = positions.ravel()
        if self._all_built(flat):
            return self.generation.rows[flat].reshape(positions.shape)
        rows = np.full(len(flat), NONE)
        built, later = (flat >= 0) & (flat < self.built), flat >= self.built
        rows[built] = self.generation.rows[flat[built]]
        rows[later] = self.fresh.rows[flat[later] - self.built]
        return rows.reshape(positions.shape)

    def embeddings(self, positions: Int64[np.ndarray, "*shape"]) -> Float32[np.ndarray, "*shape encoder_dim"]:
        """Return the stored embedding at each position (a long document's first), zeros at −1."""
        flat = positions.ravel()
        if self._all_built(flat):
            gathered = np.asarray(self.generation.embeddings).take(flat, axis=0)
            return gathered.reshape(*positions.shape, gathered.shape[1])
        gathered = np.zeros((len(flat), self.generation.embeddings.shape[1]), np.float32)
        built = (flat >= 0) & (flat < self.built)
        gathered[built] = self.generation.embeddings[flat[built]]
        later = flat >= self.built
        gathered[later] = self.fresh.embeddings[flat[later] - self.built]
        return gathered.reshape(*positions.shape, gathered.shape[1])

    def key_embeddings(self, keys: Int64[np.ndarray, "*shape"]) -> Float32[np.ndarray, "*shape encoder_dim"]:
        """Return the stored embedding of each key (see passages.py), zeros at −1."""
        if self.passages is None:
            return self.embeddings(keys)
        first = self.embeddings(np.where(keys < self.positions, keys, NONE))
        further = np.where(keys < self.positions, NONE, keys - self.positions)
        return first + self.passages.embeddings(further)

    def __deepcopy__(self, memo: dict[int, object]) -> Snapshot:
        """Return itself: it is immutable, and a copied layer uses the same documents."""
        return self

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "documents are not pickled: keep layer.state_dict(), which is the head, and open the collection "
            "with dsearch.open_layer(home, collection), in a spawned process (a worker of a DataLoader) "
            "when it first needs the layer"
        )

    def dense_candidates(
        self, folded: Float[np.ndarray, "batch encoder_dim"], k: int
    ) -> Int64[np.ndarray, "batch found"]:
        """Return the positions of highest inner product with each folded query, padded with −1.

        A long document has the inner product of its best passage.
        """
        queries = np.ascontiguousarray(folded, np.float32)
        turned = queries if self.unfold is None else queries @ self.unfold
        if len(self.generation.passages):
            proposed = self._best_built(turned, k)
        else:
            _, proposed = self.generation.dense.search(turned, k, self._excluded_of_generation())
        if len(self.fresh) == 0:
            return proposed
        return np.concatenate([proposed, self._best_fresh(self._fresh_scores(queries), k)], axis=1)

    def dense_scores(
        self, folded: Float[np.ndarray, "batch encoder_dim"]
    ) -> Float32[np.ndarray, "batch positions"] | None:
        """Compute inner products of each query with every document; of the best passage for long documents.

        They equal those of the index, so equal embeddings tie. None if its keys are projected or rounded.
        """
        if self.unfold is not None:
            return None
        queries = np.ascontiguousarray(folded, np.float32)
        scores = self.generation.dense.scores(queries)
        if scores is None:
            return None
        if len(self.generation.passages):
            further = scores[:, self.built :]
            scores = best_of_documents(scores[:, : self.built], further, self.generation.passages.owners)
        return (
            scores if len(self.fresh) == 0 else np.concatenate([scores, self._fresh_scores(queries)], axis=1)
        )

    def best_of(
        self, scores: Float32[np.ndarray, "batch positions"], k: int
    ) -> Int64[np.ndarray, "batch found"]:
        """Return the candidates of `dense_candidates` from the scores of all positions."""
        built = self._best_by_row(scores[:, : self.built], k, 0, -np.inf)
        if len(self.fresh) == 0:
            return built
        return np.concatenate([built, self._best_fresh(scores[:, self.built :], k)], axis=1)

    def best_by_keywords(
        self, scores: Float32[np.ndarray, "batch positions"], k: int
    ) -> Int64[np.ndarray, "batch found"]:
        """Return the candidates of `keyword_candidates` from the scores of all positions."""
        return self._best_by_row(scores, k, 0, 0.0)

    def keyword_candidates(self, queries: Sequence[str], k: int) -> Int64[np.ndarray, "batch found"]:
        """Return the k positions of highest keyword score above 0 of each query, padded with −1."""
        scores, proposed = self.keyword.search(queries, k, self._excluded_of_generation())
        if len(self.fresh) == 0:
            return proposed
        fresh = np.stack([self.keyword.scores_of_texts(query, self.fresh.texts) for query in queries])
        best = self._best_fresh(np.where(fresh > 0, fresh, -np.inf), k)
        # Both scores have the same scale, so k are proposed of both together.
        at = np.where(best == NONE, 0, best - self.built)
        of_best = np.where(best == NONE, 0, np.take_along_axis(fresh, at, 1))
        both, positions = np.concatenate([scores, of_best], 1), np.concatenate([proposed, best], 1)
        order = np.argsort(-both, axis=1, kind="stable")[:, :k]
        return np.take_along_axis(positions, order, 1)

    def keyword_scores(
        self, queries: Sequence[str], positions: Int64[np.ndarray, "batch candidates"]
    ) -> Float32[np.ndarray, "batch candidates"]:
        """Compute b(q, d) of each query for its row of positions; 0 at −1."""
        scores = np.zeros(positions.shape, np.float32)
        for row, query in enumerate(queries):
            built = positions[row] < self.built
            scores[row, built] = self.keyword.scores_at(query, positions[row, built])
            if not built.all():
                at = positions[row, ~built] - self.built
                scores[row, ~built] = self.keyword.scores_of_texts(query, self.fresh.texts, at)
        return scores

    def all_keyword_scores(self, queries: Sequence[str]) -> Float32[np.ndarray, "batch positions"]:
        """Compute b(q, d) for every position; memory is batch × positions × 4 bytes."""
        built = self.keyword.scores(queries)
        if len(self.fresh) == 0:
            return built
        fresh = [self.keyword.scores_of_texts(query, self.fresh.texts) for query in queries]
        return np.concatenate(
            [built, np.array(fresh, np.float32).reshape(len(queries), len(self.fresh))], axis=1
        )

    def keyword_terms(self, query: str, position: int) -> dict[str, float]:
        """Return the part of each term in b(q, d) of the document at `position`; the parts sum to it."""
        if position < self.built:
            return self.keyword.explain(query, position)
        return self.keyword.explain_text(query, self.fresh.texts, position - self.built)

    def _excluded_of_generation(self) -> Bool[np.ndarray, " built"] | None:
        return None if self.excluded is None else self.excluded[: self.built]

    def _best_built(
        self, turned: Float32[np.ndarray, "batch key_dim"], k: int
    ) -> Int64[np.ndarray, "batch k"]:
        """Return the k documents with the nearest keys: search more keys until they belong to k documents."""
        dense, owners = self.generation.dense, self.generation.passages.owners
        excluded = self._excluded_of_generation()
        if excluded is not None:
            excluded = np.concatenate([excluded, excluded[owners]])
        keys = len(dense) - (0 if excluded is None else int(excluded.sum()))
        wanted = min(k, self.built - (0 if excluded is None else int(excluded[: self.built].sum())))
        best = np.full((len(turned), k), NONE, np.int64)
        left, fetch = np.arange(len(turned)), min(2 * k, keys)
        while len(left) and wanted:
            _, nearest = dense.search(turned[left], fetch, excluded)
            short: list[int] = []
            further = np.maximum(nearest - self.built, 0)
            documents = np.where(nearest >= self.built, owners[further], nearest)
            for row, line in zip(left.tolist(), documents.tolist(), strict=True):
                distinct = [document for document in dict.fromkeys(line) if document != NONE][:k]
                best[row, : len(distinct)] = distinct
                if len(distinct) < wanted:
                    short.append(row)
            if fetch == keys:
                break
            left, fetch = np.array(short, np.int64), min(2 * fetch, keys)
        return best

    def _all_built(self, positions: Int64[np.ndarray, " positions"]) -> bool:
        """Return True if all of these positions (at least one) belong to the generation, as nearly always."""
        return len(positions) > 0 and bool(positions.min() >= 0 and positions.max() < self.built)

    def _fresh_scores(
        self, queries: Float32[np.ndarray, "batch encoder_dim"]
    ) -> Float32[np.ndarray, "batch fresh"]:
        scores = queries @ self.fresh.embeddings.T
        if len(further := self.fresh.passages):
            scores = best_of_documents(scores, queries @ further.embeddings.T, further.owners)
        return scores

    def _best_fresh(
        self, scores: Float32[np.ndarray, "batch fresh"], k: int
    ) -> Int64[np.ndarray, "batch found"]:
        return self._best_by_row(scores, k, self.built, -np.inf)

    def _best_by_row(
        self, scores: Float32[np.ndarray, "batch some"], k: int, start: int, least: float
    ) -> Int64[np.ndarray, "batch found"]:
        """Return the k best visible positions of each row above `least`; scores begin at `start`."""
        count = scores.shape[1]
        if self.excluded is not None:
            scores = np.where(self.excluded[start : start + count], -np.inf, scores)
        width = min(k, count)
        rows = [best_above(line, width, least) + start for line in scores] if width else []
        if len(rows) == 1:  # one row needs no padding
            return rows[0][None]
        best = np.full((len(scores), width), NONE, np.int64)
        for row, positions in enumerate(rows):
            best[row, : len(positions)] = positions
        return best


def _passages_of(generation: Generation, fresh: Fresh) -> SnapshotPassages | None:
    if not len(generation.passages) and not len(fresh.passages):
        return None
    later = replace(fresh.passages, owners=fresh.passages.owners + len(generation))
    return SnapshotPassages(len(generation) + len(fresh), generation.passages, later)
