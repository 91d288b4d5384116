"""The catalogue: what it opens and for whom, what it lists, and who waits while one is deleted."""

from __future__ import annotations

import shutil
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient
from support.guarded import guarded
from support.patience import LATEST_S
from support.service.service_fakes import WordEncoder

from dsearch.engine import Collection, PassageOptions, SearchEngine
from dsearch.errors import (
    CollectionExists,
    CollectionNotFound,
    Conflict,
    CorruptData,
    InsufficientStorage,
    NotFound,
)
from dsearch.results import CollectionDamaged, CollectionInfo
from dsearch.service.collections import Catalogue
from dsearch.types import EmbeddedDocument

checked = guarded(Catalogue, "_holds", "_leaving", "_used", lock="_changed")


@pytest.fixture
def catalogue(engine: SearchEngine) -> Catalogue:
    return Catalogue(engine)


def test_only_what_is_used_and_still_there_is_open(catalogue: Catalogue, papers: Collection) -> None:
    assert catalogue.opened() == []
    for name in ("notes", "letters"):
        assert catalogue.create(name)
        assert not catalogue.create(name)
    catalogue.set_alias("mail", "letters")
    assert not catalogue.create("mail")
    with catalogue.using("papers"), catalogue.writing("notes"):
        assert catalogue.opened() == ["notes", "papers"]
    catalogue.drop("notes")
    assert catalogue.opened() == ["papers"]
    assert catalogue.engine.names() == ["letters", "papers"]
    with catalogue.using("mail"):
        assert catalogue.opened() == ["letters", "papers"]  # by its own name


def test_a_damaged_collection_can_be_dropped(client: TestClient, engine: SearchEngine) -> None:
    with SearchEngine(engine.home.path.with_name("made"), encoder=WordEncoder) as made:
        made.create("broken")
    shutil.copytree(engine.home.path.with_name("made") / "broken", engine.home.path / "broken")
    (engine.home.path / "broken" / "documents.db").write_bytes(b"no database " * 1000)
    assert client.get("/v1/collections/broken").json()["code"] == "corrupt_data"
    assert client.delete("/v1/collections/broken").status_code == 204
    assert client.get("/v1/collections").json() == {"collections": []}


def test_a_collection_is_made_as_wanted(catalogue: Catalogue) -> None:
    catalogue.create("notes", language="german", passages=PassageOptions(tokens=32, overlap=4), kind="SQ8")
    info = catalogue.describe("notes")
    assert info.language == "german"
    assert info.passages is not None
    assert (info.passages["tokens"], info.passages["overlap"]) == (32, 4)
    catalogue.create("fields", search_fields=["name"])
    with pytest.raises(Conflict):
        catalogue.create("fields", search_fields=["other"])
    with pytest.raises(Conflict):
        catalogue.create("notes", language="english")
    with pytest.raises(Conflict):
        catalogue.create("notes", kind="Flat")


