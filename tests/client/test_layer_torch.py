"""What torch does with modules, on a layer of this process and of a server: it works, or says why not."""

from __future__ import annotations

import copy
import io
import pickle
import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from support.service.service_fakes import WordEncoder
from torch import Tensor, nn
from torch.func import functional_call
from torch.optim.swa_utils import AveragedModel
from torch.utils.checkpoint import checkpoint

import dsearch
from dsearch.client import Client, LocalEngine, RemoteSearch
from dsearch.client.uploads import upload_of
from dsearch.errors import InvalidRequest

pytestmark = [pytest.mark.server, pytest.mark.usefixtures("unchecked")]

QUERIES = ["river stone", "attention music head", "lamp"]
EVERY = 60  # candidates: all, so that a head that moved has the same ones
Open = Callable[..., Any]
Step = Callable[[Any, Tensor], Tensor]


@pytest.fixture(params=["here", "http", "head"])
def open_any(request: pytest.FixtureRequest, remote: Client, local: LocalEngine) -> Open:
    def open_layer(**options: Any) -> Any:
        options = {"model": "v2", "candidates": EVERY, **options}
        if request.param == "here":
            return dsearch.open_layer(local.engine, "papers", **options)
        return RemoteSearch(remote, "papers", train_head=request.param == "head", **options)

    return open_layer


@pytest.fixture(params=["here", "head"])
def open_head(request: pytest.FixtureRequest, remote: Client, local: LocalEngine) -> Open:
    """Layers with parameters."""

    def open_layer(**options: Any) -> Any:
        options = {"model": "v2", "candidates": EVERY, "mode": "dense", **options}
        if request.param == "here":
            return dsearch.open_layer(local.engine, "papers", **options)
        return RemoteSearch(remote, "papers", train_head=True, **options)

    return open_layer


def states_of(dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.as_tensor(WordEncoder().encode_queries(QUERIES)).to(dtype).requires_grad_()


def loss_of(layer: Any, states: Tensor) -> Tensor:
    return layer(states, QUERIES).context.square().sum()


def moved(layer: Any) -> dict[str, Tensor]:
    torch.manual_seed(0)
    return {
        name: (one.detach() + 0.1 * torch.rand_like(one)).requires_grad_()
        for name, one in layer.named_parameters()
    }


def two_checkpoints(reentrant: bool) -> Step:
    return lambda layer, states: checkpoint(
        lambda given: loss_of(layer, given), states, use_reentrant=reentrant
    )


def one_by_one(layer: Any, states: Tensor) -> Tensor:
    losses = [layer(states[at : at + 1], QUERIES[at : at + 1]).context.square().sum() for at in range(3)]
    return torch.stack(losses).sum()


def behind_hooks(layer: Any, states: Tensor) -> Tensor:
    seen: list[str] = []
    handles = [
        layer.register_forward_pre_hook(lambda *_: seen.append("before")),
        layer.register_forward_hook(lambda module, given, out: out._replace(context=out.context * 1.0)),
        layer.register_full_backward_hook(lambda *_: seen.append("backward")),
    ]
    loss = loss_of(layer, states)
    gradient = torch.autograd.grad(loss, states, retain_graph=True)[0]
    assert (seen, bool(gradient.any())) == (["before", "backward"], True)
    for handle in handles:
        handle.remove()
    return loss_of(layer, states)


@pytest.mark.parametrize(
    "step",
    [
        two_checkpoints(True),
        two_checkpoints(False),
        one_by_one,
        behind_hooks,
        lambda layer, states: loss_of(nn.DataParallel(layer), states),
        lambda layer, states: (
            functional_call(layer, dict(layer.named_parameters()), (states, QUERIES)).context.square().sum()
        ),
    ],
    ids=["reentrant checkpoint", "checkpoint", "accumulation", "hooks", "DataParallel", "functional_call"],
)
def test_gradients_are_those_of_a_plain_call(open_any: Open, step: Step) -> None:
    found, wanted = open_any(), open_any()
    step(found, states := states_of()).backward()
    loss_of(wanted, expected := states_of()).backward()
    torch.testing.assert_close(states.grad, expected.grad, rtol=1e-4, atol=1e-6)
    for mine, other in zip(found.parameters(), wanted.parameters(), strict=True):
        if other.grad is None:
            assert mine.grad is None or not mine.grad.any()
        else:
            torch.testing.assert_close(mine.grad, other.grad, rtol=1e-4, atol=1e-5)


def test_threads_share_a_layer(open_any: Open) -> None:
    layer, gradients, errors = open_any(), list[Tensor](), list[BaseException]()
    loss_of(layer, expected := states_of()).backward()

    def work() -> None:
        try:
            for _ in range(3):
                loss_of(layer, states := states_of()).backward()
                gradients.append(states.grad)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert len(gradients) == 6
    for gradient in gradients:
        torch.testing.assert_close(gradient, expected.grad, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64], ids=str)
