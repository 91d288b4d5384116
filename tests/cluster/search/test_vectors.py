"""Searches by vectors of one's own: one machine and shards, with and without words, page by page."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from support.cluster_checks import WORDS, sharded
from support.fakes import HashingEncoder

from dsearch.cluster.search.search import ShardedSearch
from dsearch.engine import Collection, SearchEngine
from dsearch.errors import DimensionMismatch, Gone, InvalidCursor, InvalidRequest
from dsearch.search_options import SearchOptions
from dsearch.types import Document, SearchResult

DIM, COUNT = 8, 60
DRAW = np.random.default_rng(11)
QUERIES: list[list[float]] = DRAW.normal(size=(3, DIM)).tolist()


def documents() -> list[Document]:
    texts = [f"{WORDS[i % 16]} {WORDS[i % 5]} number{i}" for i in range(COUNT)]
    return [Document(f"d{i:02d}", text, metadata={"n": i % 3}) for i, text in enumerate(texts)]


@pytest.fixture(scope="module", params=["own", "encoded"])
def food(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Collection]:
    """A collection of vectors alone, and one whose encoder gives 32 numbers, asked by the first eight."""
    with SearchEngine(tmp_path_factory.mktemp("vectors") / "home", encoder=HashingEncoder) as engine:
        if request.param == "own":
            collection = engine.create("food", dimension=DIM)
            embeddings = DRAW.normal(size=(COUNT, DIM))
            embeddings /= np.linalg.norm(embeddings, axis=1, keepdims=True)
            collection.upsert(documents(), embeddings=embeddings)
            collection.refresh()
        else:
            collection = engine.create("food")
            collection.ingest(documents())
        yield collection


@pytest.fixture(scope="module")
def shards(food: Collection, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ShardedSearch]:
    with sharded(food, tmp_path_factory.mktemp("release") / "three", 3) as search:
        yield search


def padded(food: Collection, vectors: list[list[float]]) -> list[list[float]]:
    return [vector + [0.0] * (food.store.dimension - DIM) for vector in vectors]


def by_shards(
    shards: ShardedSearch, texts: list[str], vectors: list[list[float]], **options: Any
) -> list[SearchResult]:
    return shards.search(texts, "v0", SearchOptions(**options), vectors)


def test_scores_are_cosines_with_the_vector(food: Collection, shards: ShardedSearch) -> None:
    (vector,) = padded(food, QUERIES[:1])
    rows = food.store.rows_of([one.id for one in documents()])
    keys = food.store.embeddings([rows[one.id] for one in documents()])
    unit = np.float32(vector / np.linalg.norm(vector))
    exact = {one.id: float(key @ unit) for one, key in zip(documents(), keys, strict=True)}
    (answer,) = by_shards(shards, [""], [vector], limit=COUNT)
    assert {hit.id for hit in answer.hits} == {*exact}
    for hit in answer.hits:
        assert hit.score == pytest.approx(exact[hit.id], abs=1e-5)


def test_pages_belong_to_the_vector(food: Collection, shards: ShardedSearch) -> None:
    first, other = padded(food, QUERIES[:2])
    whole = [hit.id for hit in food.search(vector=first, limit=COUNT).hits]
    ids, cursor = list[str](), None
    while True:
        (page,) = by_shards(shards, [""], [first], limit=25, cursor=cursor)
        ids += [hit.id for hit in page.hits]
        if (cursor := page.next_cursor) is None:
            break
    assert ids == whole
    (page,) = by_shards(shards, [""], [first], limit=25)
    with pytest.raises(InvalidCursor, match="belongs to another search"):
        by_shards(shards, [""], [other], limit=25, cursor=page.next_cursor)


@pytest.mark.parametrize(
    ("vectors", "options", "error"),
    [
        ([[1.0, 0.0]], {}, DimensionMismatch),
        ([[0.0] * DIM], {}, InvalidRequest),
        ([[float("nan")] * DIM], {}, InvalidRequest),
        ([[1.0] * DIM], {"mode": "keyword"}, InvalidRequest),
        ([[1.0] * DIM], {"stages": 2}, InvalidRequest),
        ([[1.0] * DIM] * 2, {}, InvalidRequest),
    ],
)
def test_hostile_vectors_are_refused_as_on_one_machine(
    food: Collection,
    shards: ShardedSearch,
    vectors: list[list[float]],
    options: dict[str, Any],
    error: type[Exception],
) -> None:
    if len(vectors[0]) == DIM:
        vectors = padded(food, vectors)
    with pytest.raises(error) as here:
        food.answer([""], SearchOptions(**options), vectors)
    with pytest.raises(error) as apart:
        by_shards(shards, [""], vectors, **options)
    assert str(apart.value) == str(here.value)
    assert not isinstance(apart.value, Gone)
