"""Caches of a collection: documents shown, layers that answered, heads of versions, tokens of queries.

`KeptDocuments` evicts the document that was shown least recently. A row is one version of a document and
never changes: an update writes another row, and no number is used twice. A row that was read and verified
against its digest once needs neither again, and no write invalidates it. The snapshot decides which rows may
be shown, not the cache.

`KeptLayers` avoids making a layer for every search, which costs as much as a tenth of a search. A layer over
a state does not change while it only searches. Only layers of one state are cached, so that a replaced index
is not held in memory.

`KeptHeads` loads the head of a version, as it was stored, when it is first used. `KeptQueryTokens` holds the
tokens of recent queries, from the pass of the encoder that gives their embeddings.

`KeptRerankings` holds recent scores of a reranker: rows never change, so neither does the score of a query
and a row.
"""

from __future__ import annotations

import hashlib
import sys
import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from jaxtyping import Float32, Int64

from dsearch.attention.retrieval.fixed_head import FixedHead
from dsearch.encoder import EncoderIdentity, TextEncoder, TextTokens
from dsearch.engine.indexing.tokens import token_encoder
from dsearch.engine.models.files import load_fixed_head, load_head
from dsearch.engine.models.memory import index_keys
from dsearch.engine.options import LayerOptions
from dsearch.engine.ranking.ranker import Ranker
from dsearch.engine.snapshot import NONE, Snapshot
from dsearch.errors import RerankerUnavailable
from dsearch.store import Passages, Store
from dsearch.types import Document

if TYPE_CHECKING:
    from dsearch.attention.late_interaction import RerankerIdentity
    from dsearch.attention.retrieval.head import Head
    from dsearch.encoder.reranker import TextReranker


MAX_BYTES = 8 * 1024 * 1024
_ENTRY_BYTES = 512  # overhead of a document and its table entry
_MOST_LAYERS = 16  # of a few kilobytes each
_MOST_QUERIES = 256  # of some ten tokens each: 4 MB at 384 numbers


class KeptDocuments:
    """The documents of one store, by row; for many threads.

    Args:
        store: store of the documents.
        max_bytes: approximate size limit; 0 caches nothing.
    """

    def __init__(self, store: Store, max_bytes: int = MAX_BYTES):
        self._store = store
        self._max_bytes = max_bytes
        self._lock = threading.Lock()
        self._documents: OrderedDict[int, tuple[Document, int]] = OrderedDict()
        self.bytes = 0

    def __len__(self) -> int:
        return len(self._documents)

    def of(self, rows: Int64[np.ndarray, " rows"]) -> dict[int, Document]:
        """Return the document of each row but −1; shared with others: hand out its metadata with `owned`.

        Raises:
            NotFound: a row was removed.
            CorruptData: a row is damaged.
        """
        documents: dict[int, Document] = {}
        missing: list[int] = []
        with self._lock:
            for row in {*rows.tolist()}:
                if row in self._documents:
                    self._documents.move_to_end(row)
                    documents[row] = self._documents[row][0]
                elif row != NONE:
                    missing.append(row)
        if missing:
            read = self._store.documents(missing)
            documents.update(zip(missing, read, strict=True))
            self._keep(missing, read)
        return documents

    def forget(self) -> None:
        """Empty the cache."""
        with self._lock:
            self._documents.clear()
            self.bytes = 0

    def _keep(self, rows: Sequence[int], documents: Sequence[Document]) -> None:
        sizes = [_size(document) for document in documents]
        with self._lock:
            for row, document, size in zip(rows, documents, sizes, strict=True):
                if row not in self._documents and size <= self._max_bytes:
                    self._documents[row] = document, size
                    self.bytes += size
            while self.bytes > self._max_bytes:
                _, (_, size) = self._documents.popitem(last=False)
                self.bytes -= size


def owned(metadata: dict[str, Any]) -> dict[str, Any]:
    """Copy metadata, so that the caller may change it."""
    return {name: _copied(value) for name, value in metadata.items()}


def _copied(value: Any) -> Any:
    if isinstance(value, dict):
        return owned(cast("dict[str, Any]", value))
    if isinstance(value, list):
        return [_copied(item) for item in cast("list[Any]", value)]
    return value


def _size(document: Document) -> int:
    texts = (document.id, document.title, document.text)
    return (
        _ENTRY_BYTES + sum(map(sys.getsizeof, texts)) + _size_of(document.metadata) + _size_of(document.value)
    )


def _size_of(value: Any) -> int:
    """Return the size of a JSON value with all its contents."""
    own = sys.getsizeof(value)
    if isinstance(value, dict):
        inner = cast("dict[str, Any]", value)
        return own + sum(sys.getsizeof(name) + _size_of(item) for name, item in inner.items())
    if isinstance(value, list):
        return own + sum(map(_size_of, cast("list[Any]", value)))
    return own


