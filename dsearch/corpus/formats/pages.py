"""HTML and PDF files: each is one document with its path as id."""

from __future__ import annotations

import io
import logging
from typing import Any

from dsearch.corpus.formats.extras import optional
from dsearch.corpus.formats.lines import ByteStream
from dsearch.corpus.formats.texts import stem
from dsearch.corpus.records import BadRecord
from dsearch.errors import amount
from dsearch.types import Document

_BLOCKS = ["p", "h1", "h2", "h3", "h4", "h5", "h6", "li", "div", "br", "tr", "blockquote", "pre", "section"]
_CELLS = ["td", "th"]


def read_html(stream: ByteStream, identity: str) -> Document:
    """Read a web page: its main text, without navigation, and its title (else the file's name).

    Raises:
        BadRecord: it has no text.
        MissingExtra: trafilatura is not installed.
    """
    trafilatura = optional("trafilatura", extra="files", what="HTML files")
    _quiet("trafilatura")
    page = stream.read()
    if not page.strip():
        raise BadRecord("empty: the file says nothing")
    text = trafilatura.extract(page, include_comments=False) or trafilatura.baseline(page)[1]
    described = trafilatura.extract_metadata(page)
    if not text or not text.strip():
        raise BadRecord("no text was found in this HTML")
    return Document(id=identity, title=(described and described.title) or stem(identity), text=text.strip())


def plain_html(page: str | bytes) -> str:
    """Text of HTML as a whole, a line for each block: for pages that are content only.

    Raises:
        BadRecord: not HTML.
        MissingExtra: lxml is not installed.
    """
    html = optional("lxml.html", extra="files", what="HTML texts")
    parser = html.HTMLParser(encoding="utf-8") if isinstance(page, str) else None
    try:
        tree = html.document_fromstring(page.encode() if isinstance(page, str) else page, parser)
    except (ValueError, html.etree.LxmlError) as error:
        raise BadRecord(f"HTML that cannot be read: {error}") from error
    for element in list(tree.iter("script", "style", "head")):
        element.drop_tree()
    for tags, apart in ((_BLOCKS, "\n"), (_CELLS, " ")):
        for element in tree.iter(*tags):
            element.text = apart + (element.text or "")
            element.tail = apart + (element.tail or "")
    lines = (" ".join(line.split()) for line in tree.text_content().splitlines())
    return "\n".join(line for line in lines if line)


def read_pdf(stream: ByteStream, identity: str) -> Document:
    """Read a PDF: the text of its pages, a blank line between, and its title (else the file's name).

    Raises:
        BadRecord: damaged, encrypted with a password, or without text (a scan).
        MissingExtra: pypdf is not installed.
    """
    pypdf = optional("pypdf", extra="files", what="PDF files")
    _quiet("pypdf")
    try:
        title, pages = _pages(pypdf, io.BytesIO(stream.read()))
    except BadRecord:
        raise
    except Exception as error:  # a damaged PDF makes pypdf raise almost anything
        raise BadRecord(f"not a PDF that can be read: {type(error).__name__}: {error}") from error
    text = "\n\n".join(page for page in pages if page)
    if not text:
        raise BadRecord(f"no text on {amount(len(pages), 'page')}: a scan needs text recognition (OCR) first")
    return Document(id=identity, title=title or stem(identity), text=text, metadata={"pages": len(pages)})


def _pages(pypdf: Any, stream: io.BytesIO) -> tuple[str, list[str]]:
    reader = pypdf.PdfReader(stream)
    if reader.is_encrypted and not reader.decrypt(""):
        raise BadRecord("encrypted with a password; save it without")
    described = reader.metadata
    title = (described and described.title) or ""
    # Broken font tables give lone surrogates, which are not text.
    pages = [page.extract_text().encode("utf-8", "replace").decode().strip() for page in reader.pages]
    return title.encode("utf-8", "replace").decode().strip(), pages


def _quiet(library: str) -> None:
    """Silence the libraries' own messages; errors of a file are reported as problems."""
    logging.getLogger(library).setLevel(logging.CRITICAL)
