"""The HTTP request of each call: method, path, query, body, and whether it may be sent again.

A flow yields its requests, so no server is needed. What is None is left out of bodies.
"""

from __future__ import annotations

import json
from math import inf
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save

from dsearch import operations
from dsearch.client import Client, over_http
from dsearch.client.calls import Calls
from dsearch.client.wire import NDJSON, TENSORS, HttpReply, Pause, Request
from dsearch.errors import InvalidDocument, Unavailable
from dsearch.jobs import ExampleScores
from dsearch.types import Stamp

QUERIES, JUDGED = {"q": "cat"}, {"q": {"d": 1.0}}
EVIDENCE = {"queries": QUERIES, "judgements": JUDGED}
SCORES = ExampleScores([0.1], [0.2], "F1")
HEAD = {"query_delta": np.zeros((1, 4, 4), np.float32)}
P = "/v1/collections/my%20papers"


def flow_of(name: str, *args: Any, **options: Any) -> Any:
    return over_http.flow_of(getattr(Calls, name).request(*args, **options))


def sent(name: str, *args: Any, **options: Any) -> Request:
    request = next(flow_of(name, *args, **options))
    assert isinstance(request, Request)
    return request


def body(request: Request) -> Any:
    return None if request.content is None else json.loads(request.content)


C = "my papers"
GET, POST, PUT, PATCH, DELETE = "GET", "POST", "PUT", "PATCH", "DELETE"


@pytest.mark.parametrize(
    ("name", "args", "options", "expected"),
    [
        ("get", (C, "a/b"), {"episode": "t"}, (GET, f"{P}/documents/a%2Fb", {"episode": "t"}, None)),
        (
            "documents",
            (C,),
            {"filter": {"a": {"eq": 1}}},
            (GET, f"{P}/documents", {"limit": 100, "filter": '{"a":{"eq":1}}'}, None),
        ),
        ("create_collection", (C,), {"search_fields": []}, (PUT, P, {}, {"search_fields": []})),
        ("set_alias", ("a b", C), {}, (PUT, "/v1/aliases/a%20b", {}, {"collection": C})),
        ("delete_many", (C,), {"ids": ("a",)}, (POST, f"{P}/documents/delete", {}, {"ids": ["a"]})),
        ("delete_many", (C,), {"ids": []}, (POST, f"{P}/documents/delete", {}, {"ids": []})),
        (
            "update_metadata",
            (C, "a", {"x": None}),
            {},
            (PATCH, f"{P}/documents/a", {}, {"metadata": {"x": None}}),
        ),
        ("rollback_rows", (C, 0), {}, (POST, f"{P}/models/rollback-rows", {}, {"sequence": 0})),
        ("refresh", (C,), {}, (POST, f"{P}/refresh", {}, {})),
        ("compact", (C,), {}, (POST, f"{P}/compact", {}, None)),
        ("train", (C,), {"source": "feedback"}, (POST, f"{P}/train", {}, {"from": "feedback"})),
        ("cancel_task", ("a b",), {}, (DELETE, "/v1/tasks/a%20b", {}, None)),
        ("search", (C,), {"vector": (1.0,), "model": None}, (POST, f"{P}/search", {}, {"vector": [1.0]})),
    ],
)
def test_names_are_quoted_and_what_is_none_is_left_out(
    name: str, args: tuple[Any, ...], options: dict[str, Any], expected: tuple[Any, ...]
) -> None:
    request = sent(name, *args, **options)
    assert (request.method, request.path, request.query, body(request)) == expected


ONCE = {
    *("AddFiles", "AddModel", "Remember", "Rollback", "RollbackRows"),
    *("Compact", "Evaluate", "JudgeModel", "Migrate", "Refresh", "SaveModel", "Train", "Tune"),
}


def test_what_adds_something_or_goes_back_is_not_sent_again() -> None:
    assert {call.__name__ for call in operations.CALLS if not call.place.repeatable} == ONCE
    for name, args in {"rollback": (C,), "delete": (C, "a"), "search": (C, "cat")}.items():
        request = sent(name, *args)
        assert (request.repeatable, request.writes) == (name != "rollback", name != "search")


