"""Caches of a collection: documents, fields, layers, heads of versions, tokens of queries, reranker scores.

A row is one version of a document and never changes: an update writes another row, and no number is used
twice. So what was read of a row once is read and verified no more, and no write invalidates it. The snapshot
decides which rows may be shown, not the cache.
"""

from __future__ import annotations

import hashlib
import sys
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
from dsearch.lru_cache import LruCache
from dsearch.store import Passages, Store
from dsearch.store.filters import parse_field
from dsearch.types import Document

if TYPE_CHECKING:
    from dsearch.attention.late_interaction import RerankerIdentity
    from dsearch.attention.retrieval.head import Head
    from dsearch.encoder.reranker import TextReranker


MAX_BYTES = 8 * 1024 * 1024  # of documents
_ENTRY_BYTES = 512  # overhead of a document and its table entry
OWN_FIELDS = ("id", "title", "text")
VALUE = "value"  # the field that is no metadata: `Document.value`
MAX_FIELDS = 4
MAX_FIELD_BYTES = 64 * 1024 * 1024  # of a field; a larger one is read again each time
_READ_AT_ONCE = 1000
_MOST_LAYERS = 16  # of a few kilobytes each
_MOST_QUERIES = 256  # of some ten tokens each: 4 MB at 384 numbers
MAX_SCORES = 100_000
MOST_PASSAGES = 8  # of a long document that are scored; its best one counts


class DocumentCache(LruCache[int, Document]):
    """The documents of one store, by row.

    Args:
        store: store of the documents.
        max_bytes: approximate size limit; 0 caches nothing.
    """

    def __init__(self, store: Store, max_bytes: int = MAX_BYTES):
        super().__init__(max_bytes=max_bytes, size_of=_size)
        self._store = store

    def of(self, rows: Int64[np.ndarray, " rows"]) -> dict[int, Document]:
        """Return the document of each row but −1; shared with others: hand out its metadata with `owned`.

        Raises:
            NotFound: a row was removed.
            CorruptData: a row is damaged.
        """
        wanted = {*rows.tolist()} - {NONE}
        documents = self.get_all(wanted)
        if len(documents) < len(wanted):
            missing = [row for row in wanted if row not in documents]
            read = dict(zip(missing, self._store.documents(missing), strict=True))
            self.put_all(read)
            documents |= read
        return documents


def owned(metadata: dict[str, Any]) -> dict[str, Any]:
    """Copy metadata, so that the caller may change it."""
    return {name: _copied(value) for name, value in metadata.items()}


def _copied(value: Any) -> Any:
    if isinstance(value, dict):
        return owned(cast("dict[str, Any]", value))
    if isinstance(value, list):
        return [_copied(item) for item in cast("list[Any]", value)]
    return value


def _size(_: int, document: Document) -> int:
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


class FieldCache(LruCache[tuple[str, bool], dict[int, Any]]):
    """Fields of the documents of one store, by row: after a write only the new rows are read."""

    def __init__(self, store: Store):
        super().__init__(MAX_FIELDS)
        self._store = store

    def of(self, rows: Int64[np.ndarray, " rows"], field: str, *, own: bool = False) -> list[Any]:
        """Return a field of each row, None where it is absent.

        Args:
            rows: rows of the store.
            field: dotted path of the metadata, or "value".
            own: whether id, title and text are those of the document, and lists are returned too.

        Raises:
            InvalidRequest: not a field.
            NotFound, CorruptData.
        """
        values = self.get((field, own)) or {}
        missing = [row for row in rows.tolist() if row not in values]
        if missing:
            values = values | self._read(missing, field, own=own)
            if len(values) > 2 * len(rows):  # of versions that were replaced since
                values = {row: values[row] for row in rows.tolist()}
            if sum(map(sys.getsizeof, values.values())) <= MAX_FIELD_BYTES:
                self.put((field, own), values)
            else:
                self.drop((field, own))
        return [values[row] for row in rows.tolist()]

    def _read(self, rows: Sequence[int], field: str, *, own: bool) -> dict[int, Any]:
        values: dict[int, Any] = {}
        for start in range(0, len(rows), _READ_AT_ONCE):
            part = rows[start : start + _READ_AT_ONCE]
            values.update(zip(part, self._part(np.array(part, np.int64), field, own=own), strict=True))
        return values

    def _part(self, rows: Int64[np.ndarray, " rows"], field: str, *, own: bool) -> Sequence[Any]:
        if not own:
            return fields_of(self._store, rows, field)
        documents = self._store.documents(rows)
        if field in OWN_FIELDS:
            return [getattr(document, field) for document in documents]
        keys = parse_field(field)
        return [_at(document.metadata, keys) for document in documents]


