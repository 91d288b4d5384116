"""Pages for feedback: which two documents may swap, and what an impression holds."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from dsearch.engine.feedback import DEPTH, MAX_EXPLORE, RandomPair, explored, impression_of
from dsearch.errors import InvalidRequest
from dsearch.store.feedback import SHOWN
from dsearch.types import AttentionSummary, Hit, SearchResult, Stamp

SUMMARY = AttentionSummary(candidates=3, entropy=0.0, covered_mass=None)


def page(count: int, first: int = 1) -> list[Hit]:
    return [Hit(first + i, f"d{i}", 1 / (i + 2), 9.0 - i, "", "") for i in range(count)]


def result(hits: list[Hit]) -> SearchResult:
    return SearchResult("some words", hits, Stamp(7, "v3", 42), SUMMARY, took_ms=1.0)


def drawn(
    hits: list[Hit], share: float = MAX_EXPLORE, pages: int = 4000
) -> list[tuple[list[Hit], RandomPair]]:
    """Pages with a pair."""
    generator = random.Random(5)
    every = [explored(hits, share, generator) for _ in range(pages)]
    return [(shown, pair) for shown, pair in every if pair is not None]


def test_a_share_of_the_pages_has_a_pair_and_half_of_these_swap() -> None:
    pages = drawn(page(20), 0.2)
    assert len(pages) / 4000 == pytest.approx(0.2, abs=0.02)
    assert sum(pair.swapped for _, pair in pages) / len(pages) == pytest.approx(0.5, abs=0.06)


def test_pairs_are_neighbours_or_with_the_first_within_the_depth() -> None:
    pairs = Counter(pair.pair for _, pair in drawn(page(20)))
    neighbours = {(upper, upper + 1) for upper in range(1, DEPTH)}
    with_first = {(1, lower) for lower in range(2, DEPTH + 1)}
    assert set(pairs) == neighbours | with_first
    of_neighbours = sum(count for pair, count in pairs.items() if pair in neighbours - {(1, 2)})
    assert of_neighbours / pairs.total() == pytest.approx(0.5 * 8 / 9, abs=0.06)


def test_a_short_page_swaps_within_its_length() -> None:
    assert {pair.pair for _, pair in drawn(page(3))} == {(1, 2), (2, 3), (1, 3)}
    assert {pair.pair for _, pair in drawn(page(2))} == {(1, 2)}


def test_swapped_documents_take_each_others_rank_and_keep_the_rest() -> None:
    hits = page(6)
    for shown, pair in drawn(hits):
        assert [hit.rank for hit in shown] == [1, 2, 3, 4, 5, 6]
        order = [hit.id for hit in hits]
        upper, lower = (place - 1 for place in pair.pair)
        if pair.swapped:
            order[upper], order[lower] = order[lower], order[upper]
        assert [hit.id for hit in shown] == order
        assert {hit.id: hit.score for hit in shown} == {hit.id: hit.score for hit in hits}
    assert [hit.id for hit in hits] == [f"d{i}" for i in range(6)]  # what was given stays


@pytest.mark.parametrize("hits", [page(1), [], page(10, first=11)], ids=["one hit", "none", "a later page"])
def test_other_pages_stay(hits: list[Hit]) -> None:
    assert drawn(hits) == []
    assert explored(hits, 0.2, random.Random(1)) == (hits, None)


def test_no_share_draws_nothing() -> None:
    generator = random.Random(3)
    before = generator.getstate()
    assert explored(page(5), 0.0, generator) == (page(5), None)
    assert generator.getstate() == before


@pytest.mark.parametrize("share", [-0.01, 0.21, float("nan")])
def test_a_share_out_of_range_is_refused(share: float) -> None:
    with pytest.raises(InvalidRequest, match=r"explore=.*; use a number from 0 to 0\.2"):
        explored(page(5), share, random.Random(1))


def test_an_impression_holds_all_of_its_page() -> None:
    hits = page(3, first=21)
    pair = RandomPair((1, 3), swapped=True)
    impression = impression_of(result(hits), "q9", key="k", drawn=pair, shown_s=12.5)
    assert (impression.query_id, impression.query, impression.key) == ("q9", "some words", "k")
    assert (impression.generation, impression.model, impression.sequence) == (7, "v3", 42)
    assert impression.ids == ("d0", "d1", "d2")
    assert impression.weights == tuple(hit.weight for hit in hits)
    assert (impression.first, impression.shown_s) == (21, 12.5)
    assert (impression.pair, impression.swapped) == ((1, 3), True)
    assert [impression.position_of(id) for id in ("d0", "d2", "other")] == [21, 23, None]


def test_an_impression_of_an_empty_page_and_without_a_pair() -> None:
    impression = impression_of(result([]), "q1")
    assert (impression.first, impression.ids, impression.pair, impression.swapped) == (1, (), None, False)
    assert impression_of(result([]), "q1", shown_s=0.0).shown_s == 0.0  # a time as any other
    unmoved = impression_of(result(page(2)), "q1", drawn=RandomPair((1, 2), swapped=False))
    assert (unmoved.pair, unmoved.swapped, unmoved.first) == ((1, 2), False, 1)


def test_only_the_first_hits_of_a_long_page_are_remembered() -> None:
    impression = impression_of(result(page(SHOWN + 1)), "q1")
    assert len(impression.ids) == len(impression.weights) == SHOWN == 100
    assert impression.ids[-1] == "d99"
