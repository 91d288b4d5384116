"""From events to grades: weights by position, thumbs above clicks, and nobody counts for much."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsearch.store import Event, Impression, Page
from dsearch.training.data.clicks import (
    ACTIONS,
    MANY_KEYS,
    ClickOptions,
    assumed_propensities,
    even_propensities,
    graded_pages,
    outsiders,
)

IDS = tuple(f"d{k}" for k in range(1, 11))
THETA = assumed_propensities(1.0)  # position k is looked at with probability 1 / k
_count = iter(range(1_000_000))


def page(
    *acts: tuple[str, str], key: str = "a", query: str = "wing", time_s: float = 0.0, client: str = ""
) -> Page:
    """A page d1 … d10 on which `key` did (action, document)s."""
    number = next(_count)
    events = tuple(
        Event(f"e{number}-{n}", f"q{number}", key, client, action, document, 1, time_s, 0.0)
        for n, (action, document) in enumerate(acts)
    )
    return Page(Impression(f"q{number}", query, 0.0, ids=IDS), events)


def click(document: str, **more: str) -> Page:
    return page(("click", document), **more)  # type: ignore[arg-type]


def test_clicks_weigh_by_where_they_fell_whatever_the_sender_says() -> None:
    pages = [click("d1", key=f"k{n}") for n in range(4)] + [click("d2", key=f"k{n}") for n in range(2)]
    assert graded_pages(pages, THETA).grades == {"wing": {"d1": 1.0, "d2": 1.0}}
    assert graded_pages(pages, even_propensities()).grades == {"wing": {"d1": 1.0, "d2": 0.5}}


def test_the_weight_of_a_click_is_clipped() -> None:
    pages = [click("d1", key=f"k{n}") for n in range(4)] + [click("d8", key="k1")]
    assert graded_pages(pages, THETA).grades["wing"] == {"d1": 0.5, "d8": 1.0}
    assert graded_pages(pages, THETA, ClickOptions(clip=4.0)).grades["wing"] == {"d1": 1.0, "d8": 1.0}


def test_inverse_weights_restore_what_is_liked_on_average() -> None:
    draw = np.random.default_rng(0)
    liked = {"d1": 0.2, "d2": 0.6, "d5": 0.9}
    pages = []
    for n in range(6000):
        acts = [
            ("click", document)
            for document, chance in liked.items()
            if draw.random() < chance / int(document[1:])
        ]
        pages += [page(*acts, key=f"k{n % 50}")] if acts else []
    corrected = graded_pages(pages, THETA).grades["wing"]
    assert corrected == pytest.approx({"d1": 0.2 / 0.9, "d2": 0.6 / 0.9, "d5": 1.0}, abs=0.06)
    naive = graded_pages(pages, even_propensities()).grades["wing"]
    assert naive["d2"] == 1.0
    assert naive["d5"] < 0.7


def test_a_page_counts_a_key_and_a_document_once_by_its_best_act() -> None:
    again = [page(("click", "d1"), ("click", "d1"), ("purchase", "d1")), click("d3")]
    graded = graded_pages(again, even_propensities())
    assert graded.grades["wing"] == {"d1": 1.0, "d3": pytest.approx(1 / 3)}
    assert graded.clicks == 2


def test_queries_are_one_that_differ_in_case_and_spaces() -> None:
    pages = [click("d1", query="Wing  Flutter"), click("d1", query="wing flutter", key="b")]
    graded = graded_pages(pages, THETA)
    assert list(graded.grades) == ["wing flutter"]
    assert graded.texts == {"wing flutter": "Wing  Flutter"}


def test_the_share_below_which_clicks_are_noise_is_allowed() -> None:
    pages = [click("d1", key=f"k{n}") for n in range(5)] + [click("d2", key="k0")]
    assert graded_pages(pages, even_propensities()).grades["wing"] == {"d1": 1.0, "d2": 0.2}


def test_a_query_weighs_by_the_median_of_all() -> None:
    """One that everybody asks does not take the weight of the others."""
    pages = [click("d1", key=f"k{n}", query="asked by all") for n in range(60)]
    pages += [click("d1", key="k1", query="rare"), click("d1", key="k2", query="rarer")]
    weights = graded_pages(pages, THETA, ClickOptions(quorum=1)).weights
    assert weights == pytest.approx({"asked by all": 2 * 60 / 61, "rare": 1.0, "rarer": 1.0})


def test_noise_is_left_out() -> None:
    pages = [click("d1", key=f"k{n}") for n in range(10)] + [click("d2", key="k1")]
    graded = graded_pages(pages, even_propensities())
    assert graded.grades["wing"] == {"d1": 1.0}
    assert graded.left_out == {"documents of a query with too few of its clicks": 1}


# ---- nobody counts for much


def test_many_clicks_of_one_key_count_no_more_than_twice_the_median_keys() -> None:
    pages = [click("d2", key="liar") for _ in range(500)]
    pages += [click("d1", key=f"k{n}") for n in range(3)]
    assert graded_pages(pages, even_propensities()).grades["wing"]["d1"] == 1.0
    assert graded_pages(pages, even_propensities()).grades["wing"]["d2"] == pytest.approx(2 / 3)


def test_a_key_that_has_a_query_for_itself_counts_no_more_than_ten_clicks_there() -> None:
    options = ClickOptions(key_share=1.0)
    others = [click("d1", key=f"k{n}") for n in range(3)]

    def weight(clicks: int) -> float:
        own = [click("d1", key="lone", query="rare") for _ in range(clicks)]
        return graded_pages(others + own, THETA, options).weights["rare"]

    assert weight(9) < weight(10)
    assert weight(500) == pytest.approx(weight(10))


def crowd(count: int = MANY_KEYS) -> list[Page]:
    return [click("d1", key=f"k{n}") for n in range(count)]


def test_where_many_contribute_one_key_makes_nothing_relevant() -> None:
    alone = [click("d9", key="liar") for _ in range(50)]
    others = [click("d9", key="liar", query=f"rare {n}") for n in range(50)]
    graded = graded_pages(crowd() + alone + others, THETA)
    assert graded.quorum == 2
    assert graded.grades == {"wing": {"d1": 1.0}}
    assert graded_pages(crowd() + others, THETA, ClickOptions(quorum=1)).grades.keys() > {"wing", "rare 1"}
    few = graded_pages(crowd(3) + others, THETA)
    assert (few.quorum, len(few.grades)) == (1, 51)


def test_none_counts_for_more_than_the_others_together() -> None:
    shared = [click("d10", key="liar"), click("d2", key="k1"), click("d2", key="k2")]
    pages = crowd() + shared + [page(("thumbs_up", "d10"), key="k3")]
    # d10: ten of the liar's, whose click was the deepest, and one of k3, so two; d2: two each, so four.
    grades = graded_pages(pages, THETA, ClickOptions(floor=0.0)).grades["wing"]
    assert grades["d10"] / grades["d2"] == pytest.approx(2 / 4)
    lone = [click("d1", key="k1", query="x"), click("d10", key="k2", query="x")]
    assert "x" not in graded_pages(crowd() + lone, THETA).grades  # two documents, one key each


def test_over_all_queries_a_key_has_at_most_its_share() -> None:
    pages = [click("d1", key=f"k{n % 10}", query=f"q{n}") for n in range(100)]
    pages += [click("d1", key="liar", query=f"lie{n}") for n in range(900)]
    options = ClickOptions(quorum=1, key_share=0.1)
    graded = graded_pages(pages, THETA, options)
    lies = sum(weight for name, weight in graded.weights.items() if name.startswith("lie"))
    capped = lies / sum(graded.weights.values())
    free = graded_pages(pages, THETA, ClickOptions(quorum=1, key_share=1.0))
    uncapped = sum(w for name, w in free.weights.items() if name.startswith("lie")) / sum(
        free.weights.values()
    )
    assert capped < 0.5 * uncapped + 0.4
    assert max(graded.weights.values()) <= 2


def test_clicks_that_do_not_count_within_a_query_are_no_part_of_a_share() -> None:
    """Of 500 clicks two count, so that the key's third, elsewhere, counts like anybody's."""
    pages = [click("d2", key="liar") for _ in range(500)] + [click("d1", key=f"k{n}") for n in range(3)]
    pages += [click("d1", key="liar", query="rare"), click("d2", key="k1", query="rare")]
    assert graded_pages(pages, even_propensities()).grades["rare"] == {"d1": 1.0, "d2": 1.0}


# ---- what people say


def test_thumbs_outweigh_clicks() -> None:
    pages = [click("d1", key=f"k{n}") for n in range(6)] + [page(("thumbs_up", "d7"), key="b")]
    assert graded_pages(pages, THETA).grades["wing"] == {"d1": 1.0, "d7": 2.0}
    pages += [page(("thumbs_down", "d1"), key=f"b{n}") for n in range(2)]
    graded = graded_pages(pages, THETA)
    assert graded.grades["wing"] == {"d7": 2.0}
    assert graded.left_out["documents called not relevant"] == 1


def test_thumbs_that_are_even_leave_a_document_to_its_clicks() -> None:
    pages = [click("d1", key=f"k{n}") for n in range(6)]
    pages += [page(("thumbs_up", "d1"), key="a"), page(("thumbs_down", "d1"), key="b")]
    graded = graded_pages(pages, THETA)
    assert (graded.grades, graded.left_out) == ({"wing": {"d1": 1.0}}, {})


def test_a_negative_is_what_every_agent_left_or_read_in_vain() -> None:
    pages = [
        page(("used", "d1"), ("dismissed", "d3"), key="a"),
        page(("used", "d2"), ("dismissed", "d1"), key="b"),
    ]
    left = set(IDS) - {"d1", "d2"}  # each of the two was useful to one of them
    assert graded_pages(pages, THETA).negatives == left
    third = [*pages, page(("used", "d1"), key="c")]
    assert graded_pages(third, THETA, ClickOptions(quorum=3)).negatives == set()  # nothing is relevant
    assert graded_pages(third, THETA, ClickOptions(quorum=2)).negatives == left


def test_the_newest_thumb_of_a_client_counts() -> None:
    pages = [
        page(("thumbs_down", "d7"), key="b", time_s=2.0),
        page(("thumbs_up", "d7"), key="b", time_s=1.0),
        click("d1"),
    ]
    assert graded_pages(pages, THETA).grades["wing"] == {"d1": 1.0}


def test_a_thumb_down_takes_back_the_clicks_of_its_key() -> None:
    """One key's is no quorum, which the clicks of two others are."""
    others = crowd() + [click("d2", key=key) for key in ("k1", "k2")]
    clicked = [*others, click("d2", key="k3")]
    taken_back = [*clicked, page(("thumbs_down", "d2"), key="k3")]
    one, two, three = (graded_pages(pages, THETA).grades["wing"] for pages in (others, taken_back, clicked))
    assert one == two
    assert two["d2"] < three["d2"]


