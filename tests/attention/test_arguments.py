"""Each argument of each way of attending has the effect that a plain reference has, forward and backward.

The arguments are those of the signatures: a way with a further one needs a value here, and a line where it
changes the reference.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

from dsearch.attention import (
    MultiHeadAttention,
    NadarayaWatson,
    SampledHardAttention,
    attend,
    attend_in_hops,
    exact_attention,
    log_partition,
    top_k,
    top_k_attention,
)


def drawn(*shape: int, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64).requires_grad_()


QUERIES, KEYS, VALUES = drawn(3, 4, seed=0), drawn(7, 4, seed=1), drawn(7, 4, seed=2)
MASK = torch.tensor([[True, False] * 3 + [True], [False, True] * 3 + [True], [True] * 3 + [False] * 4])
BIAS = drawn(3, 7, seed=3)
UNIT = torch.nn.functional.normalize


def distance(queries: Tensor, keys: Tensor) -> Tensor:
    """A score of one's own."""
    return -((queries.unsqueeze(-2) - keys.unsqueeze(-3)) ** 2).sum(-1)


def plain(values: Tensor | None = None, **given: Any) -> Tensor:
    """Softmax attention written out: (logits, weights, context), with whatever was given."""
    score = given.get("score", lambda q, k: q @ k.mT / (1.0 if given["dot"] else 2.0))
    values = KEYS if values is None else values
    queries = QUERIES
    for hop in range(given.get("hops", 1)):
        logits = score(queries, KEYS) / given.get("temperature", 1.0)
        if "bias" in given:
            logits = logits + BIAS
        if "mask" in given:
            logits = logits.masked_fill(~given["mask"], -torch.inf)
        weights = logits.softmax(-1)
        if given.get("pooling") == "uniform":
            weights = torch.ones_like(weights) / weights.shape[-1]
        if hop + 1 < given.get("hops", 1):
            turned = UNIT(queries, dim=-1) + given.get("strength", 0.0) * UNIT(weights @ KEYS, dim=-1)
            queries = queries.norm(dim=-1, keepdim=True) * UNIT(turned, dim=-1)
    return logits.logsumexp(-1) if given.get("partition") else weights @ values


class Way(NamedTuple):
    """One way of attending.

    Attributes:
        call: attends, with the arguments given.
        arguments: a value of each.
        reference: arguments of `plain` that hold without any.
        beside: what goes with each of the arguments.
    """

    function: Callable[..., Any]
    call: Callable[..., Any]
    arguments: Mapping[str, Any]
    reference: Mapping[str, Any]
    beside: Mapping[str, Any] = {}


def biased(start: int, stop: int, bias: Tensor) -> Tensor:
    return bias[:, start:stop]


WAYS = {
    "attend": Way(
        attend,
        lambda **given: attend(QUERIES, KEYS, **given).context,
        {"values": VALUES, "score": distance, "pooling": "uniform", "mask": MASK, "temperature": 0.5},
        {"dot": False},
    ),
    "in hops": Way(
        attend_in_hops,
        lambda **given: attend_in_hops(QUERIES, KEYS, **{"strength": 0.75, **given}).context,
        {"values": VALUES, "hops": 3, "strength": 0.25, "score": distance, "mask": MASK, "temperature": 0.5},
        {"dot": True, "hops": 2, "strength": 0.75},
    ),
    "exact": Way(
        exact_attention,
        lambda **given: exact_attention(QUERIES, KEYS, **given).context,
        {"values": VALUES, "bias": BIAS, "temperature": 0.5},
        {"dot": True},
    ),
    "partition": Way(
        log_partition,
        lambda **given: log_partition(QUERIES, KEYS, **given),
        {"bias": BIAS, "temperature": 0.5},
        {"dot": True, "partition": True},
    ),
    "all candidates": Way(
        top_k_attention,
        lambda **given: top_k_attention(QUERIES, KEYS, k=7, **given).context,
        {"values": VALUES, "temperature": 0.5},
        {"dot": True},
    ),
    "Nadaraya-Watson": Way(
        NadarayaWatson.forward,
        lambda **given: NadarayaWatson("gaussian", 0.5).double()(QUERIES, KEYS, KEYS, **given).context,
        {"mask": MASK},
        {"dot": True, "score": lambda q, k: 2 * distance(q, k)},  # −u²/2, u = |q − k| / 0.5
    ),
}
ELSEWHERE = {
    **{
        f"{way}: block_size": "how much is read at a time" for way in ("exact", "partition", "all candidates")
    },
    **{f"{way}: bias_parameters": "with a function for a bias" for way in ("exact", "partition")},
    **{f"{way}: fused": "blockwise/test_fused.py" for way in ("exact", "partition")},
    "all candidates: k": "all of them",
}


def gradients(output: Tensor) -> tuple[Tensor, ...]:
    weights = torch.linspace(-1, 2, output.numel(), dtype=output.dtype).view_as(output)
    inputs = (QUERIES, KEYS, VALUES, BIAS)
    return torch.autograd.grad((output * weights).sum(), inputs, allow_unused=True, materialize_grads=True)


