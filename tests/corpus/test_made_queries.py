"""Queries made of documents, and queries that nothing answers."""

from __future__ import annotations

from dsearch.corpus.made_queries import EVERYDAY, known_item_queries, known_item_query, nonsense_queries
from dsearch.types import Document

LONG = Document("a", " ".join(f"Word{number}," for number in range(200)))


def test_a_query_is_part_of_a_stretch_in_its_order() -> None:
    for seed in range(50):
        query = known_item_query(LONG, seed)
        if query is None:
            continue
        places = [int(word.removeprefix("word")) for word in query.split()]  # without its comma, small
        assert places == sorted(set(places))
        assert 2 <= len(places) <= 14
        assert places[-1] - places[0] < 14


def test_a_query_depends_on_its_document_and_on_the_seed_alone() -> None:
    other = Document("b", LONG.text)
    drawn = known_item_queries([LONG, other], seed=3)
    assert drawn == [
        (known_item_query(LONG, 3), "a"),
        (known_item_query(other, 3), "b"),
    ]
    assert drawn[0][0] != drawn[1][0]
    assert known_item_query(LONG, 4) != known_item_query(LONG, 3)


def test_short_words_are_left_out_and_short_documents_have_no_query() -> None:
    assert known_item_query(Document("a", "one two six ten for")) is None  # words of three letters
    assert known_item_query(Document("a", "river stone water lamp")) is None  # four words
    assert known_item_queries([Document("a", "short"), LONG]) == [(known_item_query(LONG), "a")]


def test_nonsense_is_drawn_of_every_kind() -> None:
    drawn = nonsense_queries(300)
    assert len(drawn) == 300
    assert drawn == nonsense_queries(300) != nonsense_queries(300, seed=1)
    lengths = {len(query.split()) for query in drawn}
    assert lengths == {1, 2, 3, 4}
    keyboard = [word for query in drawn[1::3] for word in query.split()]
    rows = ("qwertyuiop", "asdfghjkl", "zxcvbnm")
    assert all(3 <= len(word) <= 6 and any(word in row * 2 for row in rows) for word in keyboard)
    assert all(3 <= len(word) <= 9 for query in drawn[0::3] for word in query.split())
    assert len(set(EVERYDAY)) == len(EVERYDAY) > 30


def test_the_shortest_document_and_the_shortest_words_that_make_a_query() -> None:
    five = Document("a", "river stone water house light")
    drawn = {known_item_query(five, seed) for seed in range(40)} - {None}
    assert drawn
    assert min(len(query.split()) for query in drawn if query) == 2
    four = Document("a", "lamp lamp lamp lamp lamp")  # of four letters each
    assert any(known_item_query(four, seed) for seed in range(10))
