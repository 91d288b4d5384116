"""Opening after a clean close: large files are taken as they are and proven in the background, and every
doubt ends in reading everything first."""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from support.fakes import HashingEncoder
from support.patience import LATEST_S

from dsearch.engine import Collection, SearchEngine
from dsearch.engine.indexing import clean_close
from dsearch.engine.indexing.clean_close import FILE_NAME, leave_clean_close, read_clean_close
from dsearch.engine.indexing.ingest import generation_folder
from dsearch.engine.maintenance.compact import folder_bytes
from dsearch.engine.maintenance.statistics import statistics
from dsearch.errors import CorruptData
from dsearch.index import Generation, Manifest
from dsearch.store import Store
from dsearch.store.sqlite import watermark
from dsearch.types import Document


@pytest.fixture(autouse=True)
def every_file_is_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dsearch.index.generation._PROVEN_AT_ONCE", -1)


@pytest.fixture
def home(tmp_path: Path, documents: list[Document]) -> Path:
    """Closed as it should be."""
    with opened(tmp_path / "home") as engine:
        engine.create("food").ingest(documents)
    return tmp_path / "home"


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """The proof in the background waits until this is set, or it is cancelled."""
    go, prove = threading.Event(), Generation.prove

    def waiting(generation: Generation, cancelled: Callable[[], bool] = lambda: False) -> None:
        while not go.wait(0.01) and not cancelled():
            pass
        prove(generation, cancelled)

    monkeypatch.setattr(Generation, "prove", waiting)
    return go


def opened(home: Path, *, readonly: bool = False) -> SearchEngine:
    return SearchEngine(home, readonly=readonly, encoder=HashingEncoder)


def marker(home: Path) -> Path:
    return home / "food" / FILE_NAME


def live_folder(collection: Collection) -> Path:
    return generation_folder(collection.store, collection.snapshot.generation.number)


def rot(home: Path, name: str = "keys.faiss") -> None:
    """A bit flips below the file system: nobody wrote, so identities stay what they were."""
    folder = max((home / "food" / "generations").iterdir())
    path = folder / name
    whole = bytearray(path.read_bytes())
    whole[-2] ^= 64
    path.write_bytes(whole)
    closed = read_clean_close(marker(home))
    assert closed is not None
    leave_clean_close(home / "food", replace(closed, files=Manifest.read(folder).identities(folder)))


def proven_at_once(home: Path) -> bool:
    with opened(home) as engine:
        return engine.collection("food").snapshot.generation.unproven == ()


def test_after_a_clean_close_nothing_is_read_before_the_first_answer(
    home: Path, held: threading.Event
) -> None:
    with opened(home) as engine:
        food = engine.collection("food")
        assert food.verification == {"state": "unopened", "problem": None}
        assert food.search("apple", limit=16).hits
        assert set(food.snapshot.generation.unproven) == set(food.snapshot.generation.manifest.files)
        assert food.verification == {"state": "running", "problem": None}
        assert engine.damaged() == []
        held.set()
        proof = food._live.proof
        assert proof is not None
        proof.wait()
        assert food.verification == statistics(food)["verification"] == {"state": "proven", "problem": None}


@pytest.mark.parametrize("ends", ["proven", "replaced"])
def test_a_proof_that_has_ended_holds_its_generation_no_longer(
    home: Path, held: threading.Event, ends: str
) -> None:
    with opened(home) as engine:
        food = engine.collection("food")
        first, proof = live_folder(food), food._live.proof
        assert proof is not None
        assert proof._thread is not None
        if ends == "proven":
            held.set()
        else:
            food.refresh()
        proof._thread.join(LATEST_S)
        assert not proof._thread.is_alive()
        for _ in range(4):
            food.refresh()
        assert not first.exists()


