"""Vectors of the caller's own: embeddings that come with documents, and vectors in place of query texts.

An embedding has length 1, as an encoder's has. A query's vector may have any length that float32 can
score: its direction decides the order, its length is an inverse temperature.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from jaxtyping import Float, Float32

from dsearch.attention.arrays import Array, is_tensor, numbers_of
from dsearch.attention_options import LONGEST_STATE
from dsearch.engine.home import is_given, require_encoder
from dsearch.errors import DimensionMismatch, DsearchError, InvalidDocument, InvalidRequest, amount
from dsearch.store import Store
from dsearch.types import Document, EmbeddedDocument

Vectors: TypeAlias = (
    "Sequence[Any] | Float[np.ndarray, 'batch encoder_dim'] | Float[Array, 'batch encoder_dim']"
)
_TOLERANCE = 1e-3  # of a length: accepts half precision, rejects unnormalised vectors


@dataclass(frozen=True, slots=True)
class OwnEmbeddings:
    """Embeddings for some documents of a batch, as `Store.upsert` takes them."""

    vectors: Float32[np.ndarray, "embedded encoder_dim"]
    positions: list[int]


def carried_embeddings(store: Store, documents: Sequence[Document]) -> OwnEmbeddings:
    """Return the embeddings that documents of a collection without an encoder carry.

    Raises:
        InvalidDocument, DimensionMismatch: see `embedding_problems`; of the first document.
        EncoderMismatch: none of the documents carries one, and some need one.
    """
    bare = all(_embedding(document) is None for document in documents)
    if bare and store.needs_encoding(documents):
        require_encoder(store)
    for place, problem in embedding_problems(store, documents).items():
        raise type(problem)(f"document {place} (id {documents[place].id[:80]!r}) {problem}")
    positions = [place for place, document in enumerate(documents) if _embedding(document) is not None]
    rows = [_numbers(_embedding(documents[place])) for place in positions]
    vectors = np.array(rows, np.float32).reshape(len(rows), store.dimension)
    return OwnEmbeddings(vectors, positions)


def embedding_problems(store: Store, documents: Sequence[Document]) -> dict[int, DsearchError]:
    """Check the embeddings that documents carry; return the problems ("has …") by position, ascending."""
    own = {place: _embedding(document) for place, document in enumerate(documents)}
    if not is_given(store):
        problem = (
            "has an embedding, and this collection encodes texts; leave it out, or create a collection with "
            "the dimension of your embeddings"
        )
        return {place: InvalidDocument(problem) for place, embedding in own.items() if embedding is not None}
    problems: dict[int, DsearchError] = {}
    without = set(store.needs_encoding(documents))
    for place, embedding in own.items():
        if embedding is not None:
            if (problem := _problem(embedding, store.dimension)) is not None:
                problems[place] = problem
        elif place in without:
            problems[place] = InvalidDocument(
                "has no embedding, and this collection has no encoder; give embedding, "
                f"{store.dimension} numbers"
            )
    return problems


def checked_embeddings(
    store: Store, documents: Sequence[Document], embeddings: Float[np.ndarray, "documents encoder_dim"]
) -> OwnEmbeddings:
    """Check embeddings that are given beside documents, one each.

    Raises:
        DimensionMismatch: not one a document, or not of the collection's dimension.
        InvalidRequest: length other than 1; another embedding for a text that the collection's encoder has
            encoded.
    """
    try:
        with np.errstate(over="ignore"):  # infinite lengths are refused below
            array = np.asarray(embeddings, np.float32)
    except (TypeError, ValueError, OverflowError):
        raise InvalidRequest("embeddings that are no numbers; give [documents, dimension]") from None
    if array.shape != (len(documents), store.dimension):
        raise DimensionMismatch(
            f"embeddings of shape {list(array.shape)} for {amount(len(documents), 'document')}; "
            f"use [{len(documents)}, {store.dimension}]"
        )
    lengths = np.linalg.norm(array.astype(np.float64), axis=1)
    wrong = ~(np.abs(lengths - 1) <= _TOLERANCE)  # NaN too
    if wrong.any():
        first = int(np.argmax(wrong))
        raise InvalidRequest(
            f"the embedding of document {first} (id {documents[first].id[:80]!r}) has length "
            f"{lengths[first]:.4g}; divide each embedding by its length"
        )
    if not is_given(store):
        _refuse_changed(store, documents, array)
    return OwnEmbeddings(array, list(range(len(documents))))


def query_states(vectors: Sequence[Sequence[float]]) -> Float[Array, "batch dim"]:
    """Return vectors of one length as states, to be checked by what is asked.

    Raises:
        InvalidRequest: lists of different lengths, or of what is no number.
    """
    import torch

    try:
        return torch.as_tensor(np.array(vectors, np.float64))
    except (TypeError, ValueError, OverflowError):
        raise InvalidRequest("vectors that are no matrix; give [n, dimension] numbers") from None


def query_vectors(
    vectors: Vectors, dimension: int, name: str = "vectors", *, padding: bool = False
) -> Float[Array, "batch encoder_dim"]:
    """Return vectors in place of query texts as states: float64 as given, otherwise float32.

    With `padding` a vector may have length 0: it scores 0 with every document.

    Raises:
        As `query_arrays`.
    """
    import torch

    return torch.as_tensor(query_arrays(vectors, dimension, name, padding=padding))


def query_arrays(
    vectors: Vectors, dimension: int, name: str = "vectors", *, padding: bool = False
) -> Float[Array, "batch encoder_dim"]:
    """Return vectors as an array, those that are a tensor as one; see `query_vectors`.

    Raises:
        DimensionMismatch: one has another length than `dimension`.
        InvalidRequest: not numbers, not finite, too long, or zero without `padding`.
    """
    states: Any = vectors
    if is_tensor(vectors):
        states = states if states.is_floating_point() else states.float()
    else:
        for place, vector in enumerate(vectors):
            if len(vector) != dimension:
                raise DimensionMismatch(
                    f"{name}.{place} has {amount(len(vector), 'number')}; this collection's embeddings "
                    f"have {dimension}"
                )
        try:
            states = np.array(vectors, np.float64).reshape(len(vectors), dimension)
        except (TypeError, ValueError, OverflowError):
            raise InvalidRequest(f"{name} that are no numbers; give {dimension} finite ones each") from None
    if states.ndim != 2 or states.shape[1] != dimension:
        raise DimensionMismatch(
            f"{name} of shape {list(states.shape)}; this collection's embeddings have "
            f"{amount(dimension, 'number')}: "
            f"use [n, {dimension}]"
        )
    with np.errstate(over="ignore"):  # too long for a float: infinity is refused below
        lengths = np.linalg.norm(numbers_of(states.double() if is_tensor(states) else states), axis=1)
    wrong = ~((lengths >= 0 if padding else lengths > 0) & (lengths <= LONGEST_STATE))  # NaN too
    if wrong.any():
        first = int(np.argmax(wrong))
        raise InvalidRequest(
            f"{name}.{first} has length {float(lengths[first]):.4g}; use finite numbers, of a length "
            f"{'' if padding else 'above 0 and '}up to {LONGEST_STATE:g}, usually 1"
        )
    return states


def _embedding(document: Document) -> Sequence[float] | None:
    return document.embedding if isinstance(document, EmbeddedDocument) else None


def _numbers(embedding: object) -> Float[np.ndarray, " numbers"] | None:
    """An embedding as a vector of float64; None if it is none."""
    try:
        array = np.asarray(embedding)
        return array.astype(np.float64) if array.ndim == 1 and array.dtype.kind in "fiu" else None
    except (TypeError, ValueError, OverflowError):
        return None


def _problem(embedding: object, dimension: int) -> DsearchError | None:
    numbers = _numbers(embedding)
    if numbers is None:
        return InvalidDocument("has an embedding that is no list of numbers; give one")
    if len(numbers) != dimension:
        return DimensionMismatch(
            f"has an embedding of {amount(len(numbers), 'number')}; this collection's have {dimension}"
        )
    with np.errstate(over="ignore"):
        length = float(np.linalg.norm(numbers))
    if not abs(length - 1) <= _TOLERANCE:
        return InvalidDocument(f"has an embedding of length {length:.4g}; divide each by its length")
    return None


def _refuse_changed(
    store: Store, documents: Sequence[Document], embeddings: Float32[np.ndarray, "documents encoder_dim"]
) -> None:
    """Refuse new embeddings of texts that an encoder has encoded, which the store would silently ignore."""
    new = set(store.needs_encoding(documents))
    unchanged = [i for i in range(len(documents)) if i not in new]
    rows = store.rows_of([documents[i].id for i in unchanged])
    stored = store.embeddings([rows[documents[i].id] for i in unchanged])
    for i, before in zip(unchanged, stored, strict=True):
        if not np.array_equal(before, embeddings[i]):
            raise InvalidRequest(
                f"document {i} (id {documents[i].id[:80]!r}) has the title and text that are stored, but "
                "another embedding; change its text, or delete it first"
            )