def test_one_thumb_among_many_keys_neither_makes_nor_takes_a_document() -> None:
    up = [page(("thumbs_up", "d9"), key="liar")]
    down = [page(("thumbs_down", "d1"), key="liar")]
    assert graded_pages(crowd() + up + down, THETA).grades == {"wing": {"d1": 1.0}}
    two = [page(("thumbs_down", "d1"), key=key) for key in ("liar", "accomplice")]
    assert graded_pages(crowd() + two, THETA).grades == {}


def test_what_cannot_be_used_is_counted() -> None:
    pages = [
        page(("stare", "d1")),
        Page(
            Impression("q", "wing", 0.0), (Event("e", "q", "a", "", "click", "d1", 1, 0.0, 0.0),)
        ),  # words alone: nobody knows what was shown
    ]
    graded = graded_pages(pages, THETA)
    assert graded.grades == {}
    assert graded.left_out == {
        "events of unknown action 'stare'": 1,
        "clicks without the page that they were on": 1,
    }


def test_a_key_that_clicks_what_nobody_else_does_is_left_out() -> None:
    """It would reach the quorum where somebody's click happened to be the same."""
    pages = [
        click(document, key=f"k{(n + q) % 20}", query=f"q{q}")
        for q in range(12)
        for n, document in enumerate(["d1"] * 15 + ["d2"] * 4 + ["d10"])
    ]
    attack = [click("d10", key="liar", query=f"q{q}") for q in range(12)]
    graded = graded_pages(pages + attack, THETA)
    assert graded.grades == graded_pages(pages, THETA).grades
    assert graded.weights == graded_pages(pages, THETA).weights
    assert graded.left_out["keys that click what hardly anybody else does"] == 1
    few = graded_pages(pages + attack[:5], THETA)  # too few clicks to say so
    assert "d10" in few.grades["q0"]


