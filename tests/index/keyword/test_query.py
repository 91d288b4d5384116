"""Parsed queries: what they say, and that built documents and fresh texts obey them alike."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import dsearch.index.keyword.data as sequences
from dsearch.errors import InvalidRequest
from dsearch.index import KeywordIndex, ParsedQuery, TokenizedTexts, Tokenizer, parse_query

PLAIN = Tokenizer(stop_words=("the",), stemmer=None)
DOCUMENTS = [
    "The state of the art in beam search",
    "Art of the state: searching beams",
    "vitamin C and vitamin D",
    "call csv.DictReader(file) to read",
    "csv dict reader",
    "",
    "the who",
]


def matched(query: str, documents: list[str] = DOCUMENTS) -> list[int]:
    index = KeywordIndex.build(documents)
    mask = index.matching(parse_query(query))
    fresh = index.matching_texts(parse_query(query), TokenizedTexts.of(index.tokenizer, documents))
    assert (mask is None) == (fresh is None)
    if mask is None or fresh is None:
        return list(range(len(documents)))
    np.testing.assert_array_equal(mask, fresh)
    return np.flatnonzero(mask).tolist()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("plain words", ParsedQuery("plain words")),
        (
            'rank "beam search" +python -java',
            ParsedQuery("rank beam search python", ("beam search", "python"), ("java",)),
        ),
        ('-"garbage collector" ok', ParsedQuery("ok", (), ("garbage collector",))),
        ("“curly quotes”.", ParsedQuery("curly quotes.", ("curly quotes",))),
        ("state-of-the-art C++ a - b -5 +3", ParsedQuery("state-of-the-art C++ a - b -5 +3")),
        ('a "lone quote', ParsedQuery('a "lone quote')),
        ('5" pipe and 3" bolt', ParsedQuery('5" pipe and 3" bolt')),
        ("", ParsedQuery("")),
        ("-all", ParsedQuery("", (), ("all",))),
    ],
)
def test_queries_are_taken_apart(text: str, expected: ParsedQuery) -> None:
    assert parse_query(text) == expected
    assert expected.constrained == bool(expected.required or expected.excluded)


@given(st.text(st.sampled_from('ab+- "“”\n.'), max_size=30))
def test_every_text_is_a_query_and_plain_ones_stay_as_they_are(text: str) -> None:
    parsed = parse_query(text)
    assert parsed.constrained or parsed.text == text
    matched(text, ["a b", "ab"])


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ('"state of the art"', [0]),
        ('"art of the state"', [1]),
        ('"beams searched"', [0]),  # stems, as everywhere
        ('"vitamin C"', [2]),
        ('"vitamin E"', []),
        ('"D vitamin"', []),
        ('"csv.DictReader"', [3]),
        ('"dict reader"', [3, 4]),
        ('"csv dict reader"', [3, 4]),
        ("+DictReader", [3]),
        ("+dictreader", [3]),
        ('"the who"', [6]),
        ("+the", [0, 1, 6]),
        ('+"?!"', [0, 1, 2, 3, 4, 5, 6]),
        ("+beam -art", []),
        ("-beam", [2, 3, 4, 5, 6]),
        ('+beam -"beam search"', [1]),
        ("+unheard", []),
        ('"unheard of"', []),
        ("-unheard", [0, 1, 2, 3, 4, 5, 6]),
    ],
)
def test_documents_and_fresh_texts_obey(query: str, expected: list[int]) -> None:
    assert matched(query) == expected


def test_an_identifier_within_a_phrase_is_meant_whole() -> None:
    assert matched('"import csv.DictReader"', ["import csv.DictReader", "import csv dict reader"]) == [0]


documents_of = st.lists(
    st.lists(st.sampled_from(["aa", "bb", "the", "x", "a_b"]), max_size=6).map(" ".join), max_size=6
)


@given(
    documents=documents_of,
    phrase=st.lists(st.sampled_from(["aa", "bb", "the", "x"]), min_size=1, max_size=3),
    block=st.sampled_from([1, 4, 1 << 20]),
)
def test_a_phrase_is_a_run_of_words(documents: list[str], phrase: list[str], block: int) -> None:
    index = KeywordIndex.build(documents, tokenizer=PLAIN)
    before, sequences._SYMBOLS_AT_A_TIME = sequences._SYMBOLS_AT_A_TIME, block
    try:
        mask = index.matching(ParsedQuery("", (" ".join(phrase),)))
    finally:
        sequences._SYMBOLS_AT_A_TIME = before
    assert mask is not None
    spaced = [f" {document.replace('a_b', 'a b')} " for document in documents]
    assert mask.tolist() == [f" {' '.join(phrase)} " in document for document in spaced]
    fresh = index.matching_texts(ParsedQuery("", (" ".join(phrase),)), TokenizedTexts.of(PLAIN, documents))
    assert fresh is not None
    assert fresh.tolist() == mask.tolist()


def test_phrases_survive_the_disk(tmp_path: Path) -> None:
    built = KeywordIndex.build(DOCUMENTS)
    built.save(tmp_path)
    for mmap in (False, True):
        mask = KeywordIndex.load(tmp_path, mmap=mmap).matching(parse_query('"state of the art"'))
        assert mask is not None
        assert np.flatnonzero(mask).tolist() == [0]


def test_texts_of_another_tokenizer_are_refused() -> None:
    with pytest.raises(InvalidRequest, match="cut them again"):
        KeywordIndex.build([]).matching_texts(parse_query("+a"), TokenizedTexts.of(PLAIN, ["a"]))
    with pytest.raises(InvalidRequest, match="cut them again"):  # whose stop words are others
        KeywordIndex.build([]).scores_of_texts("the", TokenizedTexts.of(Tokenizer(stop_words=()), ["the"]))


def test_a_phrase_does_not_run_on_into_the_next_document() -> None:
    assert matched('"search beam"', ["beam search", "beam search", "search beam"]) == [2]
