"""Tokens of a snapshot's documents: those of the generation, and of the rows written since."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Int64

from dsearch.index.tokens.codec import TokenCodec
from dsearch.index.tokens.table import DocumentTokens, GatheredTokens, TokenTable


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
        table = self.built or self.fresh
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


def same_codec(first: TokenCodec, other: TokenCodec) -> bool:
    """True if tokens of both can be compared."""
    if first is other:
        return True
    return (
        first.bits == other.bits
        and np.array_equal(first.steps, other.steps)
        and np.array_equal(first.projection, other.projection)
    )
