"""The ledger of tries: the α that is left on held-out queries that have judged before."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from jaxtyping import Int64

from dsearch.engine.models.ledger import (
    Account,
    Tries,
    digests_of,
    note,
    tries_left,
    tries_on,
    without_queries,
)
from dsearch.errors import InvalidRequest
from dsearch.results import TriesLeft
from dsearch.store import Store, StoredVerdict

QUERIES = digests_of(["who wrote it", "when was it", "where is it", "what is it"])


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.create(tmp_path / "papers", name="papers", encoder={"name": "test"}, dimension=8) as created:
        yield created


def past(queries: Int64[np.ndarray, " queries"], *, passed: bool = False) -> StoredVerdict:
    return StoredVerdict("train", queries, 0.05, passed)


def test_every_try_leaves_less_and_all_together_spend_alpha() -> None:
    alphas = [Tries(count).alpha(0.05) for count in range(1000)]
    assert alphas == sorted(alphas, reverse=True)
    assert min(alphas) > 0
    assert sum(alphas) == pytest.approx(0.05 * (1 - 1501**-0.5))


def test_the_wealth_by_hand() -> None:
    assert Tries().left == 1
    assert Tries(4).left == pytest.approx(7**-0.5)
    assert Tries(4).alpha(0.05) == pytest.approx(0.05 * (7**-0.5 - 8.5**-0.5))


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


def refused(account: Account, alpha: float) -> dict[str, Any]:
    change = {"mean": 0.1, "low": 0.05, "high": 0.15}
    of_all = {"name": "all", "queries": 4, "before": 0.5, "after": 0.6, "difference": change}
    gate = {
        "verdict": "refused",
        "reason": "so",
        "alpha": alpha,
        "p_value": 0.3,
        "wins": 2,
        "slices": [of_all],
    }
    return account.entered({"scope": "tune", "gate": gate})


def test_an_account_reduces_alpha_try_by_try_and_withholds_figures(store: Store) -> None:
    texts = [f"query {number}" for number in range(4)]
    alphas: list[float] = []
    withheld: list[bool] = []
    for number in range(5):
        account = Account.of(store, texts)
        assert account.tries.count == number
        alphas.append(account.alpha(0.05))
        record = refused(account, alphas[-1])
        withheld.append(record["gate"]["slices"][0]["difference"] is None and "wins" not in record["gate"])
        assert without_queries(record)["ledger"] == {"refusals": number, "left": account.tries.left}
        note(store, record, None)
    assert alphas[0] == 0.05
    assert alphas == sorted(alphas, reverse=True)
    assert withheld == [False, False, False, True, True]
    assert tries_left(store) == TriesLeft(4, 5, Tries(5).left)
    note(store, refused(Account.of(store, texts), 0.01), None, passed=True)
    assert Account.of(store, texts).tries == Tries()


def test_nothing_is_noted_where_nothing_was_compared(store: Store) -> None:
    assert tries_left(store) is None
    note(store, {"gate": {"verdict": "cannot tell", "slices": [{"queries": 0}]}}, "v1")
    unchanged = refused(Account.of(store, ["query"]), 0.05)
    unchanged["gate"]["slices"][0]["difference"] = {"mean": 0.0, "low": 0.0, "high": 0.0}
    note(store, unchanged, "v2")
    assert list(store.verdicts()) == []


def test_of_many_queries_the_same_part_is_kept() -> None:
    many, more = (digests_of(map(str, range(count))) for count in (20_000, 40_000))
    assert len(many) == len(more) == 4096
    assert 0.4 < np.isin(more, many).mean() < 0.6
