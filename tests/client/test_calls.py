"""The same calls, over HTTP, awaited, and in this process: the same signatures, answers and errors."""

from __future__ import annotations

import dataclasses
import inspect
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.service.service_fakes import documents

from dsearch.client import Client, LocalEngine
from dsearch.client.calls import Calls, Door
from dsearch.client.local.engine import HANDLERS
from dsearch.engine import calls
from dsearch.errors import Conflict, DsearchError, InvalidRequest
from dsearch.operations import CALLS, GetDocument
from dsearch.store import validate
from dsearch.types import Document, EmbeddedDocument, Stamp

pytestmark = pytest.mark.server

QUERIES = ["river stone", "attention music head"]
JUDGED = ({"q": "cat"}, {"q": {"d001": 1}})
STATES = np.random.default_rng(3).standard_normal((2, 32))


DOORS = {name: one for name, one in vars(Calls).items() if isinstance(one, Door)}


def same(one: Any, other: Any, place: str = "") -> None:
    """Equal to the last bit, but for how long it took."""
    if dataclasses.is_dataclass(one):
        assert type(one) is type(other), place
        for field in dataclasses.fields(one):
            if field.name not in ("took_ms", "query_id"):
                same(getattr(one, field.name), getattr(other, field.name), f"{place}.{field.name}")
    elif isinstance(one, np.ndarray):
        assert one.dtype == other.dtype, place
        np.testing.assert_array_equal(one, other, err_msg=place)
    elif isinstance(one, list):
        assert len(one) == len(other), place
        for number, (left, right) in enumerate(zip(one, other, strict=True)):
            same(left, right, f"{place}[{number}]")
    elif isinstance(one, dict):
        assert set(one) == set(other), place
        for name in one:
            same(one[name], other[name], f"{place}[{name!r}]")
    else:
        assert one == other, place


def test_a_method_takes_what_its_call_declares() -> None:
    assert {door.kind for door in DOORS.values()} == set(CALLS) == {*HANDLERS, *calls.ANSWERS}
    for name, door in DOORS.items():
        parameters = [*inspect.signature(door).parameters.values()][1:]
        declared = [*inspect.signature(door.kind).parameters.values()]
        for given, field in zip(parameters, declared, strict=True):
            assert given.name == field.name, name
            if given.kind != given.VAR_KEYWORD:
                assert (given.kind, given.default) == (field.kind, field.default), (name, given.name)


def test_wrong_arguments_are_named_by_the_method() -> None:
    with Client() as client:
        with pytest.raises(TypeError, match="'id'"):
            client.get("papers")  # type: ignore[call-arg]
        with pytest.raises(TypeError, match="colour"):
            client.get("papers", "a", colour="red")  # type: ignore[call-arg]


def test_a_client_shows_signatures_and_descriptions() -> None:
    client = Client()
    assert list(inspect.signature(client.get).parameters) == ["collection", "id", "episode"]
    assert client.get.__name__ == "get"
    assert (client.get.__doc__ or "").startswith(inspect.getdoc(GetDocument) or "missing")


