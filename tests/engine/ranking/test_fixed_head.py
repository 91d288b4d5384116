"""Searches in NumPy answer as the layer that gradients flow through: whole answers are compared."""

from __future__ import annotations

from dataclasses import asdict
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch

from dsearch.attention.late_interaction import FixedStage
from dsearch.attention.memory_rows import FixedMemory
from dsearch.attention.retrieval.fixed_head import FixedHead
from dsearch.attention.retrieval.head import Head
from dsearch.attention.retrieval.learned_score import new_score
from dsearch.attention.retrieval.memory import QueryMemory
from dsearch.attention.retrieval.second_stage import SecondStage
from dsearch.engine import Collection, SearchEngine
from dsearch.engine.models import memory as models_memory
from dsearch.engine.snapshot import SnapshotTokens
from dsearch.evaluation.confidence import EVIDENCE, Calibration, Logistic
from dsearch.index.tokens import GatheredTokens
from dsearch.search_options import SearchOptions
from dsearch.store import MemoryRow
from dsearch.types import Document

QUERIES = ["cheese and bread", 'honey "number3"', "-apple", "grape juice -kale", "unheard-of words"]
HEADS: dict[str, dict[str, Any]] = {
    "linear": {},
    "one low-rank": {"query_side": "low-rank", "rank": 3},
    "two": {"heads": 2, "rank": 4},
    "four mlp": {"heads": 4, "rank": 5, "query_side": "mlp"},
}
SEARCHES: dict[str, dict[str, Any]] = {
    "hybrid": {},
    "dense": {"mode": "dense"},
    "keyword": {"mode": "keyword"},
    "hops": {"hops": 3, "hop_strength": 0.7},
    "few candidates": {"candidates": 3, "limit": 2, "coverage": True},
    "filter": {"filter": {"number": {"gte": 6}}, "limit": 50},
    "beyond the candidates": {"candidates": 4, "limit": 12},
    "nothing left": {"filter": {"number": {"eq": 1000}}},
    "diverse": {"diversity": 0.4, "limit": 8},
    "thresholds": {"weight_threshold": 0.01, "limit": 50},
    "sorted": {"sort": "number", "limit": 6},
}


def random_head(seed: int, *, weighting: bool = False, **shape: Any) -> Head:
    torch.manual_seed(seed)
    head = Head(32, **shape)
    with torch.no_grad():
        for parameter in head.parameters():
            parameter += 0.25 * torch.randn_like(parameter)
    if weighting:
        head.weigh_keywords(0.9, 0.3)
    return head


def close(one: Any, other: Any, path: str = "") -> None:
    """Equal texts, ids and orders; numbers within the rounding of single precision."""
    if isinstance(one, dict):
        assert one.keys() == other.keys(), path
        for name in one:
            if name not in ("took_ms", "next_cursor"):
                close(one[name], other[name], f"{path}.{name}")
    elif isinstance(one, (list, tuple)):
        assert len(one) == len(other), path
        for place, (first, second) in enumerate(zip(one, other, strict=True)):
            close(first, second, f"{path}.{place}")
    elif isinstance(one, float):
        assert other == pytest.approx(one, rel=2e-4, abs=2e-5, nan_ok=True), path
    else:
        assert one == other, path


def compare(
    collection: Collection,
    version: str,
    monkeypatch: pytest.MonkeyPatch,
    queries: list[str] = QUERIES,
    **options: Any,
) -> None:
    chosen = SearchOptions(model=version, **options)
    assert isinstance(collection.ranking_head(version), FixedHead)
    by_numpy = collection.answer(queries, chosen)
    with monkeypatch.context() as patched:
        patched.setattr(type(collection), "ranking_head", type(collection).head)
        collection.layers.clear()
        by_torch = collection.answer(queries, chosen)
    collection.layers.clear()
    for one, other in zip(by_torch, by_numpy, strict=True):
        assert [hit.id for hit in one.hits] == [hit.id for hit in other.hits]
        close(asdict(one), asdict(other))


