"""Nothing is answered from a damaged database, though no single row that is read shows the damage."""

from __future__ import annotations

import shutil
import sqlite3
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.sizes import by_size
from support.store.matching import matching_rows
from support.store.store_trials import flip

from dsearch.errors import CorruptData, DsearchError
from dsearch.store import Store, proof
from dsearch.store.proof import StoreProof, Unknown
from dsearch.store.sqlite.schema import PAGE_BYTES
from dsearch.types import Document

ROWS = 60
LATEST_S = 60  # a thousand times what a repeated verification takes
ASKS: dict[str, Callable[[Store], Any]] = {
    "list": lambda store: store.list(),
    "get": lambda store: store.get("d3"),
    "documents": lambda store: store.documents([4]),
    "ids": lambda store: store.ids([4]),
    "rows of ids": lambda store: store.rows_of(["d3"]),
    "export": lambda store: list(store.export()),
    "filter": lambda store: matching_rows(store, {"n": {"eq": 3}}),
    "filter of all versions": lambda store: store.rows_matching_ever({"n": {"eq": 3}}),
    "count": lambda store: store.count({"n": {"eq": 3}}),
    "facets": lambda store: store.facets("n"),
    "field values": lambda store: store.field_values([4], "n"),
}


@pytest.fixture
def filled(store, folder, embed) -> Path:
    documents = [Document(f"d{n}", f"text number {n} " * 40, metadata={"n": n}) for n in range(ROWS)]
    store.upsert(documents, embed(*[document.content for document in documents]))
    store.delete(["d1", "d2"])
    store.close()
    return folder


def change(folder: Path, statement: str) -> None:
    connection = sqlite3.connect(folder / "documents.db")
    connection.executescript(statement)
    connection.close()


@pytest.mark.parametrize("ask", ASKS)
def test_a_lost_row_ends_every_answer(filled, ask):
    change(filled, "DELETE FROM document WHERE row = 9")
    with Store.open(filled) as store:
        ASKS[ask](store)  # by itself no read can see it
        store.prove()
        with pytest.raises(CorruptData, match=r"the collection as a whole.*restore a backup"):
            ASKS[ask](store)


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE document SET deleted = NULL WHERE row = 2",
        "UPDATE document SET deleted = 2 WHERE row = 9",
        "DELETE FROM embedding WHERE row = 9",
        """UPDATE document SET metadata = '{"n":7}' WHERE row = 9""",
    ],
)
def test_damage_that_a_search_or_a_filter_would_not_see_ends_answers(filled, statement):
    change(filled, statement)
    with Store.open(filled, readonly=True) as store:
        store.prove()
        with pytest.raises(CorruptData):
            matching_rows(store, {"n": {"eq": 7}})
        assert store.proof is not None
        assert "documents.db is damaged" in str(store.proof.problem)
        assert store.proof.proven_at is None


READS: tuple[Callable[[Store], object], ...] = (
    lambda store: store.list("d5", limit=9),
    lambda store: store.rows().tolist(),
    lambda store: matching_rows(store, {"n": {"gte": 5}}).tolist(),
    lambda store: store.changes_since(0).added.tolist(),
)


def answers(folder: Path, *, proven: bool) -> list[object]:
    """Pages, rows, a filter and the changes; None for each that is refused."""
    found: list[object] = []
    for read in READS:
        try:
            with Store.open(folder, readonly=True) as store:
                if proven:
                    store.prove()
                    store.require_sound()
                found.append(read(store))
        except DsearchError:
            found.append(None)
    return found


