"""The ledger of tries: the α that is left on held-out queries that have judged before."""

from __future__ import annotations

import numpy as np
import pytest
from jaxtyping import Int64

from dsearch.errors import InvalidRequest
from dsearch.store import StoredVerdict
from dsearch.training.gate.ledger import Tries, digests_of, tries_on

QUERIES = digests_of(["who wrote it", "when was it", "where is it", "what is it"])


def past(queries: Int64[np.ndarray, " queries"], *, passed: bool = False) -> StoredVerdict:
    return StoredVerdict("train", queries, 0.05, passed)


def test_every_try_leaves_less_and_all_together_spend_alpha() -> None:
    alphas = [Tries(count).alpha(0.05) for count in range(1000)]
    assert alphas == sorted(alphas, reverse=True)
    assert min(alphas) > 0
    assert sum(alphas) == pytest.approx(0.05 * (1 - 2001**-0.5))


def test_the_wealth_by_hand() -> None:
    assert Tries().left == 1
    assert Tries(4).left == pytest.approx(1 / 3)
    assert Tries(4).alpha(0.05) == pytest.approx(0.05 * (1 / 3 - 11**-0.5))


@pytest.mark.parametrize("count", [-1.0, float("inf"), float("nan")])
def test_counts_that_are_no_tries(count: float) -> None:
    with pytest.raises(InvalidRequest, match="count="):
        Tries(count)


def test_fresh_queries_have_no_tries() -> None:
    assert tries_on(QUERIES, []) == Tries()
    assert tries_on(QUERIES, [past(digests_of(["another"]))]) == Tries()
    assert tries_on(QUERIES[:0], [past(QUERIES)]) == Tries()


def test_refusals_count_and_new_queries_refill() -> None:
    assert tries_on(QUERIES, [past(QUERIES)] * 6).count == 6
    refilled = np.union1d(QUERIES, digests_of(f"new {number}" for number in range(4)))
    assert tries_on(refilled, [past(QUERIES)] * 6).count == 3


def test_a_pass_earns_the_wealth_back() -> None:
    verdicts = [past(QUERIES), past(QUERIES), past(QUERIES[:2], passed=True), past(QUERIES[:1])]
    assert tries_on(QUERIES, verdicts).count == (1 + 0 + 2 + 2) / 4


def test_a_text_has_one_digest() -> None:
    assert np.array_equal(digests_of(["b", "a", "b"]), digests_of(["a", "b"]))
    assert len(digests_of([])) == 0
