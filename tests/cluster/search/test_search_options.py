"""Each option of a search reaches the shards, or the answer, in every way that a cluster is asked.

With the option it must ask the shards for something else, or answer otherwise, than without it, and as one
machine does.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import fields, replace
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import numpy as np
import pytest
import torch
from support.cluster_checks import WORDS, Packed, require_same, sharded
from support.doors import arrays
from support.fakes import HashingEncoder

import dsearch.cluster.collection as cluster_collection
from dsearch.attention.retrieval.head import Head
from dsearch.attention.retrieval.second_stage import SecondStage
from dsearch.cluster.collection import Releases, ShardedCollection
from dsearch.cluster.messages import HitPreview, PastQueries, ProposalRequest
from dsearch.cluster.search.attention import ShardQuery
from dsearch.cluster.search.search import ShardedSearch
from dsearch.engine import Collection, SearchEngine
from dsearch.engine.models.files import save_model
from dsearch.errors import ShardsMissing
from dsearch.evaluation.confidence import EVIDENCE, Calibration, Logistic
from dsearch.search_options import SearchOptions
from dsearch.store import parse_filter
from dsearch.types import Document

QUERIES = ["apple bread -kale number3", "honey ice"]
VECTORS = np.random.default_rng(5).standard_normal((2, 32)).tolist()
WAYS: dict[str, tuple[list[str], list[list[float]] | None, str]] = {
    "a query": (QUERIES[:1], None, "v0"),
    "a batch": (QUERIES, None, "v0"),
    "a vector": ([""], VECTORS[:1], "v0"),
    "vectors with words": (QUERIES, VECTORS, "v0"),
    "a learned stage": (QUERIES[:1], None, "v1"),
    "two heads": (QUERIES[:1], None, "v2"),
}
"""Texts, vectors, and the version that is live."""
OPTIONS: dict[str, tuple[dict[str, Any], Any]] = {
    "limit": ({}, 7),
    "offset": ({}, 2),
    "filter": ({}, {"n": {"in": [0, 2]}}),
    "operators": ({}, False),
    "mode": ({}, "dense"),
    "model": ({}, "v2"),
    "hops": ({"hop_strength": 0.7}, 2),
    "hop_strength": ({"hops": 2}, 0.7),
    "score_threshold": ({}, 0.35),
    "weight_threshold": ({}, 0.03),
    "explain": ({}, True),
    "highlight": ({}, True),
    "highlight_by": ({"highlight": True}, "meaning"),
    "candidates": ({}, 3),
    "stages": ({}, 2),
    "rerank_candidates": ({"stages": 2, "limit": 30}, 3),
    "collapse": ({"limit": 30}, True),
    "sort": ({}, "-n"),
    "group_by": ({"limit": 30}, "n"),
    "diversity": ({}, 0.4),
    "fields": ({}, "title,n"),
    "coverage": ({}, False),
}
"""Each option: what it goes with, and its value."""
ELSEWHERE = {
    "cursor": "test_merge.py: pages",
    "partial": "test_search.py: lost shards",
    "typos": "refused: test_search.py",
    "a vector: operators": "of words",
    "a vector: highlight": "of words",
    "a vector: highlight_by": "of words",
    "a vector: stages": "refused: test_vectors.py",
    "a vector: rerank_candidates": "refused: test_vectors.py",
    "a vector: mode": "dense without words",
    "a learned stage: stages": "2 already",
    "two heads: model": "v2 already",
    "vectors with words: stages": "refused: test_vectors.py",
    "vectors with words: rerank_candidates": "refused: test_vectors.py",
}
"""Options without an effect of their own, and the reason, or the test that they have."""


@pytest.fixture(scope="module")
def food(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Collection]:
    """Forty documents with tokens; v1 has a second stage, v2 two heads, both a k1 and b of their own."""
    with SearchEngine(tmp_path_factory.mktemp("options") / "home", encoder=HashingEncoder) as engine:
        food = engine.create("food")
        texts = [f"{WORDS[n % 16]} {WORDS[(n * 3 + 1) % 16]} number{n}" for n in range(40)]
        texts[21] = texts[34] = texts[3]
        documents = [Document(f"d{n}", text, f"title {n}", {"n": n % 5}) for n, text in enumerate(texts)]
        food.ingest(documents, second_stage=True)
        for heads in (1, 2):
            generator = torch.Generator().manual_seed(heads)
            head = Head(32, heads=heads, rank=4, seed=heads)
            stage = SecondStage()
            with torch.no_grad():
                for parameter in head.parameters():
                    parameter += 0.1 * torch.randn(parameter.shape, generator=generator)
                head.hop_strength.fill_(0.0)
                stage.feature_weights += 0.3 * torch.randn(stage.feature_weights.shape, generator=generator)
            head.weigh_keywords(0.5, 0.2)
            learned = head.reranking(stage).eval() if heads == 1 else head
            save_model(food.store, learned, parent="v0", record={})
        yield food


class Asked:
    """Shards that note what they are asked, through what travels between processes."""

    def __init__(self, shards: Any):
        self._shards = shards
        self.requests: list[Any] = []

    def ask(self, method: str, requests: Mapping[int, Any]) -> dict[int, Any]:
        self.requests.append([method, arrays(requests)])
        return self._shards.ask(method, requests)


@pytest.fixture(scope="module")
def search(food: Collection, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ShardedSearch]:
    with sharded(food, tmp_path_factory.mktemp("release") / "three", 3) as made:
        assert isinstance(made._shards, Packed)
        yield ShardedSearch(made.release, Asked(made._shards), food.head, made._encode)


def answered(search: ShardedSearch, way: str, options: Mapping[str, Any]) -> tuple[Any, Any]:
    """What the shards were asked, and the answers."""
    texts, vectors, live = WAYS[way]
    asked: Any = search._shards
    asked.requests.clear()
    results = search.search(texts, live, SearchOptions(**options), vectors)
    return [*asked.requests], [replace(result, took_ms=0.0) for result in results]


@pytest.mark.parametrize("way", WAYS)
def test_each_option_is_seen_by_the_shards_or_in_the_answer(
    food: Collection, search: ShardedSearch, way: str
) -> None:
    lost: list[str] = []
    texts, vectors, live = WAYS[way]
    for name, (others, value) in OPTIONS.items():
        if f"{way}: {name}" in ELSEWHERE:
            continue
        options = {**others, name: value}
        without, having = answered(search, way, others), answered(search, way, options)
        if having[0] == without[0] and arrays(having[1]) == arrays(without[1]):
            lost.append(f"{name}={value!r}: asked and answered as without it")
        for method, requests in having[0]:
            same = [[str(number), requests[0][1]] for number in range(3)]
            if method == "propose" and requests != same:
                lost.append(f"{name}={value!r}: shards are asked for different things")
        here = food.answer(texts, SearchOptions(**{"model": live, **options}), vectors)
        try:
            for ours, theirs in zip(having[1], here, strict=True):
                require_same(ours, theirs)
        except AssertionError as error:
            lost.append(f"{name}={value!r}: one machine answers otherwise: {error}")
    assert not lost, "\n".join([f"{way}:", *lost])


def test_confidence_is_that_of_one_machine(food: Collection, search: ShardedSearch) -> None:
    width = len(EVIDENCE)
    logistic = Logistic([0.0] * width, [1.0] * width, np.linspace(-1, 1, width).tolist(), 0.1)
    calibration = Calibration(logistic, logistic, 0.01, 0.2, "judgements", 60, 20)
    food.calibrations.keep("v1", calibration)
    shards = ShardedSearch(search.release, search._shards, food.head, search._encode, food.calibrations.of)
    options = SearchOptions(model="v1")
    for ours, theirs in zip(
        shards.search(QUERIES, "v0", options), food.answer(QUERIES, options), strict=True
    ):
        assert ours.confidence is not None
        assert theirs.confidence is not None
        assert ours.confidence.probability == pytest.approx(theirs.confidence.probability, abs=1e-5)
        assert ours.confidence.verdict == theirs.confidence.verdict


def test_every_option_is_looked_at() -> None:
    alone = {name for name in ELSEWHERE if ":" not in name}
    assert {field.name for field in fields(SearchOptions)} == {*OPTIONS} | alone


QUERY: dict[str, Any] = {
    "texts": ["given-texts"],
    "mode": "hybrid",
    "candidates": 1937,
    "filter": parse_filter({"given": {"eq": 1}}),
    "required": ("given-required",),
    "excluded": ("given-excluded",),
    "coverage": True,
    "preview": HitPreview(1938, "given-preview", True, True),
    "past": PastQueries("given-past", np.zeros((1, 1), np.int64), np.zeros((1, 1), np.float32), True),
    "rerank": None,
    "collapse": True,
    "depth": 1939,
}
NAMES = {"coverage": "partition"}


def test_each_field_of_a_query_is_one_of_its_request() -> None:
    """`rerank` follows the proposals; see test_second_stage.py."""
    assert {*QUERY} == {field.name for field in fields(ShardQuery)}
    head = Head(4).requires_grad_(False)
    head.weigh_keywords(0.5, 0.25)
    request = ShardQuery(**QUERY).question(torch.full((1, 1, 4), 0.125), head)
    for name, value in QUERY.items():
        if name != "rerank":
            assert getattr(request, NAMES.get(name, name)) == value, name
    assert request.folded.tolist() == [[[0.125] * 4]]
    assert request.weighting == (0.5, 0.25)
    assert request.keyword_weight is not None
    assert request.keyword_weight.tolist() == head.keyword_weight.tolist()
    assert request.temperature == pytest.approx(float(head.temperature))
    of_head = {"folded", "keyword_weight", "temperature", "weighting"}
    named = {NAMES.get(name, name) for name in QUERY} - {"rerank"}
    assert {field.name for field in fields(ProposalRequest)} == of_head | named


@pytest.mark.parametrize("way", ["search", "vector", "search_batch", "answer"])
def test_each_option_of_a_sharded_collection_reaches_the_search(
    monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    asked: list[tuple[Any, ...]] = []

    class Recorded:
        def __init__(self, *parts: Any):
            assert parts[:2] == ("release", "shards")

        def search(self, *arguments: Any) -> list[Any]:
            asked.append(arguments)
            return [SimpleNamespace(hits=[])]

    monkeypatch.setattr(cluster_collection, "ShardedSearch", Recorded)
    monkeypatch.setattr(cluster_collection, "refuse_misspelt", lambda *_, **__: None)
    local: Any = SimpleNamespace(name="food", store=None, feedback=None, live_model="v7")
    local.calibrations = SimpleNamespace(of=None)
    for name in ("describe", "rebuild_status", "head", "encoder_in_use"):
        setattr(local, name, None)
    live: Any = SimpleNamespace(live=lambda name, look=False: ("live", "release", "shards"))
    releases: Releases = live
    collection = ShardedCollection(local, releases)
    calls: dict[str, Any] = {
        "search": lambda **options: collection.search("cat", **options),
        "vector": lambda **options: collection.search(vector=[0.5], **options),
        "search_batch": lambda **options: collection.search_batch(["cat"], **options),
        "answer": lambda **options: collection.answer(["cat"], SearchOptions(**options)),
    }
    given = {name: value for name, (_, value) in OPTIONS.items()}
    given |= {"cursor": "given", "partial": True, "typos": True}
    for name, value in given.items():
        calls[way](**{name: value})
        queries, model, options, vectors = asked.pop()
        assert getattr(options, name) == value, name
        assert (queries, model) == ([""] if way == "vector" else ["cat"], "v7")
        assert vectors == ([[0.5]] if way == "vector" else None)


def test_a_release_that_was_replaced_is_looked_up_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its shards are stopped: what is known of the coordinator is as old, and is asked for again."""
    looks: list[bool] = []

    class Missing:
        def __init__(self, release: str, *_: Any):
            self.release = release

        def search(self, *_: Any) -> list[Any]:
            if self.release != "new":
                raise ShardsMissing("stopped")
            return []

    known = ("live", "old", "shards")

    def live(name: str, *, look: bool = False) -> tuple[str, str, str]:
        looks.append(look)
        return ("live", "new", "shards") if look else known

    monkeypatch.setattr(cluster_collection, "ShardedSearch", Missing)
    local: Any = MagicMock()
    releases: Any = SimpleNamespace(live=live)
    collection = ShardedCollection(local, releases)
    assert collection.answer(["cat"], SearchOptions()) == []
    assert looks == [False, True]