@pytest.mark.parametrize("kind", ["pointer", "block"])
def test_no_flip_and_no_lost_block_changes_an_answer_without_an_error(filled, tmp_path, kind):
    """Flips where pages keep the places of their rows, and zeroed blocks; without the proof some pass."""
    expected = answers(filled, proven=True)
    size = (filled / "documents.db").stat().st_size
    generator = np.random.default_rng(2)
    silent = named = 0
    for trial in range(by_size(60, 600)):
        copy = shutil.copytree(filled, tmp_path / f"{kind}-{trial}")
        page = int(generator.integers(size // PAGE_BYTES)) * PAGE_BYTES
        if kind == "pointer":
            flip(copy, page + int(generator.integers(3, 90)), int(generator.integers(8)))
        else:
            with open(copy / "documents.db", "r+b") as file:
                file.seek(page + 512 * int(generator.integers(PAGE_BYTES // 512)))
                file.write(bytes(512))
        given, unproven = answers(copy, proven=True), answers(copy, proven=False)
        assert all(one in (None, right) for one, right in zip(given, expected, strict=True))
        named += None in given
        silent += any(one not in (None, right) for one, right in zip(unproven, expected, strict=True))
        shutil.rmtree(copy)
    assert named > 5
    assert silent > 0  # the trials can fail


def test_what_is_damaged_of_a_deleted_document_ends_no_answer(filled):
    """`verify` names it; no answer shows it, and a compaction removes it."""
    change(
        filled,
        "UPDATE document SET text = 'x' WHERE row = 2; UPDATE embedding SET vector = x'00' WHERE row = 3",
    )
    with Store.open(filled) as store:
        assert len(store.verify().damage) == 2
        store.prove()
        assert len(store.list()) == ROWS - 2
        store.purge()
        assert store.verify().damage == ()


def test_a_damaged_document_that_is_deleted_and_written_again_ends_the_damage(filled, embed):
    change(filled, "UPDATE document SET text = 'x' WHERE row = 9")
    with Store.open(filled) as store:
        store.prove()
        with pytest.raises(CorruptData, match=r"row 9 \(id 'd8'\).*upsert them again"):
            store.get("d5")
        store.delete(["d8"])  # writes go on, or nothing could be mended
        assert store.get("d5").id == "d5"
        store.upsert([Document("d8", "again")], embed("again"))
        assert store.get("d8").text == "again"


def test_damage_that_appears_while_it_is_open_is_found(filled, caplog):
    with Store.open(filled) as store:
        store.proof = StoreProof(filled, every_s=0.001)
        assert store.get("d8")
        change(filled, "UPDATE document SET deleted = 2 WHERE row = 9")
        until = time.monotonic() + LATEST_S
        while store.proof.problem is None:
            assert time.monotonic() < until, "no verification was repeated"
            time.sleep(0.001)
        with pytest.raises(CorruptData):
            store.list()
        store.proof.now()
        assert caplog.text.count("nothing is answered from a collection any more") == 1


def test_a_verification_now_sees_what_has_happened_since(filled):
    with Store.open(filled) as store:
        store.prove()
        assert store.proof is not None
        store.proof.now()
        first = store.proof.proven_at
        assert first is not None
        store.proof.now()
        assert (store.proof.proven_at or 0) > first
        change(filled, "DELETE FROM pending; DELETE FROM embedding WHERE row = 9")
        store.proof.now()
        assert store.proof.problem is not None


def test_answers_wait_for_the_first_verification_only_where_the_file_may_have_changed(filled, monkeypatch):
    held, verify = threading.Event(), proof.verify

    def waiting(*given: Any, **named: Any) -> Any:
        held.wait()
        return verify(*given, **named)

    monkeypatch.setattr(proof, "verify", waiting)
    change(filled, "DELETE FROM document WHERE row = 9")
    trusted = StoreProof(filled, proven_at=1.0)
    trusted.require()  # at once
    patient = StoreProof(filled, waits_s=0.01)
    patient.require()  # a collection that takes longer than that to read answers meanwhile
    held.set()
    patient.now()
    with pytest.raises(CorruptData):
        patient.require()
    for one in (trusted, patient):
        one.close()


def test_a_file_that_cannot_be_read_just_now_is_not_called_damaged(filled, monkeypatch, caplog):
    """For example too many open files: the next read reports it, and the next verification decides."""

    def refused(*given: Any, **named: Any) -> sqlite3.Connection:
        raise sqlite3.OperationalError("unable to open database file")

    monkeypatch.setattr(proof, "connect", refused)
    with Store.open(filled) as store:
        store.prove()
        assert len(store.list()) == ROWS - 2
        assert store.proof is not None
        assert (store.proof.problem, store.proof.proven_at) == (None, None)
        assert store.proof._clear  # no answer waits any more
    assert "could not be verified" in caplog.text


def test_a_failing_disk_is_not_called_damage(filled):
    class Failing(sqlite3.Connection):
        def execute(self, *given: Any) -> Any:
            error = sqlite3.OperationalError("disk I/O error")
            error.sqlite_errorname = "SQLITE_IOERR_READ"
            raise error

    connection = sqlite3.connect(filled / "documents.db", factory=Failing)
    with pytest.raises(sqlite3.OperationalError, match="disk I/O"):
        proof.verify(connection, pace=lambda: None)
    assert proof.verify(connection).damage  # a command reports all that it meets
    connection.close()


def test_a_verification_ends_when_the_collection_is_closed_or_vacuumed(filled, monkeypatch):
    begun, verify = threading.Event(), proof.verify

    def endless(connection: sqlite3.Connection, pace: Callable[[], object]) -> Any:
        begun.set()
        while not ending.wait(0.001):
            pace()
        return verify(connection, pace)

    ending = threading.Event()
    monkeypatch.setattr(proof, "verify", endless)
    with Store.open(filled) as store:
        store.prove(proven_at=1.0)
        assert store.proof is not None
        store.proof._due_s = 0.0
        with store.proof._changed:
            store.proof._changed.notify_all()
        begun.wait()
        assert store.purge().overwritten  # its read transaction would have kept the log
        begun.clear()
        begun.wait()  # it begins again
    with pytest.raises(Unknown, match="cancelled"):
        store.proof._pace()


LONG = """
WITH RECURSIVE n(x) AS (SELECT begun() UNION ALL SELECT x + 1 FROM n LIMIT 100000000)
SELECT max(x) FROM n"""


@pytest.mark.parametrize("stop", ["close", "now", "paused"])
def test_a_statement_that_runs_is_interrupted(filled, monkeypatch, stop):
    """Nothing asks `pace` during one, and on a large collection one takes minutes."""
    begun, verify = threading.Event(), proof.verify
    ends: list[str] = []

    def long(connection: sqlite3.Connection, pace: Callable[[], object]) -> Any:
        monkeypatch.setattr(proof, "verify", verify)  # the first verification alone
        connection.create_function("begun", 0, lambda: begun.set() or 1)
        try:
            connection.execute(LONG).fetchone()
            ends.append("itself")
        except sqlite3.OperationalError as error:
            ends.append(str(error))
            raise
        return verify(connection, pace)

    monkeypatch.setattr(proof, "verify", long)
    running = StoreProof(filled)
    assert begun.wait(LATEST_S)
    if stop == "paused":
        with running.paused():
            assert ends == ["interrupted"]
    else:
        getattr(running, stop)()
    running.close()
    assert ends == ["interrupted"]
    assert running.problem is None


def test_an_index_that_leads_to_another_document_is_named(filled, monkeypatch):
    other = "SELECT row, id, title, text, metadata, value, digest FROM document WHERE id = 'd4'"
    monkeypatch.setattr(
        "dsearch.store.documents.read._live",
        lambda connection, fields, id: connection.execute(other).fetchone(),
    )
    with Store.open(filled) as store, pytest.raises(CorruptData, match=r"'d4'\) was found as 'd3'"):
        store.get("d3")


def test_damage_stays_known_through_a_verification_without_outcome(filled, monkeypatch):
    """A disk that fails just now has not repaired anything."""
    change(filled, "DELETE FROM document WHERE row = 9")
    known = StoreProof(filled)
    with pytest.raises(CorruptData):
        known.require()

    def failing(*given: Any, **named: Any) -> Any:
        raise sqlite3.OperationalError("disk I/O error")

    monkeypatch.setattr(proof, "verify", failing)
    known.now()
    with pytest.raises(CorruptData, match=r"documents\.db is damaged"):
        known.require()
    assert known.problem is not None
    assert known.proven_at is None
    known.close()


def test_a_proof_says_when_and_repeats_after_a_pause(filled, monkeypatch):
    """A pause of a hundred durations, and of `every_s` at least."""
    monkeypatch.setattr(proof.time, "time", lambda: 12.5)
    sound = StoreProof(filled, every_s=77.0)
    sound.require()
    sound.now()
    assert (sound.problem, sound.proven_at) == (None, 12.5)
    assert sound._due_s - time.monotonic() == pytest.approx(77.0, abs=LATEST_S)
    assert sound._due_s - time.monotonic() > 0
    sound.close()


def test_the_first_of_the_findings_is_named_and_the_others_are_counted(tmp_path):
    one = proof.damaged(tmp_path / "papers", ["a  finding\nof two lines"])
    assert "documents.db is damaged (a finding of two lines), so nothing is answered" in str(one)
    assert one.hint is not None
    assert one.hint.arguments == ("papers",)
    more = proof.damaged(tmp_path / "papers", ["x" * 400, "second", "third"])
    assert f"({'x' * 300} and 2 more findings)" in str(more)


@pytest.mark.parametrize(
    "name",
    [
        "SQLITE_BUSY",
        "SQLITE_CANTOPEN",
        "SQLITE_FULL",
        "SQLITE_INTERRUPT",
        "SQLITE_IOERR_READ",
        "SQLITE_LOCKED",
        "SQLITE_NOMEM",
        "SQLITE_PROTOCOL",
    ],
)
def test_what_passes_is_not_called_damage(name):
    """It says nothing of the database, so that the verification has no outcome."""

    class Failing:
        def execute(self, *given: Any) -> Any:
            error = sqlite3.OperationalError("its message")
            error.sqlite_errorname = name
            raise error

    connection: Any = Failing()
    with pytest.raises(sqlite3.OperationalError, match="its message"):
        proof.verify(connection, pace=lambda: None)
    assert len(proof.verify(connection).damage) > 1


def test_after_a_write_damage_is_looked_for_again_before_anything_is_answered(filled, monkeypatch):
    """The write may have ended it; until that is known, answers wait."""
    change(filled, "DELETE FROM document WHERE row = 9")
    known = StoreProof(filled)
    with pytest.raises(CorruptData):
        known.require()
    held, verify = threading.Event(), proof.verify

    def waiting(*given: Any, **named: Any) -> Any:
        held.wait(LATEST_S)
        return verify(*given, **named)

    monkeypatch.setattr(proof, "verify", waiting)
    known._begun_s -= 10 * proof.WAITS_S  # it was opened long ago
    known.again()
    answered = threading.Event()
    failures: list[Exception] = []

    def answer() -> None:
        try:
            known.require()
        except CorruptData as error:
            failures.append(error)
        answered.set()

    thread = threading.Thread(target=answer)
    thread.start()
    assert not answered.wait(0.05)
    held.set()
    thread.join()
    assert len(failures) == 1  # found again
    known.close()
