"""Upkeep over HTTP, as tasks: tuning, keys kept otherwise, compaction; searches and writes go on."""

from __future__ import annotations

import itertools
import subprocess
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient
from support.service.apps import patient_app
from support.service.service_fakes import ORIGIN, WordEncoder, newer_words, open_both
from support.service.tasks import JUDGED, URL, app_of, ask, ended, events, until_running

from dsearch.engine import Collection, SearchEngine, rebuild
from dsearch.errors import EncoderMismatch
from dsearch.processes import Report
from dsearch.service.tasks import manager
from dsearch.types import Document, Progress

SECRET = "zanzibarquux"


@pytest.fixture
def client(engine: SearchEngine) -> Iterator[TestClient]:
    with TestClient(app_of(engine), base_url=ORIGIN) as connected:
        yield connected


def holding(folder: Path, word: str) -> list[str]:
    """Files in which a word stands. Another process looks: closing a file here would drop SQLite's locks."""
    found = subprocess.run(["grep", "-rlaF", word, str(folder)], capture_output=True, text=True)
    return found.stdout.splitlines()


@pytest.mark.parametrize(
    ("kind", "body", "said"),
    [
        ("tune", {}, "queries is missing"),
        ("tune", {"queries": {}, "judgements": {}}, "give queries and judgements"),
        ("tune", {**JUDGED, "exclude": {"q0": "d010"}}, "query id → at most 1000 document ids"),
        ("tune", {**JUDGED, "alpha": 1}, "use a number between 0 and 1"),
        ("refresh", {"kind": "Fast"}, "use one of Flat"),
        ("refresh", {"recall_target": 0}, "a number above 0, up to 1"),
        ("refresh", {"encoder": "other"}, "encoder"),
    ],
)
def test_what_is_no_upkeep_is_refused(
    client: TestClient, papers: Collection, kind: str, body: Any, said: str
) -> None:
    answered = client.post(f"{URL}/{kind}", json=body)
    assert (answered.status_code, answered.json()["code"]) == (422, "invalid_request"), answered.text
    assert said in answered.json()["detail"]
    assert client.get("/v1/tasks").json()["tasks"] == []


def test_compaction_beside_searches_and_writes(client: TestClient, papers: Collection) -> None:
    """No query fails, no write is lost, and what was deleted before is in no file afterwards."""
    papers.ingest([Document(f"s{i}", f"cat {SECRET}{i}", metadata={"note": SECRET * 9}) for i in range(20)])
    papers.refresh()
    papers.delete([f"s{i}" for i in range(20)])
    folder = papers.store.path
    assert holding(folder, SECRET)
    over, problems, searches = threading.Event(), [], itertools.count()
    numbers = itertools.count(1000)

    def search() -> None:
        while not over.is_set():
            answered = client.post(f"{URL}/search", json={"query": "cat dog", "limit": 50})
            next(searches)
            if answered.status_code != 200 or SECRET in answered.text:
                problems.append(answered.text)

    def write() -> None:
        while not over.is_set():
            number = next(numbers)
            body = [{"id": f"n{number}", "text": f"cat number{number}"}]
            answers = [client.put(f"{URL}/documents", json=body)]
            if number % 2:
                answers.append(client.delete(f"{URL}/documents/n{number}"))
            problems.extend(one.text for one in answers if one.status_code >= 300)

    threads = [threading.Thread(target=one) for one in (search, search, write)]
    for thread in threads:
        thread.start()
    try:
        before = next(searches)
        task = ended(client, ask(client, "compact"))
        meanwhile = next(searches) - before
    finally:
        over.set()
        for thread in threads:
            thread.join()
    assert problems == []
    assert meanwhile > 1
    assert task["state"] == "done", task
    result = task["result"]
    assert (result["complete"], result["held"], result["kept"]) == (True, [], 0)
    assert result["rows"] >= 20
    assert holding(folder, SECRET) == []
    assert [one.number for one in papers.store.generations()] == [result["generation"]]
    there = {document.id for document in papers.store.list(limit=1000)}
    last = next(numbers)
    assert {f"n{number}" for number in range(1000, last)} & there == {
        f"n{number}" for number in range(1000, last, 2)
    }
    assert papers.store.verify().damage == ()


