"""Highlights of meaning: which words are marked, and where."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from support.fakes import HashingEncoder

from dsearch.engine import Collection, SearchEngine
from dsearch.engine.search import highlights as module
from dsearch.engine.search.highlights import meaning_highlighter
from dsearch.engine.snapshot import query_tokens
from dsearch.types import Document, Highlight

DOCUMENTS = [
    Document("d0", "cheese with honey; more cheese-cloth", "bread"),
    Document("d1", "lemon", ""),
    Document("d2", "grape juice", "lemon cheese"),
    Document("d3", "", "kale"),
]


@pytest.fixture(scope="module")
def food(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Collection]:
    with SearchEngine(tmp_path_factory.mktemp("food"), encoder=HashingEncoder) as engine:
        made = engine.create("food")
        made.ingest(DOCUMENTS, second_stage=True)
        made.upsert([Document("fresh", "honey", "bread and honey")])
        yield made


def shown(food: Collection, queries: list[str], number: int, id: str) -> list[Highlight]:
    snapshot = food.snapshot
    tokens = HashingEncoder().encode_tokens(queries, "query")[1]
    asked = [query_tokens(of, text, snapshot) for of, text in zip(tokens, queries, strict=True)]
    highlight = meaning_highlighter(snapshot, asked)
    return highlight(number, food.store.rows_of([id])[id], food.store.get(id))


def marked(pieces: list[Highlight]) -> list[tuple[str, list[str]]]:
    assert all(piece.by == "meaning" for piece in pieces)
    return [
        (piece.field, [piece.text[a - piece.start : b - piece.start] for a, b in piece.spans])
        for piece in pieces
    ]


MARKED = [
    ("bread", "d0", [("title", ["bread"])]),
    ("cheese", "d0", [("text", ["cheese"])]),
    ("honey bread", "d0", [("title", ["bread"]), ("text", ["honey"])]),
    ("lemon", "d1", [("text", ["lemon"])]),
    ("lemon", "d2", [("title", ["lemon"])]),
    ("juice", "d2", [("text", ["juice"])]),
    ("kale", "d3", [("title", ["kale"])]),
    ("honey", "fresh", [("title", ["honey"])]),  # of a word that is repeated the first has a token
    ("mango", "d0", []),  # the nearest is not like it
    ("kale", "d2", []),
]


@pytest.mark.parametrize(("query", "id", "expected"), MARKED)
def test_words_like_the_querys_are_marked_where_they_stand(
    food: Collection, query: str, id: str, expected: list[tuple[str, list[str]]]
) -> None:
    pieces = shown(food, [query], 0, id)
    assert marked(pieces) == expected
    document = food.store.get(id)
    for piece in pieces:
        field = document.title if piece.field == "title" else document.text
        assert field[piece.start :].startswith(piece.text)


def test_the_query_of_a_number_is_shown(food: Collection) -> None:
    assert marked(shown(food, ["bread", "honey"], 0, "d0")) == [("title", ["bread"])]
    assert marked(shown(food, ["bread", "honey"], 1, "d0")) == [("text", ["honey"])]


def test_text_beyond_what_is_scanned_is_not_marked(food: Collection, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SCANNED_CHARACTERS", len("cheese with hone"))
    assert marked(shown(food, ["honey cheese"], 0, "d0")) == [("text", ["cheese"])]
    monkeypatch.setattr(module, "SCANNED_CHARACTERS", len("cheese with honey"))
    assert marked(shown(food, ["honey"], 0, "d0")) == [("text", ["honey"])]


WORDS = [
    ("cheesecake", [[0, 3]], [(0, 10)]),  # a part marks its word
    ("cheesecake", [[0, 3], [6, 8]], [(0, 10)]),
    ("one two", [[4, 7], [0, 3]], [(0, 3), (4, 7)]),
    ("one-two", [[0, 3], [4, 6]], [(0, 3), (4, 7)]),
    ("a;b", [[1, 2]], [(0, 3)]),  # beside a sign the words at its sides
    ("", np.zeros((0, 2), np.int64), []),
]


@pytest.mark.parametrize(("text", "spans", "words"), WORDS)
def test_parts_are_widened_to_disjoint_words(text: str, spans: object, words: list[tuple[int, int]]) -> None:
    assert module._words(text, np.array(spans).reshape(-1, 2)) == words
