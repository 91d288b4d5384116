"""Each field of each declared call arrives at the engine as it was given, whichever door was taken.

The calls are those of `dsearch/operations/`: made by a client over a running server, by the awaiting client,
and on an engine of this process; by agents' tools, and by addresses. Functions of the engine are recorded.
"""

from __future__ import annotations

import asyncio
import inspect
import json
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, get_type_hints

import httpx2
import numpy as np
import pytest
import torch
from starlette.testclient import TestClient
from support.cli.recorder import holds
from support.doors import HEAD, Work, arrays, leaves, made_up, parameters_of, record_work
from support.service.apps import patient_app
from support.service.service_fakes import ORIGIN, WordEncoder, documents

from dsearch.attention.retrieval.head import Head
from dsearch.client import AsyncClient, Client, LocalEngine
from dsearch.client.calls import Calls, Door, FindOptions
from dsearch.engine import SearchEngine
from dsearch.errors import DsearchError
from dsearch.jobs import EvaluationJob, ExampleScores, JudgedQueries, SavingJob, TrainingJob, TuningJob
from dsearch.service.keys import ApiKeys
from dsearch.service.mcp.tools import TOOLS, ToolCaller
from dsearch.service.tasks.manager import TaskWork

VECTOR = np.linspace(0, 1, 32).tolist()
STAMP = made_up("stamp", None)
WAYS: dict[str, list[dict[str, Any]]] = {
    "search": [{"query": "cat"}, {"vector": VECTOR}],
    "search_batch": [{"queries": ["cat"]}, {"vectors": [VECTOR]}, {"queries": ["cat"], "vectors": [VECTOR]}],
    "similar": [{"like": ["d001"]}, {"like": ["d001"], "query": "cat"}],
    "attend": [{"queries": ["cat"]}, {"vectors": [VECTOR]}, {"ids": ["d001"]}],
    "vjp": [
        {"stamp": STAMP, "queries": ["cat"], "context": [VECTOR]},
        {"stamp": STAMP, "vectors": [VECTOR], "weights": [[0.5]]},
        {"stamp": STAMP, "ids": ["d001"], "scores": [[0.5]]},
    ],
    "predict": [{"queries": ["cat"]}, {"vectors": [VECTOR]}, {"ids": ["d001"]}],
    "delete_many": [{"ids": ["base-id"]}, {"filter": {"i": {"lt": 0}}}],
    "upsert": [{}, {"collection": "own", "embeddings": np.eye(1, 2, dtype=np.float32)}],
    "draft_head": [{"tensors": HEAD}],
    "add_model": [{"tensors": HEAD}],
    "save_model": [{"layer": HEAD}],
    "train": [{}, {"queries": {"q": "cat"}, "judgements": {"q": {"d001": 1.0}}}],
    "get": [{"id": "d001"}],
    "report_outcome": [{"success": False}],
}
"""What each way to make a call gives, where there are several, or where another value is refused."""
ELSEWHERE = {
    "open: task": "client/local/test_models.py",
    "open: tasks": "client/local/test_models.py",
    "open: cancel_task": "client/local/test_models.py",
    "open: migrate encoder": "compared, and refused",
    "open: explore": "of servers, which remember pages",
    "migrate encoder": "compared, and refused",
    "wait_for_task": "client/test_requests.py",
    "vjp head": "left out of the answer: client/test_calls.py",
    "vjp include": "what is answered",
    "similar explore": "pages of examples are not swapped",
    "tasks limit": "one more is looked for",
    "tasks cursor": "as a number",
    "judge_model exclude": "refused: examples are no queries",
    "save_model layer": "a file: client/test_saving.py",
    "save_model evidence": "by its kinds, below",
    "save_model measure": "by its kinds, below",
    "save_model encoder": "client/test_saving.py",
}
"""Fields that reach no function of the engine, and why, or the test that they have."""
ON = {"operators", "promote", "tune", "memory"}
"""Options that are on by default."""
OWNED = {"attend", "vjp", "draft_head", "draft_tensors", "drop_draft", "feedback", "report_outcome"}
"""Calls that are somebody's: the id of the key arrives as well; of those with `episode` too."""


