"""A layer of this process and a layer of a server are one another's drop-in: one contract, run over both."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from support.service.service_fakes import WordEncoder, documents
from torch import Tensor, nn

import dsearch
from dsearch.attention import reinforce_loss, sample
from dsearch.attention.retrieval.head import Head
from dsearch.client import Client, LocalEngine, RemoteSearch
from dsearch.errors import AnswerTooLarge, DimensionMismatch, InvalidRequest

pytestmark = pytest.mark.server

QUERIES = ["river stone", "attention music head", "lamp"]
Open = Callable[..., Any]


@pytest.fixture(params=["here", "http", "in process"])
def open_any(request: pytest.FixtureRequest, remote: Client, local: LocalEngine) -> Open:
    """Opens the collection `papers` as a layer, in each of the three ways."""

    def open_layer(**options: Any) -> Any:
        if request.param == "here":
            return dsearch.open_layer(local.engine, "papers", **options)
        return RemoteSearch(remote if request.param == "http" else local, "papers", **options)

    return open_layer


@pytest.fixture
def reference(local: LocalEngine) -> Open:
    return lambda **options: dsearch.open_layer(local.engine, "papers", **options)


def head_tensors_of(head: Head) -> dict[str, np.ndarray]:
    return {name: tensor.numpy() for name, tensor in head.own_tensors().items()}


def states_of(dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.as_tensor(WordEncoder().encode_queries(QUERIES)).to(dtype).requires_grad_()


def by_ids(ids: list[list[str]]) -> Tensor:
    """A number of each document, padded to the longest."""
    widest = max(1, *map(len, ids))
    return torch.tensor([[[float(id[1:])] for id in line] + [[0.0]] * (widest - len(line)) for line in ids])


def test_outputs_have_the_same_parts(open_any: Open, reference: Open) -> None:
    found, expected = (
        layer(states_of(), QUERIES, with_texts=True)
        for layer in (open_any(candidates=12), reference(candidates=12))
    )
    assert found.ids == expected.ids
    assert found.texts == expected.texts
    assert found.texts[0][0].startswith("Title")
    np.testing.assert_array_equal(found.positions, expected.positions)
    np.testing.assert_array_equal(found.documents, expected.documents)
    for name in ("context", "weights", "scores", "dense", "keyword", "head_weights", "covered_mass"):
        torch.testing.assert_close(getattr(found, name), getattr(expected, name), rtol=1e-5, atol=1e-5)
    assert open_any(candidates=3)(states_of(), QUERIES).texts is None


@pytest.mark.parametrize("over", ["candidates", "all"])
def test_a_field_is_pooled(open_any: Open, reference: Open, over: str) -> None:
    gradients: list[Tensor] = []
    for layer in (open_any(candidates=12, over=over), reference(candidates=12, over=over)):
        found = layer(states := states_of(), QUERIES, values="i")
        assert found.context.shape == (3, 1)
        if over == "candidates":
            wanted = (found.weights * by_ids(found.ids).squeeze(-1)).sum(1, keepdim=True)
            torch.testing.assert_close(found.context, wanted, rtol=1e-4, atol=1e-3)
        found.context.sum().backward()
        gradients.append(states.grad)
    torch.testing.assert_close(*gradients, rtol=1e-3, atol=1e-3)
    assert gradients[0].abs().max() > 0


def test_values_by_position_and_by_id_are_pooled_and_learn(open_any: Open, reference: Open) -> None:
    count = reference().snapshot.positions
    table = torch.arange(float(count)).unsqueeze(1).requires_grad_()
    by_position = open_any(candidates=12)(states_of(), QUERIES, values=table)
    wanted = (by_position.weights * torch.as_tensor(by_position.positions)).sum(1)
    torch.testing.assert_close(by_position.context.squeeze(1), wanted, rtol=1e-4, atol=1e-3)
    by_position.context.sum().backward()
    assert table.grad is not None
    assert float(table.grad.sum()) == pytest.approx(3, abs=1e-4)  # the weights of three queries
    by_id = open_any(candidates=12)(states_of(), QUERIES, values=by_ids)
    of_field = reference(candidates=12)(states_of(), QUERIES, values="i")
    torch.testing.assert_close(by_id.context, of_field.context, rtol=1e-4, atol=1e-3)


def test_values_by_position_are_pooled_over_all_documents(open_any: Open, reference: Open) -> None:
    """Not by those that are listed alone: here 3 of 60."""
    count = reference().snapshot.positions
    gradients: list[Tensor] = []
    for layer in (open_any(candidates=3, over="all", mode="dense"), reference(candidates=60, mode="dense")):
        table = torch.arange(float(count)).unsqueeze(1).requires_grad_()
        found = layer(states := states_of(), values=table)
        found.context.sum().backward()
        gradients += [found.context.detach(), table.grad, states.grad]
    for mine, wanted in zip(gradients[:3], gradients[3:], strict=True):
        torch.testing.assert_close(mine, wanted, rtol=1e-4, atol=1e-4)
    assert (gradients[1] > 0).sum() > 3


def test_values_of_ids_may_end_with_the_last_candidate(open_any: Open, reference: Open) -> None:
    """Beyond a kernel's width there is none: lists of ids are shorter than the weights are wide."""
    options: dict[str, Any] = {"candidates": 12, "mode": "dense", "score": "boxcar", "width": 1.0}
    found = open_any(**options)(states_of(), values=by_ids)
    assert 0 < max(map(len, found.ids)) < found.weights.shape[1]
    torch.testing.assert_close(found.context, reference(**options)(states_of(), values="i").context)
    none = open_any(**options | {"among": []})(torch.stack([states_of()] * 2), values=by_ids)
    assert none.ids == [[[]] * 3] * 2
    assert none.context.shape == (2, 3, 1)
    assert not none.context.any()


