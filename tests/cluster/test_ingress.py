"""Settings of a cluster's ingress reach the application and its encoder."""

from __future__ import annotations

import asyncio
import sys
from dataclasses import asdict, fields, replace
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest
import torch

import dsearch.cluster.collection
import dsearch.service
import dsearch.service.tasks.jobs
from dsearch.cluster.coordinator import READY_S
from dsearch.cluster.ingress import EncodeRequest, EncoderReplica, Ingress, IngressSettings, deploy
from dsearch.cluster.search import search as query_encoder
from dsearch.cluster.search.search import EncodedQueries
from dsearch.errors import CollectionNotFound, EncoderUnavailable, InvalidRequest, Unavailable

SETTINGS = IngressSettings(
    home="/home",
    encoder="some/model",
    device="cuda",
    dtype="bfloat16",
    backend="openvino",
    cache="/cache",
    threads=3,
    hosts=("search.example",),
    origins=("https://site.example",),
    require_key=True,
    query_timeout_s=7.0,
    next_encoder="other/model",
    explore=0.125,
    log_level="debug",
    log_format="json",
)


@pytest.fixture
def reached(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What was called, with what it was given."""
    given: dict[str, Any] = {}

    def record(name: str, result: Any = None) -> Any:
        def call(*args: Any, **options: Any) -> Any:
            given[name] = (args, options)
            return result

        return call

    class _Engine:
        encoder = "encoder"
        next_encoder = "next"

    monkeypatch.setattr("dsearch.threads.set_threads", record("threads"))
    monkeypatch.setattr("dsearch.service.telemetry.set_up_logs", record("logs"))
    monkeypatch.setattr(dsearch.service, "create_app", record("app", "app"))
    monkeypatch.setattr(dsearch.cluster.collection, "ClusterEngine", record("engine", "engine"))
    monkeypatch.setattr(dsearch.service.tasks.jobs, "open_readonly", record("open", _Engine()))
    return given


OPENED = ((Path("/home"), "some/model", "cuda", "bfloat16", "openvino", "other/model", "/cache"), {})
LOGS = (("debug", "json"), {})


def test_each_setting_reaches_the_application(reached: dict[str, Any]) -> None:
    ingress = Ingress(asdict(SETTINGS), encoders=None)
    assert ingress.__serve_build_asgi_app__() == "app"
    assert reached["threads"] == ((3,), {})
    assert reached["logs"] == LOGS
    (engine,), options = reached["app"]
    open_engine = options.pop("open_engine")
    assert engine == "engine"
    assert options == {
        "hosts": ("search.example",),
        "origins": ("https://site.example",),
        "require_key": True,
        "query_timeout_s": 7.0,
        "explore": 0.125,
        "device": "cuda",
    }
    open_engine()
    assert reached.pop("open") == OPENED
    (home,), of_engine = reached["engine"]
    assert home == "/home"
    assert of_engine["encoder"]() == "encoder"
    assert reached["open"] == OPENED
    assert of_engine["next_encoder"]() == "next"
    assert of_engine["encode"] == ingress._encode
    assert of_engine["await_encoder"] == ingress._await_encoder


def test_each_setting_reaches_a_replica_of_the_encoder(reached: dict[str, Any]) -> None:
    EncoderReplica(asdict(SETTINGS))
    assert reached == {"threads": ((3,), {}), "logs": LOGS, "open": OPENED}


def test_settings_have_the_defaults_of_a_server_on_this_machine() -> None:
    assert asdict(IngressSettings("/home", "some/model")) == {
        "home": "/home",
        "encoder": "some/model",
        "device": "cpu",
        "dtype": None,
        "backend": "auto",
        "cache": None,
        "threads": 1,
        "hosts": ("127.0.0.1", "localhost", "[::1]"),
        "origins": (),
        "require_key": False,
        "query_timeout_s": 2.0,
        "next_encoder": None,
        "explore": 0.0,
        "log_level": "warning",
        "log_format": "text",
    }


class _Remote:
    """A handle of Ray Serve whose calls give this."""

    def __init__(self, result: Any):
        self._result = result
        self.waits: list[Any] = []

    def remote(self, *_: Any) -> _Remote:
        return self

    def result(self, timeout_s: float | None = None) -> Any:
        self.waits.append(timeout_s)
        if isinstance(self._result, TimeoutError):
            raise self._result
        return self._result


def ingress(**calls: _Remote) -> Ingress:
    return Ingress(asdict(SETTINGS), type("Encoders", (), calls))


def test_an_encoder_is_waited_for_no_longer_than_it_takes_to_be_ready() -> None:
    ready = _Remote(True)
    ingress(ready=ready)._await_encoder()
    assert ready.waits == [READY_S]
    with pytest.raises(EncoderUnavailable, match=f"no replica of the encoder was ready in {READY_S:g} s"):
        ingress(ready=_Remote(TimeoutError()))._await_encoder()


def test_queries_that_wait_together_get_the_states_of_their_own(
    reached: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    batches: list[tuple[list[str], str, str, bool]] = []

    def encoded(_: Any, texts: list[str], mode: str, model: str, tokens: bool) -> EncodedQueries:
        batches.append((texts, mode, model, tokens))
        if "unknown" in texts:
            raise CollectionNotFound("gone")
        states = torch.tensor([[float(len(text))] for text in texts])
        return EncodedQueries(states, [_tokens_of(text) for text in texts] if tokens else None)

    monkeypatch.setattr(query_encoder, "encode_queries", encoded)
    replica = EncoderReplica(asdict(SETTINGS))
    replica._engine = SimpleNamespace(collection=lambda name: name)  # type: ignore[assignment]
    asked = [
        EncodeRequest("papers", ["a", "bb"], "dense", "v1", True),
        EncodeRequest("papers", ["ccc"], "dense", "v0", False),
        EncodeRequest("papers", ["dddd"], "dense", "v1", True),
        EncodeRequest("notes", ["unknown"], "dense", "v1", True),
        EncodeRequest("papers", ["eeeee"], "dense", "v1", False),
        EncodeRequest("notes", ["others"], "dense", "v1", True),
    ]
    first, other, third, failed, plain, beside = asyncio.run(replica.encode(asked))
    states = [answer[0].tolist() for answer in (first, other, third, plain)]
    assert states == [[[1], [2]], [[3]], [[4]], [[5]]]
    assert [[token[0][0] for token in answer[1]] for answer in (first, third)] == [["a", "bb"], ["dddd"]]
    assert other[1] is plain[1] is None
    assert isinstance(failed, CollectionNotFound)
    assert beside is failed
    assert batches[0] == (["a", "bb", "dddd"], "dense", "v1", True)
    assert len(batches) == 4


OTHERS = {"collection": "notes", "mode": "keyword", "model": "v2", "tokens": False}


@pytest.mark.parametrize("field", OTHERS)
def test_queries_that_differ_in_anything_but_their_texts_are_encoded_apart(
    reached: dict[str, Any], monkeypatch: pytest.MonkeyPatch, field: str
) -> None:
    asked: list[dict[str, Any]] = []

    def encoded(collection: Any, texts: list[str], mode: Any, model: str, tokens: bool) -> EncodedQueries:
        asked.append({"collection": collection, "mode": mode, "model": model, "tokens": tokens})
        return EncodedQueries(torch.ones(len(texts), 1), None)

    assert {*OTHERS, "texts"} == {each.name for each in fields(EncodeRequest)}
    monkeypatch.setattr(query_encoder, "encode_queries", encoded)
    replica = EncoderReplica(asdict(SETTINGS))
    replica._engine = SimpleNamespace(collection=lambda name: name)  # type: ignore[assignment]
    one = EncodeRequest("papers", ["a"], "dense", "v1", True)
    other = replace(one, **{field: OTHERS[field]})
    asyncio.run(replica.encode([one, other, one]))
    expected = [{name: getattr(request, name) for name in OTHERS} for request in (one, other)]
    assert asked == expected


def test_all_of_a_request_goes_to_the_encoder() -> None:
    sent: list[EncodeRequest] = []

    class Encoding(_Remote):
        def remote(self, *given: Any) -> _Remote:
            sent.extend(given)
            return self

    encode = Encoding((torch.ones(1, 2).numpy(), None))
    ingress(encode=encode)._encode("papers", ("cat",), "dense", "v3", True)
    assert sent == [EncodeRequest("papers", ["cat"], "dense", "v3", True)]
    asked: list[tuple[Any, ...]] = []
    local: Any = MagicMock()
    local.name = "papers"
    nothing: Any = None
    collection = dsearch.cluster.collection.ShardedCollection(
        local, nothing, lambda *given: asked.append(given)
    )
    collection._encode(["cat"], "keyword", "v3", True)
    assert asked == [("papers", ["cat"], "keyword", "v3", True)]


def _tokens_of(text: str) -> Any:
    return [[text], [(0, len(text))]]


def test_an_error_of_the_encoder_is_that_of_the_search() -> None:
    with pytest.raises(CollectionNotFound, match="gone"):
        ingress(encode=_Remote(CollectionNotFound("gone")))._encode("papers", ["cat"], "dense", "v0", False)


def test_what_others_can_reach_needs_a_key(tmp_path: Path) -> None:
    pytest.importorskip("ray.serve")
    settings = IngressSettings(str(tmp_path), "some/model", require_key=True)
    with pytest.raises(
        InvalidRequest, match=r"^host=0\.0\.0\.0 can be reached from other machines"
    ) as refused:
        deploy(settings, host="0.0.0.0", port=1)
    assert refused.value.hint is not None
    assert "keys create" in str(refused.value.hint)


def test_each_number_of_a_deployment_reaches_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    deployed: dict[str, dict[str, Any]] = {}
    started: list[Any] = []

    def deployment(kind: Any, *, name: str, **options: Any) -> Any:
        deployed[name] = options
        return SimpleNamespace(bind=lambda *given: (name, *given))

    serve: Any = SimpleNamespace(
        batch=lambda **_: lambda method: method,
        deployment=deployment,
        ingress=lambda: lambda kind: kind,
        start=lambda **options: started.append(options["http_options"]),
        run=lambda bound, **options: started.append(bound),
    )
    ray = ModuleType("ray")
    ray.serve = serve  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "ray", ray)
    monkeypatch.setattr("dsearch.cluster.coordinator.free_share", lambda copies: copies / 100)
    reached: list[str] = []
    monkeypatch.setattr("dsearch.cluster.connection.answers", lambda address: bool(reached.append(address)))
    settings = replace(SETTINGS, require_key=False)
    for host, here in (("0.0.0.0", "127.0.0.1"), ("::", "::1"), ("10.0.0.7", "10.0.0.7")):
        with pytest.raises(Unavailable, match="runs in this cluster at another address than"):
            deploy(settings, host=host, port=7, ingresses=2, encoders=3)
        assert reached.pop() == f"{here}:7"
    assert {name: options["num_replicas"] for name, options in deployed.items()} == {
        "ingress": 2,
        "encoder": 3,
    }
    each = [options["ray_actor_options"] for options in deployed.values()]
    assert each == [{"num_cpus": 0.05}] * 2  # all of them share what is free
    assert started[-2] == {"host": "10.0.0.7", "port": 7}
    assert started[-1] == ("ingress", asdict(settings), ("encoder", asdict(settings)))
