"""Each field of each request reaches what does the work, in each way that its route has.

The routes, their schemas and fields are taken from the declarations. A request with a field must call
something else than the request without it, and these calls must have the value that was given.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple, get_args, get_type_hints

import numpy as np
import pytest
from fastapi import Request
from fastapi.params import Query
from pydantic import BaseModel, create_model
from safetensors.numpy import load, save
from starlette.testclient import TestClient
from support.cli.recorder import holds
from support.service.apps import patient_app
from support.service.reach import Call, changes, leaves, models_in, record_work
from support.service.service_fakes import DIMENSION, ORIGIN, WordEncoder, documents

from dsearch.declared import options_of
from dsearch.engine import SearchEngine, head_bytes
from dsearch.engine.search import gradients
from dsearch.jobs import TrainingJob
from dsearch.results import Gradients
from dsearch.service import feedback as feedback_module
from dsearch.service.app import declared_routes
from dsearch.service.auth.keys import ApiKeys
from dsearch.service.schemas.search import DocumentGiven
from dsearch.service.schemas.tasks import SaveRequest
from dsearch.service.tasks.manager import TaskWork
from dsearch.service.wire.json import TENSORS
from dsearch.service.wire.requests import RequestModel
from dsearch.types import Stamp

HERE = "/v1/collections/{collection}"
QUERY, OTHER = "given-query", "given-other"
VECTOR = [0.25, 0.75, *[0.0] * (DIMENSION - 2)]
EXAMPLE, NEXT = "d001", "d002"
ID = "0" * 32
GRADED: dict[str, Any] = {"q1": {EXAMPLE: 0.625}, "q2": {NEXT: 0.625}}
JUDGED: dict[str, Any] = {"queries": {"q1": QUERY, "q2": OTHER}, "judgements": GRADED}
SCORES: dict[str, Any] = {"before": [0.125, 0.25], "after": [0.625, 0.75]}


class Way(NamedTuple):
    """One way to ask a route.

    Attributes:
        route: method and path.
        body: the smallest request; what stands in the URL where the method has no body.
        sent: how the body is sent.
        collection: its collection.
        model: schema of a body that the route reads itself.
        without: fields that this way has not.
    """

    route: str
    body: Any = None
    sent: str = "json"
    collection: str = "papers"
    model: type[BaseModel] | None = None
    without: tuple[str, ...] = ()


def attention(route: str, **own: Any) -> list[Way]:
    """A route of attention: by texts, by states, by documents."""
    kinds = {"queries": [QUERY], "vectors": [VECTOR], "ids": [EXAMPLE]}
    return [
        Way(f"POST {HERE}/{route}", {name: value, **own}, without=tuple({*kinds} - {name}))
        for name, value in kinds.items()
    ]


WITHOUT_WORDS = ("explore", "episode")  # no words, nothing to learn from
LISTED = {"id": "given-id", "text": "given-text", "embedding": [0.6, 0.8]}
EVENT = {"action_name": "click", "object_id": EXAMPLE, "query_id": ID}
TOGETHER = tuple({*options_of(TrainingJob)} - {"seed", "promote", "accept"})  # handed on with `seed`
DOCUMENTS = [OTHER, {"text": "x", "given-field": "given-member"}]
WAYS: list[Way] = [
    Way(f"POST {HERE}/search", {"query": QUERY}),
    Way(f"POST {HERE}/search", {"vector": VECTOR}, without=("query", *WITHOUT_WORDS)),
    Way(f"POST {HERE}/search", {"query": QUERY, "vector": VECTOR}),
    Way(f"GET {HERE}/search", {"q": QUERY}),
    Way(f"POST {HERE}/search/batch", {"queries": [QUERY]}),
    Way(f"POST {HERE}/search/batch", {"queries": [QUERY], "vectors": [VECTOR]}),
    Way(f"POST {HERE}/search/batch", {"vectors": [VECTOR]}, without=("queries", *WITHOUT_WORDS)),
    Way(f"POST {HERE}/similar", {"like": [EXAMPLE]}, without=WITHOUT_WORDS),
    Way(f"POST {HERE}/similar", {"like": [EXAMPLE], "query": QUERY}, without=("explore",)),
    *attention("attend"),
    Way(f"POST {HERE}/attend", {"queries": [QUERY], "vectors": [VECTOR]}, without=("ids",)),
    *attention("predict", field="i"),
    *attention("vjp", stamp="$stamp", grad_context=[VECTOR]),
    Way(f"PUT {HERE}", {}, collection="new"),
    Way("PUT /v1/aliases/{alias}", {"collection": "papers"}),
    Way(f"PUT {HERE}/documents", [LISTED], "json", "own", DocumentGiven),
    Way(f"PUT {HERE}/documents", [LISTED], "lines", "own", DocumentGiven),
    Way(
        f"PUT {HERE}/documents",
        [{"id": "given-id", "text": "given-text"}],
        "tensors",
        "own",
        DocumentGiven,
        ("embedding",),
    ),
    Way(f"GET {HERE}/documents", {}),
    Way(f"GET {HERE}/documents/{{id:path}}", {}),
    Way(f"POST {HERE}/documents/delete", {"ids": ["given-id"]}, without=("filter",)),
    Way(f"POST {HERE}/documents/delete", {"filter": {"i": {"eq": 37}}}, without=("ids",)),
    Way(f"PATCH {HERE}/documents/{{id:path}}", {"metadata": {"year": 37}}),
    Way(f"POST {HERE}/facets", {"fields": ["given-field"]}),
    Way(f"GET {HERE}/facets", {"field": ["given-field"]}),
    Way(
        f"POST {HERE}/feedback", [EVENT], without=("user_query", "event_attributes")
    ),  # compared with the page
    Way(f"POST {HERE}/feedback", [{**EVENT, "query_id": "given-id", "user_query": QUERY}]),
    Way(f"GET {HERE}/judgements", {}),
    Way(f"GET {HERE}/judgements/next", {}),
    Way(f"POST {HERE}/outcomes", {"episode": "given-episode", "success": False}),
    Way(f"POST {HERE}/heads", {}, "head"),
    Way(f"POST {HERE}/models/remember", JUDGED),
    Way(f"POST {HERE}/models/rollback-rows", {"sequence": 37}),
    Way(f"POST {HERE}/models", {}, "head"),
    Way(
        f"POST {HERE}/models/save",
        JUDGED,
        "request",
        model=SaveRequest,
        without=("before", "after", "live", "encoder"),
    ),
    Way(
        f"POST {HERE}/models/save",
        SCORES,
        "request",
        model=SaveRequest,
        without=(*JUDGED, "training", "encoder"),
    ),
    Way(f"POST {HERE}/models/{{version}}/judge", SCORES),
    Way(f"POST {HERE}/train", JUDGED, without=("trusted_keys", *TOGETHER)),
    Way(f"POST {HERE}/train", {"from": "feedback"}, without=(*JUDGED, "teacher", *TOGETHER)),
    Way(f"POST {HERE}/tune", JUDGED),
    Way(f"POST {HERE}/evaluate", JUDGED),
    Way(f"POST {HERE}/refresh", {}),
    Way("GET /v1/tasks", {}),
    Way("POST /v1/embeddings", {"model": "papers", "input": [QUERY]}),
    Way("POST /v1/embeddings", {"model": "papers@v0", "input": QUERY}),
    Way("POST /v1/rerank", {"model": "papers", "query": QUERY, "documents": DOCUMENTS}),
    Way("POST /v2/rerank", {"model": "papers@v0", "query": QUERY, "documents": DOCUMENTS}),
    Way("POST /retrieve", {"queries": [QUERY]}),
]
VALUES: dict[str, tuple[Any, Any]] = {
    "filter": ({"i": {"eq": 37}}, 37),
    "SearchParameters.filter": ('{"i": {"eq": 37}}', 37),
    "ListParameters.filter": ('{"i": {"eq": 37}}', 37),
    "FacetsParameters.filter": ('{"i": {"eq": 37}}', 37),
    "vector": (VECTOR, 0.75),
    "vectors": ([VECTOR], 0.75),
    "query": (QUERY, QUERY),
    "queries": ([QUERY], QUERY),
    "ids": ([EXAMPLE], EXAMPLE),
    "model": ("v7", "v7"),
    "version": ("v7", "v7"),
    "parent": ("v0", "v0"),
    "live": ("v7", "v7"),
    "draft": (ID[:24], ID[:24]),
    "VjpRequest.stamp": ("$stamp", "v0"),
    "stamp": ({"generation": 29, "model": "v7", "sequence": 31}, 29),
    "like": ([EXAMPLE], EXAMPLE),
    "unlike": ([NEXT], NEXT),
    "among": ([NEXT], NEXT),
    "exclude": ([NEXT], NEXT),
    **{f"{name}.exclude": ({"q1": [NEXT]}, NEXT) for name in ("TrainRequest", "TuneRequest", "SaveRequest")},
    "with_head": ({"given-tensor": [0.375]}, "given-tensor"),
    "bias": ([0.375], 0.375),
    "table": ([[0.375]], 0.375),
    "grad_context": ([VECTOR], 0.75),
    "grad_weights": ([[0.375]], 0.375),
    "grad_scores": ([[0.375]], 0.375),
    "metadata": ({"given-field": 37}, "given-field"),
    "embedding": ([0.6, 0.8], 0.8),
    "passages": ({"tokens": 29}, 29),
    "search_fields": (["given-field"], "given-field"),
    "kind": ("HNSW", "HNSW"),
    "event_attributes": ({"position": {"ordinal": 2}}, 2),
    "position": ({"ordinal": 2}, 2),
    "timestamp": ("2026-01-31T12:00:00Z", 1769860800.0),
    "useful_ids": ([EXAMPLE], EXAMPLE),
    "teacher": (GRADED, 0.625),
    "training": (GRADED, 0.625),
    "trusted_keys": (["given-key"], "given-key"),
    "record": ({"given-name": 37}, "given-name"),
    "encoder": ({"method": "all"}, "all"),
    "systems": ([{"model": "v7"}], "v7"),
    "input": ([QUERY], QUERY),
    "documents": (DOCUMENTS, [OTHER, "x"]),
    "rank_fields": (["given-field"], "given-member"),
    "AttendRequest.include": (["keys"], None),
    "VjpRequest.include": (["states"], None),
    "TaskParameters.limit": (36, 37),
    "TaskParameters.cursor": ("173", 173),
    "EmbeddingsRequest.model": ("papers@v0", "v0"),
    "RerankRequest.model": ("papers@v0", "v0"),
    "input_type": ("query", "query"),
    "top_n": (1, None),
}
"""What is given where a value cannot be made up, and what of it must arrive; None: only a difference."""


SHOWN = {
    "include",
    "encoding_format",
    "return_documents",
    "return_scores",
    "top_n",
}
"""Fields that say what is answered: the answer must be another one."""


ITSELF = {
    f"PUT {HERE}/documents": "lines, tensors",
    f"POST {HERE}/models/save": "a file on disk",
}
"""Routes that read their bodies themselves, and why."""
WITHOUT_WAY = {f"POST {HERE}/migrate": "the field is compared with a setting, and nothing else"}
KEYLESS = {
    **{f"{route}": "its request is its body" for route in (*ITSELF, f"POST {HERE}/models")},
    f"GET {HERE}/documents/{{id:path}}": "with an episode alone",
    f"POST {HERE}/similar": "with an episode alone",
}
"""Routes that look at their request for something else than whose it is, and why."""


class Routed(NamedTuple):
    """Schemas of a route's body and of its query string; whether it looks at its request."""

    body: type[BaseModel] | None
    url: type[BaseModel] | None
    asks: bool


