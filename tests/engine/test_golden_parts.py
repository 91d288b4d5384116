"""A home with every kind of part that versions and collections ever had opens, and says what became of it.

index/every-part was written by the code of commit 97142932 with the encoder `HashingEncoder(8)`. home.tar.xz
has the home and a backup of `clicked`; expected.json has the answers of each version. Whoever removes a part
changes the line of its version in `FATES` or `FATES_OF_VALUES`.

- `every`: a second stage with tokens; v1 to v10 for searches, v11 to v13 for predictions; a calibration with
  a fit of near queries; a null slot, influences of training queries, excitation, a query memory.
- `clicked`: embeddings by onnx in float32; clicks, rows of outcomes, a row of a judged query; documents of
  files that were attached to a vector store.
- `by-int8`: embeddings by onnx in int8.
- The home's uploaded files and tasks, and a clean close of each collection.
"""

from __future__ import annotations

import json
import shutil
import tarfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient
from support.fakes import HashingEncoder
from support.paths import EVERY_PART
from support.service.apps import patient_app
from support.service.service_fakes import ORIGIN

from dsearch.client import LocalEngine
from dsearch.engine import Collection, SearchEngine
from dsearch.engine.evaluate import trained_on
from dsearch.errors import EncoderMismatch, Gone
from dsearch.service.state import LEFT_FOLDER
from dsearch.types import Document, Query

EXPECTED: dict[str, Any] = json.loads((EVERY_PART / "expected.json").read_text())

KEPT = "live with the same hits, if it was promoted"
ANCESTOR = "listed; its nearest ancestor that is served is live in its place"
LISTED = "listed, and never searched"
FATES = {
    ("every", "v0"): KEPT,
    ("every", "v1"): KEPT,  # influences of training queries
    ("every", "v2"): KEPT,  # null slot
    ("every", "v3"): KEPT,  # objective in-batch
    ("every", "v4"): KEPT,  # objective approx-ndcg
    ("every", "v5"): KEPT,  # objective margin
    ("every", "v6"): KEPT,  # excitation
    ("every", "v7"): KEPT,  # query memory
    ("every", "v8"): KEPT,  # second stage, linear; calibrated for near queries
    ("every", "v9"): ANCESTOR,  # second stage with a matrix between tokens
    ("every", "v10"): ANCESTOR,  # second stage with fields of the metadata
    ("clicked", "v0"): KEPT,
    ("clicked", "v1"): KEPT,
    ("clicked", "v2"): KEPT,  # rows of outcomes
}
FATES_OF_VALUES = {
    "v11": LISTED,  # objective value
    "v12": LISTED,  # objective context, whose attention was its own
    "v13": LISTED,  # objective contrastive
}


@pytest.fixture(scope="module")
def extracted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("every-part")
    with tarfile.open(EVERY_PART / "home.tar.xz") as archive:
        archive.extractall(folder, filter="data")
    return folder


@pytest.fixture
def home(extracted: Path, tmp_path: Path) -> Path:
    """A copy: opening a collection for writing changes its files."""
    return Path(shutil.copytree(extracted / "home", tmp_path / "home"))


def opened(home: Path, *, readonly: bool = False) -> SearchEngine:
    return SearchEngine(home, readonly=readonly, encoder=lambda: HashingEncoder(8))


def served(name: str, version: str) -> str:
    """The version itself, or its nearest ancestor that is kept."""
    while FATES[name, version] is not KEPT:
        version = EXPECTED[name]["versions"][version]["parent"]
    return version


def require_answers(
    collection: Collection, version: str, model: str | None, modes: Sequence[str] = ()
) -> None:
    """Compare the answers of `model` with those that `version` gave when the home was written."""
    for before in EXPECTED[collection.name]["versions"][version]["answers"]:
        if modes and before["mode"] not in modes:
            continue
        hits = collection.search(before["query"], limit=5, mode=before["mode"], model=model).hits
        assert [hit.id for hit in hits] == [id for id, _ in before["hits"]], before
        assert [hit.score for hit in hits] == pytest.approx([score for _, score in before["hits"]], abs=1e-5)


def test_every_version_has_a_fate() -> None:
    versions = {(name, version) for name in ("every", "clicked") for version in EXPECTED[name]["versions"]}
    assert versions == {*FATES, *(("every", version) for version in FATES_OF_VALUES)}


@pytest.mark.parametrize("readonly", [True, False])
@pytest.mark.parametrize(("name", "version"), FATES)
def test_a_promoted_version_is_live_or_sent_back(home: Path, name: str, version: str, readonly: bool) -> None:
    with opened(home) as engine:
        engine.collection(name).store.promote(version)
    live = served(name, version)
    with opened(home, readonly=readonly) as engine:
        collection = engine.collection(name)
        assert collection.live_model == collection.search("honey").stamp.model == live
        require_answers(collection, live, None)
        require_answers(collection, live, live)
        assert (collection.describe().model_problem is None) == (live == version)
        if live != version:
            with pytest.raises(Gone, match=f"model {version}"):
                collection.search("honey", model=version)
        assert collection.store.verify().ok


