"""Parts of very large documents: where they end, how they are called, what stays whole."""

from __future__ import annotations

import csv
import gzip
import io
import itertools
import json
import os
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsearch.corpus import Problems, RecordFields, content_id, files, read, read_sources
from dsearch.corpus.files import LARGEST, PART, parts_of
from dsearch.errors import InvalidSource
from dsearch.types import Document


def put(folder, name, content):
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def plain(documents):
    """Without the metadata of their files."""
    facts = {"path", "folder", "name", "type", "title", "size", "modified", "_file"}
    return [
        replace(one, metadata={name: value for name, value in one.metadata.items() if name not in facts})
        for one in documents
    ]


def gathered(source, **options):
    problems = Problems()
    return list(read(source, problems=problems, **options)), [str(problem) for problem in problems.first]


# --- tables


def test_csv_with_quotes_line_ends_and_a_byte_order_mark(tmp_path):
    path = put(tmp_path, "a.csv", '\ufeffid,title,text,lang\r\n1,T,"a, ""b""\r\nc",en\r\n\r\n2,,z,\r\n')
    assert list(read(path)) == [
        Document("1", 'a, "b"\r\nc', "T", {"lang": "en"}),
        Document("2", "z", "", {"lang": ""}),
    ]


@pytest.mark.parametrize(
    ("header", "fields", "remarked"),
    [("sku", None, True), ("sku", RecordFields(id="sku"), False), ("_id", None, False), ("id", None, False)],
)
def test_a_table_without_a_column_of_ids_is_remarked_on(tmp_path, header, fields, remarked):
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    csv_file = put(tmp_path, "a.csv", f"{header},text\ns1,a\n")
    parquet_file = tmp_path / "a.parquet"
    parquet.write_table(pyarrow.table({header: ["s1"], "text": ["a"]}), parquet_file)
    for path in (csv_file, parquet_file):
        problems = Problems()
        (document,) = read(path, problems=problems, fields=fields or RecordFields())
        assert (document.id == "s1") != remarked
        assert problems.count == 0
        said = (
            f"{path}: no column id or _id, so the ids of its rows are digests of title and text, and a row "
            f"whose text changes is a new document; name a column with --id-column: {header}, text"
        )
        assert [str(remark) for remark in problems.remarks] == [said] * remarked


CELLS = st.text(st.characters(codec="utf-8", exclude_characters="\r\0"), min_size=1).filter(str.strip)


@given(st.lists(st.tuples(CELLS, CELLS, CELLS), max_size=5, unique_by=lambda row: row[0]))
def test_any_table_survives(tmp_path_factory, rows):
    written = io.StringIO(newline="")
    csv.writer(written).writerows([("id", "title", "text"), *rows])
    path = put(tmp_path_factory.mktemp("csv"), "a.csv", written.getvalue())
    assert list(read(path)) == [Document(identity, text, title) for identity, title, text in rows]


# --- text and Markdown


def test_files_are_documents_called_by_their_path(tmp_path):
    put(tmp_path, "notes/b.md", "# Bee\n\nbody")
    put(tmp_path, "notes/plain.md", "no heading")
    put(tmp_path, "a.txt", "\ufefftext\n")
    put(tmp_path, "z.txt.gz", gzip.compress(b"zipped"))
    assert plain(read(tmp_path)) == [
        Document("a.txt", "text", "a"),
        Document("notes/b.md", "body", "Bee"),
        Document("notes/plain.md", "no heading", "plain"),
        Document("z.txt.gz", "zipped", "z"),
    ]
    assert plain(read(tmp_path / "a.txt")) == [Document("a.txt", "text", "a")]


def test_bad_text_files_cost_only_themselves(tmp_path):
    put(tmp_path, "a.txt", "onéy\ntwo ".encode() + b"\xff\n")  # UTF-8 with damage
    put(tmp_path, "b.txt", " \n")
    put(tmp_path, "c.txt", bytes(range(256)))
    put(tmp_path, "d.txt", "text")
    documents, problems = gathered(tmp_path)
    assert [document.id for document in documents] == ["d.txt"]
    assert problems[0].startswith(f"{tmp_path / 'a.txt'}:2: byte 11 (0xff) is not UTF-8")
    assert problems[1] == f"{tmp_path / 'b.txt'}: empty: the file says nothing"
    assert problems[2].startswith(f"{tmp_path / 'c.txt'}:2: byte 129 (0x80) is not UTF-8")


# --- gzip and encodings


def test_gzip_is_told_by_its_bytes_not_its_name(tmp_path):
    line = b'{"_id": "a", "text": "x"}\n'
    expected = [Document("a", "x")]
    assert list(read(put(tmp_path, "a.jsonl.gz", gzip.compress(line)))) == expected
    assert list(read(put(tmp_path, "b.jsonl", gzip.compress(line)))) == expected
    assert list(read(put(tmp_path, "c.jsonl.gz", line))) == expected
    assert list(read(put(tmp_path, "d.csv.gz", gzip.compress(b"id,text\na,x\n")))) == expected
    assert list(read("-", stdin=io.BytesIO(gzip.compress(line)))) == expected


