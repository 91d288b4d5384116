"""Files that clients sent: the documents that a folder's files give, and bounds on what a file may cost."""

from __future__ import annotations

import gzip
import io
import time
import zipfile
from pathlib import Path
from typing import Any

import pytest

from dsearch.corpus import read, sent
from dsearch.corpus.files import FIELD, key_of, sent_name_of
from dsearch.corpus.formats import pages
from dsearch.corpus.sent import FileBegun, FileBlock, FileEnd, SentFile, read_apart, read_files
from dsearch.errors import Cancelled, ProcessDied
from dsearch.types import Document

FILES = {
    "a.txt": b"hello river",
    "notes/b.md": "---\nkind: note\n---\n# Fluß\n\nmusique d'été".encode(),
    "c.csv": b"id,text,year\na,river,7\nb,lamp,8\n",
    "d.jsonl.gz": gzip.compress(b'{"id": "x", "text": "stone"}\n'),
    "e.py": b"print('river')\n",
    "f.html": b"<title>T</title><p>A page about rivers and stones that has enough words.</p>",
}


def placed(folder: Path, files: dict[str, bytes]) -> list[SentFile]:
    """Files one behind the other in one, as a form has them."""
    place = folder / "sent"
    place.write_bytes(b"--" + b"--".join(files.values()))
    ends, offset = [], 2
    for name, content in files.items():
        ends.append(SentFile(name, place, offset, len(content)))
        offset += len(content) + 2
    return ends


