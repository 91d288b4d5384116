"""Unusual contents of files: what is read of them, and how their problems are worded."""

from __future__ import annotations

import io
import json
import zipfile
from datetime import date, time, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from dsearch.corpus import Problems, RecordFields, read
from dsearch.corpus.chunk import definition_starts
from dsearch.corpus.formats import pages
from dsearch.corpus.formats.jsonl import documents_of_array, read_jsonl
from dsearch.corpus.formats.lines import SAMPLE, beginning, decoded, optional, unzipped
from dsearch.corpus.formats.mail import read_mbox
from dsearch.corpus.formats.texts import MOST, read_notebook, split_front_matter
from dsearch.corpus.records import BadRecord, plain_json, typed
from dsearch.errors import MissingExtra
from dsearch.types import Document


def notebook(content: dict[str, Any]) -> Document:
    return read_notebook(io.BytesIO(json.dumps(content).encode()), "a/b.ipynb")


def test_a_notebook_of_format_3_has_its_code_in_other_fields() -> None:
    cells = [
        {"cell_type": "markdown", "source": ["words\n", "and more"]},
        {"cell_type": "code", "input": ["x = 1\n", "y = 2"], "language": "python"},
    ]
    read = notebook({"worksheets": [{"cells": cells}], "metadata": {"kernelspec": {"language": "julia"}}})
    assert (read.title, read.text) == ("b", "words\nand more\n\n```julia\nx = 1\ny = 2\n```")
    assert read.metadata == {"language": "julia"}
    assert notebook({"cells": [{"cell_type": "code", "source": "x"}]}).metadata == {}


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        (
            '{"text": NaN}',
            "malformed JSON at column 10: unexpected character (JSON has no NaN and no Infinity",
        ),
        ("[1, 2", "malformed JSON at column 1"),
        ("[1]", "a JSON array; each line must be an object"),
        ("true", "a JSON true or false; each line"),
        ("1.5", "a JSON number; each line"),
        ("null", "a JSON null; each line"),
        ('"text"', "a JSON string; each line"),
    ],
)
def test_a_line_that_is_no_object_is_named(line: str, problem: str) -> None:
    problems = Problems()
    stream = io.BytesIO(f'{{"text": "one"}}\n\n{line}\n{{"text": "two"}}\n'.encode())
    read = list(read_jsonl(stream, "f.jsonl", problems, RecordFields()))
    assert [(number, document.text) for number, document in read] == [(1, "one"), (4, "two")]
    (first,) = problems.first
    if problem.startswith("malformed JSON at column 1"):
        assert "malformed JSON at column" in str(first)
    else:
        assert problem in str(first)
    assert str(first).startswith("f.jsonl:3: ")


@pytest.mark.parametrize(
    ("raw", "number"),
    [
        ("{}", None),
        ("[]", None),
        ("[1]", None),
        ('[{"text": "a"}, 1]', None),
        ('[{"name": "no text"}]', None),
        ("[", None),
        ('[{"name": "no text"}, {"text": "a"}]', 1),
        ('[{"text": "a"}, {"text": "b"}]', 2),
    ],
)
def test_an_array_is_documents_if_one_of_its_objects_is(raw: str, number: int | None) -> None:
    read = documents_of_array(raw.encode(), "f.json", Problems(), RecordFields())
    assert (None if read is None else len(list(read))) == number


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-32"])
def test_an_array_is_parsed_as_strictly_as_lines_and_decoded_as_texts_are(encoding: str) -> None:
    large = 2**70
    raw = (
        f'[ {{"id": "a", "text": "ä", "n": {large}}},\n {{"id": "b", "text": "x", "n": 1, "n": 2}},'
        '{"id": "c", "text": "y", "n": [[]]}, {"id": "d", "text": "z", "n": ' + "[" * 70 + "]" * 70 + "}\n]"
    )
    problems = Problems()
    read = documents_of_array(raw.encode(encoding), "f.json", problems, RecordFields())
    assert read is not None
    assert [(number, one.id, one.metadata) for number, one in read] == [
        (1, "a", {"n": large}),
        (3, "c", {"n": [[]]}),
    ]
    assert [str(problem).partition(";")[0] for problem in problems.first] == [
        "f.json:2: the name 'n' stands twice in one object",
        "f.json:4: this JSON nests more than 64 levels deep",
    ]


