"""Another encoder for a collection, beside the live one, and in its place at once."""

from __future__ import annotations

import gc
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
from support.fakes import HashingEncoder
from support.forked import Forks, said
from support.guarded import guarded
from support.paths import SUPPORT
from support.patience import LATEST_S

from dsearch.engine import Collection, PassageOptions, SearchEngine
from dsearch.engine.maintenance import migrate
from dsearch.engine.maintenance.compact import compact
from dsearch.engine.maintenance.migrate import migrating_folder
from dsearch.engine.options import KeyOptions
from dsearch.errors import (
    Cancelled,
    Conflict,
    EncoderMismatch,
    InsufficientStorage,
    InvalidRequest,
    Unavailable,
)
from dsearch.store import Event, Impression, MemoryRow, ModelRecord, Store
from dsearch.types import Document, Progress

checked = guarded(SearchEngine, "_open", lock="_opening")


PROGRAM = "interrupted_maintenance"
PAGE = Impression("q", "apple", 1.0, ids=("d1",))
EVENT = Event("e1", "q", "", "", "click", "d1", 1, 1.0, 1.0)


@pytest.fixture(scope="module")
def forks() -> Iterator[Forks]:
    with Forks(SUPPORT / "engine", PROGRAM) as ready:
        yield ready


@pytest.fixture
def newer() -> HashingEncoder:
    return HashingEncoder(48, "newer")


def folders(engine: SearchEngine) -> list[str]:
    return sorted(path.name for path in engine.home.path.iterdir() if path.is_dir())


def test_the_new_encoder_answers_and_the_old_one_is_gone(
    engine: SearchEngine, collection: Collection, newer: HashingEncoder
) -> None:
    collection.promote(collection.add_model(collection.head("v0"), {}))
    collection.upsert([Document(id="fresh", text="apple banana", metadata={"n": 1}, value=2.5)])
    collection.delete(["d1"])
    documents = collection.store.list(limit=100)
    stages: set[str] = set()
    done = engine.migrate("food", newer, on_progress=lambda step: stages.add(step.stage))
    assert (done.documents, done.encoded, done.models) == (16, 16, ("v1",))
    assert newer.encoded == 16
    assert stages >= {"read", "encode", "keys"}
    made = engine.collection("food")
    assert made is not collection
    assert made.store.list(limit=100) == documents
    assert made.store.encoder == newer.identity.to_dict()
    assert made.live_model == "v0"
    assert made.search("apple banana", limit=1).hits[0].id == "fresh"
    made.upsert([Document(id="more", text="lemon")])
    assert folders(engine) == ["food@2"]
    assert engine.names() == ["food"]
    assert engine.verify("food").ok
    home = engine.home.path
    engine.close()
    with SearchEngine(home, encoder=lambda: newer) as again:
        assert len(again.collection("food").search("lemon", limit=20).hits) == 17
        again.migrate("food", HashingEncoder())
        assert folders(again) == ["food@3"]
        again.drop("food")
        assert folders(again) == []
        again.create("food").ingest([Document("new", "lemon")])
        assert folders(again) == ["food"]
        assert again.collection("food").search("lemon", limit=1).hits[0].id == "new"  # by its own encoder


def test_remembered_queries_stay_and_are_encoded_anew(
    engine: SearchEngine, collection: Collection, newer: HashingEncoder
) -> None:
    """Grades of changed, deleted and purged documents are dropped, and rows without a text."""
    state = np.eye(32, dtype=np.float32)[0]
    of = collection.store.rows_of(["d1", "d2", "d3", "d4"])
    collection.remembered.add(
        [
            MemoryRow("zebra quantum", state, {of["d2"]: 2.0, of["d1"]: 1.0, of["d3"]: 0.5}, key="k"),
            MemoryRow("only d1", state, {of["d1"]: 1.0}),
            MemoryRow("", state, {of["d4"]: 1.0}, "clicks"),
        ]
    )
    collection.delete(["d1"])
    assert compact(collection).rows == 1
    collection.upsert([Document(id="d3", text="another text")])
    prepared = migrate.prepare(engine.home, collection.store, newer)
    late = MemoryRow("late", state, {of["d4"]: 1.0})
    collection.remembered.add([late])
    done = migrate.switch(engine.home, collection, newer, prepared)
    assert done is not None
    assert done.to_dict()["remembered"] == done.remembered == 2
    with Store.open(done.folder) as made:
        rows = made.judged()
        ids = [made.ids(np.array([*row.grades], np.int64)) for row in rows]
        assert [(row.text, row.key, [*row.grades.values()]) for row in rows] == [
            ("zebra quantum", "k", [2.0]),
            ("late", "", [1.0]),
        ]
        assert ids == [["d2"], ["d4"]]
        assert np.array_equal(
            np.stack([row.state for row in rows]), newer.encode_queries(["zebra quantum", "late"])
        )
        assert made.verify().ok