READS: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = [
    ("ready", (), {}),
    ("collections", (), {}),
    ("collection", ("papers",), {}),
    ("get", ("papers", "d007"), {}),
    ("models", ("papers",), {}),
    ("head", ("papers", "v1"), {}),
    ("search", ("papers", "river stone"), {}),
    ("search", ("papers", "cat"), {"limit": 3, "offset": 2, "mode": "dense", "model": "v1", "explain": True}),
    ("search", ("papers", "cat dog"), {"mode": "keyword", "hops": 1}),
    ("search_batch", ("papers", QUERIES), {"limit": 4, "hops": 2, "hop_strength": 0.5}),
    (
        "search",
        ("papers", 'river "stone lamp" -cat'),
        {"filter": {"i": {"lt": 40}}, "highlight": True, "score_threshold": 0.1, "operators": False},
    ),
    ("similar", ("papers", ["d001", "d002"]), {"unlike": ["d009"], "limit": 5, "explain": True}),
    ("similar", ("papers", ["d001"]), {"query": "lamp", "filter": {"i": {"gte": 9}}}),
    ("search", ("papers",), {"vector": STATES[0], "limit": 4}),
    ("search", ("papers", "river stone"), {"vector": STATES[0], "explain": True}),
    ("search_batch", ("papers",), {"vectors": STATES, "limit": 4}),
    ("similar", ("papers", ["d001"]), {"vector": STATES[1]}),
    ("facets", ("papers", ["i", "none"]), {"filter": {"i": {"in": [1, 2, 3, 4]}}, "limit": 3}),
    ("documents", ("papers",), {"filter": {"i": {"lt": 9}}, "limit": 50}),
    ("attend", ("papers", QUERIES), {"filter": {"i": {"gte": 20}}, "model": "v1", "include": ["slopes"]}),
    ("attend", ("papers",), {"vectors": STATES, "include": ["keys", "values", "parts", "slopes"]}),
    ("attend", ("papers", QUERIES), {"vectors": STATES, "dtype": "float64", "model": "v1", "candidates": 5}),
    ("attend", ("papers", QUERIES), {"score": "gaussian", "width": 1.1, "mode": "dense", "pooling": "hard"}),
    ("attend", ("papers", QUERIES), {"model": "v3", "include": ["slopes", "parts"], "temperature": 0.3}),
    ("attend", ("papers", ["cat", "dog", "stone lamp"] * 50), {"candidates": 3, "include": ["parts"]}),
    ("predict", ("papers", QUERIES), {"field": "i", "evidence": 3}),
    ("predict", ("papers",), {"vectors": STATES, "field": "i", "candidates": 9}),
    ("predict", ("papers",), {"ids": ["d001", "d002"], "field": "i", "exclude": ["d001", "d002"]}),
]


@pytest.mark.parametrize(("name", "args", "options"), READS, ids=[f"{i}-{r[0]}" for i, r in enumerate(READS)])
def test_reads_answer_alike(
    apis: dict[str, Any], name: str, args: tuple[Any, ...], options: dict[str, Any]
) -> None:
    answers = {api: getattr(apis[api], name)(*args, **options) for api in apis}
    same(answers["http"], answers["local"], "http")
    same(answers["async"], answers["local"], "async")


def test_gradients_are_alike_and_pinned_to_their_stamp(apis: dict[str, Any]) -> None:
    queries = QUERIES * 40  # more than are asked at once
    states = np.random.default_rng(5).standard_normal((80, 32))
    attended = {
        api: apis[api].attend("papers", queries, vectors=states, dtype="float64", model="v1") for api in apis
    }
    weights = [np.linspace(-1, 1, len(ids)) for ids in attended["local"].ids]
    answers = {
        api: apis[api].vjp(
            "papers",
            queries,
            vectors=states,
            context=np.ones((80, 32)),
            weights=weights,
            scores=weights,
            dtype="float64",
            stamp=attended[api].stamp,
        )
        for api in apis
    }
    for api in ("http", "async"):
        assert (attended[api].ids, attended[api].stamp) == (attended["local"].ids, attended["local"].stamp)
        np.testing.assert_allclose(attended[api].weights, attended["local"].weights, rtol=1e-9)
        assert answers[api].stamp == attended[api].stamp
        np.testing.assert_allclose(answers[api].states, answers["local"].states, rtol=1e-9, atol=1e-12)
        for name, gradient in answers["local"].head.items():  # sums, of two parts here and of all there
            np.testing.assert_allclose(answers[api].head[name], gradient, rtol=1e-9, atol=1e-9)
    assert apis["http"].vjp("papers", ["cat"], context=np.ones((1, 32)), stamp=attended["http"].stamp).head
    assert (
        not apis["local"]
        .vjp("papers", ["cat"], context=np.ones((1, 32)), stamp=attended["local"].stamp, head=False)
        .head
    )


