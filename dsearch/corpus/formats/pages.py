"""HTML, PDF, Word, PowerPoint and EPUB files: each is one document with its path as id."""

from __future__ import annotations

import io
import logging
import posixpath
import zipfile
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import unquote

from dsearch.corpus.formats.lines import ByteStream, optional
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


MOST_BYTES = 1 << 28  # unpacked: a small archive can stand for terabytes


def read_docx(stream: ByteStream, identity: str) -> Document:
    """Read a Word file: paragraphs and the rows of tables in their order; metadata `author`.

    Raises:
        BadRecord: damaged, or without text.
        MissingExtra: python-docx is not installed.
    """
    docx = optional("docx", extra="files", what="Word files")
    return _read(stream, identity, "Word file", lambda archive: _docx(docx.Document(archive)))


def read_pptx(stream: ByteStream, identity: str) -> Document:
    """Read a PowerPoint file: the texts of its slides and their notes; metadata `author`, `slides`.

    Raises:
        BadRecord: damaged, or without text.
        MissingExtra: python-pptx is not installed.
    """
    pptx = optional("pptx", extra="files", what="PowerPoint files")
    return _read(stream, identity, "PowerPoint file", lambda archive: _pptx(pptx.Presentation(archive)))


def read_epub(stream: ByteStream, identity: str) -> Document:
    """Read an EPUB file: the text of its chapters in reading order; metadata `author`, `language`.

    Raises:
        BadRecord: damaged, protected, or without text.
        MissingExtra: lxml is not installed.
    """
    etree = optional("lxml.etree", extra="files", what="EPUB files")
    return _read(stream, identity, "EPUB file", lambda archive: _epub(archive, etree))


_Content = tuple[str, list[str], dict[str, Any]]
"""Title, parts of the text, metadata."""


def _read(
    stream: ByteStream, identity: str, kind: str, content: Callable[[io.BytesIO], _Content]
) -> Document:
    archive = io.BytesIO(stream.read())
    try:
        with zipfile.ZipFile(archive) as members:
            unpacked = sum(member.file_size for member in members.infolist())
        if unpacked > MOST_BYTES:
            raise BadRecord(f"unpacks to {unpacked} bytes; at most {MOST_BYTES}")
        title, parts, metadata = content(archive)
    except BadRecord:
        raise
    except Exception as error:  # damaged archives make the libraries raise almost anything
        raise BadRecord(f"not a {kind} that can be read: {type(error).__name__}: {error}") from error
    text = "\n\n".join(stripped for part in parts if (stripped := part.strip()))
    if not text:
        raise BadRecord(f"no text in this {kind}")
    fields = {name: value for name, value in metadata.items() if value}
    return Document(id=identity, title=title.strip() or stem(identity), text=text, metadata=fields)


def _docx(document: Any) -> _Content:
    parts: list[str] = []
    for block in document.iter_inner_content():
        if hasattr(block, "rows"):
            rows = (" | ".join(cell.text.strip() for cell in _cells(row)) for row in block.rows)
            parts.append("\n".join(rows))
        else:
            parts.append(block.text)
    about = document.core_properties
    return about.title or "", parts, {"author": about.author}


def _cells(row: Any) -> list[Any]:
    """Cells of a row; one that spans several columns counts once."""
    return list({cell._tc: cell for cell in row.cells}.values())


def _pptx(presentation: Any) -> _Content:
    slides = [[*_shapes(slide.shapes), *_notes(slide)] for slide in presentation.slides]
    about = presentation.core_properties
    parts = ["\n".join(slide) for slide in slides]
    return about.title or "", parts, {"author": about.author, "slides": len(slides)}


def _shapes(shapes: Any) -> Iterator[str]:
    for shape in shapes:
        if shape.has_text_frame:
            yield shape.text_frame.text
        elif getattr(shape, "has_table", False):
            for row in shape.table.rows:
                yield " | ".join(cell.text for cell in row.cells)
        elif hasattr(shape, "shapes"):  # a group
            yield from _shapes(shape.shapes)


def _notes(slide: Any) -> Iterator[str]:
    if slide.has_notes_slide and slide.notes_slide.notes_text_frame is not None:
        yield slide.notes_slide.notes_text_frame.text


_DUBLIN_CORE = "{http://purl.org/dc/elements/1.1/}"


def _epub(archive: io.BytesIO, etree: Any) -> _Content:
    parser = etree.XMLParser(resolve_entities=False, no_network=True)
    with zipfile.ZipFile(archive) as members:
        container = etree.fromstring(members.read("META-INF/container.xml"), parser)
        place = container.find(".//{*}rootfile").get("full-path")
        package = etree.fromstring(members.read(place), parser)
        files = {item.get("id"): item.get("href") for item in package.iterfind(".//{*}manifest/{*}item")}
        folder = posixpath.dirname(place)
        chapters = dict.fromkeys(  # each once: a small file could name a large chapter without end
            posixpath.normpath(posixpath.join(folder, unquote(files[item.get("idref")])))
            for item in package.iterfind(".//{*}spine/{*}itemref")
        )
        parts = [plain_html(members.read(chapter)) for chapter in chapters]

    def about(name: str) -> str:
        return (package.findtext(f".//{{*}}metadata/{_DUBLIN_CORE}{name}") or "").strip()

    return about("title"), parts, {"author": about("creator"), "language": about("language")}
