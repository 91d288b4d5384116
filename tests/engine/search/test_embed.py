"""Embeddings of texts and relevance by them: sides, lengths, tokens, and lists of tokens as texts."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from support.fakes import HashingEncoder

from dsearch.attention.retrieval.head import Head
from dsearch.encoder.tokens import Vocabulary
from dsearch.engine import Collection
from dsearch.engine.search.embed import embed, rerank, text_of_tokens, token_count
from dsearch.errors import InvalidRequest

TEXTS = ["apple bread", "cheese"]


@pytest.fixture
def turned(collection: Collection) -> str:
    """A version whose head turns queries, with two heads of unequal shares."""
    head = Head(32, heads=2, rank=4)
    with torch.no_grad():
        head.query_in.copy_(torch.randn(head.query_in.shape, generator=torch.Generator().manual_seed(1)))
        head.mixture_logits.copy_(torch.tensor([1.0, -0.5]))
    return collection.add_model(head, {})


def test_queries_are_folded_by_the_model_and_documents_are_as_stored(
    collection: Collection, encoder: HashingEncoder, turned: str
) -> None:
    head = collection.head(turned)
    with torch.no_grad():
        folded = head.fold(head.queries(torch.as_tensor(encoder.encode_queries(TEXTS))))
        shares = head.mixture_logits.softmax(0)
        expected = torch.nn.functional.normalize((shares[:, None] * folded).sum(1), dim=-1).numpy()
    query_side = embed(collection, TEXTS, "query", model=turned)
    np.testing.assert_allclose(query_side.vectors, expected, atol=1e-6)
    document_side = embed(collection, TEXTS, "document", model=turned)
    np.testing.assert_array_equal(document_side.vectors, encoder.encode_documents(TEXTS))
    for result in (query_side, document_side):
        assert (result.model, result.tokens, result.vectors.dtype) == (turned, 4 + 3, np.float32)
    assert embed(collection, TEXTS, "query").model == collection.live_model == "v0"


@pytest.mark.parametrize("side", ["query", "document"])
def test_the_first_numbers_are_of_length_one_again(collection: Collection, side: Any) -> None:
    whole = embed(collection, TEXTS, side).vectors
    for dimensions in (1, 5, 31):
        cut = embed(collection, TEXTS, side, dimensions=dimensions).vectors
        first = whole[:, :dimensions]
        np.testing.assert_allclose(cut, first / np.linalg.norm(first, axis=1, keepdims=True), atol=1e-6)
    np.testing.assert_array_equal(embed(collection, TEXTS, side, dimensions=32).vectors, whole)


@pytest.mark.parametrize("dimensions", [0, -1, 33])
def test_dimensions_that_there_are_not_are_refused(collection: Collection, dimensions: int) -> None:
    with pytest.raises(InvalidRequest, match=rf"dimensions={dimensions}; use an integer from 1 to 32"):
        embed(collection, TEXTS, "document", dimensions=dimensions)


def test_relevance_is_the_cosine_between_zero_and_one(collection: Collection, turned: str) -> None:
    result = rerank(collection, "apple", [*TEXTS, "apple"], model=turned)
    query = embed(collection, ["apple"], "query", model=turned).vectors[0]
    documents = embed(collection, [*TEXTS, "apple"], "document", model=turned).vectors
    np.testing.assert_allclose(result.scores, (1 + documents @ query) / 2, atol=1e-6)
    assert (result.tokens, result.model) == (3 + 4 + 3 + 3, turned)
    same = rerank(collection, "apple", ["apple"]).scores
    assert 1 - 1e-6 <= same[0] <= 1


def test_tokens_are_counted_by_the_encoder_or_else_by_words() -> None:
    assert token_count(HashingEncoder(), TEXTS) == 7
    without: Any = SimpleNamespace()
    assert token_count(without, TEXTS) == 3


def with_vocabulary() -> Any:
    """Tokens 1 … 2, of which there are ten; text n is "tn"."""

    def decode(tokens: Sequence[int]) -> str:
        return " ".join(f"t{token}" for token in tokens[1:-1])

    return SimpleNamespace(vocabulary=Vocabulary(1, 2, 10, decode))


def test_a_list_of_tokens_is_the_text_that_they_stand_for() -> None:
    assert text_of_tokens(with_vocabulary(), [1, 0, 9, 2]) == "t0 t9"


@pytest.mark.parametrize("tokens", [[], [1, 2], [1, 10, 2], [0, 5, 2], [1, 5, 3]])
def test_tokens_of_another_vocabulary_are_refused(tokens: list[int]) -> None:
    with pytest.raises(
        InvalidRequest, match=rf"a list of {len(tokens)} tokens that are not of this encoder's"
    ):
        text_of_tokens(with_vocabulary(), tokens)


def test_an_encoder_that_shows_no_tokenizer_takes_texts_alone() -> None:
    with pytest.raises(InvalidRequest, match="the encoder shows no tokenizer; send the text"):
        text_of_tokens(HashingEncoder(), [1, 5, 2])
