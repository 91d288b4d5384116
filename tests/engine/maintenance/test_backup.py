"""Copies with everything that cannot be computed again, and collections made of them."""

from __future__ import annotations

import errno
import gc
import shutil
import signal
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.fakes import HashingEncoder
from support.forked import Forks, said
from support.paths import SUPPORT

from dsearch.engine import Collection, SearchEngine
from dsearch.engine.indexing.leases import retire
from dsearch.engine.maintenance.backup import back_up, restore
from dsearch.engine.maintenance.compact import compact
from dsearch.engine.models.confidence import Calibrations
from dsearch.errors import (
    CollectionExists,
    CollectionNotFound,
    Conflict,
    CorruptData,
    DsearchError,
    InsufficientStorage,
    ModelNotFound,
    Unavailable,
)
from dsearch.evaluation.confidence import Calibration, Logistic
from dsearch.index import Manifest
from dsearch.store import Impression, Store
from dsearch.types import Document

PROGRAM = "interrupted_maintenance"


@pytest.fixture(scope="module")
def forks() -> Iterator[Forks]:
    with Forks(SUPPORT / "engine", PROGRAM) as ready:
        yield ready


@pytest.fixture
def trained(collection: Collection) -> Collection:
    """With a model that answers, fresh rows and deleted ones."""
    head = collection.head("v0")
    collection.promote(collection.add_model(head, {"note": "kept"}))
    collection.upsert([Document(id="fresh", text="apple banana")])
    collection.delete(["d1"])
    return collection


def restored(tmp_path: Path, encoder: HashingEncoder) -> SearchEngine:
    return SearchEngine(tmp_path / "elsewhere", encoder=lambda: encoder)


def test_a_copy_answers_as_the_original_did(
    engine: SearchEngine, trained: Collection, tmp_path: Path, encoder: HashingEncoder
) -> None:
    before = trained.search("apple cheese", limit=20)
    encoded = encoder.encoded
    report = engine.backup("food", tmp_path / "copy")
    trained.delete([f"d{i}" for i in range(10)])
    compact(trained)  # what the copy has is its own
    with restored(tmp_path, encoder) as other:
        made = other.restore(tmp_path / "copy")
        assert made.name == "food"
        answer = made.search("apple cheese", limit=20)
        assert answer.hits == before.hits
        assert answer.stamp.model == "v1"
        assert made.store.model("v1").record["note"] == "kept"
        assert other.verify("food").ok
        made.upsert([Document(id="more", text="apple")])
        assert made.refresh() > report.generation  # type: ignore[operator]
    assert encoder.encoded == encoded + 1
    assert (report.documents, report.models) == (16, ("v1",))
    on_disk = [path for path in (tmp_path / "copy").rglob("*") if path.is_file()]
    assert report.size_bytes == sum(path.stat().st_size for path in on_disk)


def test_a_reader_can_back_up_while_another_process_writes(
    engine: SearchEngine, trained: Collection, tmp_path: Path, encoder: HashingEncoder
) -> None:
    done = threading.Event()

    def write() -> None:
        number = 0
        while not done.is_set():
            number += 1
            trained.upsert([Document(id="x", text=f"apple number{number}")])
            trained.refresh()

    writer = threading.Thread(target=write)
    writer.start()
    try:
        with SearchEngine(engine.home.path, readonly=True, encoder=HashingEncoder) as reader:
            reports = []
            for i in range(5):
                reports.append(reader.backup("food", tmp_path / f"copy{i}"))
                while trained.store.sequence == reports[-1].sequence:  # the next copy has another state
                    time.sleep(0.001)
    finally:
        done.set()
        writer.join()
    assert len({report.sequence for report in reports}) > 1
    for i, report in enumerate(reports):
        with SearchEngine(tmp_path / f"home{i}", encoder=lambda: encoder) as other:
            other.restore(tmp_path / f"copy{i}")
            checked = other.verify("food")
            assert checked.ok, checked.damage
            assert report.generation is None or report.generation in checked.generations