def test_a_layer_in_another_precision(open_any: Open, dtype: torch.dtype) -> None:
    layer, wanted = open_any().to(dtype), open_any()(states_of(), QUERIES)
    found = layer(states := states_of(dtype), QUERIES)
    found.context.float().square().sum().backward()
    tolerance = {torch.float16: 5e-3, torch.bfloat16: 5e-2, torch.float64: 1e-5}[dtype]
    assert states.grad is not None
    assert (states.grad.dtype, bool(states.grad.isfinite().all())) == (dtype, True)
    mine, other = (dict(zip(out.ids[0], out.weights[0].tolist(), strict=False)) for out in (found, wanted))
    assert {id: mine[id] for id in other} == pytest.approx(other, abs=tolerance)
    if dtype != torch.float64 and isinstance(layer, dsearch.engine.SearchLayer):
        given = str(dtype).removeprefix("torch.")
        with pytest.raises(
            InvalidRequest, match=rf"float32, and a layer of {given}; call layer\.float\(\), or"
        ):
            layer(states_of(), QUERIES)


def test_a_layer_without_numbers_is_refused(open_head: Open) -> None:
    layer = open_head().to("meta")
    with pytest.raises(InvalidRequest, match=r"a layer on the device meta.*open it again"):
        layer(states_of(), QUERIES)


def test_other_tensors_for_a_call(open_head: Open, local: LocalEngine) -> None:
    """A layer of this process takes them; a server has the head that it was handed in, and no other."""
    layer = open_head(hops=1)  # the hop strength moves, too
    given = moved(layer)
    if isinstance(layer, RemoteSearch):
        with pytest.raises(
            InvalidRequest, match=r"other tensors for this call.*functional_call.*call sync\(\)"
        ):
            functional_call(layer, given, (states_of(), QUERIES))
        loss_of(layer, states_of()).backward()  # its own again
        assert layer.head is not None
        layer.load_state_dict({name: one.detach() for name, one in given.items()}, assign=True)
        layer.sync()
    else:
        found = functional_call(layer, given, (states_of(), QUERIES)).context
        found.square().sum().backward()
        assert given["head.key_delta"].grad is not None
        layer.load_state_dict(given)
        torch.testing.assert_close(layer(states_of(), QUERIES).context, found)
    wanted = dsearch.open_layer(local.engine, "papers", model="v2", candidates=EVERY, mode="dense", hops=1)
    wanted.load_state_dict(given)
    expected = wanted(states_of(), QUERIES).context
    torch.testing.assert_close(layer(states_of(), QUERIES).context, expected, rtol=1e-4, atol=1e-5)


def test_an_average_is_searched_and_saved_as_a_layer(open_head: Open) -> None:
    layer = open_head()
    average = AveragedModel(layer)
    average.update_parameters(layer)
    start = {name: one.detach().clone() for name, one in layer.named_parameters()}
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter += 0.1
    average.update_parameters(layer)
    inner: Any = average.module
    for name, one in inner.named_parameters():
        torch.testing.assert_close(one, start[name] + 0.05)
    if isinstance(inner, RemoteSearch):
        inner.sync()
    loss_of(average, states := states_of()).backward()
    assert states.grad is not None
    kept = upload_of(average, None, None)
    assert kept.parent == "v2"
    torch.testing.assert_close(torch.as_tensor(kept.head["key_delta"]), start["head.key_delta"] + 0.05)
    compiled: Any = SimpleNamespace(_orig_mod=layer)  # as torch.compile gives it
    assert set(upload_of(compiled, None, None).head) == set(kept.head)