def test_a_key_that_agrees_with_all_makes_outsiders_of_none() -> None:
    """The others agree with 16 % each; one that is always among the many, with 40 %, is no measure."""
    clicked = {
        f"q{q}": {"d1": ["best", *(f"k{(q + n) % 10}" for n in range(4))]}
        | {f"own{n}": [f"k{(q + n) % 10}"] for n in range(4, 10)}
        for q in range(10)
    }
    assert outsiders(clicked) == set()


def test_a_key_does_not_agree_with_itself() -> None:
    """It always clicks beside one other key, which is at one with everybody elsewhere.

    What it asks alone says nothing of it.
    """
    clicked = {"alone": {"d1": ["liar"], "d2": ["liar"]}}
    clicked |= {f"q{q}": {"d1": [f"k{n}" for n in range(10)]} for q in range(20)}
    clicked |= {f"rare{q}": {"d1": [f"k{q}"], "d2": ["liar"]} for q in range(10)}
    assert outsiders(clicked) == {"liar"}


def readings() -> list[Page]:
    """Ten agents see the same page; seven read d1 with profit, two d2, and one reads d3 in vain."""
    acts = [("read", "d1")] * 7 + [("read", "d2")] * 2 + [("dismissed", "d3")]
    return [page(act, key=f"k{n}") for n, act in enumerate(acts)]


