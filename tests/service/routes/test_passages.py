"""Long documents over HTTP: a hit says which passage it was found by."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from starlette.testclient import TestClient
from support.fakes import HashingEncoder
from support.service.apps import patient_app
from support.service.service_fakes import ORIGIN
from support.service.shapes import checked

from dsearch.engine import PassageOptions, SearchEngine
from dsearch.service.schemas.answers import SearchAnswer
from dsearch.types import Document

LONG = " ".join(f"filler{n}" for n in range(60)) + " unique needle"


@pytest.fixture
def client(tmp_path: Path) -> Iterator[TestClient]:
    with SearchEngine(tmp_path / "home", encoder=HashingEncoder) as engine:
        engine.create("notes", passages=PassageOptions(tokens=16)).ingest(
            [Document("long", LONG), Document("short", "a short needle")]
        )
        with TestClient(patient_app(engine), base_url=ORIGIN) as connected:
            yield connected


def test_a_hit_has_the_passage_that_it_was_found_by(client: TestClient) -> None:
    answered = client.post("/v1/collections/notes/search", json={"query": "unique needle", "mode": "dense"})
    got = checked(SearchAnswer, answered.json())
    by_id = {hit.id: hit for hit in got.hits}
    assert got.hits[0].id == "long"
    passage = by_id["long"].passage
    assert passage is not None
    assert passage.text.endswith("unique needle")
    assert LONG[passage.start : passage.end] == passage.text
    assert passage.ordinal > 2
    assert "passage" not in next(hit for hit in answered.json()["hits"] if hit["id"] == "short")
