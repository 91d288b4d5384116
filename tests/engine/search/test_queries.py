"""Queries with the same phrases are answered together, and their words are encoded at once."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dsearch.attention.retrieval.head import Head
from dsearch.engine import Collection
from dsearch.engine.search.queries import checked_questions, group_queries, states_of
from dsearch.errors import InvalidRequest
from dsearch.index import ParsedQuery, Tokenizer
from dsearch.search_options import SearchOptions

QUERIES = ["rice", '"beam search" rice', "-java", '"beam search"', "+beam +search rice", "bread -java"]
queries = st.lists(st.sampled_from([*QUERIES, "", " ", '"to be"', '"the"', "-", '"']), max_size=8)


@given(queries=queries, operators=st.booleans())
def test_every_query_is_in_one_group(queries: list[str], operators: bool) -> None:
    groups = group_queries(queries, "hybrid", Tokenizer(), operators=operators)
    assert sorted(number for group in groups for number in group.numbers) == list(range(len(queries)))
    for group in groups:
        assert group.texts is None or len(group.texts) == len(group.numbers)
    if not operators:
        assert [group.texts for group in groups] == ([queries] if queries else [])


def test_phrases_make_groups() -> None:
    groups = group_queries(
        ["rice", "bread", 'rice "beam search"', 'bread "beam search"'], "hybrid", Tokenizer()
    )
    assert [group.numbers for group in groups] == [[0, 1], [2, 3]]
    assert groups[1].phrases == ParsedQuery("", ("beam search",))
    assert groups[1].texts == ["rice beam search", "bread beam search"]


def test_what_leaves_no_word_is_asked_without_words() -> None:
    (excluding,) = group_queries(["-java"], "hybrid", Tokenizer())
    assert (excluding.mode, excluding.texts) == ("dense", None)
    (stopped,) = group_queries(['"to be"'], "keyword", Tokenizer())
    assert (stopped.mode, stopped.texts) == ("dense", None)
    (worded,) = group_queries(['"to be"'], "hybrid", Tokenizer())
    assert (worded.mode, worded.texts) == ("hybrid", ["to be"])


@given(queries=queries)
def test_states_stand_in_the_order_of_the_batch(queries: list[str]) -> None:
    calls: list[list[str]] = []

    def encode(texts: list[str]) -> torch.Tensor:
        calls.append(texts)
        return torch.tensor([[float(len(text)), 1.0] for text in texts])

    groups = group_queries(queries, "hybrid", Tokenizer())
    states = states_of(groups, encode, 2)
    assert len(calls) <= 1
    for group in groups:
        for at, number in enumerate(group.numbers):
            expected = [0.0, 0.0] if group.texts is None else [float(len(group.texts[at])), 1.0]
            assert states[number].tolist() == expected


def test_only_queries_of_the_live_version_with_an_embedding_count_for_its_drift(
    collection: Collection, monkeypatch: pytest.MonkeyPatch
) -> None:
    noted: list[tuple[str, int]] = []
    monkeypatch.setattr(collection.drift, "note", lambda model, states: noted.append((model, len(states))))
    for _ in range(2):
        collection.add_model(Head(32), {})
    collection.promote("v1")
    collection.search("apple")
    collection.search_batch(["apple", "bread"])
    collection.search("apple", model="v1", mode="dense")
    assert noted == [("v1", 1), ("v1", 2), ("v1", 1)]
    collection.search("apple", model="v2")
    collection.search("apple", mode="keyword")
    collection.search(vector=[1.0, *[0.0] * 31])
    assert len(noted) == 3


@pytest.mark.parametrize("vectors", [0, 1, 3])
def test_there_are_as_many_vectors_as_queries(vectors: int) -> None:
    given = [[1.0, 0.0]] * vectors
    named = "1 vector" if vectors == 1 else f"{vectors} vectors"
    with pytest.raises(InvalidRequest, match=f"2 queries and {named}; give as many"):
        checked_questions(["a", "b"], SearchOptions(), given, 2)
    states, questions = checked_questions(["a", "a"], SearchOptions(), [[1.0, 0.0], [0.0, 1.0]], 2)
    assert states is not None
    assert questions[0] != questions[1]
