"""`KeptDocuments` and `KeptLayers`: caches of documents shown recently, and of layers that answered recently.

`KeptDocuments` evicts the document that was shown least recently. A row is one version of a document and
never changes: an update writes another row, and no number is used twice. A row that was read and verified
against its digest once needs neither again, and no write invalidates it. The snapshot decides which rows may
be shown, not the cache.

`KeptLayers` avoids making a layer for every search, which costs as much as a tenth of a search. A layer over
a state does not change while it only searches. Only layers of one state are cached, so that a replaced index
is not held in memory.
"""

from __future__ import annotations

import sys
import threading
from collections import OrderedDict
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from jaxtyping import Int64

from dsearch.attention.retrieval.fixed_head import FixedHead
from dsearch.engine.options import LayerOptions
from dsearch.engine.ranking.ranker import Ranker
from dsearch.engine.snapshot.snapshot import NONE, Snapshot
from dsearch.store import Store
from dsearch.types import Document

if TYPE_CHECKING:
    from dsearch.attention.retrieval.head import Head

MAX_BYTES = 8 * 1024 * 1024
_ENTRY_BYTES = 512  # overhead of a document and its table entry


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
        wanted = set(rows.tolist())
        wanted.discard(NONE)
        documents: dict[int, Document] = {}
        with self._lock:
            for row in wanted:
                if row in self._documents:
                    self._documents.move_to_end(row)
                    documents[row] = self._documents[row][0]
        missing = sorted(wanted.difference(documents))
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


_MOST = 16  # layers of a few kilobytes each


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
        if not isinstance(options.get("score", "dot"), str):  # a caller's score module may be trained
            return layer_of(state, head, options)
        key = (id(head), *options.items())  # a cached layer references its head, so the id stays unique
        with self._lock:
            if state is not self._state:
                self._state, self._layers = state, {}
            layers = self._layers
        layer = layers.get(key)
        if layer is None:
            layer = layer_of(state, head, options)
            if len(layers) >= _MOST:
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
