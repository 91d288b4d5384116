"""Forms with files: names as they were sent, bytes as they lie, and what is no form."""

from __future__ import annotations

import base64
from pathlib import Path

import pytest

from dsearch.errors import InvalidRequest
from dsearch.service.wire import form
from dsearch.service.wire.form import boundary_of, files_of_form

END = b"--B--\r\n"


def part(disposition: str | bytes, content: bytes = b"words", *headers: bytes) -> bytes:
    said = disposition.encode() if isinstance(disposition, str) else disposition
    lines = [b'Content-Disposition: form-data; name="file"; ' + said, b"Content-Type: text/plain", *headers]
    return b"--B\r\n" + b"\r\n".join(lines) + b"\r\n\r\n" + content + b"\r\n"


def read(folder: Path, body: bytes) -> list[tuple[str, bytes]]:
    (folder / "form").write_bytes(body)
    files = files_of_form(folder / "form", b"B")
    return [(file.name, body[file.offset : file.offset + file.size]) for file in files]


WORD = base64.b64encode("grüße.txt".encode()).decode()


@pytest.mark.parametrize(
    ("disposition", "name"),
    [
        ('filename="grüße.txt"', "grüße.txt"),
        ('filename="grüße.txt"'.encode("latin-1"), "grüße.txt"),
        ("filename*=utf-8''gr%C3%BC%C3%9Fe.txt", "grüße.txt"),
        ("filename*=UTF-8'de'gr%C3%BC%C3%9Fe.txt", "grüße.txt"),
        ("filename*=iso-8859-1''gr%FC%DFe.txt", "grüße.txt"),
        (f"filename=\"=?utf-8?B?{WORD}?=\"; filename*=utf-8''gr%C3%BC%C3%9Fe.txt", "grüße.txt"),  # as .NET
        (f'filename="=?utf-8?B?{WORD}?="', "grüße.txt"),
        ('filename="=?iso-8859-1?Q?caf=E9?= =?utf-8?q?_=C3=A0?=.txt"', "café à.txt"),
        ("filename*=klingon''a.txt; filename=\"plain.txt\"", "plain.txt"),
        ("filename*=utf-8''%FF.txt; filename=plain.txt", "plain.txt"),
        ('filename="=?klingon?B?aGk=?="', "=?klingon?B?aGk=?="),
        ('filename="a;b \\"c\\" =d.txt"', 'a;b "c" =d.txt'),
        ('filename="../a\\b/c.txt"', "../a\\b/c.txt"),
        ('FileName = "notes/a b.md"', "notes/a b.md"),
        ("filename=a.txt; x=y", "a.txt"),
    ],
)
def test_names_are_kept_as_they_were_sent(tmp_path: Path, disposition: str | bytes, name: str) -> None:
    assert read(tmp_path, part(disposition) + END) == [(name, b"words")]


def test_files_are_spans_of_the_form(tmp_path: Path) -> None:
    odd = b"\r\n--Bx\r\n--\r\n\r\nx--B"  # lines that look like the boundary and are none
    body = b"preamble\r\n" + part('filename="a"', odd) + part('filename="b"', b"") + b"--B-- \r\nepilogue"
    assert read(tmp_path, body) == [("a", odd), ("b", b"")]
    assert read(tmp_path, part('filename="a"', b"\r\n\r\n").replace(b"--B\r\n", b"--B \t\r\n") + END) == [
        ("a", b"\r\n\r\n")
    ]
    folded = part('filename="a"').replace(b"; filename", b";\r\n filename")
    assert read(tmp_path, folded + b"--B--") == [("a", b"words")]


def test_an_input_without_a_file_is_none(tmp_path: Path) -> None:
    """As a page sends it of which nothing was chosen."""
    assert read(tmp_path, part('filename=""', b"") + part("filename=a.txt") + END) == [("a.txt", b"words")]
    assert read(tmp_path, part('filename=""') + END) == [("", b"words")]  # the reader says what is missing


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b"", "empty"),
        (b"words", "boundary"),
        (part("filename=a.txt"), "last boundary"),
        (part("filename=a.txt") + b"--B-", "last boundary"),
        (END, "without a file"),
        (b"--B\r\n" + END, "without headers"),
        (part('filename=""', b"") + END, "without a file"),
        (part("x=y").replace(b"file", b"purpose") + END, "'purpose'"),
        (b"--B\r\nX: y\r\n\r\nwords\r\n" + END, "''"),
        (part("filename=a", b"eA==", b"Content-Transfer-Encoding: base64") + END, "base64"),
        (part(f'filename="{"x" * 20_000}"') + END, "without headers"),
    ],
)
def test_what_is_no_form_of_files_is_refused(tmp_path: Path, body: bytes, said: str) -> None:
    with pytest.raises(InvalidRequest, match=said):
        read(tmp_path, body)


def test_a_form_has_a_bound_of_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(form, "MAX_FILES", 2)
    two = part("filename=a") + part("filename=b")
    assert len(read(tmp_path, two + END)) == 2
    with pytest.raises(InvalidRequest, match="2 files"):
        read(tmp_path, two + part("filename=c") + END)


def test_boundaries(tmp_path: Path) -> None:
    assert boundary_of('multipart/form-data; charset=utf-8; boundary="a b"') == b"a b"
    assert boundary_of("multipart/form-data; BOUNDARY=x-y_z") == b"x-y_z"
    for without in (
        "multipart/form-data",
        "multipart/form-data; boundary=",
        'multipart/form-data; boundary=""',
    ):
        with pytest.raises(InvalidRequest, match="boundary"):
            boundary_of(without)