def lines() -> Iterator[Document | dict[str, Any]]:
    """More than a batch, from an iterator, with some that cannot be stored."""
    for document in documents(1100):
        if document.id == "d010":
            yield {
                "id": "lone",
                "text": "cat",
                "metadata": {"deep": {"list": [1, 2.5, None, True]}},
                "value": 2,
            }
        elif document.id in ("d020", "d1050"):
            yield {"id": "", "text": "no id"}
        elif document.id == "d030":
            yield {"id": "other", "text": "cat", "colour": "red", "metadata": {"colour": "blue"}}
        else:
            yield document


@pytest.mark.parametrize("api", ["http", "async", "local"])
def test_writes_are_alike(apis: dict[str, Any], api: str) -> None:
    asked, name = apis[api], f"written-{api}"
    made = asked.create_collection(name)
    assert (made.documents, made.name) == (0, name)
    assert asked.create_collection(name) == made
    cut = asked.create_collection(
        f"{name}-cut", passages={"tokens": 24, "overlap": 2}, kind="SQ8", search_fields=["who"]
    )
    assert cut.search_fields == ["who"]
    assert cut.passages == {"tokens": 24, "overlap": 2}
    with pytest.raises(Conflict, match="keeps its keys as SQ8"):
        asked.create_collection(f"{name}-cut", kind="Flat")
    written = asked.upsert(name, lines())
    assert (written.inserted, written.updated, written.refused) == (1097, 0, 3)
    assert [(one.line, one.code) for one in written.problems] == [
        (21, "invalid_document"),
        (31, "invalid_document"),
        (1051, "invalid_document"),
    ]
    again = asked.upsert(name, documents(5))
    assert (again.inserted, again.updated, again.unchanged) == (0, 0, 5)
    assert asked.upsert(name, []).inserted == 0
    lone = asked.get(name, "lone")
    assert (lone.value, lone.metadata) == (2.0, {"deep": {"list": [1, 2.5, None, True]}})
    for id in ("a/b", "..", ".", "a b?c#d%e", "ü\N{SNOWMAN}"):
        asked.upsert(name, [{"id": id, "text": "cat"}])
        assert asked.get(name, id).id == id
        assert asked.delete(name, id).deleted == 1
    ids: list[str] = []
    cursor = None
    while True:
        page = asked.documents(name, limit=500, cursor=cursor)
        ids += [document.id for document in page.documents]
        cursor = page.next
        if cursor is None:
            break
    assert len(ids) == len(set(ids)) == 1097
    assert asked.update_metadata(name, "d001", {"i": None, "colour": "red"}).metadata == {"colour": "red"}
    costs = asked.statistics(name)
    assert (costs["documents"], costs["delta"]["documents"]) == (1097, 1097)  # newer than the index
    assert asked.facets(name, ["colour"]).facets["colour"][0].documents == 1
    assert len(asked.facets(name, ["i"], limit=3).facets["i"]) == 3
    gone = asked.delete_many(name, ids=["d002", "none"])
    assert (gone.deleted, gone.missing) == (1, 1)
    assert asked.delete_many(name, filter={"i": {"gte": 1000}}).deleted == 99
    first = asked.search(name, "cat dog", limit=5)
    second = asked.search(name, "cat dog", limit=5, cursor=first.next_cursor)
    assert [hit.rank for hit in second.hits] == [6, 7, 8, 9, 10]
    event = {"action_name": "click", "object_id": "d005", "user_query": "cat dog", "client_id": "browser"}
    assert asked.feedback(name, [event]).events == 1
    again = asked.feedback(name, [event, {**event, "action_name": "purchase"}])
    assert (again.events, again.repeated) == (1, 1)
    if api != "local":
        shown = {"action_name": "click", "object_id": first.hits[0].id, "query_id": first.query_id}
        assert asked.feedback(name, [shown]).events == 1
    assert asked.search(name, "cat dog").hits
    head = asked.head("papers", "v1")
    added = asked.add_model(name, head, parent="v0", record={"loss": 0.5})
    assert (added.model, added.parent) == ("v1", "v0")
    assert asked.models(name).models[1].record["uploaded"] == {"loss": 0.5}
    promoted = asked.promote(name, "v1")
    assert (promoted.model, promoted.previous) == ("v1", "v0")
    same(asked.head(name, "v1"), head)
    with pytest.raises(Conflict, match="v1"):
        asked.delete_model(name, "v1")  # it answers
    back = asked.rollback(name)
    assert (back.model, back.previous) == ("v0", "v1")
    assert asked.models(name).live == "v0"
    assert asked.predict(name, ["cat"], field="i").stamp.model == "v0"
    asked.delete_model(name, "v1")
    assert [one.version for one in asked.models(name).models] == ["v0"]
    task = asked.wait_for_task(asked.refresh(name, kind="SQ8", queries=["cat"]).id, every_s=0.05)
    assert (task.kind, task.state, task.problem) == ("refresh", "done", None)
    assert asked.collection(name).generation == task.result["generation"] > made.generation
    assert (asked.task(task.id), asked.collection(name).keys["kind"]) == (task, "SQ8")
    assert asked.tasks(collection=name, state="done").tasks == [task]
    assert asked.cancel_task(task.id) == task  # it has ended and stays as it is
    queries = {f"q{n}": f"Title {n}" for n in range(40, 52)}
    judged = {f"q{n}": {f"d{n:03d}": 1} for n in range(40, 52)}
    tuned = asked.wait_for_task(asked.tune(name, queries, judged, accept=True).id, every_s=0.05)
    assert (tuned.kind, tuned.state, tuned.problem) == ("tune", "done", None)
    assert (tuned.result["model"], tuned.result["live"], tuned.result["examples"]) == ("v2", True, 12)
    trained = asked.train(name, queries=queries, judgements=judged, epochs=1, promote=False)
    trained = asked.wait_for_task(trained.id, every_s=0.05)
    assert (trained.kind, trained.state, trained.problem) == ("train", "done", None)
    assert (trained.result["model"], trained.result["live"], trained.result["parent"]) == ("v3", False, "v2")
    assert (trained.result["examples"], trained.result["epochs"]) == (12, 1)
    scored = asked.wait_for_task(asked.evaluate(name, queries, judged, model="v3").id, every_s=0.05)
    assert (scored.kind, scored.state, scored.problem) == ("evaluate", "done", None)
    assert list(scored.result["systems"]) == ["dense", "keyword", "hybrid", "trained v3"]
    first = asked.tasks(collection=name, limit=2)
    assert [one.id for one in first.tasks] == [scored.id, trained.id]
    rest = asked.tasks(collection=name, limit=2, cursor=first.next)
    assert [one.id for one in rest.tasks] == [tuned.id, task.id]
    few = asked.wait_for_task(asked.tune(name, {"q40": "cat"}, {"q40": {"d040": 1}}).id, every_s=0.05)
    assert (few.state, few.result, few.problem["code"]) == ("failed", None, "invalid_request")
    assert "1 judged query; tuning needs at least 10" in few.problem["detail"]
    asked.rollback(name)
    asked.delete_many(name, ids=["d004"])
    compacted = asked.wait_for_task(asked.compact(name).id, every_s=0.05)
    assert (compacted.kind, compacted.state, compacted.result["complete"]) == ("compact", "done", True)
    assert asked.statistics(name)["deleted"] == 0
    moved = asked.migrate(name, encoder="hashing")  # by which it is encoded already
    moved = asked.wait_for_task(moved.id, every_s=0.05)
    assert (moved.kind, moved.state, moved.problem["code"]) == ("migrate", "failed", "conflict")
    alias = f"{name}-today"
    assert asked.set_alias(alias, "papers").previous is None
    moved = asked.set_alias(alias, name)
    assert (moved.alias, moved.collection, moved.previous) == (alias, name, "papers")
    assert asked.aliases()[alias] == name
    assert [hit.id for hit in asked.search(alias, "cat").hits] == [
        hit.id for hit in asked.search(name, "cat").hits
    ]
    with pytest.raises(Conflict, match=alias):
        asked.delete_collection(name)
    asked.drop_alias(alias)
    assert alias not in asked.aliases()
    asked.delete_collection(name)
    with pytest.raises(DsearchError) as error:
        asked.collection(name)
    assert error.value.code == "collection_not_found"


