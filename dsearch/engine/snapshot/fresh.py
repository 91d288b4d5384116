"""`Fresh`: documents written after a generation was built, searched exactly beside it.

`GrowingMatrix`: rows that grow at the cost of the new rows only, while readers keep their earlier view.

`SnapshotTokens`: tokens of a snapshot's documents, those of the generation, and of the rows written since.

`keyword_of`: the keyword index that cuts and scores both.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float32, Int64

from dsearch.index import Generation, KeywordIndex, PassageTable, TokenizedTexts
from dsearch.index.tokens.codec import TokenCodec
from dsearch.index.tokens.table import DocumentTokens, GatheredTokens, TokenTable


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
        parts = [self._document(position) for position in positions.tolist()]
        table = TokenTable.of(self.codec, parts)
        return GatheredTokens(table.codes, np.diff(table.offsets), table.present)

    def document(self, position: int) -> DocumentTokens | None:
        """The tokens of one document with their places; None if they are not known."""
        return self._document(position)

    def _document(self, position: int) -> DocumentTokens | None:
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
