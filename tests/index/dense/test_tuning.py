"""Tuning reaches its target and says what it measured; "auto" chooses by size, budget and recall."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.index import stored_keys

import dsearch.index.dense.index as dense
import dsearch.index.dense.kinds as dense_kinds
import dsearch.index.dense.tuning as dense_tuning
from dsearch.errors import InvalidRequest
from dsearch.index import AUTO, DENSE_KINDS, DenseIndex, Generation, Manifest, build_tuned, tuned
from dsearch.index.dense.tuning import exact_neighbours, recall, sample_queries

APPROXIMATE = [name for name, kind in DENSE_KINDS.items() if kind.parameters]


def clustered(count: int, dim: int = 32, seed: int = 0) -> np.ndarray:
    """Many small clusters: the neighbours of a query lie close together, and a filter may take them all."""
    rng = np.random.default_rng(seed)
    centres = np.random.default_rng(99).standard_normal((200, dim))
    keys = centres[rng.integers(0, 200, count)] + 0.5 * rng.standard_normal((count, dim))
    return (keys / np.linalg.norm(keys, axis=1, keepdims=True)).astype(np.float32)


@pytest.fixture(scope="module")
def keys() -> np.ndarray:
    return clustered(6000)


@pytest.fixture(scope="module", params=list(DENSE_KINDS))
def built(request: pytest.FixtureRequest, keys: np.ndarray) -> DenseIndex:
    index, measured = tuned(DenseIndex.build(keys, request.param), keys, target=0.97)
    assert measured is not None
    assert measured.target == (0.97 if index.parameters else None)
    assert measured.queries == (20 if request.param == "Flat" else 400)
    return index


def test_every_kind_reaches_its_target(built: DenseIndex, keys: np.ndarray) -> None:
    queries = sample_queries(keys)
    assert recall(built, queries, exact_neighbours(keys, queries)) >= 0.97


@pytest.mark.parametrize("share", [0.5, 0.05, 0.005])
def test_filtered_recall(built: DenseIndex, keys: np.ndarray, share: float) -> None:
    """Of what SQ8's rounding leaves: the same keys, all compared, are the reference."""
    queries = clustered(60, seed=1)
    exclude = np.random.default_rng(2).random(len(keys)) >= share
    stored = stored_keys(built, 0, len(keys))
    scores = np.where(exclude, -np.inf, queries @ stored.T)
    truth = np.argsort(-scores, axis=1, kind="stable")[:, :10]
    assert recall(built, queries, truth, exclude) >= 0.99


def test_filters_need_the_exhaustive_search(keys: np.ndarray, monkeypatch: pytest.MonkeyPatch) -> None:
    """The check that the check matters: without the switch a narrow filter loses neighbours."""
    index = DenseIndex.build(keys, "IVF").using({"nprobe": 3})
    queries, exclude = clustered(60, seed=1), np.random.default_rng(2).random(len(keys)) >= 0.02
    truth = np.argsort(-np.where(exclude, -np.inf, queries @ keys.T), axis=1, kind="stable")[:, :10]
    assert recall(index, queries, truth, exclude) >= 0.97
    monkeypatch.setattr(dense, "_READ_BELOW", 0)
    assert recall(index, queries, truth, exclude) >= 0.97
    monkeypatch.setattr(dense, "_SCANNED_SHARE", 0.0)
    assert recall(index, queries, truth, exclude) < 0.9


def test_a_wide_filter_makes_searches_look_further(keys: np.ndarray, monkeypatch: pytest.MonkeyPatch) -> None:
    index = DenseIndex.build(keys, "IVF").using({"nprobe": 4})
    queries, exclude = clustered(100, seed=1), np.random.default_rng(2).random(len(keys)) >= 0.3
    truth = np.argsort(-np.where(exclude, -np.inf, queries @ keys.T), axis=1, kind="stable")[:, :10]
    wide = recall(index, queries, truth, exclude)
    monkeypatch.setattr(DenseIndex, "_widened", lambda self, parameters, allowed: parameters)
    assert recall(index, queries, truth, exclude) < wide


