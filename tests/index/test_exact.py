"""Exact search by matrix products against float64: the same keys, the same scores, the same order of ties."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsearch.index import DenseIndex, exact
from dsearch.index.dense import index as dense
from dsearch.index.exact import best_above, best_of_blocks


@pytest.fixture(autouse=True)
def products_of_few_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that small corpora show what products do to large ones."""
    monkeypatch.setattr(dense, "_PRODUCTS_KEYS", 0)


def reference(
    queries: np.ndarray, keys: np.ndarray, k: int, exclude: np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Sums in float64, rounded; best first, ties by position."""
    pairs = queries.astype(np.float64)[:, None] * keys.astype(np.float64)[None]
    scores = pairs.sum(-1).astype(np.float32)
    if exclude is not None:
        scores[:, exclude] = -np.inf
    order = np.argsort(-scores, axis=1, kind="stable")[:, :k]
    return np.take_along_axis(scores, order, 1), order


def repeated(rng: np.random.Generator, different: int, count: int, dim: int) -> np.ndarray:
    """Keys of which most occur several times, at places that a matrix product treats differently."""
    return rng.standard_normal((different, dim)).astype(np.float32)[rng.integers(0, different, count)]


@given(
    count=st.integers(1, 90),
    different=st.integers(1, 30),
    dim=st.sampled_from([1, 3, 16, 64]),
    batch=st.integers(1, 12),
    block=st.integers(1, 100),
    k=st.integers(1, 40),
    bounded=st.booleans(),
    seed=st.integers(0, 999),
)
def test_any_blocks_give_the_best_with_ties_by_position(
    count, different, dim, batch, block, k, bounded, seed
) -> None:
    rng = np.random.default_rng(seed)
    keys = repeated(rng, different, count, dim)
    queries = rng.standard_normal((batch, dim)).astype(np.float32)
    starts = rng.permutation(np.arange(0, count, block))  # a later block may hold the lower position of a tie
    blocks = ((np.arange(i, min(i + block, count)), keys[i : i + block]) for i in starts)
    longest = 1.1 * float(np.linalg.norm(keys, axis=1).max()) if bounded else None
    scores, positions = best_of_blocks(queries, blocks, min(k, count), longest)
    expected_scores, expected = reference(queries, keys, k)
    np.testing.assert_array_equal(positions, expected)
    np.testing.assert_array_equal(scores, expected_scores)


def test_equal_keys_tie_wherever_they_lie() -> None:
    """The last bits of a product differ from one edge of a block to the other; those of the scores do not."""
    rng = np.random.default_rng(0)
    keys = np.tile(rng.standard_normal(384).astype(np.float32), (5003, 1))
    queries = rng.standard_normal((9, 384)).astype(np.float32)
    scores, positions = DenseIndex.build(keys).search(queries, 20)
    np.testing.assert_array_equal(positions, np.tile(np.arange(20), (9, 1)))
    assert (scores == scores[:, :1]).all()


@pytest.mark.parametrize("share", [0.0, 0.3, 0.999])
def test_many_queries_at_once_find_what_each_finds(share: float) -> None:
    rng = np.random.default_rng(1)
    keys = repeated(rng, 3000, 20_000, 24)
    queries = rng.standard_normal((40, 24)).astype(np.float32)
    exclude = rng.random(len(keys)) < share
    index = DenseIndex.build(keys)
    scores, positions = index.search(queries, 25, exclude)
    allowed = min(25, int((~exclude).sum()))
    expected_scores, expected = reference(queries, keys, allowed, exclude)
    np.testing.assert_array_equal(positions[:, :allowed], expected)
    np.testing.assert_array_equal(scores[:, :allowed], expected_scores)
    assert (positions[:, allowed:] == -1).all()
    single = [index.search(query[None], 25, exclude)[0][0] for query in queries]
    np.testing.assert_allclose(scores, single, rtol=1e-5, atol=1e-5)


def test_many_queries_of_few_keys_find_what_each_finds(monkeypatch: pytest.MonkeyPatch) -> None:
    """FAISS answers them a few at a time: equal keys tie for 40 queries as they do for one."""
    monkeypatch.undo()
    rng = np.random.default_rng(3)
    index = DenseIndex.build(np.tile(rng.standard_normal((7, 384)).astype(np.float32), (500, 1)))
    queries = rng.standard_normal((40, 384)).astype(np.float32)
    monkeypatch.setattr(index, "_search_by_products", None)
    scores, positions = index.search(queries, 30)
    each = [index.search(query[None], 30) for query in queries]
    np.testing.assert_array_equal(positions, np.concatenate([one for _, one in each]))
    np.testing.assert_array_equal(scores, np.concatenate([one for one, _ in each]))
    assert (np.diff(positions[:, :30] % 7) == 0).all()  # the copies of the best key, in order


def test_products_are_used_from_a_few_queries_on(monkeypatch: pytest.MonkeyPatch) -> None:
    index = DenseIndex.build(np.eye(50, dtype=np.float32))
    calls: list[int] = []
    call = index._search_by_products

    def counted(queries: np.ndarray, *arguments: object) -> tuple[np.ndarray, np.ndarray]:
        calls.append(len(queries))
        return call(queries, *arguments)

    monkeypatch.setattr(index, "_search_by_products", counted)
    for batch in (1, 7, 8, 64):
        index.search(np.ones((batch, 50), np.float32), 3)
    assert calls == [8, 64]


def test_the_longest_key_may_lie_in_any_block(monkeypatch: pytest.MonkeyPatch) -> None:
    """Float32 loses the 1.5 of 1e8 + 1.5 - 1e8: a bound on its error that knows only short keys misses these.

    One query for each order of the three terms, since the order of a sum decides what is lost; the two keys
    of each query score 1 (short, in the first block) and 1.5 (long, in the second).
    """
    orders = list(itertools.permutations((1e8, 1.5, -1e8))) * 2
    queries = np.kron(np.eye(len(orders)), np.ones(3)).astype(np.float32)
    short, long = np.zeros_like(queries), np.zeros_like(queries)
    for number, order in enumerate(orders):
        short[number, 3 * number] = 1.0
        long[number, 3 * number : 3 * number + 3] = order
    monkeypatch.setattr(dense, "_BLOCK", len(orders))
    scores, positions = DenseIndex.build(np.concatenate([short, long])).search(queries, 1)
    assert positions[:, 0].tolist() == list(range(len(orders), 2 * len(orders)))
    assert scores[:, 0].tolist() == [1.5] * len(orders)


def test_keys_may_lie_on_disk(tmp_path: Path) -> None:
    rng = np.random.default_rng(2)
    keys, queries = (rng.standard_normal((n, 16)).astype(np.float32) for n in (3000, 12))
    DenseIndex.build(keys).save(tmp_path / "keys.faiss")
    index = DenseIndex.load(tmp_path / "keys.faiss", mmap=True)
    np.testing.assert_array_equal(index.search(queries, 5)[1], reference(queries, keys, 5)[1])


def test_pairs_are_scored_a_few_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """A corpus of equal keys has as many candidates as pairs; memory must not follow."""
    largest = 0
    call = exact._scores

    def watched(queries: np.ndarray, keys: np.ndarray) -> np.ndarray:
        nonlocal largest
        largest = max(largest, len(keys))
        return call(queries, keys)

    monkeypatch.setattr(exact, "_scores", watched)
    DenseIndex.build(np.ones((9000, 2), np.float32)).search(np.ones((10, 2), np.float32), 3)
    assert 0 < largest <= exact._PAIRS


@given(
    count=st.integers(0, 4000),
    k=st.integers(1, 60),
    different=st.integers(1, 400),
    least=st.sampled_from([0.0, -np.inf, 0.5]),
    seed=st.integers(0, 99),
)
def test_the_best_above_are_those_of_a_stable_sort(
    count: int, k: int, different: int, least: float, seed: int
) -> None:
    """With ties, as keyword scores have them, and places that are excluded (−inf)."""
    rng = np.random.default_rng(seed)
    scores = (rng.integers(-2, different, count) / different).astype(np.float32)
    scores[rng.random(count) < 0.2] = -np.inf
    found = np.flatnonzero(scores > least)
    expected = found[np.argsort(-scores[found], kind="stable")][:k]
    np.testing.assert_array_equal(best_above(scores, k, least), expected)


class Rounded(np.ndarray):
    """Keys whose products with queries are off by what is said, in steps of 2⁻²³."""

    steps: list[int]

    def __rmatmul__(self, queries: np.ndarray) -> np.ndarray:
        exact = np.asarray(queries) @ np.asarray(self)
        return (exact + np.array(self.steps) * 2.0**-23).astype(np.float32)

    def __array_finalize__(self, other: object) -> None:
        self.steps = getattr(other, "steps", [])


@pytest.mark.parametrize("steps", [[4, -4], [-4, 4], [5, -5], [0, 0]])
def test_rounding_of_both_scores_may_be_as_large_as_its_bound(steps: list[int]) -> None:
    """One product too high by nearly the bound, 10 · 2⁻²⁴, and the better key's too low by as much."""
    keys = np.array([[1, 0], [1 + 2.0**-23, 0]], np.float32).view(Rounded)
    keys.steps = steps
    scores, positions = best_of_blocks(np.array([[1, 0]], np.float32), [(np.arange(2), keys)], 1)
    assert (positions.tolist(), scores.tolist()) == ([[1]], [[1 + 2.0**-23]])