class KeptLayers:
    """Layers to search with, not to train; for many threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._state: Snapshot | None = None
        self._layers: dict[tuple[object, ...], Ranker] = {}

    def __len__(self) -> int:
        return len(self._layers)

    def forget(self) -> None:
        """Empty the cache, and release the state of its layers."""
        with self._lock:
            self._state, self._layers = None, {}

    def over(self, state: Snapshot, head: Head | FixedHead, options: LayerOptions) -> Ranker:
        """Return the layer with these options, cached; of a fixed head a ranker that is no module.

        Raises:
            InvalidRequest: options out of range.
        """
        key = (id(head), *options.items())  # a cached layer references its head, so the id stays unique
        with self._lock:
            if state is not self._state:
                self._state, self._layers = state, {}
            layers = self._layers
        layer = layers.get(key)
        if layer is None:
            layer = layer_of(state, head, options)
            if len(layers) >= _MOST_LAYERS:
                layers.clear()
            layers[key] = layer
        return layer


def layer_of(state: Snapshot, head: Head | FixedHead, options: LayerOptions) -> Ranker:
    """Return a layer over a state; of a fixed head a ranker that is no module."""
    own: dict[str, Any] = {**options}  # searches match no field and select no documents by id
    if isinstance(head, FixedHead):
        return Ranker(state, head, **own)
    from dsearch.engine.ranking.layer import SearchLayer

    return SearchLayer(state, head, **own)


class KeptHeads:
    """Heads by version, as modules and as arrays.

    Args:
        store: store of the versions.
    """

    def __init__(self, store: Store):
        self._store = store
        self._modules: dict[str, Head] = {}
        self._fixed: dict[str, FixedHead | None] = {}

    def of(self, version: str) -> Head:
        """Return the head of a version, which loads torch.

        Raises:
            ModelNotFound, CorruptData.
        """
        if version not in self._modules:
            import torch

            fixed = self.fixed(version)  # its memory serves both
            memory = None if fixed is None else fixed.memory
            with torch.inference_mode(False):  # inference tensors would never get gradients
                head = load_head(self._store, version, memory).settle()
                self._modules[version] = head if memory is not None else index_keys(head)
        return self._modules[version]

    def fixed(self, version: str) -> FixedHead | None:
        """Return the head of a version in NumPy; None if one of its parts needs torch.

        Raises:
            ModelNotFound, CorruptData.
        """
        if version not in self._fixed:
            head = load_fixed_head(self._store, version)
            self._fixed[version] = None if head is None else index_keys(head)
        return self._fixed[version]

    def forget(self, version: str) -> None:
        """Drop the heads of a deleted version."""
        self._modules.pop(version, None)
        self._fixed.pop(version, None)


class KeptQueryTokens:
    """Least recently used tokens, for many threads; by the collection's own encoder, or a version's."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._tokens: OrderedDict[tuple[EncoderIdentity, str], TextTokens] = OrderedDict()

    def __len__(self) -> int:
        return len(self._tokens)

    def encode(self, encoder: TextEncoder, texts: Sequence[str]) -> Float32[np.ndarray, "texts encoder_dim"]:
        """Embeddings of queries, in place of `encoder.encode_queries`; their tokens are kept."""
        embeddings, tokens = token_encoder(encoder).encode_tokens(texts, "query")
        self._keep(encoder, texts, tokens)
        return embeddings

    def of(self, encoder: TextEncoder, texts: Sequence[str]) -> list[TextTokens]:
        """The tokens of queries; those that are not kept are encoded.

        Raises:
            EncoderUnavailable: the encoder gives no token states.
        """
        with self._lock:
            identity = encoder.identity
            by_text = {
                text: self._tokens[identity, text] for text in texts if (identity, text) in self._tokens
            }
            for text in by_text:
                self._tokens.move_to_end((identity, text))
        missing = [text for text in dict.fromkeys(texts) if text not in by_text]
        if missing:
            _, tokens = token_encoder(encoder).encode_tokens(missing, "query")
            self._keep(encoder, missing, tokens)
            by_text.update(zip(missing, tokens, strict=True))
        return [by_text[text] for text in texts]

    def forget(self) -> None:
        """Empty the cache."""
        with self._lock:
            self._tokens.clear()

    def _keep(self, encoder: TextEncoder, texts: Sequence[str], tokens: Sequence[TextTokens]) -> None:
        with self._lock:
            named = ((encoder.identity, text) for text in texts)
            self._tokens.update(zip(named, tokens, strict=True))
            while len(self._tokens) > max(_MOST_QUERIES, len(texts)):  # who asked for them takes them next
                self._tokens.popitem(last=False)


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

            model = require_same(reranker, load_reranker(reranker.name, sha256=reranker.sha256))
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
