"""Shards merge exactly, in any order and grouping."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.sizes import by_size

from dsearch.attention import ExactAttention, PartialAttention, exact_attention, merge
from dsearch.errors import InvalidRequest

logit = st.one_of(st.floats(-30, 30), st.sampled_from([-math.inf, 1e4, -1e4]))
shard = st.lists(logit, max_size=5)
quick = settings(max_examples=by_size(40, 400))


def triple(logits: list[float], offset: int = 0) -> PartialAttention:
    """One query over a shard whose document i has the value (i, 1)."""
    values = torch.tensor([[offset + i, 1.0] for i in range(len(logits))], dtype=torch.float64).reshape(-1, 2)
    return PartialAttention.of(torch.tensor([logits], dtype=torch.float64).reshape(1, -1), values)


def triples(shards: list[list[float]]) -> list[PartialAttention]:
    starts = [sum(len(s) for s in shards[:i]) for i in range(len(shards))]
    return [triple(s, start) for s, start in zip(shards, starts, strict=True)]


def assert_equal(a: ExactAttention, b: ExactAttention):
    torch.testing.assert_close(a.context, b.context, atol=1e-6, rtol=1e-9)
    torch.testing.assert_close(a.log_partition, b.log_partition, atol=1e-6, rtol=1e-9)


@given(shards=st.lists(shard, min_size=1, max_size=5))
@quick
def test_merged_shards_equal_the_whole(shards):
    whole = triple([x for s in shards for x in s]).finish()
    assert_equal(merge(triples(shards)).finish(), whole)
    assert whole.context.isfinite().all()


@given(shards=st.lists(shard, min_size=3, max_size=3), order=st.permutations(range(3)))
@quick
def test_merging_is_commutative_and_associative(shards, order):
    a, b, c = triples(shards)
    together = merge([a, b, c]).finish()
    assert_equal(merge([[a, b, c][i] for i in order]).finish(), together)
    assert_equal(merge([merge([a, b]), c]).finish(), together)
    assert_equal(merge([a, merge([b, c])]).finish(), together)


@given(shards=st.lists(shard, min_size=1, max_size=4))
@quick
def test_finished_results_merge_as_well(shards):
    """What travels between shards may be (context, log partition), already divided."""
    parts = triples(shards)
    again = [PartialAttention.of_result(*part.finish()) for part in parts]
    assert_equal(merge(again).finish(), merge(parts).finish())


def test_by_hand():
    part = triple([0.0, math.log(3.0)])
    assert part.max.item() == pytest.approx(math.log(3.0))
    assert part.sum.item() == pytest.approx(4 / 3)
    context, log_z = part.finish()
    assert context.tolist()[0] == pytest.approx([0.75, 1.0])
    assert log_z.item() == pytest.approx(math.log(4.0))


def test_empty_shards_are_neutral():
    part, empty = triple([1.0, 2.0]), triple([])
    assert_equal(merge([empty, part, empty]).finish(), part.finish())
    low = triple([-1e4, -1e4 - 1.0])  # beside a shard at 0 it would be nothing
    assert_equal(merge([empty, low]).finish(), low.finish())
    context, log_z = merge([empty, empty]).finish()
    assert context.tolist() == [[0.0, 0.0]]
    assert log_z.item() == -math.inf
    assert PartialAttention.of_result(context, log_z).finish().log_partition.item() == -math.inf
    with pytest.raises(InvalidRequest, match=r"partials=\[\]; give at least one"):
        merge([])


@pytest.mark.parametrize("shards", [1, 3])
def test_gradients_through_shards_equal_those_of_the_whole(shards, draw):
    queries, keys, values = draw(3, 4), draw(10, 4), draw(10, 2)
    bias = torch.zeros(3, 10, dtype=torch.float64)
    bias[0, :4] = -math.inf  # one query has nothing in the first shard
    bias[1] = -math.inf  # and one has nothing anywhere

    def loss(result: ExactAttention) -> torch.Tensor:
        return result.context.square().sum() + result.log_partition[[0, 2]].sum()

    whole = torch.autograd.grad(
        loss(exact_attention(queries, keys, values, bias=bias)), (queries, keys, values)
    )
    parts = [
        PartialAttention.of_result(*exact_attention(queries, k, v, bias=b, block_size=2))
        for k, v, b in zip(
            keys.tensor_split(shards), values.tensor_split(shards), bias.tensor_split(shards, 1), strict=True
        )
    ]
    apart = torch.autograd.grad(loss(merge(parts).finish()), (queries, keys, values))
    for a, b in zip(apart, whole, strict=True):
        torch.testing.assert_close(a, b)


def test_gradients_through_triples_of_logits(draw):
    logits, values = draw(2, 6), draw(6, 3)

    def run(x, v):
        return merge([PartialAttention.of(x[:, :2], v[:2]), PartialAttention.of(x[:, 2:], v[2:])]).finish()

    assert torch.autograd.gradcheck(run, (logits, values))


def test_a_finished_result_without_documents_adds_nothing():
    """Its context is zero and log Z −inf; as one document of weight 1 it would count."""
    empty = PartialAttention.of(
        torch.zeros(1, 0, dtype=torch.float64), torch.zeros(0, 2, dtype=torch.float64)
    )
    nothing = PartialAttention.of_result(*empty.finish())
    assert nothing.sum.tolist() == [0.0]
    assert_equal(nothing.finish(), empty.finish())
    assert nothing.finish().log_partition.tolist() == [-math.inf]
    shard = triple([0.5, -1.0])
    assert_equal(merge([nothing, shard, nothing]).finish(), shard.finish())
    assert_equal(PartialAttention.of_result(*shard.finish()).finish(), shard.finish())
