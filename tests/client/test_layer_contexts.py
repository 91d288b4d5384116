"""Layers opened and used under autocast, inference mode and no_grad; states and biases that both refuse."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
import pytest
import torch
from support.service.service_fakes import WordEncoder
from support.sizes import by_size
from torch import Tensor, nn

import dsearch
from dsearch.client import Client, LocalEngine, RemoteSearch
from dsearch.errors import InvalidRequest

pytestmark = [pytest.mark.server, pytest.mark.usefixtures("unchecked")]

QUERIES = ["river stone", "attention music head", "lamp"]
CONTEXTS: dict[str, Callable[[], AbstractContextManager[Any]]] = {
    "plain": nullcontext,
    "autocast": lambda: torch.autocast("cpu", torch.bfloat16),
    "no_grad": torch.no_grad,
    "inference": torch.inference_mode,
}
GRADIENTS = ("plain", "autocast")
Open = Callable[..., Any]


@pytest.fixture(params=["here", "resident", "http", "http with head"])
def open_any(request: pytest.FixtureRequest, remote: Client, local: LocalEngine) -> Open:
    kind = request.param

    def open_layer(**options: Any) -> Any:
        if kind in ("here", "resident"):
            resident = "float32" if kind == "resident" else None
            return dsearch.open_layer(local.engine, "papers", resident=resident, **options)
        return RemoteSearch(remote, "papers", train_head="head" in kind, **options)

    return open_layer


def states_of() -> Tensor:
    with torch.autocast("cpu", enabled=False):
        return torch.as_tensor(WordEncoder().encode_queries(QUERIES)).requires_grad_()


def by_ids(ids: list[list[str]]) -> Tensor:
    widest = max(map(len, ids))
    return torch.tensor([[[float(id[1:])] for id in line] + [[0.0]] * (widest - len(line)) for line in ids])


@pytest.mark.parametrize("opened", CONTEXTS)
def test_where_a_layer_is_opened_and_used_changes_no_number(open_any: Open, opened: str) -> None:
    wanted = open_any(model="v2", candidates=12)(expected := states_of(), QUERIES)
    wanted.context.square().sum().backward()
    with CONTEXTS[opened]():
        layer = open_any(model="v2", candidates=12)
        copies = [layer, copy.deepcopy(layer)]
    for one, used in itertools.product(copies, CONTEXTS):
        with CONTEXTS[used]():
            found = one(states := states_of(), QUERIES)
        for name in ("context", "weights", "scores"):
            given = getattr(found, name)
            assert given.dtype == torch.float32
            torch.testing.assert_close(given, getattr(wanted, name), rtol=1e-5, atol=1e-5)
        assert found.context.requires_grad == (used in GRADIENTS)
        if used in GRADIENTS:
            one.zero_grad()
            found.context.square().sum().backward()
            torch.testing.assert_close(states.grad, expected.grad, rtol=1e-4, atol=1e-5)
            for parameter in one.parameters():
                assert parameter.requires_grad
            if one.head is not None:
                assert one.head.key_delta.grad.abs().max() > 0
    state = layer.state_dict()
    copies[1].load_state_dict(state)
    for name, tensor in copies[1].state_dict().items():
        assert tensor.equal(state[name])


@pytest.mark.parametrize("values", [by_ids, "i"], ids=["by ids", "a field"])
def test_values_are_pooled_in_full_precision_under_autocast(open_any: Open, values: Any) -> None:
    layer = open_any(candidates=12)
    wanted = layer(states_of(), QUERIES, values=values).context
    seen = list[bool]()

    def watched(ids: list[list[str]]) -> Tensor:
        seen.append(torch.is_autocast_enabled("cpu"))
        return by_ids(ids)

    with CONTEXTS["autocast"]():
        found = layer(states_of(), QUERIES, values=watched if callable(values) else values).context
    torch.testing.assert_close(found, wanted)
    assert seen == [True] * callable(values)  # a network of the caller's keeps the caller's precision


@pytest.mark.parametrize("opened", CONTEXTS)
def test_a_layer_learns_wherever_it_was_opened(open_any: Open, opened: str) -> None:
    with CONTEXTS[opened]():
        layer = open_any(model="v2", candidates=12)
    network = nn.Linear(32, 32)
    optimizer = torch.optim.SGD([*network.parameters(), *layer.parameters()], lr=0.1)
    before = [parameter.detach().clone() for parameter in (*network.parameters(), *layer.parameters())]
    with CONTEXTS["autocast"]():
        loss = layer(network(states_of()), QUERIES).context.square().sum()
    loss.backward()
    optimizer.step()
    moved = [
        not now.equal(then)
        for now, then in zip((*network.parameters(), *layer.parameters()), before, strict=True)
    ]
    assert moved[0]
    assert not list(layer.parameters()) or any(moved[2:])


@pytest.mark.parametrize(
    ("number", "message"),
    [(np.nan, "has NaN or infinity"), (np.inf, "has NaN or infinity"), (1e6, r"has length 5\.657e\+06")],
)
@pytest.mark.parametrize("over", ["candidates", "all"])
def test_states_that_no_index_can_score_are_named_at_once(
    open_any: Open, number: float, message: str, over: str
) -> None:
    layer, states = open_any(candidates=12, over=over), states_of().detach()
    states[1] = number
    with pytest.raises(InvalidRequest, match=rf"query state \[1\] {message}.*set_detect_anomaly"):
        layer(states, QUERIES)
    with pytest.raises(InvalidRequest, match=r"query state \[1, 1\]"):
        layer(torch.stack([states_of(), states]), [QUERIES, QUERIES])


def test_a_compiled_network_names_them_too(local: LocalEngine) -> None:
    layer = dsearch.open_layer(local.engine, "papers", mode="dense")
    # What raises is outside of what is compiled; generating and building C++ takes ten seconds.
    backend = by_size("aot_eager", "inductor")
    compiled = torch.compile(lambda states: layer(states * 2).context.sum(), backend=backend)
    assert torch.isfinite(compiled(states_of()))
    with pytest.raises(InvalidRequest, match="has NaN or infinity"):
        compiled(states_of() * torch.nan)


@pytest.mark.parametrize(
    ("options", "number"),
    [
        ({}, 0.0),
        ({"mode": "dense"}, 0.0),
        ({"mode": "dense"}, 1e-30),  # its squares are 0
        ({"over": "all"}, 0.0),
        ({"score": "cosine", "mode": "dense"}, 0.0),
        ({"hops": 2}, 1e-30),
    ],
    ids=repr,
)
def test_a_row_of_padding_scores_nothing_and_has_gradient_zero(
    open_any: Open, local: LocalEngine, options: dict[str, Any], number: float
) -> None:
    layer = open_any(candidates=12, **options)
    reference = dsearch.open_layer(local.engine, "papers", candidates=12, **options)
    padded = states_of().detach()
    padded[1] = number
    texts = ["river stone", "", "lamp"]
    found = layer(padded.requires_grad_(), texts)
    expected = reference(padded.detach(), texts)
    assert found.ids == expected.ids
    torch.testing.assert_close(found.weights, expected.weights, rtol=1e-4, atol=1e-5)
    assert found.dense[1].abs().max() == 0 or "hops" in options
    (found.context.square().sum() + found.weights.square().sum()).backward()
    assert padded.grad is not None
    assert padded.grad.isfinite().all()
    assert not padded.grad[1].any()
    assert padded.grad[0].any()


@pytest.mark.parametrize("texts", [["river stone", "", " "], ["", "", ""]])
def test_blank_texts_stand_for_none(open_any: Open, local: LocalEngine, texts: list[str]) -> None:
    found = open_any(candidates=12)(states := states_of(), texts)
    expected = dsearch.open_layer(local.engine, "papers", candidates=12)(states_of(), texts)
    assert found.ids == expected.ids
    found.weights.square().sum().backward()
    assert states.grad is not None


def test_a_bias_that_is_not_finite_is_named(open_any: Open, local: LocalEngine) -> None:
    layer = open_any(candidates=12)
    layer.bias = torch.zeros(dsearch.open_layer(local.engine, "papers").snapshot.positions)
    for number in (torch.nan, torch.inf, -torch.inf):
        layer.bias[4] = number
        with pytest.raises(InvalidRequest, match=r"a bias of .* at position 4; use finite numbers, such as"):
            layer(states_of(), QUERIES)


def test_texts_without_vectors_need_words(remote: Client) -> None:
    with pytest.raises(InvalidRequest, match=r"queries\.1 is empty; give at least one word, or vectors"):
        remote.attend("papers", ["river", " "])


class Halved(nn.Module):
    def forward(self, tensor: Tensor) -> Tensor:
        return tensor * 0.5


def test_a_parametrized_head_is_saved_as_it_computes(local: LocalEngine) -> None:
    layer = dsearch.open_layer(local.engine, "papers", model="v2", mode="dense")
    plain = layer.head.own_tensors()
    nn.utils.parametrize.register_parametrization(layer.head, "key_delta", Halved())
    layer(states_of()).context.square().sum().backward()
    own = layer.head.own_tensors()
    assert set(own) == set(plain)
    torch.testing.assert_close(own["key_delta"], plain["key_delta"] / 2)
    assert own["query_delta"].equal(plain["query_delta"])


def test_a_parametrized_head_of_a_server_is_refused(remote: Client) -> None:
    layer = RemoteSearch(remote, "papers", model="v2", mode="dense", train_head=True)
    assert layer.head is not None
    nn.utils.parametrize.register_parametrization(layer.head, "key_delta", Halved())
    with pytest.raises(InvalidRequest, match=r"parametrizations\.key_delta\.original.*open_layer"):
        layer(states_of())


@pytest.mark.parametrize("states", [lambda: states_of().detach().to_sparse(), lambda: states_of().to("meta")])
def test_states_without_dense_numbers_are_refused(open_any: Open, states: Callable[[], Tensor]) -> None:
    with pytest.raises(InvalidRequest, match=r"give a dense tensor with numbers"):
        open_any(mode="dense")(states())