@pytest.mark.parametrize("api", ["http", "async", "local"])
def test_documents_with_numbers_that_are_not_finite_are_left_out_and_listed(
    apis: dict[str, Any], api: str
) -> None:
    """And no other document, in whatever batch; the numbers of those that the server refuses stay right."""
    asked, name = apis[api], f"finite-{api}"
    asked.create_collection(name)

    def some() -> Iterator[Document | dict[str, Any]]:
        for number, document in enumerate(documents(1100), start=1):
            if number in (1, 700):
                yield {"id": f"n{number}", "text": "x", "metadata": {"deep": [{"d": math.nan}]}}
            elif number in (2, 1001):
                yield Document(f"n{number}", "x", value=[1.0, -math.inf])
            elif number in (3, 701, 1099):
                yield {"id": f"n{number}", "text": ""}
            else:
                yield document

    written = asked.upsert(name, some())
    assert (written.inserted, written.refused) == (1093, 7)
    assert [one.line for one in written.problems] == [1, 2, 3, 700, 701, 1001, 1099]
    assert {one.code for one in written.problems} == {"invalid_document"}
    assert all(f"'n{one.line}'" in one.detail for one in written.problems)
    assert ["nan" in one.detail or "inf" in one.detail for one in written.problems].count(True) == 4
    asked.delete_collection(name)