def test_a_graph_is_left_where_comparing_all_that_is_allowed_is_quicker(
    keys: np.ndarray, monkeypatch: pytest.MonkeyPatch
) -> None:
    index = DenseIndex.build(keys, "HNSW")
    exclude = np.random.default_rng(2).random(len(keys)) >= 0.5
    compared: list[int] = []
    search = DenseIndex._search_exhaustively

    def spied(self: DenseIndex, queries: np.ndarray, wanted: int, allowed: int, exclude: np.ndarray) -> Any:
        compared.append(allowed)
        return search(self, queries, wanted, allowed, exclude)

    monkeypatch.setattr(DenseIndex, "_search_exhaustively", spied)
    index.using({"ef_search": 16}).search(keys[:1], 10, exclude)
    assert compared == []  # 64 times 32 is less than the half of 6,000
    index.using({"ef_search": 64}).search(keys[:1], 10, exclude)
    assert compared == [int((~exclude).sum())]
    index.using({"ef_search": 64}).search(keys[:1], 10)
    assert len(compared) == 1


@pytest.mark.parametrize("kind", APPROXIMATE)
def test_more_recall_costs_larger_parameters_and_a_low_target_gives_small_ones(
    kind: str, keys: np.ndarray
) -> None:
    index = DenseIndex.build(keys, kind)
    low, high = (tuned(index, keys, target=target)[0].parameters for target in (0.6, 0.97))
    main = "ef_search" if kind == "HNSW" else "nprobe"
    assert low[main] < high[main]


def test_given_queries_decide(keys: np.ndarray) -> None:
    index = DenseIndex.build(keys, "IVF")
    easy, hard = keys[::40], sample_queries(keys)
    for_easy, for_hard = (
        tuned(index, keys, queries=queries, target=0.97)[0].parameters["nprobe"] for queries in (easy, hard)
    )
    assert for_easy < for_hard


def test_an_unreachable_target_is_reported_and_costs_no_more_than_it_gives(keys: np.ndarray) -> None:
    index, measured = tuned(DenseIndex.build(keys, "IVF"), keys, target=1.0)
    assert measured is not None
    assert 0.97 <= measured.recall_at_10 < measured.target == 1.0
    assert index.parameters["nprobe"] < (index.lists or 0)


def test_what_is_measured_is_true(keys: np.ndarray, tmp_path: Path) -> None:
    keys = keys[:1500]
    for kind in DENSE_KINDS:
        index, measured = tuned(DenseIndex.build(keys, kind), keys)
        index.save(tmp_path / kind)
        assert measured is not None
        size = (tmp_path / kind).stat().st_size
        assert index.stored_bytes() == size
        assert measured.bytes_per_document == pytest.approx(size / len(keys), abs=0.1)
        assert measured.queries_per_s > 0
    assert tuned(DenseIndex.build(keys[:0]), keys[:0])[1] is None


def test_projected_keys_are_compared_with_projected_keys(keys: np.ndarray) -> None:
    projection = np.random.default_rng(3).standard_normal((16, 32)).astype(np.float32)
    _, measured = build_tuned(keys[:500], "Flat", projection=projection)
    assert measured is not None
    assert measured.recall_at_10 == 1


def test_auto_chooses_by_size_budget_and_recall(keys: np.ndarray, monkeypatch: pytest.MonkeyPatch) -> None:
    keys = keys[:3000]

    def chosen(**options: Any) -> str:
        return build_tuned(keys, AUTO, **options)[0].kind

    assert chosen() == "Flat"
    assert chosen(memory_bytes=3000 * 32 * 3) == "SQfp16"
    assert chosen(memory_bytes=3000 * 32, target=0.9) == "SQ8"
    assert chosen(memory_bytes=1, target=0.9) == "SQ8"
    monkeypatch.setattr(dense_kinds, "EXHAUSTIVE_BELOW", 1000)
    assert chosen(target=0.95) == "IVFPQ"
    assert chosen(target=0.95, memory_bytes=int(3000 * 32 * 1.1 + 3000 * 16)) == "IVF"
    assert chosen(target=0.9999) == "SQfp16"  # what rounds to 8 bits does not reach it