def read_here(files: list[SentFile], monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The events of reading in this process, where bounds can be small."""
    monkeypatch.setattr(sent, "limit_memory", lambda _: None)
    events: list[Any] = []
    read_files(events.append, dict(enumerate(files)))
    return events


def documents_in(events: list[Any]) -> list[Document]:
    return [document for event in events if isinstance(event, FileBlock) for document in event.documents]


def ends_in(events: list[Any]) -> list[FileEnd]:
    return [event for event in events if isinstance(event, FileEnd)]


def test_documents_are_those_of_the_same_files_in_a_folder(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    for name, content in FILES.items():
        place = folder / name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(content)
    events: list[Any] = []
    read_apart(placed(tmp_path, FILES), range(len(FILES)), events.append)
    by_id = {document.id: document for document in documents_in(events)}
    assert not [end for end in ends_in(events) if end.reason or end.problems]
    for document in read(folder):
        own = dict(document.metadata)
        origin = own.pop(FIELD)
        own.pop("modified", None)
        there = by_id.pop(document.id)
        assert (there.title, there.text, there.value) == (document.title, document.text, document.value)
        assert there.metadata == {**own, FIELD: {key: origin[key] for key in origin if key != "root"}}
        assert sent_name_of(there.metadata) == origin["path"]
        assert key_of(there.metadata) is None  # a folder that is indexed later does not claim it
        assert sent_name_of(document.metadata) is None
    assert not by_id


def test_a_record_without_a_text_has_all_its_values(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = b"id,title,price,colour,value\n1,Lamp,12,red,3\n"
    lines = b'{"id": 2, "name": "stone", "size": 4, "tags": ["x"]}\n{"id": 3, "title": "only a title"}\n'
    events = read_here(placed(tmp_path, {"a.csv": table, "b.jsonl": lines}), monkeypatch)
    first, second, third = documents_in(events)
    assert (first.id, first.title, first.text, first.value) == ("1", "Lamp", "12\nred", 3.0)
    assert first.metadata["price"] == 12
    assert (second.text, second.metadata["size"]) == ("stone\n4", 4)
    assert (third.title, third.text) == ("only a title", "")


def test_each_file_begins_and_ends_and_a_bad_one_hinders_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = {"a.xyz": b"?", "b.jsonl": b'{"id": "x", "text": "y"}\nbad\n', "c.txt": b" ", "d.txt": b"river"}
    events = read_here(placed(tmp_path, files), monkeypatch)
    assert [type(event) for event in events] == [
        *(FileBegun, FileEnd),
        *(FileBegun, FileBlock, FileEnd),
        *(FileBegun, FileEnd),
        *(FileBegun, FileBlock, FileEnd),
    ]
    other, records, blank, good = ends_in(events)
    assert "files .xyz are not read" in other.reason
    assert (records.reason, records.skipped, records.problems[0].line) == ("", 1, 2)
    assert "empty" in blank.reason
    assert (good.number, good.reason, good.skipped) == (3, "", 0)


def archive_of(size: int) -> bytes:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("big", bytes(size))
    return packed.getvalue()


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("a.txt", b"x" * 4097, "4097"),
        ("a.txt.gz", gzip.compress(bytes(4097)), "unpacks to more than 4096"),
        ("b.pdf", gzip.compress(bytes(4097)), "unpacks to more than 4096"),
        ("c.gz.txt", gzip.compress(b"river")[:-3], "cannot be read"),
        ("d.jsonl", b'{"id": "a", "title": "x", "text": ""}\n' * 2, ""),
        ("e.docx", archive_of(4097), "4097"),
        ("f.csv", b"text\n", "no document"),
        ("g", b"x", "without suffix"),
        ("h\n.txt", b"x", "control characters"),
        ("i.pdf", b"%PDF no", "not a PDF"),
        ("", b"x", "without suffix"),
    ],
    # By name: an archive has the time in its bytes, and two processes would collect different tests.
    ids=[
        "size",
        "text.gz",
        "pdf.gz",
        "cut.gz",
        "records",
        "docx",
        "empty csv",
        "bare",
        "name",
        "pdf",
        "none",
    ],
)
def test_a_file_that_cannot_be_read_has_a_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, content: bytes, said: str
) -> None:
    monkeypatch.setattr(sent, "MAX_FILE_BYTES", 4096)
    monkeypatch.setattr(pages, "MOST_BYTES", 4096)
    (end,) = ends_in(read_here(placed(tmp_path, {name: content}), monkeypatch))
    assert said in end.reason
    assert bool(end.reason) == bool(said)


def test_the_texts_of_a_file_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = placed(tmp_path, {"a.html": FILES["f.html"]})
    monkeypatch.setattr(sent, "MAX_FILE_BYTES", 100)
    (end,) = ends_in(read_here(files, monkeypatch))
    assert end.reason == ""
    monkeypatch.setattr(sent, "_documents", lambda *_: [Document("a", "x"), Document("b", "y" * 30)])
    monkeypatch.setattr(sent, "_BLOCK_CHARACTERS", 10)
    assert [
        len(event.documents) for event in read_here(files, monkeypatch) if isinstance(event, FileBlock)
    ] == [
        1,
        1,
    ]


def test_a_reader_that_fails_is_a_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for error, said in ((RecursionError("too deep"), "RecursionError: too deep"), (MemoryError(), "memory")):

        def fails(*_: Any, error: BaseException = error) -> Any:
            raise error

        monkeypatch.setattr(sent, "read_sent", fails)
        (end,) = ends_in(read_here(placed(tmp_path, {"a.txt": b"x"}), monkeypatch))
        assert said in end.reason


class Processes:
    """Stands in for processes: each ends as the next of `ends` says, after the events before it."""

    def __init__(self, *ends: list[Any]):
        self.ends = list(ends)
        self.numbers: list[list[int]] = []

    def run(self, _: Any, files: dict[int, SentFile], **options: Any) -> None:
        self.numbers.append([*files])
        for event in self.ends.pop(0):
            if event == "late":
                while not options["cancelled"]():
                    time.sleep(0.001)
                raise Cancelled("read_files was cancelled")
            if isinstance(event, Exception):
                raise event
            options["on_progress"](event)


def test_a_file_that_ends_its_process_is_named_and_the_others_are_read(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(sent, "MAX_SECONDS", 0.05)
    processes = Processes(
        [FileBegun(0), FileEnd(0), FileBegun(1), ProcessDied("SIGKILL")],
        [FileBegun(2), "late"],
        [FileBegun(4), FileEnd(4)],
    )
    monkeypatch.setattr(sent, "run_spawned", processes.run)
    events: list[Any] = []
    read_apart(placed(tmp_path, {f"{n}.txt": b"x" for n in range(5)}), [0, 1, 2, 4], events.append)
    assert processes.numbers == [[0, 1, 2, 4], [2, 4], [4]]
    assert [(end.number, bool(end.reason)) for end in ends_in(events)] == [
        (0, False),
        (1, True),
        (2, True),
        (4, False),
    ]


def test_reading_is_cancelled(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sent, "run_spawned", Processes([FileBegun(0), "late"]).run)
    events: list[Any] = []
    with pytest.raises(Cancelled):
        read_apart(placed(tmp_path, {"a.txt": b"x"}), [0], events.append, cancelled=lambda: True)
    assert ends_in(events) == []


def test_what_the_caller_raises_ends_the_reading(tmp_path: Path) -> None:
    def fails(event: Any) -> None:
        raise ValueError("no room")

    with pytest.raises(ValueError, match="no room"):
        read_apart(placed(tmp_path, {"a.txt": b"x"}), [0], fails)
