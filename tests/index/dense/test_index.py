"""Every kind of dense index against exact search, and the edges that FAISS leaves open."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import faiss
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from support.index import stored_keys
from support.sizes import by_size

from dsearch.attention.memory_rows import in_eight_bits
from dsearch.errors import CorruptData, DimensionMismatch, InvalidRequest
from dsearch.index import DENSE_KINDS, DenseIndex
from dsearch.index.dense import index as dense
from dsearch.index.dense.index import SPARE, ScannedKeys
from dsearch.index.dense.kinds import ROWS_PER_LIST
from dsearch.index.validation import projected

KINDS = list(DENSE_KINDS)
# Share of the exact ten nearest that a kind must find on the clustered keys below.
RECALL = {"Flat": 1.0, "SQfp16": 0.99, "SQbf16": 0.97, "SQ8": 0.94, "HNSW": 0.92, "IVF": 0.92, "IVFPQ": 0.92}


def clustered(count: int, dim: int = 32, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    centres = rng.standard_normal((40, dim))
    keys = centres[rng.integers(0, 40, count)] + 0.6 * rng.standard_normal((count, dim))
    return (keys / np.linalg.norm(keys, axis=1, keepdims=True)).astype(np.float32)


def exact(keys: np.ndarray, queries: np.ndarray, k: int, exclude: np.ndarray | None = None) -> np.ndarray:
    scores = queries.astype(np.float64) @ keys.astype(np.float64).T
    if exclude is not None:
        scores[:, exclude] = -np.inf
    return np.argsort(-scores, axis=1, kind="stable")[:, :k]


def recall(found: np.ndarray, truth: np.ndarray) -> float:
    return float(np.mean([len(set(f) & set(t)) / len(t) for f, t in zip(found, truth, strict=True)]))


@pytest.fixture(scope="module")
def corpus() -> tuple[np.ndarray, np.ndarray]:
    return clustered(3000), clustered(50, seed=1)


@pytest.fixture(scope="module", params=KINDS)
def built(request: pytest.FixtureRequest, corpus: tuple[np.ndarray, np.ndarray]) -> DenseIndex:
    return DenseIndex.build(corpus[0], request.param)


def test_recall_against_exact_search(built: DenseIndex, corpus: tuple[np.ndarray, np.ndarray]) -> None:
    keys, queries = corpus
    scores, positions = built.search(queries, 10)
    assert scores.dtype == np.float32
    assert positions.dtype == np.int64
    assert recall(positions, exact(keys, queries, 10)) >= RECALL[built.kind]
    true_scores = np.take_along_axis(queries @ keys.T, positions, axis=1)
    np.testing.assert_allclose(scores, true_scores, atol=0.02)
    assert (np.diff(scores, axis=1) <= 0).all()


@pytest.mark.parametrize("share", [0.5, 0.95, 0.999])
def test_excluded_positions_are_never_found(
    built: DenseIndex, corpus: tuple[np.ndarray, np.ndarray], share: float
) -> None:
    keys, queries = corpus
    exclude = np.random.default_rng(2).random(len(keys)) < share
    _, positions = built.search(queries, 10, exclude)
    allowed = int((~exclude).sum())
    assert ((positions >= 0).sum(axis=1) == min(10, allowed)).all()
    assert not exclude[positions[positions >= 0]].any()
    truth = exact(keys, queries, min(10, allowed), exclude)
    assert recall(positions[:, : truth.shape[1]], truth) >= RECALL[built.kind] - 0.02


def test_excluding_all_finds_nothing_and_excluding_none_changes_nothing(
    built: DenseIndex, corpus: tuple[np.ndarray, np.ndarray]
) -> None:
    keys, queries = corpus
    scores, positions = built.search(queries, 5, np.ones(len(keys), bool))
    assert (positions == -1).all()
    assert np.isneginf(scores).all()
    without = built.search(queries, 5)
    nothing_excluded = built.search(queries, 5, np.zeros(len(keys), bool))
    np.testing.assert_array_equal(without[1], nothing_excluded[1])


def test_save_and_load_find_the_same(
    built: DenseIndex, corpus: tuple[np.ndarray, np.ndarray], tmp_path: Path
) -> None:
    built.save(tmp_path / "keys.faiss")
    before = built.search(corpus[1], 20)
    for mmap in (False, True):
        again = DenseIndex.load(tmp_path / "keys.faiss", kind=built.kind, mmap=mmap)
        assert (len(again), again.key_dim, again.kind) == (len(built), built.key_dim, built.kind)
        after = again.search(corpus[1], 20)
        np.testing.assert_array_equal(before[0], after[0])
        np.testing.assert_array_equal(before[1], after[1])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("count", [0, 1, 2, 41])
def test_k_above_the_number_of_keys_gives_all_of_them(kind: str, count: int) -> None:
    keys, queries = clustered(count), clustered(3, seed=1)
    scores, positions = DenseIndex.build(keys, kind).search(queries, 50)
    assert scores.shape == positions.shape == (3, 50)
    np.testing.assert_array_equal(np.sort(positions[:, :count]), np.tile(np.arange(count), (3, 1)))
    assert (positions[:, count:] == -1).all()
    assert np.isneginf(scores[:, count:]).all()


@pytest.mark.parametrize("kind", ["HNSW", "IVF"])
def test_approximate_kinds_find_all_keys_when_asked_for_all(kind: str) -> None:
    keys, queries = clustered(2500), clustered(2, seed=1)
    _, positions = DenseIndex.build(keys, kind).search(queries, 2500)
    np.testing.assert_array_equal(np.sort(positions), np.tile(np.arange(2500), (2, 1)))


def test_each_list_learns_from_as_many_keys_as_faiss_asks_for(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []

    def noting(keys: np.ndarray, *further: Any) -> np.ndarray:
        sizes.append(len(keys))
        return projected(keys, *further)

    monkeypatch.setattr(dense, "_TRAINING_ROWS", 10)
    monkeypatch.setattr(dense, "projected", noting)
    DenseIndex.build(clustered(2500), "IVF")
    assert sizes[0] == 50 * ROWS_PER_LIST


def test_lists_that_hold_too_few_allowed_keys_are_completed() -> None:
    # 16 of 51 lists are probed; the 2,000 nearest do not fit in them, and yet 1,200 are always found.
    keys, queries = clustered(5000), clustered(4, seed=1)
    index = DenseIndex.build(keys, "IVF")
    exclude = np.arange(5000) % 2 == 0
    _, positions = index.search(queries, 1200, exclude)
    assert (positions >= 0).all()
    assert (positions % 2 == 1).all()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("batch", [1, 25])
def test_ties_go_to_the_lowest_position_even_where_k_cuts_them(kind: str, batch: int) -> None:
    keys = np.repeat(np.eye(4, dtype=np.float32), 100, axis=0)  # 100 equal keys, four times
    queries = np.tile(np.array([[0.1, 0.9, 0.5, -1]], np.float32), (batch, 1))
    _, positions = DenseIndex.build(keys, kind).search(queries, 130)
    expected = np.concatenate([np.arange(100, 200), np.arange(200, 230)])
    np.testing.assert_array_equal(positions, np.tile(expected, (batch, 1)))


@pytest.mark.parametrize("kind", ["Flat", "SQfp16", "SQbf16"])
@pytest.mark.parametrize("batch", [1, 25])
def test_ties_among_many_keys(kind: str, batch: int) -> None:
    """FAISS alone keeps others of the tied keys here, for most of these k."""
    rng = np.random.default_rng(0)
    keys = rng.integers(-2, 3, (500, 3)).astype(np.float32)
    queries = rng.integers(-2, 3, (batch, 3)).astype(np.float32)
    index = DenseIndex.build(keys, kind)
    for k in (1, 3, 10, 40, 99, 100, 130, 300, 499, 500):
        np.testing.assert_array_equal(index.search(queries, k)[1], exact(keys, queries, k))


@settings(max_examples=by_size(40, 400))
@given(
    keys=arrays(np.float32, st.tuples(st.integers(0, 12), st.just(3)), elements=st.integers(-2, 2)),
    query=arrays(np.float32, 3, elements=st.integers(-2, 2)),
    k=st.integers(1, 15),
    seed=st.integers(0, 99),
)
def test_flat_is_exact_search_with_ties_by_position(
    keys: np.ndarray, query: np.ndarray, k: int, seed: int
) -> None:
    exclude = np.random.default_rng(seed).random(len(keys)) < 0.3
    scores, positions = DenseIndex.build(keys).search(query[None], k, exclude)
    true = keys @ query
    expected = [p for p in sorted(range(len(keys)), key=lambda p: (-true[p], p)) if not exclude[p]][:k]
    assert positions[0].tolist() == expected + [-1] * (k - len(expected))
    assert scores[0, : len(expected)].tolist() == true[expected].tolist()


def test_reconstruct_returns_what_was_given(corpus: tuple[np.ndarray, np.ndarray]) -> None:
    keys = corpus[0]
    np.testing.assert_array_equal(stored_keys(DenseIndex.build(keys), 7, 19), keys[7:19])
    np.testing.assert_allclose(stored_keys(DenseIndex.build(keys, "IVF"), 7, 19), keys[7:19], atol=0.02)


def test_projected_keys_are_those_of_the_projected_embeddings() -> None:
    embeddings = clustered(100)
    projection = np.random.default_rng(3).standard_normal((5, 32)).astype(np.float32)
    index = DenseIndex.build(embeddings, projection=projection)
    assert index.key_dim == 5
    np.testing.assert_allclose(stored_keys(index, 0, 100), embeddings @ projection.T, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_not_finite_numbers_are_refused(bad: float) -> None:
    keys = clustered(10)
    index = DenseIndex.build(keys)
    queries = keys[:3].copy()
    queries[2, 5] = bad
    with pytest.raises(InvalidRequest, match="queries: NaN or infinity in row 2; give finite numbers"):
        index.search(queries, 3)
    keys[4, 0] = bad
    with pytest.raises(InvalidRequest, match="keys from 0 on: NaN or infinity in row 4"):
        DenseIndex.build(keys)


def test_wrong_arguments_say_what_is_allowed() -> None:
    index = DenseIndex.build(clustered(10))
    with pytest.raises(DimensionMismatch, match="queries of length 31; the keys have 32"):
        index.search(np.zeros((1, 31), np.float32), 3)
    for k in (0, -1):
        with pytest.raises(InvalidRequest, match=f"k={k}; use an integer of at least 1"):
            index.search(np.zeros((1, 32), np.float32), k)
    with pytest.raises(InvalidRequest, match=r"use booleans of shape \(10,\)"):
        index.search(np.zeros((1, 32), np.float32), 3, np.zeros(9, bool))
    with pytest.raises(InvalidRequest, match="dense kind 'Nope'; use one of Flat, SQfp16"):
        DenseIndex.build(clustered(10), "Nope")
    with pytest.raises(DimensionMismatch, match="projection of shape"):
        DenseIndex.build(clustered(10), projection=np.eye(3, dtype=np.float32))


def test_positions_alone_are_those_of_a_search_with_these_parameters(
    corpus: tuple[np.ndarray, np.ndarray],
) -> None:
    keys, queries = corpus
    index = DenseIndex.build(keys, "IVF").using({"nprobe": 4})
    for nprobe in (1, 30):
        found = index.nearest(queries, 5, {"nprobe": nprobe})
        searched = index.search(queries, 5, None, {"nprobe": nprobe})[1]
        np.testing.assert_array_equal(np.sort(found), np.sort(searched))
    few = DenseIndex.build(keys[:40], "IVF")  # all of which are compared
    np.testing.assert_array_equal(few.nearest(queries, 5, {"nprobe": 1}), few.search(queries, 5)[1])


def test_an_index_of_distances_is_refused(tmp_path: Path) -> None:
    distances: Any = faiss.IndexFlatL2(4)
    faiss.write_index(distances, str(tmp_path / "keys.faiss"))
    with pytest.raises(CorruptData, match="metric 1, not inner product; build the generation again"):
        DenseIndex.load(tmp_path / "keys.faiss")


def test_an_empty_batch_is_answered() -> None:
    scores, positions = DenseIndex.build(clustered(10)).search(np.zeros((0, 32), np.float32), 3)
    assert scores.shape == positions.shape == (0, 3)


def test_files_that_are_no_index_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "keys.faiss"
    path.write_bytes(b"not an index at all")
    with pytest.raises(CorruptData, match=r"keys\.faiss: not a FAISS index .* build the generation again"):
        DenseIndex.load(path)
    with pytest.raises(CorruptData):
        DenseIndex.load(tmp_path / "absent.faiss")


def test_the_scores_of_all_keys_are_those_that_search_ranks_by(
    built: DenseIndex, corpus: tuple[np.ndarray, np.ndarray], tmp_path: Path
) -> None:
    _, queries = corpus
    if built.kind != "Flat":
        assert built.scores(queries) is None  # as they are kept, keys are not what was given
        return
    built.save(tmp_path / "keys.faiss")
    found, positions = built.search(queries[:7], 60)
    for index in (built, DenseIndex.load(tmp_path / "keys.faiss", mmap=True)):
        scores = index.scores(queries[:7])
        assert scores is not None
        assert scores.shape == (7, len(built))
        np.testing.assert_array_equal(np.take_along_axis(scores, positions, 1), found)
        assert ((scores >= found[:, -1:]).sum(axis=1) >= 60).all()
    empty = DenseIndex.build(np.zeros((0, 32), np.float32)).scores(queries)
    assert empty is not None
    assert empty.shape == (50, 0)
    with pytest.raises(DimensionMismatch, match="queries of length 31; the keys have 32"):
        built.scores(queries[:, :31])
    with pytest.raises(InvalidRequest, match="NaN"):
        built.scores(np.full((1, 32), np.nan, np.float32))


def test_lists_learn_from_keys_of_the_whole_collection(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keys come in the order of their writing: the first of them may be about one thing."""
    trained: list[np.ndarray] = []

    def noting(keys: np.ndarray, *further: Any) -> np.ndarray:
        trained.append(keys[:, 0])
        return projected(keys, *further)

    monkeypatch.setattr(dense, "_TRAINING_ROWS", 10)
    monkeypatch.setattr(dense, "projected", noting)
    keys = clustered(2500)
    keys[:, 0] = np.arange(2500)
    DenseIndex.build(keys, "IVF")
    assert (trained[0][0], trained[0][-1]) == (0, 2499)
    assert np.diff(trained[0]).max() <= 2


