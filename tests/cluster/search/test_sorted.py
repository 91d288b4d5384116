"""Hits in the order of a metadata field, and with some fields: one machine and shards, page by page."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from support.cluster_checks import sharded
from support.fakes import HashingEncoder

from dsearch.cluster.search.search import ShardedSearch
from dsearch.engine import Collection, SearchEngine
from dsearch.errors import InvalidCursor, InvalidRequest
from dsearch.search_options import SearchOptions
from dsearch.types import Document, SearchResult

QUERY = "old bread"
VALUES: list[Any] = [3, 1.5, True, "b", "a", None, [1], 3, 3.0, -2]


@pytest.fixture(scope="module")
def food(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Collection]:
    with SearchEngine(tmp_path_factory.mktemp("sorted") / "home", encoder=HashingEncoder) as engine:
        collection = engine.create("food")
        collection.ingest(
            [
                Document(
                    f"d{number:02d}",
                    f"bread number {number} of the old oven",
                    title=f"Bread {number}",
                    metadata={"at": {"year": VALUES[number % 10], "day": number}, "price": number % 4}
                    if VALUES[number % 10] is not None
                    else {"price": number % 4},
                )
                for number in range(60)
            ]
        )
        yield collection


@pytest.fixture(scope="module")
def shards(food: Collection, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ShardedSearch]:
    with sharded(food, tmp_path_factory.mktemp("release") / "three", 3) as search:
        yield search


def by_hand(collection: Collection, descending: bool) -> list[str]:
    """The plain hits in the order that the help states."""
    hits = sorted(collection.search(QUERY, limit=60).hits, key=lambda hit: hit.id)

    def year(metadata: dict[str, Any]) -> Any:
        value = metadata.get("at", {}).get("year")
        kinds: dict[type, int] = {bool: 0, int: 1, float: 1, str: 2}
        return (kinds[type(value)], value) if type(value) in kinds else None

    present = [hit for hit in hits if year(hit.metadata) is not None]
    present.sort(key=lambda hit: year(hit.metadata), reverse=descending)
    return [hit.id for hit in [*present, *(hit for hit in hits if year(hit.metadata) is None)]]


def sharded_answer(shards: ShardedSearch, **options: Any) -> SearchResult:
    return shards.search([QUERY], "v0", SearchOptions(**options))[0]


def test_pages_of_a_sorted_answer_go_on(food: Collection, shards: ShardedSearch) -> None:
    expected = by_hand(food, False)
    for search in (
        lambda **options: food.search(QUERY, **options),
        lambda **options: sharded_answer(shards, **options),
    ):
        ids, cursor = list[str](), None
        while True:
            page = search(limit=25, sort="at.year", cursor=cursor)
            ids += [hit.id for hit in page.hits]
            cursor = page.next_cursor
            if cursor is None:
                break
        assert ids == expected
        first = search(limit=25, sort="at.year")
        with pytest.raises(InvalidCursor, match="belongs to another search"):
            search(limit=25, sort="-at.year", cursor=first.next_cursor)


def test_the_best_of_each_value_is_chosen_before_the_order(food: Collection) -> None:
    best = {hit.id for hit in food.search(QUERY, group_by="price", limit=60).hits}
    answer = food.search(QUERY, group_by="price", sort="-price", limit=60)
    assert [hit.metadata["price"] for hit in answer.hits] == [3, 2, 1, 0]
    assert {hit.id for hit in answer.hits} == best


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"sort": "at..year"}, "sort: the field 'at..year' with an empty key"),
        ({"sort": "-pricee"}, "none of the 60 candidates has this field .did you mean price"),
        ({"sort": "price", "diversity": 0.5}, "give one of the two"),
        ({"fields": "title,,text"}, "names nothing between commas"),
    ],
)
def test_what_cannot_be_is_refused(
    food: Collection, shards: ShardedSearch, options: Any, message: str
) -> None:
    with pytest.raises(InvalidRequest, match=message):
        food.search(QUERY, **options)
    with pytest.raises(InvalidRequest):
        sharded_answer(shards, **options)
    with pytest.raises(InvalidRequest, match="33 queries; use at most 32"):
        food.search_batch([QUERY] * 33, sort="price")
