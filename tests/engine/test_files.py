"""`store_files`: a file sent again replaces itself, a bad one hinders no other, a stopped run goes on."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import pytest
from support.fakes import HashingEncoder

from dsearch.corpus.files import FIELD
from dsearch.corpus.sent import FileBegun, FileBlock, FileEnd, SentFile
from dsearch.engine import Collection, SearchEngine
from dsearch.engine import files as module
from dsearch.engine.files import ATTEMPTS, FilesNotStored, store_files
from dsearch.errors import Cancelled, InsufficientStorage, Unavailable
from dsearch.results import FilesResult
from dsearch.types import Document, Progress


@pytest.fixture
def notes(tmp_path: Path) -> Iterator[Collection]:
    with SearchEngine(tmp_path / "home", encoder=HashingEncoder) as engine:
        yield engine.create("notes")


@pytest.fixture(autouse=True)
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files are read in this process; tests/corpus/test_sent.py reads them in another."""
    from dsearch.corpus import sent

    monkeypatch.setattr(sent, "limit_memory", lambda _: None)

    def read_here(files: Sequence[SentFile], numbers: Sequence[int], take: Any, **options: Any) -> None:
        def checked(event: Any) -> None:
            if (cancelled := options["cancelled"]) is not None and cancelled():
                raise Cancelled("read_files was cancelled")
            take(event)

        sent.read_files(checked, {number: files[number] for number in numbers})

    monkeypatch.setattr(module, "read_apart", read_here)


def store(at: Path, collection: Collection, files: dict[str, bytes] | list[Any], **how: Any) -> FilesResult:
    pairs = list(files.items()) if isinstance(files, dict) else files
    sent: list[SentFile] = []
    for number, (name, content) in enumerate(pairs):
        place = at / f"sent-{number}"
        place.write_bytes(content)
        sent.append(SentFile(name, place, 0, len(content)))
    return store_files(lambda: nullcontext(collection), sent, **how)


def texts(collection: Collection) -> dict[str, str]:
    return {document.id: document.text for document in collection.store.export()}


def test_a_file_is_found_and_named(tmp_path: Path, notes: Collection) -> None:
    steps: list[Progress] = []
    files = {"a/b.md": b"# Bread\n\nyeast is slow", "c.csv": b"id,text\n1,lamp\n2,stone\n", "d.xyz": b"?"}
    report = store(tmp_path, notes, files, on_progress=steps.append)
    page, table, other = report.files
    assert (page.name, page.reason, page.documents, page.ids) == ("a/b.md", None, 1, ["a/b.md"])
    assert (table.documents, table.ids, table.inserted) == (2, ["1", "2"], 2)
    assert (other.documents, ".xyz" in (other.reason or "")) == (0, True)
    assert (report.inserted, report.left_out, report.sequence) == (3, 1, notes.store.sequence)
    assert notes.search("yeast").hits[0].id == "a/b.md"
    assert [(step.stage, step.done, step.total) for step in steps] == [("files", n, 3) for n in (1, 2, 3)]


def test_a_file_sent_again_replaces_itself(tmp_path: Path, notes: Collection) -> None:
    store(
        tmp_path,
        notes,
        {"a.txt": b"river", "t.csv": b"id,text\n1,lamp\n2,stone\n", "o.csv": b"id,text\n9,x\n"},
    )
    notes.upsert([Document("own", "mine", metadata={"path": "t.csv"})])
    report = store(tmp_path, notes, {"a.txt": b"river", "t.csv": b"id,text\n2,pebble\n3,cat\n"})
    assert [(one.unchanged, one.updated, one.inserted, one.deleted) for one in report.files] == [
        (1, 0, 0, 0),
        (0, 1, 1, 1),
    ]
    assert texts(notes) == {"a.txt": "river", "2": "pebble", "3": "cat", "9": "x", "own": "mine"}


def test_a_large_text_that_shrinks_leaves_no_part(tmp_path: Path, notes: Collection) -> None:
    long = b"words and words\n" * (1 << 17)
    assert store(tmp_path, notes, {"a.txt": long}).files[0].documents > 4
    assert store(tmp_path, notes, {"a.txt": b"short"}).deleted > 3
    assert texts(notes) == {"a.txt": "short"}


def test_a_file_that_cannot_be_read_wholly_loses_nothing(tmp_path: Path, notes: Collection) -> None:
    store(tmp_path, notes, {"t.jsonl": b'{"id": "a", "text": "x"}\n{"id": "b", "text": "y"}\n'})
    report = store(tmp_path, notes, {"t.jsonl": b'{"id": "a", "text": "z"}\nbad\n'})
    (file,) = report.files
    assert (file.updated, file.deleted, file.skipped, file.problems[0].line) == (1, 0, 1, 2)
    with pytest.raises(FilesNotStored):
        store(tmp_path, notes, {"t.jsonl": b"bad\n"})
    assert texts(notes) == {"a": "z", "b": "y"}