@pytest.mark.parametrize(("shape", "seed"), [*product(HEADS, (1, 2)), ("two", 0)])
def test_random_heads_answer_as_in_torch(
    collection: Collection, shape: str, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    collection.upsert([Document("fresh", "cheese and bread and numbers", title="honey bread")])
    head = random_head(seed, weighting=seed == 2, **HEADS[shape])
    version = collection.add_model(head, {})
    for options in SEARCHES.values():
        compare(collection, version, monkeypatch, explain=True, **options)


@pytest.mark.parametrize("shape", HEADS)
def test_documents_of_several_passages_too(
    long: Collection, shape: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    version = long.add_model(random_head(5, **HEADS[shape]), {})
    for options in (
        {},
        {"mode": "dense", "candidates": 3, "coverage": True},
        {"hops": 2, "hop_strength": 1.0},
    ):
        compare(long, version, monkeypatch, explain=True, **options)


def test_the_untrained_version(collection: Collection, monkeypatch: pytest.MonkeyPatch) -> None:
    for options in SEARCHES.values():
        compare(collection, "v0", monkeypatch, explain=True, **options)


def test_vectors_in_place_of_texts(collection: Collection, monkeypatch: pytest.MonkeyPatch) -> None:
    version = collection.add_model(random_head(7, heads=2), {})
    vectors = np.random.default_rng(0).normal(size=(2, 32))
    answers = [
        collection.answer(["", "bread"], SearchOptions(model=version), given)
        for given in (vectors, vectors.tolist(), torch.as_tensor(vectors))
    ]
    for other in answers[1:]:
        for one, same in zip(answers[0], other, strict=True):
            close(asdict(one), asdict(same))


def test_shares_of_heads_by_the_query(collection: Collection, monkeypatch: pytest.MonkeyPatch) -> None:
    head = random_head(0, heads=3)
    moved_from_the_start(head.open_excitation(4))
    version = collection.add_model(head, {})
    for options in SEARCHES.values():
        compare(collection, version, monkeypatch, explain=True, **options)


def moved_from_the_start(module: torch.nn.Module) -> None:
    with torch.no_grad():
        for parameter in module.parameters():
            parameter += 0.25 * torch.randn_like(parameter)


def memory_over(collection: Collection, seed: int, *, lending: float, senders: bool) -> QueryMemory:
    random, rows = np.random.default_rng(seed), collection.snapshot.rows(collection.snapshot.visible())
    judged = random.permutation(rows)[: len(rows) // 2]
    of_query = np.arange(40).repeat(2)
    positions = collection.snapshot.positions_of(judged)
    return QueryMemory(
        random.normal(size=(40, 32)).astype(np.float32),
        collection.snapshot.embeddings(positions[None])[0],
        judged,
        of_query,
        random.integers(len(judged), size=80),
        random.uniform(0.5, 3, 80),
        texts=[f"past query {number}" for number in range(40)],
        senders=random.integers(-1, 3, 40) if senders else None,
        strength=0.8,
        temperature=0.3,
        null_level=0.2,
        lending=lending,
    )


@pytest.mark.parametrize("indexed", [False, True])
@pytest.mark.parametrize("seed", range(2))
def test_a_query_memory(
    collection: Collection, seed: int, indexed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(models_memory, "INDEXED_FROM", 8 if indexed else 10_000)
    monkeypatch.setattr(models_memory, "LENDERS_FROM", 4 if indexed else 10_000)
    head = random_head(seed, heads=1 + seed)
    head.memory = memory_over(collection, seed, lending=1 - seed / 2, senders=seed == 1)
    version = collection.add_model(head, {})
    fixed = collection.ranking_head(version)
    assert isinstance(fixed.memory, FixedMemory)
    assert (fixed.memory.index is None) != indexed
    collection.upsert([Document("fresh", "cheese and bread and numbers", title="honey bread")])
    for options in SEARCHES.values():
        compare(collection, version, monkeypatch, explain=True, **options)
    many = [f"number{number} bread" for number in range(12)]  # more than are spread one by one
    compare(collection, version, monkeypatch, queries=many, coverage=True)
    for module in ("memory", "coverage", "whole"):  # as of a large collection
        monkeypatch.setattr(f"dsearch.engine.ranking.{module}.COVERAGE_DOCUMENTS", 5)
    monkeypatch.setattr("dsearch.engine.ranking.whole.SAMPLE", 5)
    for options in ({}, {"mode": "dense"}):
        compare(collection, version, monkeypatch, explain=True, candidates=5, coverage=True, **options)


def test_rows_that_were_added_later_are_in_both(
    collection: Collection, monkeypatch: pytest.MonkeyPatch
) -> None:
    head = random_head(0)
    head.memory = memory_over(collection, 0, lending=1.0, senders=False)
    version = collection.add_model(head, {})
    collection.promote(version)
    row = int(collection.snapshot.rows(collection.snapshot.visible()[:1])[0])
    state = collection.query_embeddings(["bread"], "hybrid")[0]
    added = MemoryRow("later bread", state, {row: 2.0}, "judgements", "", 0)
    before = collection.search("bread", explain=True).hits
    collection.remembered.add([added])
    assert collection.search("bread", explain=True).hits != before
    compare(collection, version, monkeypatch, explain=True)
    fixed, module = collection.ranking_head(version), collection.head(version)
    assert len(fixed.memory) == len(module.memory) == 41
    assert np.shares_memory(fixed.memory.keys, module.memory.keys.numpy())


@pytest.mark.parametrize("seed", range(3))
def test_a_second_stage(
    engine: SearchEngine, documents: list[Document], seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    collection = engine.create("staged")
    collection.ingest(documents, second_stage=True)
    head = random_head(3 + seed, heads=1 + seed)
    head.second_stage = SecondStage()
    if seed < 2:  # else with the weights of the start: no feature counts
        moved_from_the_start(head.second_stage)
    if seed == 1:
        head.memory = memory_over(collection, seed, lending=1.0, senders=False)
    version = collection.add_model(head, {})
    assert isinstance(collection.ranking_head(version).second_stage, FixedStage)
    collection.upsert([Document("fresh", "cheese and bread", title="honey", metadata={"number": 4})])
    collection.calibrations.keep(version, calibration(seed))
    for options in SEARCHES.values():
        compare(collection, version, monkeypatch, explain=True, **options)
        if options.get("mode") != "keyword":
            compare(collection, "v0", monkeypatch, explain=True, stages=2, rerank_candidates=4, **options)
    compare(collection, version, monkeypatch, highlight=True, highlight_by="meaning")
    assert collection.search("bread", model=version).confidence is not None


def test_documents_whose_tokens_are_not_known(
    engine: SearchEngine, documents: list[Document], monkeypatch: pytest.MonkeyPatch
) -> None:
    collection = engine.create("staged")
    collection.ingest(documents, second_stage=True)
    compare(collection, "v0", monkeypatch, explain=True, stages=2)
    gather = SnapshotTokens.gather

    def without_some(tokens: SnapshotTokens, positions: np.ndarray) -> GatheredTokens:
        return gather(tokens, np.where(positions % 3 == 1, -1, positions))

    monkeypatch.setattr(SnapshotTokens, "gather", without_some)
    compare(collection, "v0", monkeypatch, explain=True, stages=2)


def calibration(seed: int) -> Calibration:
    random = np.random.default_rng(seed)

    def logistic(width: int) -> Logistic:
        return Logistic([0.0] * width, [1.0] * width, random.normal(size=width).tolist(), 0.1)

    return Calibration(logistic(len(EVIDENCE)), logistic(len(EVIDENCE)), 0.01, 0.2, "judgements", 60, 20)


def test_a_learned_score_is_left_to_torch(collection: Collection) -> None:
    head = random_head(0, heads=2)
    head.score = new_score("general", head.encoder_dim)
    version = collection.add_model(head, {})
    assert isinstance(collection.ranking_head(version), Head)
    assert collection.search("bread", model=version).hits
