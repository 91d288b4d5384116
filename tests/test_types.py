"""Results and documents as they are sent: members that are left out, names, and defaults."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dsearch.types import Document, Explanation, Highlight, Hit, Passage, Progress, query_name

HIT = Hit(2, "d1", 0.25, 1.5, "a title", "a text", {"n": 1})
PLAIN = {
    "rank": 2,
    "id": "d1",
    "weight": 0.25,
    "score": 1.5,
    "title": "a title",
    "text": "a text",
    "metadata": {"n": 1},
}


def test_a_hit_leaves_out_what_was_not_asked_for() -> None:
    assert HIT.to_dict() == PLAIN
    assert list(HIT.to_dict()) == list(PLAIN)


def test_a_hit_has_what_was_asked_for_though_it_is_empty() -> None:
    explain = Explanation([1.0], [0.0], [1.0])
    piece = Highlight("text", 0, "a text", [(2, 6)])
    whole = replace(
        HIT, explain=explain, highlights=[piece], passage=Passage(1, 0, 6, "a text"), duplicates=3
    )
    assert whole.to_dict() == PLAIN | {
        "explain": explain,
        "highlights": [piece],
        "passage": Passage(1, 0, 6, "a text"),
        "duplicates": 3,
    }
    assert replace(HIT, highlights=[]).to_dict() == PLAIN | {"highlights": []}
    assert replace(HIT, duplicates=1).to_dict() == PLAIN | {"duplicates": 1}


@pytest.mark.parametrize(
    ("title", "text", "content"),
    [("t", "x", "t x"), ("", "x", "x"), ("t", "", "t"), (" t ", " x ", "t   x"), ("", "", "")],
)
def test_the_content_of_a_document_is_title_and_text(title: str, text: str, content: str) -> None:
    assert Document("d", text, title).content == content


def test_queries_that_differ_in_case_and_blanks_are_one() -> None:
    assert query_name("  Straße\tnach  ROM ") == query_name("STRASSE nach rom") == "strasse nach rom"
    assert query_name("a b") != query_name("ab")


def test_parts_of_an_explanation_that_a_model_has_not_are_neutral() -> None:
    explain = Explanation([1.0], [0.0], [1.0])
    assert (explain.shares, explain.mixing, explain.memory, explain.second_stage, explain.reranker) == (
        [1.0],
        0,
        0,
        0,
        0,
    )
    assert (explain.terms, explain.past_queries) == ({}, [])


@pytest.mark.parametrize(
    ("progress", "expected"),
    [
        (Progress("a", 0, 10, 5.0), None),
        (Progress("a", 3, 0, 5.0), None),
        (Progress("a", 5, 10, 5.0), 5.0),
        (Progress("a", 5, 10, 5.0, 0.1), 45.0),
    ],
)
def test_the_time_left_is_that_of_the_work(progress: Progress, expected: float | None) -> None:
    assert progress.seconds_left == expected
