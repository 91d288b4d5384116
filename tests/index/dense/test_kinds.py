"""Kinds of dense indexes: which are tried for which number of keys, and which parameters they take."""

from __future__ import annotations

import pytest

from dsearch.errors import InvalidRequest
from dsearch.index.dense.kinds import (
    BOUNDS,
    DENSE_KINDS,
    EXHAUSTIVE_BELOW,
    candidates_for,
    checked_parameters,
    lists_of,
)


def test_few_keys_are_scanned_and_many_are_indexed() -> None:
    scans = ["Flat", "SQfp16", "SQ8"]
    assert candidates_for("auto", 0, 8, None) == scans
    assert candidates_for("auto", EXHAUSTIVE_BELOW - 1, 8, None) == scans
    indexes = ["IVFPQ", "IVF", "HNSW", "SQfp16", "SQ8"]
    assert candidates_for("auto", EXHAUSTIVE_BELOW, 8, None) == indexes
    assert EXHAUSTIVE_BELOW == 20_000


def test_a_bound_of_memory_leaves_kinds_out_and_one_always_stays() -> None:
    """1,000 keys of 8 numbers: 32,000, 16,000 and 8,000 bytes; a kind of exactly the bound fits."""
    assert candidates_for("auto", 1000, 8, 32_000) == ["Flat", "SQfp16", "SQ8"]
    assert candidates_for("auto", 1000, 8, 31_999) == ["SQfp16", "SQ8"]
    assert candidates_for("auto", 1000, 8, 8_000) == ["SQ8"]
    assert candidates_for("auto", 1000, 8, 1) == ["SQ8"]


def test_bytes_of_a_key() -> None:
    sizes = {name: kind.bytes_per_key(100) for name, kind in DENSE_KINDS.items()}
    assert sizes == {
        "Flat": 400,
        "SQfp16": 200,
        "SQbf16": 200,
        "SQ8": 100,
        "HNSW": 380,
        "IVF": 116,
        "IVFPQ": 141,
    }


def test_a_kind_that_is_named_is_the_only_one_whatever_it_takes() -> None:
    assert candidates_for("HNSW", 10, 8, 1) == ["HNSW"]


@pytest.mark.parametrize(("kind", "memory"), [("auto", 0), ("Flat", -1)])
def test_no_memory_is_refused(kind: str, memory: int) -> None:
    with pytest.raises(InvalidRequest, match=rf"memory_bytes={memory}; use a number of at least 1"):
        candidates_for(kind, 10, 8, memory)


def test_an_unknown_kind_is_refused() -> None:
    with pytest.raises(InvalidRequest, match=r"dense kind 'flat'; use one of Flat, SQfp16, .*, IVFPQ, auto"):
        candidates_for("flat", 10, 8, None)


@pytest.mark.parametrize(
    ("count", "lists"),
    [(0, 0), (38, 0), (39, 1), (10_000, 100), (500_000, 2121), (1_000_000, 6000), (4_000_000, 12_000)],
)
def test_lists_grow_with_the_root_and_never_beyond_their_training_points(count: int, lists: int) -> None:
    assert lists_of(count) == lists


def test_factories() -> None:
    made = {name: kind.factory(10_000, 8) for name, kind in DENSE_KINDS.items()}
    assert made == {
        "Flat": "Flat",
        "SQfp16": "SQfp16",
        "SQbf16": "SQbf16",
        "SQ8": "SQ8",
        "HNSW": "HNSW32,SQ8",
        "IVF": "IVF100,SQ8",
        "IVFPQ": "IVF100,PQ4x4fs,Refine(SQ8)",
    }
    assert DENSE_KINDS["IVFPQ"].factory(10_000, 7) == "IVF100,PQ7x4fs,Refine(SQ8)"
    assert DENSE_KINDS["IVFPQ"].factory(16 * 39 - 1, 8) == "SQ8"
    assert DENSE_KINDS["IVFPQ"].factory(16 * 39, 8) == "IVF16,PQ4x4fs,Refine(SQ8)"
    assert (DENSE_KINDS["IVF"].factory(77, 8), DENSE_KINDS["IVF"].factory(78, 8)) == ("SQ8", "IVF2,SQ8")


def test_parameters_that_a_kind_has_at_first() -> None:
    assert {name: dict(kind.parameters) for name, kind in DENSE_KINDS.items() if kind.parameters} == {
        "HNSW": {"ef_search": 128},
        "IVF": {"nprobe": 16},
        "IVFPQ": {"nprobe": 16, "k_factor": 8},
    }


@pytest.mark.parametrize("name", BOUNDS)
def test_parameters_at_their_bounds_are_taken_and_beyond_refused(name: str) -> None:
    kind = "HNSW" if name == "ef_search" else "IVFPQ"
    low, high = BOUNDS[name]
    for value in (low, high):
        assert checked_parameters(kind, {name: value}) == {name: value}
    for value in (low - 1, high + 1, True, 8.0):
        with pytest.raises(InvalidRequest, match=rf"{name}=.*; use an integer from {low} to {high}"):
            checked_parameters(kind, {name: value})  # type: ignore[dict-item]


def test_parameters_of_another_kind_are_refused() -> None:
    with pytest.raises(InvalidRequest, match=r"'ef_search'; an index of kind IVF takes nprobe"):
        checked_parameters("IVF", {"ef_search": 3})
    for kind in ("Flat", "unknown"):
        with pytest.raises(InvalidRequest, match=rf"'nprobe'; an index of kind {kind} takes none"):
            checked_parameters(kind, {"nprobe": 3})
    assert checked_parameters("Flat", None) == {}