@pytest.mark.parametrize(("name", "path"), [("head", "models/v1/head"), ("draft_tensors", "heads/v1")])
def test_tensors_are_asked_for_by_their_type(name: str, path: str) -> None:
    assert sent(name, C, "v1") == Request(GET, f"{P}/{path}", accept=TENSORS)


def test_heads_are_sent_as_tensors() -> None:
    draft, added = sent("draft_head", C, HEAD, parent="v2"), sent("add_model", C, HEAD, parent="v2")
    assert (draft.path, added.path) == (f"{P}/heads", f"{P}/models")
    for request in (draft, added):
        assert (request.method, request.query, request.content_type) == (POST, {"parent": "v2"}, TENSORS)
    assert (draft.repeatable, draft.writes) == (True, False)
    assert (added.repeatable, added.writes) == (False, True)
    recorded = sent("add_model", C, HEAD, record={"note": "mine"})
    assert recorded.query == {}
    assert b"mine" in (recorded.content or b"")


def test_a_batch_of_documents_is_a_write_of_lines_or_of_tensors() -> None:
    request = sent("upsert", C, [{"id": "a", "text": "x"}])
    assert (request.method, request.path, request.content_type) == (PUT, f"{P}/documents", NDJSON)
    assert (request.writes, request.repeatable) == (True, True)
    request = sent("upsert", C, [{"id": "a", "text": "x"}], embeddings=[[1.0, 0.0]])
    assert (request.content_type, request.writes) == (TENSORS, True)


def test_attention_and_its_gradients_come_as_tensors() -> None:
    stamp = Stamp(3, "v1", 7)
    request = sent("attend", C, ["cat"], include=("keys",), stamp=stamp, draft="d")
    assert (request.path, request.accept, request.repeatable) == (f"{P}/attend", TENSORS, True)
    assert body(request) == {
        "queries": ["cat"],
        "include": ["keys"],
        "stamp": {"generation": 3, "model": "v1", "sequence": 7},
        "draft": "d",
    }
    request = sent("vjp", C, ["cat"], context=[[1.0]], weights=[[2.0]], scores=[[3.0]], stamp=stamp)
    assert (request.path, request.accept) == (f"{P}/vjp", TENSORS)
    given = body(request)
    assert (given["grad_context"], given["grad_weights"], given["grad_scores"]) == ([[1.0]], [[2.0]], [[3.0]])
    assert given["include"] == ["states", "bias", "head"]
    assert body(sent("vjp", C, ["cat"], head=False, stamp=stamp))["include"] == ["states", "bias"]
    with_table = body(sent("vjp", C, ["cat"], head=False, stamp=stamp, table=np.eye(2)))
    assert (with_table["include"], with_table["table"]) == (["states", "bias", "table"], [[1, 0], [0, 1]])


def test_each_part_of_many_gradients_has_its_own_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dsearch.client.wire.QUERIES_AT_ONCE", 1)
    given = {"context": [[1.0], [2.0]], "weights": [[3.0], [4.0, 5.0]], "scores": [[6.0], [7.0, 8.0]]}
    options: dict[str, Any] = {"candidates": 9, "filter": {"year": 1937}, "temperature": 0.25}
    flow = flow_of("vjp", C, ["cat", "dog"], stamp=Stamp(3, "v1", 7), **given, **options)
    first = body(next(flow))
    facts = json.dumps({"generation": 3, "model": "v1", "sequence": 7})
    second = body(flow.send(HttpReply(200, {}, save({"states": np.ones((1, 2))}, {"answer": facts}))))
    for name, rows in given.items():
        assert [part[f"grad_{name}"] for part in (first, second)] == [rows[:1], rows[1:]], name
    assert options.items() <= first.items()
    assert options.items() <= second.items()


def reply(**task: Any) -> HttpReply:
    whole = {
        "id": "t",
        "kind": "train",
        "collection": C,
        "state": "running",
        "created": "",
        "attempts": 1,
        **task,
    }
    return HttpReply(200, {}, json.dumps(whole).encode())


