"""Shards answer as one machine does: hits, weights, scores, context and covered mass, for any number."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import ExitStack

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.cluster_checks import WORDS, require_same, sharded
from support.fakes import HashingEncoder
from support.sizes import by_size

from dsearch.attention.retrieval.head import Head
from dsearch.cluster.messages import ShardsLost
from dsearch.cluster.search.search import ShardedSearch
from dsearch.engine import Collection, PassageOptions, SearchEngine
from dsearch.engine.models.files import save_model
from dsearch.errors import Conflict, Gone, InvalidCursor, InvalidRequest, ShardsMissing
from dsearch.search_options import SearchOptions
from dsearch.types import Document

Split = dict[int, ShardedSearch]

SHARDS = (1, 2, 5)
OPTIONS = [
    {},
    {"mode": "dense"},
    {"mode": "keyword"},
    {"filter": {"number": {"gte": 50}}},
    {"filter": {"number": {"lt": 3}}, "mode": "dense"},
    {"limit": 130},
    {"hops": 2, "hop_strength": 0.7},
    {"hops": 3, "hop_strength": 0.4, "mode": "dense"},
    {"explain": True, "highlight": True, "limit": 5},
    {"score_threshold": 0.9},
    {"weight_threshold": 0.01, "limit": 20},
    {"coverage": True, "limit": 3},
    {"offset": 7, "limit": 4},
]
QUERIES = ["apple bread", 'egg "honey ice" flour', "mango -kale", "zebra", '-"apple"', "kale kale lemon"]


@pytest.fixture(scope="module")
def food(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Collection]:
    """Three hundred documents, a third of them equal to others, some of them long."""
    draw = random.Random(7)
    with SearchEngine(tmp_path_factory.mktemp("shards") / "home", encoder=HashingEncoder) as engine:
        made = engine.create("food", passages=PassageOptions(tokens=16, overlap=4))
        documents = []
        for number in range(300):
            length = 40 if number % 17 == 0 else draw.randint(1, 6)
            text = " ".join(draw.choice(WORDS) for _ in range(length))
            if number % 3 == 2:
                text = documents[draw.randrange(len(documents))].text
            documents.append(Document(f"d{number}", text, metadata={"number": number}))
        made.ingest(documents)
        made.refresh()
        yield made


@pytest.fixture(scope="module")
def split_food(food: Collection, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Split]:
    """It, in one shard, in two and in five."""
    folder = tmp_path_factory.mktemp("releases")
    with ExitStack() as stack:
        yield {shards: stack.enter_context(sharded(food, folder / str(shards), shards)) for shards in SHARDS}


def trained(heads: int, seed: int) -> Head:
    head = Head(32, heads=heads, rank=4, seed=seed)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in head.parameters():
            parameter += 0.1 * torch.randn(parameter.shape, generator=generator)
    return head


@pytest.mark.parametrize("shards", SHARDS)
def test_answers_are_those_of_one_machine(food: Collection, split_food: Split, shards: int) -> None:
    search = split_food[shards]
    for options in OPTIONS:
        for query in QUERIES:
            expected = food.search(query, **options)
            found = search.search([query], food.live_model, SearchOptions(**options))[0]
            require_same(found, expected)


def test_a_batch_is_answered_as_its_queries_are(food: Collection, split_food: Split) -> None:
    search = split_food[2]
    found = search.search(QUERIES, "v0", SearchOptions(coverage=False))
    for result, expected in zip(found, food.search_batch(QUERIES), strict=True):
        require_same(result, expected)


@pytest.mark.parametrize("heads", [1, 3])
def test_trained_heads_and_their_hops(food: Collection, split_food: Split, heads: int) -> None:
    version = save_model(food.store, trained(heads, heads), parent="v0", record={})
    search = split_food[5]
    for options in ({}, {"hops": 1}, {"mode": "keyword"}, {"mode": "dense", "explain": True}):
        for query in QUERIES:
            expected = food.search(query, model=version, **options)
            found = search.search([query], version, SearchOptions(**options))[0]
            require_same(found, expected)


def test_heads_with_k1_and_b_of_their_own(food: Collection, split_food: Split) -> None:
    head = trained(2, 4)
    head.weigh_keywords(0.5, 0.2)
    version = save_model(food.store, head, parent="v0", record={})
    # Forty hits are more than a shard shows with its candidates, so it is asked for others by themselves.
    more = {"mode": "keyword", "explain": True, "limit": 40}
    for options in ({"coverage": True}, {"mode": "keyword", "explain": True}, more):
        for query in QUERIES:
            expected = food.search(query, model=version, **options)
            found = split_food[5].search([query], version, SearchOptions(**options))[0]
            require_same(found, expected)


@pytest.mark.parametrize("heads", [1, 2])
@pytest.mark.parametrize("shards", SHARDS)
def test_contexts_merge_to_that_of_one_machine(
    food: Collection, split_food: Split, shards: int, heads: int
) -> None:
    version = save_model(food.store, trained(heads, 5 + heads), parent="v0", record={})
    search = split_food[shards]
    for mode in ("hybrid", "dense", "keyword"):
        expected = food.attend(QUERIES[:1], model=version, mode=mode)
        states = food.query_states(QUERIES[:1], mode, version)
        found = search.attend(states, QUERIES[:1], version, mode=mode, candidates=100)
        torch.testing.assert_close(found.context, expected.output.context, atol=1e-5, rtol=0)


def test_pages_by_cursor(food: Collection, split_food: Split) -> None:
    search = split_food[2]
    first = search.search(["apple egg"], "v0", SearchOptions(limit=6))[0]
    assert first.next_cursor is not None
    second = search.search(["apple egg"], "v0", SearchOptions(limit=6, cursor=first.next_cursor))[0]
    whole = search.search(["apple egg"], "v0", SearchOptions(limit=12))[0]
    assert [hit.id for hit in first.hits + second.hits] == [hit.id for hit in whole.hits]
    assert [hit.rank for hit in second.hits] == [7, 8, 9, 10, 11, 12]
    with pytest.raises(InvalidCursor):
        search.search(["bread"], "v0", SearchOptions(limit=6, cursor=first.next_cursor))
    stamp = first.stamp
    with pytest.raises(Conflict, match="the cluster has"):
        search._stamp(stamp.__class__(stamp.generation + 1, "v0", stamp.sequence), "v0")
    with pytest.raises(Gone, match="ask again, without the cursor"):
        search._stamp(stamp.__class__(stamp.generation, "v0", stamp.sequence - 1), "v0")


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("wrong", [{"limit": 0}, {"mode": "x"}, {"filter": {"a": [1]}}, {"hops": 0}])
def test_bad_options_are_refused_as_on_one_machine(
    food: Collection, split_food: Split, wrong: dict[str, object]
) -> None:
    with pytest.raises(InvalidRequest):
        split_food[2].search(["apple"], "v0", SearchOptions(**wrong))  # pyright: ignore


def test_a_lost_shard_fails_or_is_missing_by_choice(food: Collection, split_food: Split) -> None:
    search = split_food[5]
    whole = search._shards

    class Lossy:
        def ask(self, method, asked):
            if 2 in asked:
                raise ShardsLost([2])
            return whole.ask(method, asked)

    lossy = ShardedSearch(search.release, Lossy(), search._head, search._encode)
    with pytest.raises(ShardsMissing, match=r"1 of 5 shards with 20\.0% of the documents"):
        lossy.search(["apple"], "v0", SearchOptions())
    found = lossy.search(["apple bread"], "v0", SearchOptions(partial=True, limit=300))[0]
    assert found.missing == 0.2
    assert found.hits
    numbers = [int(hit.id[1:]) for hit in found.hits]
    assert not [number for number in numbers if 120 <= number < 180]
    assert max(numbers) >= 240  # those behind it answer
    assert sum(hit.weight for hit in found.hits) == pytest.approx(1, abs=1e-4)


words = st.lists(st.sampled_from(WORDS[:5]), min_size=1, max_size=4).map(" ".join)


@settings(max_examples=by_size(8, 80), suppress_health_check=list(HealthCheck))
@given(
    texts=st.lists(words, max_size=14),
    query=words,
    shards=st.sampled_from(SHARDS),
    mode=st.sampled_from(["hybrid", "dense", "keyword"]),
    heads=st.sampled_from([1, 2]),
)
def test_any_corpus_with_ties(
    tmp_path_factory: pytest.TempPathFactory, texts: list[str], query: str, shards: int, mode: str, heads: int
) -> None:
    folder = tmp_path_factory.mktemp("any")
    with SearchEngine(folder / "home", encoder=HashingEncoder) as engine:
        made = engine.create("c")
        made.ingest([Document(f"d{number}", text) for number, text in enumerate(texts)])
        made.refresh()
        version = save_model(made.store, trained(heads, 3), parent="v0", record={})
        with sharded(made, folder / "release", shards) as search:
            for model in ("v0", version):
                for candidates in (3, 100):
                    with torch.inference_mode():
                        layer, _ = made.layer_and_stamp(model=model, mode=mode, candidates=candidates)
                        states = made.query_states([query], mode, model)
                        expected = layer(states, [query])
                        found = search.attend(
                            states, [query], model, mode=mode, candidates=candidates, coverage=True
                        )
                    size = expected.weights.shape[1]
                    assert found.output.output.weights.shape[1] == size
                    np.testing.assert_allclose(found.output.output.weights, expected.weights, atol=1e-5)
                    np.testing.assert_allclose(found.context, expected.context, atol=1e-5)
                    assert sorted(found.output.output.positions[0]) == sorted(expected.positions[0])
