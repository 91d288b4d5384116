"""Misspelt words of a query in keyword search: the most similar word of a document, where none has it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from support.cluster_checks import sharded
from support.fakes import HashingEncoder

from dsearch.engine import Collection, SearchEngine
from dsearch.errors import InvalidRequest
from dsearch.search_options import SearchOptions
from dsearch.types import Document

TEXTS = {
    "bread": "Sourdough bread rises slowly",
    "honey": "Honey of the meadow, honey of the wood",
    "kettle": "A kettle boils water",
    "bees": "Bees make honey",
    "read": "Books to read",
}


@pytest.fixture(scope="module")
def food(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Collection]:
    """Built documents, and two that are newer than the index."""
    with SearchEngine(tmp_path_factory.mktemp("typos") / "home", encoder=HashingEncoder) as engine:
        collection = engine.create("food")
        collection.ingest(Document(id, text) for id, text in TEXTS.items())
        collection.upsert([Document("newer", "A quokkan kettles"), Document("newest", "A hotel's kettler")])
        yield collection


def ids(collection: Collection, query: str, **options: object) -> list[str]:
    result = collection.search(query, mode="keyword", typos=True, **options)  # type: ignore[arg-type]
    return [hit.id for hit in result.hits]


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ("sourdouhg", ["bread"]),
        ("ketle", ["kettle", "newer"]),
        ("hony", ["honey", "bees"]),
        ("HONNEY wood", ["honey", "bees"]),
        ("zzzzzz", []),
        ("bee", ["bees"]),  # known: its stem is
        ("quokkan", ["newer"]),  # of a newer document, like no other word
        ("kettler", ["newest"]),  # of one newer document alone, and much like a word of the index
        ("hony -wood", ["bees"]),  # operators stay
    ],
)
def test_a_word_of_no_document_stands_for_the_most_similar(
    food: Collection, query: str, found: list[str]
) -> None:
    assert sorted(ids(food, query)) == sorted(found)


def test_known_words_and_plain_searches_stay_as_they_are(food: Collection) -> None:
    assert food.search("sourdouhg", mode="keyword").hits == []
    for query in ("honey", "bread read", "slowly water"):
        plain = food.search(query, mode="keyword")
        assert [(hit.id, hit.score) for hit in food.search(query, mode="keyword", typos=True).hits] == [
            (hit.id, hit.score) for hit in plain.hits
        ]


def test_scores_highlights_and_parts_are_those_of_the_word(food: Collection) -> None:
    options = {"mode": "keyword", "highlight": True, "explain": True}
    right = food.search("honey", **options).hits  # type: ignore[arg-type]
    misspelt = food.search("hony", typos=True, **options).hits  # type: ignore[arg-type]
    assert [(hit.id, hit.score, hit.highlights, hit.explain) for hit in misspelt] == [
        (hit.id, hit.score, hit.highlights, hit.explain) for hit in right
    ]


def test_in_hybrid_search_the_encoder_gets_the_query_as_it_is(food: Collection) -> None:
    (right,) = food.search("honey", explain=True, limit=1).hits
    (misspelt,) = food.search("hony", explain=True, limit=1, typos=True).hits
    assert right.explain is not None
    assert misspelt.explain is not None
    assert misspelt.explain.keyword == right.explain.keyword
    assert misspelt.explain.dense != right.explain.dense


def test_shards_refuse_it(food: Collection, tmp_path_factory: pytest.TempPathFactory) -> None:
    with (
        sharded(food, tmp_path_factory.mktemp("release") / "two", 2) as search,
        pytest.raises(InvalidRequest, match="typos over shards"),
    ):
        search.search(["hony"], "v0", SearchOptions(typos=True))
