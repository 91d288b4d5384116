"""HTML as plain text, and PDF: what belongs to the text and what does not."""

from __future__ import annotations

import io
from typing import Any

import pytest

from dsearch.corpus.formats import pages
from dsearch.corpus.formats.pages import plain_html, read_html, read_pdf
from dsearch.corpus.records import BadRecord


def test_blocks_are_lines_and_markup_is_left_out() -> None:
    pytest.importorskip("lxml")
    page = (
        "<html><head><title>not this</title></head><body><script>var x;</script><style>p {}</style>"
        "<h1>One</h1>two<br>three  <b>bold</b>\n words<p>four</p><ul><li>five<li>six</ul>"
        "<table><tr><th>a</th><td>b</td></tr></table>tail<pre>seven</pre></body></html>"
    )
    lines = ["One", "two", "three bold", "words", "four", "five", "six", "a b", "tail", "seven"]
    assert plain_html(page).split("\n") == lines
    assert plain_html(page.encode()).split("\n") == lines


def test_text_is_never_decoded_a_second_time() -> None:
    """A string is text already, whatever encoding its markup names."""
    pytest.importorskip("lxml")
    assert plain_html('<meta charset="latin-1"><p>Käse</p>') == "Käse"
    assert plain_html('<meta charset="latin-1"><p>Käse</p>'.encode("latin-1")) == "Käse"


def test_markup_without_any_element_is_refused() -> None:
    pytest.importorskip("lxml")
    with pytest.raises(BadRecord, match="HTML that cannot be read"):
        plain_html("")


def test_a_page_without_text_is_refused_and_one_without_a_title_has_the_name_of_its_file() -> None:
    pytest.importorskip("trafilatura")
    with pytest.raises(BadRecord, match="the file says nothing"):
        read_html(io.BytesIO(b" \n"), "a/b.html")
    with pytest.raises(BadRecord, match="no text was found in this HTML"):
        read_html(io.BytesIO(b"<html><body><p> </p></body></html>"), "a/b.html")
    read = read_html(io.BytesIO(b"<html><body><p>words</p></body></html>"), "a/b.html.gz")
    assert (read.id, read.title, read.text) == ("a/b.html.gz", "b", "words")


def test_a_page_of_which_no_part_is_the_main_one_is_read_as_a_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    class Trafilatura:
        extract = staticmethod(lambda page, include_comments: None)
        baseline = staticmethod(lambda page: (None, " few words ", 9))
        extract_metadata = staticmethod(lambda page: None)

    monkeypatch.setattr(pages, "optional", lambda *_, **__: Trafilatura)
    read = read_html(io.BytesIO(b"<p>few words"), "a/b.html")
    assert (read.title, read.text) == ("b", "few words")


class _Page:
    def __init__(self, text: str):
        self._text = text

    def extract_text(self) -> str:
        return self._text


class _Pdf:
    """What `pypdf` makes of a file, in its place."""

    def __init__(self, *texts: str, title: str | None = None, password: str | None = None):
        self.pages = [_Page(text) for text in texts]
        self.metadata = None if title is None else type("Described", (), {"title": title})
        self.is_encrypted, self._password = password is not None, password

    def decrypt(self, password: str) -> bool:
        return password == self._password

    def PdfReader(self, stream: io.BytesIO) -> _Pdf:
        assert stream.read() == b"%PDF"
        return self


def read(monkeypatch: pytest.MonkeyPatch, pdf: Any) -> Any:
    monkeypatch.setattr(pages, "optional", lambda *_, **__: pdf)
    return read_pdf(io.BytesIO(b"%PDF"), "a/b.pdf")


def test_pages_are_apart_by_a_blank_line_and_counted_all(monkeypatch: pytest.MonkeyPatch) -> None:
    document = read(monkeypatch, _Pdf(" one ", "", "two\ud800", title=" T "))
    assert (document.title, document.text) == ("T", "one\n\ntwo?")
    assert document.metadata == {"pages": 3}
    assert read(monkeypatch, _Pdf("one")).title == "b"
    assert read(monkeypatch, _Pdf("one", title=" ")).title == "b"


def test_scans_and_locked_files_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(BadRecord, match="no text on 2 pages: a scan"):
        read(monkeypatch, _Pdf("", " "))
    with pytest.raises(BadRecord, match=r"^encrypted with a password; save it without$"):
        read(monkeypatch, _Pdf("one", password="secret"))
    assert read(monkeypatch, _Pdf("one", password="")).text == "one"


def test_whatever_the_library_raises_is_a_bad_record(monkeypatch: pytest.MonkeyPatch) -> None:
    class _Broken:
        def PdfReader(self, stream: io.BytesIO) -> None:
            raise RecursionError("too deep")

    with pytest.raises(BadRecord, match="not a PDF that can be read: RecursionError: too deep"):
        read(monkeypatch, _Broken())