@pytest.mark.parametrize("name", WAYS)
def test_each_argument_has_the_effect_of_the_reference(name: str) -> None:
    way = WAYS[name]
    lost: list[str] = []
    without = way.call()
    for given in ({}, *({argument: value} for argument, value in way.arguments.items())):
        found, expected = way.call(**given), plain(**{**way.reference, **given})
        if given and torch.allclose(expected, plain(**way.reference)):
            lost.append(f"{given}: the value of the test changes nothing")
        pairs = zip((found, *gradients(found)), (expected, *gradients(expected)), strict=True)
        if not all(torch.allclose(one, other, atol=1e-9) for one, other in pairs):
            same = " as without it" if given and torch.equal(found, without) else ""
            lost.append(f"{[*given] or 'nothing'} given: another result than the reference's{same}")
    assert not lost, f"{name}: " + "\n".join(lost)


@pytest.mark.parametrize("name", WAYS)
def test_no_argument_is_forgotten(name: str) -> None:
    parameters = [*inspect.signature(inspect.unwrap(WAYS[name].function)).parameters]
    fixed = {"self", "queries", "keys"} | ({"values"} if name == "Nadaraya-Watson" else set[str]())
    elsewhere = {one for one in parameters if f"{name}: {one}" in ELSEWHERE}
    assert {*parameters} - fixed == {*WAYS[name].arguments} | elsewhere


@pytest.mark.parametrize("attention", [exact_attention, log_partition])
def test_blocks_are_as_large_as_asked_and_parameters_of_a_bias_learn(attention: Callable[..., Any]) -> None:
    blocks: list[tuple[int, int]] = []

    def noted(start: int, stop: int, bias: Tensor) -> Tensor:
        blocks.append((start, stop))
        return biased(start, stop, bias)

    found = attention(QUERIES, KEYS, bias=noted, bias_parameters=[BIAS], block_size=3)
    assert blocks == [(0, 3), (3, 6), (6, 7)]
    found = found if isinstance(found, Tensor) else found.context
    expected = plain(dot=True, bias=BIAS, partition=attention is log_partition)
    torch.testing.assert_close(gradients(found), gradients(expected))


def test_a_search_reads_blocks_as_large_as_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    module = inspect.getmodule(inspect.unwrap(top_k))
    sizes: list[int] = []
    real = vars(module)["_scores"]

    def noted(queries: Tensor, block: Tensor) -> Tensor:
        sizes.append(len(block))
        return real(queries, block)

    monkeypatch.setattr(module, "_scores", noted)
    top_k(QUERIES, KEYS, 2, block_size=4)
    top_k_attention(QUERIES, KEYS, k=2, block_size=5)
    assert sizes == [4, 3, 5, 2]


@pytest.mark.parametrize("given", [(), (KEYS,), (KEYS, VALUES)], ids=["self", "cross", "with values"])
@pytest.mark.parametrize("masked", [False, True])
def test_several_heads_attend_by_each_of_their_sources(given: tuple[Tensor, ...], masked: bool) -> None:
    module = MultiHeadAttention(6, 2, query_dim=4).double()
    keys = given[0] if given else QUERIES
    values = given[1] if len(given) > 1 else keys
    mask = MASK[:, : len(keys)] if masked else torch.ones(3, len(keys), dtype=torch.bool)
    found = module(QUERIES, *given, **({"mask": mask} if masked else {}))
    heads: list[Tensor] = []
    for head in range(2):
        part = slice(3 * head, 3 * head + 3)
        q, k, v = module.query(QUERIES)[:, part], module.key(keys)[:, part], module.value(values)[:, part]
        weights = (q @ k.T / 3**0.5).masked_fill(~mask, -torch.inf).softmax(-1)
        torch.testing.assert_close(found.weights[head], weights)
        heads.append(weights @ v)
    expected = module.out(torch.cat(heads, -1))
    torch.testing.assert_close(found.context, expected)
    torch.testing.assert_close(gradients(found.context), gradients(expected))


@pytest.mark.parametrize(
    "given",
    [{}, {"score": distance}, {"temperature": 0.5}, {"mask": MASK}],
    ids=lambda given: ", ".join(given) or "nothing",
)
def test_sampled_looks_have_the_weights_of_the_reference(given: dict[str, Any]) -> None:
    built = {name: value for name, value in given.items() if name != "mask"}
    looks = SampledHardAttention(samples=5, **built)(QUERIES, KEYS, VALUES, given.get("mask"))
    one_each = torch.eye(7, dtype=torch.float64)
    expected = plain(values=one_each, dot=False, **given)
    torch.testing.assert_close(looks.log_weights.exp(), expected)
    assert looks.actions.shape == (3, 5)
    assert looks.context.equal(VALUES[looks.actions])