def test_the_replaced_edition_is_gone_whoever_still_has_a_state_of_it(
    engine: SearchEngine, collection: Collection, newer: HashingEncoder
) -> None:
    held = collection.snapshot
    folder = collection.store.path
    engine.migrate("food", newer)
    assert not folder.exists()
    assert held.generation.folder.is_relative_to(folder)


def test_keys_and_names_stay_as_they_were(engine: SearchEngine, newer: HashingEncoder) -> None:
    made = engine.create("food", keys=KeyOptions("SQ8"))
    made.ingest([Document(id="a", text="apple")])
    engine.set_alias("live", "food")
    engine.migrate("live", newer)
    assert engine.collection("live").snapshot.generation.dense.kind == "SQ8"
    assert engine.names() == ["food"]


def documents_of(collection: Collection) -> dict[str, Document]:
    return {document.id: document for document in collection.store.list(limit=1000)}


def test_the_last_state_of_the_source_is_that_of_the_target(
    engine: SearchEngine, collection: Collection, newer: HashingEncoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    last: list[dict[str, Document]] = []
    original = migrate._publish

    def publish(*given: object) -> Path:
        last.append(documents_of(collection))
        return original(*given)  # type: ignore[arg-type]

    monkeypatch.setattr(migrate, "_publish", publish)
    number = iter(range(1000))

    def write(step: Progress) -> None:
        n = next(number)
        collection.upsert([Document(id=f"during {n}", text=f"banana {n}")])
        collection.upsert([Document(id="d3", text=f"changed {n}")])
        collection.store.update_metadata("d4", {"stage": n})
        collection.delete([f"during {n - 3}"])
        collection.store.upsert([Document(id="pending", text=f"waits {n}")])
        collection.store.upsert([Document(id=f"passing {n}", text="x")])
        collection.store.delete([f"passing {n - 1}"])

    engine.migrate("food", newer, on_progress=write)
    made = engine.collection("food")
    assert documents_of(made) == last[0]
    assert next(number) > 4
    assert made.store.count().pending == 0
    assert engine.verify("food").ok


def test_searches_and_writes_go_on_and_no_acknowledged_write_is_lost(
    engine: SearchEngine, collection: Collection, newer: HashingEncoder
) -> None:
    acknowledged: list[str] = []
    problems: list[BaseException] = []
    done = threading.Event()

    def write() -> None:
        number = 0
        while not done.is_set():
            number += 1
            try:
                engine.collection("food").upsert([Document(id=f"w{number}", text=f"apple number{number}")])
                acknowledged.append(f"w{number}")
                assert engine.collection("food").search("apple", limit=1, mode="keyword").hits
            except Unavailable:
                continue  # at the moment of the switch
            except BaseException as error:
                problems.append(error)
                return

    writer = threading.Thread(target=write)
    writer.start()
    try:
        for encoder in (newer, HashingEncoder(), HashingEncoder(40, "third")):
            engine.migrate("food", encoder)
    finally:
        done.set()
        writer.join()
    assert problems == []
    assert len(acknowledged) > 10
    assert set(acknowledged) <= set(documents_of(engine.collection("food")))


def test_a_write_to_the_replaced_one_is_refused_not_lost(
    engine: SearchEngine, collection: Collection, newer: HashingEncoder
) -> None:
    engine.migrate("food", newer)
    with pytest.raises(Unavailable, match="open it again"):
        collection.upsert([Document(id="late", text="apple")])
    with pytest.raises(Unavailable):
        collection.delete(["d1"])


def test_a_write_just_before_the_switch_comes_along(
    engine: SearchEngine, collection: Collection, newer: HashingEncoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    stopped = Collection.writing_stopped

    def late(self: Collection) -> AbstractContextManager[None]:
        self.upsert([Document(id="d3", text="changed at last")])  # as many documents as before
        return stopped(self)

    monkeypatch.setattr(Collection, "writing_stopped", late)
    engine.migrate("food", newer)
    assert engine.collection("food").store.get("d3").text == "changed at last"


def test_a_writer_that_waited_for_the_switch_is_refused(
    engine: SearchEngine, collection: Collection, newer: HashingEncoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    models = type(collection.store).models
    refused: list[Unavailable] = []

    def late(store: Store) -> list[ModelRecord]:
        with pytest.raises(Unavailable) as caught:
            collection.upsert([Document(id="late", text="apple")])
        refused.append(caught.value)
        return models(store)

    monkeypatch.setattr(type(collection.store), "models", late)  # asked for after the switch, before all else
    engine.migrate("food", newer)
    assert refused


def test_another_process_reads_the_old_one_until_it_is_done(
    engine: SearchEngine, collection: Collection, newer: HashingEncoder
) -> None:
    with SearchEngine(engine.home.path, readonly=True, encoder=HashingEncoder) as reader:
        reading = reader.collection("food")
        before = reading.search("apple cheese", limit=20)
        engine.migrate("food", newer)
        assert folders(engine) == ["food", "food@2"]
        assert reading.search("apple cheese", limit=20).hits == before.hits
    with SearchEngine(engine.home.path, readonly=True, encoder=lambda: newer) as reader:
        assert reader.collection("food").store.dimension == 48
    home = engine.home.path
    engine.close()
    with SearchEngine(home, encoder=lambda: newer) as again:
        assert folders(again) == ["food@2"]
        assert again.collection("food").search("apple").hits


def test_cancelled_it_goes_on_later(
    engine: SearchEngine, collection: Collection, newer: HashingEncoder
) -> None:
    seen: list[str] = []
    with pytest.raises(Cancelled, match="called again it goes on"):
        engine.migrate(
            "food",
            newer,
            on_progress=lambda step: seen.append(step.stage),
            cancelled=lambda: "encode" in seen,
        )
    assert engine.collection("food") is collection
    assert collection.search("apple", limit=1).hits
    assert migrating_folder(engine.home, "food").is_dir()
    assert engine.names() == ["food"]
    encoded = newer.encoded
    assert encoded == 16
    assert engine.migrate("food", newer).encoded == 0
    assert newer.encoded == encoded


def test_a_dropped_collection_leaves_no_attempt_to_its_successor(
    engine: SearchEngine, collection: Collection, newer: HashingEncoder
) -> None:
    with pytest.raises(Cancelled):
        engine.migrate("food", newer, cancelled=lambda: True)
    assert migrating_folder(engine.home, "food").is_dir()
    engine.drop("food")
    assert not migrating_folder(engine.home, "food").exists()


def test_cut_short_behind_the_copy_of_the_feedback_it_goes_on(
    engine: SearchEngine, collection: Collection, newer: HashingEncoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    collection.feedback.record([PAGE], [EVENT])
    with monkeypatch.context() as cut:
        cut.setattr(migrate, "_publish", Mock(side_effect=KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            engine.migrate("food", newer)
    assert engine.migrate("food", newer).encoded == 0
    assert [one.events for one in engine.collection("food").feedback.pages()] == [(EVENT,)]


def test_a_full_disk_at_the_switch_leaves_a_collection_that_takes_feedback(
    engine: SearchEngine, collection: Collection, newer: HashingEncoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(migrate, "copy_feedback", Mock(side_effect=InsufficientStorage("full")))
    with pytest.raises(InsufficientStorage):
        engine.migrate("food", newer)
    assert engine.collection("food").feedback.record([PAGE], [EVENT]).events == 1


def test_an_attempt_with_another_encoder_begins_anew(
    engine: SearchEngine, collection: Collection, newer: HashingEncoder
) -> None:
    with pytest.raises(Cancelled):
        engine.migrate("food", newer, cancelled=lambda: True)
    other = HashingEncoder(20, "other")
    assert engine.migrate("food", other).encoded == 16
    assert engine.collection("food").store.dimension == 20


@pytest.mark.parametrize(
    "options",
    [{"language": "german"}, {"passages": PassageOptions(16, 4)}, {"passages": PassageOptions(none=True)}],
    ids=["language", "passages", "none"],
)
def test_an_attempt_goes_on_by_the_options_of_the_last_call(
    engine: SearchEngine, collection: Collection, newer: HashingEncoder, options: dict[str, Any]
) -> None:
    migrate.prepare(engine.home, collection.store, newer)
    polls = iter(range(200))  # it ends
    engine.migrate("food", newer, **options, cancelled=lambda: next(polls, None) is None)
    described = engine.collection("food").describe()
    passages = {"none": None, "passages": {"tokens": 16, "overlap": 4}}
    name = "language" if "language" in options else "none" if options["passages"].none else "passages"
    assert described.passages == passages.get(name, {"tokens": 256, "overlap": 32})
    assert described.language == options.get("language", "english")


def test_many_deletions_are_copied_before_writers_wait(
    engine: SearchEngine, collection: Collection, newer: HashingEncoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepared = migrate.prepare(engine.home, collection.store, newer)
    monkeypatch.setattr(migrate, "_FEW", 2)
    collection.delete(["d1", "d2", "d3"])
    assert migrate.switch(engine.home, collection, newer, prepared) is None
    assert engine.collection("food") is collection
    tries: list[int] = []

    def switch(*given: Any, **options: Any) -> Any:
        tries.append(len(tries))
        if len(tries) > 1:
            return original(*given, **options)
        collection.upsert([Document("late", "lemon")])
        return None

    original = migrate.switch
    monkeypatch.setattr(migrate, "switch", switch)
    done = engine.migrate("food", HashingEncoder(20, "other"))
    assert (done.documents, done.encoded, tries) == (14, 14, [0, 1])  # what each try encoded


def test_a_damaged_attempt_begins_anew(
    engine: SearchEngine, collection: Collection, newer: HashingEncoder
) -> None:
    with pytest.raises(Cancelled):
        engine.migrate("food", newer, cancelled=lambda: True)
    (migrating_folder(engine.home, "food") / "watermark").write_bytes(b"")
    assert engine.migrate("food", newer).encoded == 16


def test_what_cannot_be_migrated_is_refused(
    engine: SearchEngine, collection: Collection, newer: HashingEncoder
) -> None:
    with pytest.raises(Conflict, match="is encoded by hashing already"):
        engine.migrate("food")
    engine.create("images", dimension=4)
    with pytest.raises(EncoderMismatch):
        engine.migrate("images", newer)
    with SearchEngine(engine.home.path, readonly=True) as reader, pytest.raises(Conflict):
        reader.migrate("food", newer)
    assert folders(engine) == ["food", "images"]
    assert engine.migrate("food", HashingEncoder(48)).encoded == 16  # of the same name, another one


COUNT = 768
MOMENTS = [
    "before _copy_all",
    "after _copy_all",
    "encode 256",
    "encode 512",
    "after build_generation",
    "before _publish",
    "after _publish",
    "before clear_superseded",
]


@pytest.mark.crash
@pytest.mark.parametrize("moment", MOMENTS)
def test_killed_it_has_switched_or_goes_on(forks: Forks, tmp_path: Path, moment: str) -> None:
    home = tmp_path / "home"
    old, new = HashingEncoder(), HashingEncoder(48, "newer")
    with SearchEngine(home, encoder=lambda: old) as engine:
        made = engine.create("papers")
        made.ingest([Document(id=f"{i}", text=f"text number{i} of {i % 7}") for i in range(COUNT)])
        documents = documents_of(made)
    del made
    gc.collect()  # a generation is held for as long as somebody has it
    status, seen = forks.run(
        PROGRAM, ["migrate", home, COUNT, moment], tmp_path / "out", kill=said(f"waits at {moment}")
    )
    assert status == -signal.SIGKILL, seen
    switched = "after _publish" in seen
    present = new if switched else old
    with SearchEngine(home, encoder=lambda: present) as engine:
        assert engine.names() == ["papers"]
        assert engine.verify("papers").ok
        there = engine.collection("papers")
        assert documents_of(there) == documents
        assert there.store.encoder == present.identity.to_dict()
        assert there.search("number17", limit=1).hits[0].id == "17"
        if not switched:
            encoded = engine.migrate("papers", new).encoded
            assert encoded == new.encoded
            if moment == "encode 512":
                assert encoded <= COUNT - 512
            if moment in ("after build_generation", "before _publish"):
                assert encoded == 0
        assert documents_of(engine.collection("papers")) == documents
    del there
    until = time.monotonic() + LATEST_S
    left: list[str] = []
    while left != ["papers@2"] and time.monotonic() < until:
        gc.collect()
        with SearchEngine(home, encoder=lambda: new):  # what was still held goes at the next opening
            left = [path.name for path in home.iterdir() if path.is_dir()]
    assert left == ["papers@2"]


def test_the_switch_is_synced_after_the_new_edition_has_its_name(
    engine: SearchEngine, collection: Collection, newer: HashingEncoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A power cut must not bring back an edition that takes no more writes."""
    synced: list[tuple[Path, str]] = []
    sync = migrate.sync_folder

    def recording(folder: Path) -> None:
        synced.append((folder, engine.home.editions("food")[-1].name))
        sync(folder)

    monkeypatch.setattr(migrate, "sync_folder", recording)
    engine.migrate("food", newer)
    assert synced == [(engine.home.path, "food@2")]


def test_the_language_may_change(engine: SearchEngine, collection: Collection, newer: HashingEncoder) -> None:
    with pytest.raises(InvalidRequest, match="language='klingon'"):
        engine.migrate("food", newer, language="klingon")
    assert newer.encoded == 0
    engine.migrate("food", newer, language="german")
    assert engine.collection("food").describe().language == "german"