def test_an_array_that_nests_too_deep_for_python_ends_there() -> None:
    deep = "[" * 1010 + "]" * 1010
    problems = Problems()
    read = documents_of_array(
        f'[{{"text": "a"}}, {{"text": "b", "n": {deep}}}]'.encode(), "f.json", problems, RecordFields()
    )
    assert read is not None
    assert [number for number, _ in read] == [1]
    assert [str(problem) for problem in problems.first] == [
        "f.json:2: nests too deep; nothing from here on is read"
    ]


@pytest.mark.parametrize("encoding", ["shift_jis", "gb18030"])
def test_a_text_longer_than_the_sample_is_decoded_wherever_that_ends(encoding: str) -> None:
    text = "検索エンジンの試験に使う日本語の文書です。漢字とかなが混ざっています。\n" * 1000
    for lead in range(4):
        raw = b"a" * lead + text.encode(encoding)
        assert len(raw) > SAMPLE
        assert decoded(raw) == ("a" * lead + text, encoding)


def test_a_mark_that_lies_is_a_problem_and_an_encoding_is_named() -> None:
    assert decoded("ä".encode()) == ("ä", None)
    assert decoded(b"\xef\xbb\xbf" + "ä".encode()) == ("ä", None)
    assert decoded(b"\xff\xfe" + "ä".encode("utf-16-le")) == ("ä", "utf-16-le")
    with pytest.raises(BadRecord, match="begins with the mark of utf-16-le and is not"):
        decoded(b"\xff\xfea")


def test_messages_without_an_id_are_named_by_their_content_and_quotes_are_taken_off() -> None:
    raw = b"From a\nSubject: one\n\n>From here\n\nFrom b\nSubject: two\n\nwords\nFrom the middle\n"
    problems = Problems()
    read = list(read_mbox(io.BytesIO(raw), "m.mbox", problems, RecordFields()))
    assert [(line, one.title, one.text) for line, one in read] == [
        (1, "one", "From here"),
        (6, "two", "words\nFrom the middle"),
    ]
    assert all(one.id.startswith("sha256-") for _, one in read)
    assert problems.count == 0
    list(read_mbox(io.BytesIO(b"From a\n\n\n\nFrom b\nSubject: x\n\n\n"), "m.mbox", problems, RecordFields()))
    assert [str(one) for one in problems.first] == ["m.mbox:1: an e-mail with neither subject nor text"]


@pytest.mark.parametrize(
    ("value", "kind", "expected"),
    [
        (7, "text", "7"),
        (True, "text", True),
        (None, "text", None),
        (" Yes ", "text", " Yes "),
        (" TRUE ", "boolean", True),
        ("maybe", "boolean", "maybe"),
        (" 12 ", "number", 12),
        ("1.50", "number", 1.5),
        ("twelve", "number", "twelve"),
        ("  ", "number", None),
        ([1], "number", [1]),
        (str(2**63), "number", str(2**63)),
        (str(-(2**63)), "number", -(2**63)),
        ("1e999", "number", "1e999"),
    ],
)
def test_a_cell_becomes_its_declared_type_or_stays(value: Any, kind: Any, expected: Any) -> None:
    converted = typed(value, kind)
    assert (converted, type(converted)) == (expected, type(expected))


def test_values_of_richer_formats_become_json() -> None:
    rich = {
        "day": date(2024, 5, 6),
        "time": time(7, 8),
        "while": timedelta(minutes=2),
        "span": timedelta(days=-3, seconds=1.5),
        "price": Decimal("1.5"),
        "none": float("inf"),
        "raw": b"bytes",
        "set": {3},
        7: (1, b"x", float("nan")),
        "other": 1 + 2j,
    }
    assert plain_json(rich) == {
        "day": "2024-05-06",
        "time": "07:08:00",
        "while": 120.0,
        "span": -3 * 86_400 + 1.5,
        "price": 1.5,
        "none": None,
        "set": [3],
        "7": [1, None],
        "other": "(1+2j)",
    }


def test_front_matter_is_looked_for_in_the_beginning_alone() -> None:
    def text(length: int) -> str:
        """A text whose front matter is so long, with its marks."""
        frame = len("---\na: \n---\n")
        return f"---\na: {'x' * (length - frame)}\n---\nbody"

    fields, rest = split_front_matter(text(MOST))
    assert ([*fields], rest) == (["a"], "body")
    assert split_front_matter(text(MOST + 1)) == ({}, text(MOST + 1))