def schemas_of(endpoint: Any) -> Routed:
    """Return what a route takes."""
    body, url, single = None, None, dict[str, Any]()
    hints = get_type_hints(endpoint, include_extras=True)
    for name, hint in hints.items():
        in_url = any(isinstance(each, Query) for each in getattr(hint, "__metadata__", ()))
        models = [each for each in models_in(hint) if issubclass(each, RequestModel)]
        if in_url and not models:
            single[name] = (get_args(hint)[0], None)
        elif in_url:
            url = models[0]
        elif models:
            body = models[0]
    url = create_model("Single", __base__=RequestModel, **single) if single else url
    return Routed(body, url, Request in hints.values())


def declared() -> dict[str, Routed]:
    """Return the routes by method and path."""
    return {
        f"{method} {route.path}": schemas_of(route.endpoint)
        for included in declared_routes()
        for route in included.original_router.routes  # pyright: ignore[reportAttributeAccessIssue]
        for method in route.methods
    }


ROUTES = declared()


class Asker:
    """Sends requests, and gives the calls that they make and the answers.

    Attributes:
        fill: what stands in paths.
        key: headers with an API key; none when empty.
    """

    def __init__(self, client: TestClient, calls: list[Call], head: bytes):
        self._client, self._calls, self._head = client, calls, head
        self.key: dict[str, str] = {}
        self.fill = {"collection": "papers", "alias": "given-alias", "id:path": EXAMPLE, "version": "v0"}
        answer = client.post(f"{HERE.format(**self.fill)}/attend", json={"queries": [QUERY]}).json()
        self._stamp = {name: answer[name] for name in ("generation", "model", "sequence")}

    def ask(self, way: Way, request: Any) -> tuple[list[Any], Any, dict[str, str]]:
        """Send a request; the calls that it makes, its answer, and what stood in its path."""
        fill = self.fill | {"collection": way.collection} | self._prepared(way)
        method, path = way.route.split()
        for name, value in fill.items():
            path = path.replace(f"{{{name}}}", value)
        sent = self._sent(way, request)
        self._calls.clear()
        answer = self._client.request(method, path, **sent)
        calls = [[call.name, call.arguments] for call in self._calls]
        in_path = {name: value for name, value in fill.items() if f"{{{name}}}" in way.route}
        content = answer.headers.get("content-type") == "application/json"
        return calls, _lasting(answer.json()) if content else answer.text, in_path

    def _prepared(self, way: Way) -> dict[str, str]:
        """Make or delete what a request is about; what of it stands in the path."""
        here, post = HERE.format(collection=way.collection), partial(self._client.post, headers=self.key)
        if way.route.endswith("/feedback"):
            post(f"{here}/search", json={"query": QUERY, "limit": 1000})
        if way.route.endswith("/outcomes"):
            post(f"{here}/search", json={"query": QUERY, "episode": "given-episode"})
        if way.route.endswith("/judge"):
            head = self._sent(Way("", sent="head"), {"parent": "v0"})
            return {"version": self._client.post(f"{here}/models", **head).json()["model"]}
        if way.collection == "new":
            self._client.delete(HERE.format(collection="new"), headers=self.key)
        return {}

    def _sent(self, way: Way, request: Any) -> dict[str, Any]:
        """A request as it is sent."""
        text = json.dumps(request).replace('"$stamp"', json.dumps(self._stamp))
        content = json.loads(text)
        if way.sent == "json":
            routed = ROUTES.get(way.route)
            if routed is not None and routed.body is None and way.model is None:
                return {"params": content, "headers": self.key}
            further = {"collection": "papers"} if routed is not None and routed.url is not None else {}
            return {"json": content, "params": further, "headers": self.key}
        if way.sent == "lines":
            return {"content": text[1:-1], "headers": {"Content-Type": "application/x-ndjson", **self.key}}
        headers = {"Content-Type": TENSORS, **self.key}
        if way.sent == "head":
            return {"content": self._head, "params": content, "headers": headers}
        if way.sent == "request":
            return {"content": save(load(self._head), {"request": text}), "headers": headers}
        rows = {"embeddings": np.array([[0.6, 0.8]] * len(request), np.float32)}
        return {"content": save(rows, {"documents": text}), "headers": headers}


