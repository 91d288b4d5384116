"""Propensities from swapped positions: the truth where it is known, the law where there is little data."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.sizes import by_size

from dsearch.engine.feedback import explored
from dsearch.store import Event, Impression, Page
from dsearch.training.data.clicks import (
    POSITIONS,
    assumed_propensities,
    even_propensities,
    factors_of,
    propensities_from_pages,
    propensities_from_wins,
)
from dsearch.types import Hit


def log_of(
    theta: np.ndarray, pages: int, *, noise: float = 0.1, seed: int = 0, explore: float = 0.2
) -> list[Page]:
    """What users leave who look at position k with probability θ_k; the better documents stand on top."""
    import random

    draw, coins = np.random.default_rng(seed), random.Random(seed)
    attraction = np.linspace(0.9, noise, POSITIONS)  # the ranking is good: clicks alone tell nothing of θ
    hits = [Hit(rank, f"d{rank}", 0.1, 1.0, "", "") for rank in range(1, POSITIONS + 1)]
    found = []
    for number in range(pages):
        shown, drawn = explored(hits, explore, coins)
        liked = np.array([attraction[int(hit.id[1:]) - 1] for hit in shown])
        clicked = np.flatnonzero(draw.random(POSITIONS) < theta * liked)
        if len(clicked) == 0:
            continue  # nobody reacted: not stored
        impression = Impression(
            f"q{number}",
            "words",
            0.0,
            ids=tuple(hit.id for hit in shown),
            pair=drawn and drawn.pair,
            swapped=bool(drawn and drawn.swapped),
        )
        events = tuple(
            Event(f"e{k}", f"q{number}", f"key{number % 40}", "", "click", shown[k].id, k + 1, 0.0, 0.0)
            for k in clicked.tolist()
        )
        found.append(Page(impression, events))
    return found


@pytest.mark.parametrize(
    "theta",
    [
        np.arange(1, POSITIONS + 1) ** -0.5,
        np.arange(1, POSITIONS + 1) ** -1.5,
        np.array([1, 0.9, 0.8, 0.7, 0.2, 0.2, 0.2, 0.1, 0.1, 0.1]),  # a fold in the page: no law
    ],
)
def test_the_truth_is_found_though_the_best_stand_on_top(theta: np.ndarray) -> None:
    log = log_of(theta, 15_000)
    estimated = propensities_from_pages(log)
    assert estimated.source == "swaps"
    assert np.abs(np.log(estimated.values / theta)).max() < 0.6
    assert np.abs(np.log(estimated.values / theta)).mean() < 0.25
    # Counting clicks alone would be far off: good documents stand on top.
    clicks = np.zeros(POSITIONS)
    for page in log:
        for event in page.events:
            assert event.position is not None
            clicks[event.position - 1] += 1
    naive = clicks / clicks[0]
    assert np.abs(np.log(naive / theta)).mean() > 2 * np.abs(np.log(estimated.values / theta)).mean()


def test_two_positions_by_hand() -> None:
    """With the law's prior weak beside thousands of clicks: θ_2 / θ_1 = 3000 / 6000."""
    wins = np.zeros((POSITIONS, POSITIONS))
    wins[0, 1], wins[1, 0] = 6000, 3000
    found = propensities_from_wins(wins, 9000)
    assert found.values[0] == 1
    assert found.values[1] == pytest.approx(0.5, abs=0.005)
    assert found.steepness == pytest.approx(1.0, abs=0.02)  # 2^−1: which is what the prior says as well


def test_with_little_to_go_by_the_law_is_assumed() -> None:
    few = propensities_from_pages(log_of(np.ones(POSITIONS), 100))
    assert few.source == "assumed"
    assert few.values.tolist() == assumed_propensities().values.tolist() == [1 / k for k in range(1, 11)]
    unexplored = propensities_from_pages(log_of(np.ones(POSITIONS), 2000, explore=0.0))
    assert unexplored.source == "assumed"


