"""CSV and TSV: delimiters, quoting, and problems with the first line of their row."""

from __future__ import annotations

import io

import pytest

from dsearch.corpus import Problems, RecordFields
from dsearch.corpus.formats.tables import read_csv


def table(raw: str | bytes, **fields: str) -> tuple[list[tuple[int, str]], list[str]]:
    """First line and text of each document, and the problems."""
    problems = Problems()
    content = raw if isinstance(raw, bytes) else raw.encode()
    read = read_csv(io.BytesIO(content), "t.csv", problems, RecordFields(**fields))  # type: ignore[arg-type]
    documents = [(line, document.text) for line, document in read]
    return documents, [str(problem) for problem in problems.first]


@pytest.mark.parametrize("delimiter", [",", ";", "\t"])
def test_the_most_frequent_delimiter_of_the_header_is_that_of_the_table(delimiter: str) -> None:
    raw = f"id{delimiter}text{delimiter}note\n1{delimiter}one{delimiter}a\n"
    assert table(raw) == ([(2, "one")], [])
    others = ",;\t".replace(delimiter, "")
    raw = f'id{delimiter}text{delimiter}"{others} in its name"\n1{delimiter}one{delimiter}a\n'
    assert table(raw) == ([(2, "one")], [])


def test_a_document_has_the_first_line_of_its_row() -> None:
    raw = 'id,text\n1,"two\nlines"\n\n2,"a ""word"", or two"\n'
    assert table(raw) == ([(2, "two\nlines"), (5, 'a "word", or two')], [])


def test_a_bad_row_is_told_with_its_first_line_and_costs_only_itself() -> None:
    documents, problems = table('id,text\n1,one\n2\n3,"a\nb"\n4,four,more\n5," "\n6,six\n')
    assert documents == [(2, "one"), (4, "a\nb"), (8, "six")]
    assert problems == [
        "t.csv:3: 1 cell, but the header has 2 columns",
        "t.csv:6: 3 cells, but the header has 2 columns",
        "t.csv:7: empty: neither title nor text says anything",
    ]


def test_quoting_that_breaks_is_told_with_its_row() -> None:
    documents, problems = table('id,text\n1,one\n2,"x"y\n3,three\n')
    assert documents == [(2, "one"), (4, "three")]
    assert len(problems) == 1
    assert problems[0].startswith("t.csv:3: broken row: ")


def test_bytes_that_are_no_text_are_told_with_their_column() -> None:
    good = "é".encode() * 3
    documents, problems = table(b"id,text\n1,a" + good + b"\n2,b\xff\n3,c\n")
    assert documents == [(2, "aééé"), (4, "c")]
    assert problems == ["t.csv:3: column 'text' is not UTF-8; save the file as UTF-8"]


def test_a_header_that_is_none_is_told() -> None:
    assert table("") == ([], ["t.csv:1: empty; a table begins with a header that names its columns"])
    assert table("text,text\na,b\n") == (
        [],
        ["t.csv:1: the header names a column twice: ['text', 'text']"],
    )
    assert "no column text, contents, body" in table("id,words\n1,a\n")[1][0]
    assert table(" id , words \n1,a\n", text="words") == ([(2, "a")], [])


def test_a_cell_may_be_longer_than_python_allows_by_itself() -> None:
    long = "x" * 200_000
    assert table(f"id,text\n1,{long}\n") == ([(2, long)], [])


def test_only_columns_without_a_meaning_are_typed() -> None:
    problems = Problems()
    raw = b"id,title,text,value,n\n7,8,9,1.5,3\n"
    [(_, document)] = read_csv(io.BytesIO(raw), "t.csv", problems, RecordFields())
    assert (document.id, document.title, document.text, document.value) == ("7", "8", "9", 1.5)
    assert document.metadata == {"n": 3}