@pytest.mark.parametrize("api", ["http", "async", "local"])
def test_vectors_of_ones_own_are_alike(apis: dict[str, Any], api: str) -> None:
    asked, name = apis[api], f"vectors-{api}"
    rows = np.eye(3)
    assert asked.create_collection(name, dimension=3).documents == 0
    bare = [Document("a", "first"), {"id": "b", "text": "second"}]
    assert asked.upsert(name, bare, embeddings=rows[:2]).inserted == 2
    carried = [
        EmbeddedDocument("c", "third", embedding=rows[2].tolist()),
        {"id": "d", "text": "no vector"},
        {"id": "e", "text": "two numbers", "embedding": [1.0, 0.0]},
        {"id": "b", "text": "second", "embedding": rows[2].tolist()},
    ]
    written = asked.upsert(name, carried)
    assert (written.inserted, written.updated, written.refused) == (1, 1, 2)
    assert [(one.line, one.code) for one in written.problems] == [
        (2, "invalid_document"),
        (3, "dimension_mismatch"),
    ]
    hits = asked.search(name, vector=rows[2]).hits
    assert [hit.id for hit in hits[:2]] == ["b", "c"] or [hit.id for hit in hits[:2]] == ["c", "b"]
    assert asked.upsert(name, bare, embeddings=2 * rows[:2]).updated == 1  # b, whose vector was another
    for wrong in (0 * rows[:2], rows[:1], rows[:2, :2], rows[:2] * np.nan):
        with pytest.raises(InvalidRequest):
            asked.upsert(name, bare, embeddings=wrong)
    with pytest.raises(InvalidRequest):
        asked.search(name, vector=[0.0, 0.0, 0.0])
    with pytest.raises(Conflict, match="embeddings of 3 numbers, not 4"):
        asked.create_collection(name, dimension=4)
    asked.delete_collection(name)


