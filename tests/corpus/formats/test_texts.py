"""Titles of text files, by kind: a heading where there is one, else the file's name."""

from __future__ import annotations

import io
from collections.abc import Callable

import pytest

from dsearch.corpus.formats.lines import ByteStream
from dsearch.corpus.formats.texts import (
    read_markdown,
    read_org,
    read_rst,
    read_source,
    read_text,
    split_heading,
    stem,
)
from dsearch.corpus.records import BadRecord
from dsearch.types import Document


def titled(reader: Callable[[ByteStream, str], Document], text: str) -> str:
    return reader(io.BytesIO(text.encode()), "a/name.kind").title


@pytest.mark.parametrize(
    ("identity", "name"),
    [
        ("a/b.txt", "b"),
        ("b.txt.gz", "b"),
        ("b.gz", "b"),
        ("b", "b"),
        ("a.b/c.tar.txt", "c.tar"),
        (".env", ".env"),
    ],
)
def test_the_default_title_is_the_name_without_folder_and_suffixes(identity: str, name: str) -> None:
    assert stem(identity) == name
    assert read_text(io.BytesIO(b"x"), identity).title == name


def test_source_code_has_its_whole_name_for_a_title() -> None:
    assert titled(read_source, "x = 1") == "name.kind"


@pytest.mark.parametrize(
    ("markdown", "title", "rest"),
    [
        ("# One #\nbody", "One", "body"),
        ("   ###### Six\nbody", "Six", "body"),
        ("####### seven\nbody", "", "####### seven\nbody"),
        ("    # code\nbody", "", "# code\nbody"),
        ("#none\nbody", "", "#none\nbody"),
        ("#\n# Two", "Two", "#"),
        ("intro\n\n## Second\nbody", "Second", "intro\n\nbody"),
        ("Under\n=====\nbody", "Under", "body"),
        ("Under\n--\nbody", "Under", "body"),
        ("before\nUnder\n---\nbody", "", "before\nUnder\n---\nbody"),
        ("before\n\nUnder\n---\nbody", "Under", "before\n\nbody"),
        ("- item\n---\nbody", "", "- item\n---\nbody"),
        ("| cell\n---\nbody", "", "| cell\n---\nbody"),
        ("```\n# code\n```\n# Real", "Real", "```\n# code\n```"),
        ("~~~\n```\n# code\n~~~\n# Real", "Real", "~~~\n```\n# code\n~~~"),
        ("words", "", "words"),
    ],
)
def test_the_first_heading_outside_of_code_is_the_title(markdown: str, title: str, rest: str) -> None:
    assert split_heading(markdown) == (title, rest)


def test_a_title_of_front_matter_takes_precedence_and_a_blank_one_does_not() -> None:
    def read(text: str) -> tuple[str, str, dict[str, object]]:
        document = read_markdown(io.BytesIO(text.encode()), "a/name.md")
        return document.title, document.text, document.metadata

    assert read("---\ntitle: ' Front '\nk: 1\n---\n# Head\nbody") == ("Front", "# Head\nbody", {"k": 1})
    assert read("---\ntitle: ' '\n---\n# Head\nbody") == ("Head", "body", {"title": " "})
    assert read("---\ntitle: 7\n---\nbody") == ("name", "body", {"title": 7})


@pytest.mark.parametrize(
    ("rst", "title"),
    [
        ("Long title\n----------\n", "Long title"),
        ("Long title\n---\n", "name"),
        ("words\n\n indented\n---------\n", "name"),
        ("Title\n%%%%%\n", "name"),
        ('Title\n"""""\n', "Title"),
        ("One\n===\n\nTwo\n---\n", "One"),
        ("One\n=-=\n", "name"),
    ],
)
def test_the_first_underlined_line_titles_restructured_text(rst: str, title: str) -> None:
    assert titled(read_rst, rst) == title


@pytest.mark.parametrize(
    ("org", "title"),
    [
        ("* Head\n#+title: Named\n", "Named"),
        ("** Second\n* First", "Second"),
        ("#+TITLE:\n* Head", "Head"),
        ("*bold* words", "name"),
    ],
)
def test_an_org_file_is_titled_by_its_title_else_by_its_first_headline(org: str, title: str) -> None:
    assert titled(read_org, org) == title


@pytest.mark.parametrize("reader", [read_text, read_source, read_markdown, read_rst, read_org])
def test_a_detected_encoding_is_told_and_a_blank_file_refused(
    reader: Callable[[ByteStream, str], Document],
) -> None:
    marked = b"\xff\xfe" + " words ".encode("utf-16-le")
    read = reader(io.BytesIO(marked), "a.txt")
    assert (read.text, read.metadata) == ("words", {"encoding": "utf-16-le"})
    assert reader(io.BytesIO(b" words \n"), "a.txt") == Document("a.txt", "words", read.title)
    with pytest.raises(BadRecord, match="empty: the file says nothing"):
        reader(io.BytesIO(b" \n"), "a.txt")