def test_what_is_copied_is_not_retired_meanwhile(
    engine: SearchEngine, trained: Collection, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    number = trained.refresh()
    copytree = shutil.copytree

    def late(source: Path | str, *given: Any, **named: Any) -> None:
        if Path(source).parent.name == "generations":
            for _ in range(5):
                trained.refresh()
            gc.collect()
            retire(trained.store)
        copytree(source, *given, **named)

    monkeypatch.setattr(shutil, "copytree", late)
    assert engine.backup("food", tmp_path / "copy").generation == number
    assert number in retire(trained.store)


def test_feedback_comes_along(
    trained: Collection, engine: SearchEngine, tmp_path: Path, encoder: HashingEncoder
) -> None:
    shown = Impression("q1", "apple", 1.0, ids=("d0",))
    trained.feedback.record([shown], [])
    engine.backup("food", tmp_path / "copy")
    with restored(tmp_path, encoder) as other:
        assert other.restore(tmp_path / "copy").feedback.impression("q1") == shown
    engine.migrate("food", HashingEncoder(48, "newer"))
    assert engine.collection("food").feedback.impression("q1") == shown
    with pytest.raises(Unavailable, match="replaced"):
        trained.feedback.record([shown], [])


@pytest.mark.parametrize("lost", ["whole", "keys.faiss", "flipped"])
def test_a_generation_that_is_lost_is_built_again(
    engine: SearchEngine, trained: Collection, tmp_path: Path, encoder: HashingEncoder, lost: str
) -> None:
    before = trained.search("apple cheese", limit=20).hits
    engine.backup("food", tmp_path / "copy")
    generations = tmp_path / "copy" / "generations"
    (folder,) = generations.iterdir()
    if lost == "whole":
        shutil.rmtree(generations)
    elif lost == "keys.faiss":
        (folder / "keys.faiss").unlink()
    else:
        content = bytearray((folder / "embeddings.npy").read_bytes())
        content[-1] ^= 1
        (folder / "embeddings.npy").write_bytes(content)
    with restored(tmp_path, encoder) as other:
        made = other.restore(tmp_path / "copy")
        assert {hit.id for hit in made.search("apple cheese", limit=20).hits} == {hit.id for hit in before}
        assert lost == "whole" or made.snapshot.generation.number > int(folder.name)
    with restored(tmp_path, encoder) as other:
        assert other.verify("food").ok


def test_a_damaged_generation_is_left_out_of_a_backup(
    engine: SearchEngine, trained: Collection, tmp_path: Path
) -> None:
    folder = trained.snapshot.generation.folder
    (folder / "rows.npy").write_bytes(b"damaged")
    report = engine.backup("food", tmp_path / "copy")
    assert report.generation is None
    assert not (tmp_path / "copy" / "generations" / folder.name).exists()


def test_a_generation_of_another_build_is_left_out_of_a_backup(
    engine: SearchEngine, trained: Collection, tmp_path: Path
) -> None:
    """Each of its own digests agrees; a restored collection would refuse it."""
    folder = trained.snapshot.generation.folder
    manifest = Manifest.read(folder)
    (folder / "manifest.json").write_bytes(replace(manifest, sequence=manifest.sequence + 1).to_bytes())
    assert engine.backup("food", tmp_path / "copy").generation is None
    assert not (tmp_path / "copy" / "generations" / folder.name).exists()


def test_damage_of_what_cannot_be_computed_again_is_refused(
    engine: SearchEngine, trained: Collection, tmp_path: Path, encoder: HashingEncoder
) -> None:
    engine.backup("food", tmp_path / "copy")
    for name, position in {"models/v1/head.safetensors": -1, "documents.db": None, "watermark": 20}.items():
        path = tmp_path / "copy" / name
        whole = path.read_bytes()
        damaged = bytearray(whole)
        damaged[whole.find(b"number3") if position is None else position] ^= 1
        if name == "watermark":
            damaged[4096 + 20] ^= 1
        path.write_bytes(damaged)
        with restored(tmp_path, encoder) as other:
            with pytest.raises(CorruptData):
                other.restore(tmp_path / "copy")
            assert other.names() == []
        path.write_bytes(whole)
    head = trained.store.path / "models" / "v1" / "head.safetensors"
    whole = head.read_bytes()
    head.write_bytes(whole[:-1])
    with pytest.raises(CorruptData, match="nothing was backed up"):
        engine.backup("food", tmp_path / "another")
    assert not (tmp_path / "another").exists()
    head.unlink()
    with pytest.raises(CorruptData, match="cannot be read"):
        engine.backup("food", tmp_path / "another")
    head.write_bytes(whole)
    with restored(tmp_path, encoder) as other, pytest.raises(ModelNotFound):
        other.restore(tmp_path / "copy").head("v2")


@pytest.mark.parametrize("version", ["v1", "v2"])
def test_damage_of_any_model_is_refused(
    engine: SearchEngine, trained: Collection, tmp_path: Path, encoder: HashingEncoder, version: str
) -> None:
    trained.add_model(trained.head("v0"), {})
    engine.backup("food", tmp_path / "copy")
    for home in (trained.store.path, tmp_path / "copy"):
        head = home / "models" / version / "head.safetensors"
        head.write_bytes(head.read_bytes()[:-1])
    with pytest.raises(CorruptData, match=f"model {version}: .*nothing was backed up"):
        engine.backup("food", tmp_path / "another")
    with (
        restored(tmp_path, encoder) as other,
        pytest.raises(CorruptData, match=f"model {version}: .*nothing was restored"),
    ):
        other.restore(tmp_path / "copy")


def test_a_backup_among_collections_is_refused(
    engine: SearchEngine, trained: Collection, tmp_path: Path
) -> None:
    (tmp_path / "link").symlink_to(engine.home.path)
    before = sorted(engine.home.path.rglob("*"))
    for path in (engine.home.path / "copy", trained.store.path / "copy", tmp_path / "link" / "copy"):
        with pytest.raises(Conflict, match="where every folder is a collection's; give a place outside"):
            engine.backup("food", path)
    assert sorted(engine.home.path.rglob("*")) == before


def test_what_stands_in_the_way_is_refused(
    engine: SearchEngine, trained: Collection, tmp_path: Path, encoder: HashingEncoder
) -> None:
    engine.backup("food", tmp_path / "copy")
    with pytest.raises(Conflict, match="give each backup a folder of its own"):
        engine.backup("food", tmp_path / "copy")
    with pytest.raises(CollectionExists, match="a backup keeps its name; restore it into another home"):
        engine.restore(tmp_path / "copy")
    with pytest.raises(CollectionNotFound, match="no backup in"):
        engine.restore(tmp_path / "none")
    with restored(tmp_path, encoder) as other:
        other.create("drinks")
        other.set_alias("food", "drinks")
        with pytest.raises(CollectionExists, match="'food' is an alias of 'drinks'"):
            other.restore(tmp_path / "copy")
    with SearchEngine(tmp_path / "elsewhere", readonly=True) as reader, pytest.raises(DsearchError):
        reader.restore(tmp_path / "copy")


@pytest.mark.crash
@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "full"), InsufficientStorage("the home's folder")])
def test_a_full_disk_of_the_backup_is_named(
    collection: Collection, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def fail(*arguments: object) -> None:
        raise error

    monkeypatch.setattr("dsearch.engine.maintenance.backup.copy_feedback", fail)
    place = tmp_path / "backup"
    with pytest.raises(
        InsufficientStorage, match="disk of the backup is full; nothing stands there"
    ) as caught:
        back_up(collection.store, place)
    assert str(caught.value).startswith(str(place))
    assert not place.exists()


@pytest.mark.parametrize(
    "moment", ["before damaged_model_files", "before _copy_generation", "after _copy_generation"]
)
def test_a_backup_that_is_killed_leaves_nothing_under_its_name(
    forks: Forks, engine: SearchEngine, trained: Collection, tmp_path: Path, moment: str
) -> None:
    home = engine.home.path
    home.rename(tmp_path / "theirs")  # the script opens it for itself
    (tmp_path / "theirs" / "food").rename(tmp_path / "theirs" / "papers")
    target = tmp_path / "copies" / "copy"
    trained.close()
    engine.home.unlock()
    arguments = ["backup", tmp_path / "theirs", 0, moment, target]
    status, seen = forks.run(PROGRAM, arguments, tmp_path / "out", kill=said(f"waits at {moment}"))
    assert status == -signal.SIGKILL, seen
    assert not target.exists()
    with SearchEngine(tmp_path / "theirs", encoder=HashingEncoder) as again:
        assert again.verify("papers").ok
        assert again.backup("papers", target).models == ("v1",)
    assert [path.name for path in target.parent.iterdir()] == ["copy"]  # what the kill left was swept away


def test_every_file_beside_the_documents_comes_back(
    engine: SearchEngine, collection: Collection, tmp_path: Path
) -> None:
    """Calibrations of versions among them, without which answers have no confidence."""
    logistic = Logistic([0.0], [1.0], [1.0], 0.0)
    calibration = Calibration(logistic, logistic, 0.5, 0.25, "judgements", 7, 9)
    collection.calibrations.keep("v0", calibration)
    back_up(collection.store, tmp_path / "copy")
    restore(tmp_path / "restored", tmp_path / "copy")
    with Store.open(tmp_path / "restored", readonly=True) as store:
        assert Calibrations(store).of("v0") == calibration
