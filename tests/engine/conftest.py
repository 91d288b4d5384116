"""Fixtures for tests of collections."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.engine.copies import copied_collection
from support.engine.long_documents import (
    OPTIONS,
    some,
    words,
)
from support.fakes import HashingEncoder

from dsearch.engine import Collection, SearchEngine
from dsearch.types import Document

ANEW = ("indexing", "maintenance")  # folders whose tests go on from what building left in memory


@pytest.fixture(scope="session")
def built_food(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the first test that needs it builds the collection `food`."""
    return tmp_path_factory.mktemp("built") / "home" / "food"


@pytest.fixture
def collection(
    request: pytest.FixtureRequest, engine: SearchEngine, documents: list[Document], built_food: Path
) -> Collection:
    """That of tests/conftest.py; a copy, which takes a sixth of the time, where searching is what counts."""
    if request.path.parent.name in ANEW:
        collection = engine.create("food")
        collection.ingest(documents)
        return collection
    if not built_food.is_dir():
        with SearchEngine(built_food.parent, encoder=HashingEncoder) as building:
            building.create(built_food.name).ingest(documents)
    return copied_collection(engine, built_food)


@pytest.fixture
def long(engine):
    """A collection of built, fresh, changed and deleted documents, long ones among each."""
    collection = engine.create("long", passages=OPTIONS)
    collection.ingest(some())
    collection.upsert(some(1, 5))
    collection.upsert([Document("new", words(70, 77)), Document("tiny", "apple honey")])
    collection.delete(["d6", "d8"])
    return collection
