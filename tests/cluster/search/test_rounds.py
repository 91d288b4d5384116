"""How often shards are asked: once for the first page of a query, again only for what they have not shown."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from support.cluster_checks import require_same, sharded
from support.fakes import HashingEncoder

from dsearch.attention.retrieval.head import Head
from dsearch.cluster.search.attention import Shards
from dsearch.cluster.search.search import ShardedSearch
from dsearch.engine import Collection, SearchEngine
from dsearch.engine.models.files import save_model
from dsearch.search_options import SearchOptions
from dsearch.types import Document

BREADS = ["plain bread", "rye bread", "bread with nuts", "old bread", "bread and butter", "fresh bread"]


class Counted:
    """Shards that note what they are asked: the method, and how many of them."""

    def __init__(self, shards: Shards):
        self._shards = shards
        self.asked: list[tuple[str, int]] = []

    def ask(self, method: str, requests: Mapping[int, Any]) -> dict[int, Any]:
        self.asked.append((method, len(requests)))
        return self._shards.ask(method, requests)


@pytest.fixture(scope="module")
def food(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Collection]:
    """Ninety documents; those of bread come first, so that of three shards the first has all of them."""
    with SearchEngine(tmp_path_factory.mktemp("rounds") / "home", encoder=HashingEncoder) as engine:
        made = engine.create("food")
        texts = [f"{text} {number}" for number in range(3) for text in BREADS]
        texts += [f"apple juice {number}" for number in range(72)]
        made.ingest([Document(f"d{number}", text) for number, text in enumerate(texts)])
        yield made


@pytest.fixture(scope="module")
def counted(food: Collection, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ShardedSearch]:
    with sharded(food, tmp_path_factory.mktemp("release") / "three", 3) as search:
        shards = Counted(search._shards)
        yield ShardedSearch(search.release, shards, food.head, search._encode)


def asked(search: ShardedSearch) -> list[tuple[str, int]]:
    """What was asked since this was called last."""
    assert isinstance(search._shards, Counted)
    since, search._shards.asked = search._shards.asked, []
    return since


@pytest.mark.parametrize("mode", ["hybrid", "dense", "keyword"])
@pytest.mark.parametrize("marked", [False, True])
def test_a_query_is_one_round(food: Collection, counted: ShardedSearch, mode: Any, marked: bool) -> None:
    asked(counted)
    options: dict[str, Any] = {"mode": mode, "limit": 4, "explain": marked, "highlight": marked}
    found = counted.search(["juice bread 7"], "v0", SearchOptions(**options))[0]
    require_same(found, food.search("juice bread 7", **options))
    for ours, theirs in zip(found.hits, food.search("juice bread 7", **options).hits, strict=True):
        assert (ours.explain is None) == (not marked)
        if marked and ours.id == theirs.id:
            assert ours.explain is not None
            assert theirs.explain is not None
            assert ours.explain.terms.keys() == theirs.explain.terms.keys()
            for word, parts in theirs.explain.terms.items():
                assert ours.explain.terms[word] == pytest.approx(parts, abs=1e-6)
    assert asked(counted) == [("propose", 3)]


def test_what_one_shard_has_too_much_of_is_asked_for(food: Collection, counted: ShardedSearch) -> None:
    asked(counted)
    found = counted.search(["bread"], "v0", SearchOptions(limit=10))[0]
    # Each shows nine of its own; the tenth is the first shard's as well.
    assert asked(counted) == [("propose", 3), ("show", 1)]
    assert all("bread" in hit.text for hit in found.hits)
    require_same(found, food.search("bread", limit=10))


def test_further_pages_batches_and_several_heads_are_two(food: Collection, counted: ShardedSearch) -> None:
    asked(counted)
    further = counted.search(["bread"], "v0", SearchOptions(limit=4, offset=4))[0]
    assert [method for method, _ in asked(counted)] == ["propose", "show"]
    require_same(further, food.search("bread", limit=4, offset=4))

    batch = counted.search(["bread", "apple"], "v0", SearchOptions(limit=4, coverage=False))
    assert [method for method, _ in asked(counted)] == ["propose", "show"]
    for ours, theirs in zip(batch, food.search_batch(["bread", "apple"], limit=4), strict=True):
        require_same(ours, theirs)

    version = save_model(food.store, Head(32, heads=2, rank=4, seed=1), parent="v0", record={})
    headed = counted.search(["bread"], version, SearchOptions(limit=4))[0]
    assert [method for method, _ in asked(counted)] == ["propose", "show"]
    require_same(headed, food.search("bread", limit=4, model=version))


def test_hops_show_with_the_last(food: Collection, counted: ShardedSearch) -> None:
    asked(counted)
    options: dict[str, Any] = {"hops": 2, "hop_strength": 0.5, "limit": 4}
    found = counted.search(["apple juice"], "v0", SearchOptions(**options))[0]
    assert [method for method, _ in asked(counted)] == ["propose", "pool", "propose"]
    require_same(found, food.search("apple juice", **options))