def test_documents_written_since_by_others_are_not_deleted(
    tmp_path: Path, notes: Collection, monkeypatch: pytest.MonkeyPatch
) -> None:
    store(tmp_path, notes, {"t.csv": b"id,text\n1,lamp\n2,stone\n"})
    read = module._Run.learn

    def then_another_writes(run: Any) -> None:
        read(run)
        notes.upsert([Document("2", "mine now")])

    monkeypatch.setattr(module._Run, "learn", then_another_writes)
    assert store(tmp_path, notes, {"t.csv": b"id,text\n1,lamp\n"}).deleted == 0
    assert texts(notes)["2"] == "mine now"


def test_files_of_a_folder_are_not_those_that_were_sent(tmp_path: Path, notes: Collection) -> None:
    own = {FIELD: {"root": "/home/me", "path": "a.txt"}}
    notes.upsert([Document("notes/a.txt", "of the folder", metadata=own)])
    store(tmp_path, notes, {"a.txt": b"sent"})
    assert texts(notes) == {"notes/a.txt": "of the folder", "a.txt": "sent"}


def test_the_first_of_two_is_stored(tmp_path: Path, notes: Collection) -> None:
    """Of two files with one name, and of two records with one id."""
    pairs = [
        ("a.txt", b"first"),
        ("a.txt", b"second"),
        ("x.csv", b"id,text\n1,x\n"),
        ("y.csv", b"id,text\n1,y\n"),
    ]
    report = store(tmp_path, notes, pairs)
    assert [one.reason is None for one in report.files] == [True, False, True, False]
    assert "x.csv" in (report.files[3].reason or "")
    assert texts(notes) == {"a.txt": "first", "1": "x"}


def test_documents_that_no_collection_stores_are_skipped(tmp_path: Path, notes: Collection) -> None:
    lines = b'{"id": "%s", "text": "x"}\n{"id": "b", "text": "y"}\n' % (b"x" * 600)
    (file,) = store(tmp_path, notes, {"t.jsonl": lines}).files
    assert (file.documents, file.skipped, "512" in file.problems[0].detail) == (1, 1, True)
    name = "n" * 5000 + ".txt"
    with pytest.raises(FilesNotStored, match="512"):
        store(tmp_path, notes, {name: b"x"})


def test_vectors_of_ones_own_cannot_be_read_from_texts(tmp_path: Path) -> None:
    with SearchEngine(tmp_path / "home", encoder=HashingEncoder) as engine:
        own = engine.create("own", dimension=2)
        with pytest.raises(FilesNotStored, match="embedding") as raised:
            store(tmp_path, own, {"a.txt": b"river"})
    assert raised.value.code == "invalid_source"


def test_no_file_with_a_document_is_an_error_with_the_reasons(tmp_path: Path, notes: Collection) -> None:
    with pytest.raises(FilesNotStored, match=r"a\.xyz") as raised:
        store(tmp_path, notes, {"a.xyz": b"?", "b.txt": b" "})
    assert (raised.value.code, raised.value.status, raised.value.report.left_out) == (
        "invalid_source",
        422,
        2,
    )


def test_a_write_that_meets_a_migration_is_repeated(tmp_path: Path, notes: Collection) -> None:
    opened: list[Any] = []

    class Replaced:
        """An edition that a migration has closed."""

        store = notes.store

        def upsert(self, _: Any) -> Any:
            raise Unavailable("closed")

    @contextmanager
    def holding() -> Iterator[Any]:
        opened.append(notes)
        yield Replaced() if len(opened) == 2 else notes

    (tmp_path / "a").write_bytes(b"river")
    report = store_files(holding, [SentFile("a.txt", tmp_path / "a", 0, 5)])
    assert (report.inserted, texts(notes)) == (1, {"a.txt": "river"})


def test_a_disk_without_room_is_told_with_what_was_stored(
    tmp_path: Path, notes: Collection, monkeypatch: pytest.MonkeyPatch
) -> None:
    upsert = notes.upsert
    monkeypatch.setattr(module, "_BATCH_DOCUMENTS", 1)

    def full(documents: Sequence[Document]) -> Any:
        if documents[0].id == "b.txt":
            raise InsufficientStorage("the disk is full")
        return upsert(documents)

    monkeypatch.setattr(notes, "upsert", full)
    with pytest.raises(FilesNotStored, match="disk is full") as raised:
        store(tmp_path, notes, {"a.txt": b"x", "b.txt": b"y", "c.txt": b"z"})
    assert (raised.value.code, raised.value.status) == ("insufficient_storage", 507)
    assert [one.reason is None for one in raised.value.report.files] == [True, False, False]


# ---- interrupted


class Killed(BaseException):
    """In place of a kill."""


