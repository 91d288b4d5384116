"""Plans add up: what is asked for fits, and more of anything never needs less."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.sizes import by_size

from dsearch.cluster.capacity import KINDS, MachineResources, Rates, plan
from dsearch.errors import InvalidRequest


def test_a_plan_worked_out_by_hand() -> None:
    made = plan(2_000_000, recall=0.994, queries_per_s=4, shard_ms=25, rates=Rates(5.0, 100.0, 1.0, 4.0))
    assert made.kind.name == "SQ8"
    assert (made.shards, made.shard_documents) == (2, 1_000_000)
    assert made.slowest_ms == 26
    assert made.query_ms == 2 * 26 + 4 + 5
    assert made.cores == pytest.approx(4 * 0.061)
    assert made.shard_memory_gb == pytest.approx((384 + 400) / 1000)
    assert made.machines == 2


@settings(max_examples=by_size(30, 300))
@given(
    documents=st.integers(1, 10**11),
    queries=st.floats(0.1, 1e4),
    recall=st.sampled_from([kind.recall for kind in KINDS]),
    memory=st.sampled_from([16.0, 64.0, 512.0]),
)
def test_plans_fit_and_grow(documents: int, queries: float, recall: float, memory: float) -> None:
    machine = MachineResources(memory_gb=memory)
    made = plan(documents, queries_per_s=queries, recall=recall, machine=machine)
    assert made.kind.recall >= recall
    assert made.shards * made.shard_documents >= documents
    assert made.slowest_ms <= 50 + Rates().shard_ms + 1e-6
    needed = made.shards * made.replicas * made.shard_memory_gb
    assert needed <= made.machines * memory * machine.share * (1 + 1e-9)
    assert made.cores <= made.machines * machine.cores * machine.share * (1 + 1e-9)
    more = plan(2 * documents, queries_per_s=queries, recall=recall, machine=machine)
    assert more.machines >= made.machines
    assert more.shards >= made.shards


def test_what_cannot_be_planned_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="documents=0; use a number above 0"):
        plan(0)
    with pytest.raises(InvalidRequest, match=r"recall=1\.5; use a number above 0, at most 1"):
        plan(10, recall=1.5)


def test_disk_and_hours_worked_out_by_hand() -> None:
    """A number takes 4 bytes as it is stored and, as an SQ8 key, 1 more."""
    made = plan(1_000_000, recall=0.994, replicas=3, rates=Rates(encode_documents=100.0))
    assert (made.kind.name, made.replicas) == ("SQ8", 3)
    assert made.disk_gb == pytest.approx(3 * (384 * 5 + 400 + 2000) / 1000)
    assert made.encode_hours == pytest.approx(1_000_000 / 100 / (made.machines * 16) / 3600)


def test_each_copy_needs_memory_of_its_own() -> None:
    machine = MachineResources(memory_gb=10.0, cores=64, share=0.5)
    one, two, four = (
        plan(20_000_000, recall=1.0, queries_per_s=0.1, shard_ms=1e5, replicas=of, machine=machine)
        for of in (1, 2, 4)
    )
    assert one.shards == two.shards == four.shards
    assert one.shard_memory_gb == four.shard_memory_gb
    # 20 million keys of 1,536 bytes and 400 of postings are 38.72 GB a copy, and a machine gives 5: of eight
    # shards it holds one each.
    assert [made.machines for made in (one, two, four)] == [8, 16, 32]


def test_the_smallest_dimension_and_load_are_planned_by_their_share() -> None:
    whole, half = (plan(1_000_000, recall=1.0, shard_ms=1000, dimensions=of) for of in (384, 192))
    assert half.slowest_ms - 2 == pytest.approx((whole.slowest_ms - 2) / 2)
    for name in ("documents", "dimensions", "queries_per_s", "shard_ms", "replicas"):
        options = {"documents": 1, name: 0}
        with pytest.raises(InvalidRequest, match=f"{name}=0; use a number above 0"):
            plan(options.pop("documents"), **options)  # type: ignore[arg-type]


@pytest.mark.parametrize(("documents", "kind"), [(10, "SQ8"), (1_000_000, "IVFPQ"), (10**9, "IVFPQ")])
def test_the_kind_that_is_fastest_for_so_many_documents_is_planned(documents: int, kind: str) -> None:
    assert plan(documents).kind.name == kind
