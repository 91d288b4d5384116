"""Episodes of a local client: searches with words are remembered for feedback, others are not."""

from __future__ import annotations

import pytest

from dsearch.client import LocalEngine
from dsearch.engine import Collection, SearchEngine
from dsearch.engine.feedback import UnknownEpisode


def test_searches_without_words_are_not_remembered(engine: SearchEngine, collection: Collection) -> None:
    """A page is stored with the query that it answered, and an empty one would teach nothing."""
    client = LocalEngine(engine)
    vector = [1.0, *[0.0] * 31]
    (by_vector,) = client.search_batch("food", vectors=[vector], episode="task")
    client.search("food", vector=vector, episode="task")
    client.similar("food", ["d1"], episode="task")
    with pytest.raises(UnknownEpisode, match="no search of it is remembered"):
        client.report_outcome("food", "task", useful_ids=[by_vector.hits[0].id], success=True)
    with_words = client.search("food", "apple", episode="task")
    recorded = client.report_outcome("food", "task", useful_ids=[with_words.hits[0].id], success=True)
    assert recorded.events == 1
    assert [page.impression.query for page in collection.feedback.pages()] == ["apple"]


def test_every_page_of_a_batch_is_remembered_and_success_is_what_was_said(
    engine: SearchEngine, collection: Collection
) -> None:
    client = LocalEngine(engine)
    pages = client.search_batch("food", ["apple", "bread"], limit=3, episode="task")
    useful = [page.hits[0].id for page in pages]
    client.report_outcome("food", "task", useful_ids=useful, success=False)
    told = {page.impression.query: page.events for page in collection.feedback.pages()}
    assert {*told} == {"apple", "bread"}
    assert {event.action for events in told.values() for event in events} == {"read"}  # not "used"
