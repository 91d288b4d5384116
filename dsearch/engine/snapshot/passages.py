"""Passages of a snapshot's long documents: their positions and embeddings.

The key of a document for a query and a head is that of its best passage
(`dsearch.attention.retrieval.maxp`). All keys of a snapshot are numbered consecutively: key p is the first
passage of the document at position p (a short document has only this one). The further passages of the
generation follow, then those of fresh documents.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from jaxtyping import Float32, Int64

from dsearch.index import PassageTable

NONE = -1


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
