"""A function as evidence scores the live version by the very search that it scores the new one by."""

from __future__ import annotations

from typing import Any

import pytest
from support.training.topics import topics_in

from dsearch.attention.retrieval.learned_score import new_score
from dsearch.engine import Collection, CollectionLayer, SearchEngine, SearchLayer, open_layer
from dsearch.training import save_model

OPTIONS: list[dict[str, Any]] = [
    {},
    {"mode": "dense", "candidates": 3},
    {"mode": "keyword"},
    {"candidates": 7, "depth": 5},
    {"over": "all", "temperature": 0.5},
    {"hops": 2, "hop_strength": 0.25, "pooling": "uniform"},
    {"score": "gaussian", "width": 0.5},
    {"rerank_candidates": 9},
]


@pytest.fixture
def topics(engine: SearchEngine) -> Collection:
    return topics_in(engine)


def live_beside(topics: Collection, layer: SearchLayer, **options: Any) -> SearchLayer:
    """The layer that stands for the live version."""
    scored: list[SearchLayer] = []
    save_model(topics, layer, evidence=lambda of: scored.append(of) or [0.0] * 20, **options)
    assert scored[1] is layer
    return scored[0]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_the_live_version_is_scored_with_all_options_of_the_layer(
    topics: Collection, options: dict[str, Any]
) -> None:
    live = live_beside(topics, SearchLayer(topics.snapshot, topics.head("v0"), **options))
    expected = vars(SearchLayer(topics.snapshot, topics.head("v0"), **options))
    parts = ("_modules", "_parameters", "_snapshot", "score")
    for name in expected.keys() - {*parts}:
        assert getattr(live, name) == expected[name], name
    if "score" in options:
        assert vars(live.score) == {"name": options["score"], "width": options["width"]}


def test_a_layer_is_scored_beside_the_live_version(engine: SearchEngine, topics: Collection) -> None:
    topics.promote(topics.add_model(topics.head("v0"), {}))
    beside = live_beside(topics, open_layer(engine, "topics", model="v0"))
    assert isinstance(beside, CollectionLayer)
    assert beside.version == "v1"
    assert topics.store.models()[-1].record["compared_with"] == "v1"


def test_the_live_version_scores_as_it_learned(topics: Collection) -> None:
    """A layer that ranks by the inner product says nothing against a learned score of what answers."""
    learned = topics.head("v0").scoring_by(new_score("general", topics.store.dimension))
    topics.promote(topics.add_model(learned, {}))
    live = live_beside(topics, SearchLayer(topics.snapshot, topics.head("v0")))
    assert live.score is live.head.learned_score is not None
    again = live_beside(topics, SearchLayer(topics.snapshot, learned, candidates=4))
    assert again.score is again.head.learned_score
    assert again.candidates == 4