def test_what_agents_saw_and_left_lowers_a_document() -> None:
    grades = graded_pages(readings(), THETA, ClickOptions(floor=0.0)).grades["wing"]
    assert grades == {"d1": 1.0, "d2": pytest.approx((2 * 2 / 10) / (7 * 7 / 10))}
    clicks = [
        page(*[("click", event.object_id) for event in one.events], key=one.events[0].key)
        for one in readings()
    ]
    assert (
        graded_pages(clicks[:9], even_propensities(), ClickOptions(floor=0.0)).grades["wing"]["d2"] == 2 / 7
    )


def test_an_agents_reading_needs_no_correction_and_useful_counts_twice() -> None:
    low = [page(("read", "d9"), key="a"), page(("used", "d2"), key="b"), page(("read", "d1"), key="c")]
    assert graded_pages(low, THETA).grades["wing"] == {"d9": 0.5, "d2": 1.0, "d1": 0.5}


def test_one_agent_that_floods_takes_little_away() -> None:
    honest = graded_pages(readings(), THETA, ClickOptions(floor=0.0)).grades["wing"]
    flood = [page(("used", "d9"), key="flood") for _ in range(1000)]
    flooded = graded_pages(readings() + flood, THETA, ClickOptions(floor=0.0)).grades["wing"]
    # Its thousand pages are one more key that left d1, and its own document stays below.
    assert flooded["d2"] == pytest.approx(honest["d2"])
    assert flooded["d1"] == 1.0
    assert flooded["d9"] < 0.25


def test_visitors_who_only_gave_thumbs_do_not_erase_those_who_clicked() -> None:
    """One who clicked and two who gave thumbs; what was clicked counts."""
    pages = [click("d1", key="clicks")]
    pages += [page(("thumbs_up", "d2"), key=f"k{n}", query="other") for n in range(2)]
    graded = graded_pages(pages, THETA)
    assert graded.grades == {"wing": {"d1": 1.0}, "other": {"d2": 2.0}}
    assert graded.weights["wing"] > 0


def test_a_document_that_no_agent_could_use_has_no_grade() -> None:
    pages = [click("d1", key="clicks"), page(("dismissed", "d1"), key="agent")]
    assert graded_pages(pages, THETA).grades == {}


_acts = st.tuples(
    st.sampled_from(["", "a", "b", "c", "d"]),  # keys
    st.sampled_from(["wing", "flutter"]),
    st.lists(st.tuples(st.sampled_from(sorted(ACTIONS)), st.sampled_from(IDS[:3])), max_size=4),
)


@given(visits=st.lists(_acts, max_size=8), quorum=st.sampled_from([None, 1, 2, 3]))
def test_any_actions_of_any_keys_give_finite_grades(
    visits: list[tuple[str, str, list[tuple[str, str]]]], quorum: int | None
) -> None:
    pages = [page(*acts, key=key, query=query, client=key) for key, query, acts in visits]
    graded = graded_pages(pages, THETA, ClickOptions(quorum=quorum))
    for query, grades in graded.grades.items():
        assert all(math.isfinite(grade) and grade > 0 for grade in grades.values()), query
        assert math.isfinite(graded.weights[query])
        assert graded.weights[query] > 0


@given(
    crowd=st.integers(MANY_KEYS, MANY_KEYS + 3),
    visits=st.lists(_acts, min_size=1, max_size=6),
    everybody=st.tuples(st.sampled_from(sorted(ACTIONS)), st.sampled_from(IDS[:3])),
    options=st.builds(
        ClickOptions,
        clip=st.sampled_from([1.0, 10.0]),
        key_share=st.sampled_from([0.0, 0.1, 1.0]),
        floor=st.sampled_from([0.0, 0.2, 1.0]),
    ),
)
def test_any_actions_beside_those_of_a_crowd_give_finite_grades(
    crowd: int,
    visits: list[tuple[str, str, list[tuple[str, str]]]],
    everybody: tuple[str, str],
    options: ClickOptions,
) -> None:
    """Where keys have to agree, and those that click what nobody else does are left out."""
    pages = [page(*acts, key=key, query=query, client=key) for key, query, acts in visits]
    pages += [page(everybody, key=f"k{n}", query="wing") for n in range(crowd)]
    graded = graded_pages(pages, THETA, options)
    assert graded.quorum == 2
    for query, grades in graded.grades.items():
        assert all(math.isfinite(grade) and grade > 0 for grade in grades.values()), query
        assert math.isfinite(graded.weights[query])
        assert graded.weights[query] > 0
