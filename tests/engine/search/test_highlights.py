"""Highlights show where the query's words stand, in offsets of the stored fields."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsearch.engine import Collection, SearchEngine
from dsearch.engine.search.highlights import (
    FRAGMENT_CHARACTERS,
    FRAGMENTS,
    SCANNED_CHARACTERS,
    fragments,
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


@given(
    st.lists(
        st.sampled_from(["alpha", "beta", "x", "yy", "\n", "long" * 80, "ünïcode"]), min_size=1, max_size=200
    )
)
def test_fragments_are_pieces_of_the_text_around_terms(words: list[str]) -> None:
    text = " ".join(words)
    spans: list[tuple[int, int]] = []
    at = 0
    for word in words:
        if word in ("alpha", "beta") or word.startswith("longlong"):
            spans.append((at, at + len(word)))
        at += len(word) + 1
    shown = fragments(text, spans)
    assert len(shown) <= FRAGMENTS
    short = [span for span in spans if span[1] - span[0] <= FRAGMENT_CHARACTERS]
    assert bool(shown) == bool(short)
    end = -1
    for piece in shown:
        assert text[piece.start : piece.start + len(piece.text)] == piece.text
        assert piece.start >= end
        assert 0 < len(piece.text) <= FRAGMENT_CHARACTERS
        end = piece.start + len(piece.text)
        assert piece.spans == [span for span in short if piece.start <= span[0] and span[1] <= end]
        assert piece.spans
    if len({text[start:stop] for start, stop in short}) > 1 and len(text) < FRAGMENT_CHARACTERS // 2:
        assert len(shown) == 1


def test_the_window_with_most_different_terms_wins() -> None:
    text = (
        "alpha alpha alpha " + "x " * 300 + "alpha beta " + "y " * 300 + "alpha " + "z " * 300 + "alpha beta"
    )
    spans = [
        (start, start + len(word))
        for start, word in (
            (i, w) for w in ("alpha", "beta") for i in range(len(text)) if text.startswith(w, i)
        )
    ]
    shown = fragments(text, sorted(spans))
    assert [[text[a:b] for a, b in piece.spans] for piece in shown] == [
        ["alpha", "alpha", "alpha"],
        ["alpha", "beta"],
        ["alpha", "beta"],
    ]
