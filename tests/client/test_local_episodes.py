"""Episodes of a local client: searches with words are remembered for feedback, others are not."""

from __future__ import annotations

import pytest

from dsearch.client import LocalEngine
from dsearch.engine import Collection, SearchEngine
from dsearch.engine.episodes import UnknownEpisode


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
