"""A collection's language is that of every generation; texts are cut again where the rules changed."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.fakes import HashingEncoder

from dsearch.engine import Collection, SearchEngine
from dsearch.engine.options import language_of
from dsearch.errors import Conflict, InvalidRequest
from dsearch.index.keyword import tokenizer
from dsearch.types import Document

TEXTS = [Document("a", "die Häuser der Stadt"), Document("b", "ein laufender Motor")]


def found(collection: Collection, query: str) -> list[str]:
    return [hit.id for hit in collection.search(query, mode="keyword").hits]


def test_every_generation_and_fresh_rows_are_cut_alike(engine: SearchEngine) -> None:
    collection = engine.create("deutsch", language="german")
    collection.ingest(TEXTS)
    collection.upsert([Document("c", "viele Häusern")])
    assert sorted(found(collection, "Haus")) == ["a", "c"]
    assert found(collection, "der") == []  # a stop word
    collection.refresh()
    assert sorted(found(collection, "Haus")) == ["a", "c"]
    assert collection.describe().language == "german"
    english = engine.create("english")
    english.ingest(TEXTS)
    assert found(english, "Haus") == []
    assert found(english, "der") == ["a"]
    assert english.describe().language == "english"


LANGUAGES = [
    # language, text, word that finds it, words that find nothing
    ("german", "Die Katzen laufen", "Katze", ["die"]),
    ("french", "Les chevaux mangent", "cheval", ["les"]),
    ("none", "The cats running", "the", ["cat", "run"]),
    ("english", "The cats running", "cat", ["the"]),
    ("german,english", "Die Katzen and the cats", "Katze cat", ["die"]),
]


@pytest.mark.parametrize(("language", "text", "word", "others"), LANGUAGES)
def test_an_empty_collection_has_its_language_from_the_first_document_on(
    engine: SearchEngine, language: str, text: str, word: str, others: list[str]
) -> None:
    """New, emptied and filled again, and built without a document."""
    collection = engine.create("new", language=language)

    def require_language() -> None:
        collection.upsert([Document("a", text)])
        assert found(collection, word) == ["a"]
        assert [found(collection, other) for other in others] == [[] for _ in others]

    require_language()
    collection.delete(["a"])
    require_language()
    collection.refresh()
    assert found(collection, word) == ["a"]
    collection.delete(["a"])
    collection.refresh()
    assert len(collection.snapshot.generation) == 0
    require_language()


@pytest.mark.parametrize(("language", "text", "word", "others"), LANGUAGES)
def test_an_empty_collection_that_is_opened_again_has_its_language(
    tmp_path: Path, language: str, text: str, word: str, others: list[str]
) -> None:
    with SearchEngine(tmp_path / "home", encoder=HashingEncoder) as engine:
        engine.create("new", language=language)
    for readonly in (False, True):
        with SearchEngine(tmp_path / "home", encoder=HashingEncoder, readonly=readonly) as engine:
            collection = engine.collection("new")
            if not readonly:
                collection.upsert([Document("a", text)])
            assert found(collection, word) == ["a"]
            assert [found(collection, other) for other in others] == [[] for _ in others]


def test_a_reopened_collection_keeps_its_language(tmp_path: Path) -> None:
    for _ in range(2):
        with SearchEngine(tmp_path / "home", encoder=HashingEncoder) as engine:
            collection = engine.collection_or_new("deutsch", language="german")
            collection.ingest(TEXTS)
            assert found(collection, "Haus") == ["a"]
            with pytest.raises(Conflict, match="collection 'deutsch' was made for 'german'"):
                engine.collection_or_new("deutsch", language="french")
            assert language_of(engine.collection_or_new("deutsch").store) == "german"


def test_an_unknown_language_makes_no_collection(engine: SearchEngine) -> None:
    with pytest.raises(
        InvalidRequest, match=r"language='klingon'; use one of arabic.*; or several, such as german,english"
    ):
        engine.create("nowhere", language="klingon")
    assert engine.names() == []


def test_texts_are_cut_again_where_the_rules_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with SearchEngine(tmp_path / "home", encoder=HashingEncoder) as engine:
        engine.create("old", language="german").ingest(TEXTS)
    monkeypatch.setattr(tokenizer, "TOKENIZER_VERSION", tokenizer.TOKENIZER_VERSION + 1)
    with SearchEngine(tmp_path / "home", encoder=HashingEncoder, readonly=True) as engine:
        collection = engine.collection("old")
        assert found(collection, "Haus") == ["a"]
        assert collection.snapshot.generation.recut
    with SearchEngine(tmp_path / "home", encoder=HashingEncoder) as engine:
        collection = engine.collection("old")
        assert [hit.id for hit in collection.search('"die Häuser"').hits] == ["a"]
        collection.ingest([])  # nothing new, but the index on the disk is of older rules
        assert not collection.snapshot.generation.recut
        collection.upsert([Document("c", "viele Häusern")])
        assert sorted(found(collection, "Haus")) == ["a", "c"]
    with SearchEngine(tmp_path / "home", encoder=HashingEncoder, readonly=True) as engine:
        assert not engine.collection("old").snapshot.generation.recut