@pytest.mark.parametrize("api", ["http", "async", "local"])
def test_files_are_added_alike(apis: dict[str, Any], api: str, tmp_path: Path) -> None:
    asked, name = apis[api], f"files-{api}"
    asked.create_collection(name)
    (tmp_path / "a b.md").write_text("# River\n\nof zebras")
    task = asked.wait_for_task(asked.add_files(name, [tmp_path / "a b.md"]).id)
    assert (task.kind, task.state, task.problem) == ("files", "done", None)
    given = {'ü/"x".txt': b"stone", "table.csv": tmp_path / "t", "no.bin": b"\0"}
    (tmp_path / "t").write_text("id,text\n1,lamp\n")
    task = asked.wait_for_task(asked.add_files(name, given).id)
    assert [(one["name"], one["ids"]) for one in task.result["files"]] == [
        ('ü/"x".txt', ['ü/"x".txt']),
        ("table.csv", ["1"]),
        ("no.bin", []),
    ]
    found = {document.id: (document.title, document.text) for document in asked.documents(name).documents}
    assert found == {"a b.md": ("River", "of zebras"), 'ü/"x".txt': ('"x"', "stone"), "1": ("", "lamp")}
    failed = asked.wait_for_task(asked.add_files(name, {"no.bin": b"\0"}).id)
    assert (failed.state, failed.problem["code"]) == ("failed", "invalid_source")
    assert failed.result["left_out"] == 1
    asked.delete_collection(name)


