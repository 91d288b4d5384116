"""Queries of `attend` and `predict`: texts, ids or vectors, one of the three, and how they are named."""

from __future__ import annotations

import pytest

from dsearch.cli.commands.attend import _named
from dsearch.errors import InvalidRequest


def test_queries_are_named_by_their_words_their_ids_or_their_numbers_from_zero() -> None:
    """Numbers of vectors are their places in what was given, as in JSON."""
    assert _named(["river", "stone"], None, None) == ["river", "stone"]
    assert _named(None, ["d1", "d2"], []) == ["d1", "d2"]
    assert _named([], [], [[1.0], [2.0]]) == ["vector 0", "vector 1"]


@pytest.mark.parametrize(
    ("queries", "ids", "vectors", "named"),
    [
        (None, None, None, "neither a query nor --id nor --vectors"),
        (["a"], ["b"], None, "queries and --id"),
        (["a"], None, [[1.0]], "queries and --vectors"),
        (["a"], ["b"], [[1.0]], "queries and --id and --vectors"),
    ],
)
def test_they_come_in_one_way(
    queries: list[str] | None, ids: list[str] | None, vectors: list[list[float]] | None, named: str
) -> None:
    with pytest.raises(InvalidRequest, match=f"^{named}; give one of the three$"):
        _named(queries, ids, vectors)
