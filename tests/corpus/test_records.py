from __future__ import annotations

import io
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsearch.corpus import Problems, RecordFields, content_id, read
from dsearch.errors import InvalidSource
from dsearch.store import refusal
from dsearch.types import Document, EmbeddedDocument


def read_lines(*lines, problems=None, fields=None):
    data = b"\n".join(line if isinstance(line, bytes) else line.encode() for line in lines)
    return list(read("-", problems=problems, fields=fields, stdin=io.BytesIO(data)))


def test_the_usual_fields():
    (document,) = read_lines(
        '{"_id": "d1", "title": "T", "text": "x", "metadata": {"year": 1999}, '
        '"value": [1, 2.5], "lang": "en"}'
    )
    assert document == Document(
        id="d1", title="T", text="x", metadata={"lang": "en", "year": 1999}, value=[1.0, 2.5]
    )


@pytest.mark.parametrize("name", ["text", "contents", "body"])
def test_names_of_the_text(name):
    assert read_lines(json.dumps({"id": 7, name: "x"})) == [Document(id="7", text="x")]


def test_the_first_name_wins_and_the_others_are_metadata():
    (document,) = read_lines('{"_id": "a", "id": "b", "text": "x", "body": "y"}')
    assert document == Document(id="a", text="x", metadata={"id": "b", "body": "y"})


def test_named_fields_replace_the_usual_ones():
    fields = RecordFields(id="key", title="name", text="abstract")
    (document,) = read_lines(
        '{"key": "k", "name": "n", "abstract": "a", "text": "t", "id": "i"}', fields=fields
    )
    assert document == Document(id="k", title="n", text="a", metadata={"text": "t", "id": "i"})


def test_a_document_without_id_is_named_by_its_content():
    first, second = read_lines('{"text": "one"}', '{"text": "two", "id": null, "lang": "en"}')
    assert (first.id, second.id) == (content_id("", "one"), content_id("", "two"))
    assert first.id != second.id
    assert content_id("ab", "c") != content_id("a", "bc")
    assert content_id("a", "c") != content_id("b", "c")
    assert read_lines('{"text": "one", "other": 1}')[0].id == first.id


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"_id": "x", "text": "cut', "malformed JSON at column"),
        ('{"_id": "x", "text": "x", "value": NaN}', "JSON has no NaN and no Infinity"),
        ('{"_id": "x", "text": "x", "value": -Infinity}', "JSON has no NaN and no Infinity"),
        ('{"_id": "x", "text": "x", "value": 1e999}', "malformed JSON"),
        ('{"_id": "x", "text": "\\ud800"}', "malformed JSON"),
        ('["x"]', "a JSON array; each line must be an object"),
        ('"x"', "a JSON string; each line must be an object"),
        (b'{"_id": "x", "text": "caf\xe9"}', r"byte 26 \(0xe9\) is not UTF-8"),
        ('{"_id": "x", "text": 5}', "text is 5; it must be a text"),
        ('{"_id": "x", "text": "x", "title": ["x"]}', "title is .*it must be a text"),
        ('{"_id": "x", "text": " ", "title": "\\n"}', "empty: neither title nor text"),
        ('{"_id": "x", "text": null}', "empty: neither title nor text"),
        (
            '{"_id": "x", "content": "x"}',
            "no text: expected one of the fields text, contents, body, found '_id', 'content'",
        ),
        ('{"_id": true, "text": "x"}', "id True is neither"),
        ('{"_id": 1.5, "text": "x"}', "id 1.5 is neither"),
        ('{"_id": 123456789012345678901234, "text": "x"}', "is neither a text nor a whole number"),
        (f'{{"_id": "x", "text": "x", "year": {"9" * 5000}}}', "malformed JSON"),
        ('{"_id": "x", "text": "x", "text": "y"}', "the name 'text' stands twice in one object"),
        ('{"_id": "x", "text": "a:b", "metadata": {"a": 1, "a": 2}}', "the name 'a' stands twice"),
        (f'{{"_id": "x", "text": "x", "n": {"[" * 1000}{"]" * 1000}}}', "more than 64 levels deep"),
        (f'{{"_id": "{"1" * 20}", "text": "x", "n": {"[" * 1000}{"]" * 1000}}}', "more than 64 levels deep"),
        (f'{{"_id": "x", "text": {"[" * 1000}{"]" * 1000}}}', "more than 64 levels deep"),
        ('{"_id": "x", "text": "a\x00b"}', "malformed JSON at column 24: unexpected control character"),
        ('\ufeff{"_id": "x", "text": "x"}', "byte order mark"),
        ('{"_id": "  ", "text": "x"}', "the id is blank"),
        ('{"_id": "x", "text": "x", "value": "high"}', "value 'high' is not a finite number"),
        ('{"_id": "x", "text": "x", "value": [1, null]}', "value None is not a finite number"),
        ('{"_id": "x", "text": "x", "value": true}', "value True is not a finite number"),
        ('{"_id": "x", "text": "x", "value": []}', "value is an empty list"),
        ('{"_id": "first", "text": "again"}', "duplicate id 'first'; the first document of that id is kept"),
    ],
)
def test_a_bad_line_is_told_and_costs_only_itself(line, message):
    problems = Problems()
    documents = read_lines(
        '{"_id": "first", "text": "a"}', "", line, '{"_id": "last", "text": "z"}', problems=problems
    )
    assert [document.id for document in documents] == ["first", "last"]
    assert [document.text for document in documents] == ["a", "z"]
    assert problems.count == 1
    assert problems.first[0].line == 3
    with pytest.raises(InvalidSource, match=f"standard input:3: .*{message}"):
        read_lines('{"_id": "first", "text": "a"}', "", line, problems=Problems(strict=True))