@pytest.mark.parametrize("name", ["keys.faiss", "embeddings.npy", "rows.npy"])
def test_damage_that_is_found_later_ends_all_answers(
    home: Path, held: threading.Event, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    rot(home, name)
    with opened(home) as engine:
        food = engine.collection("food")
        assert food.verification["state"] == "unopened"
        snapshot = food.snapshot  # nothing is known yet
        proof = food._live.proof
        assert proof is not None
        held.set()
        proof.wait()
        assert food.verification["state"] == "damaged"
        assert name in food.verification["problem"]
        assert (
            f"nothing is answered from a generation any more: {food.verification['problem']}" in caplog.text
        )
        for ask in (
            lambda: food.search("apple"),
            lambda: food.search("apple", mode="keyword"),
            lambda: food.search_batch(["apple"]),
            lambda: food.similar(["d0"]),
            lambda: food.attend(["apple"]),
            lambda: food.predict(["apple"], field="number"),
            lambda: food.layer_and_stamp(),
            lambda: food.snapshot,
        ):
            with pytest.raises(CorruptData, match=f"{name}: SHA-256 differs"):
                ask()
        assert statistics(food)["verification"]["state"] == "damaged"
        food.upsert([Document("late", "apple")])  # the documents are whole
        food.refresh()  # and so the index can be built again
        assert food.search("apple", limit=20).hits
        assert food.snapshot.generation.number == snapshot.generation.number + 1
        assert food.verification == {"state": "proven", "problem": None}
    with opened(home, readonly=True) as engine:
        assert engine.collection("food").search("late apple").hits


def test_an_answer_is_not_given_when_damage_is_found_while_it_is_computed(
    home: Path, held: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    rot(home)
    from dsearch.engine import collection as facade

    with opened(home) as engine:
        food = engine.collection("food")
        food.search("apple")

        def slow(original: Callable[..., object]) -> Callable[..., object]:
            def searched(*given: object, **named: object) -> object:
                found = original(*given, **named)
                held.set()
                assert food._live.proof is not None
                food._live.proof.wait()
                return found

            return searched

        monkeypatch.setattr(facade, "search", slow(facade.search))
        with pytest.raises(CorruptData):
            food.search("apple")


def test_damage_is_found_before_the_first_answer_after_an_unclean_close(home: Path, tmp_path: Path) -> None:
    rot(home)
    engine = opened(home)
    engine.collection("food")
    assert not marker(home).exists()
    # Killed here: the next one finds what a process leaves that did not close.
    killed = Path(shutil.copytree(home, tmp_path / "killed"))
    with opened(killed) as after, pytest.raises(CorruptData, match=r"keys\.faiss: SHA-256 differs"):
        after.collection("food").search("apple")
    engine.close()


def test_taking_it_is_durable(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise a power cut could bring it back for a process that died."""
    synced: list[tuple[Path, bool]] = []
    monkeypatch.setattr(
        clean_close, "sync_folder", lambda folder: synced.append((folder, marker(home).exists()))
    )
    with opened(home) as engine:
        engine.collection("food")
        assert synced == [(home / "food", False)]
    with opened(home, readonly=True) as engine:
        engine.collection("food")
        assert marker(home).exists()


@pytest.mark.parametrize("what", ["touched", "copied", "another size"])
def test_a_file_that_somebody_wrote_to_is_proven_first(home: Path, tmp_path: Path, what: str) -> None:
    assert not proven_at_once(home)
    folder = max((home / "food" / "generations").iterdir())
    if what == "touched":
        os.utime(folder / "keys.faiss")
    elif what == "copied":
        home = Path(shutil.copytree(home, tmp_path / "copy", copy_function=shutil.copy2))
        folder = max((home / "food" / "generations").iterdir())
    else:
        with (folder / "keys.faiss").open("ab") as file:
            file.write(b"x")
        with pytest.raises(CorruptData):
            proven_at_once(home)
        return
    with opened(home) as engine:
        unproven = engine.collection("food").snapshot.generation.unproven
    assert "keys.faiss" not in unproven


def test_it_holds_for_the_state_that_was_closed_alone(home: Path) -> None:
    with Store.open(home / "food") as store:  # another program
        store.delete(["d0"])
    assert proven_at_once(home)
    assert not proven_at_once(home)


@pytest.mark.parametrize("other", ["digest", "manifest_digest"])
def test_it_holds_for_that_state_and_no_other_of_its_number(home: Path, other: str) -> None:
    """As after a copy that was put back and written to again: sequence and generation count the same."""
    closed = read_clean_close(marker(home))
    assert closed is not None
    leave_clean_close(home / "food", replace(closed, **{other: "0" * 64}))
    assert proven_at_once(home)


def test_it_holds_for_a_day(home: Path) -> None:
    closed = read_clean_close(marker(home))
    assert closed is not None
    for proven_at, at_once in ((closed.proven_at - 23 * 3600, False), (closed.proven_at - 25 * 3600, True)):
        leave_clean_close(home / "food", replace(closed, proven_at=proven_at))
        assert proven_at_once(home) is at_once
    leave_clean_close(home / "food", replace(closed, proven_at=closed.proven_at + 1e6))
    assert proven_at_once(home)


def test_a_day_counts_from_the_last_proof_and_not_from_the_last_close(
    home: Path, held: threading.Event
) -> None:
    before = read_clean_close(marker(home))
    assert before is not None
    with opened(home) as engine:
        engine.collection("food").search("apple")  # closed before it was proven again
    after = read_clean_close(marker(home))
    assert after == before
    with opened(home) as engine:
        engine.collection("food").store.delete(["d1"])  # and one that nobody asks
    after = read_clean_close(marker(home))
    assert after is not None
    assert after.proven_at == before.proven_at
    assert after.sequence == before.sequence + 1
    with Store.open(home / "food", readonly=True) as store:  # the next opening takes it
        assert (after.sequence, bytes.fromhex(after.digest)) == store.state_digest()
    held.set()
    with opened(home) as engine:
        food = engine.collection("food")
        food.search("apple")
        assert food._live.proof is not None
        food._live.proof.wait()
    after = read_clean_close(marker(home))
    assert after is not None
    assert after.proven_at > before.proven_at


def test_a_damaged_one_counts_as_none(home: Path) -> None:
    whole = marker(home).read_bytes()
    for at in range(0, len(whole), 11):
        flipped = bytearray(whole)
        flipped[at] ^= 1 << (at % 8)
        marker(home).write_bytes(flipped)
        assert read_clean_close(marker(home)) in (None, read_clean_close_of(whole, home))
    marker(home).write_bytes(whole[: len(whole) // 2])
    assert proven_at_once(home)


def read_clean_close_of(content: bytes, home: Path) -> object:
    path = home / "whole"
    path.write_bytes(content)
    return read_clean_close(path)


def test_damage_leaves_none(home: Path) -> None:
    rot(home)
    with opened(home) as engine:
        food = engine.collection("food")
        _ = food._live.unverified
        assert food._live.proof is not None
        food._live.proof.wait()
    assert not marker(home).exists()
    with opened(home) as engine, pytest.raises(CorruptData):
        engine.collection("food").search("apple")


def test_a_failed_disk_leaves_none(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(file: int) -> None:
        raise OSError(5, "Input/output error")

    from dsearch.errors import Unavailable

    with opened(home) as engine:
        food = engine.collection("food")
        food.search("apple")
        monkeypatch.setattr(watermark, "sync_file", failing)
        with pytest.raises(Unavailable):
            food.delete(["d0"])
        monkeypatch.undo()
    assert not marker(home).exists()


def test_an_index_that_was_built_here_is_proven(home: Path) -> None:
    with opened(home) as engine:
        food = engine.collection("food")
        food.refresh()
        assert food.verification["state"] == "proven"
        number = food.snapshot.generation.number
    closed = read_clean_close(marker(home))
    assert closed is not None
    assert closed.generation == number
    assert not proven_at_once(home)
    assert folder_bytes(home) > 0


def test_what_is_being_proven_is_not_retired(home: Path, held: threading.Event) -> None:
    with opened(home) as engine:
        food = engine.collection("food")
        folder = live_folder(food)
        for _ in range(5):
            food.refresh()
        held.set()
        assert food.verification["state"] == "proven"
        assert live_folder(food) != folder


def test_verify_reads_everything_all_the_same(home: Path) -> None:
    rot(home)
    with opened(home, readonly=True) as engine:
        assert not engine.verify("food").ok


def test_a_reader_leaves_no_record_beside_a_writer(home: Path) -> None:
    """If the writer dies, its generation would be taken as it is."""
    with opened(home) as engine:
        engine.collection("food").search("apple")
        with opened(home, readonly=True) as reader:
            assert reader.collection("food").search("apple").hits
        assert not marker(home).exists()
    assert marker(home).exists()