def test_hops_follow_the_present_hop_strength(local: LocalEngine, remote: Client) -> None:
    """Without a number of hops: a layer opened with none makes one once its head has a strength, and back."""
    here = dsearch.open_layer(local.engine, "papers", model="v2", candidates=20)
    fixed = dsearch.open_layer(local.engine, "papers", model="v2", candidates=20, hops=1)
    layers: list[Any] = [here, fixed]
    layers += [
        RemoteSearch(client, "papers", model="v2", candidates=20, train_head=True)
        for client in (remote, local)
    ]
    contexts: list[list[Tensor]] = []
    for strength in (0.0, 0.5, 0.0):
        for layer in layers:
            layer.load_state_dict(layer.state_dict() | {"head.hop_strength": torch.tensor(strength)})
            if isinstance(layer, RemoteSearch):
                layer.sync()
        contexts.append([layer(states_of(), QUERIES).context for layer in layers])
        for context in contexts[-1][2:]:
            torch.testing.assert_close(context, contexts[-1][0], rtol=1e-5, atol=1e-5)
        assert here.hops == (2 if strength else 1)
    for layer, (before, moved, after) in zip(layers, zip(*contexts, strict=True), strict=True):
        torch.testing.assert_close(before, after)
        assert moved.equal(before) == (layer is fixed)
    for layer in layers[2:]:
        layer.release()


def test_the_output_projection_is_part_of_the_answer(remote: Client, local: LocalEngine) -> None:
    head = Head(32)
    projection = head.open_output(2)
    name, gradients = "projected", list[Tensor]()
    for client in (remote, local):
        client.create_collection(name)
        client.upsert(name, documents(12))
        client.add_model(name, head_tensors_of(head))
    layers: list[Any] = [dsearch.open_layer(local.engine, name, model="v1")]
    for client in (remote, local):
        layers += [RemoteSearch(client, name, model="v1", train_head=trained) for trained in (True, False)]
    for layer in layers:
        found = layer(states := states_of(), QUERIES)
        wanted = torch.nn.functional.linear(found.context, projection.weight, projection.bias)
        torch.testing.assert_close(found.output, wanted, rtol=1e-5, atol=1e-5)
        found.output.square().sum().backward()
        gradients.append(states.grad)
        if getattr(layer, "head", None) is not None:
            gradients[-1] = torch.cat([gradients[-1], layer.head.output.weight.grad])
        assert layer(states_of(), QUERIES, values="i").output is None
    for one in gradients:
        torch.testing.assert_close(one, gradients[0][: len(one)], rtol=1e-4, atol=1e-5)
    for client in (remote, local):
        client.delete_collection(name)


def test_the_output_projection_is_that_of_the_version_that_answers(local: LocalEngine) -> None:
    """Of a layer that searches with whichever version is live, before and after a promotion."""
    name, head = "projections", Head(32)
    local.create_collection(name)
    local.upsert(name, documents(12))
    layer = RemoteSearch(local, name)
    projection = head.open_output(2)
    for version in ("v1", "v2"):
        with torch.no_grad():
            projection.weight.normal_()
        local.add_model(name, head_tensors_of(head))
        local.promote(name, version)
        gradients = list[Tensor]()
        for each in (layer, dsearch.open_layer(local.engine, name, model=version)):
            each(states := states_of(), QUERIES).output.square().sum().backward()
            gradients.append(states.grad)
        torch.testing.assert_close(*gradients, rtol=1e-4, atol=1e-5)
    local.delete_collection(name)


