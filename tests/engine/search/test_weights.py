"""The weight of a hit does not depend on how many hits an answer has, on one machine and over shards."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.cluster_checks import sharded
from support.fakes import HashingEncoder

from dsearch.attention.retrieval.head import Head
from dsearch.attention.retrieval.second_stage import SecondStage
from dsearch.engine import Collection, PassageOptions, SearchEngine
from dsearch.engine.models.files import save_model
from dsearch.search_options import SearchOptions
from dsearch.types import Document, SearchResult

WORDS = [f"word{n}" for n in range(40)]
QUERY = "word3 word7 word11"
LIMITS = (10, 100, 150, 500)

Search = Callable[..., SearchResult]


@pytest.fixture(scope="module")
def words(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Collection]:
    """700 documents, some of several passages; v1 with three heads and hops, v2 with a second stage, v3
    with a high temperature."""
    draw = np.random.default_rng(0)
    with SearchEngine(tmp_path_factory.mktemp("weights") / "home", encoder=HashingEncoder) as engine:
        made = engine.create("words", passages=PassageOptions(tokens=16, overlap=4))
        texts = [" ".join(draw.choice(WORDS, 30 if n % 40 == 0 else draw.integers(2, 7))) for n in range(700)]
        made.ingest([Document(f"d{n}", text) for n, text in enumerate(texts)], second_stage=True)
        several = Head(32, heads=3, rank=4, seed=1)
        with torch.no_grad():
            several.hop_strength.fill_(0.4)
        stage = SecondStage()
        with torch.no_grad():
            stage.feature_weights.fill_(0.1)
        warm = Head(32)
        with torch.no_grad():
            warm.log_temperature.fill_(np.log(0.5))
        for head in (several, Head(32).reranking(stage), warm):
            save_model(made.store, head.eval(), parent="v0", record={})
        yield made


@pytest.fixture(scope="module")
def searches(words: Collection, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Search]]:
    def over_shards(query: str, **options: Any) -> SearchResult:
        return split.search([query], "v0", SearchOptions(**options))[0]

    with sharded(words, tmp_path_factory.mktemp("release") / "three", 3) as split:
        yield {"machine": words.search, "shards": over_shards}


def by_cursor(search: Search, first: int, **options: Any) -> list[SearchResult]:
    pages = [search(QUERY, limit=first, **options)]
    while pages[-1].next_cursor is not None:
        pages.append(search(QUERY, limit=90, cursor=pages[-1].next_cursor, **options))
    return pages


@pytest.mark.parametrize("place", ["machine", "shards"])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"mode": "dense"},
        {"mode": "keyword"},
        {"hops": 2, "hop_strength": 0.7},
        {"model": "v1"},
        {"model": "v2"},
        {"model": "v2", "stages": 1},
        {"model": "v2", "rerank_candidates": 300},
    ],
    ids=repr,
)
def test_weights_are_the_same_for_every_limit(
    searches: dict[str, Search], options: dict[str, Any], place: str
) -> None:
    search = searches[place]
    answers = [search(QUERY, limit=limit, coverage=True, **options) for limit in LIMITS]
    longest = {hit.id: hit for hit in answers[-1].hits}
    assert len(longest) > len(answers[1].hits)
    for pages in (*([answer] for answer in answers), by_cursor(search, 30, **options)):
        listed = [hit for page in pages for hit in page.hits]
        scores = [hit.score for hit in listed]
        assert scores == sorted(scores, reverse=True)
        hits = [hit for hit in listed if hit.id in longest]  # deeper legs find some that rank before others
        assert len(hits) >= min(len(listed), 100)
        shared = [longest[hit.id] for hit in hits]
        assert [hit.weight for hit in hits] == pytest.approx([hit.weight for hit in shared], rel=1e-4)
        assert [hit.score for hit in hits] == pytest.approx([hit.score for hit in shared], rel=1e-5, abs=1e-6)
        assert [hit.rank for hit in shared] == sorted(hit.rank for hit in shared)  # one order
    first, *others = [answer.attention for answer in answers]
    for attention in others:
        assert attention.candidates == first.candidates
        assert attention.entropy == pytest.approx(first.entropy, rel=1e-4)
        assert attention.covered_mass == pytest.approx(first.covered_mass, rel=1e-4)
    everything = [hit for page in by_cursor(search, 30, **options) for hit in page.hits]
    assert len(everything) == first.candidates
    assert sum(hit.weight for hit in everything) == pytest.approx(1, abs=1e-4)


@pytest.mark.parametrize("place", ["machine", "shards"])
def test_weight_times_covered_mass_is_the_share_of_all(
    words: Collection, searches: dict[str, Search], place: str
) -> None:
    every = words.attend([QUERY], over="all", candidates=700, model="v3")
    share = dict(zip(every.ids[0], every.output.weights[0].tolist(), strict=True))
    answer = searches[place](QUERY, limit=500, coverage=True, model="v3")
    covered = answer.attention.covered_mass
    assert covered is not None
    assert covered < 0.999
    assert len(answer.hits) > answer.attention.candidates  # further hits continue the same scale
    assert [hit.weight * covered for hit in answer.hits] == pytest.approx(
        [share[hit.id] for hit in answer.hits], rel=1e-3, abs=1e-7
    )


def test_explanations_add_up_beyond_the_candidates(words: Collection) -> None:
    for model in ("v1", "v2"):
        few, many = (words.search(QUERY, limit=k, explain=True, model=model).hits for k in (10, 400))
        assert few[0].explain is not None
        assert many[0].explain is not None
        assert many[0].explain.shares == pytest.approx(few[0].explain.shares, rel=1e-4)
        for hit in (many[0], many[-1]):
            of = hit.explain
            assert of is not None
            by_head = [
                share * (dense + keyword + of.memory + of.second_stage)
                for share, dense, keyword in zip(of.shares, of.dense, of.keyword, strict=True)
            ]
            assert sum(by_head) + of.mixing == pytest.approx(hit.score, rel=1e-4)


@pytest.mark.parametrize("kind", ["HNSW", "IVF"])
def test_approximate_keys_change_no_weight(tmp_path: Path, kind: str) -> None:
    draw = np.random.default_rng(1)
    with SearchEngine(tmp_path / "home", encoder=HashingEncoder) as engine:
        made = engine.create("words")
        made.ingest([Document(f"d{n}", " ".join(draw.choice(WORDS, 5))) for n in range(600)])
        made.refresh(kind=kind)
        first = made.search(QUERY, limit=100, mode="dense").hits
        longest = {hit.id: hit.weight for hit in made.search(QUERY, limit=400, mode="dense").hits}
        assert [longest[hit.id] for hit in first] == pytest.approx([hit.weight for hit in first], rel=1e-4)
