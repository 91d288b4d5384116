"""Further embeddings of long documents in a generation.

    embeddings.npy         float32 [n + m, encoder_dim]: a document each, then m further passages
    passage_owners.npy     int64 [m], ascending: the position of each further passage's document
    passage_spans.npy      int64 [m, 2]: [start, end) of it in characters of the document's text
    first_spans.npy        int64 [long, 2]: the same of the first passage of each document that has several

The last three exist only if m is not 0. The embedding of a document's first passage is the document's own, so
position p is line p of embeddings.npy whether documents are long or not.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jaxtyping import Float32, Int64

from dsearch.errors import InvalidRequest

OWNERS, SPANS, FIRST_SPANS = "passage_owners.npy", "passage_spans.npy", "first_spans.npy"


@dataclass(frozen=True, slots=True)
class PassageTable:
    """Further passages, by position of the document, then by place in it.

    Attributes:
        owners: position of each passage's document, ascending.
        spans: [start, end) of each in characters of its document's text.
        first_spans: spans of the first passages of the documents in `owners`, in that order.
        embeddings: embedding of each further passage.
    """

    owners: Int64[np.ndarray, " further"]
    spans: Int64[np.ndarray, "further 2"]
    first_spans: Int64[np.ndarray, "long 2"]
    embeddings: Float32[np.ndarray, "further encoder_dim"]

    def __len__(self) -> int:
        return len(self.owners)

    @classmethod
    def empty(cls, encoder_dim: int) -> PassageTable:
        """Create the empty table, for documents with one embedding each."""
        nowhere = np.zeros((0, 2), np.int64)
        return cls(np.zeros(0, np.int64), nowhere, nowhere, np.zeros((0, encoder_dim), np.float32))

    @classmethod
    def load(cls, folder: Path, embeddings: Float32[np.ndarray, "further encoder_dim"]) -> PassageTable:
        """Read what `PassageWriter` wrote beside these embeddings.

        Raises:
            OSError, ValueError: a file cannot be read, or is inconsistent with the others.
        """
        if embeddings.ndim != 2:
            raise ValueError(f"embeddings.npy has {embeddings.ndim} dimensions, not 2")
        if len(embeddings) == 0:
            return cls.empty(embeddings.shape[1])
        owners, spans, first = (
            np.load(folder / name, allow_pickle=False) for name in (OWNERS, SPANS, FIRST_SPANS)
        )
        long = len(np.unique(owners))
        if (owners.shape, spans.shape, first.shape) != ((len(embeddings),), (len(embeddings), 2), (long, 2)):
            raise ValueError(f"{OWNERS}, {SPANS}, {FIRST_SPANS} and embeddings.npy do not fit each other")
        return cls(owners, spans, first, embeddings)


class PassageWriter:
    """Yields the embeddings of successive tables, and collects their owners and spans for writing.

    Args:
        tables: passage tables; owners ascend within and across them, and one table has all of a document.
        documents: number of documents; owners are below it.
    """

    def __init__(self, tables: Iterable[PassageTable], documents: int):
        self._tables = tables
        self._documents = documents
        self._parts: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = []
        self.count = 0

    def embeddings(self) -> Iterator[Float32[np.ndarray, "block encoder_dim"]]:
        """The embeddings, block by block.

        Raises:
            InvalidRequest: owners do not ascend, or are out of range.
        """
        last = -1
        for table in self._tables:
            owners = table.owners
            if len(owners) == 0:
                continue
            ascending = bool((np.diff(owners) >= 0).all()) and owners[0] > last
            if not ascending or owners[-1] >= self._documents:
                raise InvalidRequest(
                    f"owners of passages from {owners[0]} to {owners[-1]} after {last}; "
                    f"use ascending positions below {self._documents}"
                )
            last = int(owners[-1])
            self.count += len(owners)
            self._parts.append((owners, table.spans, table.first_spans))
            yield table.embeddings

    def save(self, folder: Path) -> None:
        """Write owners and spans, if there are any."""
        if self.count:
            for name, parts in zip((OWNERS, SPANS, FIRST_SPANS), zip(*self._parts, strict=True), strict=True):
                np.save(folder / name, np.concatenate(parts).astype(np.int64))
