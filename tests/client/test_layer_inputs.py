"""Inputs that a user tries first: a layer here and one of a server take them alike, or refuse them alike."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from support.service.service_fakes import WordEncoder
from torch import Tensor

import dsearch
from dsearch.client import Client, LocalEngine, RemoteSearch
from dsearch.errors import DimensionMismatch, InvalidRequest

pytestmark = [pytest.mark.server, pytest.mark.usefixtures("unchecked")]

QUERIES = ["river stone", "attention music head", "lamp"]
Open = Callable[..., Any]


@pytest.fixture(params=["here", "http"])
def open_any(request: pytest.FixtureRequest, remote: Client, local: LocalEngine) -> Open:
    def open_layer(name: str = "papers", **options: Any) -> Any:
        if request.param == "here":
            return dsearch.open_layer(local.engine, name, **options)
        return RemoteSearch(remote, name, **options)

    return open_layer


@pytest.fixture
def empty(remote: Client, local: LocalEngine) -> Iterator[str]:
    for api in (remote, local):
        api.create_collection("nothing")
    yield "nothing"
    for api in (remote, local):
        api.delete_collection("nothing")


def states_of() -> Tensor:
    return torch.as_tensor(WordEncoder().encode_queries(QUERIES))


@pytest.mark.parametrize(
    ("states", "kind", "message"),
    [
        (lambda: states_of().tolist(), InvalidRequest, "of type list; give a tensor"),
        (lambda: states_of().numpy(), InvalidRequest, "of type ndarray; give a tensor"),
        (lambda: states_of().long(), InvalidRequest, r"of torch\.int64; give floating-point numbers"),
        (lambda: states_of().to(torch.complex64), InvalidRequest, r"of torch\.complex64"),
        (lambda: states_of()[0], DimensionMismatch, r"of shape \[32\]; .*states\[None\] for one"),
        (lambda: torch.tensor(1.0), DimensionMismatch, r"of shape \[\]"),
        (lambda: states_of()[None, None], DimensionMismatch, r"of shape \[1, 1, 3, 32\]"),
    ],
)
def test_states_that_are_none_are_refused(
    open_any: Open, states: Callable[[], Any], kind: type[Exception], message: str
) -> None:
    with pytest.raises(kind, match=message):
        open_any(mode="dense")(states())


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        ("abc", "texts='abc' is one text"),  # as long as there are states
        ([None, "a", "b"], "None among the texts"),
        (QUERIES[:2], "2 texts for 3 query states"),
    ],
)
def test_texts_that_are_none_are_refused(open_any: Open, texts: Any, message: str) -> None:
    with pytest.raises(InvalidRequest, match=message):
        open_any()(states_of(), texts)


def test_texts_of_sequences_are_lists_of_lists(open_any: Open) -> None:
    layer, states = open_any(candidates=5), states_of()[None]
    assert layer(states, [QUERIES]).ids == [layer(states[0], QUERIES).ids]
    for texts in (QUERIES, [QUERIES[:2]], [QUERIES, QUERIES]):
        with pytest.raises(InvalidRequest, match="not 1 list of 3"):
            layer(states, texts)


def test_no_query_has_an_empty_answer(open_any: Open) -> None:
    layer, states = open_any(), states_of().requires_grad_()
    for found in (layer(states[:0], []), layer(states[:0])):
        assert (found.context.shape, list(found.ids)) == ((0, 32), [])
        found.context.sum().backward()
    assert states.grad is not None
    assert not states.grad.any()
    assert layer(states_of().new_zeros(2, 0, 32)).ids == [[], []]


@pytest.mark.parametrize("over", ["candidates", "all"])
def test_an_empty_collection_has_gradient_zero(open_any: Open, empty: str, over: str) -> None:
    states = states_of().requires_grad_()
    found = open_any(empty, over=over)(states, QUERIES)
    assert found.ids == [[], [], []]
    (found.context.sum() + found.weights.sum()).backward()
    assert states.grad is not None
    assert not states.grad.any()


def test_a_filter_leaves_the_documents_that_match(open_any: Open) -> None:
    layer = open_any(filter={"i": {"lt": 5}}, candidates=20)
    assert {id for line in layer(states_of(), QUERIES).ids for id in line} <= {f"d00{i}" for i in range(5)}
    assert len(layer(states_of(), QUERIES).ids[0]) == 4  # d003 is deleted
    assert open_any(filter={"i": {"lt": -1}})(states_of(), QUERIES).ids == [[], [], []]


def test_a_filter_holds_after_a_refresh_and_by_another_version(local: LocalEngine) -> None:
    layer = dsearch.open_layer(local.engine, "papers", model="v0", filter={"i": {"lt": 5}})
    before = layer(states_of(), QUERIES)
    layer.refresh()
    assert layer(states_of(), QUERIES).ids == before.ids
    assert sorted(layer.with_model("v2")(states_of(), QUERIES).ids[0]) == sorted(before.ids[0])


def test_values_in_numpy_are_pooled_and_others_are_refused(open_any: Open, local: LocalEngine) -> None:
    layer = open_any(candidates=12)
    count = dsearch.open_layer(local.engine, "papers").snapshot.positions
    table = np.arange(2.0 * count, dtype=np.float32).reshape(count, 2)
    found, wanted = (layer(states_of(), QUERIES, values=of) for of in (table, torch.as_tensor(table)))
    assert found.context.equal(wanted.context)
    with pytest.raises(InvalidRequest, match="values of type int; give a field's name"):
        layer(states_of(), QUERIES, values=3)


def test_precisions_of_states(local: LocalEngine) -> None:
    layer = dsearch.open_layer(local.engine, "papers", mode="dense")
    with pytest.raises(
        InvalidRequest, match=r"states of float64, and a layer of float32; call layer\.double"
    ):
        layer(states_of().double())
    for half in (torch.float16, torch.bfloat16):
        assert layer(states_of().to(half)).context.dtype == torch.float32
    double: Any = layer.double()
    assert double(states_of()).context.dtype == torch.float64
    assert double(states_of()).weights.equal(double(states_of().double()).weights)


def test_a_copy_has_its_own_head_over_the_same_documents(remote: Client, local: LocalEngine) -> None:
    layers: list[Any] = [
        dsearch.open_layer(local.engine, "papers", model="v2", mode="dense"),
        RemoteSearch(remote, "papers", model="v2", mode="dense", train_head=True),
    ]
    for layer in layers:
        assert layer.head is not None
        if isinstance(layer, RemoteSearch):
            layer.sync()
        before = layer(states_of())
        copied = copy.deepcopy(layer)
        assert copied.head is not None
        assert copied(states_of()).ids == before.ids
        with torch.no_grad():
            copied.head.key_delta += 0.5
        if isinstance(copied, RemoteSearch):
            copied.sync()
        assert not copied(states_of()).weights.equal(before.weights)
        assert layer(states_of()).weights.equal(before.weights)
        assert {*copied.parameters()}.isdisjoint(layer.parameters())
        if isinstance(copied, RemoteSearch):
            copied.release()  # of the copy's draft alone
            assert layer(states_of()).weights.equal(before.weights)
            layer.release()
    here: Any = copy.deepcopy(layers[0])
    here.refresh()
    assert here(states_of()).ids == layers[0](states_of()).ids


def test_a_list_of_ids_in_place_of_one_is_named(remote: Client) -> None:
    wrong: Any = ["d001"]
    with pytest.raises(InvalidRequest, match="names one thing of a path"):
        remote.delete("papers", wrong)
