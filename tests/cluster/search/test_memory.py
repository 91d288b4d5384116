"""Shards serve a query memory as one machine does: scores, candidates, covered mass, hops."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from support.cluster_checks import WORDS, require_same, sharded
from support.fakes import HashingEncoder
from support.guarded import guarded

import dsearch.engine.ranking.memory as ranking_memory
from dsearch.cluster.messages import MemoryContent, PastQueries
from dsearch.cluster.search import attention
from dsearch.cluster.search.search import ShardedSearch, encode_queries
from dsearch.cluster.shards.memory import MOST, RecalledHere, ShardMemories
from dsearch.engine import Collection, SearchEngine
from dsearch.engine.indexing.releases import ROWS_NAME
from dsearch.engine.models.files import save_model
from dsearch.engine.models.memory import memory_bytes
from dsearch.engine.search import hits as pages
from dsearch.errors import NotInCluster
from dsearch.lru_cache import LruCache
from dsearch.search_options import SearchOptions
from dsearch.training import remember
from dsearch.types import Document

checked = guarded(LruCache, "_entries", "_sizes", free=("__len__",))


PAST = {f"p{n}": f"{WORDS[n]} {WORDS[(n * 5 + 2) % 16]}" for n in range(12)}
JUDGED = {f"p{n}": {f"d{(n * 7) % 60}": 2.0, f"d{(n * 11 + 3) % 60}": 1.0} for n in range(12)}


@pytest.fixture(scope="module")
def food(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Collection]:
    """Sixty documents, some of them changed and deleted, and twelve judged queries."""
    with SearchEngine(tmp_path_factory.mktemp("past") / "home", encoder=HashingEncoder) as engine:
        food = engine.create("food")
        texts = [f"{WORDS[n % 16]} {WORDS[(n * 3 + 1) % 16]} number{n}" for n in range(60)]
        food.ingest([Document(f"d{n}", text, metadata={"even": n % 2 == 0}) for n, text in enumerate(texts)])
        remember(food, PAST, JUDGED, accept=True)
        food.upsert([Document("d7", "pear changed")])
        food.delete(["d14"])
        food.refresh()
        yield food


@pytest.fixture(scope="module")
def shards(food: Collection, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ShardedSearch]:
    with sharded(food, tmp_path_factory.mktemp("release") / "three", 3) as search:
        yield search


@pytest.mark.parametrize("query", ["apple cheese", "honey ice", "number7 pear"])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"mode": "dense"},
        {"mode": "keyword"},
        {"candidates": 3, "limit": 3},
        {"hops": 2, "hop_strength": 0.5},
        {"explain": True, "filter": {"even": {"eq": True}}},
        {"candidates": 3, "limit": 3, "filter": {"even": {"eq": False}}},
    ],
)
def test_shards_equal_one_machine(
    food: Collection, shards: ShardedSearch, query: str, options: dict[str, Any]
) -> None:
    assert food.live_model == "v1"
    found = shards.search([query], "v1", SearchOptions(**options))[0]
    expected = food.search(query, **options)
    require_same(found, expected)
    assert found.hits
    if options.get("explain"):
        for ours, theirs in zip(found.hits, expected.hits, strict=True):
            assert ours.explain is not None
            assert theirs.explain is not None
            assert ours.explain.memory == pytest.approx(theirs.explain.memory, abs=1e-5)
        assert query != "apple cheese" or any(hit.explain.memory > 0.1 for hit in found.hits if hit.explain)


@pytest.mark.parametrize("mode", ["hybrid", "dense"])
def test_past_queries_propose_beyond_the_candidates_too(
    food: Collection, shards: ShardedSearch, monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    """Of a large collection, where documents that borrow are proposed by no leg of theirs."""
    monkeypatch.setattr(pages, "CANDIDATES", 1)
    for module in (attention, ranking_memory):
        monkeypatch.setattr(module, "COVERAGE_DOCUMENTS", 10)
    for query in PAST.values():
        options: dict[str, Any] = {"limit": 3, "mode": mode, "coverage": False}
        require_same(shards.search([query], "v1", SearchOptions(**options))[0], food.search(query, **options))


def test_in_a_large_collection_judged_documents_alone_are_proposed(
    food: Collection, shards: ShardedSearch, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attention, "COVERAGE_DOCUMENTS", 10)
    monkeypatch.setattr(ranking_memory, "COVERAGE_DOCUMENTS", 10)
    for query in PAST.values():
        options: dict[str, Any] = {"candidates": 4, "limit": 4, "coverage": False}
        require_same(shards.search([query], "v1", SearchOptions(**options))[0], food.search(query, **options))


@pytest.mark.parametrize("less", [0, 1])
def test_the_largest_small_collection_is_as_small_over_shards(
    food: Collection, shards: ShardedSearch, monkeypatch: pytest.MonkeyPatch, less: int
) -> None:
    """What documents borrow has a part in it; beyond, also in no covered mass: it would take minutes."""
    documents = shards.release.documents
    assert documents == food.snapshot.positions
    for module in (attention, ranking_memory):
        monkeypatch.setattr(module, "COVERAGE_DOCUMENTS", documents - less)
    covered = []
    for query in PAST.values():
        options: dict[str, Any] = {"candidates": 4, "limit": 4}
        (found,) = shards.search([query], "v1", SearchOptions(**options, coverage=False))
        require_same(found, food.search(query, **options, coverage=False))
        (found,) = shards.search([query], "v1", SearchOptions(**options, coverage=True))
        covered.append(found.attention.covered_mass is not None)
    assert covered == [less == 0] * len(PAST)


def test_several_heads_and_an_insertion(food: Collection, shards: ShardedSearch) -> None:
    """A memory with more rows is another one, which the shards get when they are asked with it."""
    from dsearch.attention.retrieval.head import Head

    memory = food.stored_head("v1").memory
    assert memory is not None
    lending_half = memory.with_setting(*memory.setting[:3], 0.5)
    headed = Head(32, heads=2, rank=4, seed=1).remembering(lending_half)
    version = save_model(food.store, headed, parent="v0", record={})
    for _ in range(2):
        options: dict[str, Any] = {"limit": 5, "model": version}
        require_same(
            shards.search(["zebra lion"], version, SearchOptions(**options))[0],
            food.search("zebra lion", **options),
        )
        done = remember(food, {"z": "zebra lion"}, {"z": {"d20": 1.0}})
    food.remembered.drop_after(done.sequence - 2)


def test_a_release_of_before_memories_says_so(shards: ShardedSearch, food: Collection) -> None:
    memories = ShardMemories(food.snapshot, None)
    with pytest.raises(NotInCluster, match="publish the collection again"):
        memories.learn(MemoryContent("m", b""))


def test_of_too_many_memories_the_one_unused_longest_is_forgotten(food: Collection) -> None:
    """The live one is asked by every search, and would be sent again and again."""
    memory, state = food.stored_head("v1").memory, food.snapshot
    assert memory is not None
    content = memory_bytes(memory)
    with torch.inference_mode():
        rows, weights, _ = memory(encode_queries(food, ["apple cheese"], "hybrid", "v1", False).states)
    memories = ShardMemories(state, np.sort(state.rows(state.visible())))

    def is_known(name: str) -> bool:
        past = PastQueries(name, rows.numpy().copy(), weights.float().numpy(), borrowers=False)
        return memories.of(past, state) is not None

    names = [f"m{n}" for n in range(MOST)]
    for name in names:
        memories.learn(MemoryContent(name, content))
    assert is_known("m0")
    memories.learn(MemoryContent("more", content))
    assert [name for name in (*names, "more") if is_known(name)] == ["m0", *names[2:], "more"]


def test_rows_of_the_home_are_part_of_a_release(food: Collection, tmp_path: Path) -> None:
    with sharded(food, tmp_path / "two", 2):
        assert len(list((tmp_path / "two").rglob(ROWS_NAME))) == 4  # of the shards, and of their generations


@pytest.mark.usefixtures("unchecked")
def test_a_memory_goes_to_every_shard_that_lacks_it_at_once(food: Collection) -> None:
    head = food.stored_head("v1")
    assert head.memory is not None
    asked: list[tuple[str, int]] = []
    known: set[int] = set()

    class Forgetful:
        def ask(self, method: str, requests: dict[int, Any]) -> dict[int, Any]:
            asked.append((method, len(requests)))
            if method == "learn":
                known.update(requests)
            return {shard: SimpleNamespace(lacks_memory=shard not in known) for shard in requests}

    release: Any = None
    searching = attention.ShardedAttention(release, Forgetful())
    questions: Any = dict.fromkeys(range(7), "question")
    assert {*searching._proposals(questions, head)} == {*range(7)}
    assert asked == [("propose", 7), ("learn", 7), ("propose", 7)]


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("borrowers", "proposed"), [(True, [True, True, False]), (False, [True, False, False])]
)
def test_who_borrows_is_proposed_in_a_small_collection_alone(borrowers: bool, proposed: list[bool]) -> None:
    rows, weights = np.zeros((1, 1), np.int64), np.ones((1, 1), np.float32)
    relevance = SimpleNamespace(relevance=lambda *_: np.zeros((1, 3)))
    memory: Any = SimpleNamespace(memory=relevance, is_judged=lambda positions: positions == 2)
    recalled = RecalledHere(memory, PastQueries("m", rows, weights, borrowers))
    assert recalled.proposable(np.array([[2, 3, -1]])).tolist() == [proposed]