def test_a_cut_gzip_file_gives_what_is_whole_and_tells_where_it_ends(tmp_path):
    lines = b"".join(
        b'{"_id": "%d", "text": "%s"}\n' % (n, os.urandom(200).hex().encode()) for n in range(500)
    )
    zipped = gzip.compress(lines)
    documents, problems = gathered(put(tmp_path, "a.jsonl.gz", zipped[: len(zipped) // 2]))
    assert 0 < len(documents) < 500
    assert len(problems) == 1
    assert f"a.jsonl.gz:{len(documents) + 1}: cannot be read from here on" in problems[0]


@pytest.mark.parametrize("name", ["a.jsonl", "a.txt"])
def test_a_broken_gzip_file_is_one_problem(tmp_path, name):
    zipped = bytearray(gzip.compress(b'{"_id": "a", "text": "x"}\n' * 50))
    zipped[12:20] = b"\xff" * 8
    documents, problems = gathered(put(tmp_path, name, bytes(zipped)))
    assert documents == []
    assert len(problems) == 1
    assert "cannot be read" in problems[0]


def test_a_cut_gzip_file_costs_a_folder_only_itself(tmp_path):
    zipped = gzip.compress(os.urandom(500).hex().encode())
    for name in ("a.json", "b.txt"):
        put(tmp_path, name, zipped[: len(zipped) // 2])
    put(tmp_path, "c.txt", "whole")
    documents, problems = gathered(tmp_path)
    assert [document.text for document in documents] == ["whole"]
    assert [problem.partition(": cannot be read")[0] for problem in problems] == [
        str(tmp_path / "a.json"),
        str(tmp_path / "b.txt"),
    ]


def test_utf16_says_so_once(tmp_path):
    data = '{"_id": "a", "text": "x"}\n{"_id": "b", "text": "x"}\n'.encode("utf-16")
    documents, problems = gathered(put(tmp_path, "a.jsonl", data))
    assert documents == []
    told = "UTF-16 or UTF-32; only UTF-8 is read, save the file as UTF-8"
    assert problems == [f"{tmp_path / 'a.jsonl'}:1: {told}"]


# --- folders, standard input, several sources


def test_folders_are_sorted_and_hidden_files_passed_over(tmp_path):
    for name in (
        "b.txt",
        "a/z.txt",
        "a/.hidden.txt",
        ".git/x.txt",
        "a-1.txt",
        "c.jsonl",
        "p.png",
        "q.png",
        "Makefile",
    ):
        put(tmp_path, name, '{"_id": "json", "text": "x"}')
    os.symlink(tmp_path, tmp_path / "loop")
    problems = Problems(strict=True)
    ids = [document.id for document in read(tmp_path, problems=problems)]
    assert ids == ["a/z.txt", "a-1.txt", "b.txt", "json"]
    assert problems.passed_over == {".png": 2, "": 1}


def test_a_pattern_follows_a_link_once_and_no_circle(tmp_path):
    put(tmp_path, "papers/a.txt", "one")
    put(tmp_path, "papers/sub/b.txt", "two")
    put(tmp_path, "elsewhere/c.txt", "three")
    os.symlink(tmp_path / "papers", tmp_path / "papers" / "sub" / "loop")
    os.symlink(tmp_path / "elsewhere", tmp_path / "papers" / "linked")
    ids = [document.id for document in read(f"{tmp_path}/papers/**/*.txt", problems=Problems(strict=True))]
    assert ids == ["a.txt", "linked/c.txt", "sub/b.txt"]


def test_standard_input_of_plain_lines():
    documents = list(read("-", stdin=io.BytesIO(b"\n  first text \nsecond\n\n")))
    assert [document.text for document in documents] == ["first text", "second"]
    assert len({document.id for document in documents}) == 2


def test_empty_standard_input_and_empty_files_hold_nothing(tmp_path):
    assert list(read("-", stdin=io.BytesIO(b"\n \n"))) == []
    assert list(read(put(tmp_path, "a.jsonl", ""))) == []


@pytest.mark.parametrize("name", ["a.csv", "a.tsv", "a.jsonl", "a.json", "-"])
def test_records_of_equal_text_without_an_id_are_numbered(tmp_path, name):
    rows = ["red", "red", "blue", "red"]
    text = "text\n" + "\n".join(rows)
    if "json" in name:
        lines = [json.dumps({"text": row}) for row in rows]
        text = f"[{','.join(lines)}]" if name == "a.json" else "\n".join(lines)
    problems = Problems()
    if name == "-":
        documents = list(read("-", stdin=io.BytesIO("\n".join(rows).encode()), problems=problems))
    else:
        documents = list(read(put(tmp_path, name, text), problems=problems))
    red, blue = content_id("", "red"), content_id("", "blue")
    assert [document.id for document in documents] == [red, f"{red}-2", blue, f"{red}-3"]
    assert problems.count == 0


def test_records_of_equal_text_are_numbered_across_files(tmp_path):
    files = [put(tmp_path, f"{n}.csv", "text\nred\nred\n") for n in range(3)]
    problems, red = Problems(), content_id("", "red")
    documents = list(read_sources(files, problems=problems))
    assert [document.id for document in documents] == [red, *(f"{red}-{n}" for n in range(2, 7))]
    assert problems.count == 0


def test_numbered_ids_that_a_file_brings_itself_stay(tmp_path):
    """As in a file that `dsearch export` wrote."""
    red = content_id("", "red")
    lines = [json.dumps({"_id": id, "text": "red"}) for id in (f"{red}-2", red, None, f"{red}-3")]
    documents = list(read(put(tmp_path, "a.jsonl", "\n".join(lines))))
    assert sorted(document.id for document in documents) == [red, *(f"{red}-{n}" for n in (2, 3, 4))]
    assert [document.id for document in documents[:2]] == [f"{red}-2", red]


def test_ids_are_unique_across_sources(tmp_path):
    one = put(tmp_path, "1.jsonl", '{"_id": "a", "text": "first"}\n')
    two = put(tmp_path, "2.jsonl", '{"_id": "b", "text": "x"}\n{"_id": "a", "text": "second"}\n')
    problems = Problems()
    documents = list(read_sources([one, two], problems=problems))
    assert [(document.id, document.text) for document in documents] == [("a", "first"), ("b", "x")]
    assert str(problems.first[0]).startswith(f"{two}:2: duplicate id 'a'")


def test_sources_are_streamed(tmp_path):
    class Endless(io.RawIOBase):
        """Lines for ever; a reader that gathers them never returns."""

        number = 0

        def readable(self):
            return True

        def readinto(self, buffer):
            self.number += 1
            line = b'{"_id": "%d", "text": "x"}\n' % self.number
            buffer[: len(line)] = line
            return len(line)

    documents = itertools.islice(read("-", stdin=Endless()), 3)
    assert [document.id for document in documents] == ["1", "2", "3"]


def test_what_cannot_be_read_is_refused_at_once(tmp_path):
    put(tmp_path, "there.jsonl", "")
    put(tmp_path, "pictures/a.png", "")
    with pytest.raises(
        InvalidSource,
        match=r"nowhere\.jsonl: no such file or folder .*holds pictures, there\.jsonl.*supported",
    ):
        read(tmp_path / "nowhere.jsonl")
    with pytest.raises(InvalidSource, match=r"nor is there a folder"):
        read(tmp_path / "no" / "where")
    with pytest.raises(InvalidSource, match=r"files \.png are not read; supported are files \.jsonl"):
        read(tmp_path / "pictures" / "a.png")
    with pytest.raises(InvalidSource, match="no file in this folder can be read"):
        read(tmp_path / "pictures")
    os.mkfifo(tmp_path / "pipe.jsonl")
    with pytest.raises(InvalidSource, match="neither a file nor a folder; pipe it"):
        read(tmp_path / "pipe.jsonl")


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Texts of more than 40 bytes are cut into parts of at most 10."""
    monkeypatch.setattr(files, "LARGEST", 40)
    monkeypatch.setattr(files, "PART", 10)


def cut(text: str) -> list[str]:
    return [part.text for _, part in parts_of(Document("a", text))]


def test_a_text_of_the_largest_size_stays_whole() -> None:
    whole = Document("a", "x" * LARGEST, "T")
    assert list(parts_of(whole)) == [(0, whole)]
    assert (LARGEST, PART) == (1 << 20, 1 << 18)
    assert [number for number, _ in parts_of(Document("a", "x" * (LARGEST + 1)))] == [1, 2, 3, 4, 5]


def test_size_is_counted_in_bytes(small: None) -> None:
    assert len(cut("é" * 20)) == 1
    assert cut("é" * 21) == ["é" * 5] * 4 + ["é"]


def test_a_part_ends_at_a_blank_line_else_at_a_line_else_between_words(small: None) -> None:
    rest = "z" * 40
    assert cut(f"a\n\nb\nc d efgh{rest}")[:2] == ["a", "b"]
    assert cut(f"a\nb c d efg{rest}")[0] == "a"
    assert cut(f"a b c d efg{rest}")[0] == "a b c d"
    assert cut(f"abcdefghijk{rest}")[0] == "abcdefghij"


def test_a_part_that_begins_with_a_seam_has_words(small: None) -> None:
    """A seam at the very beginning of a part is no place to end it: that would go on for ever."""
    assert cut(" " + "x" * 45) == ["x" * 9, *["x" * 10] * 3, "x" * 6]
    assert cut("a" * 10 + " " * 40) == ["a" * 10]


def test_parts_have_the_id_and_the_title_of_their_document(small: None) -> None:
    document = Document("a", "x" * 45, "T", {"k": 1})
    numbered = list(parts_of(document))
    assert [number for number, _ in numbered] == [1, 2, 3, 4, 5]
    assert [part.id for _, part in numbered] == ["a", "a#2", "a#3", "a#4", "a#5"]
    assert [part.title for _, part in numbered[:3]] == ["T", "T (2)", "T (3)"]
    assert all(part.metadata == {"k": 1} for _, part in numbered)