def test_a_graph_searches_further_the_more_is_asked_for(corpus: tuple[np.ndarray, np.ndarray]) -> None:
    """Whatever was asked for before, and however little is enough for a few."""
    keys, queries = corpus
    index = DenseIndex.build(keys, "HNSW").using({"ef_search": 16})
    few, many = index.search(queries, 10)[1], index.search(queries, 100)[1]
    np.testing.assert_array_equal(many, index.using({}).search(queries, 100)[1])
    assert recall(many, exact(keys, queries, 100)) > recall(few, exact(keys, queries, 10))
    np.testing.assert_array_equal(index.search(queries, 100, None, {"ef_search": 200})[1], many)


def test_a_parameter_is_set_beside_those_that_were_set_before() -> None:
    index = DenseIndex.build(clustered(2500), "IVFPQ").using({"k_factor": 3}).using({"nprobe": 5})
    assert index.parameters == {"nprobe": 5, "k_factor": 3}


def drawn(count: int, dim: int = 16, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((count, dim)).astype(np.float32)


@pytest.mark.parametrize("count", [1, 10, 64])
def test_the_nearest_are_found_among_spare_ones(count: int) -> None:
    """Keys differ by less than a unit, so only spare ones make up for the rounding."""
    rows = drawn(1)[0] + 0.02 * drawn(400, seed=1)
    codes, scales = in_eight_bits(rows)
    keys = ScannedKeys(codes, scales)
    queries = drawn(20, seed=2)
    found = keys.nearest(queries, count)
    assert found.shape == (20, count + SPARE)
    products = queries @ (codes * scales[:, None]).T
    for line, products_of_query in zip(found, products, strict=True):
        assert len(set(line.tolist())) == count + SPARE
        assert np.argmax(products_of_query) in line


def test_few_keys_are_all_returned() -> None:
    codes, scales = in_eight_bits(drawn(5))
    keys = ScannedKeys(codes, scales)
    assert len(keys) == 5
    assert sorted(keys.nearest(drawn(1, seed=3), 3)[0].tolist()) == [0, 1, 2, 3, 4]


def test_keys_of_other_units_are_compared_in_one() -> None:
    """A short key has the same whole numbers as a long one of its direction."""
    codes = np.tile(np.array([[100, -50]], np.int8), (60, 1))
    scales = np.linspace(1, 60, 60).astype(np.float32)
    (best,) = ScannedKeys(codes, scales).nearest(np.array([[1.0, -1.0]], np.float32), 1)
    assert best[0] == 59
    assert set(best.tolist()) == set(range(60 - SPARE - 1, 60))


def test_a_query_of_zeros_and_keys_of_zeros_are_no_error() -> None:
    codes, scales = in_eight_bits(np.zeros((4, 3), np.float32))
    keys = ScannedKeys(codes, scales)
    assert sorted(keys.nearest(np.zeros((2, 3), np.float32), 4)[1].tolist()) == [0, 1, 2, 3]


def test_blocks_are_one_index(monkeypatch: pytest.MonkeyPatch) -> None:
    codes, scales = in_eight_bits(drawn(50))
    whole = ScannedKeys(codes, scales).nearest(drawn(3, seed=5), 5)
    monkeypatch.setattr(dense, "_BLOCK", 7)
    assert np.array_equal(ScannedKeys(codes, scales).nearest(drawn(3, seed=5), 5), whole)


def test_a_copy_is_the_same_index() -> None:
    keys = ScannedKeys(*in_eight_bits(drawn(5)))
    assert copy.deepcopy([keys])[0] is keys
