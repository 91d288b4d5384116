"""Documents that an interrupted run left behind: every answer over HTTP says so."""

from __future__ import annotations

from starlette.testclient import TestClient

from dsearch.client import wire
from dsearch.engine import SearchEngine
from dsearch.types import Document, PendingDocuments


def test_waiting_documents_are_told_with_the_command_that_goes_on(
    engine: SearchEngine, client: TestClient
) -> None:
    collection = engine.create("notes")
    collection.store.upsert([Document(f"d{n}", f"river {n}") for n in range(3)])  # without embeddings
    answer = client.post("/v1/collections/notes/search", json={"query": "river"}).json()
    assert (answer["hits"], answer["waiting"]["documents"]) == ([], 3)
    assert answer["waiting"]["hint"] == {"name": "index", "arguments": ["-c", "notes"]}
    received = wire.search_result("river", answer)
    assert isinstance(received.waiting, PendingDocuments)
    assert received.waiting.hint.line() == "dsearch index -c notes"

    collection.ingest(())
    answer = client.post("/v1/collections/notes/search", json={"query": "river"}).json()
    assert len(answer["hits"]) == 3
    assert "waiting" not in answer