def test_a_task_is_asked_about_until_it_has_ended() -> None:
    told: list[str] = []
    flow = flow_of("wait_for_task", "t", every_s=0.25, on_progress=lambda task: told.append(task.state))
    assert next(flow) == Request(GET, "/v1/tasks/t")
    for state in ("queued", "running"):
        assert flow.send(reply(state=state)) == Pause(0.25)
        assert next(flow) == Request(GET, "/v1/tasks/t")
    with pytest.raises(StopIteration) as ended:
        flow.send(reply(state="failed"))
    assert ended.value.value.state == "failed"
    assert told == ["queued", "running", "failed"]


def test_the_wait_for_a_task_ends_in_time() -> None:
    flow = flow_of("wait_for_task", "t", timeout_s=1.0, every_s=0.5)
    for _ in range(2):
        assert isinstance(next(flow), Request)
        assert flow.send(reply()) == Pause(0.5)
    next(flow)
    with pytest.raises(Unavailable, match=r"^task t is running after 1 s; wait longer, or cancel it$"):
        flow.send(reply())


def test_the_encoding_of_a_kept_version_is_waited_for_however_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """An hour is not enough for a large collection; whoever gave up would leave a version without verdict."""
    waits: list[Any] = []

    def wait(call: operations.WaitForTask) -> Any:
        waits.append(call)
        yield from ()
        return SimpleNamespace(state="failed")

    monkeypatch.setitem(over_http.FLOWS, operations.WaitForTask, wait)
    pending = SimpleNamespace(scores_of_live=lambda live: [])
    monkeypatch.setattr(over_http, "kept_version", lambda layer, evidence, *of: pending if evidence else None)
    flow = flow_of("save_model", C, HEAD, evidence=lambda layer: [], encode_documents=True)
    assert next(flow) == Request(GET, f"{P}/models")
    flow.send(HttpReply(200, {}, b'{"live": "v0", "models": []}'))
    with pytest.raises(StopIteration):
        flow.send(reply())
    assert waits == [operations.WaitForTask("t", timeout_s=inf)]


def test_a_damaged_collection_is_no_entry() -> None:
    flow = flow_of("collections")
    next(flow)
    with pytest.raises(StopIteration) as ended:
        flow.send(HttpReply(200, {}, b'{"collections": [{"name": "x", "problem": {}}]}'))
    assert ended.value.value == []


def test_a_server_is_ready_when_it_says_so() -> None:
    for status, ready in (("ready", True), ("starting", False)):
        flow = flow_of("ready")
        next(flow)
        with pytest.raises(StopIteration) as ended:
            flow.send(HttpReply(200, {}, json.dumps({"status": status}).encode()))
        assert ended.value.value is ready
    assert Client.ready.__doc__ == Calls.ready.__doc__


def written(**counts: int) -> HttpReply:
    whole = {
        "sequence": 7,
        "inserted": 0,
        "updated": 0,
        "unchanged": 0,
        "refused": 0,
        "problems": [],
        **counts,
    }
    return HttpReply(200, {}, json.dumps(whole).encode())


def test_what_was_there_already_is_stored_though_others_are_refused() -> None:
    flow = flow_of("upsert", C, [{"id": "a", "text": "x"}, {"id": "b"}])
    next(flow)
    with pytest.raises(StopIteration) as ended:
        flow.send(written(unchanged=1, refused=1))
    assert (ended.value.value.unchanged, ended.value.value.refused) == (1, 1)


def test_a_batch_that_is_refused_as_a_whole_is_an_error() -> None:
    flow = flow_of("upsert", C, [{"id": "a", "text": "x"}])
    next(flow)
    with pytest.raises(InvalidDocument, match="too long"):
        flow.throw(InvalidDocument("too long"))


def test_what_the_server_notes_of_predictions_comes_with_them() -> None:
    flow = flow_of("predict", C, ["cat"], field="f")
    next(flow)
    said = {"generation": 1, "model": "v0", "sequence": 7, "results": [], "note": "hold too little"}
    with pytest.raises(StopIteration) as ended:
        flow.send(HttpReply(200, {}, json.dumps(said).encode()))
    assert ended.value.value.note == "hold too little"
