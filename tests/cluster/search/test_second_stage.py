"""Shards rerank their own candidates as one machine does, and a release without tokens says so."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from support.cluster_checks import WORDS, require_same, sharded
from support.fakes import HashingEncoder

from dsearch.attention.late_interaction import FEATURES
from dsearch.attention.retrieval.head import Head
from dsearch.attention.retrieval.second_stage import SecondStage
from dsearch.cluster.search.search import ShardedSearch
from dsearch.cluster.search.second_stage import RerankQuery, stage_over
from dsearch.engine import Collection, SearchEngine
from dsearch.engine.models.files import save_model
from dsearch.engine.search import hits as pages
from dsearch.errors import InvalidRequest, NotInCluster
from dsearch.search_options import SearchOptions
from dsearch.types import Document

QUERIES = ["apple cheese", "honey ice", "number7 pear", "the"]


@pytest.fixture(scope="module")
def food(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Collection]:
    """Sixty documents, one without tokens, and versions with a learned second stage."""
    with SearchEngine(tmp_path_factory.mktemp("staged") / "home", encoder=HashingEncoder) as engine:
        food = engine.create("food")
        texts = [f"{WORDS[n % 16]} {WORDS[(n * 3 + 1) % 16]} number{n}" for n in range(60)]
        texts[33] = texts[50] = texts[0]
        food.ingest(
            [Document(f"d{n}", text, metadata={"even": n % 2 == 0}) for n, text in enumerate(texts)],
            second_stage=True,
        )
        generator = torch.Generator().manual_seed(4)
        stage = SecondStage()
        with torch.no_grad():
            stage.strength.fill_(0.5)
            stage.feature_weights.copy_(torch.randn(stage.feature_weights.shape, generator=generator) * 0.2)
        for head in (copy.deepcopy(food.head("v0")), Head(32, heads=2, rank=4, seed=1)):
            save_model(food.store, head.reranking(stage).eval(), parent="v0", record={})
        # Neighbours of each document are summed in another order: copies of one text tie but for rounding.
        without_neighbours = copy.deepcopy(stage)
        without_neighbours.feature_weights.data[FEATURES.index("neighbours")] = 0.0
        head = food.head("v0").reranking(without_neighbours)
        save_model(food.store, head.eval(), parent="v0", record={})
        yield food


@pytest.fixture(scope="module")
def shards(food: Collection, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ShardedSearch]:
    with sharded(food, tmp_path_factory.mktemp("release") / "three", 3) as search:
        yield search


@pytest.mark.parametrize(
    "options",
    [
        {"stages": 2, "explain": True},
        {"stages": 2, "mode": "dense"},
        {"stages": 2, "rerank_candidates": 4, "limit": 30},
        {"stages": 2, "candidates": 7, "hops": 2, "hop_strength": 0.5},
        {"stages": 2, "highlight": True, "highlight_by": "meaning", "filter": {"even": {"eq": True}}},
        {"model": "v1", "explain": True, "limit": 30},
        {"model": "v2", "rerank_candidates": 9, "limit": 20, "explain": True},
        {"model": "v3", "collapse": True, "explain": True, "limit": 30},
        {"model": "v1", "stages": 1},
        {"model": "v1", "mode": "keyword"},
    ],
)
def test_shards_equal_one_machine(food: Collection, shards: ShardedSearch, options: dict[str, Any]) -> None:
    """The untrained stage, a learned one with features, several heads, a batch."""
    results = shards.search(QUERIES, "v0", SearchOptions(**options))
    for query, result in zip(QUERIES, results, strict=True):
        expected = food.search(query, **options)
        require_same(result, expected)
        if options.get("explain") and query == QUERIES[0]:
            assert any(hit.explain.second_stage for hit in result.hits if hit.explain)
        if options.get("highlight") and query == QUERIES[0]:
            pieces = [piece for hit in result.hits for piece in hit.highlights or ()]
            assert {piece.by for piece in pieces} == {"meaning"}


@pytest.mark.parametrize(
    "options",
    [{"stages": 2, "limit": 20}, {"model": "v1", "limit": 9, "offset": 12}],
    ids=["plain", "learned"],
)
def test_what_is_listed_beyond_the_candidates_is_not_reranked(
    food: Collection, shards: ShardedSearch, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any]
) -> None:
    monkeypatch.setattr(pages, "CANDIDATES", 7)
    results = shards.search(QUERIES, "v0", SearchOptions(**options))
    for query, result in zip(QUERIES, results, strict=True):
        require_same(result, food.search(query, **options))
    assert any(len(result.hits) == options["limit"] for result in results)


def test_pages_over_shards_go_on_in_the_order_of_the_second_stage(shards: ShardedSearch) -> None:
    options: dict[str, Any] = {"stages": 2, "rerank_candidates": 6}

    def page(**more: Any) -> Any:
        return shards.search([QUERIES[0]], "v0", SearchOptions(**options, **more))[0]

    whole = [hit.id for hit in page(limit=15).hits]
    first = page(limit=4)
    second = page(limit=11, cursor=first.next_cursor)
    assert [hit.id for hit in (*first.hits, *second.hits)] == whole


def test_a_release_without_tokens_is_refused(tmp_path: Path) -> None:
    with SearchEngine(tmp_path / "home", encoder=HashingEncoder) as engine:
        plain = engine.create("plain")
        plain.ingest([Document(f"d{n}", WORDS[n]) for n in range(8)])
        head = copy.deepcopy(plain.head("v0")).reranking(SecondStage())
        version = save_model(plain.store, head, parent="v0", record={})
        with sharded(plain, tmp_path / "release", 2) as shards:
            with pytest.raises(NotInCluster, match="publish the collection again"):
                shards.search(["apple"], version, SearchOptions())
            with pytest.raises(InvalidRequest, match="--second-stage"):
                shards.search(["apple"], "v0", SearchOptions(stages=2))
            with pytest.raises(InvalidRequest, match="--second-stage"):
                shards.search(["apple"], "v0", SearchOptions(highlight=True, highlight_by="meaning"))
            assert shards.search(["apple"], version, SearchOptions(stages=1))[0].hits
            vector = [[1.0, *[0.0] * (plain.store.dimension - 1)]]  # which no stage follows
            require_same(
                shards.search(["apple"], version, SearchOptions(), vector)[0],
                plain.answer(["apple"], SearchOptions(model=version), vector)[0],
            )


def test_a_learned_stage_needs_tokens() -> None:
    head = Head(32).reranking(SecondStage())
    query = RerankQuery(None, 5, [])
    assert stage_over(query, True, head, "hybrid") is head.second_stage
    with pytest.raises(NotInCluster, match="publish the collection again"):
        stage_over(query, False, head, "hybrid")
