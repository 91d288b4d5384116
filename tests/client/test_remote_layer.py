"""A collection of a live server as a layer: outputs and gradients are those of the local layer."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch
from support.service.service_fakes import WordEncoder, documents

from dsearch.client import Client, LocalEngine, RemoteSearch
from dsearch.engine import SearchLayer
from dsearch.errors import DimensionMismatch, Gone, InvalidRequest, ModelNotFound

pytestmark = pytest.mark.server

QUERIES = ["river stone", "attention music head", "lamp"]


def layer_of(
    local: LocalEngine, model: str, dtype: torch.dtype, name: str = "papers", **options: Any
) -> SearchLayer:
    collection = local.engine.collection(name)
    head = copy.deepcopy(collection.head(model)).to(dtype)
    return SearchLayer(collection.snapshot, head, **options)


def states_of(dtype: torch.dtype = torch.float64) -> torch.Tensor:
    torch.manual_seed(1)
    states = torch.as_tensor(WordEncoder().encode_queries(QUERIES)).to(dtype)
    return (states + 0.05 * torch.randn_like(states)).requires_grad_()


def losses(found: Any) -> torch.Tensor:
    """Something of every output that has a gradient."""
    generator = torch.Generator().manual_seed(2)
    weights, scores = found.weights, found.scores
    scores = scores.masked_fill(scores == -torch.inf, 0.0)
    loss = (found.context * torch.randn(found.context.shape, generator=generator)).sum()
    loss = loss + (weights * torch.randn(weights.shape, generator=generator)).sum()
    return loss + (scores * torch.randn(scores.shape, generator=generator)).sum()


@pytest.mark.parametrize(
    ("model", "options", "words"),
    [
        ("v1", {}, True),
        ("v2", {"mode": "dense"}, False),
        ("v2", {"score": "gaussian", "width": 0.9}, True),
        ("v3", {}, True),
        ("v1", {"hops": 2, "hop_strength": 0.7}, False),
    ],
)
def test_gradcheck_through_the_wire(remote: Client, model: str, options: dict[str, Any], words: bool) -> None:
    layer = RemoteSearch(remote, "papers", model=model, **options)
    directions = torch.randn(32, 4, dtype=torch.float64)
    states = states_of()[:2].detach()
    texts = QUERIES[:2] if words else None

    def through(part: torch.Tensor) -> tuple[torch.Tensor, ...]:
        found = layer(states + part @ directions.T, texts)
        return found.context, found.weights, found.scores

    part = torch.zeros(2, 4, dtype=torch.float64, requires_grad=True)
    # Where each backward is a request, two in random directions stand for those in all.
    fast = model == "v3" or "hops" in options
    assert torch.autograd.gradcheck(through, (part,), eps=1e-6, atol=1e-5, rtol=1e-4, fast_mode=fast)


def test_the_gradient_to_the_states_needs_no_second_request(remote: Client) -> None:
    asked: list[str] = []

    class Counting(Client):
        def _ask(self, request: Any) -> Any:
            asked.append(request.path)
            return super()._ask(request)

    with Counting(remote.url) as client:
        RemoteSearch(client, "papers", model="v1")(states_of(), QUERIES).context.sum().backward()
        assert [path.rpartition("/")[2] for path in asked] == ["attend"]
        RemoteSearch(client, "papers", model="v3")(states_of(), QUERIES).context.sum().backward()
        assert [path.rpartition("/")[2] for path in asked[1:]] == ["attend", "vjp"]
        with torch.no_grad():
            RemoteSearch(client, "papers", model="v3")(states_of(), QUERIES)
        assert len(asked) == 4


@pytest.mark.parametrize("model", ["v0", "v1"])
@pytest.mark.parametrize("train_head", [False, True])
def test_heads_take_passages_of_their_own(
    remote: Client, local: LocalEngine, model: str, train_head: bool
) -> None:
    layer = RemoteSearch(remote, "long", model=model, train_head=train_head)
    found = layer(states := states_of(), QUERIES)
    expected = layer_of(local, model, torch.float64, "long")(expected_states := states_of(), QUERIES)
    torch.testing.assert_close(found.context, expected.context, rtol=1e-9, atol=1e-9)
    losses(found).backward()
    losses(expected).backward()
    torch.testing.assert_close(states.grad, expected_states.grad, rtol=1e-9, atol=1e-9)
    keys = remote.attend("long", QUERIES, model=model, include=["keys"]).keys
    assert keys is not None
    assert keys.ndim == (3 if model == "v0" else 4)
    many = remote.attend("long", QUERIES * 30, model=model, include=["keys"], candidates=3).keys
    assert many is not None
    assert len(many) == 90


def test_a_head_trains_here_and_answers_there(remote: Client) -> None:
    name = "trained"
    remote.create_collection(name)
    remote.upsert(name, documents(40))
    layer = RemoteSearch(remote, name, train_head=True, mode="dense")
    states = torch.as_tensor(WordEncoder().encode_queries(QUERIES))
    target = torch.nn.functional.normalize(torch.randn(3, 32), dim=-1)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.5)
    reached = []
    for _ in range(4):
        loss = (layer(states).context - target).square().sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        reached.append(loss.item())
        layer.publish({"loss": loss.item()}, promote=True)
    assert reached[-1] < reached[0]
    models = remote.models(name)
    assert (models.live, layer.model, len(models.models)) == ("v4", "v4", 5)
    assert models.models[-1].parent == "v3"
    assert models.models[-1].record["uploaded"] == {"loss": pytest.approx(reached[-1])}
    assert layer.head is not None
    np.testing.assert_array_equal(remote.head(name, "v4")["key_delta"], layer.head.key_delta.detach())
    remote.delete_collection(name)


def test_a_gradient_is_of_the_head_that_answered(remote: Client) -> None:
    layer = RemoteSearch(remote, "papers", model="v1", train_head=True, candidates=20)

    def gradient(step: bool) -> torch.Tensor:
        found = layer(states := states_of(torch.float32))
        if step:  # as of several losses, of which one was computed before
            with torch.no_grad():
                for parameter in layer.parameters():
                    parameter.add_(0.2)
            layer.sync()
        losses(found).backward()
        assert states.grad is not None
        return states.grad

    of_version = gradient(step=False)
    torch.testing.assert_close(gradient(step=True), of_version)
    of_draft = gradient(step=False)
    torch.testing.assert_close(gradient(step=True), of_draft)
    assert (of_draft - of_version).abs().max() > 1e-3
    layer.release()


def test_a_draft_answers_with_what_its_version_has(remote: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    parents: list[Any] = []
    draft = remote.draft_head

    def noted(*of: Any, **options: Any) -> Any:
        parents.append(options.get("parent"))
        return draft(*of, **options)

    monkeypatch.setattr(remote, "draft_head", noted)
    layer = RemoteSearch(remote, "papers", model="v1", train_head=True, candidates=20)
    layer.sync()
    layer(states_of(torch.float32))
    layer.release()
    assert parents == ["v1"]
    assert remote.models("papers").live != "v1"  # what a draft without a parent would be of


@pytest.mark.parametrize("side", ["remote", "local"])
def test_what_a_head_has_beside_its_projections_comes_and_goes_with_it(
    remote: Client, local: LocalEngine, side: str
) -> None:
    client = remote if side == "remote" else local
    name = f"whole-{side}"
    client.create_collection(name)
    client.upsert(name, documents(40))
    tensors = client.head(name, "v0")
    tensors["bm25"] = np.array([0.9, 0.4], np.float32)
    version = client.add_model(name, tensors).model
    layer = RemoteSearch(client, name, model=version, train_head=True)
    published = client.head(name, layer.publish())
    assert published.keys() == tensors.keys()
    for part, tensor in tensors.items():
        np.testing.assert_array_equal(published[part], tensor)
    client.delete_collection(name)


def test_a_state_that_went_meanwhile_is_told_in_the_backward(remote: Client) -> None:
    remote.create_collection("moving")
    remote.upsert("moving", documents(30))
    layer = RemoteSearch(remote, "moving", train_head=True)
    found = layer(states_of(torch.float32))
    for i in range(10):
        remote.delete("moving", f"d{i:03d}")
    with pytest.raises(Gone, match="ask again"):
        found.context.sum().backward()
    layer(states_of(torch.float32)).context.sum().backward()
    slopes = RemoteSearch(remote, "moving")
    found = slopes(states := states_of(torch.float32))
    for i in range(10, 20):
        remote.delete("moving", f"d{i:03d}")
    found.context.sum().backward()  # it has all it needs
    assert states.grad is not None
    remote.delete_collection("moving")


def test_what_cannot_be_is_refused(remote: Client) -> None:
    with pytest.raises(DimensionMismatch):
        RemoteSearch(remote, "papers")(torch.randn(2, 5))
    with pytest.raises(InvalidRequest, match="3 texts for 2 query states"):
        RemoteSearch(remote, "papers")(torch.randn(2, 32), QUERIES)
    with pytest.raises(ModelNotFound):
        RemoteSearch(remote, "papers", model="v77", train_head=True)
    with pytest.raises(InvalidRequest, match="train_head=True"):
        RemoteSearch(remote, "papers").publish()
