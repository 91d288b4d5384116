"""Tokens of a query: weighed by their words, the heaviest kept, and the same in torch's graph."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import torch
from support.fakes import HashingEncoder

from dsearch.encoder import TextTokens
from dsearch.engine import SearchEngine
from dsearch.engine import snapshot as module
from dsearch.engine.snapshot import Snapshot, query_tokens, query_tokens_in_graph, token_weights
from dsearch.index import KeywordIndex
from dsearch.types import Document

TEXTS = ["bread", "bread cheese", "bread cheese honey", "bread and the lemon"]


@pytest.fixture(scope="module")
def snapshot(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Snapshot]:
    with SearchEngine(tmp_path_factory.mktemp("tokens"), encoder=HashingEncoder) as engine:
        made = engine.create("food")
        made.ingest([Document(f"d{n}", text) for n, text in enumerate(TEXTS)], second_stage=True)
        yield made.snapshot


def tokens_of(text: str) -> TextTokens:
    return HashingEncoder().encode_tokens([text], "query")[1][0]


def test_a_token_weighs_as_the_word_that_it_is_part_of() -> None:
    keyword = KeywordIndex.build(TEXTS)
    text = "the honeycheese, honey"
    spans = np.array([[0, 3], [4, 9], [9, 15], [15, 16], [17, 20], [20, 22]])
    idf, unknown = keyword.idf("honey"), keyword.idf("honeycheese")
    weights = token_weights(text, spans, keyword)
    assert weights.tolist() == pytest.approx([0, unknown, unknown, unknown, idf, idf])
    assert unknown > idf > keyword.idf("bread") > 0
    whole = token_weights("honey", np.array([[0, 5], [0, 1], [4, 5]]), keyword)
    assert whole.tolist() == pytest.approx([idf] * 3)
    assert token_weights("honey", np.zeros((0, 2), np.int64), keyword).tolist() == []


def test_stop_words_are_left_out_and_the_rest_stay_in_their_order(snapshot: Snapshot) -> None:
    text = "the honey and bread"
    found = query_tokens(tokens_of(text), text, snapshot)
    assert [text[start:end] for start, end in found.spans] == ["honey", "bread"]
    idf = snapshot.keyword.idf
    assert found.weights.tolist() == pytest.approx([idf("honey"), idf("bread")])
    assert found.text == text
    assert snapshot.tokens is not None
    states = tokens_of(text).states[[1, 3]]
    np.testing.assert_array_equal(found.states, snapshot.tokens.codec.projected(states))


def test_a_query_of_stop_words_weighs_all_alike(snapshot: Snapshot) -> None:
    found = query_tokens(tokens_of("and the"), "and the", snapshot)
    assert found.weights.tolist() == [1.0, 1.0]
    assert found.spans.tolist() == [[0, 3], [4, 7]]


def test_of_many_tokens_the_heaviest_are_kept(snapshot: Snapshot, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MOST_QUERY_TOKENS", 2)
    text = "bread honey cheese bread lemon"
    found = query_tokens(tokens_of(text), text, snapshot)
    assert [text[start:end] for start, end in found.spans] == ["honey", "lemon"]
    alike = "bread bread bread"
    found = query_tokens(tokens_of(alike), alike, snapshot)
    assert found.spans.tolist() == [[0, 5], [6, 11]]  # of equals the first


def test_sixty_four_tokens_are_kept(snapshot: Snapshot) -> None:
    text = "honey " * 70
    assert len(query_tokens(tokens_of(text), text, snapshot).states) == 64


def test_tokens_in_the_graph_are_the_same_and_have_gradients(snapshot: Snapshot) -> None:
    text = "the honey and bread"
    tokens = tokens_of(text)
    states = torch.as_tensor(tokens.states).requires_grad_()
    in_graph = query_tokens_in_graph(states, tokens.spans, text, snapshot)
    plain = query_tokens(tokens, text, snapshot)
    assert isinstance(in_graph.states, torch.Tensor)
    np.testing.assert_allclose(in_graph.states.detach().numpy(), plain.states, atol=1e-6)
    assert in_graph.weights.tolist() == plain.weights.tolist()
    assert in_graph.spans.tolist() == plain.spans.tolist()
    assert in_graph.text == text
    in_graph.states[:, 0].sum().backward()
    assert states.grad is not None
    assert states.grad.abs().sum(1).ne(0).tolist() == [False, True, False, True]