@pytest.mark.parametrize(
    ("kind", "parameters", "message"),
    [
        ("IVF", {"nprobe": 0}, "nprobe=0; use an integer from 1 to 65536"),
        ("IVF", {"nprobe": 10**9}, "use an integer from 1 to 65536"),
        ("IVF", {"nprobe": True}, "nprobe=True; use an integer"),
        ("IVF", {"ef_search": 5}, "'ef_search'; an index of kind IVF takes nprobe"),
        ("HNSW", {"ef_search": 5000}, "ef_search=5000; use an integer from 1 to 4096"),
        ("IVFPQ", {"k_factor": 65}, "k_factor=65; use an integer from 1 to 64"),
        ("Flat", {"nprobe": 1}, "kind Flat takes none"),
    ],
)
def test_parameters_of_a_request_are_bounded(
    keys: np.ndarray, kind: str, parameters: dict[str, Any], message: str
) -> None:
    index = DenseIndex.build(keys[:100], kind)
    with pytest.raises(InvalidRequest, match=message):
        index.search(keys[:1], 3, None, parameters)
    with pytest.raises(InvalidRequest, match=message):
        index.using(parameters)


def test_parameters_of_a_request_replace_those_of_the_index(keys: np.ndarray) -> None:
    index = DenseIndex.build(keys, "IVF").using({"nprobe": 1})
    queries = sample_queries(keys)
    truth = exact_neighbours(keys, queries)
    wide = index.search(queries, 10, parameters={"nprobe": 65536})[1]
    assert recall(index, queries, truth) < 0.8
    assert np.mean([len(set(a) & set(b)) / 10 for a, b in zip(wide, truth, strict=True)]) > 0.95
    assert index.parameters == {"nprobe": 1}


def test_wrong_arguments_say_what_is_allowed(keys: np.ndarray) -> None:
    with pytest.raises(InvalidRequest, match=r"dense kind 'Nope'; use one of Flat, .*auto"):
        build_tuned(keys, "Nope")
    with pytest.raises(InvalidRequest, match="memory_bytes=0; use a number of at least 1"):
        build_tuned(keys, memory_bytes=0)
    for target in (0.0, 1.5):
        with pytest.raises(InvalidRequest, match=f"recall target {target}; use a number above 0, up to 1"):
            build_tuned(keys, target=target)


def test_a_generation_keeps_what_was_found(
    build: Callable[..., tuple[Path, Manifest]], keys: np.ndarray
) -> None:
    arguments: dict[str, Any] = {"rows": np.arange(2000), "embeddings": keys[:2000], "keyword": False}
    folder, manifest = build(**arguments, dense_kind="IVF", recall_target=0.95)
    generation = Generation.open(folder)
    assert generation.dense.parameters == manifest.dense["parameters"] != DENSE_KINDS["IVF"].parameters
    measured = manifest.dense["measured"]
    assert measured["recall_at_10"] >= 0.95 == measured["target"]
    size = (folder / "keys.faiss").stat().st_size
    assert measured["bytes_per_document"] == pytest.approx(size / 2000, abs=0.1)
    _, manifest = build(folder.parent / "000013", **arguments, dense_kind=AUTO)
    assert manifest.dense["kind"] == "Flat"


