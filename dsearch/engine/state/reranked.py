"""`KeptRerankings`: what a reranker said of queries and documents lately.

A row is one version of a document and never changes, so the score of a query and a row stays as it is.
"""

from __future__ import annotations

import hashlib
import threading
from collections import OrderedDict
from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Float32, Int64

from dsearch.errors import RerankerUnavailable
from dsearch.store import Passages, Store
from dsearch.types import Document

if TYPE_CHECKING:
    from dsearch.attention.late_interaction import RerankerIdentity
    from dsearch.encoder.reranker import TextReranker

MAX_SCORES = 100_000
MOST_PASSAGES = 8  # of a long document that are scored; its best one counts


class KeptRerankings:
    """Scores of one store's documents; for many threads."""

    def __init__(self, store: Store):
        self._store = store
        self._lock = threading.Lock()
        self._scores: OrderedDict[tuple[bytes, int], float] = OrderedDict()

    def __len__(self) -> int:
        return len(self._scores)

    def of(
        self, reranker: RerankerIdentity, query: str, rows: Int64[np.ndarray, " rows"]
    ) -> Float32[np.ndarray, " rows"]:
        """Score a query with the document of each row; a long one has the score of its best passage.

        Raises:
            RerankerUnavailable: it is not on this machine, or is another one now.
        """
        named = f"{reranker.sha256}\0{query}".encode("utf-8", "surrogatepass")
        key = hashlib.blake2b(named, digest_size=16).digest()
        with self._lock:
            scores = {row: self._scores.get((key, row)) for row in rows.tolist()}
        missing = [row for row, score in scores.items() if score is None]
        if missing:
            from dsearch.encoder.reranker import load_reranker

            model = require_same(reranker, load_reranker(reranker.name))
            new = self._scored(model, query, np.array(missing, np.int64))
            scores |= new
            with self._lock:
                self._scores.update({(key, row): score for row, score in new.items()})
                while len(self._scores) > MAX_SCORES:
                    self._scores.popitem(last=False)
        return np.array([scores[row] for row in rows.tolist()], np.float32)

    def _scored(self, model: TextReranker, query: str, rows: Int64[np.ndarray, " rows"]) -> dict[int, float]:
        further: Mapping[int, Passages] = self._store.passages(rows)
        texts: list[str] = []
        owners: list[int] = []
        for row, document in zip(rows.tolist(), self._store.documents(rows), strict=True):
            pieces = _pieces(document, further.get(row))
            texts += pieces
            owners += [row] * len(pieces)
        best: dict[int, float] = {}
        for row, score in zip(owners, model.scores(query, texts).tolist(), strict=True):
            best[row] = max(score, best.get(row, score))
        return best


def _pieces(document: Document, passages: Passages | None) -> list[str]:
    if passages is None:
        return [document.content]
    spans = passages.spans[:MOST_PASSAGES].tolist()
    return [f"{document.title} {document.text[start:end]}".strip() for start, end in spans]


def require_same(identity: RerankerIdentity, model: TextReranker) -> TextReranker:
    """Return the model if it is the one that a weight was fitted to.

    Raises:
        RerankerUnavailable: it is not.
    """
    if model.files.sha256 != identity.sha256:
        raise RerankerUnavailable(
            f"reranker {identity.name!r} has other files than when this version was trained with it "
            f"({model.files.sha256[:12]}, then {identity.sha256[:12]}); bring those back, train again, or "
            "search with stages=1"
        )
    return model


def identity_of(model: TextReranker) -> RerankerIdentity:
    """Name the model in a version."""
    from dsearch.attention.late_interaction import RerankerIdentity

    files = model.files
    return RerankerIdentity(files.name, files.kind, files.sha256)