WRONG: list[tuple[str, tuple[Any, ...], dict[str, Any], str]] = [
    ("collection", ("none",), {}, "collection_not_found"),
    ("collection", ("No Name!",), {}, "invalid_request"),
    ("get", ("papers", "none"), {}, "document_not_found"),
    ("delete", ("papers", "none"), {}, "document_not_found"),
    ("upsert", ("papers", [{"id": "", "text": "x"}]), {}, "invalid_document"),
    ("upsert", ("none", [{"id": "x", "text": "x"}]), {}, "collection_not_found"),
    ("add_files", ("none", {"a.txt": b"x"}), {}, "collection_not_found"),
    ("add_files", ("papers", []), {}, "invalid_request"),
    ("add_files", ("papers", "a.txt"), {}, "invalid_request"),
    ("add_files", ("papers", ["no/such/file.txt"]), {}, "invalid_request"),
    ("add_files", ("papers", ["/etc/hostname", "/etc/hostname"]), {}, "invalid_request"),
    ("search", ("papers", " "), {}, "invalid_request"),
    ("search", ("papers", "cat"), {"limit": 0}, "invalid_request"),
    ("search", ("papers", "cat"), {"model": "v99"}, "model_not_found"),
    ("attend", ("papers",), {}, "invalid_request"),
    ("attend", ("papers",), {"vectors": [[1.0, 2.0]]}, "dimension_mismatch"),
    ("attend", ("papers",), {"vectors": [[1.0, float("nan")]]}, "invalid_request"),
    ("attend", ("papers", ["cat"]), {"vectors": STATES}, "invalid_request"),
    ("attend", ("papers", ["cat"]), {"stamp": Stamp(1, "v0", 10**6)}, "conflict"),
    ("attend", ("papers", ["cat"]), {"stamp": Stamp(1, "v0", 0)}, "gone"),
    ("attend", ("papers", ["cat"]), {"temprature": 1.0}, "invalid_request"),
    ("attend", ("papers", ["cat"]), {"score": "gaussian", "width": "wide"}, "invalid_request"),
    ("attend", ("papers", ["cat"]), {"score": "fuzy"}, "invalid_request"),
    ("search", ("papers", "cat"), {"limt": 3}, "invalid_request"),
    ("search", ("papers", "cat"), {"fields": [1]}, "invalid_request"),
    ("predict", ("papers", ["cat"]), {"field": ""}, "invalid_request"),
    ("predict", ("papers",), {"field": "i"}, "invalid_request"),
    ("predict", ("papers", ["cat"]), {"field": "i", "ids": ["d001"]}, "invalid_request"),
    ("predict", ("papers", ["cat", "sea"]), {"field": "i", "vectors": STATES}, "invalid_request"),
    ("predict", ("papers",), {"field": "i", "ids": ["none"]}, "document_not_found"),
    ("promote", ("papers", "v99"), {}, "model_not_found"),
    ("similar", ("papers", ["none"]), {}, "document_not_found"),
    ("facets", ("papers", ["a..b"]), {}, "invalid_request"),
    ("search", ("papers", "cat"), {"filter": {"i": {"near": 3}}}, "invalid_request"),
    ("search", ("papers", "cat"), {"cursor": "bm9uZQ"}, "invalid_cursor"),
    ("search", ("papers", "cat"), {"score_threshold": math.inf}, "invalid_request"),
    ("search", ("papers", "cat"), {"score_threshold": np.float32("nan")}, "invalid_request"),
    ("search", ("papers", "cat"), {"filter": {"i": {"gte": -math.inf}}}, "invalid_request"),
    ("search", ("papers", "cat"), {"filter": {"i": {"eq": math.nan}}}, "invalid_request"),
    ("similar", ("papers", ["d001"]), {"score_threshold": math.nan}, "invalid_request"),
    ("documents", ("papers",), {"filter": {"i": {"lt": math.inf}}}, "invalid_request"),
    ("upsert", ("papers", [{"id": "n", "text": "x", "metadata": {"d": math.nan}}]), {}, "invalid_document"),
    ("upsert", ("papers", [Document("n", "x", value=math.inf)]), {}, "invalid_document"),
    ("upsert", ("papers", [{"id": 10**30, "text": "x"}]), {}, "invalid_document"),
    ("update_metadata", ("papers", "d001", {"i": math.nan}), {}, "invalid_document"),
    ("evaluate", ("papers", JUDGED[0], {"q": {"d001": math.nan}}), {}, "invalid_request"),
    ("delete_many", ("papers",), {}, "invalid_request"),
    ("update_metadata", ("papers", "none", {}), {}, "document_not_found"),
    ("create_collection", ("klingon",), {"language": "klingon"}, "invalid_request"),
    ("set_alias", ("papers", "papers"), {}, "collection_exists"),
    ("set_alias", ("latest", "none"), {}, "collection_not_found"),
    ("set_alias", ("No Name!", "papers"), {}, "invalid_request"),
    ("drop_alias", ("none",), {}, "not_found"),
    ("feedback", ("papers", []), {}, "invalid_request"),
    (
        "feedback",
        ("papers", [{"action_name": "frown", "object_id": "d001", "user_query": "cat"}]),
        {},
        "invalid_request",
    ),
    ("head", ("papers", "v99"), {}, "model_not_found"),
    ("add_model", ("papers", {"key_delta": np.zeros((32, 32))}), {}, "invalid_request"),
    ("refresh", ("none",), {}, "collection_not_found"),
    ("refresh", ("papers",), {"kind": "Fast"}, "invalid_request"),
    ("refresh", ("papers",), {"recall_target": 2.0}, "invalid_request"),
    ("compact", ("none",), {}, "collection_not_found"),
    ("migrate", ("none",), {}, "collection_not_found"),
    ("migrate", ("papers",), {"encoder": "other"}, "conflict"),
    ("tune", ("papers", {}, {}), {}, "invalid_request"),
    ("train", ("papers",), {}, "invalid_request"),
    ("train", ("papers",), {"self_supervised": True, "epochs": 0}, "invalid_request"),
    ("train", ("papers",), {"self_supervised": True, "epochs": "3"}, "invalid_request"),
    ("train", ("papers",), {"self_supervised": True, "scope": "all"}, "invalid_request"),
    ("train", ("papers",), {"queries": {"q": "cat"}}, "invalid_request"),
    ("train", ("none",), {"self_supervised": True}, "collection_not_found"),
    ("evaluate", ("papers", {}, {}), {}, "invalid_request"),
    ("evaluate", ("papers", *JUDGED), {"systems": [{"mode": "sparse"}]}, "invalid_request"),
    ("evaluate", ("papers", *JUDGED), {"systems": [{}], "model": "v1"}, "invalid_request"),
    ("evaluate", ("none", *JUDGED), {}, "collection_not_found"),
    ("tasks", (), {"cursor": "next"}, "invalid_request"),
    ("tasks", (), {"limit": 0}, "invalid_request"),
    ("tasks", (), {"state": "asleep"}, "invalid_request"),
    ("cancel_task", ("none",), {}, "task_not_found"),
    ("task", ("none",), {}, "task_not_found"),
    ("wait_for_task", ("none",), {}, "task_not_found"),
]