@pytest.mark.parametrize("share", [0.5, 0.2, 0.12])
def test_under_a_filter_lists_lose_what_rounding_loses_and_no_more(
    share: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of keys that lie closer together than 8 bits tell apart an index finds .98, however far it looks.

    What is served is scored again by the stored embeddings, so it is not lost (test_engine_filtered_recall).
    """
    rng = np.random.default_rng(0)
    centres = rng.standard_normal((100, 32)).astype(np.float32)
    keys = centres[rng.integers(0, 100, 12_000)] + 0.9 * rng.standard_normal((12_000, 32)).astype(np.float32)
    keys /= np.linalg.norm(keys, axis=1, keepdims=True)
    asked = sample_queries(keys, count=300)
    index, _ = build_tuned(keys, "IVF", queries=asked[::2])
    passing = np.flatnonzero(rng.random(len(keys)) < share)
    exclude = np.ones(len(keys), bool)
    exclude[passing] = False
    truth = passing[exact_neighbours(keys[passing], asked[1::2])]
    walked = recall(index, asked[1::2], truth, exclude)
    monkeypatch.setattr(dense, "_SCANNED_SHARE", 1.0)
    assert walked >= recall(index, asked[1::2], truth, exclude) - 0.002
    candidates = index.search(asked[1::2], 100, exclude)[1]
    assert (candidates[:, :, None] == truth[:, None, :]).any(axis=1).mean() >= 0.999


@pytest.mark.usefixtures("unchecked")
def test_of_kinds_that_all_miss_the_target_the_best_is_kept(
    keys: np.ndarray, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first of those that are equally good; one that reaches the target ends the search."""

    def chosen(*recalls: float, target: float = 0.99) -> tuple[str, list[str]]:
        of, tried = dict(zip(("IVFPQ", "IVF", "HNSW", "SQfp16", "SQ8"), recalls, strict=True)), list[str]()

        def measured(index: Any, *_: Any, **__: Any) -> tuple[Any, Any]:
            tried.append(index)
            return index, dense_tuning.IndexMeasurement(of[index], 1.0, 1.0, 1, None)

        monkeypatch.setattr(dense_tuning, "candidates_for", lambda *_: list(of))
        monkeypatch.setattr(dense_tuning.DenseIndex, "build", lambda keys, name, **_: name)
        monkeypatch.setattr(dense_tuning, "tuned", measured)
        return build_tuned(keys[:9], target=target)[0], tried  # type: ignore[return-value]

    names = ["IVFPQ", "IVF", "HNSW", "SQfp16", "SQ8"]
    assert chosen(0.5, 0.7, 0.98, 0.98, 0.6) == ("HNSW", names)
    assert chosen(0.9, 0.7, 0.8, 0.85, 0.6) == ("IVFPQ", names)
    assert chosen(0.5, 0.7, 0.99, 1.0, 0.6) == ("HNSW", names[:3])


@pytest.mark.parametrize("target", [0.0, -0.1, 1.01, float("nan")])
def test_a_recall_target_out_of_range_is_refused(keys: np.ndarray, target: float) -> None:
    with pytest.raises(InvalidRequest, match=rf"recall target {target}; use a number above 0, up to 1"):
        build_tuned(keys[:9], target=target)
    assert dense_tuning.RECALL_TARGET == 0.99


def test_recall_counts_neighbours_that_are_there(keys: np.ndarray) -> None:
    """A query among four keys has no fifth neighbour that could be found."""
    index, queries = DenseIndex.build(keys[:4], "Flat"), keys[:2]
    truth = np.array([[0, 1, 2, 3, -1], [1, 0, 2, 3, -1]])
    assert recall(index, queries, truth) == 1.0
    assert recall(index, queries, np.array([[0, 7, -1, -1, -1], [1, 0, -1, -1, -1]])) == pytest.approx(3 / 4)
    assert recall(index, queries, truth, np.arange(4) == 2) == pytest.approx(6 / 8)


def test_an_exact_index_is_measured_with_few_queries_and_reaches_a_recall_of_all(keys: np.ndarray) -> None:
    index, measured = build_tuned(keys[:50], "Flat", queries=keys[:60], target=1.0)
    assert measured is not None
    assert (index.kind, measured.recall_at_10, measured.queries) == ("Flat", 1.0, 20)