def test_fifty_clicks_are_enough_and_a_law_never_rises() -> None:
    assert propensities_from_pages([clicked(n, 2) for n in range(49)]).source == "assumed"
    assert propensities_from_pages([clicked(n, 2) for n in range(50)]).source == "swaps"
    wins = np.zeros((POSITIONS, POSITIONS))
    for position in range(1, POSITIONS):
        wins[position, position - 1], wins[position - 1, position] = 3000, 1000
    rising = propensities_from_wins(wins, 36_000)
    assert rising.values[-1] > rising.values[0]
    assert rising.at(np.array([10, 20, 100])).tolist() == [rising.values[-1]] * 3


def test_positions_below_follow_the_law_from_the_last_one_known() -> None:
    theta = assumed_propensities(1.0)
    assert theta.at(np.array([1, 2, 10, 20, 100])) == pytest.approx([1, 0.5, 0.1, 0.05, 0.01])
    assert even_propensities().at(np.array([1, 500])).tolist() == [1, 1]


def clicked(number: int, *positions: int, pair: tuple[int, int] = (1, 2), action: str = "click") -> Page:
    events = tuple(
        Event(f"e{number}.{at}", f"q{number}", "key", "", action, f"d{position}", position, 0.0, 0.0)
        for at, position in enumerate(positions)
    )
    ids = tuple(f"d{n}" for n in range(1, 13))
    return Page(Impression(f"q{number}", "words", 0.0, ids=ids, pair=pair), events)


def test_a_page_counts_one_click_a_document() -> None:
    once = [clicked(n, 1) for n in range(60)] + [clicked(n, 2) for n in range(60, 90)]
    often = [clicked(n, 1) for n in range(60)] + [clicked(n, 2, 2, 2) for n in range(60, 90)]
    estimated = propensities_from_pages(often)
    assert estimated.clicks == 90
    assert estimated.values.tolist() == propensities_from_pages(once).values.tolist()


def test_only_clicks_on_the_drawn_pair_within_the_positions_count() -> None:
    pages = [clicked(n, 2) for n in range(60)]
    assert propensities_from_pages(pages).clicks == 60
    assert propensities_from_pages([*pages, clicked(60, 3), clicked(61, 10, pair=(10, 11))]).clicks == 60
    assert propensities_from_pages([*pages, clicked(60, 10, pair=(9, 10))]).clicks == 61
    for action in ("thumbs_up", "read", "stare"):
        assert propensities_from_pages([*pages, clicked(60, 1, action=action)]).clicks == 60


def test_one_key_cannot_bend_the_estimate() -> None:
    theta = np.arange(1, POSITIONS + 1) ** -1.0
    honest = log_of(theta, 4_000)
    forged = [
        Page(
            Impression(f"x{n}", "words", 0.0, ids=("d1", "d2"), pair=(1, 2)),
            (Event(f"x{n}", f"x{n}", "liar", "", "click", "d2", 2, 0.0, 0.0),),
        )
        for n in range(4_000)
    ]
    before = propensities_from_pages(honest).values[1]
    assert propensities_from_pages(honest + forged).values[1] < 2.5 * before
    assert propensities_from_pages(honest + forged, key_share=1.0).values[1] > 10 * before


@settings(max_examples=by_size(25, 250))
@given(
    amounts=st.dictionaries(st.text(max_size=3), st.floats(0, 1e6), min_size=1, max_size=30),
    share=st.floats(0, 1),
)
def test_nobody_has_more_than_the_share(amounts: dict[str, float], share: float) -> None:
    factors = factors_of(amounts, share)
    kept = {key: factors[key] * amounts[key] for key in amounts}
    assert all(0 <= factor <= 1 for factor in factors.values())
    giving = [amount for amount in amounts.values() if amount > 0]
    if not giving:
        assert set(factors.values()) == {1.0}
        return
    limit = min(1.0, max(share, 2 / len(giving)))
    assert min(kept[key] for key, amount in amounts.items() if amount > 0) > 0
    assert max(kept.values()) <= limit * sum(kept.values()) * (1 + 1e-6) + 1e-9
    if max(amounts.values()) <= limit * sum(amounts.values()):
        assert all(factor == pytest.approx(1.0) for factor in factors.values())