class Doors:
    """Each door to the calls of one engine, and what its functions are called with."""

    def __init__(self, engine: SearchEngine, web: TestClient, made: list[Work]):
        self.web, self.made, self.headers = web, made, dict[str, str]()
        self.said = ""  # by the last call that failed
        transport = httpx2.MockTransport(self._forwarded)
        self._ways: dict[str, Any] = {
            "client": Client(ORIGIN, transport=transport, retries=0),
            "async": AsyncClient(ORIGIN, transport=transport, retries=0),
            "open": LocalEngine(engine),
        }

    def _forwarded(self, request: httpx2.Request) -> httpx2.Response:
        url = str(request.url).removeprefix(ORIGIN)
        headers = {
            **{name: request.headers[name] for name in ("content-type", "accept") if name in request.headers},
            **self.headers,
        }
        answer = self.web.request(request.method, url, content=request.read(), headers=headers)
        kind = {"content-type": answer.headers.get("content-type", "")}
        return httpx2.Response(answer.status_code, content=answer.content, headers=kind)

    def calls(self, door: str, name: str, /, **given: Any) -> list[Any]:
        """What a call through a door calls, up to where it ends."""
        self.made.clear()
        self.said = ""
        try:
            called = getattr(self._ways[door], name)(**given)
            if inspect.isawaitable(called):
                asyncio.run(_awaited(called))
        except Exception as error:  # what matters is what was called before
            self.said = f"{type(error).__name__}: {error}"
        return [[work.name, work.arguments] for work in self.made]


async def _awaited(called: Any) -> Any:
    return await called


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("doors") / "home"


@pytest.fixture(scope="module")
def doors(home: Path) -> Iterator[Doors]:
    with pytest.MonkeyPatch.context() as patch, SearchEngine(home, encoder=WordEncoder) as engine:
        for name in ("papers", "given-collection", "given-name"):
            collection = engine.create(name)
            collection.ingest(documents(12))
            collection.add_model(Head(32), {})
        engine.create("own", dimension=2)
        for job in (EvaluationJob, SavingJob, TrainingJob, TuningJob):  # test_jobs.py: what goes together
            patch.setattr(job, "check", lambda _: None)
        patch.setattr(TaskWork, "result", lambda *_: {"model": "v9"})
        app, made = patient_app(engine, rerankers=["given-reranker"]), record_work(patch)
        with TestClient(app, base_url=ORIGIN, raise_server_exceptions=False) as web:
            yield Doors(engine, web, made)


CALLS = sorted(name for name, one in vars(Calls).items() if isinstance(one, Door))


def smallest(name: str) -> list[dict[str, Any]]:
    """The smallest request of each way to make a call."""
    needed = {
        field: "papers"
        if field in ("collection", "name") and name != "create_collection"
        else made_up(field, kind)
        for field, (kind, must) in parameters_of(name).items()
        if must
    }
    if name == "create_collection":
        needed["name"] = "base-name"
    return [{**needed, **way} for way in WAYS.get(name, [{}])]


def lost_fields(
    doors: Doors, door: str, name: str, base: dict[str, Any], fields: dict[str, Any]
) -> list[str]:
    """Say which fields do not arrive when each of them is given."""
    lost, plainly = list[str](), doors.calls(door, name, **base)
    if not plainly:
        return [f"{name}({base}): nothing is called: {doors.said}"]
    for field, value in fields.items():
        given = field in base and arrays(base[field]) == arrays(value)
        without = [] if given else plainly
        having = plainly if given else doors.calls(door, name, **{**base, field: value})
        if doors.said.startswith("InvalidRequest") and field in doors.said and f"{field}=" not in doors.said:
            continue  # does not go with this way, and the message says so
        missing = [leaf for leaf in leaves(value) if not holds(having, leaf)]
        if having == without or missing:
            lost.append(f"{name}({field}={value!r}): {missing or 'it'} does not arrive: {doors.said}")
    return lost


def elsewhere(door: str, name: str, field: str = "") -> bool:
    return any(
        prefix + place in ELSEWHERE
        for prefix in ("", f"{door}: ")
        for place in (name, field, f"{name} {field}")
    )


@pytest.mark.parametrize("door", ["client", "open"])
@pytest.mark.parametrize("name", CALLS)
def test_each_field_arrives(doors: Doors, door: str, name: str) -> None:
    lost = list[str]()
    for base in smallest(name):
        fields = {
            field: made_up(field, kind, default=field in ON, call=name)
            for field, (kind, _) in parameters_of(name).items()
            if not elsewhere(door, name, field)
            and (field not in ("episode", "explore") or name == "get" or base.keys() & {"query", "queries"})
        }
        if fields and not elsewhere(door, name):
            lost += lost_fields(doors, door, name, base, fields)
    assert not lost, "\n".join(lost)


def test_what_is_awaited_calls_the_same(doors: Doors) -> None:
    for name in CALLS:
        if name in ("add_files", "save_model") or elsewhere("async", name):
            continue  # ids of files differ
        kinds = {field: kind for field, (kind, _) in parameters_of(name).items()}
        for base in smallest(name):
            given = {**{field: made_up(field, kind, call=name) for field, kind in kinds.items()}, **base}
            made = [
                [work for work in doors.calls(door, name, **given) if work[0] != "TaskStore.get"]
                for door in ("async", "client")
            ]
            assert made[0] == made[1], name


