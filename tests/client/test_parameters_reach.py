"""Each parameter of each operation reaches the request, or the engine of this process, in every way.

What a client asks is replaced by a recorder: a call with the parameter must ask for something else than the
call without it, and have the value that was given.
"""

from __future__ import annotations

import asyncio
import inspect
import json
from typing import Any, get_type_hints

import httpx2
import numpy as np
import pytest
import safetensors.numpy
import torch
from support.cli.recorder import MADE_UP, holds
from support.client.doors import OPERATIONS, Door, arrays, made_up, parameters_of, refused

from dsearch.attention.retrieval.head import Head
from dsearch.client import AsyncClient, Client
from dsearch.errors import Unavailable
from dsearch.jobs import ExampleScores, JudgedQueries, LearningOptions

WAYS: dict[str, list[tuple[str, ...]]] = {
    "search": [("query",), ("vector",)],
    "search_batch": [("queries",), ("vectors",), ("queries", "vectors")],
    "similar": [(), ("query",), ("vector",)],
    "attend": [("queries",), ("vectors",), ("ids",)],
    "vjp": [("queries", "context"), ("vectors", "weights"), ("ids", "scores")],
    "predict": [("queries",), ("vectors",), ("ids",)],
    "delete_many": [("ids",), ("filter",)],
}
"""The operations that are asked in several ways: what each way gives."""
ELSEWHERE = {
    "here: ready": "asks nobody",
    "here: task": "local/test_models.py",
    "here: tasks": "local/test_models.py",
    "here: cancel_task": "local/test_models.py",
    "here: wait_for_task": "local/test_models.py",
    "here: migrate encoder": "local/test_models.py: compared, and refused",
    "here: vjp head": "local/test_search.py: left out of the answer",
    "here: feedback events": "local/test_search.py",
    "here: explore": "of servers, which remember pages",
    "wait_for_task timeout_s": "test_requests.py",
    "wait_for_task every_s": "test_requests.py",
    "wait_for_task on_progress": "test_requests.py",
    "save_model evidence": "by its kinds, below",
    "save_model measure": "by its kinds, below",
    "save_model encoder": "test_saving.py",
}
"""Parameters that reach nothing outside, and why, or the test that they have."""
DEFAULTS = {"operators": True, "promote": True, "tune": True, "memory": True, "head": True}


def elsewhere(door: Door, name: str, parameter: str) -> bool:
    places = (name, f"{name} {parameter}", parameter)
    return any(place in ELSEWHERE or f"{door.way}: {place}" in ELSEWHERE for place in places)


def arrived(without: list[Any], having: list[Any], value: Any) -> bool:
    """The value is in what was asked for, and was not before; a difference is enough of None."""
    return value is None or (holds(having, value) and not holds(without, value))


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("way", ["waits", "here"])
@pytest.mark.parametrize("name", OPERATIONS)
def test_each_parameter_arrives(monkeypatch: pytest.MonkeyPatch, name: str, way: str) -> None:
    door, lost = Door(way, monkeypatch), list[str]()
    parameters = parameters_of(name)
    needed = [parameter for parameter, (_, must) in parameters.items() if must]
    for given in WAYS.get(name, [()]):
        base = {each: made_up(each, parameters[each][0], word="base-")[0] for each in (*needed, *given)}
        if name == "similar":
            base["like"] = ["base-like"]
        plainly = door.calls(name, **base)
        if not plainly:
            assert elsewhere(door, name, ""), f"{name}{given} asks nobody: {door.refusal}"
            continue
        for parameter, (kind, _) in parameters.items():
            if elsewhere(door, name, parameter):
                continue
            value, arrives = made_up(parameter, kind, default=DEFAULTS.get(parameter))
            if arrays(base.get(parameter)) == arrays(value):  # there is one made-up value of this type
                without = door.calls(name, **{each: of for each, of in base.items() if each != parameter})
                having = plainly
            else:
                without, having = plainly, door.calls(name, **{**base, parameter: value})
            if parameter in door.refusal and "unknown" not in door.refusal:
                continue  # does not go with this way, and the message says so
            if having == without or not arrived(without, having, arrives):
                lost.append(f"{parameter}={value!r} with {given}: {door.refusal} {having}")
    assert not lost, "\n".join(lost)


