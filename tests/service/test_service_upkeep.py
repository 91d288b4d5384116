"""Upkeep over HTTP, as tasks: tuning, keys kept otherwise, compaction; searches and writes go on."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from service_fakes import ORIGIN, WordEncoder
from starlette.testclient import TestClient
from test_service_tasks import JUDGED, URL, app_of, ask, ended, events, until_running

from dsearch.engine import Collection, SearchEngine, rebuild
from dsearch.processes import Report
from dsearch.service import task_work
from dsearch.types import Document

SECRET = "zanzibarquux"


@pytest.fixture
def client(engine: SearchEngine) -> Iterator[TestClient]:
    with TestClient(app_of(engine), base_url=ORIGIN) as connected:
        yield connected


def holding(folder: Path, word: str) -> list[str]:
    return [path.name for path in folder.rglob("*") if path.is_file() and word.encode() in path.read_bytes()]


def test_a_tuned_search_is_a_version(client: TestClient, papers: Collection) -> None:
    id = ask(client, "tune", {**JUDGED, "accept": True, "exclude": {"q0": ["d010"], "q1": ["nobody"]}})
    task = ended(client, id)
    assert task["state"] == "done", task
    result = task["result"]
    assert (result["model"], result["live"], result["parent"], result["examples"]) == ("v1", True, "v0", 11)
    assert result["left_out"] == {"queries without a known positive": 1}
    assert set(result["scores"]) == {"untuned", "dense", "keyword", "tuned", "cross-validated"}
    assert [kind for _, kind, _ in events(client, id)][-2:] == ["progress", "end"]
    (_, v1) = client.get(f"{URL}/models").json()["models"]
    assert (v1["live"], v1["record"]["scope"], v1["record"]["task"]) == (True, "tune", id)
    assert client.get(f"{URL}/search?q=cat").json()["model"] == "v1"
    few = {name: dict(list(of.items())[:3]) for name, of in JUDGED.items()}
    task = ended(client, ask(client, "tune", few))
    assert (task["state"], task["problem"]["code"]) == ("failed", "invalid_request")


def test_keys_are_kept_otherwise(client: TestClient, papers: Collection) -> None:
    body = {"kind": "HNSW", "recall_target": 0.9, "queries": ["cat", "river stone", "music"]}
    built = ended(client, ask(client, "refresh", body))
    assert built["state"] == "done", built
    assert (built["result"]["keys"]["kind"], built["result"]["keys"]["recall_target"]) == ("HNSW", 0.9)
    again = ended(client, ask(client, "refresh"))
    assert again["result"]["keys"]["kind"] == "HNSW"
    assert again["result"]["generation"] == built["result"]["generation"] + 1


@pytest.mark.parametrize(
    ("kind", "body", "said"),
    [
        ("tune", {}, "give queries and judgements"),
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
        task = ended(client, ask(client, "compact"))
    finally:
        over.set()
        for thread in threads:
            thread.join()
    assert problems == []
    assert next(searches) > 10
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
    monkeypatch.setattr(task_work, "READERS_S", 0.2)
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