def test_sequences_are_as_their_steps(open_any: Open) -> None:
    states, texts = states_of(), [QUERIES, QUERIES[::-1]]
    both = torch.stack([states, states.flip(0)])
    layer = open_any(candidates=5)
    found, alone = layer(both, texts, with_texts=True), layer(states, QUERIES, with_texts=True)
    assert found.context.shape == (2, 3, states.shape[1])
    assert found.head_weights.shape[:2] == (2, 3)
    assert found.ids == [alone.ids, alone.ids[::-1]]
    assert found.texts[1] == alone.texts[::-1]
    np.testing.assert_array_equal(found.positions[1], alone.positions[::-1])
    for name in ("context", "weights", "scores"):
        torch.testing.assert_close(getattr(found, name)[0], getattr(alone, name), rtol=1e-5, atol=1e-5)
    found.context.square().sum().backward()
    assert states.grad is not None


def test_transforms_of_functions_are_refused_with_what_to_use(open_any: Open) -> None:
    layer = open_any(candidates=5, mode="dense")
    calls: list[Callable[[], Any]] = [
        lambda: torch.vmap(lambda state: layer(state[None]).context)(states_of()),
        lambda: torch.func.jacrev(lambda states: layer(states).context)(states_of()),
        lambda: torch.func.grad(lambda states: layer(states).context.sum())(states_of()),
    ]
    for call in calls:
        with pytest.raises(InvalidRequest, match="give many states as one batch"):
            call()
    jacobian = torch.autograd.functional.jacobian(lambda states: layer(states).weights[:, 0], states_of()[:2])
    assert jacobian.shape == (2, 2, 32)
    assert not jacobian[0, 1].any()


def test_choices_of_one_document_have_gradient_zero(open_any: Open) -> None:
    found = open_any(candidates=5, pooling="hard", mode="dense")(states := states_of())
    (found.context.sum() + found.weights.sum()).backward()
    assert states.grad is not None
    assert not states.grad.any()


@pytest.mark.parametrize(
    "options",
    [
        {"candidates": 12},
        {"candidates": 12, "over": "all"},
        {"candidates": 12, "hops": 2, "hop_strength": 0.4},
        {"candidates": 12, "score": "gaussian", "width": 0.7, "mode": "dense"},
    ],
    ids=repr,
)
def test_a_bias_of_each_document_is_added_and_learns(
    open_any: Open, reference: Open, options: dict[str, Any]
) -> None:
    count = reference().snapshot.positions
    gradients: list[tuple[Tensor, Tensor]] = []
    outputs: list[Any] = []
    for layer in (open_any(**options), reference(**options), reference(**options)):
        if len(outputs) < 2:
            layer.bias = nn.Parameter(torch.linspace(-0.3, 0.3, count))
            assert layer.bias in {*layer.parameters()}
        outputs.append(layer(states := states_of(), QUERIES))
        if layer.bias is not None:
            (
                outputs[-1].context.square().sum() + (outputs[-1].weights * outputs[-1].scores.exp()).sum()
            ).backward()
            gradients.append((states.grad, layer.bias.grad))
    found, expected, without = outputs
    assert found.ids == expected.ids
    assert found.ids != without.ids
    for name in ("context", "weights", "scores", "dense", "covered_mass"):
        torch.testing.assert_close(getattr(found, name), getattr(expected, name), rtol=1e-4, atol=1e-5)
    for mine, wanted in zip(*gradients, strict=True):
        torch.testing.assert_close(mine, wanted, rtol=1e-3, atol=1e-5)
    assert gradients[0][1].abs().max() > 1e-4


def test_a_bias_of_another_length_is_refused_with_the_number_of_positions(
    open_any: Open, reference: Open
) -> None:
    layer = open_any(candidates=5)
    layer.bias = torch.zeros(3)
    with pytest.raises(DimensionMismatch, match=rf"use \[{reference().snapshot.positions}\]"):
        layer(states_of(), QUERIES)


def test_a_server_reads_no_functions_and_sends_no_tokens(remote: Client) -> None:
    layer = RemoteSearch(remote, "papers")
    for own in ({"embed": lambda positions: positions}, {"tokens": []}):
        with pytest.raises(InvalidRequest, match=r"use dsearch\.open_layer"):
            layer(states_of(), QUERIES, **own)


@pytest.mark.usefixtures("unchecked")
def test_what_is_wrong_is_refused_alike(open_any: Open) -> None:
    layer = open_any(candidates=5)
    with pytest.raises(InvalidRequest, match="has none"):
        layer(states_of(), QUERIES, values="nowhere")
    with pytest.raises(DimensionMismatch, match="a row for each position"):
        layer(states_of(), QUERIES, values=torch.zeros(1, 2))
    with pytest.raises(InvalidRequest, match="padded to the longest"):
        layer(states_of(), QUERIES, values=lambda ids: torch.zeros(1, 1))
    with pytest.raises(DimensionMismatch):
        layer(torch.zeros(2, 3))
    with pytest.raises(InvalidRequest, match="3"):
        layer(states_of(), QUERIES[:1])


