"""Hops by their formula, and over fixed keys."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from dsearch.attention.pooling import attend
from dsearch.attention.retrieval.hops import attend_in_hops, refine
from dsearch.errors import InvalidRequest


def drawn(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


QUERIES, KEYS = drawn(2, 3, 5), drawn(2, 6, 5, seed=1)


def unit(vectors: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.normalize(vectors, dim=-1)


def test_a_query_turns_towards_what_it_attends_to_and_keeps_its_length() -> None:
    weights = drawn(2, 3, 6, seed=2).softmax(-1)
    turned = refine(QUERIES, weights, KEYS, 0.7)
    expected = QUERIES.norm(dim=-1, keepdim=True) * unit(unit(QUERIES) + 0.7 * unit(weights @ KEYS))
    torch.testing.assert_close(turned, expected)
    strength = torch.tensor([[[0.0], [0.7], [2.0]]], dtype=torch.float64)  # one a head
    each = refine(QUERIES, weights, KEYS, strength)
    assert torch.equal(each[:, 0], QUERIES[:, 0])
    torch.testing.assert_close(each[:, 1], expected[:, 1])


def test_no_weights_and_no_strength_leave_a_query_as_it_is() -> None:
    weights = drawn(2, 3, 6, seed=2).softmax(-1)
    strength = torch.zeros((), dtype=torch.float64, requires_grad=True)
    still = refine(QUERIES, weights, KEYS, strength)
    assert torch.equal(still, QUERIES)
    still.sum().backward()
    assert strength.grad  # hops are learned from 0
    torch.testing.assert_close(refine(QUERIES, torch.zeros_like(weights), KEYS, 0.7), QUERIES)


OPTIONS: list[dict[str, Any]] = [
    {},
    {"mask": torch.tensor([True, False, True, True, False, True])},
    {"temperature": 0.3},
    {"score": "cosine"},
]


@pytest.mark.parametrize("options", OPTIONS, ids=["plain", "mask", "temperature", "score"])
@pytest.mark.parametrize("hops", [1, 2, 3])
def test_every_hop_attends_with_the_same_options(hops: int, options: dict[str, Any]) -> None:
    queries, values = QUERIES, drawn(2, 6, 4, seed=3)
    written = {"score": "dot", **options}  # its default, which is not that of `attend`
    for _ in range(hops - 1):
        queries = refine(queries, attend(queries, KEYS, **written).weights, KEYS, 0.5)
    expected = attend(queries, KEYS, values, **written)
    found = attend_in_hops(QUERIES, KEYS, values, hops=hops, strength=0.5, **options)
    torch.testing.assert_close(found.weights, expected.weights)
    torch.testing.assert_close(found.context, expected.context)


def test_two_hops_of_no_strength_are_the_default() -> None:
    found = attend_in_hops(QUERIES, KEYS)
    assert torch.equal(found.weights, attend(QUERIES, KEYS, score="dot").weights)
    assert not torch.equal(attend_in_hops(QUERIES, KEYS, strength=1.0).weights, found.weights)
    for score in ("dot", "scaled_dot_product", "cosine"):  # one hop is `attend` by the same score
        plain = attend(QUERIES, KEYS, score=score).weights
        assert torch.equal(attend_in_hops(QUERIES, KEYS, hops=1, score=score).weights, plain)
    assert torch.equal(attend_in_hops(QUERIES, KEYS, hops=1).weights, found.weights)
    with pytest.raises(InvalidRequest, match="hops=0; use 1 for plain attention"):
        attend_in_hops(QUERIES, KEYS, hops=0)