def test_groups_tables_and_notes_of_slides_are_read(tmp_path: Path) -> None:
    pptx = pytest.importorskip("pptx")
    slides = pptx.Presentation()
    slide = slides.slides.add_slide(slides.slide_layouts[6])
    inches = pptx.util.Inches(1)
    cells = slide.shapes.add_table(1, 2, inches, inches, inches, inches).table.rows[0].cells
    cells[0].text, cells[1].text = "left", "right"
    group = slide.shapes.add_group_shape()
    group.shapes.add_textbox(inches, inches, inches, inches).text_frame.text = "in a group"
    slides.save(str(tmp_path / "a.pptx"))
    (document,) = read(tmp_path / "a.pptx")
    assert document.text == "left | right\nin a group"


def test_an_archive_that_unpacks_to_more_than_it_may_is_not_unpacked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    docx = pytest.importorskip("docx")
    document = docx.Document()
    document.add_paragraph("river stone")
    document.save(str(tmp_path / "a.docx"))
    with zipfile.ZipFile(tmp_path / "a.docx") as members:
        unpacked = sum(member.file_size for member in members.infolist())
    monkeypatch.setattr(pages, "MOST_BYTES", unpacked)
    assert [one.text for one in read(tmp_path / "a.docx")] == ["river stone"]
    monkeypatch.setattr(pages, "MOST_BYTES", unpacked - 1)
    problems = Problems()
    assert list(read(tmp_path / "a.docx", problems=problems)) == []
    assert f"unpacks to {unpacked} bytes; at most {unpacked - 1}" in str(problems.first[0])


def test_a_form_feed_does_not_move_the_definitions_of_python() -> None:
    text = "import a\n\f\ndef one():\n    return 1\n\n\nclass Two:\n    pass\n"
    assert [text[at:].split("\n")[0] for at in definition_starts(text, "python")] == [
        "def one():",
        "class Two:",
    ]


def test_a_plain_line_says_nothing_of_the_encoding_of_the_others() -> None:
    text = "Der Käufer übernimmt die Größe.\nA line of plain letters.\nDéjà vu, naïve.\n"
    assert decoded(text.encode("cp1252")) == (text, "cp1252")


def test_a_package_that_is_not_whole_is_told_as_one_that_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "half_installed.py").write_text("from os import what_it_does_not_have\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(MissingExtra, match="Odd files need half_installed, which is not installed or not"):
        optional("half_installed", extra="files", what="Odd files")


def test_cells_that_are_neither_words_nor_code_have_no_fence() -> None:
    cells = [{"cell_type": "raw", "source": "as it is"}, {"cell_type": "code", "source": "x = 1"}]
    assert notebook({"cells": cells}).text == "as it is\n\n```\nx = 1\n```"


def test_every_row_of_a_table_of_word_is_read(tmp_path: Path) -> None:
    document = pytest.importorskip("docx").Document()
    for row, words in zip(document.add_table(2, 2).rows, (("a", "b"), ("c", "d")), strict=True):
        row.cells[0].text, row.cells[1].text = words
    document.save(str(tmp_path / "a.docx"))
    assert [one.text for one in read(tmp_path / "a.docx")] == ["a | b\nc | d"]


def test_a_number_that_is_none_is_absent_whatever_its_type() -> None:
    assert plain_json([Decimal("NaN"), Decimal("-Infinity"), Decimal(2)]) == [None, None, 2.0]


class _Drops(io.RawIOBase):
    """A pipe that gives a byte at a time."""

    def __init__(self, content: bytes):
        self._content = content

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        part, self._content = self._content[:1], self._content[1:]
        buffer[: len(part)] = part
        return len(part)


def test_the_beginning_of_a_stream_is_as_long_as_wanted_however_it_arrives() -> None:
    start, stream = beginning(_Drops(b"abcdef"), 4)
    assert (start, stream.read()) == (b"abcd", b"abcdef")
    assert beginning(_Drops(b"ab"), 4)[0] == b"ab"


def test_half_of_the_mark_of_gzip_is_text() -> None:
    assert unzipped(io.BytesIO(b"\x1f and words")).read() == b"\x1f and words"