def test_another_process_that_reads_keeps_what_was_deleted_and_that_is_told(
    engine: SearchEngine, client: TestClient, papers: Collection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(manager, "READERS_S", 0.2)
    with SearchEngine(engine.home.path, readonly=True, encoder=WordEncoder) as reader:
        number = reader.collection("papers").snapshot.generation.number
        papers.delete(["d001"])
        result = ended(client, ask(client, "compact"))["result"]
        assert (result["complete"], result["held"]) == (False, [number])
    assert ended(client, ask(client, "compact"))["result"]["complete"]


def build_for_ever(report: Report, *_: Any) -> None:
    """Stands in for the build of an index."""
    threading.Event().wait(600)


def test_a_compaction_is_cancelled_and_gone_on_with_after_a_stop(
    engine: SearchEngine, papers: Collection, monkeypatch: pytest.MonkeyPatch
) -> None:
    generations = [one.number for one in papers.store.generations()]
    with monkeypatch.context() as slow:
        slow.setattr(rebuild, "build_in_child", build_for_ever)
        with TestClient(app_of(engine), base_url=ORIGIN) as client:
            cancelled = ask(client, "compact")
            until_running(client, cancelled)
            client.delete(f"/v1/tasks/{cancelled}")
            assert ended(client, cancelled)["state"] == "cancelled"
            assert [one.number for one in papers.store.generations()] == generations
            stopped = ask(client, "compact")
            until_running(client, stopped)
    with TestClient(app_of(engine), base_url=ORIGIN) as client:
        task = ended(client, stopped)
        assert (task["state"], task["attempts"], task["result"]["complete"]) == ("done", 1, True)


# ---- migration


@pytest.fixture
def moving(engine: SearchEngine, papers: Collection) -> Iterator[TestClient]:
    """A server whose settings have a next encoder."""
    engine.close()
    home = engine.home.path
    with SearchEngine(home, encoder=WordEncoder, next_encoder=newer_words) as opened:
        app = patient_app(opened, open_engine=partial(open_both, home), migrates_to="newer")
        with TestClient(app, base_url=ORIGIN) as connected:
            yield connected


def test_a_collection_moves_to_the_next_encoder_while_it_answers(
    moving: TestClient, engine: SearchEngine
) -> None:
    """No query fails, each is answered by the one state or the other, and no acknowledged write is lost."""
    over, problems, searches = threading.Event(), [], itertools.count()
    dimensions: set[int] = set()
    acknowledged: list[str] = []

    def search() -> None:
        while not over.is_set():
            answered = moving.post(f"{URL}/search", json={"query": "cat dog", "limit": 5})
            next(searches)
            if answered.status_code != 200 or len(answered.json()["hits"]) != 5:
                problems.append(answered.text)
            attended = moving.post(f"{URL}/attend", json={"queries": ["cat"], "include": ["keys"]})
            if attended.status_code == 200:
                dimensions.add(len(attended.json()["results"][0]["context"]))
            else:
                problems.append(attended.text)

    def write() -> None:
        for number in itertools.count():
            if over.is_set():
                return
            body = [{"id": f"n{number}", "text": f"cat number{number}"}]
            answered = moving.put(f"{URL}/documents", json=body)
            if answered.status_code == 200:
                acknowledged.append(f"n{number}")
            elif answered.status_code != 503:  # at the switch: try again
                problems.append(answered.text)

    threads = [threading.Thread(target=one) for one in (search, search, write)]
    for thread in threads:
        thread.start()
    try:
        task = ended(moving, ask(moving, "migrate"))
        until = next(searches) + 10
        while next(searches) < until or len(acknowledged) <= 5:
            threading.Event().wait(0.05)
    finally:
        over.set()
        for thread in threads:
            thread.join()
    assert problems == []
    assert task["state"] == "done", task
    result = task["result"]
    assert (result["encoder"], result["folder"]) == ("newer", "papers@2")
    assert result["encoded"] >= 148
    assert dimensions == {32, 48}
    assert {progress["stage"] for _, kind, progress in events(moving, task["id"]) if kind == "progress"} >= {
        "read",
        "encode",
        "keys",
    }
    ids: set[str] = set()
    cursor: dict[str, Any] = {}
    while cursor is not None:
        page = moving.get(f"{URL}/documents", params={"limit": 500, **cursor}).json()
        ids |= {document["id"] for document in page["documents"]}
        cursor = {"cursor": page["next"]} if page["next"] else None
    assert set(acknowledged) <= ids
    assert len(acknowledged) > 5
    home = engine.home.path
    assert sorted(path.name for path in home.glob("papers*")) == ["papers@2"]  # nobody held the older one
    # what was moved is trained and asked with its own encoder
    trained = ended(moving, ask(moving, "tune", {**JUDGED, "accept": True}))
    assert trained["state"] == "done", trained
    again = ended(moving, ask(moving, "migrate"))
    assert (again["state"], again["problem"]["code"]) == ("failed", "conflict")
    assert "is encoded by newer already" in again["problem"]["detail"]


def test_a_server_that_is_started_again_answers_for_both_encoders(
    moving: TestClient, engine: SearchEngine
) -> None:
    assert moving.put("/v1/collections/old").status_code == 201
    moving.put("/v1/collections/old/documents", json=[{"id": "a", "text": "cat"}])
    assert ended(moving, ask(moving, "migrate"))["state"] == "done"
    home = engine.home.path
    with (
        SearchEngine(home, readonly=True, encoder=WordEncoder, next_encoder=newer_words) as reader,
        TestClient(patient_app(reader), base_url=ORIGIN) as client,
    ):
        for name in ("old", "papers"):
            answered = client.get(f"/v1/collections/{name}/search?query=cat&mode=dense")
            assert answered.status_code == 200, answered.text
    with (
        SearchEngine(home, readonly=True, encoder=WordEncoder) as reader,  # that setting is gone
        pytest.raises(EncoderMismatch, match="was encoded by 'newer'"),
    ):
        reader.collection("papers").search("cat")


def test_a_request_chooses_no_encoder(moving: TestClient) -> None:
    answered = moving.post(f"{URL}/migrate", json={"encoder": "/etc/models/other"})
    assert (answered.status_code, answered.json()["code"]) == (409, "conflict")
    assert "this server moves collections to 'newer'; set next_encoder" in answered.json()["detail"]
    assert moving.post(f"{URL}/migrate", json={"path": "newer"}).status_code == 422
    assert moving.post("/v1/collections/none/migrate").status_code == 404
    assert moving.get("/v1/tasks").json()["tasks"] == []
    moving.delete(f"/v1/tasks/{ask(moving, 'migrate', {'encoder': 'newer'})}")


def test_a_migration_is_cancelled_and_gone_on_with(
    moving: TestClient, engine: SearchEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as slow:
        slow.setattr(manager, "prepare_job", encode_for_ever)
        id = ask(moving, "migrate")
        until_running(moving, id)
        moving.delete(f"/v1/tasks/{id}")
        assert ended(moving, id)["state"] == "cancelled"
    assert (engine.home.path / ".migrating-papers").is_dir()
    assert moving.get(URL).json()["encoder"]["name"] == "hashing"
    done = ended(moving, ask(moving, "migrate"))
    assert (done["state"], done["result"]["encoded"]) == ("done", 0)
    assert not (engine.home.path / ".migrating-papers").exists()


def encode_for_ever(report: Report, open_engine: Any, name: str) -> dict[str, Any]:
    """As `prepare_job`, which then does not end."""
    with open_engine() as engine:
        engine.prepare_migration(name)
    report(Progress("encode", 1, 2, 1.0))
    threading.Event().wait(600)
    return {}