def fields_of(store: Store, rows: Int64[np.ndarray, " rows"], field: str) -> Sequence[Any]:
    """The field of each row, None where it is absent: metadata by a dotted path, or the documents' `value`.

    Raises:
        InvalidRequest: not a field.
    """
    return store.values(rows) if field == VALUE else store.field_values(rows, field)


def _at(value: Any, keys: Sequence[str]) -> Any:
    for key in keys:
        value = value.get(key) if isinstance(value, dict) else None  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
    return None if isinstance(value, dict) else value  # pyright: ignore[reportUnknownVariableType]


class LayerCache:
    """Layers to search with, not to train: making one costs as much as a tenth of a search.

    Only layers of one snapshot are kept, so that a replaced index is not held in memory.
    """

    _kept: tuple[Snapshot | None, LruCache[tuple[object, ...], Ranker]]

    def __init__(self) -> None:
        self.clear()

    def __len__(self) -> int:
        return len(self._kept[1])

    def clear(self) -> None:
        """Forget all layers, and their snapshot."""
        self._kept = None, LruCache(_MOST_LAYERS)

    def over(self, snapshot: Snapshot, head: Head | FixedHead, options: LayerOptions) -> Ranker:
        """Return the layer with these options, cached; of a fixed head a ranker that is no module.

        Raises:
            InvalidRequest: options out of range.
        """
        kept = self._kept
        if kept[0] is not snapshot:  # both at once: another thread may still make layers of the other one
            kept = self._kept = snapshot, LruCache[tuple[object, ...], Ranker](_MOST_LAYERS)
        key = (id(head), *options.items())  # a cached layer references its head, so the id stays unique
        layer = kept[1].get(key)
        if layer is None:
            own: dict[str, Any] = {**options}  # searches match no field and select no documents by id
            if isinstance(head, FixedHead):
                layer = Ranker(snapshot, head, **own)
            else:
                from dsearch.engine.ranking.layer import SearchLayer

                layer = SearchLayer(snapshot, head, **own)
            kept[1].put(key, layer)
        return layer


class HeadCache:
    """Heads by version, as they were stored: modules and arrays.

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

    def drop(self, version: str) -> None:
        """Forget the heads of a deleted version."""
        self._modules.pop(version, None)
        self._fixed.pop(version, None)


class QueryTokenCache(LruCache[tuple[EncoderIdentity, str], TextTokens]):
    """Tokens of recent queries, by the collection's own encoder or a version's."""

    def __init__(self) -> None:
        super().__init__(_MOST_QUERIES)

    def encode(self, encoder: TextEncoder, texts: Sequence[str]) -> Float32[np.ndarray, "texts encoder_dim"]:
        """Embeddings of queries, in place of `encoder.encode_queries`; their tokens are kept."""
        embeddings, tokens = token_encoder(encoder).encode_tokens(texts, "query")
        identity = encoder.identity
        self.put_all({(identity, text): of_text for text, of_text in zip(texts, tokens, strict=True)})
        return embeddings

    def of(self, encoder: TextEncoder, texts: Sequence[str]) -> list[TextTokens]:
        """The tokens of queries; those that are not kept are encoded.

        Raises:
            EncoderUnavailable: the encoder gives no token states.
        """
        keys = [(encoder.identity, text) for text in texts]
        by_key = self.get_all(keys)
        missing = [key for key in dict.fromkeys(keys) if key not in by_key]
        if missing:
            _, tokens = token_encoder(encoder).encode_tokens([text for _, text in missing], "query")
            new = dict(zip(missing, tokens, strict=True))
            self.put_all(new)
            by_key |= new
        return [by_key[key] for key in keys]


class RerankerScores(LruCache[tuple[bytes, int], float]):
    """Scores of a reranker for queries and the documents of one store."""

    def __init__(self, store: Store):
        super().__init__(MAX_SCORES)
        self._store = store

    def of(
        self, reranker: RerankerIdentity, query: str, rows: Int64[np.ndarray, " rows"]
    ) -> Float32[np.ndarray, " rows"]:
        """Score a query with the document of each row; a long one has the score of its best passage.

        Raises:
            RerankerUnavailable: it is not on this machine, or is another one now.
        """
        named = f"{reranker.sha256}\0{query}".encode("utf-8", "surrogatepass")
        digest = hashlib.blake2b(named, digest_size=16).digest()
        keys = [(digest, row) for row in rows.tolist()]
        scores = self.get_all(keys)
        missing = [key for key in dict.fromkeys(keys) if key not in scores]
        if missing:
            from dsearch.encoder.reranker import load_reranker

            model = require_same(reranker, load_reranker(reranker.name, sha256=reranker.sha256))
            best = self._scored(model, query, np.array([row for _, row in missing], np.int64))
            new = {key: best[key[1]] for key in missing}
            self.put_all(new)
            scores |= new
        return np.array([scores[key] for key in keys], np.float32)

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
