"""Vectors that are handed in: what is one, how long it may be, and what each refusal says."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from dsearch.engine.indexing.own_vectors import (
    carried_embeddings,
    checked_embeddings,
    embedding_problems,
    query_states,
    query_vectors,
    search_vectors,
)
from dsearch.errors import DimensionMismatch, InvalidDocument, InvalidRequest
from dsearch.types import Document, EmbeddedDocument

pytestmark = pytest.mark.usefixtures("unchecked")  # the store is a stand-in


def store(*known: str, given: bool = True) -> Any:
    """The vectors of a collection of two numbers, which has documents already."""
    encoder = {"name": "given"} if given else {"name": "test"}

    def needs_encoding(documents: list[Document]) -> list[int]:
        return [place for place, document in enumerate(documents) if document.id not in known]

    return SimpleNamespace(dimension=2, encoder=encoder, needs_encoding=needs_encoding, name="x")


def problem(embedding: Any, monkeypatch: pytest.MonkeyPatch) -> Exception | None:
    monkeypatch.setattr("dsearch.engine.indexing.own_vectors.is_given", lambda _: True)
    return embedding_problems(store(), [EmbeddedDocument("a", "", embedding=embedding)]).get(0)


@pytest.mark.parametrize(
    "embedding",
    [[1.0, 0.0], [3, 4], (0.6, 0.8), np.array([0.6, 0.8], np.float16), [1e-320, 0.0], [1e200, 1e200]],
)
def test_a_list_of_numbers_of_any_length_is_an_embedding(
    embedding: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert problem(embedding, monkeypatch) is None


@pytest.mark.parametrize(
    ("embedding", "kind", "message"),
    [
        ([True, False], InvalidDocument, "no list of numbers"),
        (["1", "0"], InvalidDocument, "no list of numbers"),
        ([[1.0, 0.0]], InvalidDocument, "no list of numbers"),
        ([1.0, [0.0]], InvalidDocument, "no list of numbers"),
        ("10", InvalidDocument, "no list of numbers"),
        ([1.0], DimensionMismatch, "has an embedding of 1 number; this collection's have 2"),
        ([0.0, 0.0], InvalidDocument, "length 0;"),
        ([float("nan"), 1.0], InvalidDocument, "length nan"),
        ([float("-inf"), 1.0], InvalidDocument, "length inf"),
    ],
)
def test_anything_else_is_refused(
    embedding: Any, kind: type[Exception], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused = problem(embedding, monkeypatch)
    assert type(refused) is kind
    assert message in str(refused)


def test_a_document_without_an_embedding_must_be_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dsearch.engine.indexing.own_vectors.is_given", lambda _: True)
    documents = [
        Document("known", ""),
        Document("new", ""),
        EmbeddedDocument("own", "", embedding=[0.0, 1.0]),
    ]
    problems = embedding_problems(store("known"), documents)
    assert list(problems) == [1]
    assert "has no embedding, and this collection has no encoder; give embedding, 2 numbers" in str(
        problems[1]
    )
    with pytest.raises(InvalidDocument, match=r"document 1 \(id 'new'\) has no embedding"):
        carried_embeddings(store("known"), documents)
    own = carried_embeddings(store("known", "new"), documents)
    assert (own.positions, own.vectors.tolist(), own.vectors.dtype) == ([2], [[0.0, 1.0]], np.float32)
    monkeypatch.setattr("dsearch.engine.indexing.own_vectors.is_given", lambda _: False)
    refused = embedding_problems(store(given=False), documents)
    assert list(refused) == [0, 1, 2]  # an encoder needs words
    assert "this collection encodes texts" in str(refused[2])


def test_embeddings_beside_documents_have_the_shape_and_length_of_the_collections(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("dsearch.engine.indexing.own_vectors.is_given", lambda _: True)
    documents = [Document("a", ""), Document("b", "")]
    own = checked_embeddings(store(), documents, np.array([[1.0, 0.0], [3.0, 4.0]]))
    assert own.positions == [0, 1]
    assert own.vectors.tolist() == np.array([[1.0, 0.0], [0.6, 0.8]], np.float32).tolist()
    for odd in (np.zeros((2, 3)), np.zeros((1, 2)), np.zeros(2)):
        with pytest.raises(DimensionMismatch, match=r"for 2 documents; use \[2, 2\]"):
            checked_embeddings(store(), documents, odd)
    for wrong in ([0.0, 0.0], [float("nan"), 0.0], [float("inf"), 0.0]):
        with pytest.raises(InvalidRequest, match=r"the embedding of document 1 \(id 'b'\) has length"):
            checked_embeddings(store(), documents, np.array([[1.0, 0.0], wrong]))


@pytest.mark.parametrize("kind", [list, np.array, torch.tensor])
def test_states_of_layers_keep_any_length_up_to_a_million(kind: Any) -> None:
    assert query_vectors(kind([[1e6, 0.0], [0.0, 2.0**-20]]), 2).tolist() == [[1e6, 0.0], [0.0, 2.0**-20]]
    for wrong in ([0.0, 0.0], [1.01e6, 0.0], [float("nan"), 1.0], [float("inf"), 0.0]):
        with pytest.raises(
            InvalidRequest, match=r"vectors.1 has length .*; use finite numbers, of a length above 0"
        ):
            query_vectors(kind([[1.0, 0.0], wrong]), 2)
    with pytest.raises(DimensionMismatch):
        query_vectors(kind([[1.0, 0.0, 0.0]]), 2)
    assert torch.is_tensor(query_vectors(kind([[1.0, 0.0]]), 2))
    if kind is not torch.tensor:  # in the precision that was given
        assert query_vectors(kind([[0.1, 1 / 3]]), 2).tolist() == [[0.1, 1 / 3]]


@pytest.mark.parametrize("kind", [list, np.array, lambda rows: torch.tensor(rows, dtype=torch.float64)])
def test_vectors_of_searches_are_scaled_to_length_one(kind: Any) -> None:
    expected = np.array([[0.6, 0.8], [-1.0, 0.0], [0.0, 1.0]], np.float32)
    vectors = search_vectors(kind([[3.0, 4.0], [-1e300, 0.0], [0.0, 1e-300]]), 2)
    np.testing.assert_array_equal(vectors, expected)
    near = np.array([[0.6001, 0.8001]], np.float32)  # as half precision rounds: no bit changes
    np.testing.assert_array_equal(search_vectors(kind(near.tolist()), 2), near)
    for wrong in ([0.0, 0.0], [float("nan"), 1.0], [float("inf"), 0.0]):
        with pytest.raises(InvalidRequest, match=r"vector.1 has length"):
            search_vectors(kind([[1.0, 0.0], wrong]), 2, "vector")


def test_vectors_that_are_no_matrix_are_refused() -> None:
    with pytest.raises(DimensionMismatch, match=r"like.1 has 1 number; this collection's embeddings have 2"):
        search_vectors([[1.0, 0.0], [1.0]], 2, "like")
    with pytest.raises(InvalidRequest, match="vectors that are no numbers; give 2 finite ones each"):
        search_vectors([["a", "b"]], 2)
    assert query_states([[1.0, 2.0]]).tolist() == [[1.0, 2.0]]
    with pytest.raises(InvalidRequest, match="vectors that are no matrix"):
        query_states([[1.0], [1.0, 2.0]])