@pytest.mark.parametrize("way", ["using", "writing", "whole"])
def test_the_encoder_is_loaded_for_what_encodes_texts_before_it_begins(
    catalogue: Catalogue, papers: Collection, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    loaded: list[str] = []
    monkeypatch.setattr(SearchEngine, "load_encoder", lambda self: loaded.append("once"))
    with getattr(catalogue, way)("papers") as collection:
        assert (collection.name, loaded) == ("papers", [])
    with getattr(catalogue, way)("papers", encoder=True) as collection:
        assert (collection.name, loaded) == ("papers", ["once"])


def test_a_collection_of_given_embeddings_needs_no_encoder(tmp_path: Path) -> None:
    loaded: list[None] = []

    def encoder() -> WordEncoder:
        loaded.append(None)
        return WordEncoder()

    with SearchEngine(tmp_path / "home", encoder=encoder) as engine:
        catalogue = Catalogue(engine)
        catalogue.create("given", dimension=4)
        assert engine.collection("given").store.dimension == 4
        with catalogue.writing("given", encoder=True) as collection:
            collection.upsert([EmbeddedDocument("a", "x", embedding=[1.0, 0.0, 0.0, 0.0])])
        assert loaded == []
        catalogue.create("papers")
        assert loaded == [None]
        with catalogue.using("papers", encoder=True):
            catalogue.engine.load_encoder()
        assert loaded == [None]


def test_what_cannot_be_opened_is_listed_with_its_problem(
    catalogue: Catalogue, papers: Collection, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("gone", "broken"):
        catalogue.create(name)
    describe = catalogue.describe

    def failing(name: str) -> CollectionInfo:
        if name == "gone":
            raise CollectionNotFound("deleted since it was listed")
        if name == "broken":
            raise CorruptData("damaged")
        return describe(name)

    monkeypatch.setattr(catalogue, "describe", failing)
    broken, listed = catalogue.describe_all()
    assert isinstance(broken, CollectionDamaged)
    assert (broken.name, "damaged" in str(broken.problem)) == ("broken", True)
    assert isinstance(listed, CollectionInfo)
    assert listed.name == "papers"


def test_a_missing_collection_names_those_there_are_and_how_to_make_it(
    catalogue: Catalogue, monkeypatch: pytest.MonkeyPatch
) -> None:
    make = "Make one with: PUT /v1/collections/none"
    with pytest.raises(CollectionNotFound, match=f"^no collection 'none'; there is none yet. {make}$"):
        catalogue.describe("none")
    monkeypatch.setattr(catalogue.engine, "names", lambda: [f"c{number:02}" for number in range(21)])
    with pytest.raises(CollectionNotFound) as refused:
        catalogue.drop("none")
    assert "there are: c00, c01," in str(refused.value)
    assert "c19. Make" in str(refused.value)


def test_aliases_lead_to_collections(catalogue: Catalogue, papers: Collection) -> None:
    first = catalogue.set_alias("live", "papers")
    assert (first.alias, first.collection, first.previous) == ("live", "papers", None)
    catalogue.create("notes")
    catalogue.set_alias("other", "live")
    assert catalogue.engine.aliases() == {"live": "papers", "other": "papers"}
    assert catalogue.set_alias("live", "notes").previous == "papers"
    with catalogue.using("live") as collection:
        assert collection.name == "notes"
    with pytest.raises(CollectionExists):
        catalogue.set_alias("notes", "papers")
    with pytest.raises(CollectionNotFound):
        catalogue.set_alias("more", "none")
    catalogue.engine.drop_alias("live")
    with pytest.raises(NotFound):
        catalogue.engine.drop_alias("live")


def test_jobs_hold_their_collection_until_they_return(catalogue: Catalogue, papers: Collection) -> None:
    def named(collection: Collection, *parts: str, end: str) -> tuple[str, bool]:
        return "".join([collection.name, *parts, end]), collection in catalogue._holds

    assert catalogue.call(named, "papers", "-", end="!")() == ("papers-!", True)
    assert catalogue.write(named, "papers", "+", end="?")() == ("papers+?", True)
    assert papers not in catalogue._holds


def test_a_deletion_waits_for_those_that_hold_and_keeps_new_ones_out(
    catalogue: Catalogue, papers: Collection
) -> None:
    """Forced: the reader lets go only after the deletion is known to wait and a new reader has come."""
    dropped, refused = threading.Event(), threading.Event()

    def drop() -> None:
        catalogue.drop("papers")
        dropped.set()

    def read() -> None:
        try:
            with catalogue.using("papers"):
                pass
        except CollectionNotFound:
            refused.set()

    dropping, reading = threading.Thread(target=drop), threading.Thread(target=read)
    with catalogue.using("papers"), catalogue.using("papers"):
        dropping.start()
        while "papers" not in catalogue._leaving:
            time.sleep(0.001)
        reading.start()
        reading.join(0.05)
        assert not refused.is_set()
        assert not dropped.is_set()
    for thread in (dropping, reading):
        thread.join(LATEST_S)
    assert dropped.is_set()
    assert refused.is_set()
    assert catalogue._leaving == set()


def test_a_deletion_that_failed_keeps_nobody_out(
    catalogue: Catalogue, engine: SearchEngine, papers: Collection, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(name: str) -> None:
        raise InsufficientStorage(name)

    monkeypatch.setattr(engine, "drop", full)
    with pytest.raises(InsufficientStorage):
        catalogue.drop("papers")
    assert catalogue._leaving == set()
    with catalogue.using("papers") as collection:
        assert collection is papers


def test_a_replaced_collection_is_closed_when_the_last_that_holds_it_is_done(
    catalogue: Catalogue, engine: SearchEngine, papers: Collection, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed = threading.Event()
    prepared: Any = object()
    monkeypatch.setattr(papers, "close", closed.set)
    monkeypatch.setattr(engine, "finish_migration", lambda name, prepared, close: close(papers))
    finishing = threading.Thread(target=catalogue.finish_migration, args=("papers", prepared))
    with catalogue.using("papers"):
        finishing.start()
        while finishing.is_alive() and not catalogue._changed._waiters:  # type: ignore[attr-defined]
            time.sleep(0.001)
        assert finishing.is_alive()
        assert not closed.is_set()
    finishing.join(LATEST_S)
    assert closed.is_set()
