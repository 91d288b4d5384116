"""Documents of uploaded files, and the bounds on what a file may cost."""

from __future__ import annotations

import gzip
import io
import zipfile
from pathlib import Path
from typing import Any

import pytest

from dsearch.corpus.formats import office
from dsearch.errors import Cancelled, InvalidSource
from dsearch.service.uploads import reading
from dsearch.service.uploads.files import Uploads
from dsearch.service.uploads.reading import documents_of
from dsearch.types import Document


def read(folder: Path, name: str, content: bytes, **attributes: str) -> list[Document]:
    uploads = Uploads(folder)
    upload = uploads.add(io.BytesIO(content), name, "assistants")
    return documents_of(upload, uploads.verify(upload.id), attributes)


def test_a_text_is_one_document_with_the_files_id(tmp_path: Path) -> None:
    (document,) = read(
        tmp_path,
        "river.md",
        "---\nkind: note\n---\n# River\n\nmusique d'été".encode(),
        kind="letter",
        year="7",
    )
    file = document.metadata["_upload"]["file"]
    assert (document.id, document.title) == (file, "River")
    own = document.metadata.pop("_upload")
    assert document.metadata == {"name": "river.md", "type": "markdown", "kind": "letter", "year": "7"}
    assert own == {
        "file": file,
        "part": 1,
        "parts": 1,
        "bytes": len(document.text.encode()),
        "created_at": own["created_at"],
    }


def test_records_are_parts(tmp_path: Path) -> None:
    first, second = read(tmp_path, "table.csv", b"id,text,year\na,river,7\nb,lamp,8\n")
    assert second.id == f"{first.id}#2"
    assert [one.text for one in (first, second)] == ["river", "lamp"]
    assert second.metadata["year"] == 8
    assert second.metadata["_upload"] == {"file": first.id, "part": 2, "parts": 2}


def test_formats_of_libraries_are_read_in_a_process_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names: list[str] = []
    bounds: list[Any] = []

    def spawned(target: object, place: Path, name: str, *, memory_bytes: int, **_: object) -> list[Document]:
        names.append(name)
        bounds.append(memory_bytes)
        return []

    monkeypatch.setattr(reading, "run_spawned", spawned)
    for name in ("a.html", "b.pdf", "c.docx", "d.pptx", "e.epub", "f.parquet", "g.mbox", "h.eml", "i.pdf.gz"):
        assert read(tmp_path, name, b"x") == []
    for name in ("j.htm", "k.arrow", "L.PDF"):
        assert read(tmp_path, name, b"x") == []
    assert len(names) == 12
    assert {*bounds} == {reading.MAX_MEMORY_BYTES}
    assert read(tmp_path, "plain.txt", b"river") != []
    assert len(names) == 12


def test_reading_that_takes_too_long_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def waits(*_: object, cancelled: object, **__: object) -> list[Document]:
        assert callable(cancelled)
        assert cancelled()
        raise Cancelled("read_apart was cancelled")

    monkeypatch.setattr(reading, "run_spawned", waits)
    monkeypatch.setattr(reading, "MAX_SECONDS", -1.0)
    with pytest.raises(InvalidSource, match=r"a\.pdf: reading it takes more than"):
        read(tmp_path, "a.pdf", b"x")


def test_a_service_that_stops_ends_reading(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def waits(*_: object, cancelled: object, **__: object) -> list[Document]:
        assert callable(cancelled)
        assert cancelled()
        raise Cancelled("read_apart was cancelled")

    monkeypatch.setattr(reading, "run_spawned", waits)
    uploads = Uploads(tmp_path)
    upload = uploads.add(io.BytesIO(b"<p>river</p>"), "a.html", "assistants")
    with pytest.raises(Cancelled):
        documents_of(upload, uploads.verify(upload.id), {}, stopping=lambda: True)


def archive_of(size: int) -> bytes:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("big", bytes(size))
    return packed.getvalue()


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("a.txt.gz", gzip.compress(bytes(4097)), "a.txt.gz: unpacks to more than 4096 bytes"),
        ("b.pdf", gzip.compress(bytes(4097)), "b.pdf: unpacks to more than 4096 bytes"),
        ("c.gz.txt", gzip.compress(b"river")[:-3], "c.gz.txt: cannot be read"),
        ("d.txt", b"word " * 100, "more than 256 bytes of text or 3 documents; split the file"),
        ("e.csv", b"text\na\nb\nc\nd\n", "more than 256 bytes of text or 3 documents"),
        ("i.csv", b"text\n" + b"word\n".rjust(200) * 2, "more than 256 bytes of text or 3 documents"),
        ("f.epub", archive_of(4097), "unpacks to 4097 bytes; at most 4096"),
        ("g.csv", b"text\n", "g.csv: it holds no document"),
        ("h", b"x", "h: files without suffix are not read; supported are"),
    ],
    # By name: an archive has the time in its bytes, and two processes would collect different tests.
    ids=["text.gz", "pdf.gz", "cut.gz", "txt", "csv", "together", "epub", "empty csv", "no suffix"],
)
def test_a_file_above_a_bound_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, content: bytes, said: str
) -> None:
    monkeypatch.setattr(reading, "MAX_UNPACKED_BYTES", 4096)
    monkeypatch.setattr(reading, "MAX_TEXT_BYTES", 256)
    monkeypatch.setattr(reading, "MAX_DOCUMENTS", 3)
    monkeypatch.setattr(office, "MOST_BYTES", 4096)
    # In this process, where the bounds are small.
    monkeypatch.setattr(
        reading, "run_spawned", lambda target, place, filename, **_: target(lambda _: None, place, filename)
    )
    with pytest.raises(InvalidSource) as raised:
        read(tmp_path, name, content)
    assert said in str(raised.value)