@pytest.fixture
def dies(monkeypatch: pytest.MonkeyPatch, notes: Collection) -> set[str]:
    """Ids whose writing ends the process."""
    ids: set[str] = set()
    upsert = notes.upsert

    def deadly(documents: Sequence[Document]) -> Any:
        if ids & {document.id for document in documents}:
            raise Killed
        return upsert(documents)

    monkeypatch.setattr(notes, "upsert", deadly)
    return ids


FOUR = {"a.txt": b"x", "b.txt": b"y", "c.csv": b"id,text\n1,z\n", "d.csv": b"id,text\n1,w\n2,v\n"}


def test_an_interrupted_run_goes_on_with_the_file_it_had_begun(
    tmp_path: Path, notes: Collection, dies: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_BATCH_DOCUMENTS", 1)
    dies.add("b.txt")
    with pytest.raises(Killed):
        store(tmp_path, notes, FOUR, folder=tmp_path)
    journal = tmp_path / "files.jsonl"
    journal.write_text(journal.read_text() + '\n{"file": 1, "resu')  # cut by the kill
    dies.clear()
    begun: list[Any] = []
    take = module._Run.take
    monkeypatch.setattr(module._Run, "take", lambda run, event: (begun.append(event), take(run, event))[1])
    report = store(tmp_path, notes, FOUR, folder=tmp_path)
    assert [event.number for event in begun if isinstance(event, FileBegun)] == [1, 2, 3]
    assert [one.documents for one in report.files] == [1, 1, 1, 1]
    assert report.files[3].skipped == 1  # its record 1 is one of c.csv
    assert texts(notes) == {"a.txt": "x", "b.txt": "y", "1": "z", "2": "v"}
    assert store(tmp_path, notes, FOUR, folder=tmp_path).files == report.files  # nothing is left to do


def test_records_of_files_that_ended_before_the_kill_still_come_first(
    tmp_path: Path, notes: Collection, dies: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_BATCH_DOCUMENTS", 1)
    dies.add("2")
    with pytest.raises(Killed):
        store(tmp_path, notes, FOUR, folder=tmp_path)
    dies.clear()
    store(tmp_path, notes, FOUR, folder=tmp_path)
    assert texts(notes)["1"] == "z"


def test_a_file_that_always_ends_the_process_is_left_out(
    tmp_path: Path, notes: Collection, dies: set[str]
) -> None:
    dies.add("b.txt")
    for _ in range(ATTEMPTS):
        with pytest.raises(Killed):
            store(tmp_path, notes, FOUR, folder=tmp_path)
    report = store(tmp_path, notes, FOUR, folder=tmp_path)
    assert [one.reason is None for one in report.files] == [True, False, True, True]  # in one batch at first


def test_files_are_written_together_and_counted_apart(
    tmp_path: Path, notes: Collection, monkeypatch: pytest.MonkeyPatch
) -> None:
    writes: list[int] = []
    upsert = notes.upsert
    monkeypatch.setattr(
        notes, "upsert", lambda documents: (writes.append(len(documents)), upsert(documents))[1]
    )
    store(tmp_path, notes, {"a.txt": b"x", "b.txt": b"y", "c.csv": b"id,text\n1,z\n2,v\n"})
    report = store(tmp_path, notes, {"a.txt": b"x", "b.txt": b"z", "c.csv": b"id,text\n1,z\n3,v\n"})
    assert writes == [4, 4]
    assert [(one.inserted, one.updated, one.unchanged, one.deleted) for one in report.files] == [
        (0, 0, 1, 0),
        (0, 1, 0, 0),
        (1, 0, 1, 1),
    ]
    for bound in ("_BATCH_DOCUMENTS", "_BATCH_CHARACTERS"):
        writes.clear()
        with monkeypatch.context() as patch:
            patch.setattr(module, bound, 2)
            store(tmp_path, notes, {"a.txt": b"x", "b.txt": b"y", "c.txt": b"z"})
        assert writes == [2, 1]


def test_stops_on_purpose_are_no_attempts(tmp_path: Path, notes: Collection) -> None:
    for _ in range(ATTEMPTS + 1):
        with pytest.raises(Cancelled):
            store(tmp_path, notes, FOUR, folder=tmp_path, cancelled=lambda: True)
    assert store(tmp_path, notes, FOUR, folder=tmp_path).left_out == 0


def test_a_file_that_was_stored_in_part_says_so(
    tmp_path: Path, notes: Collection, monkeypatch: pytest.MonkeyPatch
) -> None:
    def in_part(files: Any, numbers: Any, take: Any, **_: Any) -> None:
        for event in (FileBegun(0), FileBlock(0, [Document("a", "x")]), FileEnd(0, "its process ended")):
            take(event)

    monkeypatch.setattr(module, "read_apart", in_part)
    (file,) = store(tmp_path, notes, {"a.csv": b"x"}).files
    assert (file.reason, file.documents, file.problems[0].detail) == (None, 1, "its process ended")
