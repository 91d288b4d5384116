"""Fixtures for tests of collections."""

from __future__ import annotations

import pytest
from support.engine.long_documents import (
    OPTIONS,
    some,
    words,
)

from dsearch.types import Document


@pytest.fixture
def long(engine):
    """A collection of built, fresh, changed and deleted documents, long ones among each."""
    collection = engine.create("long", passages=OPTIONS)
    collection.ingest(some())
    collection.upsert(some(1, 5))
    collection.upsert([Document("new", words(70, 77)), Document("tiny", "apple honey")])
    collection.delete(["d6", "d8"])
    return collection
