"""Batches of searches have as many vectors as texts, and a bound on all their hits."""

from __future__ import annotations

from typing import Any

import pytest

from dsearch.service.schemas.search import MAX_BATCH_HITS, BatchRequest, SearchRequest

SEARCHES = 64
MOST = MAX_BATCH_HITS // SEARCHES


@pytest.mark.parametrize(
    ("limit", "offset", "fits"),
    [(MOST, 0, True), (MOST - 1, 2, False), (MOST - 100, 100, True), (MOST, 1, False)],
)
def test_hits_that_are_passed_over_count_too(limit: int, offset: int, fits: bool) -> None:
    given = {"queries": ["cat"] * SEARCHES, "limit": limit, "offset": offset}
    if fits:
        assert len(BatchRequest.model_validate(given).texts) == SEARCHES
        return
    with pytest.raises(ValueError, match=f"limit \\+ offset {limit + offset}; use at most {MAX_BATCH_HITS}"):
        BatchRequest.model_validate(given)


@pytest.mark.parametrize(("texts", "vectors"), [(1, 2), (2, 1)])
def test_texts_beside_vectors_are_as_many(texts: int, vectors: int) -> None:
    given: dict[str, Any] = {"queries": ["cat"] * texts, "vectors": [[1.0]] * vectors}
    with pytest.raises(ValueError, match="give as many"):
        BatchRequest.model_validate(given)


@pytest.mark.parametrize("query", ["", " \t\n", "\ud800", "cat \udfff"], ids=ascii)
def test_what_is_no_text_is_no_query(query: str) -> None:
    """Half of a pair of surrogates can be in a string, and in no answer, index or log."""
    with pytest.raises(ValueError, match="at least one word"):
        SearchRequest(query=query)
