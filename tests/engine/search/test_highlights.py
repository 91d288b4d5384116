"""Highlights show where the query's words stand, in offsets of the stored fields."""

from __future__ import annotations

import pytest

from dsearch.engine import Collection, SearchEngine
from dsearch.engine.search.highlights import (
    SCANNED_CHARACTERS,
)
from dsearch.errors import InvalidRequest
from dsearch.types import Document, Highlight


def marked(document: Document, pieces: list[Highlight]) -> list[tuple[str, list[str]]]:
    """(field, marked words) of each piece, after checking that its offsets are those of the field."""
    shown: list[tuple[str, list[str]]] = []
    for piece in pieces:
        field = document.title if piece.field == "title" else document.text
        assert field[piece.start : piece.start + len(piece.text)] == piece.text
        shown.append((piece.field, [field[start:end] for start, end in piece.spans]))
    return shown


@pytest.fixture
def prose(engine: SearchEngine) -> tuple[Collection, Document]:
    document = Document(
        "a",
        f"Rivers run. {'filler ' * 80}The river bank of a naïve Ëël, readCsv and river.",
        title="A running river",
    )
    collection = engine.create("prose")
    collection.ingest([document, Document("b", "nothing of it", title="stone")])
    return collection, document


def test_title_and_text_are_marked(prose: tuple[Collection, Document]) -> None:
    collection, document = prose
    hit = collection.search("river running", highlight=True).hits[0]
    assert hit.highlights is not None
    assert marked(document, hit.highlights) == [
        ("title", ["running", "river"]),
        ("text", ["Rivers", "run"]),
        ("text", ["river", "river"]),
    ]


def test_excluded_terms_are_not_marked_and_phrases_are(prose: tuple[Collection, Document]) -> None:
    collection, document = prose
    hit = collection.search('"river bank" csv -stone', highlight=True).hits[0]
    assert hit.highlights is not None
    assert marked(document, hit.highlights)[-1] == ("text", ["river", "bank", "Csv", "river"])


def test_without_words_there_is_nothing_to_mark(prose: tuple[Collection, Document]) -> None:
    collection, _ = prose
    assert collection.search("-stone", highlight=True).hits[0].highlights == []
    assert [hit.highlights for hit in collection.search("nowhere", highlight=True).hits] == [[], []]
    assert collection.search("river").hits[0].highlights is None
    similar = collection.similar(["b"], highlight=True).hits[0]
    assert similar.highlights == []


def test_dense_search_marks_words_too(prose: tuple[Collection, Document]) -> None:
    collection, document = prose
    hits = collection.search("river", mode="dense", highlight=True).hits
    hit = next(hit for hit in hits if hit.id == document.id)
    assert hit.highlights is not None
    assert marked(document, hit.highlights)[0] == ("title", ["river"])


def test_the_rest_of_a_very_long_text_is_not_looked_at(engine: SearchEngine) -> None:
    collection = engine.create("long")
    collection.ingest([Document("a", "filler " * SCANNED_CHARACTERS + "river")])
    assert collection.search("river", highlight=True).hits[0].highlights == []


def test_many_detailed_hits_are_refused(prose: tuple[Collection, Document]) -> None:
    collection, _ = prose
    with pytest.raises(
        InvalidRequest, match="explain or highlight of 501 hits for 2 queries; use at most 1000 in all"
    ):
        collection.search_batch(["a", "b"], limit=501, highlight=True)
    with pytest.raises(InvalidRequest, match="use at most 1000 in all"):
        collection.search_batch(["a", "b"], limit=501, explain=True)
