"""Files as people keep them: front matter, notebooks, mail, Office files, source code, older encodings."""

from __future__ import annotations

import email.message
import io
import json
import os
import zipfile
from datetime import UTC, datetime
from email.policy import default
from pathlib import Path

import pytest

from dsearch.corpus import Problems, RecordFields, parse_types, read
from dsearch.corpus.files import LARGEST, parts_of
from dsearch.corpus.formats.texts import split_front_matter
from dsearch.errors import InvalidRequest
from dsearch.store import refusal
from dsearch.types import Document


def one(path: Path) -> Document:
    (document,) = read(path)
    return document


def put(path: Path, content: str | bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


# --- metadata of files


def test_a_file_has_the_metadata_of_its_place(tmp_path):
    path = put(tmp_path / "deep" / "er" / "main.py", "print(1)\n")
    os.utime(path, (0, 1_600_000_000))
    (document,) = read(tmp_path)
    assert (document.id, document.title) == ("deep/er/main.py", "main.py")
    assert document.metadata == {
        "path": "deep/er/main.py",
        "folder": "deep/er",
        "name": "main.py",
        "type": "python",
        "title": "main.py",
        "size": 9,
        "modified": datetime.fromtimestamp(1_600_000_000, UTC).isoformat(),
        "_file": {"root": os.path.realpath(tmp_path), "path": "deep/er/main.py"},
    }
    assert refusal(document) is None


@pytest.mark.parametrize(
    ("text", "fields", "rest"),
    [
        (
            "---\ntitle: T\ntags: [a, b]\ndate: 2024-05-06\n---\nbody",
            {"tags": ["a", "b"], "date": "2024-05-06"},
            "body",
        ),
        (
            '+++\ntitle = "T"\nweight = 3\n[extra]\nx = 1.5\n+++\nbody',
            {"weight": 3, "extra": {"x": 1.5}},
            "body",
        ),
        ("---\r\ntitle: T\r\n---\r\nbody", {}, "body"),
    ],
)
def test_front_matter_is_metadata(tmp_path, text, fields, rest):
    document = one(put(tmp_path / "a.md", text))
    assert (document.title, document.text) == ("T", rest)
    assert fields.items() <= document.metadata.items()


def test_front_matter_takes_precedence_over_the_file(tmp_path):
    document = one(put(tmp_path / "a.md", "---\ntype: post\n---\n# Heading\n\nbody"))
    assert (document.title, document.text, document.metadata["type"]) == ("Heading", "body", "post")


@pytest.mark.parametrize(
    "text",
    [
        "---\nno mapping\n---\nbody",
        "---\n{: broken\n---\nbody",
        "---\na: &x [1]\nb: *x\n---\nbody",  # an alias could expand without bound
        "---\na: !!bool x\n---\nbody",  # on these three the YAML library raises what is no error of YAML
        '---\na: !!int ""\n---\nbody',
        "---\na: !!timestamp x\n---\nbody",
        "+++\nbroken =\n+++\nbody",
        f"+++\na = {'[' * 20_000}\n+++\nbody",
        "---\nnever closed: 1\nbody",
        "text\n---\na: 1\n---\n",
    ],
)
def test_what_is_no_front_matter_is_text(text):
    assert split_front_matter(text) == ({}, text)


# --- kinds of files


@pytest.mark.parametrize(
    ("name", "text", "title"),
    [
        ("a.rst", "=====\nTitle\n=====\n\nbody\n\nOther\n-----\n", "Title"),
        ("a.rst", "Title\n~~~~~\n\nbody", "Title"),
        ("a.rst", "plain", "a"),
        ("a.org", "#+TITLE: Title\n* Head\n", "Title"),
        ("a.org", "* Head\nbody", "Head"),
        ("a.yaml", "key: value", "a.yaml"),
        ("package.json", '{"name": "x"}', "package.json"),
        ("README", "about", "README"),
        ("x.ts.gz", "let x = 1", "x.ts.gz"),
    ],
)
def test_titles(tmp_path, name, text, title):
    document = one(put(tmp_path / name, text))
    assert (document.title, document.text) == (title, text.strip())


def test_an_array_of_json_objects_is_records(tmp_path):
    records = [{"id": 1, "text": "one", "price": 3}, {"text": "two"}, {"text": " "}]
    problems = Problems()
    path = put(tmp_path / "a.json", json.dumps(records))
    documents = list(read(path, problems=problems))
    assert [(document.text, document.metadata) for document in documents] == [
        ("one", {"price": 3}),
        ("two", {}),
    ]
    assert str(problems.first[0]).startswith(f"{path}:3: empty")
    assert one(put(tmp_path / "b.json", '[{"name": "x"}]')).title == "b.json"


def test_notebooks_are_their_cells(tmp_path):
    cells = [
        {"cell_type": "markdown", "source": ["# Analysis\n", "\n", "of rivers"]},
        {"cell_type": "code", "source": "x = 1", "outputs": [{"text": "secret output"}]},
        {"cell_type": "code", "source": []},
    ]
    about = {"language_info": {"name": "python"}}
    document = one(put(tmp_path / "a.ipynb", json.dumps({"cells": cells, "metadata": about, "nbformat": 4})))
    assert (document.title, document.text) == ("Analysis", "of rivers\n\n```python\nx = 1\n```")
    assert (document.metadata["language"], document.metadata["type"]) == ("python", "notebook")
    problems = Problems()
    for name, content in (("b", "{}"), ("c", "[1]"), ("d", '{"cells": []}')):
        put(tmp_path / f"{name}.ipynb", content)
    assert len(list(read(tmp_path, problems=problems))) == 1
    assert problems.count == 3


def message(subject: str, text: str, html: str = "") -> email.message.EmailMessage:
    mail = email.message.EmailMessage(policy=default)
    mail["From"], mail["To"] = "Ann <ann@example.org>", "bob@example.org, Cy <cy@example.org>"
    mail["Subject"], mail["Date"] = subject, "Tue, 02 Jan 2024 10:00:00 +0100"
    mail["Message-ID"] = f"<{subject.split()[0].encode().hex()}@example.org>"
    if text:
        mail.set_content(text)
    if html:
        (mail.add_alternative if text else mail.set_content)(html, subtype="html")
    return mail


@pytest.mark.parametrize(
    "raw",
    [
        b"Content-Type: message/rfc822\n\n" * 2000,
        b"Content-Type: text/html\n\n<!-- nothing -->",
        b"Content-Type: text/html\n\n<?xml version='1.0' encoding='latin-1'?><p>x",
        b"",
        b"\n\n",
        b"Subject: =?utf-8?q?=\n\n",
        b"Date: x\nTo: ,,<\n\n\xff\xfe",
        b"\0" * 50,
    ],
)
def test_any_bytes_are_mail_or_a_problem(tmp_path, raw):
    problems = Problems()
    documents = list(read(put(tmp_path / "a.eml", raw), problems=problems))
    assert len(documents) + problems.count == 1
    assert all(refusal(document) is None for document in documents)


def test_word_and_powerpoint(tmp_path):
    docx, pptx = pytest.importorskip("docx"), pytest.importorskip("pptx")
    document = docx.Document()
    document.core_properties.title, document.core_properties.author = "Minutes", "Ann"
    document.add_paragraph("before the table")
    row = document.add_table(1, 2).rows[0]
    row.cells[0].text, row.cells[1].text = "left", "right"
    merged = document.add_table(1, 3).rows[0]
    merged.cells[0].merge(merged.cells[1]).text, merged.cells[2].text = "wide", "narrow"
    document.add_paragraph("behind it")
    document.save(str(tmp_path / "a.docx"))
    word = one(tmp_path / "a.docx")
    assert (word.title, word.text) == (
        "Minutes",
        "before the table\n\nleft | right\n\nwide | narrow\n\nbehind it",
    )
    assert (word.metadata["author"], word.metadata["type"]) == ("Ann", "word")

    slides = pptx.Presentation()
    slide = slides.slides.add_slide(slides.slide_layouts[1])
    slide.shapes.title.text, slide.placeholders[1].text = "Rivers", "flow"
    slide.notes_slide.notes_text_frame.text = "say it slowly"
    slides.save(str(tmp_path / "b.pptx"))
    shown = one(tmp_path / "b.pptx")
    assert shown.text == "Rivers\nflow\nsay it slowly"
    assert shown.metadata["slides"] == 1


def epub(chapters: list[str], named: int = 1) -> bytes:
    items = "".join(f'<item id="c{n}" href="c%20{n}.xhtml"/>' for n in range(len(chapters)))
    order = "".join(f'<itemref idref="c{n}"/>' * named for n in reversed(range(len(chapters))))
    about = "<dc:title>Book</dc:title><dc:creator>Ann</dc:creator>"
    package = (
        '<package xmlns="http://www.idpf.org/2007/opf" xmlns:dc="http://purl.org/dc/elements/1.1/">'
        f"<metadata>{about}</metadata><manifest>{items}</manifest><spine>{order}</spine></package>"
    )
    container = (
        '<container xmlns="urn:oasis:names:tc:opendocument:xmlns:container"><rootfiles>'
        '<rootfile full-path="in/book.opf"/></rootfiles></container>'
    )
    raw = io.BytesIO()
    with zipfile.ZipFile(raw, "w") as archive:
        archive.writestr("META-INF/container.xml", container)
        archive.writestr("in/book.opf", package)
        for number, chapter in enumerate(chapters):
            archive.writestr(f"in/c {number}.xhtml", chapter)
    return raw.getvalue()


def test_an_epub_is_its_chapters_in_reading_order(tmp_path):
    pytest.importorskip("lxml")
    page = "<html><head><title>no</title></head><body><h1>Chapter {0}</h1><p>One.<b>Two</b></p></body></html>"
    book = one(put(tmp_path / "a.epub", epub([page.format(n) for n in (1, 2)])))
    assert (book.title, book.metadata["author"]) == ("Book", "Ann")
    assert book.text == "Chapter 2\nOne.Two\n\nChapter 1\nOne.Two"


def test_a_chapter_that_is_named_again_and_again_is_read_once(tmp_path):
    pytest.importorskip("lxml")
    assert one(put(tmp_path / "a.epub", epub(["<p>One.</p>"], named=1000))).text == "One."


@pytest.mark.parametrize("name", ["a.docx", "a.pptx", "a.epub"])
def test_damaged_archives_are_problems(tmp_path, name):
    pytest.importorskip("docx")
    for raw in (b"", b"PK\3\4", epub([]), b"x" * 100):
        problems = Problems()
        assert list(read(put(tmp_path / name, raw), problems=problems)) == []
        assert problems.count == 1, raw


# --- encodings, large files, types


@pytest.mark.parametrize(
    ("encoding", "text"),
    [
        ("cp1252", "Der Käufer übernimmt die Größe, “naïve” – déjà vu."),
        ("cp1251", "Привет, как дела? Это короткий текст о поиске."),
        ("shift_jis", "これは日本語の文章です。検索エンジンについて。"),
        ("utf-16", "Ein Käufer"),
        ("utf-32", "Ein Käufer"),
    ],
)
def test_encodings_are_detected(tmp_path, encoding, text):
    document = one(put(tmp_path / "a.txt", text.encode(encoding)))
    assert document.text == text
    assert document.metadata["encoding"].startswith(encoding)


def test_a_table_in_an_older_encoding(tmp_path):
    path = put(tmp_path / "a.csv", "id,text,preis\n1,Käse,2\n2,Brötchen,0.5\n".encode("cp1252"))
    assert [(one.text, one.metadata) for one in read(path)] == [
        ("Käse", {"preis": 2}),
        ("Brötchen", {"preis": 0.5}),
    ]


def test_a_large_file_is_split_at_blank_lines(tmp_path):
    paragraphs = [f"paragraph {number} " + "é" * 400 for number in range(2000)]
    text = "\n\n".join(paragraphs)
    assert len(text.encode()) > LARGEST
    documents = list(read(put(tmp_path / "a.txt", text)))
    assert [document.id for document in documents[:3]] == ["a.txt", "a.txt#2", "a.txt#3"]
    assert [document.title for document in documents[:2]] == ["a", "a (2)"]
    assert "\n\n".join(document.text for document in documents) == text
    assert all(refusal(document) is None for document in documents)
    more = [part for _, part in parts_of(Document("a", f"{text}\n\nmore"))]
    assert [part.text for part in more[:-1]] == [document.text for document in documents[:-1]]


def test_a_large_file_without_any_space_is_split(tmp_path):
    documents = list(read(put(tmp_path / "a.txt", "é" * LARGEST)))
    assert "".join(document.text for document in documents) == "é" * LARGEST
    assert max(len(document.text.encode()) for document in documents) <= 1 << 18


@pytest.mark.parametrize(
    ("cells", "values"),
    [
        (["1", "-2.5", ""], [1, -2.5, None]),
        (["1e3", "2"], [1000.0, 2]),
        (["true", "FALSE"], [True, False]),
        (["007", "1"], ["007", "1"]),
        (["1,5", "2"], ["1,5", "2"]),
        (["+1"], ["+1"]),
        (["", ""], ["", ""]),
        (["1"] * 1000 + ["none"], [1] * 1000 + ["none"]),
        (["9" * 30], ["9" * 30]),
        (["1e999"], ["1e999"]),
        (["true", "1"], ["true", "1"]),
    ],
)
def test_types_of_columns(tmp_path, cells, values):
    lines = "".join(f'text {number},"{cell}"\n' for number, cell in enumerate(cells))
    documents = list(read(put(tmp_path / "b.csv", f"text,c\n{lines}")))
    assert [document.metadata.get("c") for document in documents] == values


def test_declared_types_hold_for_json_lines(tmp_path):
    path = put(tmp_path / "a.jsonl", '{"text": "x", "price": "9.5", "zip": 10115}\n')
    (document,) = read(path, fields=RecordFields(types=parse_types(["price=number", "zip=text"])))
    assert document.metadata == {"price": 9.5, "zip": "10115"}
    for wrong in ("price", "=number", "price=money"):
        with pytest.raises(InvalidRequest, match="use COLUMN=TYPE"):
            parse_types([wrong])