@pytest.mark.parametrize("version", FATES_OF_VALUES)
def test_a_version_for_values_is_only_listed(home: Path, version: str) -> None:
    with opened(home) as engine:
        collection = engine.collection("every")
        with pytest.raises(Gone, match=f"model {version}"):
            collection.search("honey", model=version)
        with pytest.raises(Gone, match=f"model {version}"):
            collection.predict(["honey"], field="price", model=version)
        with pytest.raises(Gone, match=f"model {version}"):
            collection.promote(version)


def test_versions_are_listed_with_what_became_of_them(home: Path) -> None:
    with LocalEngine(opened(home, readonly=True)) as client:
        for name in ("every", "clicked"):
            listed = {one.version: one.problem for one in client.models(name).models}
            fates = {version: fate for (of, version), fate in FATES.items() if of == name}
            fates |= FATES_OF_VALUES if name == "every" else {}
            assert {version: problem is None for version, problem in listed.items()} == {
                version: fate is KEPT for version, fate in fates.items()
            }


@pytest.mark.parametrize("readonly", [True, False])
def test_what_was_live_is_live(home: Path, readonly: bool) -> None:
    with opened(home, readonly=readonly) as engine:
        for name in ("every", "clicked"):
            collection = engine.collection(name)
            live = served(name, EXPECTED[name]["live"])
            assert collection.live_model == live
            require_answers(collection, live, None)
            assert engine.verify(name).ok
        collection = engine.collection("every")  # predictions had a live version of their own
        assert collection.predict(["honey"], field="price").stamp.model == collection.live_model


def test_queries_that_a_version_learned_from_are_recognised(home: Path) -> None:
    with opened(home, readonly=True) as engine:
        collection = engine.collection("every")
        texts = [*EXPECTED["every"]["trained_on"], "which nobody asked"]
        queries = [Query(f"q{at}", text) for at, text in enumerate(texts)]
        states = HashingEncoder(8).encode_queries(texts)
        for version in ("v1", "v2", "v3", "v4", "v5", "v6", "v7", "v8"):
            assert trained_on(collection, version, queries, states) == ["q0", "q1", "q2"]


@pytest.mark.parametrize("version", ["v2", "v8"])
def test_weights_and_confidence_need_no_lost_part(home: Path, version: str) -> None:
    """Of a version that had a weight for "nothing fits", and of one with a calibration for near queries."""
    with opened(home, readonly=True) as engine:
        answer = engine.collection("every").search("honey", model=version, limit=100)
        assert sum(hit.weight for hit in answer.hits) == pytest.approx(1, abs=1e-5)
        assert answer.confidence is not None or version == "v2"


def test_feedback_and_rows_of_the_query_memory_are_read(home: Path) -> None:
    with opened(home) as engine:
        collection, before = engine.collection("clicked"), EXPECTED["clicked"]
        pages = list(collection.feedback.pages())
        assert len(pages) == before["feedback"]["pages"]
        assert sum(len(page.events) for page in pages) == before["feedback"]["events"]
        sources = [row.source for row in collection.remembered.rows()]
        assert {source: sources.count(source) for source in sources} == before["remembered"]
        assert collection.feedback.clear(key="key0") == before["feedback"]["events"] / 4


def test_a_backup_is_restored(extracted: Path, tmp_path: Path) -> None:
    with opened(tmp_path / "empty") as engine:
        collection = engine.restore(extracted / "backup")
        for version in EXPECTED["clicked"]["versions"]:
            if FATES["clicked", version] is KEPT:
                require_answers(collection, version, version)
        assert collection.live_model == served("clicked", EXPECTED["clicked"]["live"])
        assert len(list(collection.feedback.pages())) == EXPECTED["clicked"]["feedback"]["pages"]
        assert engine.verify("clicked").ok


def test_embeddings_in_int8_are_searched_by_words(home: Path) -> None:
    with opened(home, readonly=True) as engine:
        collection = engine.collection("by-int8")
        require_answers(collection, "v0", None, ["keyword"])
        for mode in ("dense", "hybrid"):
            with pytest.raises(EncoderMismatch, match="migrate"):
                collection.search("honey", mode=mode)
        assert engine.verify("by-int8").ok


def test_embeddings_in_int8_are_migrated(home: Path) -> None:
    with opened(home) as engine:
        engine.migrate("by-int8")
        require_answers(engine.collection("by-int8"), "v0", None)


def test_tasks_are_listed_and_files_of_vector_stores_stay_and_are_named(
    home: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with opened(home) as engine, TestClient(patient_app(engine), base_url=ORIGIN) as client:
        tasks = client.get("/v1/tasks").json()["tasks"]
        assert [[task["id"], task["kind"], task["state"]] for task in tasks] == EXPECTED["tasks"]
    records = [json.loads(place.read_text()) for place in (home / LEFT_FOLDER).glob("*.json")]
    assert sorted(record["filename"] for record in records) == EXPECTED["uploaded"]
    assert str(home / LEFT_FOLDER) in caplog.text


@pytest.mark.parametrize("name", ["every", "clicked"])
def test_it_can_be_written_on(home: Path, name: str) -> None:
    with opened(home) as engine:
        collection = engine.collection(name)
        collection.upsert([Document(id="new", text="fresh papaya", metadata={"price": 2.0, "year": 2001})])
        collection.refresh()
        assert collection.search("fresh papaya").hits[0].id == "new"
    with opened(home) as engine:
        assert engine.verify(name).ok
        assert "new" in [hit.id for hit in engine.collection(name).search("fresh papaya").hits]