@pytest.mark.parametrize(
    ("name", "args", "options", "code"), WRONG, ids=[f"{i}-{w[0]}" for i, w in enumerate(WRONG)]
)
def test_errors_are_alike(
    apis: dict[str, Any], name: str, args: tuple[Any, ...], options: dict[str, Any], code: str
) -> None:
    kinds = {}
    for api in apis:
        with pytest.raises(DsearchError) as error:
            getattr(apis[api], name)(*args, **options)
        assert error.value.code == code, (api, error.value)
        assert str(error.value)
        kinds[api] = type(error.value)
    assert kinds["http"] is kinds["async"] is kinds["local"]


def test_a_local_upsert_checks_each_document_once(
    local: LocalEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    checked: list[object] = []
    check = validate._prepare
    monkeypatch.setattr(validate, "_prepare", lambda one: checked.append(one.id) or check(one))
    local.create_collection("checked")
    given: list[Any] = [{"id": "a", "text": "cat"}, {"id": ["b"], "text": "x"}, {"id": "c", "text": "dog"}]
    written = local.upsert("checked", given)
    assert (written.inserted, written.refused, checked) == (2, 1, ["a", ["b"], "c"])
    assert "the document (id \"['b']\") has a list as its id; use a string" in written.problems[0].detail


@pytest.mark.parametrize("api", ["http", "async", "local"])
def test_outcomes_of_tasks_are_alike(apis: dict[str, Any], api: str) -> None:
    asked = apis[api]
    task = f"task-{api}"
    asked.search("papers", "river stone", limit=3, episode=task)
    [page] = asked.search_batch("papers", ["river"], limit=3, episode=task)
    ids = [hit.id for hit in page.hits]
    assert asked.get("papers", ids[1], episode=task).id == ids[1]
    told = {"useful_ids": ids[:1], "success": True, "client_id": f"run-{api}"}
    first = asked.report_outcome("papers", task, **told)
    assert first.events >= 2
    assert asked.report_outcome("papers", task, **told).repeated == first.events
    for episode, options in (("none", told), (task, {**told, "useful_ids": ["none"]})):
        with pytest.raises(InvalidRequest, match="no search of"):
            asked.report_outcome("papers", episode, **options)


@pytest.mark.parametrize("api", ["http", "async", "local"])
def test_a_task_goes_by_each_name_of_a_collection(apis: dict[str, Any], api: str) -> None:
    asked, task, alias = apis[api], f"named-{api}", f"today-{api}"
    asked.set_alias(alias, "papers")
    found = asked.similar(alias, ["d001"], query="river", limit=3, episode=task)  # a search with words
    ids = [hit.id for hit in found.hits]
    asked.get(alias, ids[1], episode=task)
    told = {"useful_ids": ids[:1], "success": True, "client_id": f"run-{api}"}
    assert asked.report_outcome("papers", task, **told).events == 2
    assert asked.report_outcome(alias, task, **told).repeated == 2
    asked.drop_alias(alias)