def answered(request: httpx2.Request) -> httpx2.Response:
    """Attention of one query, or its gradients, of the state 3, v9, 7."""
    told = {"ids": [["d"]], "generation": 3, "model": "v9", "sequence": 7, "hops": 1, "temperature": 1.0}
    one = np.ones((1, 1))
    tensors = {"mixture": one[0], **dict.fromkeys(("context", "weights", "scores", "states"), one)}
    if request.url.path.endswith("/attend"):
        del tensors["states"]
    return httpx2.Response(200, content=safetensors.numpy.save(tensors, {"answer": json.dumps(told)}))


@pytest.mark.parametrize("name", ["attend", "vjp"])
def test_each_option_goes_with_every_part_of_many_queries(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setattr("dsearch.client.wire.QUERIES_AT_ONCE", 1)
    door, lost = Door("waits", monkeypatch, answered), list[str]()
    of_queries = {each: [[0.5], [0.25]] for each in ("context", "weights", "scores")} if name == "vjp" else {}
    base: dict[str, Any] = {
        "collection": "c",
        "queries": ["cat", "dog"],
        "vectors": [[0.5], [0.25]],
    } | of_queries
    plainly = door.calls(name, **base)
    assert [holds(request, "cat") for request in plainly] == [True, False]
    assert [dict(request[-1])["vectors"] for request in plainly] == [[[0.5]], [[0.25]]]
    for parameter, (kind, _) in parameters_of(name).items():
        if parameter in base and parameter != "collection":
            continue
        value, arrives = made_up(parameter, kind, default=DEFAULTS.get(parameter))
        having = door.calls(name, **{**base, parameter: value})
        first = name == "attend" and parameter in ("model", "stamp")  # then: the state of the first answer
        for request, without in [*zip(having, plainly, strict=True)][: 1 if first else 2]:
            if request == without or (arrives is not None and not holds(request, arrives)):
                lost.append(f"{parameter}={value!r}: {request}")
    assert not lost, "\n".join(lost)
    if name == "attend":
        (_, later) = door.calls(name, **base, model="v1")
        assert ["stamp", [["generation", 3], ["model", "v9"], ["sequence", 7]]] in later[-1]
        assert not holds(later, "v1")


class Layer(torch.nn.Module):
    """A layer of a server that trained from v3, opened for other versions."""

    def __init__(self, version: str = "v3"):
        super().__init__()
        self.version, self.head = version, Head(4)

    def with_model(self, version: str) -> Layer:
        return Layer(version)

    as_version = with_model


def kept(request: httpx2.Request) -> httpx2.Response:
    """A server that keeps a version at once, and judges it."""
    if request.url.path.endswith("/models"):
        return httpx2.Response(200, json={"live": "v5", "models": []})
    if request.url.path.endswith("/judge"):
        return refused(request)
    task = {"id": "t", "kind": "save", "collection": "c", "state": "done", "created": "", "attempts": 1}
    return httpx2.Response(200, json={**task, "result": {"model": "v9"}})


def scored(layer: Any) -> list[float]:
    """A number for each version."""
    return [float(layer.version.removeprefix("v"))]


KINDS: dict[str, dict[str, Any]] = {
    "none": {},
    "judged queries": {"evidence": JudgedQueries({"q": "cat"}, {"q": {"d": 1.0}})},
    "scores": {"evidence": ExampleScores([0.25], [0.75])},
    "a function": {"evidence": scored},
    "a function once kept": {"evidence": scored, "encode_documents": True},
}


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("way", ["waits", "here"])
@pytest.mark.parametrize("kind", KINDS)
def test_each_option_of_a_saved_layer_arrives_with_each_kind_of_evidence(
    monkeypatch: pytest.MonkeyPatch, kind: str, way: str
) -> None:
    door, lost = Door(way, monkeypatch, kept), list[str]()
    door.outside.save_model.return_value.version = "v9"
    door.outside.summary.return_value = {"model": "v9"}
    door.outside.scores_by.side_effect = lambda evidence, layer: evidence(layer)
    door.outside.engine.collection.return_value.live_model = "v5"
    base: dict[str, Any] = {"collection": "c", "layer": Layer(), **KINDS[kind]}
    plainly = door.calls("save_model", **base)
    assert plainly, door.refusal
    parameters = parameters_of("save_model")
    # The verdict on a version that was kept is a call of its own, the last one.
    of_verdict = {*get_type_hints(LearningOptions)} - {"exclude"}
    place = (
        -1
        if way == "waits"
        else [call[0] for call in plainly].index("judge_version" if kind.endswith("kept") else "save_model")
    )
    for parameter, (annotation, _) in parameters.items():
        if parameter in base or parameter == "encoder":
            continue
        value, arrives = made_up(parameter, annotation, default=DEFAULTS.get(parameter))
        having = door.calls("save_model", **{**base, parameter: value})
        if parameter in door.refusal and "unknown" not in door.refusal:
            continue
        if kind.endswith("kept") and parameter in of_verdict:
            having, without = having[place:], plainly[place:]
        else:
            without = plainly
        if having == without or (arrives is not None and not holds(having, arrives)):
            lost.append(f"{parameter}={value!r} with {kind}: {door.refusal} {having}")
    assert not lost, "\n".join(lost)
    if kind.startswith("a function"):  # of the live version, and of this one
        for score in (5.0, 9.0 if kind.endswith("kept") else 3.0, "v5"):
            assert holds(plainly, score), plainly


@pytest.mark.parametrize("name", ["train", "tune", "evaluate", "save_model"])
def test_tasks_of_this_process_have_the_observer_and_the_device(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    door = Door("here", monkeypatch)
    needed = {each: kind for each, (kind, must) in parameters_of(name).items() if must}
    asked = door.calls(name, **{each: made_up(each, kind)[0] for each, kind in needed.items()})
    assert holds(asked, "_Observer"), asked
    assert holds(asked, f"{MADE_UP}device") or name != "train", asked


@pytest.mark.parametrize("way", ["waits", "awaits"])
@pytest.mark.parametrize("writes", [False, True])
def test_each_setting_of_a_client_reaches_its_requests(way: str, writes: bool) -> None:
    kind: Any = Client if way == "waits" else AsyncClient

    def asked(**settings: Any) -> list[Any]:
        seen: list[Any] = []

        def answer(request: httpx2.Request) -> httpx2.Response:
            headers = {name: request.headers.get(name) for name in ("authorization", "x-timeout-ms")}
            seen.append([str(request.url), headers, request.extensions["timeout"]])
            raise httpx2.ConnectError("refused")

        def call(client: Any) -> Any:
            return client.delete_collection("c") if writes else client.ready()

        async def awaited(client: Any) -> None:
            await call(client)

        client = kind(**{"retries": 0, "transport": httpx2.MockTransport(answer), **settings})
        with pytest.raises(Unavailable):
            call(client) if way == "waits" else asyncio.run(awaited(client))
        return seen

    own = {"url": "https://other.example/below", "api_key": "ds_key", "retries": 1}
    own |= {"timeout_s": 0.375, "write_timeout_s": 0.75}
    assert {*inspect.signature(kind).parameters} == {*own, "transport"}
    plainly = asked()
    for name, value in own.items():
        of_others = name == ("timeout_s" if writes else "write_timeout_s")
        assert (asked(**{name: value}) == plainly) == of_others, name
    limit_s = 0.75 if writes else 0.375
    (url, headers, timeouts), *again = asked(**own)
    assert url.startswith("https://other.example/below/")
    assert headers == {"authorization": "Bearer ds_key", "x-timeout-ms": None if writes else "375"}
    assert set(timeouts.values()) == {limit_s}
    assert again == [[url, headers, timeouts]]
