"""Vectors of the caller's own: embeddings that come with documents, and vectors in place of query texts.

Embeddings and the vectors of searches may have any length but 0: they are scaled to length 1, as an encoder's
are, so that the inner product is the cosine. Query states of a layer (attend, predict, vjp) keep their
length, which is an inverse temperature, up to what float32 can score.
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
from dsearch.store.validate import NO_TEXT, has_text
from dsearch.types import Document, EmbeddedDocument

Vectors: TypeAlias = (
    "Sequence[Any] | Float[np.ndarray, 'batch encoder_dim'] | Float[Array, 'batch encoder_dim']"
)
_TOLERANCE = 1e-3  # of length 1: a vector that near stays as it is, bit for bit


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
    vectors, _ = _scaled(np.array(rows, np.float64).reshape(len(rows), store.dimension))
    return OwnEmbeddings(vectors, positions)


def embedding_problems(store: Store, documents: Sequence[Document]) -> dict[int, DsearchError]:
    """Check the embeddings that documents carry; return the problems ("has …") by position, ascending."""
    own = {place: _embedding(document) for place, document in enumerate(documents)}
    if not is_given(store):
        problem = (
            "has an embedding, and this collection encodes texts; leave it out, or create a collection with "
            "the dimension of your embeddings"
        )
        refused = {place: InvalidDocument(problem) for place, given in own.items() if given is not None}
        empty = [place for place, document in enumerate(documents) if not has_text(document)]
        return dict(sorted({**{place: InvalidDocument(NO_TEXT) for place in empty}, **refused}.items()))
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
        InvalidRequest: length 0, or numbers that are not finite; another embedding for a text that the
            collection's encoder has encoded.
    """
    try:
        given = np.asarray(embeddings, np.float64)
    except (TypeError, ValueError, OverflowError):
        raise InvalidRequest("embeddings that are no numbers; give [documents, dimension]") from None
    if given.shape != (len(documents), store.dimension):
        raise DimensionMismatch(
            f"embeddings of shape {list(given.shape)} for {amount(len(documents), 'document')}; "
            f"use [{len(documents)}, {store.dimension}]"
        )
    array, first = _scaled(given)
    if first is not None:
        raise InvalidRequest(
            f"the embedding of document {first} (id {documents[first].id[:80]!r}) {_problem_of(given[first])}"
        )
    if not is_given(store):
        for place, problem in embedding_problems(store, documents).items():
            raise type(problem)(f"document {place} (id {documents[place].id[:80]!r}) {problem}")
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


def search_vectors(
    vectors: Vectors, dimension: int, name: str = "vectors"
) -> Float32[np.ndarray, "batch encoder_dim"]:
    """Return vectors in place of the embeddings of query texts, at length 1.

    Raises:
        DimensionMismatch: one has another number of numbers than `dimension`.
        InvalidRequest: not numbers, not finite, or all 0.
    """
    given = numbers_of(_matrix(vectors, dimension, name)).astype(np.float64, copy=False)
    states, first = _scaled(given)
    if first is not None:
        raise InvalidRequest(f"{name}.{first} {_problem_of(given[first])}")
    return states


def query_vectors(
    vectors: Vectors, dimension: int, name: str = "vectors", *, padding: bool = False
) -> Float[Array, "batch encoder_dim"]:
    """Return vectors in place of query texts as states: float64 as given, otherwise float32.

    With `padding` a vector may have length 0: it scores 0 with every document.

    Raises:
        DimensionMismatch: one has another number of numbers than `dimension`.
        InvalidRequest: not numbers, not finite, too long, or zero without `padding`.
    """
    import torch

    states = torch.as_tensor(_matrix(vectors, dimension, name))
    with np.errstate(over="ignore"):  # too long for a float: infinity is refused
        lengths = np.linalg.norm(numbers_of(states.double()), axis=1)
    wrong = ~((lengths >= 0 if padding else lengths > 0) & (lengths <= LONGEST_STATE))  # NaN too
    if wrong.any():
        first = int(np.argmax(wrong))
        raise InvalidRequest(
            f"{name}.{first} has length {float(lengths[first]):.4g}; use finite numbers, of a length "
            f"{'' if padding else 'above 0 and '}up to {LONGEST_STATE:g}, usually 1"
        )
    return states


def _matrix(vectors: Vectors, dimension: int, name: str) -> Float[Array, "batch encoder_dim"]:
    """Vectors as an array, or as a tensor if they are one."""
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
    return states


def _problem_of(vector: Float[np.ndarray, " encoder_dim"]) -> str:
    with np.errstate(over="ignore"):
        return f"has length {np.linalg.norm(vector):.4g}; use finite numbers that are not all 0"


def _scaled(
    vectors: Float[np.ndarray, "vectors encoder_dim"],
) -> tuple[Float32[np.ndarray, "vectors encoder_dim"], int | None]:
    """Scale vectors to length 1; those of nearly that length stay as they are.

    Also returns the place of the first one that is 0 or has a number that is not finite; None without one.
    """
    with np.errstate(all="ignore"):
        lengths = np.sqrt((vectors * vectors).sum(axis=1, keepdims=True))
        unit = np.where(np.abs(lengths - 1) <= _TOLERANCE, vectors, vectors / lengths)
        usual = (lengths > 1e-150) & (lengths < 1e150)
        if usual.all():
            return unit.astype(np.float32), None
        scaled = vectors / np.abs(vectors).max(axis=1, keepdims=True)  # squares overflowed, or vanished
        unit = np.where(usual, unit, scaled / np.linalg.norm(scaled, axis=1, keepdims=True))
    wrong = ~np.isfinite(unit).all(axis=1)
    return unit.astype(np.float32), int(np.argmax(wrong)) if wrong.any() else None


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
    if not 0 < np.abs(numbers).max() < np.inf:  # NaN too
        return InvalidDocument(f"has an embedding that {_problem_of(numbers)}")
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
