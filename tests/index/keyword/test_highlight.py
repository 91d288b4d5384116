"""Highlights: offsets of the text as it was given, whatever its normal form looks like."""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsearch.index import Tokenizer, highlights
from dsearch.index.keyword.query import _offsets

ENGLISH = Tokenizer()
PLAIN = Tokenizer(stop_words=(), stemmer=None)


@pytest.mark.parametrize(
    ("query", "text", "shown"),
    [
        ("searching indexes", "Search the index; searches.", ["Search", "index", "searches"]),
        ("dict", "a csv.DictReader()", ["Dict"]),
        ("csv.DictReader", "a csv.DictReader()", ["csv.DictReader"]),
        ("dict reader", "a csv.DictReader()", ["Dict", "Reader"]),  # side by side, but two terms
        ("read_csv", "read a csv", ["read", "csv"]),
        ("read_csv csv", "a read_csv_file", ["read", "csv"]),
        ("read_csv_file csv", "a read_csv_file", ["read_csv_file"]),  # a part within the whole
        ("the of", "the end of it", []),
        ("file", "the ﬁle, ﬁles", ["ﬁle", "ﬁles"]),
        ("office", "oﬃce", ["oﬃce"]),
        ("café", "cafe\u0301s, café", ["cafe\u0301s", "café"]),
        ("한국", "\u1112\u1161\u11ab\u1100\u116e\u11a8 x", ["\u1112\u1161\u11ab\u1100\u116e\u11a8"]),
        ("kg", "5 ㎏ of", ["㎏"]),
        ("", "anything", []),
        ("anything", "", []),
    ],
)
def test_terms_are_shown_where_they_stand(query: str, text: str, shown: list[str]) -> None:
    assert [text[start:end] for start, end in highlights(ENGLISH, query, text)] == shown


awkward = st.text(
    st.sampled_from("ab C\n.ﬁ㎏é\u0301\u0327가\u1100\u1161\u11a8İßΣς\u0915\u093c\u09c7\u09be½¨ǆ")
    | st.characters(codec="utf-8"),
    max_size=25,
)


@given(text=awkward, query=awkward)
def test_offsets_are_within_the_text_ascending_and_show_terms_of_the_query(text: str, query: str) -> None:
    spans = highlights(PLAIN, query, text)
    wanted = set(next(PLAIN.terms([query])))
    ends = [0]
    for start, end in spans:
        assert ends[-1] <= start < end <= len(text)
        ends.append(end)
        assert wanted & set(next(PLAIN.terms([text[start:end]])))
    assert bool(spans) == bool(wanted & set(next(PLAIN.terms([text]))))


@given(text=awkward)
def test_each_character_of_the_normal_form_knows_where_it_comes_from(text: str) -> None:
    normal = unicodedata.normalize("NFKC", text)
    starts, ends = _offsets(text)
    assert len(starts) == len(ends) == len(normal)
    assert starts == sorted(starts)
    assert ends == sorted(ends)
    for at, character in enumerate(normal):
        assert character in unicodedata.normalize("NFKC", text[starts[at] : ends[at]])