def _lasting(answer: Any) -> Any:
    """An answer without what is another in each."""
    if isinstance(answer, dict):
        return {
            name: _lasting(item) for name, item in answer.items() if name not in ("took_ms", "draft", "draw")
        }
    return [_lasting(item) for item in answer] if isinstance(answer, list) else answer


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("reach") / "home"


@pytest.fixture(scope="module")
def asker(home: Path) -> Iterator[Asker]:
    with pytest.MonkeyPatch.context() as patch, SearchEngine(home, encoder=WordEncoder) as engine:
        papers = engine.create("papers")
        papers.ingest(documents(12))
        engine.create("own", dimension=2)
        head = papers.head("v0")
        patch.setattr(TaskWork, "result", lambda *_: {})  # nothing is trained
        for name in [name for name in sys.modules if name.startswith("dsearch.service")]:
            if hasattr(sys.modules[name], "new_id"):
                patch.setattr(sys.modules[name], "new_id", lambda: ID)
        patch.setattr(feedback_module, "time", SimpleNamespace(time=lambda: 1e9))
        calls = record_work(patch, {gradients.vjp: _gradients})
        with TestClient(patient_app(engine), base_url=ORIGIN) as client:
            yield Asker(client, calls, head_bytes(head))


def _gradients(*_: Any, **__: Any) -> Gradients:
    """Gradients of nothing: the first ones take torch seconds."""
    ones = np.ones((1, 1), np.float32)
    return Gradients(Stamp(1, "v0", 1), ones, {"given-tensor": ones}, np.ones(1, np.float32), ones)


