"""Feedback as rows of the query memory: a row for each query and key, with grades."""

from __future__ import annotations

import pytest

from dsearch.store import Event, Impression, Page
from dsearch.training.data.clicks import even_propensities
from dsearch.training.finetune import outcomes
from dsearch.training.finetune.outcomes import LEFT, graded_queries

SHOWN = ("a", "b", "c", "d")


def page(query: str, key: str, *acts: tuple[str, str], time_s: float = 0.0) -> Page:
    """A page of four documents, and what a key did there: (action, document)."""
    name = f"{query}-{key}-{time_s}"
    events = tuple(
        Event(f"{name}-{id}", name, key, "", action, id, SHOWN.index(id) + 1, time_s, time_s)
        for action, id in acts
    )
    return Page(Impression(name, query, time_s, ids=SHOWN), events)


def grades(*pages: Page) -> dict[tuple[str, str], dict[str, float]]:
    rows, _ = graded_queries(pages, even_propensities())
    return {(row.text, row.key): dict(row.grades) for row in rows}


def test_an_outcome_grades_what_was_read_and_what_was_left() -> None:
    graded = grades(page("river", "k", ("used", "b"), ("dismissed", "c")))
    assert graded == {("river", "k"): {"b": 1.0, "a": -LEFT, "c": -LEFT, "d": -LEFT}}


def test_a_click_says_nothing_of_the_rest_of_its_page() -> None:
    assert grades(page("river", "k", ("click", "b"))) == {("river", "k"): {"b": 1.0}}
    assert grades(page("river", "k", ("dismissed", "b"))) == {}  # nothing was of use


def test_a_thumb_down_takes_a_document_out_of_the_use() -> None:
    graded = grades(page("river", "k", ("click", "a"), ("thumbs_up", "b"), ("thumbs_down", "c")))
    assert graded == {("river", "k"): {"a": 0.5, "b": 1.0, "c": -LEFT}}


def test_a_document_is_worth_its_best_act_and_an_agents_what_it_is_on_average() -> None:
    """Bought and called relevant: bought. Read on two pages: as much as used on one and left on the other."""
    graded = grades(page("river", "k", ("purchase", "a"), ("thumbs_up", "a"), ("thumbs_up", "b")))
    assert graded == {("river", "k"): {"a": 1.0, "b": pytest.approx(2 / 3)}}
    pages = [page("river", "k", ("read", "a"), time_s=1.0)]
    pages += [page("river", "k", ("read", "a"), ("used", "b"), time_s=2.0)]
    assert grades(*pages)["river", "k"] == {"a": 1.0, "b": 1.0, "c": -LEFT, "d": -LEFT}


def test_of_a_large_batch_the_newest_rows_are_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outcomes, "MOST_ROWS", 3)
    pages = [page(f"q{n}", f"k{n}", ("used", "a"), time_s=float(n)) for n in range(5)]
    rows, left_out = graded_queries(pages, even_propensities())
    assert [row.text for row in rows] == ["q4", "q3", "q2"]
    assert left_out == {"queries of an older date than the newest of a batch": 2}


def test_thumbs_of_one_key_that_are_even_say_nothing() -> None:
    """Two people behind one key do not agree; what is not said is no negative."""
    clicked = page("river", "k", ("click", "a"))
    both = [
        Event(f"t{up}", clicked.impression.query_id, "k", client, action, "b", 2, 0.0, 0.0)
        for up, (client, action) in enumerate((("ann", "thumbs_down"), ("ben", "thumbs_up")))
    ]
    said = Page(clicked.impression, (*clicked.events, *both))
    assert grades(said) == {("river", "k"): {"a": 1.0}}


def test_a_thumb_up_outweighs_that_an_agent_left_the_document() -> None:
    graded = grades(page("river", "k", ("used", "b"), ("thumbs_up", "a"), ("thumbs_down", "b")))
    assert graded == {("river", "k"): {"a": 1.0, "b": -LEFT, "c": -LEFT, "d": -LEFT}}


def test_a_key_has_one_row_a_query() -> None:
    twice = [page("river", "k", ("used", "b"), time_s=float(n)) for n in range(2)]
    rows, left_out = graded_queries([*twice, page("river", "other", ("used", "c"))], even_propensities())
    assert [(row.key, row.shown_s) for row in rows] == [("k", 1.0), ("other", 0.0)]
    assert left_out == {}
