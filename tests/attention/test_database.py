"""A database of pairs asked by attention: exactly, and by the most similar key."""

from __future__ import annotations

import pytest

from dsearch.attention.database import Answer, Database, similarity
from dsearch.errors import InvalidRequest

PAIRS = {"Paris": 1, "Rome": 2, "paris": 3}


def test_an_exact_query_has_the_value_of_its_key_alone() -> None:
    database = Database(PAIRS)
    assert database.ask("paris") == Answer(3, "paris", 1.0)
    assert database.weights("Rome").tolist() == [0.0, 1.0, 0.0]
    assert Database({"b": 1, "a": 2}).ask("b") == Answer(1, "b", 1.0)  # in the order of the pairs
    assert database.ask("PARIS") is None
    assert Database[int]({}).ask("x") is None


@pytest.mark.usefixtures("unchecked")
def test_an_approximate_query_takes_the_most_similar_key_whatever_its_case() -> None:
    database = Database(PAIRS)
    assert database.ask("ROMA", "approximate") == Answer(2, "Rome", 1.0)
    assert database.ask("pariz", "approximate") == Answer(1, "Paris", 1.0)  # the first of equals
    assert database.ask("xyz", "approximate") is None
    with pytest.raises(InvalidRequest, match="match='fuzzy'; use exact or approximate"):
        database.ask("x", "fuzzy")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("query", "key", "ratio"),
    [
        ("abcd", "bcde", 0.75),
        ("ABCD", "abcd", 1.0),
        ("abcd", "ABCD", 1.0),
        ("STRASSE", "Straße", 1.0),
        ("a", "b", 0.0),
        ("", "", 1.0),
    ],
)
def test_similarity_is_the_share_of_common_characters(query: str, key: str, ratio: float) -> None:
    assert similarity(query, key) == ratio
    long = "ab" * 300
    assert similarity(long, long[:-1]) > 0.99  # no character is too frequent to count
