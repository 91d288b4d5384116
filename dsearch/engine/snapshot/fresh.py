"""`Fresh`: documents written after a generation was built; they are searched exactly beside it.

`GrowingMatrix`: rows that grow at the cost of the new rows only, while readers keep their earlier view.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float32, Int64

from dsearch.index import KeywordIndex, PassageTable, TokenizedTexts


@dataclass(frozen=True, slots=True)
class Fresh:
    """Documents that are not in the generation; of passages, owners are counted from 0 here."""

    rows: Int64[np.ndarray, " fresh"]
    embeddings: Float32[np.ndarray, "fresh encoder_dim"]
    texts: TokenizedTexts
    passages: PassageTable

    @classmethod
    def of(
        cls,
        rows: Int64[np.ndarray, " fresh"],
        embeddings: Float32[np.ndarray, "fresh encoder_dim"],
        texts: Sequence[str],
        keyword: KeywordIndex,
        passages: PassageTable | None = None,
    ) -> Fresh:
        """Cut the texts as the generation's were cut."""
        if passages is None:
            passages = PassageTable.empty(embeddings.shape[1])
        return cls(rows, embeddings, TokenizedTexts.of(keyword.tokenizer, texts), passages)

    def extended(
        self,
        rows: Int64[np.ndarray, " more"],
        embeddings: Float32[np.ndarray, "all encoder_dim"],
        texts: Sequence[str],
        passages: PassageTable,
    ) -> Fresh:
        """Return these documents with further ones behind them.

        Args:
            rows: of the further ones, above those that are here.
            embeddings: of these and the further ones.
            texts: of the further ones.
            passages: of the further ones, owners counted from 0 there.
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
        return Fresh(np.concatenate([self.rows, rows]), embeddings, self.texts.extended(texts), passages)

    def __len__(self) -> int:
        return len(self.rows)


class GrowingMatrix:
    """Rows of numbers with room for more behind them.

    Every array that was given out is a view of the first rows, which do not change any more. One thread at a
    time may append.

    Args:
        rows: the first ones.
    """

    def __init__(self, rows: Float32[np.ndarray, "rows dim"]):
        self._array, self._used = rows, len(rows)

    def __len__(self) -> int:
        return self._used

    def appended(self, more: Float32[np.ndarray, "more dim"]) -> Float32[np.ndarray, "all dim"]:
        """All rows, `more` at the end."""
        used = self._used + len(more)
        if used > len(self._array):
            # Half as much again: each row is copied three times at most, on average.
            room = np.empty((max(used, used + used // 2), more.shape[1]), np.float32)
            room[: self._used] = self._array[: self._used]
            self._array = room
        self._array[self._used : used] = more
        self._used = used
        return self._array[:used]
