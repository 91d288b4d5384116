from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI
from starlette.testclient import TestClient
from support.engine.copies import copied_collection
from support.service.apps import patient_app
from support.service.browsing import chromium, opened_page
from support.service.service_fakes import (
    NASTY,
    ORIGIN,
    WordEncoder,
    documents,
    filed_documents,
    open_words,
    serving,
)

from dsearch.engine import Collection, SearchEngine
from dsearch.training.confidence import calibrate_by_documents


@pytest.fixture
def encoder() -> WordEncoder:
    return WordEncoder()


@pytest.fixture
def app(engine: SearchEngine) -> FastAPI:
    return patient_app(engine, open_engine=partial(open_words, engine.home.path))


@pytest.fixture
def client(app: FastAPI) -> Iterator[TestClient]:
    with TestClient(app, base_url=ORIGIN) as connected:
        yield connected


@pytest.fixture(scope="session")
def built_papers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of `papers`, which is built once."""
    home = tmp_path_factory.mktemp("built") / "home"
    with SearchEngine(home, encoder=WordEncoder) as engine:
        collection = engine.create("papers")
        collection.ingest(documents(140))
        collection.upsert(documents(150)[140:])
        collection.delete(["d003", "d145"])
    return home / "papers"


@pytest.fixture
def papers(engine: SearchEngine, built_papers: Path) -> Collection:
    """A collection of 150 documents: 140 in the generation, 10 written after, one of each deleted."""
    return copied_collection(engine, built_papers)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The origin of a server in another process, with a collection of things that browsers must not run."""
    home = tmp_path_factory.mktemp("server") / "home"
    with SearchEngine(home, encoder=WordEncoder) as made:
        made.create("papers").ingest(documents(60))
        made.create("nasty").ingest(NASTY)
        made.create("filed").ingest(filed_documents())
        calibrate_by_documents(made.collection("filed"))
    with serving(home) as (origin, _):
        yield origin


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as launched:
        yield launched


@pytest.fixture
def page(browser: Any, server: str) -> Iterator[Any]:
    with opened_page(browser, server) as opened:
        yield opened
