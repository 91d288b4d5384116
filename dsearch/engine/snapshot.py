"""`Snapshot`: an immutable view of a collection's documents, on which a search runs from beginning to end.

A state consists of a generation (built, immutable), the rows written after it (fresh, searched exactly) and
the rows deleted since (excluded). Positions 0 to n − 1 belong to the generation, n and above to the fresh
rows. A write makes a new snapshot.

A position is a document. Its key for a query and a head is that of its best passage
(`dsearch.attention.retrieval.maxp`). All keys are numbered consecutively: key p is the first passage of the
document at position p (a short document has only this one). The further passages of the generation follow,
then those of fresh documents.

For the second stage a snapshot has the tokens of its documents (`SnapshotTokens`); `QueryTokens` are
those of a query, projected alike.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, NamedTuple, NoReturn

import numpy as np
from jaxtyping import Bool, Float, Float32, Int64

from dsearch.attention.arrays import Array
from dsearch.encoder import TextTokens
from dsearch.errors import DimensionMismatch
from dsearch.index import Generation, KeywordIndex, ParsedQuery, PassageTable, TokenizedTexts
from dsearch.index.exact import best_above
from dsearch.index.tokens import DocumentTokens, GatheredTokens, TokenCodec, TokenTable

if TYPE_CHECKING:
    from dsearch.attention.late_interaction import RerankerIdentity


ScoreRows = Callable[["RerankerIdentity", str, Int64[np.ndarray, " rows"]], Float32[np.ndarray, " rows"]]
NONE = -1  # position and row of a missing document
_MOST_QUERY_TOKENS = 64  # of largest weight


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
        return state.excluding(removed, sequence)

    def later(self, fresh: Fresh, removed: Int64[np.ndarray, " rows"], sequence: int) -> Snapshot:
        """Return the next state, with `fresh` (this one's extended) and without `removed`."""
        generation = self.generation
        tokens = SnapshotTokens.of(generation.tokens, fresh.tokens, len(generation))
        state = replace(self, fresh=fresh, passages=_passages_of(generation, fresh), tokens=tokens)
        return state.excluding(removed, sequence)

    def with_bm25(self, weighting: tuple[float, float] | None) -> Snapshot:
        """Return this state with another (k1, b) of the keyword score, with the generation's for None."""
        keyword = self.keyword.weighed(weighting)
        return self if keyword is self.keyword else replace(self, keyword=keyword)

    def excluding(self, removed: Int64[np.ndarray, " rows"], sequence: int) -> Snapshot:
        """Return this state without the rows `removed`."""
        excluded = np.zeros(self.positions, bool)
        if self.excluded is not None:
            excluded[: len(self.excluded)] = self.excluded
        at = self.positions_of(removed)
        excluded[at[at != NONE]] = True
        return replace(self, excluded=excluded if excluded.any() else None, sequence=sequence)

    def restricted_to(self, rows: Int64[np.ndarray, " rows"]) -> Snapshot:
        """Return this state restricted to those of `rows` that it contains; positions stay."""
        mask = np.zeros(self.positions, bool)
        at = self.positions_of(rows)
        mask[at[at != NONE]] = True
        return self.where(mask)

    def matching_phrases(self, query: ParsedQuery) -> Snapshot:
        """Return this state restricted to the documents that match the phrases of `query`."""
        built = self.keyword.matching(query)
        if built is None:
            return self
        fresh = self.keyword.matching_texts(query, self.fresh.texts)
        return self.where(built if fresh is None else np.concatenate([built, fresh]))

    def where(self, mask: Bool[np.ndarray, " positions"]) -> Snapshot:
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
        """Return the stored embedding of each key , zeros at −1."""
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


@dataclass(frozen=True, slots=True)
class Fresh:
    """Documents that are not in the generation; owners of passages count from 0.

    `tokens` are those of a second stage; None without one.
    """

    rows: Int64[np.ndarray, " fresh"]
    embeddings: Float32[np.ndarray, "fresh encoder_dim"]
    texts: TokenizedTexts
    passages: PassageTable
    tokens: TokenTable | None = None

    @classmethod
    def of(
        cls,
        rows: Int64[np.ndarray, " fresh"],
        embeddings: Float32[np.ndarray, "fresh encoder_dim"],
        texts: Sequence[str],
        keyword: KeywordIndex,
        passages: PassageTable | None = None,
        tokens: TokenTable | None = None,
    ) -> Fresh:
        """Tokenise texts like those of the generation."""
        if passages is None:
            passages = PassageTable.empty(embeddings.shape[1])
        return cls(rows, embeddings, TokenizedTexts.of(keyword.tokenizer, texts), passages, tokens)

    def extended(
        self,
        rows: Int64[np.ndarray, " more"],
        embeddings: Float32[np.ndarray, "all encoder_dim"],
        texts: Sequence[str],
        passages: PassageTable,
        tokens: TokenTable | None = None,
    ) -> Fresh:
        """Return these documents with new ones appended.

        Args:
            rows: rows of the new documents, above the present ones.
            embeddings: embeddings of present and new documents.
            texts: texts of the new documents.
            passages: passages of the new documents, owners counted from 0.
            tokens: tokens of present and new documents; None without a second stage.
        """
        if len(passages):
            both, owners = (self.passages, passages), passages.owners + len(self)
            passages = PassageTable(
                np.concatenate([self.passages.owners, owners]),
                np.concatenate([table.spans for table in both]),
                np.concatenate([table.first_spans for table in both]),
                np.concatenate([table.embeddings for table in both]),
            )
        else:
            passages = self.passages
        return Fresh(
            np.concatenate([self.rows, rows]), embeddings, self.texts.extended(texts), passages, tokens
        )

    def __len__(self) -> int:
        return len(self.rows)


class GrowingMatrix:
    """Rows of numbers with spare capacity.

    Each returned array is a view of the first rows, which never change. One thread at a time may append.

    Args:
        rows: initial rows.
    """

    def __init__(self, rows: Float32[np.ndarray, "rows dim"]):
        self._array, self._used = rows, len(rows)

    def __len__(self) -> int:
        return self._used

    def appended(self, more: Float32[np.ndarray, "more dim"]) -> Float32[np.ndarray, "all dim"]:
        """Append `more` and return all rows."""
        used = self._used + len(more)
        if used > len(self._array):
            # Growth by half: each row is copied at most three times on average.
            room = np.empty((max(used, used + used // 2), more.shape[1]), np.float32)
            room[: self._used] = self._array[: self._used]
            self._array = room
        self._array[self._used : used] = more
        self._used = used
        return self._array[:used]


@dataclass(frozen=True, slots=True, eq=False)
class SnapshotTokens:
    """Tokens by position of a state; both tables have the same codec.

    Attributes:
        built: of the generation; None where it was built without.
        fresh: of the rows written since; None likewise.
        documents: number of positions of the generation.
    """

    built: TokenTable | None
    fresh: TokenTable | None
    documents: int

    @classmethod
    def of(cls, built: TokenTable | None, fresh: TokenTable | None, documents: int) -> SnapshotTokens | None:
        """Join both; None without any token. Fresh ones of another codec are left out."""
        if built is not None and fresh is not None and not same_codec(built.codec, fresh.codec):
            fresh = None
        return None if built is None and fresh is None else cls(built, fresh, documents)

    @property
    def codec(self) -> TokenCodec:
        """Their codec."""
        table = self.fresh if self.built is None else self.built
        assert table is not None
        return table.codec

    def gather(self, positions: Int64[np.ndarray, " candidates"]) -> GatheredTokens:
        """The tokens of candidates, in their order; none for a document that has none, and at −1."""
        in_built = (positions >= 0) & (positions < self.documents)
        if self.built is not None and (self.fresh is None or not (positions >= self.documents).any()):
            return self.built.gather(np.where(in_built, positions, -1))
        parts = [self.document(position) for position in positions.tolist()]
        table = TokenTable.of(self.codec, parts)
        return GatheredTokens(table.codes, np.diff(table.offsets), table.present)

    def document(self, position: int) -> DocumentTokens | None:
        """The tokens of one document with their places; None if they are not known."""
        if position < 0:
            return None
        if position < self.documents:
            return None if self.built is None else self.built.document(position)
        return None if self.fresh is None else self.fresh.document(position - self.documents)


def keyword_of(generation: Generation) -> KeywordIndex:
    """Return the keyword index of a generation, an empty one if it was built without."""
    # One over no documents is false, and yet has the collection's language.
    return KeywordIndex.build([]) if generation.keyword is None else generation.keyword


def same_codec(first: TokenCodec, other: TokenCodec) -> bool:
    """True if tokens of both can be compared."""
    if first is other:
        return True
    return (
        first.bits == other.bits
        and np.array_equal(first.steps, other.steps)
        and np.array_equal(first.projection, other.projection)
    )


class SnapshotPassages:
    """The further passages of the documents of one state.

    Args:
        positions: number of positions; keys of further passages are numbered from there.
        tables: passages of the generation and of the fresh documents; owners are positions of the state,
            ascending from the first table to the second.

    Attributes:
        owners: position of each further passage's document, ascending.
        long: positions of documents that have further passages, ascending.
    """

    def __init__(self, positions: int, *tables: PassageTable):
        self.positions = positions
        self.owners: Int64[np.ndarray, " further"] = np.concatenate([table.owners for table in tables])
        self.long: Int64[np.ndarray, " long"] = np.unique(self.owners)
        self._spans = np.concatenate([table.spans for table in tables])
        self._first_spans = np.concatenate([table.first_spans for table in tables])
        self._parts = [table.embeddings for table in tables if len(table)]
        self._ends = np.cumsum([len(part) for part in self._parts])

    def __len__(self) -> int:
        return len(self.owners)

    def embeddings(self, further: Int64[np.ndarray, "*shape"]) -> Float32[np.ndarray, "*shape encoder_dim"]:
        """Return embeddings of further passages by number; zeros at −1."""
        flat = further.ravel()
        gathered = np.zeros((len(flat), self._parts[0].shape[1]), np.float32)
        start = 0
        for part, end in zip(self._parts, self._ends.tolist(), strict=True):
            here = (flat >= start) & (flat < end)
            gathered[here] = part[flat[here] - start]
            start = end
        return gathered.reshape(*further.shape, gathered.shape[1])

    def scores(
        self, queries: Float32[np.ndarray, "batch encoder_dim"]
    ) -> Float32[np.ndarray, "batch further"]:
        """Compute the inner product of each query with every further passage."""
        return np.concatenate([queries @ part.T for part in self._parts], axis=1)

    def beside(
        self, positions: Int64[np.ndarray, "batch candidates"]
    ) -> tuple[Int64[np.ndarray, "batch extra"], Int64[np.ndarray, "batch extra"]] | None:
        """Return the further passages of these candidates; None if there are none.

        Returns:
            (columns, further): candidate of each passage, and number of the passage; padded with the number
            of candidates and −1.
        """
        first: Int64[np.ndarray, "batch candidates"] = np.searchsorted(self.owners, positions, side="left")
        counts: Int64[np.ndarray, "batch candidates"] = (
            np.searchsorted(self.owners, positions, side="right") - first
        )
        per_row = counts.sum(axis=1)
        longest = int(per_row.max(initial=0))
        if longest == 0:
            return None
        flat = counts.ravel()
        starts = np.cumsum(flat) - flat  # of each candidate's passages
        place = np.arange(int(flat.sum())) - np.repeat(starts, flat)  # within the document
        further = np.repeat(first.ravel(), flat) + place
        batch, candidates = positions.shape
        every = np.arange(candidates, dtype=np.int64)
        columns = np.full((batch, longest), candidates, np.int64)
        padded = np.full((batch, longest), NONE, np.int64)
        used = np.arange(longest) < per_row[:, None]
        columns[used] = np.repeat(np.tile(every, batch), flat)
        padded[used] = further
        return columns, padded

    def span_of(self, key: int) -> tuple[int, int, int] | None:
        """(ordinal, start, end) of a key's passage in its document's text; None for a short document."""
        if key < self.positions:
            at = int(np.searchsorted(self.long, key))
            if at == len(self.long) or self.long[at] != key:
                return None
            start, end = self._first_spans[at].tolist()
            return 0, start, end
        further = key - self.positions
        start, end = self._spans[further].tolist()
        first = int(np.searchsorted(self.owners, int(self.owners[further])))
        return further - first + 1, start, end

    def blocks(
        self, size: int = 8192
    ) -> Iterator[tuple[Int64[np.ndarray, " long"], Int64[np.ndarray, " further"]]]:
        """Yield long documents with the numbers of their further passages, about `size` at a time."""
        starts = np.searchsorted(self.owners, self.long)
        stops = np.append(starts[1:], len(self))
        begin = 0
        while begin < len(self.long):
            end = begin + 1
            while end < len(self.long) and stops[end] - starts[begin] <= size:
                end += 1
            yield self.long[begin:end], np.arange(starts[begin], stops[end - 1], dtype=np.int64)
            begin = end


def best_of_documents(
    scores: Float32[np.ndarray, "batch documents"],
    further: Float32[np.ndarray, "batch further"],
    owners: Int64[np.ndarray, " further"],
) -> Float32[np.ndarray, "batch documents"]:
    """MaxP without gradients: scores of first passages, raised to those of further ones.

    Args:
        scores: scores of first passages.
        further: scores of further passages.
        owners: document of each further passage, ascending.
    """
    best = scores.copy()
    if len(owners):
        starts = np.flatnonzero(np.diff(owners, prepend=NONE))
        long = owners[starts]
        best[:, long] = np.maximum(best[:, long], np.maximum.reduceat(further, starts, axis=1))
    return best


class QueryTokens(NamedTuple):
    """The tokens of one query.

    Attributes:
        states: projected as the documents' are; a tensor of the graph where the encoder learns.
        weights: idf of each one's word; never all 0.
        spans: [start, end) of each in characters of the query.
        text: the query, for a reranker.
    """

    states: Float32[np.ndarray, "query_tokens dims"] | Float[Array, "query_tokens dims"]
    weights: Float32[np.ndarray, " query_tokens"]
    spans: Int64[np.ndarray, "query_tokens 2"]
    text: str = ""


def query_tokens(tokens: TextTokens, text: str, snapshot: Snapshot) -> QueryTokens:
    """Project a query's tokens, and weigh them by the idf of their words.

    Stop words have none; a query of nothing else weighs all of its tokens alike.
    """
    assert snapshot.tokens is not None
    best, weights = _heaviest(text, tokens.spans, snapshot)
    projected = snapshot.tokens.codec.projected(tokens.states[best])
    return QueryTokens(projected, weights[best], tokens.spans[best], text)


def query_tokens_in_graph(
    states: Float[Array, "tokens encoder_dim"],
    spans: Int64[np.ndarray, "tokens 2"],
    text: str,
    snapshot: Snapshot,
) -> QueryTokens:
    """`query_tokens` of states that an encoder gives in the graph: gradients reach it."""
    import torch

    assert snapshot.tokens is not None
    best, weights = _heaviest(text, spans, snapshot)
    projection = torch.as_tensor(snapshot.tokens.codec.projection).to(states)
    projected = torch.nn.functional.normalize(states[torch.as_tensor(best)] @ projection.mT, dim=-1)
    return QueryTokens(projected, weights[best], spans[best], text)


def _heaviest(
    text: str, spans: Int64[np.ndarray, "tokens 2"], snapshot: Snapshot
) -> tuple[Int64[np.ndarray, " query_tokens"], Float32[np.ndarray, " tokens"]]:
    """The tokens of largest weight, ascending; and the weights of all."""
    weights = token_weights(text, spans, snapshot.keyword)
    if not weights.any():
        weights = np.ones(len(weights), np.float32)
    best = np.sort(np.argsort(-weights, kind="stable")[:_MOST_QUERY_TOKENS])
    return best[weights[best] > 0], weights


def token_weights(
    text: str, spans: Int64[np.ndarray, "tokens 2"], keyword: KeywordIndex
) -> Float32[np.ndarray, " tokens"]:
    """The idf of the word that each token is part of; 0 for one that is no term."""
    idf_of: dict[str, float] = {}
    weights = np.zeros(len(spans), np.float32)
    for number, (start, end) in enumerate(spans.tolist()):
        while start > 0 and text[start - 1].isalnum():
            start -= 1
        while end < len(text) and text[end].isalnum():
            end += 1
        word = text[start:end]
        if word not in idf_of:
            idf_of[word] = keyword.idf(word)
        weights[number] = idf_of[word]
    return weights