@pytest.mark.parametrize(
    ("embedding", "message"),
    [
        ("0.5", "v is 0.5; it must be a list of numbers"),
        ('"0.5"', "v is '0.5'; it must be a list of numbers"),
        ('"far"', "value 'far' is not a finite number"),
        ('"[1, 2"', r"value '\[1, 2' is not a list of numbers"),
        ("{}", "value {} is not a finite number"),
        ("[]", "value is an empty list"),
        ("[1, true]", "value True is not a finite number"),
        ("[[1, 2]]", "value .* is not a finite number"),
    ],
)
def test_a_bad_embedding_is_told_and_costs_only_its_line(embedding, message):
    lines = (f'{{"_id": "x", "text": "x", "v": {embedding}}}', '{"_id": "last", "text": "z", "v": [1, 2]}')
    fields, problems = RecordFields(embedding="v"), Problems()
    (document,) = read_lines(*lines, problems=problems, fields=fields)
    assert document == EmbeddedDocument("last", "z", embedding=[1.0, 2.0])
    assert problems.count == 1
    with pytest.raises(InvalidSource, match=f"standard input:1: {message}"):
        read_lines(*lines, problems=Problems(strict=True), fields=fields)


@pytest.mark.parametrize("absent", ["", ', "v": null', ', "v": ""'])
def test_a_record_without_an_embedding_leaves_the_stored_one(absent):
    (document,) = read_lines(f'{{"_id": "x", "text": "x"{absent}}}', fields=RecordFields(embedding="v"))
    assert document == Document("x", "x")


def test_a_long_integer_is_not_rounded():
    """Read as a float, 2^64 + 1 would be stored as 2^64; the store says that it keeps 64 bits."""
    (document,) = read_lines(f'{{"_id": {2**64 - 1}, "text": "x", "n": {2**64 + 1}, "value": {10**20}}}')
    assert (document.id, document.metadata, document.value) == (str(2**64 - 1), {"n": 2**64 + 1}, 1e20)
    assert "more than 64 bits at metadata.n" in (refusal(document) or "")


def test_without_a_collector_nothing_is_skipped_unnoticed():
    with pytest.raises(InvalidSource, match="standard input:1: malformed"):
        read_lines("{")


def test_a_named_text_field_that_is_missing():
    with pytest.raises(InvalidSource, match="no field 'abstract'; there are '_id', 'text'"):
        read_lines('{"_id": "a", "text": "x"}', fields=RecordFields(text="abstract"))


def test_a_title_alone_is_a_document():
    assert read_lines('{"_id": "a", "title": "T"}') == [Document(id="a", title="T", text="")]


def test_entries_of_an_object_of_metadata_take_precedence():
    (document,) = read_lines('  {"_id": "a", "text": "x", "lang": "en", "metadata": {"lang": "de"}}')
    assert document.metadata == {"lang": "de"}


def test_metadata_that_is_no_object_stays_a_field():
    assert read_lines('{"_id": "a", "text": "x", "metadata": "m"}')[0].metadata == {"metadata": "m"}
    assert read_lines('{"_id": "a", "text": "x", "metadata": null}')[0].metadata == {}


def test_the_collector_counts_all_keeps_some_and_tells_each():
    told = []
    problems = Problems(keep=2, on_problem=told.append)
    assert read_lines(*["{"] * 5, problems=problems) == []
    assert (problems.count, len(problems.first), len(told)) == (5, 2, 5)
    assert str(told[4]).startswith("standard input:5: malformed JSON at column 2")


JSON_VALUES = (
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(codec="utf-8"))
)
NAMES = st.text(st.characters(codec="utf-8"), min_size=1).filter(
    lambda name: name not in {"_id", "id", "title", "text", "contents", "body", "value", "metadata"}
)
TEXTS = st.text(st.characters(codec="utf-8"), min_size=1).filter(str.strip)


@given(TEXTS, TEXTS, TEXTS, st.dictionaries(NAMES, JSON_VALUES, max_size=4), st.none() | st.floats(-1e9, 1e9))
def test_any_document_survives_json_lines(identity, title, text, metadata, value):
    record = {"_id": identity, "title": title, "text": text, "metadata": metadata, "value": value}
    for ascii_only in (True, False):
        line = json.dumps(record, ensure_ascii=ascii_only)
        assert read_lines(line) == [Document(identity, text, title, metadata, value)]