@pytest.mark.parametrize("number", range(len(WAYS)), ids=lambda number: f"{WAYS[number].route} {number}")
def test_each_field_reaches_what_does_the_work(asker: Asker, number: int) -> None:
    way, lost = WAYS[number], list[str]()
    schema = way.model or ROUTES[way.route].body or ROUTES[way.route].url
    assert schema is not None
    asked: dict[str, Any] = {}

    def ask(request: Any) -> tuple[list[Any], Any]:
        key = json.dumps(request)
        if key not in asked:
            asked[key] = asker.ask(way, request)
        return asked[key][:2]

    for change in changes(schema, way.body, VALUES, way.without):
        calls, answer = ask(change.request)
        without, other = (None, None) if change.without is None else ask(change.without)
        if change.name in SHOWN:
            if answer == other:
                lost.append(f"{change.path} changes nothing in the answer: {answer}")
            continue
        missing = [leaf for leaf in leaves(change.arrives) if not holds(calls, leaf)]
        if not calls or calls == without or missing:
            lost.append(f"{change.path}: {missing or change.arrives} does not arrive: {str(answer)[:300]}")
    assert not lost, "\n".join(lost)


def test_what_stands_in_a_path_and_whose_key_it_is_reach_what_does_the_work(asker: Asker, home: Path) -> None:
    keys, lost = ApiKeys(home), list[str]()
    secret, key = keys.create("given-name", "admin")
    asker.key = {"Authorization": f"Bearer {secret}"}
    for way in WAYS:
        calls, answer, wanted = asker.ask(way, way.body)
        if ROUTES[way.route].asks and way.route not in KEYLESS and "episode" not in way.without:
            wanted |= {"key": key.id}
        missing = [name for name, value in wanted.items() if not holds(calls, value)]
        lost += [f"{way.route} {way.body}: {missing} does not arrive: {answer}"] if missing else []
    keys.revoke(key.id)
    keys.clear()
    asker.key = {}
    assert not lost, "\n".join(lost)


def test_no_route_with_fields_is_forgotten() -> None:
    fields = {route for route, schemas in ROUTES.items() if schemas.body or schemas.url}
    assert fields | ITSELF.keys() == {way.route for way in WAYS} | WITHOUT_WAY.keys()
