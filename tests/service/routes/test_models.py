"""Routes of models: each option reaches its call, and what can be refused at once becomes no task."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from starlette.testclient import TestClient

import dsearch.training
from dsearch.engine import MAX_HEADS, Collection, calls
from dsearch.errors import Conflict
from dsearch.operations import Promote, Rollback, RollbackRows
from dsearch.results import MemoryResult, PromotionResult, RowsDropped
from dsearch.service.routes.models import largest_head_bytes

URL = "/v1/collections/papers/models"


@pytest.fixture
def reached(monkeypatch: pytest.MonkeyPatch, papers: Collection) -> dict[str, Any]:
    """What each call was given, without the collection; none does anything."""
    given: dict[str, Any] = {}
    results: dict[str, Any] = {
        "promote": PromotionResult("v1", "v0", 7),
        "rollback": PromotionResult("v0", "v1", 8),
        "rollback_rows": RowsDropped(1, 2, 9),
        "remember": MemoryResult("v1", "v0", 1, 1, {}, 9),
    }

    def answer_of(name: str) -> Any:
        def call(collection: Collection, *args: Any, **options: Any) -> Any:
            assert collection.name == "papers"
            given[name] = (args, options)
            return results[name]

        return call

    monkeypatch.setattr(dsearch.training, "remember", answer_of("remember"))
    for kind, name in ((Promote, "promote"), (Rollback, "rollback"), (RollbackRows, "rollback_rows")):
        monkeypatch.setitem(calls.ANSWERS, kind, answer_of(name))
    return given


def test_remembered_queries_begin_a_memory_only_where_it_is_accepted(
    client: TestClient, reached: dict[str, Any]
) -> None:
    judged = {"queries": {"q": "cat"}, "judgements": {"q": {"d001": 1.0}}}
    assert client.post(f"{URL}/remember", json=judged).json()["queries"] == 1
    given = (judged["queries"], judged["judgements"])
    assert reached["remember"] == (given, {"accept": False, "key": ""})
    client.post(f"{URL}/remember", json={**judged, "accept": True})
    assert reached["remember"] == (given, {"accept": True, "key": ""})


def test_what_cannot_be_judged_becomes_no_task(
    client: TestClient, papers: Collection, monkeypatch: pytest.MonkeyPatch
) -> None:
    scores = {"before": [0.1] * 3, "after": [0.2] * 3}
    answer = client.post(f"{URL}/v0/judge", json=scores)
    assert (answer.status_code, answer.json()["code"]) == (409, "conflict")
    assert client.post(f"{URL}/v9/judge", json=scores).status_code == 404
    for wrong in ({"before": [0.1], "after": [0.1, 0.2]}, {"before": [0.1]}):
        assert client.post(f"{URL}/v1/judge", json=wrong).status_code == 422, wrong

    def judged(collection: Collection, version: str) -> None:
        raise Conflict(f"{version} was judged already")

    monkeypatch.setattr(calls, "require_unjudged", judged)
    assert client.post(f"{URL}/v1/judge", json=scores).json()["detail"] == "v1 was judged already"
    assert client.get("/v1/tasks").json()["tasks"] == []


def test_a_kept_version_becomes_a_task_with_its_scores(
    client: TestClient, papers: Collection, monkeypatch: pytest.MonkeyPatch, app: Any
) -> None:
    taken: list[Any] = []
    task = SimpleNamespace(id="t1", to_dict=lambda: {"id": "t1"})
    monkeypatch.setattr(calls, "require_unjudged", lambda collection, version: None)
    monkeypatch.setattr(app.state.service.tasks, "add", lambda *given: taken.append(given) or task)
    scores = {"before": [0.1] * 3, "after": [0.2] * 3, "measure": "F1", "promote": False}
    answer = client.post(f"{URL}/v3/judge", json=scores)
    assert (answer.status_code, answer.json()) == (202, {"id": "t1"})
    assert answer.headers["location"] == "/v1/tasks/t1"
    [(kind, collection, request)] = taken
    assert (kind, collection) == ("save", "papers")
    assert scores.items() <= request.items()
    assert (request["version"], request["live"]) == ("v3", "v0")


def test_the_largest_head_is_bounded_by_its_dimension_and_by_a_stream() -> None:
    assert largest_head_bytes(32) == 4 * (2 * MAX_HEADS + 2) * 32**2 + 64 * 1024
    assert largest_head_bytes(100_000) == 64 * 1024**2
