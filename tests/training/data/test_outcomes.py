"""Feedback as rows of the query memory: grades, caps, and the check against other contributors."""

from __future__ import annotations

import numpy as np
import pytest

from dsearch.store import Event, Impression, Page
from dsearch.training.data import agreement, outcomes
from dsearch.training.data.agreement import Support, supported, supports
from dsearch.training.data.outcomes import LEFT, graded_queries
from dsearch.training.data.propensity import even_propensities

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


def test_thumbs_of_one_contributor_that_are_even_say_nothing() -> None:
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


def test_a_contributor_has_one_row_a_query_and_a_share_of_all() -> None:
    """Of 400 queries of one key among ten others with four each, as many stay as the others give: a fifth."""
    honest = [page(f"q{n}", f"k{key}", ("used", "a")) for key in range(9) for n in range(4)]
    flood = [page(f"f{n}", "flood", ("used", "d"), time_s=float(n)) for n in range(400)]
    rows, left_out = graded_queries([*honest, *flood, *flood], even_propensities())
    of_flood = [row for row in rows if row.key == "flood"]
    assert len(rows) - len(of_flood) == 36
    assert len(of_flood) == 9
    assert {row.text for row in of_flood} == {f"f{n}" for n in range(391, 400)}  # the newest
    assert left_out == {"queries of a contributor above its share": 391}


def unit(*numbers: float) -> list[float]:
    return (np.array(numbers) / np.linalg.norm(numbers)).tolist()


def test_support_by_hand() -> None:
    states = np.array([unit(1, 0), unit(1, 0), unit(1, 0.1), unit(0, 1)], np.float32)
    rows = [{1: 1.0, 2: -0.2}, {1: 1.0}, {1: -0.2, 2: 1.0}, {9: 1.0}]
    keys = np.array([1, 1, 2, 3])
    support = supports(states, rows, keys)
    alike = (1 * -0.2 + -0.2 * 1) / (1**2 + 0.2**2)
    assert support[0].value == pytest.approx(0.5 * alike)  # by the other key alone, which has half
    assert support[0].opponents == {2}
    assert support[3] == Support(0.0, frozenset())
    weak = np.exp(0.45 / 0.05) / (np.exp(0.45 / 0.05) + np.exp(0.5 / 0.05))
    far = np.array([unit(1, 0), [0.45, (1 - 0.45**2) ** 0.5]], np.float32)
    assert supports(far, [{1: 1.0}] * 2, np.array([1, 2]))[0].value == pytest.approx(weak, rel=1e-4)


def test_rows_of_one_key_do_not_speak_for_each_other() -> None:
    states = np.tile(np.array([unit(1, 0)], np.float32), (7, 1))
    rows = [{1: 1.0}] * 5 + [{1: -0.2, 2: 1.0}] * 2
    one_key, many_keys = np.array([7] * 5 + [8, 9]), np.arange(7)
    assert not supported(supports(states, rows, one_key), one_key)[:5].any()
    assert supported(supports(states, rows, many_keys), many_keys)[:5].all()


def test_one_opponent_takes_out_nobody() -> None:
    """A flood contradicts each honest row, and the honest together contradict the flood."""
    states = np.eye(4, dtype=np.float32).repeat(2, 0)
    rows = [{1: 1.0, 2: -0.2}, {1: -0.2, 2: 1.0}] * 4
    keys = np.array([1, 7, 2, 7, 3, 7, 4, 7])
    assert supported(supports(states, rows, keys), keys).tolist() == [True, False] * 4


def test_a_key_that_is_mostly_contradicted_is_left_out_as_a_whole() -> None:
    support = [Support(-0.1, frozenset({number % 2})) for number in range(3)]
    support += [Support(0.2, frozenset()), Support(0.0, frozenset()), Support(0.3, frozenset())]
    keys = np.array([5] * 5 + [6])
    assert supported(support, keys).tolist() == [False] * 5 + [True]
    assert supported(support[1:], keys[1:]).all()  # two contradicted rows are too few


@pytest.mark.parametrize(("agreeing", "kept"), [(2, False), (3, True)])
def test_half_of_the_rows_with_evidence_may_be_contradicted(agreeing: int, kept: bool) -> None:
    """Rows of which nobody says anything are no evidence, however many."""
    support = [Support(-0.1, frozenset({number % 2})) for number in range(3)]
    support += [Support(0.2, frozenset())] * agreeing + [Support(0.0, frozenset())] * 9
    assert supported(support, np.full(len(support), 5)).all() == kept


def test_many_rows_are_supported_as_few_at_a_time_are(monkeypatch: pytest.MonkeyPatch) -> None:
    generator = np.random.default_rng(0)
    states = generator.normal(0, 0.1, (9, 8)).astype(np.float32) + np.eye(3, 8, dtype=np.float32).repeat(3, 0)
    states /= np.linalg.norm(states, axis=1, keepdims=True)
    rows = [{1: 1.0, int(at): -0.2} for at in generator.integers(2, 5, 9)]
    keys = generator.integers(0, 4, 9)
    whole = supports(states, rows, keys)
    assert len({of.value for of in whole}) > 5
    monkeypatch.setattr(agreement, "_AT_A_TIME", 2)
    parts = supports(states, rows, keys)
    assert [of.value for of in parts] == pytest.approx([of.value for of in whole])
    assert [of.opponents for of in parts] == [of.opponents for of in whole]