def test_an_average_becomes_a_version(tmp_path: Any) -> None:
    with dsearch.open(tmp_path / "home", encoder=WordEncoder) as opened:
        papers = opened.engine.create("papers")
        papers.ingest([dsearch.Document(f"d{n}", f"river stone {n}") for n in range(12)])
        layer = dsearch.open_layer(opened.engine, "papers")
        average = AveragedModel(layer)
        with torch.no_grad():
            layer.head.key_delta += 0.5
        average.update_parameters(layer)
        saved = dsearch.save_model(papers, average)  # type: ignore[arg-type]
        assert papers.head(saved.version).key_delta.equal(layer.head.key_delta)
        result = opened.save_model("papers", average).result
        assert result is not None
        assert papers.head(result["trained"]).key_delta.equal(layer.head.key_delta)


def test_frozen_parameters_stay(open_head: Open) -> None:
    layer = open_head()
    layer.head.query_delta.requires_grad_(False) if hasattr(layer.head, "query_delta") else None
    optimizer = torch.optim.Adam(
        [
            {"params": [layer.head.key_delta], "lr": 0.1},
            {"params": [one for one in layer.parameters() if one is not layer.head.key_delta], "lr": 0.0},
        ]
    )
    before = {name: one.detach().clone() for name, one in layer.named_parameters()}
    loss_of(layer, states_of()).backward()
    optimizer.step()
    after = dict(layer.named_parameters())
    assert not after["head.key_delta"].equal(before["head.key_delta"])
    assert after["head.value_delta"].equal(before["head.value_delta"])
    optimizer.zero_grad(set_to_none=True)
    layer.requires_grad_(False)  # in the middle of a training
    loss_of(layer, states := states_of()).backward()
    assert states.grad is not None
    assert all(one.grad is None for one in layer.parameters())
    if not isinstance(layer, RemoteSearch):
        parameter = layer.head.key_delta
        layer.refresh()
        assert layer.head.key_delta is parameter
        assert optimizer.state[parameter]["step"] == 1  # the optimizer goes on


def test_states_are_loaded_strictly_or_not(open_head: Open) -> None:
    layer = open_head()
    state = layer.state_dict()
    kept = copy.deepcopy(state)
    first, *others = state
    assert layer.load_state_dict({**state, "more": torch.ones(1)}, strict=False).unexpected_keys == ["more"]
    missing = layer.load_state_dict({name: state[name] for name in others}, strict=False).missing_keys
    assert missing == [first]
    wrong: list[tuple[dict[str, Tensor], str]] = [
        ({**state, "more": torch.ones(1)}, "Unexpected key"),
        ({name: state[name] for name in others}, "Missing key"),
        ({**state, first: torch.ones(2)}, "size mismatch"),
    ]
    for given, message in wrong:
        with pytest.raises(RuntimeError, match=message):
            layer.load_state_dict(given)
    for name, one in layer.state_dict().items():
        assert one.equal(kept[name])


def test_what_has_no_graph_says_so(open_any: Open) -> None:
    layer, states = open_any(mode="dense"), states_of().detach()
    network = nn.Sequential(nn.Linear(32, 32), layer)
    calls: list[Callable[[], Any]] = [
        lambda: torch.jit.script(layer),
        lambda: torch.jit.script(network),
        lambda: torch.jit.trace(layer, (states,)),
        lambda: torch.jit.trace(lambda given: layer(given).context, (states,)),
        lambda: torch.export.export(layer, (states,)),
    ]
    for call in calls:
        with pytest.raises(InvalidRequest, match=r"inside torch\.export or torch\.jit.*export the networks"):
            call()
    loss_of(open_any(), states_of()).backward()


def test_a_layer_is_not_pickled(open_any: Open) -> None:
    layer = open_any()
    for call in (lambda: pickle.dumps(layer), lambda: torch.save(layer, io.BytesIO())):
        with pytest.raises(TypeError, match=r"not pickled.*keep layer\.state_dict\(\)"):
            call()
    file = io.BytesIO()
    torch.save(layer.state_dict(), file)
    file.seek(0)
    open_any().load_state_dict(torch.load(file, weights_only=True))