def test_rewards_of_ones_own_draws_train_the_head(remote: Client, reference: Open) -> None:
    """REINFORCE by posted rewards: the gradient of the head is that of the layer here, draw by draw."""
    gradients: list[Tensor] = []
    options: dict[str, Any] = {"model": "v2", "candidates": 8}
    for layer in (RemoteSearch(remote, "papers", train_head=True, **options), reference(**options)):
        found = layer(states_of(), QUERIES)
        draws = sample(found.weights.detach(), 16, torch.Generator().manual_seed(1))
        rewards = torch.as_tensor(np.take_along_axis(found.positions, draws.numpy(), 1) % 2).float()
        reinforce_loss(found.weights.clamp_min(1e-9).log(), draws, rewards).mean().backward()
        parameters = list(layer.head.parameters())
        parts = [torch.zeros_like(one) if one.grad is None else one.grad for one in parameters]
        gradients.append(torch.cat([part.flatten() for part in parts]))
    assert gradients[0].abs().max() > 0
    torch.testing.assert_close(*gradients, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("hops", [1, 2])
def test_a_large_request_with_gradients_is_split(
    remote: Client, reference: Open, monkeypatch: pytest.MonkeyPatch, hops: int
) -> None:
    """The server of this test accepts nine queries at once: by slopes and, with hops, by `vjp`."""
    torch.manual_seed(0)
    states = torch.randn(70, 32, requires_grad=True)
    layers = [
        reference(candidates=20, hops=hops, hop_strength=0.3),
        RemoteSearch(remote, "papers", candidates=20, hops=hops, hop_strength=0.3),
    ]
    sizes: list[int] = []
    ask = remote._ask

    def ask_for_few(request: Any) -> Any:
        count = len(json.loads(request.content)["vectors"])
        sizes.append(count)
        if count > 9:
            raise AnswerTooLarge(f"{count} queries; use fewer queries or candidates")
        return ask(request)

    monkeypatch.setattr(remote, "_ask", ask_for_few)
    wanted, given = (torch.autograd.grad(layer(states).context.square().sum(), states)[0] for layer in layers)
    torch.testing.assert_close(given, wanted, rtol=1e-3, atol=1e-4)
    assert sizes[:4] == [64, 32, 16, 8]
    assert sum(size for size in sizes if size <= 9) == 70 * hops

    layers[1].bias = nn.Parameter(torch.zeros(reference().snapshot.positions))
    layers[1](states).weights[:, 0].sum().backward()  # parts of one gradient are added
    whole = reference(candidates=20, hops=hops, hop_strength=0.3)
    whole.bias = nn.Parameter(torch.zeros_like(layers[1].bias))
    whole(states).weights[:, 0].sum().backward()
    torch.testing.assert_close(layers[1].bias.grad, whole.bias.grad, rtol=1e-3, atol=1e-4)

    def refuse(request: Any) -> Any:
        raise AnswerTooLarge("one query is too much; use fewer candidates")

    monkeypatch.setattr(remote, "_ask", refuse)
    with pytest.raises(AnswerTooLarge, match="use fewer candidates"):
        layers[1](states)


def test_a_layer_is_opened_of_whatever_answers_calls(local: LocalEngine, remote: Client) -> None:
    here, there = (dsearch.open_layer(source, "papers", model="v2") for source in (local, remote))
    assert isinstance(there, RemoteSearch)
    expected = dsearch.open_layer(local.engine, "papers", model="v2")
    for layer in (here, there, expected):
        layer(states_of(), QUERIES).context.square().sum().backward()
    for layer in (here, there):
        found, wanted = (one(states_of(), QUERIES) for one in (layer, expected))
        torch.testing.assert_close(found.context, wanted.context, rtol=1e-5, atol=1e-5)
        gradient = layer.head.key_delta.grad
        torch.testing.assert_close(gradient, expected.head.key_delta.grad, rtol=1e-4, atol=1e-6)
    there.release()


def test_what_is_no_source_of_a_layer_is_refused(remote: Client) -> None:
    sources: list[Any] = [dsearch.AsyncClient(), None, 7]
    for source in sources:
        with pytest.raises(InvalidRequest, match=type(source).__name__):
            dsearch.open_layer(source, "papers")
    with pytest.raises(InvalidRequest, match="resident"):
        dsearch.open_layer(remote, "papers", resident="float32")  # type: ignore[call-overload]
    with pytest.raises(InvalidRequest, match="encoder"):
        dsearch.open_layer("index", "papers", encoder=WordEncoder())  # type: ignore[call-overload]