SAVED: dict[str, dict[str, Any]] = {
    "judged queries": {"evidence": JudgedQueries({"q": "given-words"}, {"q": {"d001": 0.625}})},
    "scores": {"evidence": ExampleScores([0.375], [0.625], "given-measure")},
    "a function": {"evidence": lambda layer: [layer.score], "measure": "given-measure"},
    "a function once kept": {
        "evidence": lambda layer: [layer.score],
        "measure": "given-measure",
        "encode_documents": True,
    },
}


class Layer(torch.nn.Module):
    """A trained layer, opened for other versions; v0 is live."""

    def __init__(self, version: str = "v9"):
        super().__init__()
        self.version, self.head, self.score = version, Head(32), 0.375 if version == "v0" else 0.625

    def with_model(self, version: str) -> Layer:
        return Layer(version)

    as_version = with_model


@pytest.mark.parametrize("kind", SAVED)
def test_each_option_of_a_saved_layer_arrives_with_each_kind_of_evidence(doors: Doors, kind: str) -> None:
    base = {"collection": "papers", "layer": Layer(), **SAVED[kind]}
    fields = {
        field: made_up(field, annotation, default=field in ON)
        for field, (annotation, _) in parameters_of("save_model").items()
        if field not in base and not elsewhere("client", "save_model", field)
    }
    assert not lost_fields(doors, "client", "save_model", base, fields)
    plainly = doors.calls("client", "save_model", **base)
    expected = ["given-words", 0.625] if kind == "judged queries" else ["given-measure", 0.375, 0.625]
    assert all(holds(plainly, value) for value in expected), plainly


TOLD: dict[str, list[dict[str, Any]]] = {
    "search": [
        {"query": "cat"},
        {"query": "given-query", "collection": "papers", "limit": 37, "episode": "given-episode"},
    ],
    "fetch": [{"id": "papers/given/id"}, {"id": "papers/d001", "episode": "given-episode"}],
    "add_documents": [{"collection": "papers", "documents": made_up("documents", None)}],
    "report_outcome": [{"episode": "given-episode", "useful_ids": ["papers/d001"], "success": False}],
}
"""What agents give each of their tools."""


@pytest.mark.parametrize("name", TOLD)
def test_each_argument_of_a_tool_arrives(doors: Doors, name: str) -> None:
    tool = TOOLS[name]
    assert tool.arguments.model_fields.keys() == {field for given in TOLD[name] for field in given}
    assert doors.web.portal is not None
    for given in TOLD[name]:
        doors.made.clear()
        with suppress(DsearchError):
            doors.web.portal.call(
                tool.run,
                doors.web.app.state.service,  # pyright: ignore[reportAttributeAccessIssue]
                tool.arguments.model_validate(given),
                ToolCaller("admin", key="given-key"),
            )
        called = [[work.name, work.arguments] for work in doors.made]
        for leaf in leaves(given):
            assert holds(called, str(leaf).removeprefix("papers/") if isinstance(leaf, str) else leaf), leaf
        assert "episode" not in given or holds(called, "given-key")


def test_every_tool_that_takes_something_is_told() -> None:
    assert {name for name, tool in TOOLS.items() if tool.arguments.model_fields} == {*TOLD}


def test_fields_in_an_address_arrive(doors: Doors) -> None:
    """`GET` for a search and for counts: filters are JSON, and lists are repeated or have commas."""
    for path, names in (("search", FindOptions.__annotations__), ("facets", ("filter", "limit"))):
        base = {"query": "cat"} if path == "search" else {"fields": ["i", "given-field"]}
        for field in ("", *names):
            kind = get_type_hints(FindOptions).get(field, str)
            value = made_up(field, kind, default=field in ON) if field else "cat" if path == "search" else "i"
            given = (
                {**base, field: json.dumps(value) if isinstance(value, dict) else value} if field else base
            )
            doors.made.clear()
            said = doors.web.get(f"/v1/collections/papers/{path}", params=given).text
            called = [[work.name, work.arguments] for work in doors.made]
            assert called, (field, said)
            assert all(holds(called, leaf) for leaf in leaves(value)), (field, said)


def test_whose_key_it_is_arrives(doors: Doors, home: Path) -> None:
    keys = ApiKeys(home)
    secret, key = keys.create("given-key-name", "admin")
    doors.headers = {"authorization": f"Bearer {secret}"}
    try:
        for name in CALLS:
            parameters = parameters_of(name)
            if name in OWNED or ("episode" in parameters and name != "similar"):
                episode = {"episode": "given-episode"} if "episode" in parameters else {}
                assert holds(doors.calls("client", name, **{**smallest(name)[0], **episode}), key.id), name
    finally:
        doors.headers = {}
        keys.revoke(key.id)
        keys.clear()
