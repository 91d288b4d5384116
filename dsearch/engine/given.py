"""Embeddings that the caller brings: of images, of other encoders, of anything that has vectors.

They have length 1, as an encoder's have: then the inner product is the cosine, the start temperature fits,
and a kernel's width means the same in every collection.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float, Float32

from dsearch.encoder import EncoderIdentity
from dsearch.errors import DimensionMismatch, EncoderMismatch, InvalidRequest
from dsearch.store import Store
from dsearch.types import Document

_BACKEND = "given"
_TOLERANCE = 1e-3  # of a length: half precision survives, a forgotten normalisation does not


def given_identity(dimension: int) -> EncoderIdentity:
    """What stands in place of an encoder where the caller gives the embeddings.

    Raises:
        InvalidRequest: a dimension below 1.
    """
    if dimension < 1:
        raise InvalidRequest(f"dimension={dimension}; use the length of your embeddings, 1 or more")
    return EncoderIdentity(
        name="given",
        revision="",
        weights_sha256="",
        pooling="",
        max_tokens=0,
        backend=_BACKEND,
        dtype="float32",
        dimension=dimension,
    )


def is_given(store: Store) -> bool:
    """Whether a collection's embeddings are given by whoever writes to it."""
    return store.encoder.get("backend") == _BACKEND


def require_encoder(store: Store) -> None:
    """Refuse to encode texts for a collection whose embeddings are given.

    Raises:
        EncoderMismatch: says what can be done instead.
    """
    if is_given(store):
        raise EncoderMismatch(
            f"collection {store.name!r} has no encoder: its embeddings are given. Search it with vectors or "
            "with mode='keyword', and write to it from Python with upsert(documents, embeddings=...)"
        )


def checked_embeddings(
    store: Store, documents: Sequence[Document], embeddings: Float[np.ndarray, "documents encoder_dim"]
) -> Float32[np.ndarray, "documents encoder_dim"]:
    """The embeddings as they are stored.

    Raises:
        DimensionMismatch: not one a document, or of another dimension than the collection's.
        InvalidRequest: a length that is not 1, or another embedding for a text that is stored already.
    """
    array = np.asarray(embeddings, np.float32)
    if array.shape != (len(documents), store.dimension):
        raise DimensionMismatch(
            f"embeddings of shape {list(array.shape)} for {len(documents)} documents; "
            f"use [{len(documents)}, {store.dimension}]"
        )
    lengths = np.linalg.norm(array, axis=1)
    wrong = ~(np.abs(lengths - 1) <= _TOLERANCE)  # NaN is wrong too
    if wrong.any():
        first = int(np.argmax(wrong))
        raise InvalidRequest(
            f"the embedding of document {first} (id {documents[first].id[:80]!r}) has length "
            f"{lengths[first]:.4g}; divide each embedding by its length"
        )
    _refuse_changed(store, documents, array)
    return array


def _refuse_changed(
    store: Store, documents: Sequence[Document], embeddings: Float32[np.ndarray, "documents encoder_dim"]
) -> None:
    """The store keeps the embedding of an unchanged text, so another one would be dropped without a word."""
    new = set(store.needs_encoding(documents))
    kept = [i for i in range(len(documents)) if i not in new]
    rows = store.rows_of([documents[i].id for i in kept])
    stored = store.embeddings([rows[documents[i].id] for i in kept])
    for i, before in zip(kept, stored, strict=True):
        if not np.array_equal(before, embeddings[i]):
            raise InvalidRequest(
                f"document {i} (id {documents[i].id[:80]!r}) has the title and text that are stored, but "
                "another embedding; change its text, or delete it first"
            )
